"""A progress bar that counts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CountingBar:
    """In place of `Machine.bar`: the totals that were announced, and how far each bar came."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.done: list[int] = []

    @contextmanager
    def __call__(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        self.totals.append(total)
        self.done.append(0)

        def step(count: int) -> None:
            self.done[-1] += count

        yield step
