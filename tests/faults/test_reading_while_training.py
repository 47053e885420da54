"""The promise: a run can be read while it trains, even when it keeps a single checkpoint."""

import signal
import warnings
from pathlib import Path

from fault_processes import Group, last_logged, only_all, wait_for
from small_runs import pretraining

from mixlab.evaluation.target import load_target
from mixlab.run import RunDirectory

READS = 60


@only_all
def test_a_run_that_saves_at_every_step_can_be_loaded_at_any_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saving = ("steps=100000", "checkpoint.every_steps=1", "checkpoint.keep=1", "knn.every_epochs=0")
    group = Group(pretraining(run, "data.workers=0", *saving), tmp_path / "log.txt")
    try:
        wait_for(lambda: last_logged(run) > 1)
        steps = set()
        for _ in range(READS):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                target = load_target(str(run), device="cpu")
            assert target.training == "dino" and all(value.isfinite().all() for value in target.backbone.parameters())
            assert all("is not finished: these are the weights of step" in str(each.message) for each in said)
            steps.add(str(said[-1].message).split("step ")[1].split()[0])
            assert [row["step"] for row in RunDirectory(run).read_metrics()]
        assert len(steps) > READS // 4, "it hardly trained meanwhile"
    finally:
        group.signal(signal.SIGTERM)
        assert group.codes() == [143], group.said
