"""`mixlab demo`: trained networks opened up, one of them trained further, on two CPU cores, ending with a report."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat
from mixlab.console import console
from mixlab.run import RunDirectory
from mixlab.run.lock import RunLock

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
    from mixlab.run.codec import to_json
    from mixlab.studies.demo import TUNED, plan
    from mixlab.studies.steps import keep_settings, run_steps
    from mixlab.studies.workers import wait_for_workers, worker_pool

    start = time.monotonic()
    directory = RunDirectory.create(folder)
    workers = workers or min(num_cores(), 4)
    steps = plan(folder, effort, seed=seed)
    with RunLock(directory.path):
        keep_settings(directory, {"seed": seed, **to_json(effort)}, under="demo")
        wait_for_workers([folder / TUNED])
        console.print(
            f"This takes {effort.minutes} on two cores. Trained networks (attention, Mamba, convolution) process "
            "photographs, one of them is fine-tuned on drawn scenes, each is compared with an untrained twin, and the "
            f"papers' claims are checked. {len(steps)} steps, {workers} at a time, in {folder}. You can stop at any "
            "time; run the same command again to resume."
        )
        with worker_pool(workers) as pool:
            run_steps(steps, folder, pool, workers=workers, command="demo")
        page = write_report([folder], folder / "report.html", force=True)
    seconds = time.monotonic() - start
    found = first_sentences([folder])
    answer.line(f"Done in {seconds:.0f} s. What was found:")
    for sentence in found:
        answer.line(f"- {sentence}")
    answer.line(f"Open the report: {page}")
    answer.line(f"To click on patches yourself, run: mixlab app {shlex.join([*effort.networks, str(folder / TUNED)])}")
    return {
        "run": str(folder),
        "report": str(page),
        "seconds": seconds,
        "found": found,
        "steps": [step.name for step in steps],
    }
