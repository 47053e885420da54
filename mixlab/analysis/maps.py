"""Activation maps: one value per patch, as a picture. `MAPS` is the table; every entry is
`map(backbone, images, layer=-1) -> (B, [K,] h, w)`, with K registers or heads where the map has several.

Which map is the paper's? Section 4.1 scores the similarity between the class token and the image tokens; the head
study (Figure 4b) scores rows of the attention matrix, the register study (4d) one map per register. So `cosine`, which
needs only features and is bounded whatever their norm, is the default for every backbone with a class token or
registers, softmax, linear and Mamba alike: families are compared by one and the same map. The head study reads
`mixing_rows`, the register study `register_cosine`. Backbones without such a token take `pooled_cosine`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.analysis.cut import cut_maps
from mixlab.analysis.isolation import isolation_maps
from mixlab.analysis.pca import first_components
from mixlab.backbones.backbone import Backbone, Layers, chosen_layers
from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.backbones.wrapped import as_backbone
from mixlab.errors import InputError, MissingPartError, check_kind, did_you_mean
from mixlab.mixers import Grid, Mixing, SelectiveMixing, SSDMixing
from mixlab.plugins import Registry, needed_plugins


@dataclass(frozen=True)
class MapOfFeatures:
    """A map read from the features after a layer (the residual stream after the final norm)."""

    about: str
    read: Callable[[Features], Tensor]

    def __call__(self, backbone: Backbone, images: Tensor, layer: int = -1) -> Tensor:
        return _one_map(self, backbone, images, layer)


@dataclass(frozen=True)
class MapOfMixing:
    """A map read from the mixing of a layer: the rows of its matrix that feed the summary tokens."""

    about: str
    read: Callable[[Tensor, Mixing], Tensor]  # rows (B, H, S, h, w) of S summary tokens

    def __call__(self, backbone: Backbone, images: Tensor, layer: int = -1) -> Tensor:
        return _one_map(self, backbone, images, layer)


MapKind = MapOfFeatures | MapOfMixing


@torch.no_grad()
def read_maps(
    backbone: Backbone, images: Tensor, wanted: Sequence[tuple[MapKind, Layers]]
) -> Iterator[tuple[int, int, Tensor]]:
    """Several maps, each after its own layers, in one pass: yield (place in `wanted`, layer, map).

    One layer is in memory at a time.
    """
    chosen = [chosen_layers(layers, backbone.num_layers) for _, layers in wanted]
    featured = {
        n for (kind, _), own in zip(wanted, chosen, strict=True) if isinstance(kind, MapOfFeatures) for n in own
    }
    mixed = {n for (kind, _), own in zip(wanted, chosen, strict=True) if isinstance(kind, MapOfMixing) for n in own}
    if mixed:
        featured.add(0)  # for the grid
    grid: Grid | None = None
    for layer, found in backbone.features_and_mixings(images, features=sorted(featured), mixings=sorted(mixed)):
        if isinstance(found, Features):
            grid = grid or found.grid
        else:
            rows = summary_rows(found, backbone.layout, cast("Grid", grid))
        for place, ((kind, _), own) in enumerate(zip(wanted, chosen, strict=True)):
            if layer not in own:
                continue
            if isinstance(found, Features) and isinstance(kind, MapOfFeatures):
                yield place, layer, kind.read(found)
            elif isinstance(found, Mixing) and isinstance(kind, MapOfMixing):
                yield place, layer, kind.read(rows, found)


def _one_map(kind: MapKind, backbone: Backbone, images: Tensor, layer: int) -> Tensor:
    return next(read_maps(backbone, images, [(kind, [layer])]))[2]


def summary_rows(mixing: Mixing, layout: TokenLayout, grid: Grid) -> Tensor:
    """|weight| of each patch in the rows of the summary tokens (B, H, S, h, w), head by head."""
    num_patches = grid[0] * grid[1]
    rows, columns = layout.summary_rows(num_patches), layout.patch_columns(num_patches)
    if not rows:
        raise MissingPartError(
            "rows of a mixing matrix need a token that is the summary, which in this backbone is the mean of patches; "
            'use "pooled_cosine", "norm", "pca", "cut" or "isolation"'
        )
    chosen = torch.tensor(columns, device=mixing.values.device)
    return mixing.rows(rows)[..., chosen].abs().unflatten(-1, grid)  # (B, H, S, h, w)


def _cosine(features: Features) -> Tensor:
    return F.cosine_similarity(features.anchor[:, None, None], features.patches, dim=-1)


def _dot(features: Features) -> Tensor:
    return torch.einsum("bd,bhwd->bhw", features.anchor, features.patches)


def _register_cosine(features: Features) -> Tensor:
    registers = _registers(features)
    return F.cosine_similarity(registers[:, :, None, None], features.patches[:, None], dim=-1)


def _register_dot(features: Features) -> Tensor:
    return torch.einsum("brd,bhwd->brhw", _registers(features), features.patches)


def _registers(features: Features) -> Tensor:
    if not features.registers.shape[1]:
        raise MissingPartError(
            'this backbone has no registers to map; use "cosine", or a model such as dinomambareg_tiny'
        )
    return features.registers


def _front_cosine(features: Features) -> Tensor:
    if features.front is None:
        raise MissingPartError(
            "this backbone has no copy of its class token in front; the map needs a class token in the middle and in "
            "front, as dinovim_tiny has"
        )
    return F.cosine_similarity(features.front[:, None, None], features.patches, dim=-1)


def _pooled_cosine(features: Features) -> Tensor:
    pooled = features.patches.mean((1, 2), keepdim=True)
    return F.cosine_similarity(pooled, features.patches, dim=-1)


def _norm(features: Features) -> Tensor:
    return features.patches.norm(dim=-1)


def _first_component(features: Features) -> Tensor:
    return first_components(features.patches)


def _cut(features: Features) -> Tensor:
    return cut_maps(features.patches)


def _isolation(features: Features) -> Tensor:
    return isolation_maps(features.patches)


def _rows_by_head(rows: Tensor, mixing: Mixing) -> Tensor:
    """The mean over summary tokens, per head. Of a scan in several directions, head h of each are one map together:
    each sees the patches on its side of the token.
    """
    rows = rows.mean(2)
    if isinstance(mixing, SSDMixing) and 2 * mixing.num_reverse == mixing.num_heads:
        return rows[:, : mixing.num_reverse] + rows[:, mixing.num_reverse :]
    if isinstance(mixing, SelectiveMixing):  # the same channel in every scan
        return rows.unflatten(1, (len(mixing.scans), -1)).sum(1)
    return rows


def _rows_by_direction(rows: Tensor, mixing: Mixing) -> Tensor:
    if isinstance(mixing, SelectiveMixing):
        return rows.mean(2).unflatten(1, (len(mixing.scans), -1)).mean(2)
    if not isinstance(mixing, SSDMixing):
        raise MissingPartError(f'only scans have directions, this is a {type(mixing).__name__}; use "mixing_rows"')
    forward, reverse = rows.mean(2).tensor_split([mixing.num_heads - mixing.num_reverse], dim=1)
    return torch.stack([part.mean(1) for part in (forward, reverse) if part.shape[1]], dim=1)


def _rows_by_register(rows: Tensor, mixing: Mixing) -> Tensor:
    return rows.mean(1)


_OWN_MAPS: dict[str, MapKind] = {
    "cosine": MapOfFeatures("cosine of the summary (class token, mean register or mean patch) to each patch", _cosine),
    "dot": MapOfFeatures("dot product of the summary and each patch", _dot),
    "register_cosine": MapOfFeatures("cosine of each register to each patch, (B, R, h, w)", _register_cosine),
    "register_dot": MapOfFeatures("dot product of each register and each patch, (B, R, h, w)", _register_dot),
    "front_cosine": MapOfFeatures("cosine of the class token's copy in front to each patch", _front_cosine),
    "pooled_cosine": MapOfFeatures("cosine of the mean patch to each patch", _pooled_cosine),
    "norm": MapOfFeatures("length of the feature of each patch", _norm),
    "pca": MapOfFeatures("first principal component of the patches of each image", _first_component),
    "cut": MapOfFeatures("normalised cut of each image into two parts whose patches are alike", _cut),
    "isolation": MapOfFeatures("how much each patch stands out from the border of the image", _isolation),
    "mixing_rows": MapOfMixing("|row| of the mixing matrix at the summary, per head, (B, H, h, w)", _rows_by_head),
    "mixing_mean": MapOfMixing("the mean of mixing_rows over heads", lambda rows, m: _rows_by_head(rows, m).mean(1)),
    "direction_rows": MapOfMixing(
        "|row| of a scan, per direction or order, the mean over heads, (B, 2, h, w)", _rows_by_direction
    ),
    "register_rows": MapOfMixing("|row| at each summary token, the mean over heads, (B, S, h, w)", _rows_by_register),
}
MAPS: Registry[MapKind] = Registry("map", _OWN_MAPS)


def default_map(backbone: Backbone) -> str:
    """The map that corresponds to the paper's on this backbone; the module docstring says why."""
    return "cosine" if backbone.layout.has_summary_token else "pooled_cosine"


