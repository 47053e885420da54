"""Any `nn.Module` as a backbone: a network of torchvision's, of Hugging Face's, or one's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import (
    Architecture,
    Backbone,
    FeatureSource,
    Layers,
    LayerShape,
    check_source,
    chosen_layers,
)
from mixlab.backbones.map_forms import (
    Axes,
    MapForm,
    as_one_map,
    check_places,
    find_form,
    outputs_of,
    parse_place,
    take_entry,
)
from mixlab.backbones.tokens import Features, check_images
from mixlab.errors import InputError
from mixlab.mixers import Grid

MapFunction = Callable[[nn.Module, Tensor], Any]


class WrappedBackbone(Backbone):
    """Wrap any module as a backbone: features, maps, PCA, AUC, kNN, probes and training work on it.

    `maps` says where its feature maps come from: a submodule by name (`"layer4"`), several, which are its layers, a
    function `(module, images) -> map or maps`, or nothing if the module itself returns them. `"encoder[0]"` or
    `"[last_hidden_state]"` takes one entry of a tuple or mapping. A map is (B, C, h, w), (B, h, w, C), or tokens
    (B, L, C) with `num_prefix` tokens, a class token first, before the patches. Widths, strides, axes and tokens are
    found with a blank image of `image` px; pass `axes` and `num_prefix` if that is ambiguous. `mean` and `std`
    normalise pixels in [0, 1]. Calling it returns the class token if there is one, else the mean over the last map.

    The module is not copied. To save a trained network, or to make an untrained twin of a module without
    `reset_parameters`, register a function that builds and wraps it: `mixlab.register_backbone`.
    """

    family = "other"
    has_unused_parameters = True  # what comes after the last map, such as a classifier

    def __init__(
        self,
        module: nn.Module,
        *,
        maps: str | Sequence[str] | MapFunction = "",
        image: int = 224,
        axes: Axes | None = None,
        num_prefix: int | None = None,
        channels: int = 3,
        mean: Sequence[float] = Backbone.pixel_mean,
        std: Sequence[float] = Backbone.pixel_std,
        crop_share: float = Backbone.crop_share,
        name: str | None = None,
    ) -> None:
        super().__init__()
        _check_arguments(module, axes, image, channels, mean, std)
        self.network = module
        self.name = name or type(module).__name__
        self.maps = maps if callable(maps) else (maps,) if isinstance(maps, str) else tuple(maps)
        self.image, self.channels, self.crop_share = image, channels, crop_share
        self.pixel_mean, self.pixel_std = tuple(mean), tuple(std)
        self.forms = self._try_out(axes, num_prefix)
        self.num_layers, self.dim, self.layout = len(self.forms), self.forms[-1].width, self.forms[-1].layout

    def forward(self, images: Tensor) -> Tensor:
        ((_, last),) = self.features(images)
        return last.summary

    def features(
        self, images: Tensor, layers: Layers = 1, source: FeatureSource = "stream", *, norm: bool = True
    ) -> Iterator[tuple[int, Features]]:
        """As its submodules give them, whatever `norm` says: which of them are normalised is the module's choice."""
        check_source(source)
        if source == "branch":
            raise InputError(f"{self.name} was wrapped and has no branch features; use the stream")
        check_images(images, channels=self.channels, patch=1)
        height, width = images.shape[2:]
        outputs = self._outputs(images)
        for index in chosen_layers(layers, self.num_layers):
            yield index, self._read(index, outputs[index], (height, width))

    def layer_shapes(self) -> list[LayerShape]:
        return [LayerShape(form.width, form.stride) for form in self.forms]

    def architecture(self) -> Architecture:
        """How a registered function builds it; without one, what it was wrapped from, which nothing can build again."""
        if self.registered is not None:
            return super().architecture()
        kind = type(self.network)
        places = _function_name(self.maps) if callable(self.maps) else list(self.maps)
        about = {"class": f"{kind.__module__}.{kind.__qualname__}", "maps": places, "image": self.image}
        return {"name": self.name, "wrapped": about}

    def fresh(self) -> WrappedBackbone:
        """As a registered function builds it; without one, every part draws its weights anew by `reset_parameters`."""
        if self.registered is not None:
            return super().fresh()
        twin = copy.deepcopy(self)
        drawn: set[int] = set()
        for part in twin.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
                drawn |= {id(parameter) for parameter in part.parameters(recurse=False)}
                drawn |= {id(parameter) for parameter in part.parameters()} if not list(part.children()) else set()
        if kept := [name for name, parameter in twin.named_parameters() if id(parameter) not in drawn]:
            raise InputError(
                f"{self.name} cannot be initialised again: no reset_parameters() covers {', '.join(kept[:3])}. "
                "Register the function that builds it (mixlab.register_backbone) and use mixlab.create_model"
            )
        return twin

    def no_weight_decay(self) -> set[str]:
        own = getattr(self.network, "no_weight_decay", None)
        named = {f"network.{name}" for name in own()} if callable(own) else set()
        return super().no_weight_decay() | named & {name for name, _ in self.named_parameters()}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        own = getattr(self.network, "set_grad_checkpointing", None)
        if callable(own):
            own(enable)
        else:
            super().set_grad_checkpointing(enable)

    def _outputs(self, images: Tensor) -> list[Tensor]:
        """What each layer gives, one forward pass."""
        if callable(self.maps):
            found = self._run(self.maps, images)
            outputs = list(found) if isinstance(found, tuple | list) else [found]
        else:
            names = [parse_place(text)[0] for text in self.maps]
            with outputs_of(self.network, names) as seen:
                seen[""] = self._run(nn.Module.__call__, images)
            if missing := [name for name in names if name not in seen]:
                raise InputError(f"{self.name} does not run its {missing[0]!r}; name a submodule that it runs")
            outputs = [take_entry(seen[name], text) for name, text in zip(names, self.maps, strict=True)]
        places = [None] * len(outputs) if callable(self.maps) else self.maps
        return [
            as_one_map(output, self._where(index), place)
            for index, (output, place) in enumerate(zip(outputs, places, strict=True))
        ]

    def _run(self, function: MapFunction, images: Tensor) -> Any:
        """What a function makes of the module and images; what a module says to images of another size is explained."""
        try:
            return function(self.network, images)
        except (InputError, torch.OutOfMemoryError):
            raise
        except (AssertionError, RuntimeError, ValueError, TypeError) as error:
            height, width = images.shape[2:]
            if (height, width) == (self.image, self.image):
                raise
            raise InputError(
                f"{self.name} was wrapped for {self.image} px and refuses {height} x {width} px ({error}); give "
                f"images, and crops (method.local_size), of {self.image} px"
            ) from error

    def _read(self, index: int, output: Tensor, image: Grid) -> Features:
        """The features of a layer; some modules resize images of another size, or pad them, on their own."""
        try:
            return self.forms[index].read(output, image, self._where(index))
        except InputError as error:
            if image == (self.image, self.image):
                raise
            raise InputError(
                f"{self.name} was wrapped for {self.image} px, and what it gives of {image[0]} x {image[1]} px cannot "
                f"be read ({error}); give images, and crops (method.local_size), of {self.image} px"
            ) from error

    def _where(self, index: int) -> str:
        place = "the function" if callable(self.maps) else self.maps[index] or "the module itself"
        return f"{self.name}: {place}"

    @torch.no_grad()
    def _try_out(self, axes: Axes | None, num_prefix: int | None) -> list[MapForm]:
        """The forms of all maps, from a blank image."""
        if not callable(self.maps):
            check_places(self.network, self.maps)
        parameter, was_training = next(self.network.parameters()), self.network.training

        def shapes(image: int) -> list[tuple[int, ...]]:
            blank = parameter.new_zeros(1, self.channels, image, image)
            try:
                return [tuple(output.shape) for output in self._outputs(blank)]
            except InputError:
                raise
            except Exception as error:  # whatever the network's own code raises
                raise InputError(
                    f"{type(self.network).__name__} fails on a blank image {tuple(blank.shape)}: "
                    f"{type(error).__name__}: {error}; pass image= and channels= that it takes, or correct maps="
                ) from error

        self.network.eval()  # no statistics of a blank image
        try:
            return [
                find_form(
                    shape,
                    self.image,
                    axes,
                    num_prefix,
                    where=self._where(index),
                    module=self.network,
                    larger=lambda index=index: shapes(2 * self.image)[index],  # type: ignore[misc]
                )
                for index, shape in enumerate(shapes(self.image))
            ]
        finally:
            self.network.train(was_training)


