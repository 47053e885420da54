"""Ranks of the mixing matrices of single layers, block by block, and how far these matrices reach.

A matrix is cut into a grid of C x C blocks. Blocks on the diagonal mix within a chunk, blocks off it between chunks.
Where C does not divide the length the last chunk is shorter, and its blocks are marked ragged. All runs in float64, one
image, layer and head at a time: matrices where the backbone is, singular values on the CPU, where LAPACK is.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.blocks import (
    MEASURES,
    ScanDecay,
    Span,
    ThinBlocks,
    chunk_spans,
    default_chunk,
    energy_left,
    in_float64,
    off_diagonal_pairs,
    rank_after_deflation,
    rank_measures,
    thin_blocks,
)
from mixlab.analysis.distance import DistanceProfile, distance_profile
from mixlab.backbones.backbone import Backbone, Layers
from mixlab.errors import InputError
from mixlab.mixers import ConvMixing, Grid, Mixing, SelectiveMixing, SSDMixing

_MATRICES_IN_MEMORY = 2**31  # bytes that all heads under work may take together
_COPIES_PER_HEAD = 8  # matrices alive at once while one is built
_LOG_TINY = float(np.log(np.finfo(np.float64).smallest_subnormal))
# Of the energy, by the best approximations of rank 1 and N; NaN where that is the side of the block or more.
LEFT = ("left_by_one", "left_by_rank")
_OF_SCANS = ("mask", "product", "underflowed")  # -1 for other mixings and on the diagonal
BLOCK_COLUMNS = (
    "image", "layer", "head", "on_diagonal", "row", "column", "height", "width", "ragged", "bound",
    *MEASURES, *_OF_SCANS, *LEFT,
)  # fmt: skip
Array = NDArray[np.float64]
BlockPlace = tuple[int, int]  # the row and the column of a block in the grid


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """`factors` takes singular values of off-diagonal blocks from their thin factors where a mixing has them; `svd`
    takes every block as it is. Both measure the same; the first is many times faster on long sequences.
    """

    chunk: int | None = None  # C; None: see `default_chunk`
    tolerance: float | None = None  # of the numerical rank; None: eps max(m, n) in float64
    practical: float = 1e-3
    energy: float = 0.99
    method: Literal["factors", "svd"] = "factors"
    skip: bool = True  # with the skip on the diagonal of scans, as they run; the paper's M leaves it out
    whole: bool = False  # also an SVD of each whole matrix, O(L³)
    rank: int | None = None  # N of the approximation; None: the width of queries and keys, the state of a scan
    max_heads: int = 64  # more heads than this (a convolution has one per channel) are sampled evenly


class LayerRanks(NamedTuple):
    """All H chosen heads of one layer on one image. Spectra are means over full blocks of s / max(s), zero without any;
    `DistanceProfile` says what the distances are.
    """

    image: int
    layer: int
    mixer: str
    length: int
    chunk: int
    grid: Grid
    rank: int  # N of the approximation
    heads: list[int]
    blocks: Array  # (blocks of all heads, len(BLOCK_COLUMNS))
    spectra: dict[str, Array]  # "diagonal" and "off_diagonal": (H, C)
    whole: dict[str, Array]  # by measure and LEFT: (H,); empty unless `whole` is set
    distance: dict[str, Array]  # by field of DistanceProfile: (H,), (H, L) or (H, R)


class _HeadRanks(NamedTuple):
    """The same of one head."""

    blocks: list[list[float]]  # rows of BLOCK_COLUMNS from "head" on
    spectra: dict[str, Tensor]
    whole: dict[str, float]
    distance: DistanceProfile


@torch.no_grad()
def layer_ranks(
    backbone: Backbone,
    images: Iterable[Tensor],
    *,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
    settings: RankSettings | None = None,
    numbers: Sequence[int] | None = None,
) -> Iterator[LayerRanks]:
    """Yield the ranks of each chosen layer on each image (3, H, W), already preprocessed for the backbone.

    `numbers` are those of the images, where they are not all of a set.
    """
    settings = settings or RankSettings()
    with _HeadWorkers() as workers:
        for index, image in zip(count() if numbers is None else numbers, images, strict=False):
            _, features = next(backbone.features(image[None], layers=[0]))
            for layer, mixing in backbone.mixings(image[None], layers=layers):
                grid = _grid_of(mixing, features.grid)
                patches = backbone.layout.patch_columns(grid[0] * grid[1])
                chosen = choose_heads(mixing.num_heads, heads, settings.max_heads)
                spans, ranks = _ranks_of_heads(mixing, chosen, grid, patches, settings, workers)
                yield LayerRanks(
                    image=index,
                    layer=layer,
                    mixer=type(mixing).__name__,
                    length=spans[-1].stop,
                    chunk=len(spans[0]),
                    grid=grid,
                    rank=approximated_rank(mixing, settings),
                    heads=chosen,
                    **_stacked(ranks, index, layer),
                )


def approximated_rank(mixing: Mixing, settings: RankSettings) -> int:
    """N: as asked for, or what bounds linear attention and scans of this width; of a mixing without queries (a
    convolution) the width of its values."""
    return settings.rank or int(getattr(mixing, "q", mixing.values).shape[-1])


def choose_heads(num_heads: int, heads: Sequence[int] | None, max_heads: int) -> list[int]:
    """The heads asked for, or all, or `max_heads` of them spread evenly."""
    if heads is None:
        step = max(num_heads / max_heads, 1)
        return sorted({int(index * step) for index in range(min(num_heads, max_heads))})
    for head in heads:
        if not -num_heads <= head < num_heads:
            raise InputError(f"there is no head {head} among {num_heads}; choose {-num_heads} to {num_heads - 1}")
    return sorted({head % num_heads for head in heads})


class _HeadWorkers:
    """One thread per core for all heads of all layers: LAPACK gains little from more cores at these sizes, and threads
    that stay reuse their memory, where fresh ones would each keep some of it.
    """

    def __init__(self) -> None:
        self.num_threads = torch.get_num_threads()
        self.pool = ThreadPoolExecutor(self.num_threads, initializer=torch.set_num_threads, initargs=(1,))

    def __enter__(self) -> "_HeadWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def run(self, work: Callable[[int], _HeadRanks], heads: list[int], length: int) -> list[_HeadRanks]:
        """Heads in parallel, as many at once as memory allows."""
        at_once = max(1, _MATRICES_IN_MEMORY // (_COPIES_PER_HEAD * 8 * length**2))
        if self.num_threads == 1 or at_once == 1:
            return [work(head) for head in heads]
        at_once = min(at_once, self.num_threads) if at_once < self.num_threads else len(heads)
        done: list[_HeadRanks] = []
        try:
            for start in range(0, len(heads), at_once):
                done += self.pool.map(work, heads[start : start + at_once])
        finally:
            torch.set_num_threads(self.num_threads)  # a worker's setting is also that of threads to come
        return done


def _grid_of(mixing: Mixing, first_grid: Grid) -> Grid:
    """The grid of a layer's patches: that of the first layer, but in stages convolutions and scans know their own."""
    return mixing.grid if isinstance(mixing, ConvMixing | SelectiveMixing) and mixing.grid[0] > 1 else first_grid


