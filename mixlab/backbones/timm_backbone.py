"""Any timm model as a backbone, MambaOut among them."""

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any

import torch
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.mambaout import MambaOut
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from timm.models.vision_transformer_sam import VisionTransformerSAM
from torch import Tensor, nn

from mixlab.backbones.attention_recorder import AttentionRecorder
from mixlab.backbones.backbone import (
    Architecture,
    Backbone,
    FeatureSource,
    Layers,
    LayerShape,
    check_source,
    chosen_layers,
)
from mixlab.backbones.timm_models import create_timm, known_pixels, known_size
from mixlab.backbones.tokens import Features, TokenLayout, check_images
from mixlab.errors import InputError, MissingPartError, is_out_of_memory
from mixlab.mixers import ConvMixing, Mixing

# timm's arguments that say where weights come from; an architecture may not send us to fetch others.
WEIGHT_SOURCES = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")

# What attention adds to the residual stream, by the order of norm and attention in a block.
BRANCHES: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    Block: lambda block, tokens: block.ls1(block.attn(block.norm1(tokens))),
    ResPostBlock: lambda block, tokens: block.norm1(block.attn(tokens)),
}

# ViTs of language models, whose every layer attends over all tokens: by name, since older versions of timm lack them.
VISION_TOWERS = {
    f"{name}{part}" for name in ("Qwen3Vit", "Gemma4Vit", "DeepseekVit") for part in ("Encoder", "Classifier")
}


class NoIntermediatesError(InputError):
    """A model of timm's that gives no features of its layers."""


