"""The kernels under Triton's interpreter take long and need nothing of the tests. Where all tests are run, they begin
before these are collected, since a core has nothing to do then."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock

begun = pytest.StashKey[subprocess.Popen[bytes]]()
PROGRAM = Path(__file__).parent / "unit" / "ops" / "interpreted_kernels.py"


def begin(config: pytest.Config) -> None:
    if config.args_source is config.ArgsSource.TESTPATHS and not (config.option.keyword or config.option.collectonly):
        config.stash[begun] = subprocess.Popen([sys.executable, __file__, _folder_of(config)])


def outcome(config: pytest.Config) -> str:
    """What the program prints. It runs once, for whoever comes first; a failure, for whoever asks."""
    return _outcome(_folder_of(config))


def _outcome(folder: Path) -> str:
    printed = folder / "interpreted kernels.txt"
    with FileLock(f"{printed}.lock"):
        if not printed.is_file():
            done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            printed.write_text(done.stdout)
    return printed.read_text()


def _folder_of(config: pytest.Config) -> Path:
    """One for all processes that run tests."""
    return Path(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


if __name__ == "__main__":
    with suppress(AssertionError):
        _outcome(Path(sys.argv[1]))
