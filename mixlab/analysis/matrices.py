"""The mixing matrices of networks on one image, as pictures: which tokens read which."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.blocks import chunk_spans, default_chunk, off_diagonal_pairs, rank_measures
from mixlab.analysis.exhibit import Exhibit, Picture
from mixlab.analysis.registry import register_analysis
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.choices import SHOWN_FIT
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.mixers import ConvMixing, Mixing
from mixlab.run.directory import file_name

NUM_HEADS = 3
_VALUES_AT_ONCE = 1 << 22  # of a matrix with its heads: bounds the working memory
MOST_DECADES, LEAST_DECADES = 4.0, 0.5  # powers of ten from black to white
READING, RANKS = "reading_", "ranks_"  # before a model's name: what its patch reads, and the ranks of blocks
MOST_CHUNKS = 6  # of a matrix whose blocks have a number: more could not be read
ABOUT = (
    "What the framed patch reads, as the mean over heads, itself left out. Then mixing matrices: a row per token that "
    "reads, a column per token that is read, in the order of the sequence. Bright is strong, on a logarithmic scale "
    "from the weak entries of each matrix to its strongest."
)


@register_analysis("matrices", data="photo", num_images=1, fit=SHOWN_FIT, matrices=True)
@torch.no_grad()
def draw_matrices(
    targets: Sequence[Target],
    images: ViewedImages,
    *,
    layer: int = -1,
    heads: tuple[int, ...] = (),
    patch: tuple[float, float] = (0.5, 0.5),
    progress: Callable[[], None] | None = None,
) -> Exhibit:
    """Draw the mixing matrices of one or more backbones on one image: which token reads which.

    Args:
        layer: which layer, counted from 0; negative numbers count from the end.
        heads: which heads, counted from 0; default: three, evenly spaced. A convolution has one head per channel.
        patch: also show what this patch reads (mean over heads): its position from the top and from the left, 0 to 1.
    """
    if not all(0 <= share <= 1 for share in patch):
        raise InputError(f"--patch {patch[0]:g} {patch[1]:g} lies outside of the image; both shares are from 0 to 1")
    seen = next(iter(images))
    pixels, arrays, models = seen.images[:1], {"image": seen.images[0].numpy()}, []
    for target in targets:
        name = file_name(target.label)
        about, found = matrices_of(target, pixels, layer=layer, heads=heads)
        arrays |= {name: found.levels} if found.ranks is None else {name: found.levels, f"{RANKS}{name}": found.ranks}
        arrays[f"{READING}{name}"], cell = reading_of(target, pixels, layer=layer, patch=patch)
        models.append(about | {"patch": cell})
        if progress is not None:
            progress()
    names = [file_name(model["label"]) for model in models]
    shown = [(model, arrays[name], arrays[f"{READING}{name}"]) for model, name in zip(models, names, strict=True)]

    def draw() -> Any:
        from mixlab.analysis.figures import mixing_pictures

        return mixing_pictures(arrays["image"], shown)

    return Exhibit(
        title="Mixing matrices",
        about=ABOUT,
        columns=("model", "layer", "heads", "of all", "tokens", "fast path differs by"),
        rows=[
            (
                model["label"],
                model["layer"],
                " ".join(map(str, model["heads"])),
                model["num_heads"],
                model["num_tokens"],
                f"{model['run_and_look_differ_by']:.0e}",
            )
            for model in models
        ],
        pictures=[Picture("matrices", f"{seen.names[0]} through each model. {ABOUT}", draw)],
        arrays=arrays,
        content={
            "image": images.view.size,
            "images": seen.names[:1],
            "decades": max(m["decades"] for m in models),
            "models": models,
        },
    )


class DrawnMatrices(NamedTuple):
    levels: NDArray[np.uint8]  # grey levels of some heads (h, L, L)
    ranks: NDArray[np.float64] | None  # the effective rank of each of their blocks (h, n, n), NaN beyond what is read


@torch.no_grad()
def matrices_of(
    target: Target, pixels: Tensor, *, layer: int = -1, heads: Sequence[int] = ()
) -> tuple[dict[str, Any], DrawnMatrices]:
    """Some heads' matrices of one image, uint8 (1, 3, H, W); what they are, and how far running the mixing differs from
    looking at it."""
    backbone = target.backbone
    [(number, mixing)] = backbone.mixings(backbone.preprocess(pixels), layers=[layer])
    if unknown := [head for head in heads if not 0 <= head < mixing.num_heads]:
        raise InputError(
            f"{target.label} has no head {unknown[0]} in layer {number}; choose 0 to {mixing.num_heads - 1}"
        )
    chosen = heads or np.unique(np.linspace(0, mixing.num_heads - 1, NUM_HEADS).round().astype(int)).tolist()
    ran = mixing.apply()
    chunk = default_chunk(mixing.values.shape[2])
    error, strengths, ranks = 0.0, [], []
    for head in chosen:
        matrix = mixing.matrix(slice(head, head + 1))[0, 0]  # (L, L)
        if not matrix.isfinite().all():
            raise InputError(f"the matrix of {target.label} holds NaN or infinity; check its weights and the image")
        looked = matrix @ mixing.values[0, head]
        error = max(error, ((ran[0, head] - looked).norm() / looked.norm().clamp(min=1e-30)).item())
        exact = matrix.double().cpu()
        strengths.append(exact.abs())
        ranks.append(_block_ranks(exact, chunk, mixing.sides(head)))
    levels, decades = zip(*map(grey_levels, strengths), strict=True)
    about = target.describe() | {
        "layer": number,
        "heads": [*chosen],
        "num_heads": mixing.num_heads,
        "num_tokens": levels[0].shape[0],
        "chunk": chunk,
        "decades": max(decades),
        "run_and_look_differ_by": error,
    }
    known = [each for each in ranks if each is not None]
    return about, DrawnMatrices(np.stack(levels), np.stack(known) if known else None)


def _block_ranks(matrix: Tensor, chunk: int, sides: tuple[bool, bool]) -> NDArray[np.float64] | None:
    spans = chunk_spans(len(matrix), chunk)
    if len(spans) > MOST_CHUNKS:
        return None
    found = np.full((len(spans), len(spans)), np.nan)
    for row, column in [(place, place) for place in range(len(spans))] + off_diagonal_pairs(len(spans), sides):
        block = matrix[spans[row].slice, spans[column].slice]
        shape = (block.shape[0], block.shape[1])
        found[row, column] = rank_measures(torch.linalg.svdvals(block), shape)["effective"].item()
    return found


@torch.no_grad()
def reading_of(
    target: Target, pixels: Tensor, *, layer: int = -1, patch: tuple[float, float] = (0.5, 0.5)
) -> tuple[NDArray[np.float32], list[int]]:
    """With what weight one patch reads each patch (h, w), as the mean of |matrix| over heads; and which one it is."""
    backbone = target.backbone
    prepared = backbone.preprocess(pixels)
    [(_, features)] = backbone.features(prepared, layers=[layer])
    [(_, mixing)] = backbone.mixings(prepared, layers=[layer])
    cell = [min(int(share * count), count - 1) for share, count in zip(patch, features.grid, strict=True)]
    tokens = backbone.layout.patch_columns(features.grid[0] * features.grid[1])
    [row] = _of_all_channels(mixing).rows([tokens[cell[0] * features.grid[1] + cell[1]]])[0].float().abs().mean(0).cpu()
    return row[tokens].unflatten(0, features.grid).numpy(), cell


def mean_matrix(mixing: Mixing, progress: Callable[[int, int, str], None] | None = None) -> Tensor:
    """The mean of |matrix| over heads, (L, L)."""
    mixing = _of_all_channels(mixing)
    length, count = mixing.values.shape[2], mixing.num_heads
    total = torch.zeros(length, length, device=mixing.values.device)
    at_once = max(1, _VALUES_AT_ONCE // length**2)
    for first in range(0, count, at_once):
        heads = slice(first, min(first + at_once, count))
        total += mixing.matrix(heads)[0].float().abs().sum(0)
        if progress is not None:
            progress(heads.stop, count, f"the mean of {count} matrices")
    return total / count


def _of_all_channels(mixing: Mixing) -> Mixing:
    """One kernel stands for the hundreds of channels of a convolution, which differ in their taps alone."""
    if not isinstance(mixing, ConvMixing):
        return mixing
    return ConvMixing(mixing.values[:, :1], mixing.kernel.abs().mean(0, keepdim=True), mixing.grid)


def grey_levels(strength: Tensor) -> tuple[NDArray[np.uint8], float]:
    """A matrix (L, L) of sizes from black to white, and how many powers of ten that is.

    The scale ends at the strongest entry and begins where the weakest fiftieth of the entries that count ends: softmax
    that reads everywhere almost alike shows its differences, and a scan its decay. Nearly equal entries stay equal: the
    scale is never shorter than LEAST_DECADES, nor longer than MOST_DECADES.
    """
    top = float(strength.max())
    if not 0 < top < np.inf:
        return np.zeros(strength.shape, dtype=np.uint8), LEAST_DECADES
    depth = -(strength / top).clamp(min=10.0 ** -(2 * MOST_DECADES)).log10()  # 0 is the strongest
    counting = depth[depth < MOST_DECADES].sort().values
    weak = float(counting[min(len(counting) - 1, int(0.98 * len(counting)))])
    decades = min(max(weak, LEAST_DECADES), MOST_DECADES)
    return (255 * (1 - depth / decades).clamp(min=0)).round().byte().numpy(), decades
