"""A study: a name and its parts, which are run in order, each with its time noted."""

import contextlib
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from mixlab.console import console
from mixlab.data.cores import num_cores
from mixlab.data.images import parse_source
from mixlab.data.mask_formats import parse_masks
from mixlab.errors import InputError, counted
from mixlab.report import write_report
from mixlab.report.forms import check_form
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import AGAIN
from mixlab.run.files import read_json
from mixlab.run.lock import RunLock
from mixlab.studies.elapsed import elapsed, noting_time
from mixlab.studies.folders import COPY_SIDE, prepare
from mixlab.studies.plan import STUDY_FAMILIES, Family, Setting, StudyEffort
from mixlab.studies.shared_gpu import shared_gpu
from mixlab.studies.steps import MARK, Step, is_done, keep_settings, mark_of, run_steps
from mixlab.studies.workers import wait_for_workers, worker_pool
from mixlab.training.distributed import choose_device

MINUTES = "steps/parts.json"  # of each part
NEEDLESS = ("checkpoints", "features", "probe", "tensorboard")  # of runs that are evaluated


@dataclass(frozen=True)
class Part:
    """`minutes` on one H200: of the miniature those of its published study (docs/miniature.md); of others estimates."""

    question: str
    steps: Callable[[Setting], Iterable[Step]]
    minutes: float
    needs: tuple[str, ...] = ()
    labels: bool = False  # nothing is left of it without labels


@dataclass(frozen=True)
class Study:
    """A name and the parts behind it, in the order in which they run."""

    name: str
    parts: Mapping[str, Part]
    full: StudyEffort
    quick: StudyEffort
    copy_side: int = COPY_SIDE  # px of copies of large photographs
    most_at_once: int = 10  # processes on one GPU
    uses_tuned_rates: bool = True  # else its tuning only shows what other learning rates than the recipes' would give
    tidy: Callable[[Path], None] | None = None  # called on each trained run, once its part is done

    @property
    def command(self) -> str:
        return f"study {self.name}"


