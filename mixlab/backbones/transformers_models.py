"""Our backbones under the words of transformers: `AutoModel` and `MixlabBackbone` read a folder that we wrote.

    mixlab.register_with_transformers()                   # once per process
    AutoModel.from_pretrained("folder")(pixel_values=images).pooler_output
    MixlabBackbone.from_pretrained("folder", out_indices=[3, 7, 11])(pixel_values=images).feature_maps

`AutoBackbone.from_pretrained` of transformers 5 looks for names on the hub alone, never for a folder.

The folder has `config.json`, `model.safetensors`, `preprocessor_config.json` and a model card, and no code. What is
built is decided here, from the architecture in `config.json`, checked as that of any file of ours: `trust_remote_code`
is not needed, and nothing that is loaded is executed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import AutoBackbone, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling
from transformers.utils import logging

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import build_architecture
from mixlab.backbones.weights.saving import check_can_be_rebuilt
from mixlab.errors import InputError
from mixlab.run.files import write_json

try:
    from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin  # 5
except ImportError:
    from transformers.utils.backbone_utils import BackboneConfigMixin, BackboneMixin  # 4

CARD = """---
library_name: transformers
tags: [vision, token-mixer, mixlab]
pipeline_tag: image-feature-extraction
---

# {name}

A vision backbone of mixlab: {parameters:.2f} M parameters, mixer: {family}, made for images of {image} px.

```python
import mixlab
from transformers import AutoImageProcessor, AutoModel

mixlab.register_with_transformers()  # no code comes with these files
model = AutoModel.from_pretrained("...")  # this folder
model(pixel_values=images).pooler_output  # (B, {dim})

from mixlab.backbones.transformers_models import MixlabBackbone  # AutoBackbone reads no folders

backbone = MixlabBackbone.from_pretrained("...", out_indices={layers})
backbone(pixel_values=images).feature_maps  # of these layers, (B, D, h, w) each
```

`mixlab.Backbone.from_pretrained` reads the folder of `Backbone.save_pretrained` instead; both hold the same weights.
"""


class MixlabConfig(BackboneConfigMixin, PretrainedConfig):
    """The architecture of a backbone, as `Backbone.architecture` gives it."""

    model_type = "mixlab"

    def __init__(
        self,
        architecture: dict[str, Any] | None = None,
        hidden_size: int = 0,
        image_size: int = 224,
        num_hidden_layers: int = 0,
        out_features: list[str] | None = None,
        out_indices: list[int] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.architecture = architecture or {}
        self.hidden_size, self.image_size, self.num_hidden_layers = hidden_size, image_size, num_hidden_layers
        self.stage_names = [f"layer{number}" for number in range(num_hidden_layers)]
        self.set_output_features_output_indices(out_indices=out_indices, out_features=out_features)

    @classmethod
    def of(cls, backbone: Backbone) -> "MixlabConfig":
        return cls(
            architecture=check_can_be_rebuilt(backbone),
            hidden_size=backbone.dim,
            image_size=backbone.image,
            num_hidden_layers=backbone.num_layers,
        )


class MixlabPreTrainedModel(PreTrainedModel):
    """A backbone as a part of a model of transformers."""

    config_class = MixlabConfig
    base_model_prefix = "backbone"
    main_input_name = "pixel_values"

    def __init__(self, config: MixlabConfig) -> None:
        super().__init__(config)
        if not config.architecture:
            raise InputError("this config has no architecture; export one with mixlab export --format transformers")
        self.backbone = build_architecture(config.architecture)

    def _init_weights(self, module: nn.Module) -> None:
        """A backbone initialises itself."""


class MixlabModel(MixlabPreTrainedModel):
    """`pooler_output` is what the backbone returns, `last_hidden_state` its patches after the last layer."""

    def __init__(self, config: MixlabConfig) -> None:
        super().__init__(config)
        self.post_init()

    def forward(
        self, pixel_values: Tensor, output_hidden_states: bool | None = None, return_dict: bool | None = None
    ) -> Any:
        maps = [
            found.patches.flatten(1, 2)
            for _, found in self.backbone.features(pixel_values, layers=None if output_hidden_states else 1)
        ]
        result = BaseModelOutputWithPooling(
            last_hidden_state=maps[-1],
            pooler_output=self.backbone(pixel_values),
            hidden_states=tuple(maps) if output_hidden_states else None,
        )
        return result if return_dict is not False else result.to_tuple()


class MixlabBackbone(BackboneMixin, MixlabPreTrainedModel):
    """Images to the feature maps (B, D, h, w) of the layers in `out_indices`."""

    has_attentions = False

    def __init__(self, config: MixlabConfig) -> None:
        super().__init__(config)
        self.num_features = [shape.width for shape in self.backbone.layer_shapes()]
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        numbers = [self.stage_names.index(name) for name in self.out_features]
        maps = {
            number: found.patches.permute(0, 3, 1, 2).contiguous()
            for number, found in self.backbone.features(pixel_values, layers=sorted(numbers))
        }
        result = BackboneOutput(feature_maps=tuple(maps[number] for number in numbers))
        return result if return_dict is not False else result.to_tuple()


@contextmanager
def _without_bars() -> Iterator[None]:
    """Progress bars of transformers, which come into logs too, are off within."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def export_transformers(backbone: Backbone, folder: Path) -> None:
    """Write what `AutoModel.from_pretrained(folder)` reads."""
    model = MixlabModel(MixlabConfig.of(backbone))
    model.backbone.load_state_dict(backbone.state_dict())
    with _without_bars():
        model.save_pretrained(folder)
    write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "CLIPImageProcessor",  # one that cuts out the middle, as `preprocess` does
            "do_convert_rgb": backbone.channels == 3,
            "do_resize": True,
            "size": {"shortest_edge": backbone.image},
            "resample": 3,
            "do_center_crop": True,
            "crop_size": {"height": backbone.image, "width": backbone.image},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(backbone.pixel_mean),
            "image_std": list(backbone.pixel_std),
        },
    )
    about = {"family": backbone.family, "image": backbone.image, "dim": backbone.dim}
    about["layers"] = sorted({backbone.num_layers // 2, backbone.num_layers - 1})
    text = CARD.format(name=backbone.name, parameters=backbone.num_parameters / 1e6, **about)
    (folder / "README.md").write_text(text, encoding="utf-8")


AutoConfig.register("mixlab", MixlabConfig, exist_ok=True)
AutoModel.register(MixlabConfig, MixlabModel, exist_ok=True)
AutoBackbone.register(MixlabConfig, MixlabBackbone, exist_ok=True)
