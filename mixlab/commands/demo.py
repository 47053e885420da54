"""`mixlab demo`: the two papers in miniature, on drawn images and two CPU cores, ending with a report."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat
from mixlab.console import console, put
from mixlab.errors import InputError
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import RunLock

if TYPE_CHECKING:
    from mixlab.studies.demo import DemoEffort, DemoModel


def demo(
    answer: Flat[Answer] = Answer(), *, run: Path | None = None, quick: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Pretrain four small backbones with DINO, train one with labels, evaluate and analyse them, and write a report.

    About four minutes on two cores. If it is killed, the same command resumes it.

    Args:
        run: directory for runs, results and the report; default: demo, or demo-quick.
        quick: all stages with a few training steps, in under a minute: a check that everything runs.
        seed: seed of the weights, the order of images and their crops.
    """
    from mixlab.studies.demo import FULL, QUICK

    answer.check()
    folder = run or Path("demo-quick" if quick else "demo")
    return answer.emit(run_demo(folder, QUICK if quick else FULL, seed=seed))


def run_demo(
    folder: Path, effort: DemoEffort, *, seed: int, models: tuple[DemoModel, ...] = (), workers: int | None = None
) -> dict[str, Any]:
    """All stages that are not done yet, then the report."""
    from mixlab.report import write_report
    from mixlab.studies.demo import MODELS, plan
    from mixlab.studies.steps import run_steps, wait_for_workers, worker_pool
    from mixlab.training.cores import num_cores

    models = models or MODELS
    start = time.monotonic()
    directory = RunDirectory.create(folder)
    workers = workers or min(num_cores(), len(models))
    steps = plan(folder, effort, seed=seed, models=models)
    with RunLock(directory.path):
        _agree(directory, effort, seed)
        wait_for_workers([folder / model.label for model in models])
        console.print(
            f"Five ways to move information between tokens, each learnt and looked into: {len(steps)} steps, "
            f"{workers} at a time, in {folder}. You can stop at any time; the same command resumes."
        )
        with worker_pool(workers) as pool:
            run_steps(steps, folder, pool, workers=workers, command="demo")
        page = write_report([folder], folder / "report.html", force=True)
    seconds = time.monotonic() - start
    put(f"All in {seconds:.0f} s. The report: open {page}")
    runs = shlex.join(str(folder / model.label) for model in models)
    put(f"Look inside live: mixlab app {runs}")
    return {"run": str(folder), "report": str(page), "seconds": seconds, "steps": [step.name for step in steps]}


def _agree(directory: RunDirectory, effort: DemoEffort, seed: int) -> None:
    """Check that a demo resumes with its own settings."""
    from mixlab.studies.steps import check_config_is_there

    check_config_is_there(directory.path)
    settings = {"seed": seed, **vars(effort)}
    if (directory.path / "config.json").is_file():
        if directory.read_config().get("demo") != settings:
            raise InputError(
                f"{directory.path} holds something else than this demo (its config.json says so); "
                "give another --run, or remove that directory"
            )
        return
    directory.write_config({"demo": settings, **provenance(seed=seed)})
