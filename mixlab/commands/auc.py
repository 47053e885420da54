"""`mixlab auc`: Binary-AUC of activation maps, its baselines beside it, and the studies of the paper's Figure 4."""

import sys
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from mixlab.analysis.score_differences import ScoreDifference
from mixlab.choices import SCORED_FIT, Fit
from mixlab.commands.answer import WideAnswer
from mixlab.commands.options import Flat, SeveralTargets
from mixlab.commands.output import drawing, evaluation_machine, print_left_out, with_margin
from mixlab.console import console
from mixlab.errors import InputError, check_counts
from mixlab.run import UNTRAINED, RunDirectory, provenance
from mixlab.statistics import with_interval


def auc(
    on: Flat[SeveralTargets],
    answer: Flat[WideAnswer] = WideAnswer(),
    *,
    study: tuple[str, ...] = ("model",),
    map: str | None = None,
    num_images: int | None = None,
    batch: int = 16,
    fit: Fit = SCORED_FIT,
    twins: bool = True,
) -> dict[str, Any]:
    """Score activation maps against foreground masks, several targets side by side. Works under torchrun.

    Args:
        study: what to compare: one or more of model, size, training, head, registers, register, token (class token in
            the middle and in front), layer, map (every kind).
        map: which map (see `mixlab maps --help`); default: depends on the study. For model: cosine or pooled_cosine,
            and also norm, isolation and, if the network has it, mixing_mean.
        num_images: number of images, evenly spaced; default: all.
        batch: images per forward pass.
        fit: squash (the whole image and mask as a square, as in our published scores), whole (the same in its own
            shape), square (the largest square in the middle) or crop (centre crop of it, as in kNN and probes).
        twins: also score each trained model's untrained twin on the same images.
    """
    from mixlab.analysis.auc import STUDIES, run_studies
    from mixlab.analysis.map_scores import MapScorer
    from mixlab.analysis.viewed_images import ViewedImages
    from mixlab.analysis.views import common_view
    from mixlab.training.distributed import once_per_machine

    answer.check()
    unknown = [name for name in study if name not in STUDIES]
    if unknown or not study:
        raise InputError(f"study {', '.join(unknown) or 'nothing'!r} does not exist; choose from {', '.join(STUDIES)}")
    check_counts(num_images=num_images, batch=batch)
    contents: dict[str, dict[str, Any]] = {}
    with evaluation_machine(on.device, workers=on.workers) as machine:
        loaded = on.load(machine.world.device)
        options: dict[str, Any] = {"num_images": num_images, "batch": batch, "workers": machine.workers}
        options |= common_view(loaded, on.image or loaded[0].backbone.image, fit, SCORED_FIT)
        images = once_per_machine(machine.world, lambda: ViewedImages(on.data, with_masks=True, **options))
        directory = on.open_run()
        where = str(next(loaded[0].backbone.parameters()).device)
        num_models = sum(1 + (twins and target.training != UNTRAINED) for target in loaded)
        with machine.bar("scoring", images.num_wanted * num_models) as step:
            show: Any = step if machine.world.is_first else lambda count, note: None
            scorer = MapScorer(
                images,
                twins=twins,
                seed=on.seed,
                progress=lambda label, count: show(count * machine.world.size, f"scoring {label}"),
                machine=machine,
            )
            for name, result in zip(study, run_studies(study, loaded, scorer, map), strict=True):
                if not machine.world.is_first:
                    continue
                contents[name] = result.to_json() | {"provenance": provenance(seed=on.seed, device=where)}
                if not any(row["auc"]["n"] for row in contents[name]["rows"]):
                    continue  # there is nothing to keep
                stored = directory.write(f"auc_{name}", contents[name], result.arrays)
                with drawing():
                    _draw(directory, stored, contents[name])
        if not machine.world.is_first:
            return {}
    for content in contents.values():
        if not any(row["auc"]["n"] for row in content["rows"]):
            print_left_out(images)
            raise InputError(_unscored(content, content["rows"]))
        _print(answer, content)
    print_left_out(images)
    console.print(f"results and figures in {directory.path}")
    return answer.emit({"kind": "auc", "results": contents})


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


COLUMNS = (
    "model", "map", "layer", "part", "AUC", "centre", "untrained", "difference", "95 %", "raw", "above centre",
    "above untrained", "centre-matched", "n", "undefined",
)  # fmt: skip


LEGEND = (
    "centre: a blob in the middle of every image; untrained: the same network before training; difference: AUC minus "
    "untrained"
)


