"""Kinds of activation map from outside: `register_map`. docs/add_a_map.md has a complete example."""

from collections.abc import Callable
from functools import wraps
from inspect import getdoc, signature
from typing import Any

from torch import Tensor

from mixlab.analysis.maps import MAPS, MapOfFeatures, MapOfMixing
from mixlab.backbones.tokens import Features
from mixlab.errors import InputError, MissingPartError, WorkError
from mixlab.mixers import Mixing
from mixlab.plugins import named, takes

Read = Callable[..., Tensor]
TAKEN = "default"  # the page's word for the map of each network


def register_map(function: Read | str) -> Any:
    """Register a function as a kind of activation map, for `mixlab maps`, `mixlab auc` and the page; a decorator.

    The function takes the `Features` of a layer, or the rows (B, H, S, h, w) of S summary tokens and the `Mixing` of
    the layer. It returns one value for each patch, (B, h, w), or several maps, (B, K, h, w), and raises `InputError`
    where a network has no such map. The map has the name of the function, or that in `@register_map("another_name")`;
    the first paragraph of the docstring says what it shows.
    """

    def add(name: str, read: Read) -> None:
        if name == TAKEN:
            raise InputError(
                f"a map cannot be called {name!r}, which on the page means each network's own map; rename it"
            )
        about = (getdoc(read) or name).split("\n\n")[0].replace("\n", " ").rstrip(".")
        about = about[:1].lower() + about[1:]
        if takes(read, "features"):
            MAPS[name] = MapOfFeatures(about, _of_features(read, name))
        elif takes(read, "rows", "mixing"):
            MAPS[name] = MapOfMixing(about, _of_mixing(read, name))
        else:
            raise InputError(
                f"the map {name} must be a function of the features of a layer, {name}(features), or of rows of its "
                f"matrix, {name}(rows, mixing); got {name}{signature(read)}"
            )

    return named("map", function, add)


def _of_features(read: Read, name: str) -> Callable[[Features], Tensor]:
    @wraps(read)
    def checked(features: Features) -> Tensor:
        return _checked(_asked(read, features), name, len(features.patches), features.grid, features.patches)

    return checked


def _of_mixing(read: Read, name: str) -> Callable[[Tensor, Mixing], Tensor]:
    @wraps(read)
    def checked(rows: Tensor, mixing: Mixing) -> Tensor:
        return _checked(_asked(read, rows, mixing), name, len(rows), (rows.shape[-2], rows.shape[-1]), rows)

    return checked


def _asked(read: Read, *inputs: Any) -> Any:
    """What a plugin's map gives. Its `InputError` says that the network has no such map."""
    try:
        return read(*inputs)
    except InputError as error:
        raise MissingPartError(str(error)) from error


def _checked(found: Any, name: str, num_images: int, grid: tuple[int, int], source: Tensor) -> Tensor:
    """What a plugin gave for a map, refused by what is wrong with it. NaN of the network itself is not its fault."""
    expected = f"return a tensor ({num_images}, {grid[0]}, {grid[1]}), or ({num_images}, K, {grid[0]}, {grid[1]})"
    said = ""
    if not isinstance(found, Tensor):
        said = f"gives a {type(found).__name__}; {expected}"
    elif found.ndim not in (3, 4) or found.shape[0] != num_images or found.shape[-2:] != grid or not found.numel():
        said = f"gives a tensor of shape {tuple(found.shape)}; {expected}: one value for each patch of each image"
    elif found.is_complex():
        said = f"gives complex values ({found.dtype}); return real ones"
    elif not found.isfinite().all() and source.isfinite().all():
        said = "gives NaN or infinity where the network does not; return finite values"
    if said:
        raise WorkError(f"the map {name!r} of the plugin {MAPS.origin(name)} {said}")
    return found
