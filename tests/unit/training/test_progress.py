"""What a person reads while a run goes on."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from mixlab.recipes import find_recipe
from mixlab.training.log import TrainingProgress
from mixlab.training.loop import train
from mixlab.training.settings import override


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


def test_the_curves_of_a_run_that_resumed_lack_no_point(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = ("steps=4", "batch=4", "model.dim=32", "model.depth=1", "optim.warmup_steps=0", "knn.every_epochs=0")
    often = ("log.every_steps=1", "checkpoint.every_steps=2", "log.tensorboard=true")
    config = override(find_recipe("supervised_vit_tiny64"), [*settings, *often])
    for _ in range(2):
        train(config, data="shapes:size=32,n=12", run=tmp_path, device="cpu")
        for file in (tmp_path / "checkpoints").glob("step-00000004.*"):
            file.unlink()
    curves = events.EventAccumulator(str(tmp_path / "tensorboard"))
    curves.Reload()
    assert [point.step for point in curves.Scalars("loss")] == [1, 2, 3, 4]
