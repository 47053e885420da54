"""`--launcher slurm`: the same training as a SLURM job on many nodes, requeued when it is preempted or out of time."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mixlab.errors import InputError
from mixlab.signals import StopRequests

if TYPE_CHECKING:
    from mixlab.training.config import TrainConfig
    from mixlab.training.loop import Trainer

CLUSTER = "slurm"  # submitit would run the job on this machine where there is no SLURM
WARNING_S = 120  # seconds before time is up: a step, and a checkpoint on a busy file system

FIRST_PORT, FIRST_CLIENT_PORT = 20_000, 32_768


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """Resources to request from SLURM."""

    nodes: int = 1  # number of machines.
    gpus_per_node: int = 8  # GPUs per machine, with one process each; with --device cpu, processes per machine.
    cpus_per_gpu: int = 12  # cores per process.
    hours: int = 24  # time limit of the job; it is requeued when the time is up.
    requeues: int = 100  # how often it may be requeued when its time is up; preemption does not count.
    partition: str | None = None  # default: the cluster's default partition.
    account: str | None = None  # default: your default account.


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What the processes of a job do together."""

    config: TrainConfig
    data: str
    run: Path
    device: str | None
    name: str
    then: Callable[[Trainer], None] | None  # travels by its name: a function of a module

    def __call__(self, stop: StopRequests) -> None:
        from mixlab.training.loop import train

        given: dict[str, Any] = {"device": self.device, "name": self.name, "then": self.then, "stop": stop}
        train(self.config, data=self.data, run=self.run, **given)


def free_of_clients(port: int) -> int:
    """The same port on every task, below those that Linux gives to outgoing connections: one of them may be taken."""
    return FIRST_PORT + port % (FIRST_CLIENT_PORT - FIRST_PORT)


@dataclass(frozen=True)
class Task:
    """One process of a job. What it does travels folded up: importing takes seconds, in which no signal may be lost.

    Before time is up, and when the job is preempted, SLURM sends the signal that submitit asked for, SIGTERM, or both.
    Training saves and stops; then submitit's own handler calls `checkpoint` and sends what it returns again.
    """

    folded: bytes

    @classmethod
    def of(cls, job: TrainingJob) -> Self:
        return cls(pickle.dumps(job))

    def __call__(self) -> None:
        requeue = requeue_signal()
        with StopRequests((requeue,)) as stop:
            _submitit().helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
            os.environ["MASTER_PORT"] = str(free_of_clients(int(os.environ["MASTER_PORT"])))
            from mixlab.training.stopping import Stopped

            try:
                pickle.loads(self.folded)(stop)
                return
            except Stopped as stopped:
                print(stopped, flush=True)
                if stopped.number not in (requeue, signal.SIGTERM) or (os.environ["RANK"] == "0" and is_over()):
                    sys.exit(stopped.exit_code)
        send_again = signal.getsignal(requeue)
        for number in (requeue, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # once is enough
        assert callable(send_again)
        send_again(requeue, None)  # the first process leaves here
        sys.exit(0)  # the others without a result, and without a failure, which would end the first

    def checkpoint(self) -> Any:
        return _submitit().helpers.DelayedSubmission(self)


def is_over() -> bool:
    """Whether SLURM has ended this job. `scancel` sends SIGTERM as preemption does, but then the job is not running."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    said = subprocess.run(["scontrol", "show", "job", "--oneliner", job], capture_output=True, text=True, check=True)
    return "JobState=RUNNING" not in said.stdout


def requeue_signal() -> int:
    """The signal that submitit's environment variable names, or its default."""
    name = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")
    return signal.Signals[f"SIG{name.removeprefix('SIG')}"]


def submit(job: TrainingJob, config: SlurmConfig) -> str:
    """Send the job and return its number. Its output goes to RUN/slurm."""
    try:
        executor = _submitit().AutoExecutor(
            folder=job.run / "slurm", cluster=CLUSTER, slurm_max_num_timeout=config.requeues
        )
    except RuntimeError as error:
        raise InputError(
            "--launcher slurm needs SLURM, and there is no srun on this machine; leave it out to train here, or submit "
            "from a login node"
        ) from error
    asked = {"slurm_partition": config.partition, "slurm_account": config.account}
    executor.update_parameters(
        name="mixlab",
        nodes=config.nodes,
        tasks_per_node=config.gpus_per_node,
        gpus_per_node=config.gpus_per_node if job.device != "cpu" else None,
        cpus_per_task=config.cpus_per_gpu,
        timeout_min=config.hours * 60,
        slurm_signal_delay_s=WARNING_S,
        slurm_additional_parameters={"requeue": True},  # also where the cluster's default is not to
        **{key: value for key, value in asked.items() if value is not None},
    )
    return str(executor.submit(Task.of(job)).job_id)


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise InputError(
            "--launcher slurm needs submitit: install mixlab[slurm], or call torchrun in a job script"
        ) from error
