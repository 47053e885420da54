"""The rank of mixing matrices: means over blocks with their spread over images and heads, and the bounds of theory.

Means leave out ragged blocks, and blocks that decay to zero in float64, whose rank cannot be
computed; both are counted. `layer_ranks.py` measures blocks; `blocks.py` defines ranks and proves the bounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.analysis.blocks import MEASURES
from mixlab.analysis.distance import uniform_reach
from mixlab.analysis.layer_ranks import BLOCK_COLUMNS, LEFT, LayerRanks, RankSettings, layer_ranks
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.backbones.backbone import Backbone, Layers, chosen_layers
from mixlab.backbones.room import check_room
from mixlab.backbones.tokens import TokenLayout
from mixlab.choices import NUM_RANKED
from mixlab.data.given import AnyData
from mixlab.errors import InputError
from mixlab.evaluation.machine import Machine
from mixlab.evaluation.target import Target, as_target
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import LowRankProtocol, RankProtocol
from mixlab.statistics import Estimate, mean_interval

Table = NDArray[np.float64]  # (blocks, len(BLOCK_COLUMNS))
RankArrays = dict[str, NDArray[Any]]
Column = NDArray[np.float64]
_SHARED = (  # choices of ranks that approximations share
    "data", "val_data", "split", "num_images", "image", "crop_share", "fit", "precision", "layers", "heads",
    "max_heads", "skip",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What `measure_ranks` found. `summary` holds the values of each layer and of all layers; `arrays` the table of
    blocks, and spectra and profiles of distance by layer and head, means over images.
    """

    subject: Subject
    seed: int | None
    protocol: RankProtocol  # without a definition of rank: every measurement has its own
    settings: RankSettings
    summary: dict[str, Any]
    arrays: RankArrays

    @property
    def measurements(self) -> list[Measurement]:
        overall = self.summary["overall"]
        found = [self._measurement("rank_bound_holds", float(overall["bound_holds"]))]
        if "scan" in overall:
            found.append(self._measurement("mask_rank", overall["scan"]["mask"]["max"]))
        for metric, kind in (("diagonal_rank", "diagonal"), ("off_diagonal_rank", "off_diagonal")):
            for name in MEASURES:
                part = overall[kind][name]
                if part["mean"] is not None:
                    found += [
                        self._measurement(metric, part["mean"], name, ends=(part["low"], part["high"])),
                        self._measurement(f"smallest_{metric}", part["min"], name),
                        self._measurement(f"{metric}_bound", overall[kind]["bound"]["max"], name),
                    ]
        return found + self._residuals()

    def _residuals(self) -> list[Measurement]:
        """What the best approximations of rank 1 and N leave of off-diagonal blocks, and of whole matrices where these
        were measured; none where layers differ in N."""
        rank = self.summary["rank"]
        if rank is None:
            return []
        given = {name: getattr(self.protocol, name) for name in _SHARED}
        found = []
        for part, chunk in (("off_diagonal", self.protocol.chunk), ("whole", None)):
            for kept, name in {1: LEFT[0], rank: LEFT[1]}.items():  # one of them where N is 1
                figures = self.summary["overall"].get(part, {}).get(name)
                if figures is None or figures["mean"] is None:
                    continue
                protocol = LowRankProtocol(**given, rank=kept, part=part, chunk=chunk)
                for metric, key in (("low_rank_residual", "mean"), ("largest_low_rank_residual", "max")):
                    low, high = (figures[end] if key == "mean" else None for end in ("low", "high"))
                    estimate = Estimate(figures[key], low, high, self.summary["num_images"])
                    found.append(
                        Measurement.of(metric, estimate, subject=self.subject, protocol=protocol, seed=self.seed)
                    )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "rank",
            "subject": asdict(self.subject) | {"seed": self.seed},
            "data": self.protocol.data,
            "image": self.protocol.image,
            "protocol": self.protocol.to_json(),
            "settings": asdict(self.settings),
            **self.summary,
            "measurements": [measurement.to_json() for measurement in self.measurements],
        }

    def _measurement(
        self, metric: str, value: float, definition: str | None = None, *, ends: Sequence[float | None] = (None, None)
    ) -> Measurement:
        estimate = Estimate(value, ends[0], ends[1], self.summary["num_images"])
        protocol = replace(self.protocol, definition=definition)
        return Measurement.of(metric, estimate, subject=self.subject, protocol=protocol, seed=self.seed)


