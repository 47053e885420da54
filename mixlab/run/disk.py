"""What a write says that failed for want of room: which file, how much it needs, how much there is, what to do."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mixlab.errors import WorkError

# Those that name no file themselves; NumPy's own has no number.
_FAILED_WRITES = (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
AGAIN = "make room and run the same command again"


@contextmanager
def naming_file(file: Path, num_bytes: int | None = None, way_out: str = AGAIN) -> Iterator[None]:
    """Around the writing of a file of so many bytes: where it fails, a `WorkError` names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FAILED_WRITES:
            raise
        free = ""
        with suppress(OSError):
            free = f"{in_units(shutil.disk_usage(file.parent).free)} are free in {file.parent}"
        needed = f"it needs {in_units(num_bytes)}" if num_bytes is not None else ""
        room = ", ".join(filter(None, (needed, free)))
        why = error.strerror or str(error)
        raise WorkError(f"{file} could not be written ({why}): {room}; {way_out}") from error


def check_free(file: Path, num_bytes: int, way_out: str = AGAIN) -> None:
    """Refuse to begin what ends in a file of so many bytes, in an existing folder that has less room."""
    disk = shutil.disk_usage(file.parent)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0  # for whom some of it is kept
    free = disk.total - disk.used if is_root else disk.free
    if num_bytes > free:
        room = f"it needs {in_units(num_bytes)}, {in_units(free)} are free in {file.parent}"
        raise WorkError(f"{file} would not fit: {room}; {way_out}")


def in_units(num_bytes: int) -> str:
    """Bytes as people read them: 512 bytes, 3.4 MB, 1.2 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
