"""`mixlab auc`: Binary-AUC of activation maps, its baselines beside it, and the studies of the paper's Figure 4."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from numpy.typing import NDArray

from mixlab.analysis import figures
from mixlab.analysis.scores import FALSE_POSITIVE_RATES, Scorer
from mixlab.analysis.studies import STUDIES, StudyResult, run_study
from mixlab.analysis.subjects import MaskedImages
from mixlab.commands.output import check_json, console, emit, open_run, progress_bar, table
from mixlab.data.mask_formats import parse_masks
from mixlab.data.masks import unpaired_note
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.target import Target, load_targets
from mixlab.run import UNTRAINED, provenance
from mixlab.run.directory import file_name

Curves = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def auc(
    targets: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="TARGET ...")],
    *,
    data: str = "shapes",
    study: tuple[str, ...] = ("model",),
    map: str | None = None,
    image: int | None = None,
    num_images: int = 200,
    batch: int = 16,
    twins: bool = True,
    weights: str | None = None,
    training: tuple[str, ...] = (),
    device: str | None = "auto",
    seed: int = 0,
    run: Path | None = None,
    json: str | None = None,
) -> dict[str, Any]:
    """Score activation maps against foreground masks, several targets side by side.

    Args:
        targets: runs, exported files, names of the zoo, or timm/NAME; TARGET=LABEL gives it another name in tables.
        data: shapes, a folder with images and masks, a COCO JSON file, or FORMAT:PLACE (masks, imagenet-s, voc, pets,
            coco, ade).
        study: one or more of model, size, training, head, registers, register, layer, map (every kind).
        map: which map (see `mixlab maps --help`); without it each study's own.
        image: the side of the images in pixels; without it, what the first backbone was made for.
        num_images: at most so many images.
        batch: images at a time.
        twins: also score each trained model's untrained twin on the same images.
        weights: a weight file for a single name.
        training: LABEL=KIND, how a target was trained (dino, supervised, dinov2, ...), where its run does not say.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        seed: of untrained targets, and of the untrained twins of what has no seed of its own.
        run: the directory for results and figures; the target's own if it is one run, else runs/look.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    unknown = [name for name in study if name not in STUDIES]
    if unknown or not study:
        raise InputError(f"study {', '.join(unknown) or 'nothing'!r} does not exist; choose from {', '.join(STUDIES)}")
    check_counts(image=image, num_images=num_images, batch=batch)
    check_json(json)
    subjects = load_targets(targets, weights=weights, training=training, device=device, seed=seed)
    source = parse_masks(data)
    images = MaskedImages(source, size=image or subjects[0].backbone.image, batch=batch, limit=num_images)
    directory = open_run(run, targets)
    results: dict[str, dict[str, Any]] = {}
    num_models = sum(1 + (twins and subject.training != UNTRAINED) for subject in subjects)
    with progress_bar("scoring", images.num_wanted * num_models * len(study)) as step:
        scorer = Scorer(images, twins=twins, seed=seed, progress=lambda label, count: step(count, f"scoring {label}"))
        for name in study:
            found = run_study(name, subjects, scorer, map)
            curves = _mean_roc(subjects, scorer, map) if name == "model" else {}
            result = found.as_json(data) | {
                "kind": "auc",
                "image": images.size,
                "skipped": images.skipped.reasons,
                "unmatched": list(source.unpaired),
                **({"roc": _roc_json(curves)} if curves else {}),
                "provenance": provenance(seed=seed, device=str(next(subjects[0].backbone.parameters()).device)),
            }
            arrays = {file_name(label): values for label, values in found.arrays.items()}
            stored = directory.write(f"auc_{name}", result, arrays)
            results[name] = result
            figures.save_charts(figures.study_charts(name, found.rows), directory.figure_path(f"{stored}.svg"))
            if curves:
                styles = figures.line_styles({subject.label: subject.family for subject in subjects})
                roc = stored.replace("auc_model", "auc_roc", 1)
                figures.save_charts([figures.roc(result["roc"], styles)], directory.figure_path(f"{roc}.svg"))
            _print(found)
    for note in (images.skipped.summary() if len(images.skipped) else None, unpaired_note(source)):
        if note:
            console.print(note, style="yellow", highlight=False)
    console.print(f"results and figures in {directory.path}")
    return emit({"kind": "auc", "results": results}, json)


def _mean_roc(subjects: list[Target], scorer: Scorer, map_name: str | None) -> Curves:
    """False and true positive rates of each subject, the mean over images."""
    curves: Curves = {}
    for subject in subjects:
        rates = scorer.scores(subject, map_name).roc.mean(1)  # over heads or registers
        defined = ~rates.isnan().any(-1)
        curves[subject.label] = (FALSE_POSITIVE_RATES.numpy(), rates[defined].mean(0).numpy())
    return curves


def _roc_json(curves: Curves) -> dict[str, Any]:
    return {
        "false_positive_rate": FALSE_POSITIVE_RATES.tolist(),
        "true_positive_rate": {label: true_rate.tolist() for label, (_, true_rate) in curves.items()},
    }


def _print(found: StudyResult) -> None:
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
        for row in found.rows
    ]
    table(f"Binary-AUC by {found.study}", columns, rows)
    for comparison in found.comparisons:
        console.print(
            f"{comparison['better']} over {comparison['worse']}: {_signed(comparison['difference'])}", highlight=False
        )
    for label, correlation in found.correlations.items():
        figure = correlation | {"mean": correlation["spearman"]}
        console.print(f"rank correlation, {label}: {_signed(figure)}, n = {correlation['n']}", highlight=False)


def _interval(figure: dict[str, Any]) -> str:
    return "-" if figure["low"] is None else f"{figure['low']:.3f} to {figure['high']:.3f}"


def _signed(figure: dict[str, Any]) -> str:
    if figure["mean"] is None:
        return "-"
    return f"{figure['mean']:+.3f}" + (
        "" if figure["low"] is None else f" [{figure['low']:+.3f}, {figure['high']:+.3f}]"
    )
