"""`mixlab robust`: a classifier on ImageNet's shifted sets, as in the paper's Table 4, or on changed images."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from mixlab.commands.output import check_json, console, emit, open_run, table
from mixlab.commands.probe import interval, percent, quiet_unless_first
from mixlab.commands.robust_parts import join_parts, parts_like
from mixlab.data.images import parse_source
from mixlab.data.labelled import few
from mixlab.data.source import at_most
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.accuracy import accuracy
from mixlab.evaluation.classifier import (
    Classifier,
    load_head,
    probe_classifier,
    timm_classifier,
    trained_classifier,
)
from mixlab.evaluation.paper import robustness_figure
from mixlab.evaluation.robustness import SETS, SetScore, find_sets, score_set
from mixlab.evaluation.shifts import PLAIN, ShiftScores, score_shifts
from mixlab.evaluation.target import Target, load_target, split_target, weights_checksum
from mixlab.evaluation.views import CROP_SHARE, CentreView, Precision, run_precision
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import file_name
from mixlab.statistics import bootstrap_mean
from mixlab.training.distributed import from_all, join_world, num_workers
from mixlab.training.recipe import seed_all

PROBES = ("probe/augmented/best_head.safetensors", "probe/cached/best_head.safetensors")


def robust(
    target: Annotated[str, tyro.conf.Positional],
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FOLDER|NAME=FOLDER ...")] = (),
    shifts: str | None = None,
    head: Path | None = None,
    limit: int | None = None,
    shard: str = "0/1",
    image: int | None = None,
    crop_share: float | None = None,
    batch: int = 64,
    precision: Precision = "auto",
    workers: int | None = None,
    weights: str | None = None,
    training: str | None = None,
    device: str | None = "auto",
    run: Path | None = None,
    json: str | None = None,
) -> dict[str, Any]:
    """Score a classifier on ImageNet-V2, Sketch, A, R, ReaL and plain validation, or on images that are changed on the
    way: without colour, blurred, noisy, pale, as edges. torchrun works as is.

    Args:
        target: a run with a probe or a classifier, a name with --head, or timm/NAME as timm's own classifier.
        data: a folder with the sets under their released names, or NAME=FOLDER for each, NAME among val, v2-mf, v2-t07,
            v2-ti, sketch, a, r, real.
        shifts: images of the classifier's own classes, to be changed: a folder (its val/), shapes or wds:PATTERN.
        head: a probe of `mixlab probe`, or a released probe checkpoint; without it, the run's own.
        limit: at most so many images of each set, spread evenly.
        shard: I/N, to score only every N-th image from the I-th on; when all N are in the run, they are put together.
        image: the side in pixels; without it, what the classifier was made for.
        crop_share: how much of each side the view of an image keeps; as the classifier says without it.
        batch: images at a time.
        precision: bf16 or fp32; auto is bf16 on a GPU.
        workers: processes that read images; the cores shared out without it.
        weights: a weight file for a name.
        training: how the target was trained (dino, supervised, ...), where its run does not say.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        run: the directory for results; the target's own if it is a run, else runs/look.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    if not data and shifts is None:
        raise InputError("no images given: --data for ImageNet's sets, or --shifts for images to be changed on the way")
    check_counts(limit=limit, image=image, batch=batch)
    check_json(json)
    part, parts = parse_shard(shard)
    if shifts is not None and parts > 1:
        raise InputError(f"--shard {shard} is for the sets of --data; score --shifts in one go")
    folders = parse_sets(data)
    changed = None if shifts is None else parse_source(shifts, split="val")
    with join_world(device) as world, torch.no_grad():
        seed_all(0)  # an untrained target is the same on every rank
        classifier, about = load_classifier(
            target, head=head, weights=weights, training=training, image=image, crop_share=crop_share
        )
        classifier.to(world.device).eval()
        directory = open_run(run, [target])
        scores: dict[str, SetScore] = {}
        for name, folder in folders.items():
            with quiet_unless_first(world)(SETS[name].title, SETS[name].num_images) as step:
                own = score_set(
                    name,
                    folder,
                    classifier,
                    device=world.device,
                    batch=batch,
                    workers=num_workers(workers, world),
                    limit=limit,
                    shard=(part * world.size + world.rank, parts * world.size),
                    precise=run_precision(precision, world.device),
                    progress=step,
                )
            first, *rest = from_all(own)
            for other in rest:
                first.add(other)
            scores[name] = first
        changes: dict[str, dict[str, Any]] = {}
        unreadable: dict[str, str] = {}
        if changed is not None:
            with quiet_unless_first(world)("changed images", len(changed)) as step:
                own_part = score_shifts(
                    at_most(changed, limit),
                    classifier,
                    device=world.device,
                    precise=run_precision(precision, world.device),
                    batch=batch,
                    workers=num_workers(workers, world),
                    shard=(world.rank, world.size),
                    progress=step,
                )
            seen = ShiftScores.together(from_all(own_part))
            if not len(seen.numbers):
                named = next(iter(seen.unreadable))
                raise InputError(f"none of the {len(seen.unreadable)} images of {shifts} can be read; {named}")
            changes, unreadable = _change_figures(seen.right), seen.unreadable
        if not world.is_first:
            return {}
        common: dict[str, Any] = {
            "kind": "robust",
            "subject": about,
            "checksum": weights_checksum(classifier),
            "limit": limit,
            "view": vars(classifier.view),
            "provenance": provenance(device=str(world.device)),
        }
        result = common | {"counts": {name: vars(score) for name, score in scores.items()}}
        stem = f"robust_{file_name(classifier.label)}"
        if parts > 1:
            directory.write_result(f"{stem}.{part}-of-{parts}", result)
            found, others = parts_like(directory, stem, part, parts)
            for number, named in others.items():
                note = f"part {number} of {parts} is of another {named} and counts as missing: score it again"
                console.print(note, style="yellow", highlight=False)
            if len(found) < parts:
                console.print(f"part {part} of {parts} is in {directory.path}; the table comes with the last one")
                return emit(result, json)
            scores = join_parts(found)
            result["counts"] = {name: vars(score) for name, score in scores.items()}
        result |= _figures(scores, about, limited=limit is not None)
        if scores:
            directory.write_result(stem, result)
            _print(classifier.label, result, scores)
        if changes:
            records = _change_records(changes, about, str(shifts))
            own_file = common | {"data": shifts, "shifts": changes, "unreadable": unreadable, "measurements": records}
            directory.write(f"shifts_{file_name(classifier.label)}", own_file)
            both = {"measurements": result["measurements"] + records}
            result = result | own_file | both if scores else own_file
            rows = [(name, percent(row["top1"]), interval(row), row["n"]) for name, row in changes.items()]
            table(f"{classifier.label} on {shifts}, changed", ("images", "top-1 %", "95 %", "n"), rows)
        if unreadable:
            number = changes[PLAIN]["n"] + len(unreadable)
            note = f"{len(unreadable)} of the {number} images cannot be read: {few(unreadable)}"
            console.print(note, style="yellow", highlight=False)
        console.print(f"results in {directory.path}")
        return emit(result, json)