def _print(answer: WideAnswer, content: dict[str, Any]) -> None:
    order = [subject["label"] for subject in content["subjects"]]
    rows = sorted([*content["rows"], *content["beside"]], key=lambda row: order.index(row["label"]))
    hidden = {"layer", "part", *COLUMNS[8:]}
    hidden -= {
        name
        for name, field in (("layer", "layer"), ("part", "index"))
        if len({row[field] for row in rows}) > len({(row["label"], row["map"]) for row in rows})
    }
    if content["study"] == "register":
        hidden.remove("raw")  # by which registers are compared
    lines = [
        (
            row["label"],
            row["map"],
            row["layer"],
            row["index"],
            with_margin(row["auc"]),
            _mean(row["centre_prior"]),
            _mean(row.get("untrained")),
            with_margin(row["above_untrained"], "+.3f") if "above_untrained" in row else None,
            _interval(row["auc"]),
            _mean(row["raw_auc"]),
            _signed(row["above_centre_prior"]),
            _signed(row["above_untrained"]) if "above_untrained" in row else None,
            _mean(row["centre_matched_auc"]),
            row["auc"]["n"],
            row["auc"]["undefined"],
        )
        for row in rows
    ]
    about = f"{content['data']}, n = {max((row['auc']['n'] for row in rows), default=0)}, ±: 95 %"
    answer.table(f"Binary-AUC by {content['study']} on {about}", COLUMNS, lines, more=sorted(hidden, key=COLUMNS.index))
    if sys.stderr.isatty():
        console.print(LEGEND, style="dim")
    if unscored := [row for row in content["rows"] if not row["auc"]["n"]]:
        console.print(_unscored(content, unscored))
    most = max(rows, key=lambda row: row["auc"]["undefined"])
    if most["auc"]["n"] and (missing := most["auc"]["undefined"]):
        console.print(
            f"{missing} of {missing + most['auc']['n']} images {'is' if missing == 1 else 'are'} left out for "
            f"{most['label']}: no foreground or no background in the cells of its map; a larger --image has more cells"
        )
    if content["study"] == "model" and len(order) > 2:
        about = f"minus the next: on the same images, ±: each at 95 %; all {len(content['comparisons'])} pairs: --json"
        answer.table(f"Networks by rank, by their default maps and by each map, {about}", RANKED, _ranked(content))
    else:
        for comparison in content["comparisons"]:
            answer.line(str(ScoreDifference.from_json(comparison)))
    for label, correlation in content["correlations"].items():
        figure = correlation | {"mean": correlation["spearman"]}
        answer.line(f"rank correlation, {label}: {_signed(figure)}, n = {correlation['n']}")


RANKED = ("map", "model", "AUC", "minus the next", "significantly above")


def _ranked(content: dict[str, Any]) -> Iterator[tuple[str | None, ...]]:
    """By each map, the networks from the highest score on: what decides their order, of all pairs that are compared."""
    gaps: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in content["comparisons"]:
        first, second, gap = (one["first"], one["map"]), (one["second"], one["second_map"]), one["difference"]
        gaps[first + second] = gap
        ends = zip(("mean", "low", "high"), (gap["mean"], gap["high"], gap["low"]), strict=True)
        gaps[second + first] = {name: None if end is None else -end for name, end in ends}
    beside = dict.fromkeys(row["map"] for row in content["beside"])
    for rows in (content["rows"], *([row for row in content["beside"] if row["map"] == name] for name in beside)):
        scores: dict[tuple[str, str], list[float]] = {}  # of a map with several parts, their mean counts
        for row in rows:
            if row["auc"]["n"]:
                scores.setdefault((row["label"], row["map"]), []).append(row["auc"]["mean"])
        ranked = sorted(scores, key=lambda each: -fmean(scores[each]))
        for place, (label, name) in enumerate(ranked if len(ranked) > 1 else []):
            below = {other: gaps[label, name, *other] for other in ranked[place + 1 :]}
            above = [other[0] for other, gap in below.items() if gap["low"] is not None and gap["low"] > 0]
            told = "all below" if len(above) == len(below) > 1 else ", ".join(above) or "none"
            following = with_margin(next(iter(below.values())), "+.3f") if below else None
            yield name, label, f"{fmean(scores[label, name]):.3f}", following, told if below else None


def _unscored(content: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    labels = ", ".join(dict.fromkeys(row["label"] for row in rows))
    return (
        f"no map of {labels} could be scored: at {content['image']} px no map has both foreground and background "
        "cells; use a larger --image, --fit whole or other --data"
    )


def _mean(figure: dict[str, Any] | None) -> str | None:
    return None if figure is None or figure["mean"] is None else f"{figure['mean']:.3f}"


def _interval(figure: dict[str, Any]) -> str:
    return "-" if figure["low"] is None else f"{figure['low']:.3f} to {figure['high']:.3f}"


def _signed(figure: dict[str, Any]) -> str:
    mean, low, high = (figure[name] for name in ("mean", "low", "high"))
    return "-" if mean is None else with_interval(mean, low, high, form="+.3f")
