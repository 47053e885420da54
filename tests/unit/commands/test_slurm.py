"""`--launcher slurm`, with submitit's own executor for one machine in the place of a cluster."""

import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import submitit
import torch
from safetensors.torch import load_file

from mixlab.cli import main
from mixlab.evaluation.accuracy import write_accuracy
from mixlab.recipes import RECIPES
from mixlab.run.directory import read_json
from mixlab.training.settings import override
from mixlab.training.slurm import SlurmConfig, TrainingJob
from mixlab.training.stopping import Stopped
from mixlab.training.update import Update
from tests.drawn_folders import draw_folders

QUICK = ("--set", "epochs=1", "--set", "batch=16", "--set", "knn.every_epochs=0")


@pytest.fixture(autouse=True)
def one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the cluster that these tests may themselves run on."""
    monkeypatch.setattr(submitit.AutoExecutor, "which", staticmethod(lambda: "local"))


def train(data: Path, run: Path, *options: str) -> None:
    assert main(["train", "supervised_vit_tiny64", "--data", str(data), "--run", str(run), *QUICK, *options]) == 0


def send(data: Path, run: Path, device: str) -> submitit.LocalJob[None]:
    """Send the job as the command does, and wait until it has ended."""
    said = run.parent / "said.json"
    train(data, run, "--device", device, "--launcher", "slurm", "--slurm.gpus-per-node", "1", "--json", str(said))
    job = submitit.LocalJob[None](run / "slurm", read_json(said)["job"])
    end = time.monotonic() + 240
    while not job.paths.result_pickle.exists():
        assert time.monotonic() < end, f"the job never ended: {job.stderr()}"
        time.sleep(0.1)
    return job


def test_a_job_trains_and_then_scores_as_the_command_does_here(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    train(photos, tmp_path / "here", "--device", "cpu")
    send(photos, tmp_path / "sent", "cpu").result()
    here, sent = (read_json(tmp_path / run / "results" / "accuracy.json") for run in ("here", "sent"))
    assert sent["score"] == here["score"]
    assert sent["measurements"][0]["n"] == len(list((photos / "val").rglob("*.png")))
    ours, theirs = (load_file(tmp_path / run / "weights.safetensors") for run in ("sent", "here"))
    assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]


def test_a_job_takes_the_device_at_its_word(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    with pytest.raises(submitit.core.utils.FailedJobError, match="device 'cuda:99', but torch sees"):
        send(photos, tmp_path / "sent", "cuda:99").result()


def test_a_job_sent_again_still_knows_its_device_and_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[TrainingJob] = []

    def note(job: TrainingJob, asked: SlurmConfig) -> str:
        sent.append(job)
        return "1"

    monkeypatch.setattr("mixlab.training.slurm.submit", note)
    train(tmp_path, tmp_path / "run", "--device", "cpu", "--launcher", "slurm")
    sent[0].checkpoint().dump(tmp_path / "again.pkl")
    again: Any = submitit.helpers.DelayedSubmission.load(tmp_path / "again.pkl").function
    assert again == sent[0] and again.device == "cpu" and again.then is write_accuracy


@pytest.mark.parametrize(("number", "sent_again"), [(signal.SIGUSR2, True), (signal.SIGTERM, False)])
def test_a_job_that_slurm_preempts_saves_first_and_is_then_sent_again(
    number: int, sent_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGUSR2 is what submitit asks SLURM for; SIGTERM alone is `scancel`."""
    monkeypatch.setattr(submitit.helpers, "TorchDistributedEnvironment", Mock())
    recipe = override(RECIPES["supervised_vit_tiny64"](), ["model.dim=16", "model.depth=1", "batch=8", "epochs=9"])
    job = TrainingJob(config=recipe, data="shapes:n=8", run=tmp_path, device="cpu", name="", then=None)
    saved_when_sent: list[list[str]] = []

    def requeue(*_: object) -> None:  # submitit's handler, which interrupts whatever runs
        saved_when_sent.append([file.name for file in (tmp_path / "checkpoints").glob("*.json")])

    def interrupt(self: Update, *given: Any) -> dict[str, torch.Tensor]:
        os.kill(os.getpid(), signal.SIGTERM)  # preemption sends both
        os.kill(os.getpid(), number)
        return step(self, *given)

    step = Update.__call__
    monkeypatch.setattr(Update, "__call__", interrupt)
    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        with nullcontext() if sent_again else pytest.raises(Stopped, match="SIGTERM after step 1, which is saved"):
            job()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert saved_when_sent == ([["step-00000001.json"]] if sent_again else [])


def test_without_submitit_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    call = ["train", "supervised_vit_tiny64", "--data", "shapes", "--run", str(tmp_path), "--launcher", "slurm"]
    assert main(call) == 1
    assert "install mixlab[slurm]" in " ".join(capsys.readouterr().err.split())
