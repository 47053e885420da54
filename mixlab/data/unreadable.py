"""Files that cannot be read: a typed error, a counter with a limit, and reading around them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mixlab.errors import InputError

T = TypeVar("T")


class UnreadableImage(InputError):  # noqa: N818 - it names the thing
    """One file that is not a whole, decodable image (or mask)."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(str(path), reason)  # both as arguments, so that the error survives pickling between workers
        self.path = str(path)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class TooManyUnreadableError(InputError):
    """More of a source could not be read than the limit allows."""


class SkippedImages:
    """Counts and names what was skipped; raises `TooManyUnreadableError` above `limit`, a share of the source."""

    def __init__(self, total: int, limit: float = 0.01) -> None:
        if not 0.0 <= limit <= 1.0:
            raise InputError(f"limit {limit} is not a share; give a number from 0 (none) to 1 (all)")
        self.total = total
        self.limit = limit
        self.reasons: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, error: UnreadableImage) -> bool:
        """Count a file once; True if it is new."""
        if error.path in self.reasons:
            return False
        self.reasons[error.path] = error.reason
        if len(self.reasons) > self.limit * self.total:
            raise TooManyUnreadableError(
                f"{len(self.reasons)} of {self.total} images cannot be read, more than the limit of {self.limit:.2%}. "
                f"{self.summary()}. Repair or remove them, or raise the limit"
            )
        return True

    def summary(self, most: int = 5) -> str:
        """One line for a log: how many, and the first few by name."""
        if not self.reasons:
            return "no image was skipped"
        named = "; ".join(f"{path} ({reason})" for path, reason in list(self.reasons.items())[:most])
        rest = f"; and {len(self) - most} more" if len(self) > most else ""
        return f"skipped {len(self)}: {named}{rest}"

    def state_dict(self) -> dict[str, str]:
        return dict(self.reasons)

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.reasons = dict(state)


def read_first(data: str, load: Callable[[int], T], *, total: int, most: int) -> list[T]:
    """What the first numbers of a source give; those that cannot be read are skipped, and named."""
    found: list[T] = []
    skipped = SkippedImages(total=total, limit=1.0)
    for index in range(total):
        if len(found) >= most:
            break
        try:
            found.append(load(index))
        except UnreadableImage as error:
            skipped.add(error)
    if not found:
        raise InputError(f"{data!r} holds no image that can be read. {skipped.summary()}")
    if len(skipped):
        warnings.warn(skipped.summary(), stacklevel=2)
    return found
