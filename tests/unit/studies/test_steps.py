"""Steps in a few processes: one that fails ends the others, and none is left behind."""

import time
from pathlib import Path

import pytest

from mixlab.studies.steps import Step, run_step, run_steps, worker_pool

ENDLESS = ("epochs=100000", "model.dim=32", "model.depth=2", "batch=16", "log.every_steps=1", "knn.every_epochs=0")


def test_a_step_that_fails_stops_the_others_which_save(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = tuple(part for setting in ENDLESS for part in ("--set", setting))
    training = ("pretrain", "dino_vit_tiny64", "--data", "shapes:n=64", "--run", str(run), "--device", "cpu", *settings)
    fails = Step(
        "twin", "twin", "of no run", ("twin", str(tmp_path / "no run"), str(tmp_path / "x"), "0"), tmp_path / "never"
    )
    with pytest.raises(RuntimeError, match="twin failed: .*there is no file"), worker_pool(2) as pool:
        pool.submit(run_step, training, tmp_path / "log.txt", 1, "test")
        until = time.monotonic() + 60
        while not (run / "metrics.jsonl").is_file():
            assert time.monotonic() < until, "training did not begin"
            time.sleep(0.1)
        processes = list((pool._processes or {}).values())
        run_steps([fails], tmp_path, pool, workers=1, command="test")
    assert not any(process.is_alive() for process in processes)
    assert list((run / "checkpoints").iterdir()), "what was trained is lost"
