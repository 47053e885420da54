"""`mixlab demo`: trained networks opened up, one of them trained further, on two CPU cores, ending with a report."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat
from mixlab.console import console
from mixlab.errors import InputError
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import RunLock

if TYPE_CHECKING:
    from mixlab.studies.demo import DemoEffort


def demo(
    answer: Flat[Answer] = Answer(), *, run: Path | None = None, quick: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Look inside five trained networks, fine-tune one of them, compare them with untrained twins, and write a report.

    About three minutes on two cores; needs no data and no GPU. If it is killed, the same command resumes it.

    Args:
        run: directory for runs, results and the report; default: demo, or demo-quick.
        quick: the same with fewer images and training steps, in about a minute.
        seed: seed of the untrained twins, and of the order of images and their crops.
    """
    from mixlab.studies.demo import FULL, QUICK

    answer.check()
    folder = run or Path("demo-quick" if quick else "demo")
    return answer.emit(run_demo(folder, QUICK if quick else FULL, seed=seed, answer=answer))


def run_demo(
    folder: Path, effort: DemoEffort, *, seed: int, workers: int | None = None, answer: Answer = Answer()
) -> dict[str, Any]:
    """All steps that are not done yet, then the report."""
    from mixlab.data.cores import num_cores
    from mixlab.report import first_sentences, write_report
    from mixlab.studies.demo import TUNED, plan
    from mixlab.studies.steps import run_steps, wait_for_workers, worker_pool

    start = time.monotonic()
    directory = RunDirectory.create(folder)
    workers = workers or min(num_cores(), 4)
    steps = plan(folder, effort, seed=seed)
    with RunLock(directory.path):
        _agree(directory, effort, seed)
        wait_for_workers([folder / TUNED])
        console.print(
            f"In {effort.minutes} on two cores: trained networks (attention, Mamba, convolution) look at photographs, "
            "one of them learns drawn scenes while you watch, each is compared with an untrained twin, and the papers' "
            f"claims are checked. {len(steps)} steps, {workers} at a time, in {folder}. You can stop at any time; the "
            "same command resumes."
        )
        with worker_pool(workers) as pool:
            run_steps(steps, folder, pool, workers=workers, command="demo")
        page = write_report([folder], folder / "report.html", force=True)
    seconds = time.monotonic() - start
    found = first_sentences([folder])
    answer.line(f"Done in {seconds:.0f} s. What was found:")
    for sentence in found:
        answer.line(f"- {sentence}")
    answer.line(f"The report: open {page}")
    answer.line(f"Click on patches yourself: mixlab app {shlex.join([*effort.networks, str(folder / TUNED)])}")
    return {
        "run": str(folder),
        "report": str(page),
        "seconds": seconds,
        "found": found,
        "steps": [step.name for step in steps],
    }


def _agree(directory: RunDirectory, effort: DemoEffort, seed: int) -> None:
    """Check that a demo resumes with its own settings."""
    from mixlab.run.codec import to_json
    from mixlab.studies.steps import check_config_is_there

    check_config_is_there(directory.path)
    settings = {"seed": seed, **to_json(effort)}
    if (directory.path / "config.json").is_file():
        if directory.read_config().get("demo") != settings:
            raise InputError(
                f"{directory.path} holds something else than this demo (its config.json says so); "
                "give another --run, or remove that directory"
            )
        return
    directory.write_config({"demo": settings, **provenance(seed=seed)})
