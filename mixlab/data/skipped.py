"""Samples that cannot be read: counted, named, and too many of them refused."""

from mixlab.errors import InputError, few

from .decode import UnreadableImage


class RemovedImage(UnreadableImage):
    """An image of an earlier list that is no longer there. It is left out like others, and does not count as one."""


class TooManyUnreadableError(InputError):
    """More of a source could not be read than the limit allows."""


class SkippedImages:
    """Counts and names what was skipped; raises `TooManyUnreadableError` above `limit`, a share of the source.

    A single one never does, however small the source is, unless the limit is zero.
    """

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
        if error.path in self.reasons or isinstance(error, RemovedImage):
            return False
        self.reasons[error.path] = error.reason
        if len(self.reasons) > max(self.limit * self.total, 1 if self.limit else 0):
            raise TooManyUnreadableError(
                f"{len(self.reasons)} of {self.total} images cannot be read, more than the limit of {self.limit:.2%}. "
                f"{self.summary()}. Repair or remove them, or raise the limit"
            )
        return True

    def summary(self) -> str:
        """One line for a log: how many, and the first few by name."""
        if not self.reasons:
            return "no image was skipped"
        return f"skipped {len(self)}: {few(f'{path} ({reason})' for path, reason in self.reasons.items())}"
