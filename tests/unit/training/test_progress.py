"""What a person reads while a run goes on."""

import io

import pytest
from rich.console import Console

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


def test_the_bar_cuts_no_number_in_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    progress = TrainingProgress(total=64_000, done=0, enabled=True, scores=("knn_accuracy", "accuracy"))
    progress.show(640, {"loss": 2.314, "knn_accuracy": 0.4781, "accuracy": 0.3602, "images_per_s": 1275.4})
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(progress._bar.get_renderable())
    shown = screen.export_text()
    assert "loss 2.31 kNN 0.478 accuracy 0.36 images/s 1,275 left" in shown and "…" not in shown, shown
