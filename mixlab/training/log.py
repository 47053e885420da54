"""Metrics of a run: kept on the device, copied together, then logged to files and shown as progress."""

import hashlib
import importlib
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from torch import Tensor

from mixlab.errors import InputError, few
from mixlab.run.directory import RunDirectory
from mixlab.run.files import write_atomically
from mixlab.training.config import LogConfig
from mixlab.training.distributed import from_all, mean_over_ranks_

LINE_EVERY_S = 30.0  # where there is no terminal


class NonFiniteLoss(Exception):  # noqa: N818  it names the thing
    """The loss or a gradient is NaN or infinite since `step`; `indexes` are the images of the ranks where it began."""

    def __init__(self, step: int, indexes: list[int]) -> None:
        super().__init__(step, indexes)
        self.step, self.indexes = step, indexes

    def explain(self, name: Callable[[int], str], good_steps: Sequence[int]) -> str:
        """An error message with the names of the images, the last good checkpoint and what to try."""
        names = [name(index) for index in self.indexes]
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        good, again = "there is no checkpoint", "it starts anew"
        if good_steps:
            good, again = f"the last good checkpoint is that of step {good_steps[-1]}", "it resumes from there"
        if len(good_steps) > 1:
            again += (
                f" (where the same happens again, remove checkpoints/step-{good_steps[-1]:08d}.json: "
                f"it then resumes from step {good_steps[-2]})"
            )
        return (
            f"the loss or its gradient is not a finite number at step {self.step}; the batch holds {listed}; {good}. "
            "Look at these images, and run the same command with a lower optim.lr, with optim.clip=0.3 or with "
            f"precision=fp32: {again}"
        )


# What a row of metrics.jsonl has of every method.
TAKEN = ("step", "loss", "grad_norm", "epoch", "lr", "weight_decay", "images_per_s", "data_wait", "peak_memory_gib")


