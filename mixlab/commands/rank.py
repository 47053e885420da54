"""`mixlab rank`: the rank of mixing matrices, block by block, with the bound of theory beside it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.analysis import figures
from mixlab.analysis.layer_ranks import LayerRanks, RankSettings, layer_ranks
from mixlab.analysis.rank import Arrays, rank_measurements, summarise_ranks
from mixlab.backbones.backbone import chosen_layers
from mixlab.commands.output import check_json, console, emit, open_run, progress_bar, table
from mixlab.data.reading import read_images
from mixlab.errors import check_counts
from mixlab.evaluation.target import Target, load_targets
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import file_name


def rank(
    targets: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="TARGET ...")],
    *,
    data: str = "shapes",
    image: int | None = None,
    num_images: int = 4,
    layers: tuple[int, ...] = (),
    heads: tuple[int, ...] = (),
    chunk: int | None = None,
    tolerance: float | None = None,
    method: Literal["factors", "svd"] = "factors",
    skip: bool = True,
    whole: bool = False,
    weights: str | None = None,
    training: tuple[str, ...] = (),
    device: str | None = "auto",
    seed: int = 0,
    run: Path | None = None,
    json: str | None = None,
) -> dict[str, Any]:
    """Measure the ranks of the mixing matrices of one or more backbones, side by side.

    Args:
        targets: runs, exported files, names of the zoo, or timm/NAME; TARGET=LABEL gives it another name in tables.
        data: shapes, a folder of images, wds:PATTERN, or a set with masks.
        image: the side of the images in pixels; without it, what each backbone was made for. 512 and more make blocks
            larger than the state.
        num_images: how many images to measure; figures are averages over them, with their spread.
        layers: which layers; all without it. Negative ones count from the end.
        heads: which heads; all (at most 64, spread evenly) without it.
        chunk: the side C of a block; 256 without it, or half the tokens where there are fewer than 512.
        tolerance: singular values above this share of the largest count for the numerical rank; eps C without it.
        method: factors is fast for scans and linear attention; svd takes every block as it stands.
        skip: count the skip on the diagonal of scans as part of the matrix, as it runs; the paper leaves it out.
        whole: also the rank of each whole matrix, which costs O(L³).
        weights: a weight file for a single name.
        training: LABEL=KIND, how a target was trained (dino, supervised, ...), where its run does not say.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N. Matrices are built there in float64;
            singular values are always found on the CPU.
        seed: of untrained targets.
        run: the directory for results and figures; the target's own if it is one run, else runs/look.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    check_counts(image=image, num_images=num_images)
    check_json(json)
    subjects = load_targets(targets, weights=weights, training=training, device=device, seed=seed)
    settings = RankSettings(chunk=chunk, tolerance=tolerance, method=method, skip=skip, whole=whole)
    directory = open_run(run, targets)
    results: dict[str, dict[str, Any]] = {}
    arrays: dict[str, Arrays] = {}
    for subject in subjects:
        size = image or subject.backbone.image
        pixels, _, _ = read_images(data, size=size, num_images=num_images)
        found = _measure(subject, pixels, layers, heads, settings)
        result, stored = summarise_ranks(found, subject.backbone.layout)
        about = subject.describe()
        result |= {"kind": "rank", "subject": about, "data": data, "image": size, "settings": asdict(settings)}
        result["measurements"] = rank_measurements(result, about, data)
        result["provenance"] = provenance(seed=seed, device=str(next(subject.backbone.parameters()).device))
        directory.write_result(f"rank_{file_name(subject.label)}", result, stored)
        results[subject.label], arrays[subject.label] = result, stored
    _print(results)
    _draw(directory, results, arrays)
    return emit({"kind": "rank", "results": results}, json)


def _measure(
    subject: Target, pixels: Any, layers: tuple[int, ...], heads: tuple[int, ...], settings: RankSettings
) -> list[LayerRanks]:
    backbone = subject.backbone
    wanted = chosen_layers(layers or None, backbone.num_layers)
    images = backbone.preprocess(pixels)
    found = []
    with progress_bar(f"ranks of {subject.label}", len(images) * len(wanted)) as step:
        for layer in layer_ranks(backbone, images, layers=wanted, heads=heads or None, settings=settings):
            found.append(layer)
            step()
    return found


def _print(results: dict[str, dict[str, Any]]) -> None:
    columns = ("model", "blocks", "C", "num", "bound", "numerical", "practical", "effective", "stable", "99 % energy")
    rows = []
    for label, result in results.items():
        for kind in ("off_diagonal", "diagonal"):
            part = result["overall"][kind]
            means = [part[name]["mean"] for name in ("numerical", "practical", "effective", "stable", "energy")]
            bound = part["bound"]["max"]
            rows.append((label, kind.replace("_", "-"), result["chunk"], part["num_blocks"], bound, *means))
    table("Mean rank of full blocks, by five definitions", columns, rows)
    for label, result in results.items():
        overall = result["overall"]
        held = "no block exceeds its bound" if overall["bound_holds"] else "a block EXCEEDS its bound"
        text = f"{label}: {held}; {overall['off_diagonal']['num_zero']} off-diagonal blocks are zero"
        if "scan" in overall:
            mask = overall["scan"]["mask"]
            text += f"; rank of the mask {mask['min']:.0f} to {mask['max']:.0f}"
            text += f", of q kᵀ at most {overall['scan']['product']['max']:.0f}"
        distance = overall["distance"]
        text += (
            f"; a patch keeps {distance['self_share']:.0%} of its weight, the rest lies "
            f"{distance['distance_to_others']:.1f} patches off (uniform: {result['uniform_distance_to_others']:.1f}), "
            f"{distance['far_share']:.0%} of all farther than half the side"
        )
        console.print(text, highlight=False)


def _draw(directory: RunDirectory, results: dict[str, dict[str, Any]], arrays: dict[str, Arrays]) -> None:
    styles = figures.line_styles({label: result["subject"]["family"] for label, result in results.items()})
    charts = {
        "rank_by_layer": [figures.rank_by_layer(results, name, styles) for name in ("numerical", "effective")],
        "rank_spectra": [figures.spectra(arrays, styles)],
        "rank_distance": [figures.distances(arrays, results, styles)],
    }
    for label, stored in arrays.items():
        layer = int(stored["layer"][-1])
        charts[f"rank_blocks_{file_name(label)}"] = [figures.block_ranks(label, stored["blocks"], layer)]
    for name, chart in charts.items():
        figures.save_charts(chart, directory.figure_path(f"{name}.svg"))
    console.print(f"results and {len(charts)} figures in {directory.path}")
