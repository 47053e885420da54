"""`mixlab auc`: Binary-AUC of activation maps, its baselines beside it, and the studies of the paper's Figure 4."""

from typing import Any

from mixlab.analysis.auc import SCORED_FIT, STUDIES, run_study
from mixlab.analysis.map_scores import MapScorer
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.commands.options import Flat, SeveralTargets
from mixlab.commands.output import console, drawing, emit, print_left_out, progress_bar, table
from mixlab.data.decode import Fit
from mixlab.errors import InputError, check_counts
from mixlab.run import UNTRAINED, RunDirectory, provenance


def auc(
    on: Flat[SeveralTargets],
    *,
    study: tuple[str, ...] = ("model",),
    map: str | None = None,
    num_images: int | None = None,
    batch: int = 16,
    fit: Fit = SCORED_FIT,
    twins: bool = True,
) -> dict[str, Any]:
    """Score activation maps against foreground masks, several targets side by side.

    Args:
        study: one or more of model, size, training, head, registers, register, token (class token in the middle and in
            front), layer, map (every kind).
        map: which map (see `mixlab maps --help`); default: the study's own.
        num_images: number of images, evenly spaced; default: all.
        batch: images per forward pass.
        fit: squash (the whole image and mask, aspect ratio not kept, as in our published scores) or crop (centre crop,
            as in kNN and probes).
        twins: also score each trained model's untrained twin on the same images.
    """
    unknown = [name for name in study if name not in STUDIES]
    if unknown or not study:
        raise InputError(f"study {', '.join(unknown) or 'nothing'!r} does not exist; choose from {', '.join(STUDIES)}")
    check_counts(num_images=num_images, batch=batch)
    loaded = on.load()
    size = on.image or loaded[0].backbone.image
    images = ViewedImages(on.data, size=size, fit=fit, num_images=num_images, batch=batch, with_masks=True)
    directory = on.open_run()
    contents: dict[str, dict[str, Any]] = {}
    where = str(next(loaded[0].backbone.parameters()).device)
    num_models = sum(1 + (twins and target.training != UNTRAINED) for target in loaded)
    with progress_bar("scoring", images.num_wanted * num_models * len(study)) as step:
        scorer = MapScorer(
            images, twins=twins, seed=on.seed, progress=lambda label, count: step(count, f"scoring {label}")
        )
        for name in study:
            result = run_study(name, loaded, scorer, map)
            contents[name] = result.to_json() | {"provenance": provenance(seed=on.seed, device=where)}
            stored = directory.write(f"auc_{name}", contents[name], result.arrays)
            with drawing():
                _draw(directory, stored, contents[name])
            _print(contents[name])
    print_left_out(images)
    console.print(f"results and figures in {directory.path}")
    return emit({"kind": "auc", "results": contents}, on.json)


def _draw(directory: RunDirectory, stored: str, content: dict[str, Any]) -> None:
    """Figures are named after the file of their result, so that those of another protocol stay."""
    from mixlab.analysis import figures

    charts = figures.study_charts(content["study"], content["rows"])
    figures.save_charts(charts, directory.figure_path(f"{stored}.svg"))
    if "roc" in content:
        families = {subject["label"]: subject["family"] for subject in content["subjects"]}
        styles = figures.line_styles(
            {label: families.get(label, label) for label in content["roc"]["true_positive_rate"]}
        )
        name = stored.replace("auc_model", "auc_roc", 1).replace("auc_token", "auc_roc_token", 1)
        figures.save_charts([figures.roc(content["roc"], styles)], directory.figure_path(f"{name}.svg"))


def _print(content: dict[str, Any]) -> None:
    columns = (
        "model", "map", "layer", "part", "AUC", "95 %", "raw", "centre prior", "above it", "untrained", "above it",
        "centre-matched", "n", "undefined",
    )  # fmt: skip
    rows = [
        (
            row["label"],
            row["map"],
            row["layer"],
            row["index"],
            row["auc"]["mean"],
            _interval(row["auc"]),
            row["raw_auc"]["mean"],
            row["centre_prior"]["mean"],
            _signed(row["above_centre_prior"]),
            row["untrained"]["mean"] if "untrained" in row else None,
            _signed(row["above_untrained"]) if "above_untrained" in row else None,
            row["centre_matched_auc"]["mean"],
            row["auc"]["n"],
            row["auc"]["undefined"],
        )
        for row in content["rows"]
    ]
    table(f"Binary-AUC by {content['study']}", columns, rows)
    if unscored := dict.fromkeys(row["label"] for row in content["rows"] if not row["auc"]["n"]):
        console.print(
            f"no map of {', '.join(unscored)} could be scored: at {content['image']} px no map has both foreground and "
            "background cells; use a larger --image or other --data"
        )
    for comparison in content["comparisons"]:
        console.print(f"{comparison['better']} over {comparison['worse']}: {_signed(comparison['difference'])}")
    for label, correlation in content["correlations"].items():
        figure = correlation | {"mean": correlation["spearman"]}
        console.print(f"rank correlation, {label}: {_signed(figure)}, n = {correlation['n']}")


def _interval(figure: dict[str, Any]) -> str:
    return "-" if figure["low"] is None else f"{figure['low']:.3f} to {figure['high']:.3f}"


def _signed(figure: dict[str, Any]) -> str:
    if figure["mean"] is None:
        return "-"
    return f"{figure['mean']:+.3f}" + (
        "" if figure["low"] is None else f" [{figure['low']:+.3f}, {figure['high']:+.3f}]"
    )