@torch.no_grad()
def single_maps(backbone: Backbone, images: Tensor, among: Sequence[str] = ()) -> list[str]:
    """The kinds of map with one picture per image that this backbone has, found by trying them on a few images."""
    found: list[str] = []
    for name, kind in MAPS.items():
        if among and name not in among:
            continue
        if name == "cosine" and default_map(backbone) == "pooled_cosine":
            continue  # its summary is the mean patch
        with contextlib.suppress(MissingPartError):
            if kind(backbone, images).ndim == 3:
                found.append(name)
    return found


def activation_map(backbone: Backbone, images: Tensor, name: str | None = None, layer: int = -1) -> Tensor:
    """Compute a map of images (B, 3, H, W), by name or the backbone's default: (B, [K,] h, w)."""
    backbone = as_backbone(backbone)
    return find_map(default_map(backbone) if name is None else name)(backbone, images, layer)


def find_map(name: str) -> MapKind:
    """A map of the table; or several that are read from features, as `cosine+pca`, stacked (B, K, h, w) in one pass."""
    check_kind(name, str, f"name a map, such as {next(iter(MAPS))}")
    names = name.split("+")
    for part in names:
        if part not in MAPS:
            load = "or load the plugin that adds it (mixlab --import)"
            hint = did_you_mean(part, MAPS, otherwise=f"choose one of {', '.join(MAPS)}, {load}")
            raise InputError(f"there is no map {part!r}; {hint}")
    kinds = [MAPS[part] for part in names]
    if len(kinds) == 1:
        return kinds[0]
    readers = [kind.read for kind in kinds if isinstance(kind, MapOfFeatures)]
    if len(readers) < len(kinds):
        raise InputError(f"{name!r} includes a map of a mixing matrix; only maps of features can be combined")

    def read(features: Features) -> Tensor:
        found = [reader(features) for reader in readers]
        if any(one.ndim == 4 for one in found):
            raise InputError(f"{name!r} includes a map with several parts, such as registers; draw that map alone")
        return torch.stack(found, 1)

    return MapOfFeatures(f"{', '.join(names)}, (B, {len(names)}, h, w)", read)


def compares_patches(name: str) -> bool:
    """Whether some map of a name compares every patch of an image with every other."""
    return bool({"cut", "isolation"} & {*name.split("+")})


def plugins_of_maps(names: Iterable[str]) -> dict[str, Any]:
    """What a result notes of the plugins that registered its maps; nothing where all are ours."""
    needed = needed_plugins([("map", part) for name in names for part in name.split("+")])
    return {"plugins": needed} if needed else {}