def load_classifier(
    target: str,
    *,
    head: Path | None,
    weights: str | None,
    training: str | None,
    image: int | None,
    crop_share: float | None,
) -> tuple[Classifier, dict[str, Any]]:
    """The classifier that TARGET and --head name, and what is known of it."""
    name, label = split_target(target)
    if name.startswith("timm/") and head is None:
        classifier = timm_classifier(name.removeprefix("timm/"), weights=weights, image=image, label=label or None)
        if crop_share is not None:
            classifier.view = CentreView(classifier.view.size, crop_share, classifier.view.fit)
        size = sum(parameter.numel() for parameter in classifier.parameters())
        known = {"label": classifier.label, "model": name, "training": training or "supervised"}
        return classifier, {**known, "num_parameters": size, "classifier": "its own"}
    subject = load_target(target, weights=weights, training=training, device="cpu")
    place = Path(name)
    if head is None and place.is_dir():
        head = next((place / probe for probe in PROBES if (place / probe).is_file()), None)
    if head is not None:
        probed = load_head(head, subject.backbone)
        size = image or int(probed.about.get("image", subject.backbone.image))
        view = CentreView(size, crop_share or float(probed.about.get("crop_share", CROP_SHARE)))
        classifier = probe_classifier(subject.backbone, probed, view=view, label=subject.label)
        return classifier, {**subject.describe(), "classifier": f"probe, {probed.input}, {probed.source}"}
    if (place / "classifier.safetensors").is_file():
        return _trained(place, subject, image, crop_share), {**subject.describe(), "classifier": "trained with it"}
    raise InputError(
        f"{target} has no classifier: give --head FILE, probe it first (`mixlab probe {target}`), or name timm/MODEL"
    )


