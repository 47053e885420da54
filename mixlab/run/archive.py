"""Archives of run directories, for publishing: the same runs always give the same bytes."""

import io
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from mixlab.errors import InputError, WorkError
from mixlab.run.directory import RunDirectory
from mixlab.run.disk import naming_file
from mixlab.run.files import write_atomically

SUFFIX = ".tar.xz"
PUBLISHED_RUNS = f"runs{SUFFIX}"  # of a published study: this file beside its report.html and README.md
MOST_FILES, MOST_BYTES = 20_000, 2**30  # an archive with more is not unpacked


def write_archive(folder: Path, archive: Path) -> Path:
    """Pack all files below `folder` under its name: sorted, without times, owners or permissions."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as tar:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            entry = tarfile.TarInfo(file.relative_to(folder.parent).as_posix())
            content = file.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    write_atomically(archive, lambda file: file.write(packed.getvalue()))
    return archive


@contextmanager
def unpacked(place: Path) -> Iterator[Path]:
    """The run directory at `place`; that of an archive or of a published study is unpacked until the context ends."""
    published = place / PUBLISHED_RUNS
    if published.is_file() and not RunDirectory(place).exists():
        place = published
    if not place.is_file():
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="mixlab-") as folder:
        _unpack(place, Path(folder))
        held = sorted(Path(folder).iterdir())
        if len(held) != 1 or not held[0].is_dir():
            names = ", ".join(path.name for path in held) or "nothing"
            raise InputError(f"{place} holds {names}; an archive of runs holds one folder with all of them")
        yield held[0]


def _unpack(archive: Path, folder: Path) -> None:
    """Plain files alone, and none outside of `folder`."""
    num_bytes = 0
    try:
        with tarfile.open(archive, mode="r:xz") as tar:
            for number, entry in enumerate(tar):
                if entry.isdir():
                    continue
                num_bytes += entry.size
                if number >= MOST_FILES or num_bytes > MOST_BYTES:
                    raise InputError(
                        f"{archive} holds more than {MOST_FILES:,} files or {MOST_BYTES / 2**30:g} GiB; "
                        "unpack it yourself, and name the folder"
                    )
                name = PurePosixPath(entry.name)
                if not entry.isreg() or name.is_absolute() or ".." in name.parts:
                    raise InputError(f"{archive} holds {entry.name!r}, a link or a file outside; it is not unpacked")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(entry)
                assert source is not None  # of a regular file there is one
                with naming_file(target, entry.size):
                    target.write_bytes(source.read())
    except (InputError, WorkError):
        raise
    except Exception as error:  # damaged archives make tarfile and lzma fail in many ways
        raise InputError(
            f"{archive} is not an archive of runs ({error}); give a run directory or a {SUFFIX} file"
        ) from error
