"""What a person reads while a run goes on."""

import pytest

from mixlab.training.log import TrainingProgress


def test_the_last_line_is_printed_once_with_all_its_metrics(capfd: pytest.CaptureFixture[str]) -> None:
    progress = TrainingProgress(total=4, done=0, enabled=True, scores=("knn_accuracy",))
    with progress:
        progress.show(2, {"loss": 3.0})
        progress.show(4, {"loss": 2.0})
        progress.show(4, {"knn_accuracy": 0.5})
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("step 4/4")] == ["step 4/4  loss 2  knn_accuracy 0.5"]
    assert len(lines) == 2 and lines[0].startswith("step 2/4  loss 3")
