"""`mixlab rank`: the rank of mixing matrices, block by block, with the bound of theory beside it."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mixlab.choices import NUM_RANKED, SquareFit
from mixlab.commands.answer import WideAnswer
from mixlab.commands.options import Flat, SeveralTargets
from mixlab.commands.output import drawing, evaluation_machine, print_left_out
from mixlab.console import console
from mixlab.errors import check_counts, counted
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import file_name

if TYPE_CHECKING:
    from mixlab.analysis.rank import RankResult

_LONGEST_NAME = 100  # characters that the labels of networks may take in the name of a figure


def rank(
    on: Flat[SeveralTargets],
    answer: Flat[WideAnswer] = WideAnswer(),
    *,
    num_images: int = NUM_RANKED,
    fit: SquareFit = "crop",
    layers: tuple[int, ...] = (),
    heads: tuple[int, ...] = (),
    chunk: int | None = None,
    tolerance: float | None = None,
    method: Literal["factors", "svd"] = "factors",
    skip: bool = True,
    whole: bool = False,
    rank: int | None = None,
) -> dict[str, Any]:
    """Measure the ranks of the mixing matrices of one or more backbones, side by side. Works under torchrun.

    Args:
        num_images: number of images, evenly spaced; ranks are means over them.
        fit: crop (centre crop, as in kNN and probes), square (the largest square in the middle) or squash (the whole
            image as a square): means are over matrices of one size.
        layers: which layers, counted from 0; default: all. Negative numbers count from the end.
        heads: which heads, counted from 0; default: all, or 64 evenly spaced ones.
        chunk: block size C in tokens; default: 256, or half the tokens if there are fewer than 512.
        tolerance: the numerical rank counts singular values above this fraction of the largest; default: machine
            epsilon times C.
        method: factors (fast for scans and linear attention) or svd (of every full block).
        skip: include the skip connection on the diagonal of scans, as the model runs; the paper leaves it out.
        whole: also measure the rank of each whole matrix; costs O(L³).
        rank: measure how much energy the best approximation of rank N leaves, N being this number; default: the width
            of queries and keys (for a scan, the state size), the highest rank that linear attention and Mamba can have.
    """
    from mixlab.analysis.layer_ranks import RankSettings
    from mixlab.analysis.rank import measure_ranks
    from mixlab.analysis.viewed_images import ViewedImages
    from mixlab.backbones.backbone import chosen_layers
    from mixlab.training.distributed import once_per_machine

    answer.check()
    check_counts(num_images=num_images, rank=rank)
    settings = RankSettings(chunk=chunk, tolerance=tolerance, method=method, skip=skip, whole=whole, rank=rank)
    found: dict[str, RankResult] = {}  # by the name of its file
    contents: dict[str, dict[str, Any]] = {}  # by label
    with evaluation_machine(on.device, workers=on.workers) as machine:
        loaded = on.load(machine.world.device)
        directory = on.open_run()
        for target in loaded:
            size, wanted = on.image or target.backbone.image, chosen_layers(layers or None, target.backbone.num_layers)
            options: dict[str, Any] = {"size": size, "fit": fit, "num_images": num_images, "workers": machine.workers}
            images = once_per_machine(machine.world, partial(ViewedImages, on.data, **options))
            with machine.bar(f"ranks of {target.label}", images.num_wanted * len(wanted)) as step:
                result = measure_ranks(
                    target,
                    images,
                    layers=wanted,
                    heads=heads or None,
                    settings=settings,
                    progress=partial(step, machine.world.size),
                    machine=machine,
                )
            if machine.world.is_first:
                where = str(next(target.backbone.parameters()).device)
                content = result.to_json() | {"provenance": provenance(seed=on.seed, device=where)}
                found[directory.write(f"rank_{file_name(target.label)}", content, result.arrays)] = result
                contents[target.label] = content
        if not machine.world.is_first:
            return {}
    _print(answer, contents)
    print_left_out(images)
    console.print(f"results in {directory.path}")
    with drawing():
        _draw(directory, found, contents)
    return answer.emit({"kind": "rank", "results": contents})


def _print(answer: WideAnswer, results: dict[str, dict[str, Any]]) -> None:
    columns = (
        "model",
        "blocks",
        "chunk",
        "number",
        "bound",
        "numerical",
        "practical",
        "effective",
        "stable",
        "99 % energy",
    )
    rows = []
    for label, result in results.items():
        for kind in ("off_diagonal", "diagonal"):
            part = result["overall"][kind]
            means = [part[name]["mean"] for name in ("numerical", "practical", "effective", "stable", "energy")]
            bound = part["bound"]["max"]
            rows.append((label, kind.replace("_", "-"), result["chunk"], part["num_blocks"], bound, *means))
    hidden = ("chunk", "number", "practical", "stable", "99 % energy")
    chunks = " or ".join(f"{chunk} x {chunk}" for chunk in sorted({result["chunk"] for result in results.values()}))
    title = (
        f"Mean rank of blocks of {chunks} tokens. bound: the highest that theory allows; numerical: singular values "
        "above rounding; effective: how many directions share the weight"
    )
    answer.table(title, columns, rows, more=hidden)
    for label, result in results.items():
        overall = result["overall"]
        held = "no block exceeds its bound" if overall["bound_holds"] else "a block EXCEEDS its bound"
        distance = overall["distance"]
        answer.line(
            f"{label}: a patch gives {distance['self_share']:.0%} of its weight to itself; the rest lies "
            f"{distance['distance_to_others']:.1f} patches away on average (uniform weights: "
            f"{result['uniform_distance_to_others']:.1f}); {distance['far_share']:.0%} of all weight lies farther than "
            "half the side of the image"
        )
        text = f"  {held}; {overall['off_diagonal']['num_zero']} off-diagonal blocks are zero"
        if "scan" in overall:
            mask = overall["scan"]["mask"]
            ranks = f"{mask['min']:.0f}" + (f" to {mask['max']:.0f}" if mask["max"] > mask["min"] else "")
            text += f"; rank of the decay mask {ranks}"
            text += f", of q kᵀ at most {overall['scan']['product']['max']:.0f}"
        answer.line(text + _approximated(result))


def _approximated(result: dict[str, Any]) -> str:
    """What the best approximations of rank 1 and N leave; nothing where layers differ in N."""
    rank, blocks = result["rank"], result["overall"]["off_diagonal"]
    left, one = blocks["left_by_rank"], blocks["left_by_one"]["mean"]
    if rank is None:
        return ""
    if left["mean"] is None:
        if one is None:
            return ""
        return (
            f"\n  the best approximation of rank 1 misses {one:.2%} of the energy of off-diagonal blocks; rank {rank} "
            f"cannot miss any of blocks of {result['chunk']} tokens a side: give a lower --rank, or larger images"
        )
    beside = f", of rank 1 {one:.2%}" if rank != 1 else ""
    return (
        f"\n  the best approximation of rank {rank} misses {left['mean']:.2%} of the energy of off-diagonal blocks (at "
        f"most {left['max']:.2%}){beside}"
    )


def _draw(directory: RunDirectory, found: dict[str, RankResult], contents: dict[str, dict[str, Any]]) -> None:
    """Figures are named after the files of their results, so that those of another protocol stay."""
    from mixlab.analysis import figures

    arrays = {result.subject.label: result.arrays for result in found.values()}
    styles = figures.line_styles({result.subject.label: result.subject.family for result in found.values()})
    together = _joined(list(found))
    charts = {
        f"{together}_by_layer": [figures.rank_by_layer(contents, name, styles) for name in ("numerical", "effective")],
        f"{together}_spectra": [figures.spectra(arrays, styles)],
        f"{together}_distance": [figures.distances(arrays, contents, styles)],
    }
    for name, result in found.items():
        layer = int(result.arrays["layer"][-1])
        charts[f"{name}_blocks"] = [figures.block_ranks(result.subject.label, result.arrays["blocks"], layer)]
    for name, chart in charts.items():
        figures.save_charts(chart, directory.figure_path(f"{name}.svg"))
    console.print(f"{counted(charts, 'figure', 'figures')} in {directory.path / 'figures'}")


def _joined(names: list[str]) -> str:
    """One name for several results: rank_vit and rank_vim_2 give rank_vit+vim_2; long names are truncated."""
    joined = "+".join([names[0], *(name.removeprefix("rank_") for name in names[1:])])
    if len(joined) <= _LONGEST_NAME:
        return joined
    return f"{joined[:_LONGEST_NAME]}_{hashlib.sha256(joined.encode()).hexdigest()[:8]}"
