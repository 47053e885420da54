"""Steps in a few processes: one that fails ends the others, and none is left behind."""

import time
from pathlib import Path

import pytest

from mixlab.commands.steps import Step, run_steps, worker_pool

SMALL = (
    "model.dim=32",
    "model.depth=2",
    "batch=16",
    "checkpoint.every_steps=1000",
    "log.every_steps=1",
    "knn.every_epochs=0",
)


def test_a_step_that_fails_stops_the_others_which_save(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = (part for setting in SMALL for part in ("--set", setting))
    train = Step(
        "train", "train", "long", ("pretrain", "dino_vit_tiny64", "--data", "shapes:n=64", "--run", str(run), "--set",
        "epochs=100000", "--device", "cpu", *settings), run / "weights.safetensors", trains=run,
    )  # fmt: skip
    fails = Step("wait", "wait", "until it trains", ("twin", str(tmp_path / "no run"), "x", "0"), tmp_path / "never")
    processes = []
    start = time.monotonic()

    def once_it_trains() -> None:
        while not (run / "metrics.jsonl").is_file():
            assert time.monotonic() < start + 60, "training did not begin"
            time.sleep(0.1)

    with pytest.raises(RuntimeError, match="wait failed: .*there is no file"), worker_pool(2) as pool:
        busy = pool.submit(run_slowly, train, tmp_path)
        once_it_trains()
        processes += (pool._processes or {}).values()
        run_steps([fails], tmp_path, pool, workers=1, command="test")
    assert not any(process.is_alive() for process in processes)
    assert busy.cancelled() or busy.done()
    assert list((run / "checkpoints").iterdir()), "what was trained is lost"


def run_slowly(step: Step, folder: Path) -> int:
    from mixlab.commands.steps import run_step

    return run_step(step.arguments, folder / "log.txt", 1, "test")