def measure_ranks(
    target: Target | Backbone,
    images: ViewedImages | AnyData,
    *,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
    settings: RankSettings | None = None,
    progress: Callable[[], None] | None = None,
    machine: Machine | None = None,
) -> RankResult:
    """Measure the ranks of the mixing matrices of a backbone; by default of all layers and heads.

    If `images` is a name as for `--data`, a source or a data set, NUM_RANKED images are used at the backbone's own
    size. `progress` is called after each layer on each image. The processes of a `machine` share the images, and each
    gets the whole result.
    """
    network = as_target(target)
    backbone, settings = network.backbone, settings or RankSettings()
    if not isinstance(images, ViewedImages):
        images = ViewedImages(images, size=backbone.image, num_images=NUM_RANKED)
    if images.view.fit == "whole":
        raise InputError("ranks are means over matrices of one size; choose fit 'square', 'crop' or 'squash'")
    wanted = chosen_layers(layers, backbone.num_layers)
    check_room(backbone, images.view.size, pairs=wanted)
    rank, size = machine.share() if machine is not None else (0, 1)
    seen = images.together().images
    pixels, numbers = backbone.preprocess(seen)[rank::size], range(rank, len(seen), size)
    measured: list[LayerRanks] = []
    for found in layer_ranks(backbone, pixels, layers=wanted, heads=heads, settings=settings, numbers=numbers):
        measured.append(found)
        if progress is not None:
            progress()
    if machine is not None:
        everyone = (found for part in machine.gather(measured) for found in part)
        measured = sorted(everyone, key=lambda found: found.image)  # layers stay in their order
    summary, arrays = summarise_ranks(measured, backbone.layout)
    protocol = RankProtocol(
        **images.choices,
        chunk=measured[0].chunk,
        layers=None if len(wanted) == backbone.num_layers else tuple(wanted),
        heads=None if heads is None else tuple(measured[0].heads),
        max_heads=settings.max_heads,
        method=settings.method,
        tolerance=settings.tolerance,
        practical=settings.practical,
        energy=settings.energy,
        skip=settings.skip,
    )
    return RankResult(
        subject=network.subject, seed=network.seed, protocol=protocol, settings=settings, summary=summary, arrays=arrays
    )


def summarise_ranks(measured: Sequence[LayerRanks], layout: TokenLayout) -> tuple[dict[str, Any], RankArrays]:
    """The values of each layer and of all layers for JSON, and the arrays behind them.

    Where layers differ in length (stages of a hierarchical model), length and grid of the whole are the first layer's.
    """
    if not measured:
        raise InputError("no layer was measured; give at least one image and one layer")
    table = np.concatenate([ranks.blocks for ranks in measured])
    layers = sorted({ranks.layer for ranks in measured})
    by_layer = {layer: [ranks for ranks in measured if ranks.layer == layer] for layer in layers}
    entries = [
        {"layer": layer}
        | _summarise_place(own, layout)
        | _summarise_blocks(np.concatenate([ranks.blocks for ranks in own]))
        | _summarise_heads(own)
        for layer, own in by_layer.items()
    ]
    ranks = {ranks.rank for ranks in measured}
    summary = {
        "mixer": measured[0].mixer,
        "rank": ranks.pop() if len(ranks) == 1 else None,  # N of the approximation
        "num_images": len({ranks.image for ranks in measured}),
        "overall": _summarise_blocks(table) | _summarise_heads(measured),
        "layers": entries,
    }
    return summary | _summarise_place(measured, layout), {"blocks": table} | _head_arrays(by_layer)


def block_column(table: Table, name: str) -> NDArray[np.float64]:
    """One of BLOCK_COLUMNS of a table of blocks."""
    return table[:, BLOCK_COLUMNS.index(name)]


def block_grid(table: Table, layer: int, head: int | None = None, measure: str = "effective") -> Table | None:
    """The rank of every block where it lies in the matrix, NaN where there is none: means over images, and over heads
    for None or a head that was not measured. None if the layer was not measured.
    """
    rows = table[block_column(table, "layer") == layer]
    if head is not None and (block_column(rows, "head") == head).any():
        rows = rows[block_column(rows, "head") == head]
    if not len(rows):
        return None
    size = 1 + int(max(block_column(rows, name).max() for name in ("row", "column")))
    places = (block_column(rows, "row") * size + block_column(rows, "column")).astype(np.int64)
    totals = np.bincount(places, block_column(rows, measure), minlength=size**2)
    counts = np.bincount(places, minlength=size**2)
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan).reshape(size, size)


