"""What a person sees: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S = 30.0


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
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (enabled and self.console.is_terminal),
        )
        self._task = self._bar.add_task("step", total=total, completed=done, figures="")

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()
        if self._last and not self.console.is_terminal:
            self.say(self._last)

    def step(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def show(self, done: int, figures: Mapping[str, float]) -> None:
        """The newest figures; off a terminal, a line every half minute and, once it is complete, the last."""
        self._shown |= {name: figures[name] for name in self.names if name in figures}
        text = "  ".join(f"{name.replace('_per_s', '/s')} {value:.4g}" for name, value in self._shown.items())
        self._bar.update(self._task, figures=text)
        now = time.monotonic()
        if done == self.total:
            self._last = f"step {done}/{self.total}  {text}"
        elif not self.console.is_terminal and now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            rate = (now - self._started) / (done - self._first) if done > self._first else None
            left = f"  {_duration(rate * (self.total - done))} left" if rate is not None else ""
            self.say(f"step {done}/{self.total}  {text}{left}")

    def say(self, text: str, *, style: str = "") -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
