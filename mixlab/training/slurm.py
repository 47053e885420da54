"""`--launcher slurm`: the same training as a SLURM job on many nodes, requeued when it is preempted."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixlab.errors import InputError
from mixlab.training.config import TrainConfig
from mixlab.training.loop import Trainer, train


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
    """What a task runs. submitit calls `checkpoint` before time is up and sends what it returns again."""

    config: TrainConfig
    data: str
    run: Path
    device: str | None
    name: str
    then: Callable[[Trainer], None] | None  # travels by its name: a function of a module

    def __call__(self) -> None:
        _submitit().helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        train(self.config, data=self.data, run=self.run, device=self.device, name=self.name, then=self.then)

    def checkpoint(self) -> Any:
        return _submitit().helpers.DelayedSubmission(self)


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
