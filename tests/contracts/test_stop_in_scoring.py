"""The promise: a stop that comes while the network is scored ends the scoring at once, and nothing is lost by it."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mixlab.recipes import RECIPES
from mixlab.training import live_scores
from mixlab.training.loop import Trainer, train
from mixlab.training.settings import override
from mixlab.training.stopping import Stopped

DATA = "shapes:size=32,n=48"
SETTINGS = ["epochs=2", "batch=16", "data.size=32", "model.dim=32", "model.depth=2", "model.image=32",
            "model.drop_path=0.2", "method.num_prototypes=32", "method.hidden=16", "method.bottleneck=8",
            "method.num_local=2", "method.global_size=32", "method.local_size=16", "checkpoint.keep=99",
            "checkpoint.every_steps=1000", "knn.every_epochs=1", "knn.bank=48", "knn.queries=48"]  # fmt: skip
LAST = 6
pytestmark = pytest.mark.usefixtures("one_thread")


def run(folder: Path, then: Callable[[Trainer], None] | None = None) -> None:
    config = override(RECIPES["dino_vit_tiny64"](), SETTINGS)
    train(config, data=DATA, run=folder, device="cpu", name="dino_vit_tiny64", then=then)


def scored_steps(folder: Path) -> list[int]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "knn_accuracy" in row]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return folder


@pytest.mark.parametrize(("scoring", "step"), [(1, 0), (2, 3), (3, LAST)])
def test_a_signal_while_scoring_saves_and_stops_and_the_run_goes_on_to_the_same_bits(
    scoring: int, step: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def signal_then_cut(images: torch.Tensor, size: int) -> torch.Tensor:
        looks.append(len(images))
        if len(looks) == 2 * scoring - 1:  # each scoring looks at a bank and at queries
            os.kill(os.getpid(), signal.SIGTERM)
        return cut_middle(images, size)

    cut_middle = live_scores.cut_middle
    monkeypatch.setattr(live_scores, "cut_middle", signal_then_cut)
    with pytest.raises(Stopped, match=f"stopped by SIGTERM after step {step}, which is saved"):
        run(tmp_path)
    assert len(looks) == 2 * scoring - 1, "it went on scoring"
    assert (tmp_path / "checkpoints" / f"step-{step:08d}.json").is_file()
    assert not (tmp_path / "weights.safetensors").exists()
    monkeypatch.undo()
    run(tmp_path)
    assert scored_steps(tmp_path) == scored_steps(whole) == [0, 3, LAST]
    for file in (f"checkpoints/step-{LAST:08d}.safetensors", "weights.safetensors"):
        ours, theirs = load_file(tmp_path / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def test_the_last_checkpoint_is_written_before_the_last_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []

    def look(self: live_scores.KnnScores, *_: object) -> Iterator[live_scores.Score]:
        there.append((tmp_path / "checkpoints" / f"step-{LAST:08d}.json").is_file())
        yield "knn_accuracy", 0.5

    monkeypatch.setattr(live_scores.KnnScores, "__call__", look)
    run(tmp_path)
    assert there == [False, False, True]


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_what_comes_after_training_can_be_interrupted(handler, tmp_path: Path) -> None:
    """Also where a shell started the program in the background, with SIGINT ignored."""

    def interrupt(trainer: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(Stopped, match="stopped by SIGINT"):
            run(tmp_path, then=interrupt)
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)
    judged: list[int] = []
    run(tmp_path, then=lambda trainer: judged.append(trainer.step))
    assert judged == [LAST]