def as_backbone(model: Any) -> Backbone:
    """The backbone itself, or the one in a classifier of ours, which `timm.create_model` gives."""
    found = model if isinstance(model, Backbone) else getattr(model, "backbone", None)
    if not isinstance(found, Backbone):
        raise InputError(
            f"a {type(model).__name__} is no backbone; mixlab.create_model('timm/NAME') makes one of a timm model, "
            "mixlab.wrap(module) of any other, and mixlab.load_target(NAME) reads runs and files"
        )
    return found


wrap = WrappedBackbone  # mixlab.wrap(module, ...)


def _check_arguments(
    module: Any, axes: str | None, image: int, channels: int, mean: Sequence[float], std: Sequence[float]
) -> None:
    if not isinstance(module, nn.Module):
        raise InputError(f"wrap takes an nn.Module, got a {type(module).__name__}; build the network first")
    if isinstance(module, Backbone):
        raise InputError(f"{module.name} is a backbone already; use it as it is")
    if next(module.parameters(), None) is None:
        raise InputError(f"this {type(module).__name__} has no parameters; wrap a network")
    if axes not in (None, *get_args(Axes)):
        raise InputError(f"axes {axes!r} are unknown; choose {', '.join(get_args(Axes))}")
    if image < 1 or channels < 1:
        raise InputError(f"images of {channels} channels and {image} px; give at least 1 of each")
    if len(mean) != len(std) or len(mean) not in (3, channels) or min(std) <= 0:
        raise InputError(f"mean {tuple(mean)} and std {tuple(std)}: give one of each per channel, std above 0")


def _function_name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
