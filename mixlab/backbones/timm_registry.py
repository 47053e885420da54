"""Our backbones under timm's names and words: `timm.create_model("dinovim_tiny")`, features_only included."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._builder import resolve_pretrained_cfg
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from mixlab.backbones.classifier import IsotropicClassifier, square_side, timm_config
from mixlab.backbones.isotropic import Isotropic, IsotropicConfig
from mixlab.backbones.staged import StagedConfig
from mixlab.backbones.staged_classifier import StagedClassifier
from mixlab.backbones.zoo import ZOO, ZooEntry, build, build_registered, replace_fields
from mixlab.errors import InputError

__all__: list[str] = []  # timm's registry appends the names it takes
TIMM_FIELDS = {"img_size": "image", "in_chans": "channels", "patch_size": "patch", "drop_path_rate": "drop_path"}
default_cfgs: dict[str, Any] = {}  # where timm's registry looks for what it shows of a model


class FeatureDict(FeatureGetterNet):
    """Feature maps by the number of their layer."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return dict(zip(map(str, self.out_indices), super().forward(x), strict=True))


class FeatureGraph(nn.Module):
    """Feature maps from a graph of torch.fx."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        getter = FeatureGetterNet(model, **options)
        self.feature_info, self.output_fmt = getter.feature_info, getter.output_fmt
        self.graph_module = torch.fx.symbolic_trace(getter)

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.graph_module(x)


FEATURE_CLASSES = {"getter": FeatureGetterNet, "list": FeatureGetterNet, "dict": FeatureDict, "fx": FeatureGraph}


def _register(name: str, entry: ZooEntry) -> None:
    """An entry of the zoo under its name; what timm defines itself has its name already."""
    if isinstance(entry.config, IsotropicConfig | StagedConfig):
        default_cfgs.update(generate_default_cfgs({name: timm_config(name, entry.config)}))
        register_model(_named(name, _entrypoint(name, entry.config)))
    elif not isinstance(entry.config, str):
        register_model(_named(name, _built(name)))


def _named(name: str, entrypoint: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    entrypoint.__name__, entrypoint.__module__ = name, __name__
    return entrypoint


def _built(name: str) -> Callable[..., nn.Module]:
    """Of a backbone that a registered function builds: with a classifier, or bare for num_classes=0."""

    def entrypoint(
        pretrained: bool = False,
        *,
        features_only: bool = False,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: Any = None,
        cache_dir: Any = None,
        num_classes: int = 1000,
        **fields: Any,
    ) -> nn.Module:
        if pretrained or features_only:
            asked = "published weights" if pretrained else "features_only"
            raise InputError(f"timm cannot give {name} with {asked}; use mixlab.create_model and its features()")
        backbone = build_registered(name, fields)
        return backbone.with_classifier(num_classes) if num_classes else backbone

    return entrypoint


def _entrypoint(name: str, own: IsotropicConfig | StagedConfig) -> Callable[..., nn.Module]:
    def entrypoint(
        pretrained: bool = False,
        *,
        features_only: bool = False,
        out_indices: int | Sequence[int] | None = None,
        feature_cls: Any = "getter",
        feature_cfg: dict[str, Any] | None = None,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: dict[str, Any] | None = None,
        cache_dir: Any = None,
        num_classes: int | None = None,
        global_pool: str = "token",
        drop_rate: float = 0.0,
        **fields: Any,
    ) -> nn.Module:
        if pretrained and not resolve_pretrained_cfg(name, pretrained_cfg, pretrained_cfg_overlay).has_weights:
            raise InputError(f"{name} has no published weights to download; load a file with mixlab.load_weights")
        changes = {TIMM_FIELDS.get(key, key): value for key, value in fields.items()}
        for side in ("image", "patch"):
            if side in changes:
                changes[side] = square_side(changes[side])
        config = replace_fields(own, changes)

        def classifier(num_classes: int, global_pool: str, in_chans: int) -> IsotropicClassifier:
            backbone = build(config, name)
            make = IsotropicClassifier if isinstance(backbone, Isotropic) else StagedClassifier
            return make(backbone, num_classes, global_pool=global_pool, drop_rate=drop_rate)

        staged, own_cfg = isinstance(config, StagedConfig), timm_config(name, config)
        quarters = sorted({max(config.depth * quarter // 4 - 1, 0) for quarter in (1, 2, 3, 4)})
        defaults = list(range(len(config.dims))) if isinstance(config, StagedConfig) else quarters
        options = {"feature_cls": feature_cls, **(feature_cfg or {})}
        return build_model_with_cfg(
            classifier,
            name,
            pretrained,
            pretrained_cfg=pretrained_cfg,
            pretrained_cfg_overlay={
                "input_size": own_cfg.input_size,
                "pool_size": own_cfg.pool_size,
                **(pretrained_cfg_overlay or {}),
            },
            # normalised: the raw stream of such a stack has no set scale; stages leave their maps as detectors expect
            feature_cfg={"norm": not staged, **options, "feature_cls": _feature_class(options["feature_cls"])},
            cache_dir=cache_dir,
            features_only=features_only,
            global_pool=global_pool,
            in_chans=config.channels,
            **({} if num_classes is None else {"num_classes": num_classes}),
            **({"out_indices": defaults if out_indices is None else out_indices} if features_only else {}),
        )

    return entrypoint


def _feature_class(chosen: Any) -> Any:
    if not isinstance(chosen, str):
        return chosen
    if chosen not in FEATURE_CLASSES:
        raise InputError(
            f"feature_cls {chosen!r} does not work with layers that pass branch and stream separately; choose one of "
            f"{', '.join(FEATURE_CLASSES)}"
        )
    return FEATURE_CLASSES[chosen]


ZOO.follow(_register)