def _trained(place: Path, subject: Target, image: int | None, crop_share: float | None) -> Classifier:
    classes = RunDirectory.open(place).read_config().get("classes", [])
    view = CentreView(image or subject.backbone.image, crop_share or CROP_SHARE)
    file = place / "classifier.safetensors"
    return trained_classifier(subject.backbone, file, classes=classes, view=view, label=subject.label)


def parse_sets(data: Sequence[str]) -> dict[str, Path]:
    """NAME=FOLDER as given, and whatever a plain folder holds; in the order of the table."""
    found: dict[str, Path] = {}
    for text in data:
        name, equals, folder = text.partition("=")
        if not equals:
            found |= find_sets(Path(text).expanduser())
        elif name not in SETS:
            raise InputError(f"{name!r} in {text!r} is no set; choose among {', '.join(SETS)}")
        elif not Path(folder).expanduser().is_dir():
            raise FileNotFoundError(f"{folder} in {text!r} is not a folder; check the path")
        else:
            found[name] = Path(folder).expanduser()
    return {name: found[name] for name in SETS if name in found}


def parse_shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise InputError(f"shard {text!r} is not I/N with I below N; write 0/4, 1/4, 2/4 and 3/4 for four parts")
    return int(match[1]), int(match[2])


def _figures(scores: dict[str, SetScore], about: dict[str, Any], *, limited: bool) -> dict[str, Any]:
    sets, records = {}, []
    for name, score in scores.items():
        figure = accuracy(score.correct, score.n)
        complete = score.n == SETS[name].num_images
        paper = robustness_figure(about["model"], name) if complete and about["training"] == "dino" else None
        sets[name] = {**figure.as_json(), "complete": complete, "paper": paper, "notes": score.notes()}
        if name != "val" and figure.value is not None:
            value = {"value": figure.value, "low": figure.low, "high": figure.high, "n": figure.n}
            records.append({**about, "metric": "robust_top1", **value, "data": f"imagenet-{name}", "limited": limited})
    return {"sets": sets, "measurements": records}


def _change_figures(right: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Accuracy on images as they are, under each change, and on average over changes (its interval: over images)."""
    rows = {name: accuracy(int(hits.sum()), len(hits)).as_json() for name, hits in right.items()}
    mean = bootstrap_mean(torch.stack([hits.double() for name, hits in right.items() if name != PLAIN]).mean(0))
    return {**rows, "mean": {"top1": mean.value, "low": mean.low, "high": mean.high, "n": mean.n}}


def _change_records(figures: dict[str, dict[str, Any]], about: dict[str, Any], data: str) -> list[dict[str, Any]]:
    records = []
    for name, row in figures.items():
        if name != PLAIN:
            metric = "shifted_top1" if name == "mean" else "shift_top1"
            value = {"value": row["top1"], **{key: row[key] for key in ("low", "high", "n")}}
            records.append({**about, "metric": metric, **value, "data": f"{data}, {name}"})
    return records


def _print(label: str, result: dict[str, Any], scores: dict[str, SetScore]) -> None:
    sets = result["sets"]
    columns = ["top-1 %", *(SETS[name].title for name in sets)]
    rows: list[list[Any]] = [
        [label, *(None if s["top1"] is None else round(100 * s["top1"], 1) for s in sets.values())],
        [
            "95 %",
            *("-" if s["low"] is None else f"{100 * s['low']:.1f} to {100 * s['high']:.1f}" for s in sets.values()),
        ],
        ["n", *(s["n"] for s in sets.values())],
    ]
    if any(s["paper"] is not None for s in sets.values()):
        rows.append(["paper", *(None if s["paper"] is None else round(100 * s["paper"], 1) for s in sets.values())])
    table("ImageNet's shifted sets", columns, rows)
    for score in scores.values():
        for note in score.notes():
            console.print(note, style="yellow", highlight=False)
