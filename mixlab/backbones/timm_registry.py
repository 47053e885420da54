"""Our backbones under timm's names and words: `timm.create_model("dinovim_tiny")`, features_only included."""

from collections.abc import Sequence
from typing import Any

from timm.models import register_model
from timm.models._features import FeatureGetterNet
from torch import nn

from mixlab.backbones.isotropic import Isotropic, IsotropicConfig
from mixlab.backbones.zoo import ZOO, replace_fields
from mixlab.errors import InputError

__all__: list[str] = []  # timm's registry appends the names it takes
TIMM_FIELDS = {"img_size": "image", "in_chans": "channels", "patch_size": "patch", "drop_path_rate": "drop_path"}


def _register(name: str, config: IsotropicConfig) -> None:
    def build(
        pretrained: bool = False,
        *,
        num_classes: int = 1000,
        features_only: bool = False,
        out_indices: int | Sequence[int] | None = None,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: Any = None,
        cache_dir: Any = None,
        **fields: Any,
    ) -> nn.Module:
        if pretrained:
            raise InputError(f"{name} has no published weights to download; load a file with mixlab.load_weights")
        changes = {TIMM_FIELDS.get(key, key): value for key, value in fields.items()}
        model = Isotropic(replace_fields(config, changes), name=name).with_classifier(num_classes)
        if not features_only:
            return model
        depth = len(model.feature_info)
        quarters = [depth * (quarter + 1) // 4 - 1 for quarter in range(4)] if depth >= 4 else list(range(depth))
        return FeatureGetterNet(model, out_indices=quarters if out_indices is None else out_indices)

    build.__name__ = name
    build.__module__ = __name__
    register_model(build)


for _name, _entry in ZOO.items():
    if isinstance(_entry.config, IsotropicConfig):
        _register(_name, _entry.config)