def _ranks_of_heads(
    mixing: Mixing, heads: list[int], grid: Grid, patches: list[int], settings: RankSettings, workers: _HeadWorkers
) -> tuple[list[Span], list[_HeadRanks]]:
    there = in_float64(mixing, mixing.values.device)
    if isinstance(there, SSDMixing | SelectiveMixing) and not settings.skip:
        there = replace(there, skip=torch.zeros_like(there.skip))
    mixing = in_float64(there)
    length = mixing.values.shape[2] - mixing.num_padding
    spans = chunk_spans(length, default_chunk(length) if settings.chunk is None else settings.chunk)
    products = _product_ranks(mixing, spans, settings) if isinstance(mixing, SSDMixing) else {}

    def work(head: int) -> _HeadRanks:
        matrix = there.matrix(slice(head, head + 1))[0, 0, :length, :length]  # (L, L)
        blocks, spectra = _block_rows(mixing, head, matrix, spans, products, settings)
        return _HeadRanks(
            blocks,
            spectra,
            whole=_whole(matrix, approximated_rank(mixing, settings), settings) if settings.whole else {},
            distance=distance_profile(matrix, grid, patches),
        )

    return spans, workers.run(work, heads, length)


def _stacked(ranks: list[_HeadRanks], image: int, layer: int) -> dict[str, Any]:
    """The arrays of a layer, few and large: thousands of small tensors kept between matrices would fragment memory."""
    profiles = [head.distance._asdict() for head in ranks]
    rows = [[image, layer, *row] for head in ranks for row in head.blocks]
    return {
        "blocks": np.array(rows, dtype=np.float64),
        "spectra": {kind: np.stack([head.spectra[kind] for head in ranks]) for kind in ranks[0].spectra},
        "whole": {name: np.array([head.whole[name] for head in ranks]) for name in ranks[0].whole},
        "distance": {name: np.stack([np.asarray(profile[name]) for profile in profiles]) for name in profiles[0]},
    }