def _summarise_blocks(table: Table) -> dict[str, Any]:
    full = table[block_column(table, "ragged") == 0]
    on_diagonal = block_column(full, "on_diagonal") == 1
    summary: dict[str, Any] = {}
    for kind, rows in (("diagonal", full[on_diagonal]), ("off_diagonal", full[~on_diagonal])):
        known = rows[block_column(rows, "numerical") > 0]
        summary[kind] = {name: _spread(known, name) for name in (*MEASURES, *LEFT, "bound")}
        summary[kind]["num_blocks"] = len(rows)
        summary[kind]["num_zero"] = len(rows) - len(known)
    summary["num_ragged"] = int((block_column(table, "ragged") == 1).sum())
    summary["bound_holds"] = bool((block_column(table, "numerical") <= block_column(table, "bound")).all())
    scans = table[block_column(table, "mask") >= 0]
    if len(scans):
        summary["scan"] = {
            "mask": _spread(scans, "mask"),
            "product": _spread(scans, "product"),
            "num_underflowed": int(block_column(scans, "underflowed").sum()),
        }
    return summary


def _spread(rows: Table, name: str) -> dict[str, float | None]:
    """Mean and extremes over all blocks; the standard deviation of the means of images and of heads; and the interval
    of the mean over images, by Student's t.
    """
    return _spread_of(*(block_column(rows, column) for column in (name, "image", "head")))


def _spread_of(values: Column, images: Column, heads: Column) -> dict[str, float | None]:
    keys = ("mean", "min", "max", "std_over_images", "std_over_heads", "low", "high")
    known = ~np.isnan(values)  # of LEFT
    values, images, heads = values[known], images[known], heads[known]
    if not len(values):
        return dict.fromkeys(keys)
    by_image, by_head = (_means(values, unit) for unit in (images, heads))
    stds = [float(np.std(means, ddof=1)) if len(means) > 1 else None for means in (by_image, by_head)]
    mean, over_images = float(values.mean()), mean_interval(by_image)
    ends = [None if end is None else mean + end - over_images.value for end in (over_images.low, over_images.high)]
    return dict(zip(keys, (mean, float(values.min()), float(values.max()), *stds, *ends), strict=True))


def _means(values: Column, keys: Column) -> list[float]:
    return [float(values[keys == key].mean()) for key in np.unique(keys)]


def _summarise_place(measured: Sequence[LayerRanks], layout: TokenLayout) -> dict[str, Any]:
    """Tokens, chunks and grid of the first of some layers, and how far a uniform mixing would reach there."""
    first = measured[0]
    length, grid, chunk = first.length, first.grid, first.chunk
    to_others, far_share = uniform_reach(length, grid, tuple(layout.patch_columns(grid[0] * grid[1])))
    return {
        "num_tokens": length,
        "grid": list(grid),
        "chunk": chunk,
        "ragged_chunk": length % chunk,
        "heads": first.heads,
        "uniform_distance_to_others": to_others,
        "uniform_far_share": far_share,
    }


def _summarise_heads(measured: Sequence[LayerRanks]) -> dict[str, Any]:
    """Means over heads, layers and images."""
    scalars = [name for name, values in measured[0].distance.items() if values.ndim == 1]
    distance = {name: float(np.concatenate([ranks.distance[name] for ranks in measured]).mean()) for name in scalars}
    whole = {
        name: float(np.concatenate([ranks.whole[name] for ranks in measured]).mean())
        for name in measured[0].whole
        if name not in LEFT
    }
    left = {name: _spread_of_whole(measured, name) for name in measured[0].whole if name in LEFT}
    return {"distance": distance} | ({"whole": whole | left} if whole else {})


def _spread_of_whole(measured: Sequence[LayerRanks], name: str) -> dict[str, float | None]:
    values = [ranks.whole[name] for ranks in measured]
    keys = [[np.full(len(part), ranks.image), ranks.heads] for part, ranks in zip(values, measured, strict=True)]
    images, heads = (np.concatenate(column) for column in zip(*keys, strict=True))
    return _spread_of(np.concatenate(values), images, heads)


def _head_arrays(by_layer: dict[int, list[LayerRanks]]) -> RankArrays:
    """Per layer and head, the mean over images: (layers, heads, ...)."""
    read: dict[str, Callable[[LayerRanks], NDArray[np.float64]]] = {
        "diagonal_spectrum": lambda ranks: ranks.spectra["diagonal"],
        "off_diagonal_spectrum": lambda ranks: ranks.spectra["off_diagonal"],
        "sequence_profile": lambda ranks: ranks.distance["sequence"],
        "grid_profile": lambda ranks: ranks.distance["grid"],
    }
    found: RankArrays = {"layer": np.array(list(by_layer))}
    for name, get in read.items():
        found[name] = _padded([np.mean([get(ranks) for ranks in own], axis=0) for own in by_layer.values()])
    return found


def _padded(layers: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """(heads, width) of each layer as one array: layers may differ in both, and are filled up with zeros."""
    padded = np.zeros((len(layers), *np.max([part.shape for part in layers], axis=0)))
    for index, part in enumerate(layers):
        padded[index, : part.shape[0], : part.shape[1]] = part
    return padded
