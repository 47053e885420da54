"""`mixlab study`: the papers' comparisons on your own photographs, in parts that can be run one by one."""

import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.answer import Answer
from mixlab.commands.options import Device, Flat
from mixlab.errors import InputError

STUDIES = ("miniature",)


def study(
    name: Annotated[str, tyro.conf.Positional],
    answer: Flat[Answer] = Answer(),
    *,
    run: Path,
    data: Path | None = None,
    masks: str | None = None,
    part: tuple[str, ...] = (),
    seeds: int = 3,
    at_once: int | None = None,
    quick: bool = False,
    device: Device = "auto",
    publish: Path | None = None,
) -> dict[str, Any]:
    """Run a whole study, or parts of it. Finished steps are not repeated; a killed study resumes.

    miniature: five families under DINO and with labels, each learning rate tuned alike; kNN, probes, Binary-AUC, sizes,
    registers, causal mixing, segmentation, cost, ranks, the ledger and a report. About half an hour on one H200,
    whatever the number of images, in parts of at most ten minutes: tune 2.5, dino 9, supervised 3, sizes 5, mambaout 3,
    registers 2.5, cost 1, ranks 2, ledger 1.

    Args:
        name: name of the study: miniature.
        run: the directory for all runs, results and the report.
        data: a folder of images: train/ and val/ with one sub-folder per class, or those sub-folders alone (every fifth
            image is then a validation image). Without classes, parts that need labels are skipped.
        masks: images with foreground masks, as `mixlab auc --data` takes them.
        part: one or more of tune, dino, supervised, sizes, mambaout, registers, cost, ranks, ledger; default: all.
        seeds: number of training runs of each family.
        at_once: parallel processes; default on a GPU: two thirds of the cores, at most 10.
        quick: all parts with a few steps of tiny models: a check that everything runs.
        publish: also write the report and its run directories, without weights and photographs, to this folder;
            with --run alone, nothing is run.
    """
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; choose {', '.join(STUDIES)}")
    from mixlab.studies.miniature.parts import PARTS
    from mixlab.studies.miniature.plan import FULL, QUICK
    from mixlab.studies.miniature.publish import publish_study
    from mixlab.studies.miniature.run import run_miniature

    answer.check()
    unknown = [one for one in part if one not in PARTS]
    if unknown:
        raise InputError(f"{name} has no part {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    if seeds < 1 or (at_once is not None and at_once < 1):
        raise InputError(f"--seeds {seeds} and --at-once {at_once} must be at least 1")
    start, summary = time.monotonic(), {"run": str(run)}
    if data is not None and masks is not None:
        summary |= run_miniature(
            data=data,
            masks=masks,
            run=run,
            parts=part or tuple(PARTS),
            seeds=tuple(range(seeds)),
            effort=QUICK if quick else FULL,
            at_once=at_once,
            device=device,
        )
    elif publish is None or data is not None or masks is not None:
        raise InputError("a study needs images and masks: give --data FOLDER and --masks FOLDER (or --publish alone)")
    if publish is not None:
        summary["published"] = str(publish_study(run, publish))
    answer.line(f"all in {(time.monotonic() - start) / 60:.1f} minutes")
    return answer.emit(summary)
