"""`--launcher slurm`: the same training as a SLURM job on many nodes, requeued when it is preempted or out of time."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlab.errors import InputError

if TYPE_CHECKING:
    from mixlab.training.config import TrainConfig
    from mixlab.training.loop import Trainer


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """Resources to request from SLURM."""

    nodes: int = 1  # how many machines.
    gpus_per_node: int = 8  # GPUs of each, with one process each.
    cpus_per_gpu: int = 12  # cores of each process.
    hours: int = 24  # the longest time; the job is sent again when it is up.
    partition: str | None = None  # the cluster's own without it.
    account: str | None = None  # your own without it.


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What a task runs.

    Before time is up, and when the job is preempted, SLURM sends the signal that submitit asked for. Training saves and
    stops; then submitit's own handler calls `checkpoint` and sends what it returns again. SIGTERM, as of `scancel`,
    saves too, and the job is over.
    """

    config: TrainConfig
    data: str
    run: Path
    device: str | None
    name: str
    then: Callable[[Trainer], None] | None  # travels by its name: a function of a module

    def __call__(self) -> None:
        from mixlab.training.loop import train
        from mixlab.training.stopping import Stopped

        _submitit().helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        requeue = requeue_signal()
        given: dict[str, Any] = {
            "device": self.device,
            "name": self.name,
            "then": self.then,
            "also_stop_on": (requeue,),
        }
        try:
            train(self.config, data=self.data, run=self.run, **given)
        except Stopped as stopped:
            print(stopped, flush=True)
            if stopped.number != requeue:
                raise
            signal.raise_signal(requeue)

    def checkpoint(self) -> Any:
        return _submitit().helpers.DelayedSubmission(self)


def requeue_signal() -> int:
    """The signal that submitit's environment variable names, or its default."""
    name = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")
    return signal.Signals[f"SIG{name.removeprefix('SIG')}"]


def submit(job: TrainingJob, config: SlurmConfig) -> str:
    """Send the job and return its number. Its output goes to RUN/slurm."""
    executor = _submitit().AutoExecutor(folder=job.run / "slurm")
    asked = {"slurm_partition": config.partition, "slurm_account": config.account}
    executor.update_parameters(
        name="mixlab",
        nodes=config.nodes,
        tasks_per_node=config.gpus_per_node,
        gpus_per_node=config.gpus_per_node,
        cpus_per_task=config.cpus_per_gpu,
        timeout_min=config.hours * 60,
        **{key: value for key, value in asked.items() if value is not None},
    )
    return str(executor.submit(job).job_id)


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise InputError(
            "--launcher slurm needs submitit: install mixlab[slurm], or call torchrun in a job script"
        ) from error
