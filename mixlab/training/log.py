"""Figures of a run: held on the device until they are asked for, then written for people and for programs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.run.directory import RunDirectory, write_aside
from mixlab.training.config import LogConfig
from mixlab.training.distributed import from_all, mean_over_ranks_


class NonFiniteLoss(Exception):  # noqa: N818  it names the thing
    """The loss or a gradient is NaN or infinite since `step`; `indexes` are the images of the ranks where it began."""

    def __init__(self, step: int, indexes: list[int]) -> None:
        super().__init__(step, indexes)
        self.step, self.indexes = step, indexes

    def explain(self, name: Callable[[int], str], good_steps: Sequence[int]) -> str:
        """In words, with the names of the images, the last good checkpoint and what to try."""
        names = [name(index) for index in self.indexes]
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        good = (
            f"the last good checkpoint is of step {good_steps[-1]}"
            if good_steps
            else "no checkpoint was written before"
        )
        return (
            f"the loss or its gradient is not a finite number at step {self.step}; the batch holds {listed}; {good}. "
            "Look at these images, lower optim.lr, clip gradients (optim.clip=0.3) or use precision=fp32"
        )


@dataclass
class _Step:
    step: int
    figures: dict[str, Tensor]
    indexes: list[Tensor]  # of the images in each pass


class FigureBuffer:
    """Collects the scalars of some steps; `fetch` waits for the device once for all of them."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []

    def add(self, step: int, figures: dict[str, Tensor], indexes: list[Tensor]) -> None:
        self._steps.append(_Step(step, figures, indexes))

    def fetch(self) -> dict[str, float]:
        """The mean of every figure since the last time, over ranks too; `NonFiniteLoss` for the first bad step."""
        if not self._steps:
            return {}
        steps, self._steps = self._steps, []
        names = list(steps[0].figures)
        rows = [torch.stack([step.figures[name].double() for name in names]) for step in steps]
        table = torch.stack(rows)  # (steps, names)
        own = table.cpu()
        shared = mean_over_ranks_(table).cpu()
        bad = (~shared[:, [names.index("loss"), names.index("grad_norm")]].isfinite()).any(1)
        if bad.any():
            first = int(bad.nonzero()[0])
            own_loss = own[first, names.index("loss")].item()
            raise NonFiniteLoss(steps[first].step, _suspects(steps[first], own_loss))
        return dict(zip(names, shared.mean(0).tolist(), strict=True))


def _suspects(step: _Step, own_loss: float) -> list[int]:
    """The images of the ranks whose own loss went bad; all, where only the gradients did."""
    ours = torch.cat([part.cpu() for part in step.indexes]).tolist()
    everyone = from_all((math.isfinite(own_loss), ours))
    blamed = [index for fine, indexes in everyone if not fine for index in indexes]
    return blamed or [index for _, indexes in everyone for index in indexes]


class Journal:
    """metrics.jsonl, and tensorboard or wandb where wanted. Without a run directory (later ranks) it is silent."""

    def __init__(self, run: RunDirectory | None, config: LogConfig, *, settings: dict[str, Any], step: int) -> None:
        self.run = run
        self._board: Any = None
        self._wandb: Any = None
        if run is not None and config.tensorboard and importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run.path / "tensorboard"), purge_step=step)
        if run is not None and config.wandb:
            if not importlib.util.find_spec("wandb"):
                raise InputError("log.wandb is set, but wandb is not installed; install mixlab[wandb] or leave it off")
            service: Any = importlib.import_module("wandb")
            self._wandb = service.init(project="mixlab", name=run.path.name, dir=str(run.path), config=settings)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        if self.run is not None:
            self.run.append_metrics({"step": step, **figures})
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(figures), step=step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def forget_after(run: RunDirectory, step: int) -> None:
    """Drop figures of steps that will be run again, and a line that a kill cut short."""
    if (run.path / "metrics.jsonl").is_file():
        kept = [row for row in run.read_metrics() if row.get("step", 0) <= step]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        write_aside(run.path / "metrics.jsonl", lambda file: file.write(text.encode()))
