"""`mixlab study`: the papers' comparisons on your own photographs, in parts that can be run one by one."""

import fnmatch
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.answer import Answer
from mixlab.commands.options import Device, Flat
from mixlab.errors import InputError, check_counts, did_you_mean, few

STUDIES = ("miniature", "small")


def study(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")],
    answer: Flat[Answer] = Answer(),
    *,
    run: Path | None = None,
    data: Path | None = None,
    masks: str | None = None,
    voc: str | None = None,
    part: tuple[str, ...] = (),
    seeds: int = 3,
    at_once: int | None = None,
    quick: bool = False,
    device: Device = "auto",
    list: bool = False,
    publish: Path | None = None,
) -> dict[str, Any]:
    """Run a whole study, or parts of it. Run the same command again to resume; finished steps are not repeated.

    miniature: five families with DINO and with labels, learning rates tuned alike; kNN, probes, Binary-AUC, sizes,
    registers, causal mixing, segmentation, cost, ranks, the ledger (verdicts on the papers' claims) and a report. About
    half an hour on one H200 for any number of images, in parts of at most ten minutes.

    small: the same families at 160 px, with about 5.5 and 22 million parameters. Each network is timed (`mixlab
    speedrun`) and measured in its own parts; the ablations of the speedrun are included. You can move the directory
    to another machine between parts and continue there.

    `--list` lists the parts and their minutes.

    Args:
        name: name of the study: miniature or small.
        run: the directory for all runs, results and the report.
        data: a folder of images: train/ and val/ with one sub-folder per class, or only the class sub-folders (every
            fifth image is then for validation). Without classes, parts that need labels are skipped.
        masks: images with foreground masks, as `mixlab auc --data` takes them.
        voc: for small: a PASCAL VOC folder, or images/ next to masks/ and labels/, for maps and segmentation.
        part: one or more of tune, dino, supervised, sizes, mambaout, registers, cost, ranks, ledger; for small, names
            or patterns such as 'dino-tiny-*'; default: all.
        seeds: number of training runs per family; in small at 22 million parameters, for ViT only.
        at_once: parallel processes; default on a GPU: two thirds of the cores, at most 10.
        quick: all parts with a few steps of tiny models: a check that everything runs.
        list: list the parts with their minutes on one H200, and run nothing.
        publish: also write the report and its run directories, without weights and photographs, to this folder; with
            only --run, publish and run nothing.
    """
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; choose {', '.join(STUDIES)}")
    answer.check()
    check_counts(seeds=seeds, at_once=at_once)
    from mixlab.studies.miniature.parts import MINIATURE
    from mixlab.studies.publishing import check_place, publish_study
    from mixlab.studies.small.parts import small_study
    from mixlab.studies.study import run_study

    numbers = tuple(range(seeds))
    study = MINIATURE if name == "miniature" else small_study(numbers)
    chosen = _chosen(name, part, tuple(study.parts))
    if list:
        rows = [(one, study.parts[one].question, round(study.parts[one].minutes, 1)) for one in chosen]
        total = sum(study.parts[one].minutes for one in chosen)
        answer.table(f"Parts of {name}, {total:.0f} minutes on one H200", ("part", "asks", "minutes"), rows)
        return answer.emit({"parts": {one: minutes for one, _, minutes in rows}})
    if run is None:
        raise InputError("a study needs a directory for its runs; give --run DIR")
    if voc is not None and name != "small":
        raise InputError(f"--voc has no effect on {name}; leave it out")
    if publish is not None:
        check_place(run, publish)
    start, summary = time.monotonic(), {"run": str(run)}
    if data is not None and masks is not None:
        summary |= run_study(
            study,
            data=data,
            masks=masks,
            voc=voc,
            run=run,
            parts=chosen,
            seeds=numbers,
            effort=study.quick if quick else study.full,
            at_once=at_once,
            device=device,
        )
    elif publish is None or data is not None or masks is not None:
        raise InputError("a study needs images and masks: give --data FOLDER and --masks FOLDER (or --publish alone)")
    if publish is not None:
        summary["published"] = str(publish_study(run, publish))
    answer.line(f"done in {(time.monotonic() - start) / 60:.1f} minutes")
    return answer.emit(summary)


def _chosen(name: str, patterns: tuple[str, ...], parts: tuple[str, ...]) -> tuple[str, ...]:
    """The parts that these names and shell patterns mean, in their order; all of them for none."""
    if unknown := [each for each in patterns if not fnmatch.filter(parts, each)]:
        hint = did_you_mean(unknown[0], parts, otherwise=f"choose from {few(parts, 12)}; --list lists them")
        raise InputError(f"{name} has no part {', '.join(unknown)}; {hint}")
    return tuple(one for one in parts if not patterns or any(fnmatch.fnmatch(one, each) for each in patterns))