class TimmBackbone(Backbone):
    """Features come from every timm model with intermediates; mixings from MambaOut, and from models whose every
    layer attends once over all tokens; branch features from vision transformers with norms before or after.

    `forward` is timm's own pooled feature, without any hidden layer of the classifier. The summary in `features` is the
    class token where there is one, and the mean over the grid elsewhere.
    """

    has_unused_parameters = True  # some of timm's models have parameters that their pooled feature does not need

    def __init__(self, timm_name: str, fields: dict[str, Any] | None = None, name: str | None = None) -> None:
        super().__init__()
        self.timm_name, self.fields = timm_name, dict(fields or {})
        self.name = name or f"timm/{timm_name}"
        self.model: Any = create_timm(timm_name, self.fields)  # timm's interface is by name, not by type
        if not hasattr(self.model, "forward_intermediates"):
            raise NoIntermediatesError(
                f"timm's {timm_name} has neither forward_intermediates nor forward_features; give it one of them, or "
                "wrap it (mixlab.wrap) and say where its maps come from"
            )
        _drop_hidden_head(self.model)
        _count_neck(self.model)
        self.pools_itself = not _ends_in_nothing(self.model)
        # Some networks widen what they have pooled, MobileNetV3 among them.
        width = getattr(self.model, "head_hidden_size", None) if self.pools_itself else None
        self.dim = width or self.model.num_features
        self.num_layers = len(self.model.feature_info)
        self.layout = _layout(self.model)
        pixels = known_pixels(self.model, timm_name, self.fields)
        self.image, self.channels, self.pixel_mean, self.pixel_std, self.crop_share = pixels
        self.made_for = known_size(self.model, timm_name, self.fields)
        self.family = _family(self.model)

    def architecture(self) -> Architecture:
        fields = {key: as_json(key, value) for key, value in self.fields.items() if key not in WEIGHT_SOURCES}
        return {"name": self.name, "timm_name": self.timm_name, "fields": fields}

    def fresh(self) -> "TimmBackbone":
        return TimmBackbone(self.timm_name, self.fields | {"pretrained": False}, name=self.name)

    def layer_shapes(self) -> list[LayerShape]:
        about = self.model.feature_info
        infos = about if isinstance(about, list) else about.get_dicts()
        return [LayerShape(info["num_chs"], int(info["reduction"])) for info in infos]

    @torch.no_grad()
    def with_classifier(self, num_classes: int) -> nn.Module:
        """timm's own model with a fresh classifier, as papers count it, and a copy of these weights."""
        network = create_timm(self.timm_name, {**self.fields, "num_classes": num_classes})
        state = network.state_dict()
        for name, own in self.state_dict().items():
            value = state.get(self.name_in_classifier(name))
            if value is not None and value.shape == own.shape:
                value.copy_(own)
        return network

    def name_in_classifier(self, name: str) -> str:
        return name.removeprefix("model.")

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.model.set_grad_checkpointing(enable)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | self.token_names()

    def token_names(self) -> set[str]:
        """What timm spares by name: tokens, positions, tables of relative ones, and the networks that make them."""
        return {f"model.{name}" for name in spared_by_timm(self.model)}

    def forward(self, images: Tensor) -> Tensor:
        self._check(images)
        if self.pools_itself:
            found: Tensor = self._run(self.model, images)
            if found.ndim == 2:  # else it has no pool: tokens, or a map
                return found
        ((_, last),) = self.features(images)
        return last.summary

    def features(
        self, images: Tensor, layers: Layers = 1, source: FeatureSource = "stream", *, norm: bool = True
    ) -> Iterator[tuple[int, Features]]:
        check_source(source)
        wanted = chosen_layers(layers, self.num_layers)
        self._check(images)
        if source == "branch":
            yield from self._branch_features(images, wanted, norm=norm)
            return
        for index, maps in zip(wanted, self._intermediates(images, wanted, norm=norm), strict=True):
            maps, *prefix = maps if isinstance(maps, tuple) else (maps,)
            tokens = torch.cat([*prefix, maps.flatten(2).mT], dim=1)
            yield index, self.layout.split(tokens, (maps.shape[2], maps.shape[3]))

    def mixings(self, images: Tensor, layers: Layers = None) -> Iterator[tuple[int, Mixing]]:
        """Of attention: that of each block. Of MambaOut: the convolution of the last block of each stage."""
        wanted = chosen_layers(layers, self.num_layers)
        self._check(images)
        if isinstance(self.model, MambaOut):
            yield from self._stage_mixings(images, wanted)
        elif isinstance(self.model, VisionTransformer):
            tokens = self._run(self._vit_tokens, images)
            for index, block in enumerate(self.model.blocks[: wanted[-1] + 1]):
                with AttentionRecorder(tokens.shape[0], tokens.shape[1], [0], tokens.shape[2]) as recorder:
                    tokens = block(tokens)
                self._check_calls(recorder.num_calls, 1, f"layer {index}")
                if index in wanted:
                    yield index, recorder.mixings[0]
        else:
            yield from self._recorded_mixings(images, wanted)

    def features_and_mixings(
        self, images: Tensor, *, features: Layers, mixings: Layers
    ) -> Iterator[tuple[int, Features | Mixing]]:
        """In one pass through a vision transformer, which holds the mixings of all its wanted layers together."""
        featured, mixed = (chosen_layers(layers, self.num_layers) for layers in (features, mixings))
        if not (isinstance(self.model, VisionTransformer) and featured and mixed):
            yield from super().features_and_mixings(images, features=featured, mixings=mixed)
            return
        self._check(images)
        grid = self.model.patch_embed.dynamic_feat_size(tuple(images.shape[2:]))
        num_tokens = grid[0] * grid[1] + self.layout.num_learned
        with AttentionRecorder(len(images), num_tokens, mixed, self._token_width()) as recorder:
            found = list(self.features(images, layers=featured))
        self._check_calls(recorder.num_calls, self.num_layers, f"{self.num_layers} layers")
        yield from found
        yield from ((index, recorder.mixings.pop(index)) for index in mixed)

    def _intermediates(self, images: Tensor, wanted: list[int], *, norm: bool) -> list[Any]:
        """With `norm` after the final norm, unless the model has none that fits every layer."""
        options: dict[str, Any] = {"return_prefix_tokens": True} if self.layout.place != "none" else {}
        options |= {"indices": wanted, "output_fmt": "NCHW", "intermediates_only": True}

        def intermediates(images: Tensor) -> list[Any]:
            try:
                return self.model.forward_intermediates(images, norm=norm, **options)
            except AssertionError:
                return self.model.forward_intermediates(images, norm=False, **options)

        return self._run(intermediates, images)

    def _run(self, function: Callable[[Tensor], Any], images: Tensor) -> Any:
        """What a function of timm's gives, whatever it raises at a size that the model was not made for explained:
        models with windows, or positions for one size, refuse others in many ways.
        """
        try:
            return function(images)
        except Exception as error:
            known = isinstance(error, InputError | torch.AcceleratorError) or is_out_of_memory(error)
            own = next(self.model.parameters(), images)  # images of another kind are not a matter of their size
            other_kind = (images.dtype, images.device) != (own.dtype, own.device)
            if known or other_kind or torch.compiler.is_compiling() or tuple(images.shape[2:]) == self.made_for:
                raise
            raise self._refused(images, error) from error

    def _refused(self, images: Tensor, error: Exception) -> InputError:
        (height, width), (own_height, own_width) = images.shape[2:], self.made_for
        why = str(error).strip().partition("\n")[0].rstrip(".")
        own = f"{own_height} px" if own_height == own_width else f"{own_height} x {own_width} px"
        takes_any = "swin" in self.timm_name and self.fields.get("strict_img_size", True)
        return InputError(
            f"{self.name} takes no images of {height} x {width} px{f' ({why})' if why else ''}; it is made for {own}"
            f"{', and for any with model.strict_img_size=false' if takes_any else ''}"
        )

    def _recorded_mixings(self, images: Tensor, wanted: list[int]) -> Iterator[tuple[int, Mixing]]:
        _, features = next(iter(self.features(images, layers=[0])))
        num_tokens = features.grid[0] * features.grid[1] + self.layout.num_learned
        with AttentionRecorder(len(images), num_tokens, wanted, self._token_width()) as recorder:
            self._run(self.model, images)
        self._check_calls(recorder.num_calls, self.num_layers, f"{self.num_layers} layers")
        for index in wanted:
            yield index, recorder.mixings.pop(index)

    def _stage_mixings(self, images: Tensor, wanted: list[int]) -> Iterator[tuple[int, ConvMixing]]:
        maps = self.model.stem(images)
        for index, stage in enumerate(self.model.stages[: wanted[-1] + 1]):
            maps = stage.blocks[:-1](stage.downsample(maps))  # (B, h, w, D)
            if index in wanted:
                yield index, _conv_mixing(stage.blocks[-1], maps)
            maps = stage.blocks[-1](maps)

    def _branch_features(self, images: Tensor, wanted: list[int], *, norm: bool) -> Iterator[tuple[int, Features]]:
        if not isinstance(self.model, VisionTransformer) or any(type(b) not in BRANCHES for b in self.model.blocks):
            raise InputError(
                f"{self.name} has no branch features: they exist for mixlab's backbones, and for timm's vision "
                "transformers that add attention and MLP one after the other; use the stream"
            )
        grid = self.model.patch_embed.dynamic_feat_size(tuple(images.shape[2:]))
        tokens = self._run(self._vit_tokens, images)
        for index, block in enumerate(self.model.blocks[: wanted[-1] + 1]):
            if index in wanted:
                branch = BRANCHES[type(block)](block, tokens)
                yield index, self.layout.split(self.model.norm(branch) if norm else branch, grid)
            tokens = block(tokens)

    def _vit_tokens(self, images: Tensor) -> Tensor:
        """The tokens (B, L, D) before the first block of a ViT."""
        return self.model.norm_pre(self.model.patch_drop(self.model._pos_embed(self.model.patch_embed(images))))

    def _token_width(self) -> int:
        """What layers attend over, which a neck behind them may narrow."""
        is_sam = isinstance(self.model, VisionTransformerSAM)
        return int(self.model.embed_dim) if is_sam else self.layer_shapes()[-1].width

    def _check_calls(self, num_calls: int, expected: int, where: str) -> None:
        if num_calls != expected:
            raise MissingPartError(
                f"{self.name} has no mixing matrices: it does not attend over all tokens once per layer "
                f"({num_calls} calls of torch's attention in {where} are over all tokens). Mixlab's backbones, "
                "MambaOut and timm's models that attend once per layer have them, with timm's fused attention on (its "
                "default)"
            )

    def _check(self, images: Tensor) -> None:
        patch = 1
        if isinstance(self.model, VisionTransformer):
            embed = self.model.patch_embed
            # Patches of what a stem of convolutions gives are larger in the image; timm pads before the patches.
            stem = getattr(embed, "feature_ratio", (1, 1))
            pads = getattr(embed, "dynamic_img_pad", False)
            patch = max(stem) if pads else self.layer_shapes()[0].stride
        check_images(images, channels=self.channels, patch=patch)


