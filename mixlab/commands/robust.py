"""`mixlab robust`: a classifier on ImageNet's shifted sets, as in the paper's Table 4, or on changed images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixlab.choices import PrecisionChoice
from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat, OneTarget
from mixlab.commands.output import evaluation_machine, percent, percent_interval, warn
from mixlab.console import console
from mixlab.errors import InputError, check_counts, few
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import file_name

if TYPE_CHECKING:
    from mixlab.evaluation.classifier import NamedClassifier
    from mixlab.evaluation.robustness import RobustnessResult
    from mixlab.evaluation.shifts import ShiftResult


def robust(
    on: Flat[OneTarget],
    answer: Flat[Answer] = Answer(),
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FOLDER|NAME=FOLDER ...")] = (),
    shifts: str | None = None,
    head: Path | None = None,
    limit: int | None = None,
    shard: str = "0/1",
    image: int | None = None,
    crop_share: float | None = None,
    batch: int = 64,
    precision: PrecisionChoice = "auto",
    workers: int | None = None,
) -> dict[str, Any]:
    """Evaluate a classifier on ImageNet-V2, Sketch, A, R, ReaL and plain validation, or on corrupted validation
    images: grey, blurred, noisy, pale, edges. Works under torchrun.

    TARGET is a run with a classifier or a probe, a zoo model with --head or with released --weights that include a
    classifier, or timm/NAME with timm's own classifier.

    Args:
        data: a folder with the sets under their released names, or NAME=FOLDER for each set; NAME: val, v2-mf, v2-t07,
            v2-ti, sketch, a, r or real.
        shifts: images to corrupt, of the classifier's classes: a folder (its val/), shapes or wds:PATTERN.
        head: a run's classifier.safetensors, a probe of `mixlab probe`, or a released probe checkpoint; default: the
            classifier that the network was trained with, else the run's own probe, or one in --run.
        limit: maximum number of images of each set, evenly spaced.
        shard: I/N evaluates every N-th image, starting at the I-th; the results are joined when all N parts are in the
            run.
        image: image size in pixels; default: the classifier's own size.
        crop_share: fraction of each side that the centre crop keeps; default: the classifier's.
        batch: images per forward pass.
        precision: bf16 or fp32; auto: bf16 on a GPU.
        workers: data loading processes per rank; default: this rank's cores, less one.
    """
    from mixlab.data.images import parse_source
    from mixlab.evaluation.classifier import TRAINED
    from mixlab.evaluation.own_classifier import load_classifier, own_probe
    from mixlab.evaluation.robustness import evaluate_robustness
    from mixlab.evaluation.shifts import evaluate_shifts
    from mixlab.evaluation.target import split_target
    from mixlab.training.distributed import once_per_machine, only_first

    if not data and shifts is None:
        raise InputError("no images given; give --data for ImageNet's sets, or --shifts for images to corrupt")
    check_counts(limit=limit, image=image, batch=batch)
    answer.check()
    part, num_parts = parse_shard(shard)
    if shifts is not None and num_parts > 1:
        raise InputError(f"--shard {shard} is for the sets of --data; score --shifts without --shard")
    directory = on.open_run()
    with evaluation_machine(on.device, workers=workers, batch=batch) as machine:
        folders, changed = only_first(lambda: parse_sets(data)), None
        if shifts is not None:
            changed = once_per_machine(machine.world, lambda: parse_source(shifts, split="val"))
        classifier = load_classifier(
            on.target,
            head=head,
            weights=on.weights,
            training=on.training,
            image=image,
            crop_share=crop_share,
            device=machine.world.device,
            results=directory.path,
        )
        options: dict[str, Any] = {"limit": limit, "precision": precision, "machine": machine}
        on_sets = evaluate_robustness(classifier, folders, part=part, num_parts=num_parts, **options)
        on_changed = None
        if changed is not None:
            on_changed = evaluate_shifts(classifier, changed, name=str(shifts), **options)
        if not machine.world.is_first:
            return {}
    if head is None and classifier.kind == TRAINED and (probe := own_probe(Path(split_target(on.target)[0]))):
        console.print(f"this run also has a probe: --head {probe}")
    origin, label = {"provenance": provenance(device=str(machine.world.device))}, file_name(classifier.label)
    result: dict[str, Any] = {}
    if folders:
        if num_parts > 1:
            directory.write(f"robust_{label}.{part}-of-{num_parts}", on_sets.to_json() | origin)
            on_sets = _joined(on_sets, directory)
        result = on_sets.to_json() | origin
        if on_sets.num_parts > 1:
            console.print(
                f"part {part} of {num_parts} is in {directory.path} (classifier: {classifier.origin}); the table is "
                "printed with the last part"
            )
            return answer.emit(result)
        directory.write(f"robust_{label}", result)
        _print_sets(answer, on_sets)
    if on_changed is not None:
        own = on_changed.to_json() | origin
        directory.write(f"shifts_{label}", own)
        result = result | own | {"measurements": result.get("measurements", []) + own["measurements"]}
        _print_shifts(answer, on_changed, str(shifts))
    console.print(f"results in {directory.path}")
    return answer.emit(result)


def _joined(own: RobustnessResult, directory: RunDirectory) -> RobustnessResult:
    """All parts of a result as one; this part alone, where others are missing."""
    from mixlab.evaluation.robustness import join_parts

    found, missing = join_parts(own, directory.results().values())
    for number, different in missing.items():
        if different:
            warn(f"part {number} of {own.num_parts} has another {different} and counts as missing; run it again")
    return found


def parse_sets(data: Sequence[str]) -> dict[str, Path]:
    """NAME=FOLDER as given, and whatever a plain folder holds; in the order of the table."""
    from mixlab.evaluation.shifted_sets import SETS, find_sets

    found: dict[str, Path] = {}
    for text in data:
        name, equals, folder = text.partition("=")
        if not equals:
            found |= find_sets(Path(text).expanduser())
        elif name not in SETS:
            raise InputError(f"{name!r} in {text!r} is not a known set; choose among {', '.join(SETS)}")
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


def _print_sets(answer: Answer, found: RobustnessResult) -> None:
    from mixlab.evaluation.shifted_sets import SETS

    sets = found.to_json()["sets"]
    columns = ["set", "top-1 %", "95 %", "n"]
    rows = [[SETS[name].title, percent(row["top1"]), percent_interval(row), row["n"]] for name, row in sets.items()]
    if any(row["paper"] is not None for row in sets.values()):
        columns.append("paper %")
        for line, row in zip(rows, sets.values(), strict=True):
            line.append(percent(row["paper"]))
    answer.table(_title(found.classifier, "ImageNet's shifted sets"), columns, rows)
    for score in found.scores.values():
        for note in score.notes():
            warn(note)


def _title(classifier: NamedClassifier, images: str) -> str:
    """A network may have several classifiers: which of them was scored, and on what."""
    return f"{classifier.label} on {images}; classifier: {classifier.origin}"


def _print_shifts(answer: Answer, found: ShiftResult, images: str) -> None:
    shifts = found.to_json()["shifts"]
    rows = [(name, percent(row["top1"]), percent_interval(row), row["n"]) for name, row in shifts.items()]
    answer.table(_title(found.classifier, f"{images}, corrupted"), ("images", "top-1 %", "95 %", "n"), rows)
    if unreadable := found.scores.unreadable:
        number = len(found.scores.numbers) + len(unreadable)
        warn(f"{len(unreadable)} of the {number} images cannot be read: {few(unreadable)}")