def run_study(
    study: Study,
    *,
    data: Path,
    masks: str,
    run: Path,
    parts: tuple[str, ...],
    seeds: tuple[int, ...],
    effort: StudyEffort,
    at_once: int | None,
    device: str | None,
    families: tuple[Family, ...] = STUDY_FAMILIES,
    voc: str | None = None,
) -> dict[str, Any]:
    """All steps of the parts that are not done yet, each part with its minutes; the report after the ledger."""
    where = choose_device(device)
    on_gpu = where.type == "cuda"
    most = min(study.most_at_once, num_cores() * 2 // 3) if on_gpu else min(num_cores(), len(families))
    at_once = at_once or max(1, most)
    sizes = check_sources(data, masks)
    if voc is not None:
        parse_masks(voc)  # what cannot be read is refused before anything is trained
    check_enough(sizes["num_images"], data, effort)  # and again of those that are left for training
    directory = RunDirectory.create(run)
    took: dict[str, float] = {}
    page: Path | None = None
    with RunLock(directory.path):
        given = {"study": study.name, "data": str(data), "masks": masks, "quick": effort == study.quick}
        keep_settings(directory, given)
        wait_for_workers([*run.glob("*-s[0-9]*"), *run.glob("tuning/*-*"), *run.glob("ablate/*-*")])
        setting = Setting(
            run=run,
            data=prepare(data, run / "data", workers=num_cores(), side=study.copy_side),
            masks=masks,
            voc=voc,
            labelled=bool(sizes["num_classes"]),
            seeds=seeds,
            device=str(where),
            workers=max(0, num_cores() // at_once - 1) if on_gpu else 0,
            effort=effort,
            families=families,
            rates=_tuned(study, directory),
        )
        sizes |= {"num_images": len(parse_source(setting.data, split="train"))}
        check_enough(sizes["num_images"], data, effort)
        sharing = shared_gpu() if on_gpu and at_once > 1 else contextlib.nullcontext()
        with sharing, worker_pool(at_once) as pool:
            for name in (name for name in study.parts if name in parts):
                if study.parts[name].labels and not setting.labelled:
                    console.print(f"{name} is left out: it needs labels, and {data} has none", style="yellow")
                    continue
                took[name] = _run_part(study, name, setting, pool, at_once)
                setting = replace(setting, rates=_tuned(study, directory))
                _write_summary(study, directory, setting, sizes)
        if "ledger" in parts:
            page = write_report([run], run / "report.html", force=True)
            console.print(f"open the report: {page}")
    return {"parts": took, "report": None if page is None else str(page)}


def check_sources(data: Path, masks: str) -> dict[str, int]:
    """Numbers of images and classes, before anything is trained."""
    if not data.is_dir():
        raise FileNotFoundError(f"--data {data} is not an existing folder; give a folder of images")
    source, _ = (parse_source(str(data), split=part) for part in ("train", "val"))  # an empty val/ is refused
    num_masks = len(parse_masks(masks))
    classes = source.classes if len(source.classes) > 1 else ()
    if not classes:
        console.print(f"{data} has no class folders: kNN, probes and training with labels are left out", style="yellow")
    return {"num_images": len(source), "num_classes": len(classes), "num_masks": num_masks}


def check_enough(num_images: int, data: Path, effort: StudyEffort) -> None:
    if num_images < effort.least_images:
        images = counted(num_images, "image", "images")
        raise InputError(f"{data} has {images} for training; the study needs {effort.least_images} or more")


def _run_part(study: Study, name: str, setting: Setting, pool: ProcessPoolExecutor, at_once: int) -> float:
    """The minutes that it took."""
    part = study.parts[name]
    _check_needs(study, name, setting)
    if name == "ledger":
        (setting.run / MARK.format("claims")).unlink(missing_ok=True)  # new results, a new ledger
    steps = list(part.steps(setting))
    console.rule(f"{name}: {part.question}")
    console.print(f"{counted(steps, 'step', 'steps')}, about {part.minutes:.2g} minutes on one H200")
    start = time.monotonic()
    with noting_time(setting.run / MINUTES, name, unit_s=60):
        run_steps(steps, setting.run, pool, workers=at_once, command=study.command)
    minutes = (time.monotonic() - start) / 60
    for place in {step.trains for step in steps if step.trains is not None}:
        for folder in NEEDLESS:
            for here in (place, place / "untrained"):
                shutil.rmtree(here / folder, ignore_errors=True)
        if study.tidy is not None:
            study.tidy(place)
    console.print(Text.assemble((f"{name}: {minutes:.1f} minutes", "bold"), f", {counted(steps, 'step', 'steps')}"))
    return minutes


def _check_needs(study: Study, name: str, setting: Setting) -> None:
    for need in study.parts[name].needs:
        missing = [step for step in study.parts[need].steps(setting) if step.trains and not is_done(step, setting.run)]
        if missing:
            named = ", ".join(step.title for step in missing[:3])
            raise InputError(
                f"part {name} needs part {need}, of which {len(missing)} trainings are not done ({named}, ...); "
                f"run it first: --part {need}, with the same --seeds"
            )


def _tuned(study: Study, directory: RunDirectory) -> dict[str, dict[str, float]]:
    place = directory.file_of("tuning")
    if not study.uses_tuned_rates or not place.is_file():
        return {}
    try:
        tuning = read_json(place)
    except InputError as error:
        raise InputError(f"{error}; {AGAIN}") from error
    check_form(tuning, "tuning", str(place))
    chosen: dict[str, dict[str, float]] = tuning["chosen"]
    return chosen


def _write_summary(study: Study, directory: RunDirectory, setting: Setting, sizes: dict[str, int]) -> None:
    """results/study.json: what was done so far, step by step, and how long it took."""
    minutes = elapsed(directory.path / MINUTES)
    parts = {
        name: [_summary_of(step, setting) for step in part.steps(setting)]
        for name, part in study.parts.items()
        if name in minutes
    }
    earlier = _earlier_summary(directory)
    more_seeds = [seed for seed in earlier.get("seeds", ()) if seed not in setting.seeds]
    for name, steps in earlier["steps"].items() if more_seeds else ():  # what was done for them stays
        known = [each["step"] for each in parts.setdefault(name, [])]
        parts[name] += [each for each in steps if each.get("step") not in known]
    result = {
        "kind": "study",
        "study": study.name,
        "data": {"name": Path(directory.read_config()["data"]).name, **sizes},
        "masks": Path(setting.masks).name,
        "seeds": [*setting.seeds, *more_seeds],
        "tuned": bool(setting.rates),
        "learning_rates": setting.rates,
        "minutes": minutes,
        "total_minutes": round(sum(minutes.values()), 2),
        "steps": parts,
        "provenance": provenance(device=setting.device),
    }
    directory.write_result("study", result)


def _earlier_summary(directory: RunDirectory) -> dict[str, Any]:
    """results/study.json as it is; nothing where there is none, or a damaged one."""
    place = directory.file_of("study")
    try:
        found = read_json(place) if place.is_file() else {}
        if found:
            check_form(found, "study", str(place))
        return found
    except InputError:
        return {}


def _summary_of(step: Step, setting: Setting) -> dict[str, Any]:
    mark = mark_of(step, setting.run)
    command = shlex.join(("mixlab", *mark.get("arguments", ())))
    return {"step": step.name, "command": command, "seconds": mark.get("seconds"), "date": mark.get("date")}
