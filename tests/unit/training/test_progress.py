"""What a person reads while a run goes on."""

import io
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def train_and_resume(run: Path, log: str) -> None:
    """Four steps, and the last two of them again."""
    settings = ("steps=4", "batch=4", "model.dim=32", "model.depth=1", "optim.warmup_steps=0", "knn.every_epochs=0")
    often = ("log.every_steps=1", "checkpoint.every_steps=2", log)
    config = override(find_recipe("supervised_vit_tiny64"), [*settings, *often])
    for _ in range(2):
        train(config, data="shapes:size=32,n=12", run=run, device="cpu")
        for file in (run / "checkpoints").glob("step-00000004.*"):
            file.unlink()


def test_the_curves_of_a_run_that_resumed_lack_no_point(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train_and_resume(tmp_path, "log.tensorboard=true")
    curves = events.EventAccumulator(str(tmp_path / "tensorboard"))
    curves.Reload()
    assert [point.step for point in curves.Scalars("loss")] == [1, 2, 3, 4]


def test_a_run_that_resumes_goes_to_its_own_curves_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []
    wandb = SimpleNamespace(log=lambda metrics, step: None, finish=lambda: None)
    module = SimpleNamespace(__spec__=ModuleSpec("wandb", None), init=lambda **about: begun.append(about) or wandb)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("one", "other"):
        train_and_resume(tmp_path / name / "run", "log.wandb=true")
    ids = [about["id"] for about in begun]
    assert ids[0] == ids[1] != ids[2] == ids[3] and {about["resume"] for about in begun} == {"allow"}
