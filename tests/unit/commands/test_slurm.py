"""`--launcher slurm`, with submitit's own executor for one machine in the place of a cluster."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import submitit
import torch
from safetensors.torch import load_file

from mixlab.cli import main
from mixlab.errors import InputError
from mixlab.evaluation.accuracy import write_accuracy
from mixlab.run.files import read_json
from mixlab.signals import StopRequests
from mixlab.training.slurm import SlurmConfig, Task, TrainingJob, free_of_clients, is_over
from tests.drawn_folders import draw_folders
from tests.faults.forked_jobs import start_controller
from tests.waiting import wait_for

QUICK = ("--set", "epochs=1", "--set", "batch=16", "--set", "knn.every_epochs=0")


@pytest.fixture(autouse=True)
def one_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Never the cluster that these tests may themselves run on; tasks of new interpreters: tests/faults. One thread, as
    jobs have: with others, sums are rounded in another way."""
    monkeypatch.setattr("mixlab.training.slurm.CLUSTER", "local")
    monkeypatch.setattr("submitit.local.local.start_controller", partial(start_controller, {}))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(data: Path, run: Path, *options: str) -> None:
    assert main(["train", "supervised_vit_tiny64", "--data", str(data), "--run", str(run), *QUICK, *options]) == 0


def send(data: Path, run: Path, device: str) -> submitit.LocalJob[None]:
    """Send the job as the command does, and wait until it has ended."""
    said = run.parent / "said.json"
    train(data, run, "--device", device, "--launcher", "slurm", "--slurm.gpus-per-node", "1", "--json", str(said))
    job = submitit.LocalJob[None](run / "slurm", read_json(said)["job"])
    wait_for(job.paths.result_pickle.exists, seen=lambda: f"The job never ended: {job.stderr()}")
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


def test_a_job_sent_again_still_knows_its_device_and_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[TrainingJob] = []

    def note(job: TrainingJob, asked: SlurmConfig) -> str:
        sent.append(job)
        return "1"

    monkeypatch.setattr("mixlab.training.slurm.submit", note)
    train(tmp_path, tmp_path / "run", "--device", "cpu", "--launcher", "slurm")
    Task.of(sent[0]).checkpoint().dump(tmp_path / "again.pkl")
    again: Any = submitit.helpers.DelayedSubmission.load(tmp_path / "again.pkl").function
    job = pickle.loads(again.folded)
    assert job == sent[0] and job.device == "cpu" and job.then is write_accuracy
    with pytest.raises(InputError, match="device 'cuda:99', but torch sees"):
        replace(job, device="cuda:99")(StopRequests())  # taken at its word


def asked_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, *options: str) -> str:
    """The job script that sbatch is given; sbatch is one of ours, which takes it and gives a number."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in (("srun", "exit 1"), ("sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 7")):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("mixlab.training.slurm.CLUSTER", "slurm")
    train(tmp_path, tmp_path / "run", "--device", device, "--launcher", "slurm", *options)
    return (tmp_path / "script").read_text()


def test_slurm_is_asked_to_warn_early_and_to_requeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = asked_of_slurm(tmp_path, monkeypatch, "auto", "--slurm.requeues", "7", "--slurm.hours", "3")
    for line in ("signal=USR2@120", "requeue", "gpus-per-node=8", "ntasks-per-node=8", "time=180"):
        assert f"#SBATCH --{line}\n" in script
    (stored,) = (tmp_path / "run" / "slurm").glob("*_submitted.pkl")
    assert submitit.helpers.DelayedSubmission.load(stored)._timeout_countdown == 7


def test_a_job_on_cpus_asks_for_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = asked_of_slurm(tmp_path, monkeypatch, "cpu", "--slurm.gpus-per-node", "2")
    assert "#SBATCH --ntasks-per-node=2\n" in script and "gpus-per-node" not in script


@pytest.mark.parametrize(("state", "over"), [("RUNNING", False), ("COMPLETING", True), ("CANCELLED", True)])
def test_a_job_that_was_cancelled_is_over_and_one_that_is_preempted_is_not(
    state: str, over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SLURM 22.05 says of a job in the grace time of a preemption, and after `scancel`."""
    assert not is_over()  # on no cluster at all
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho JobId=$4 JobName=mixlab JobState={state} Reason=None\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert is_over() == over


def test_a_task_can_be_loaded_without_torch_so_that_it_soon_listens(tmp_path: Path) -> None:
    """Until it is loaded, a signal would end it, and the job would not be sent again."""
    submitit.helpers.DelayedSubmission(Task(b"")).dump(tmp_path / "task.pkl")
    code = f"import pickle, sys; pickle.load(open({str(tmp_path / 'task.pkl')!r}, 'rb')); print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"


def test_without_submitit_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    call = ["train", "supervised_vit_tiny64", "--data", "shapes", "--run", str(tmp_path), "--launcher", "slurm"]
    assert main(call) == 1
    assert "install mixlab[slurm]" in " ".join(capsys.readouterr().err.split())


def test_ports_of_jobs_lie_below_those_of_connections_and_differ_from_job_to_job() -> None:
    ports = [free_of_clients(port) for port in range(20_000, 60_001)]  # what submitit chooses from
    assert min(ports) == 20_000 and max(ports) == 32_767
    assert len(set(ports)) == 12_768


def test_without_slurm_nothing_is_started_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mixlab.training.slurm.CLUSTER", "slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    run = tmp_path / "run"
    assert main(["train", "supervised_vit_tiny64", "--data", "shapes", "--run", str(run), "--launcher", "slurm"]) == 1
    assert "there is no srun on this machine; leave it out to train here" in capfd.readouterr().err
    assert not run.exists()