@torch.no_grad()
def _block_rows(
    mixing: Mixing,
    head: int,
    matrix: Tensor,
    spans: list[Span],
    products: dict[tuple[int, int, int], float],
    settings: RankSettings,
) -> tuple[list[list[float]], dict[str, Tensor]]:
    """The blocks and the mean spectra of one head."""
    diagonal = [(index, index) for index in range(len(spans))]
    off_diagonal = off_diagonal_pairs(len(spans), mixing.sides(head))
    thin = thin_blocks(mixing, head, spans) if settings.method == "factors" else None
    singular_values = _plain_singular_values(matrix, diagonal, spans)
    if thin is None:
        singular_values += _plain_singular_values(matrix, off_diagonal, spans)
    else:
        singular_values += thin.singular_values(off_diagonal)
    scan = _scan_figures(mixing, head, spans, off_diagonal, products, settings) if isinstance(mixing, SSDMixing) else {}
    pairs = diagonal + off_diagonal
    shapes = [(len(spans[row]), len(spans[column])) for row, column in pairs]
    figures = _measures_by_shape(singular_values, shapes, settings)
    ranks = (1, approximated_rank(mixing, settings))
    rows: list[list[float]] = []
    spectra: dict[str, list[Tensor]] = {"diagonal": [], "off_diagonal": []}
    for (row, column), shape, singular, measured in zip(pairs, shapes, singular_values, figures, strict=True):
        on_diagonal, ragged = row == column, min(shape) < len(spans[0])
        bound = mixing.rank_bound(spans[row].tokens, spans[column].tokens)
        extra = scan.get((row, column), [-1.0] * len(_OF_SCANS))
        left = [_left(singular, rank, shape) for rank in ranks]
        rows.append([head, on_diagonal, row, column, *shape, ragged, bound, *measured, *extra, *left])
        if not ragged and singular[0] > 0:
            unit = torch.zeros(len(spans[0]), dtype=torch.float64)
            unit[: len(singular)] = singular / singular[0]  # thin factors give the first N; the rest is zero
            spectra["diagonal" if on_diagonal else "off_diagonal"].append(unit)
    none = torch.zeros(len(spans[0]), dtype=torch.float64)
    return rows, {kind: torch.stack(found).mean(0) if found else none for kind, found in spectra.items()}


def _scan_figures(
    mixing: SSDMixing,
    head: int,
    spans: list[Span],
    pairs: list[BlockPlace],
    products: dict[tuple[int, int, int], float],
    settings: RankSettings,
) -> dict[BlockPlace, list[float]]:
    """Of each off-diagonal block: the rank of the mask alone, of q kᵀ alone, and whether decay takes it to zero."""
    decay = ScanDecay.of(mixing, head, spans)
    group = head * mixing.q.shape[2] // mixing.num_heads
    return {
        (row, column): [
            rank_after_deflation(decay.mask_block(row, column), settings.tolerance),
            products[group, row, column],
            decay.largest_log(row, column) < _LOG_TINY,
        ]
        for row, column in pairs
    }


def _product_ranks(mixing: SSDMixing, spans: list[Span], settings: RankSettings) -> dict[tuple[int, int, int], float]:
    """Numerical rank of each off-diagonal block of q kᵀ alone, by (group, row, column): a group's heads share it."""
    ranks = {}
    pairs = off_diagonal_pairs(len(spans), (True, True))
    shapes = [(len(spans[row]), len(spans[column])) for row, column in pairs]
    for group in range(mixing.q.shape[2]):
        factors = [[side[0, span.slice, group] for span in spans] for side in (mixing.q, mixing.k)]
        thin = ThinBlocks(factors[0], factors[1], torch.zeros(len(spans), len(spans), dtype=torch.float64))
        measured = _measures_by_shape(thin.singular_values(pairs), shapes, settings)
        for (row, column), figures in zip(pairs, measured, strict=True):
            ranks[group, row, column] = figures[MEASURES.index("numerical")]
    return ranks


def _measures_by_shape(
    singular_values: list[Tensor], shapes: list[tuple[int, int]], settings: RankSettings
) -> list[list[float]]:
    """MEASURES of each block; blocks of one shape together, since thousands of calls on small tensors cost more."""
    found: list[list[float]] = [[]] * len(shapes)
    for kind in {(shape, len(values)) for shape, values in zip(shapes, singular_values, strict=True)}:
        same = [i for i, shape in enumerate(shapes) if (shape, len(singular_values[i])) == kind]
        measured = _measures(torch.stack([singular_values[i] for i in same]), kind[0], settings)
        for index, row in zip(same, torch.stack(list(measured.values()), dim=-1).tolist(), strict=True):
            found[index] = row
    return found


def _measures(singular: Tensor, shape: tuple[int, int], settings: RankSettings) -> dict[str, Tensor]:
    return rank_measures(
        singular, shape, tolerance=settings.tolerance, practical=settings.practical, energy=settings.energy
    )


def _whole(matrix: Tensor, rank: int, settings: RankSettings) -> dict[str, float]:
    singular = torch.linalg.svdvals(matrix.cpu())
    measured = _measures(singular, (matrix.shape[0], matrix.shape[1]), settings)
    shape = (matrix.shape[0], matrix.shape[1])
    left = {name: _left(singular, kept, shape) for name, kept in zip(LEFT, (1, rank), strict=True)}
    return {name: float(value) for name, value in (measured | left).items()}


def _left(singular: Tensor, rank: int, shape: tuple[int, int]) -> float:
    """`energy_left`; NaN where no matrix of the shape has a higher rank, so that nothing is approximated."""
    return float(energy_left(singular, rank)) if rank < min(shape) else math.nan


def _plain_singular_values(matrix: Tensor, pairs: list[BlockPlace], spans: list[Span]) -> list[Tensor]:
    return [torch.linalg.svdvals(matrix[spans[row].slice, spans[column].slice].cpu()) for row, column in pairs]