def as_json(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except TypeError as error:
        raise InputError(f"field {key} is {value!r}, which JSON cannot hold; choose it by name") from error


def spared_by_timm(model: nn.Module) -> set[str]:
    """The matrices that timm's own optimisers do not decay; it names some by a pattern, and some that are not there."""
    own = getattr(model, "no_weight_decay", None)
    patterns = list(own()) if callable(own) else []
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
    return {name for name in matrices if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _family(model: nn.Module) -> str:
    if isinstance(model, VisionTransformer | VisionTransformerRelPos | NaFlexVit | Eva | Beit):
        return "attention"
    if type(model).__name__ in VISION_TOWERS:
        return "attention"
    return "gated_conv" if isinstance(model, MambaOut) else "other"


def _drop_hidden_head(model: Any) -> None:
    """Some heads, MambaOut's among them, put a hidden layer before the classifier or another classifier beside it: not
    part of the backbone.
    """
    if isinstance(getattr(getattr(model, "head", None), "pre_logits", None), nn.Sequential):
        model.head.pre_logits = nn.Identity()
        model.head_hidden_size = model.head.num_features = model.num_features
    if isinstance(getattr(model, "aux_head", None), nn.Identity):  # VOLO's for token labelling, which adds all tokens
        model.aux_head = None


def _count_neck(model: Any) -> None:
    """What the neck of SAM's ViTs gives is narrower than their layers, which timm names as their width."""
    if isinstance(model, VisionTransformerSAM) and isinstance(model.neck, nn.Sequential):
        model.head_hidden_size = model.num_features
        for info in model.feature_info:
            info["num_chs"] = model.num_features


def _ends_in_nothing(model: Any) -> bool:
    """Some models build a classifier for no classes at all, which gives nothing."""
    try:
        classifier = model.get_classifier()
    except AttributeError:  # timm's EfficientViT (MSRA) and SHViT look for it inside an Identity
        return False
    return isinstance(classifier, nn.Linear) and classifier.out_features == 0


def _layout(model: Any) -> TokenLayout:
    """Prefix tokens count where timm hands them out with the intermediates."""
    hands_out = "return_prefix_tokens" in signature(model.forward_intermediates).parameters
    num_prefix = getattr(model, "num_prefix_tokens", 0) if hands_out else 0
    if not num_prefix:
        return TokenLayout(place="none")
    has_class = getattr(model, "cls_token", None) is not None
    return TokenLayout(place="front", class_token=has_class, num_registers=num_prefix - has_class)


def _conv_mixing(block: Any, maps: Tensor) -> ConvMixing:
    """The mixing of a gated CNN block of MambaOut on its input (B, h, w, D)."""
    convolved = block.fc1(block.norm(maps))[..., -block.conv.in_channels :]
    values = convolved.flatten(1, 2).mT.unsqueeze(-1)  # (B, C, L, 1)
    return ConvMixing(values, block.conv.weight.squeeze(1), (maps.shape[1], maps.shape[2]))