class MetricBuffer:
    """Collects the scalars of some steps; `fetch` waits for the device once for all of them."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, dict[str, Tensor], list[Tensor]]] = []

    def add(self, step: int, metrics: dict[str, Tensor], indexes: list[Tensor]) -> None:
        """`indexes` are those of the images in each pass."""
        if self._steps and (others := self._steps[0][1].keys() ^ metrics.keys()):
            raise InputError(
                f"steps {self._steps[0][0]} and {step} have different metrics: only one has {few(sorted(others))}; "
                "return the same metrics at every step"
            )
        self._steps.append((step, metrics, indexes))

    def fetch(self) -> dict[str, float]:
        """The mean of every metric since the last call, also over ranks; `NonFiniteLoss` for the first bad step."""
        if not self._steps:
            return {}
        steps, self._steps = self._steps, []
        names = list(steps[0][1])
        table = torch.stack([torch.stack([row[name].double() for name in names]) for _, row, _ in steps])
        own = table.cpu()
        shared = mean_over_ranks_(table).cpu()
        bad = (~shared[:, [names.index("loss"), names.index("grad_norm")]].isfinite()).any(1)
        if bad.any():
            first = int(bad.nonzero()[0])
            step, _, indexes = steps[first]
            raise NonFiniteLoss(step, _suspects(indexes, own[first, names.index("loss")].item()))
        return dict(zip(names, shared.mean(0).tolist(), strict=True))


def _suspects(indexes: list[Tensor], own_loss: float) -> list[int]:
    """The images of the ranks whose own loss went bad; all, where only the gradients did."""
    ours = torch.cat([part.cpu() for part in indexes]).tolist()
    everyone = from_all((math.isfinite(own_loss), ours))
    blamed = [index for fine, indexes in everyone if not fine for index in indexes]
    return blamed or [index for _, indexes in everyone for index in indexes]


class Journal:
    """metrics.jsonl, and tensorboard or wandb where wanted. Without a run directory (later ranks) it is silent.

    What tensorboard has of steps beyond `after`, which will be run again, is not shown any more. wandb takes no step
    twice, and keeps what it has of them: a run that resumes on the same machine gives the same numbers again.
    """

    def __init__(
        self, run: RunDirectory | None, config: LogConfig, *, settings: dict[str, Any], after: int = -1
    ) -> None:
        self.run = run
        self._board: Any = None
        self._wandb: Any = None
        if run is not None and config.tensorboard and importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run.path / "tensorboard"), purge_step=after + 1)
        if run is not None and config.wandb:
            if not importlib.util.find_spec("wandb"):
                raise InputError("log.wandb is set, but wandb is not installed; install mixlab[wandb] or leave it off")
            self._wandb = importlib.import_module("wandb").init(
                project="mixlab",
                name=run.path.name,
                dir=str(run.path),
                config=settings,
                id=_id_of(run),
                resume="allow",
                allow_val_change=True,  # a run may resume with other settings (`CURES`)
            )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.run is not None:
            self.run.append_metrics({"step": step, **metrics})
        if self._board is not None:
            try:
                for name, value in metrics.items():
                    self._board.add_scalar(name, value, step)
            except OSError as error:  # metrics.jsonl has it all
                warnings.warn(f"no more curves for TensorBoard: {error}", stacklevel=2)
                self._board = None
        if self._wandb is not None:
            self._wandb.log(dict(metrics), step=step)

    def close(self) -> None:
        if self._board is not None:
            with suppress(OSError):  # a full disk: what stopped the run says so
                self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _id_of(run: RunDirectory) -> str:
    """The same whenever a run resumes, and another for a later run in the same directory."""
    return hashlib.sha256(f"{run.path.resolve()} {run.read_config()['date']}".encode()).hexdigest()[:16]


def forget_after(run: RunDirectory, step: int, warn: Callable[[str], None] = lambda text: None) -> None:
    """Drop metrics of steps that will be run again, a truncated last line, and damaged ones, which `warn` counts."""
    place = run.path / "metrics.jsonl"
    if place.is_file():
        *lines, _ = place.read_bytes().split(b"\n")
        rows = list(run.read_metrics())
        if (damaged := sum(bool(line.strip()) for line in lines) - len(rows)) > 0:
            warn(f"{place} has {damaged} damaged line{'s' * (damaged > 1)}, left out; the run resumes")
        data = "".join(json.dumps(row) + "\n" for row in rows if row["step"] <= step).encode()
        write_atomically(place, lambda file: file.write(data), len(data))


class TrainingProgress:
    """Progress of the first rank; the others stay silent."""

    def __init__(self, *, total: int, done: int, enabled: bool, scores: Sequence[str] = ()) -> None:
        self.console = Console(stderr=True, quiet=not enabled)
        self.total = total
        self.names = ("loss", *scores, "images_per_s")
        self._first, self._started, self._last_line = done, time.monotonic(), -LINE_EVERY_S
        self._shown: dict[str, float] = {}
        self._last = ""
        self._bar = Progress(
            *bar_columns(self.console.width),
            console=self.console,
            disable=not (enabled and self.console.is_terminal),
        )
        self._task = self._bar.add_task("step", total=total, completed=done, metrics="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        if self._last and not self.console.is_terminal:
            self.say(self._last)

    def step(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def show(self, done: int, metrics: Mapping[str, float]) -> None:
        """The newest metrics; outside a terminal, a line every half minute and one at the end."""
        self._shown |= {name: metrics[name] for name in self.names if name in metrics}
        text = "  ".join(f"{name.replace('_per_s', '/s')} {value:.4g}" for name, value in self._shown.items())
        self._bar.update(self._task, metrics=" ".join(map(briefly, self._shown, self._shown.values())))
        now = time.monotonic()
        if done == self.total:
            self._last = f"step {done}/{self.total}  {text}"
        elif not self.console.is_terminal and now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            rate = (now - self._started) / (done - self._first) if done > self._first else None
            left = f"  {timedelta(seconds=round(rate * (self.total - done)))} left" if rate is not None else ""
            self.say(f"step {done}/{self.total}  {text}{left}")

    def say(self, text: str, *, style: str = "") -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def briefly(name: str, value: float) -> str:
    """A metric for a bar, which has to fit beside others."""
    shown = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{'kNN' if name == 'knn_accuracy' else name.replace('_per_s', '/s')} {shown}"


def bar_columns(width: int) -> tuple[ProgressColumn, ...]:
    """Of a training's progress. In a narrow terminal the bar gives way, and the time that has passed is left out."""
    whole = Column(no_wrap=True)
    return (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=whole),
        TextColumn("{task.fields[metrics]}"),
        *([TimeElapsedColumn(table_column=whole)] if width >= 100 else []),
        TextColumn("left"),
        TimeRemainingColumn(table_column=whole),
    )
