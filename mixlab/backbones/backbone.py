"""The contract of a backbone: everything that training, evaluation, analysis and users ask of a model."""

from __future__ import annotations

import json
from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast, get_args

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download
from timm.layers import DropPath
from torch import Tensor, nn

from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.errors import InputError, MissingPartError
from mixlab.mixers import Mamba2, Mixing

FeatureSource = Literal["stream", "branch"]
Layers = int | Sequence[int] | None
# {"name", "config"}; of timm's models {"name", "timm_name", "fields"}; of registered ones {"registered", "fields"}
Architecture = dict[str, Any]

WEIGHTS_FILE = "model.safetensors"
DROP_PATHS = {"drop_path", "drop_path1", "drop_path2"}  # what blocks call their stochastic depth, ours and timm's

CARD = """---
{{ card_data }}
---

A vision backbone of mixlab. `config.json` says how it is built; the same is in the metadata of the weights.

```python
import mixlab

model = mixlab.Backbone.from_pretrained("...")  # the name of this repository, or a folder with these files
features = model(images)  # (B, 3, H, W) -> (B, D)
```
"""


class LayerShape(NamedTuple):
    """The map that a layer gives: channels per patch, and pixels from one patch to the next."""

    width: int
    stride: int


class _Complete(ABCMeta):
    """What a class of backbones leaves out is named as soon as one is made, not deep in a training run."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        made = super().__call__(*arguments, **options)
        _check_complete(made)
        return made


class Backbone(
    ModelHubMixin,
    nn.Module,
    metaclass=_Complete,
    library_name="mixlab",
    pipeline_tag="image-feature-extraction",
    tags=["vision", "token-mixer"],
    model_card_template=CARD,
):
    """Maps images to a summary feature; yields the features and mixings of each layer on demand."""

    name: str
    dim: int  # D, the width of the summary
    num_layers: int
    channels: int
    image: int  # the side in pixels that it was made for; others work where the architecture allows
    layout: TokenLayout
    family: str  # the kind of its mixer, as in `mixlab.mixers.MIXERS`; "other" for what none of them describes
    is_causal: bool = False  # whether, in every layer, tokens see only those before them
    has_unused_parameters: bool = False  # whether some may get no gradient: DDP must look for them
    registered: tuple[str, dict[str, Any]] | None = None  # the name and the fields with which `create_model` built it
    crop_share: float = 0.875  # of each side, that the centre crop of an evaluation keeps: 224 of 256 (DINO, DeiT)
    pixel_mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # ImageNet's, in [0, 1]
    pixel_std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> summary features (B, D)."""

    @abstractmethod
    def features(
        self, images: Tensor, layers: Layers = 1, source: FeatureSource = "stream", *, norm: bool = True
    ) -> Iterator[tuple[int, Features]]:
        """Yield (layer, features) of the last `layers` layers (a number), of those listed, or of all (None).

        `stream`: the residual stream after the layer; `branch`: the mixer's output alone. Both after the final norm, or
        with `norm=False` before it, which is where to measure the norms of tokens.
        """

    @abstractmethod
    def layer_shapes(self) -> list[LayerShape]:
        """The width and the stride of the map after each layer."""

    def mixings(self, images: Tensor, layers: Layers = None) -> Iterator[tuple[int, Mixing]]:
        """Yield (layer, mixing), one layer in memory at a time."""
        raise MissingPartError(
            f"{self.name} has no mixings to look at; choose a model of mixlab's, or maps of its features"
        )

    def features_and_mixings(
        self, images: Tensor, *, features: Layers, mixings: Layers
    ) -> Iterator[tuple[int, Features | Mixing]]:
        """Yield (layer, features) and (layer, mixing), those of some layers each, the features of a layer before its
        mixing; in one pass where the backbone can.
        """
        if features is None or features:
            yield from self.features(images, layers=features)
        if mixings is None or mixings:
            yield from self.mixings(images, layers=mixings)

    def architecture(self) -> Architecture:
        """Name and config as JSON, from which `mixlab.backbones.weights.build_architecture` builds it again."""
        if self.registered is None:
            raise InputError(
                f"mixlab does not know how to build this {type(self).__name__} again; register the function that "
                "builds it with mixlab.register_backbone(NAME), and create it with mixlab.create_model(NAME)"
            )
        name, fields = self.registered
        return {"registered": name, "fields": fields}

    def fresh(self) -> Self:
        """The same architecture with newly initialised weights, drawn from torch's random state."""
        from mixlab.backbones.weights import build_architecture  # which imports every backbone

        return cast("Self", build_architecture(self.architecture()))

    def with_classifier(self, num_classes: int) -> nn.Module:
        """A network from images to logits (B, K): these weights and a newly initialised classifier.

        It may hold copies of the weights; `load_from_classifier` brings them back once they are trained.
        """
        return LinearClassifier(self, num_classes)

    def name_in_classifier(self, name: str) -> str:
        """The name, in a network of `with_classifier`, of what is called `name` here."""
        return f"backbone.{name}"

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the activations inside each layer in the backward pass instead of keeping them."""
        if enable:
            raise InputError(f"{self.name} cannot recompute activations; leave out activation_checkpointing")

    def set_keep_scans(self, enable: bool = True) -> None:
        """Keep what each Mamba-2 scan reads and makes for the backward pass, instead of making it again there."""
        scans = [module for module in self.modules() if isinstance(module, Mamba2)]
        if enable and not scans:
            raise InputError(f"{self.name} has no Mamba-2 layers; leave out keep_scans")
        for scan in scans:
            scan.keep_scan = enable

    def set_drop_path(self, rate: float) -> None:
        """Stochastic depth for training: `rate` in the last block, rising linearly from 0 in the first."""
        blocks = [module for module in self.modules() if DROP_PATHS & {name for name, _ in module.named_children()}]
        for index, block in enumerate(blocks):
            own = rate * index / max(len(blocks) - 1, 1)
            for name in DROP_PATHS & {name for name, _ in block.named_children()}:
                setattr(block, name, DropPath(own) if own else nn.Identity())

    @property
    def layer_modules(self) -> Sequence[nn.Module]:
        """One module per layer, in order, each run as a whole; none where layers are not modules of their own."""
        return ()

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are not decayed: all vectors, and those that a backbone adds."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim < 2}

    def token_names(self) -> set[str]:
        """Those of `no_weight_decay` that are tokens and positions, which DINO decays and DeiT does not."""
        return set()

    def preprocess(self, images: Tensor) -> Tensor:
        """Pixels uint8 (B, C, H, W), or one image (C, H, W), normalised: (B, C, H, W) on its device, in its dtype."""
        if images.dtype != torch.uint8:
            raise InputError(f"preprocess takes uint8 pixels from 0 to 255, got {images.dtype}")
        if images.ndim not in (3, 4) or images.shape[-3] != self.channels:
            shape = f"{self.channels}, H, W"
            raise InputError(f"preprocess takes images (B, {shape}) or ({shape}), got {tuple(images.shape)}")
        if not images.numel():
            raise InputError(f"preprocess takes images with pixels, got {tuple(images.shape)}")
        parameter = next(self.parameters())
        scale = torch.tensor([self.pixel_mean, self.pixel_std], device=parameter.device)[..., None, None]
        mean, std = scale if self.channels == len(self.pixel_mean) else scale.mean(1, keepdim=True)  # grey: one for all
        images = images if images.ndim == 4 else images[None]
        return ((images.to(parameter.device) / 255 - mean) / std).to(parameter.dtype)

    def twin(self, seed: int = 0) -> Self:
        """The same architecture with weights initialised from a seed, in evaluation mode: an untrained baseline.

        torch's random state is left as it was.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            twin = self.fresh()
        return twin.to(next(self.parameters())).eval()

    @torch.no_grad()
    def load_from_classifier(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights out of the state of a network of `with_classifier`."""
        for name, own in self.state_dict().items():
            value = state.get(self.name_in_classifier(name))
            if value is not None and value.shape == own.shape:
                own.copy_(value)

    def classifier_names(self, network: nn.Module) -> set[str]:
        """Names in the state of a network of `with_classifier` that belong to its classifier."""
        own = {self.name_in_classifier(name): value.shape for name, value in self.state_dict().items()}
        return {name for name, value in network.state_dict().items() if own.get(name) != value.shape}

    def _save_pretrained(self, save_directory: Path) -> None:
        from mixlab.backbones.weights import save_weights  # which imports every backbone

        save_weights(self, save_directory / WEIGHTS_FILE)
        text = json.dumps(self.architecture(), indent=2)  # for readers; the weights file alone is enough to load
        (save_directory / "config.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
    ) -> Self:
        """A backbone in evaluation mode, from a folder of `save_pretrained` or from the Hub."""
        from mixlab.backbones.weights import WeightsError, model_from_file

        folder = Path(pretrained_model_name_or_path)
        path = folder / WEIGHTS_FILE
        if not folder.is_dir():
            downloaded = hf_hub_download(
                repo_id=str(pretrained_model_name_or_path),
                filename=WEIGHTS_FILE,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
            path = Path(downloaded)
        model = model_from_file(path).eval()
        if not isinstance(model, cls):
            raise WeightsError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}; call it on Backbone")
        return model


class LinearClassifier(nn.Module):
    """Logits (B, K) of a backbone's summary."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))


def _check_complete(model: Backbone) -> None:
    """Refuse a backbone that lacks what training, evaluation and analysis ask of it."""
    model.name = getattr(model, "name", type(model).__name__)
    fields = {"name": str, "dim": int, "num_layers": int, "channels": int, "image": int, "layout": TokenLayout,
              "family": str}  # fmt: skip
    wrong = [
        f"{name} ({'missing' if value is None else f'a {type(value).__name__}'}, not a {kind.__name__})"
        for name, kind in fields.items()
        if not isinstance(value := getattr(model, name, None), kind)
    ]
    if wrong:
        raise InputError(f"{type(model).__name__} is not a complete backbone: set {', '.join(wrong)} in its __init__")
    own = [*model._modules, *model._parameters, *model._buffers]
    if hidden := [name for name in own if hasattr(type(model), name)]:  # the class's would be read in its place
        raise InputError(
            f"{type(model).__name__} names a part of its network {hidden[0]!r}, which is already an attribute of every "
            f"backbone; rename it, for example to {hidden[0]}_"
        )


def chosen_layers(layers: Layers, depth: int) -> list[int]:
    """Resolve a choice of layers to rising indices; negative ones count from the end."""
    if layers is None:
        return list(range(depth))
    if isinstance(layers, int):
        if not 1 <= layers <= depth:
            raise InputError(f"cannot take the last {layers} of {depth} layers; choose 1 to {depth}")
        return list(range(depth - layers, depth))
    for index in layers:
        if not -depth <= index < depth:
            raise InputError(f"there is no layer {index} among {depth}; choose {-depth} to {depth - 1}")
    return sorted({index % depth for index in layers})


def check_source(source: str) -> None:
    if source not in get_args(FeatureSource):
        raise InputError(f"unknown source {source!r} of features; choose one of {', '.join(get_args(FeatureSource))}")
