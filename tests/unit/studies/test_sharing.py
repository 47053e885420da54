"""MPS around a study: set up where it can be, left alone where it is, never in the way."""

import os
from pathlib import Path

import pytest

from mixlab.run.provenance import MPS_PIPES
from mixlab.studies.shared_gpu import CONTROL, shared_gpu

DAEMON = """#!/bin/sh
# Answers as the control program does: commands fail until `-d` has made a daemon, `quit` ends it.
state={folder}/daemon
if [ "$1" = "-d" ]; then [ {starts} = 0 ] && echo "$CUDA_MPS_PIPE_DIRECTORY" > $state; exit {starts}; fi
read command; echo "$command" >> {folder}/said
[ -f $state ] || exit 1
[ "$command" = quit ] && rm $state
exit 0
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control program of our own, first in the path: there is no GPU here, and a real one serves all users of one."""
    monkeypatch.delenv(MPS_PIPES, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    return tmp_path / CONTROL


def write(control: Path, *, starts: int = 0, reaches: bool = True) -> None:
    """What a process that tries the GPU finds is said here, too."""
    python = control.parent / "python"
    python.write_text(f"#!/bin/sh\nexit {0 if reaches else 1}\n")
    python.chmod(0o755)
    control.write_text(DAEMON.format(folder=control.parent, starts=starts))
    control.chmod(0o755)


def test_it_is_started_for_the_processes_within_and_ended_after_them(control: Path) -> None:
    write(control)
    with shared_gpu() as shared:
        assert shared and (control.parent / "daemon").read_text().strip() == os.environ[MPS_PIPES]
    assert MPS_PIPES not in os.environ and not (control.parent / "daemon").exists()


def test_one_that_a_killed_study_left_is_used_and_stays(control: Path) -> None:
    write(control)
    (control.parent / "daemon").touch()
    with shared_gpu() as shared:
        assert shared and MPS_PIPES in os.environ
    assert (control.parent / "daemon").exists()


def test_one_that_someone_set_up_is_left_alone(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(control)
    monkeypatch.setenv(MPS_PIPES, "/theirs")
    with shared_gpu() as shared:
        assert shared and os.environ[MPS_PIPES] == "/theirs"
    assert os.environ[MPS_PIPES] == "/theirs" and not (control.parent / "said").exists()


def test_without_it_or_where_it_fails_nothing_happens(control: Path) -> None:
    with shared_gpu() as shared:
        assert not shared
    write(control, starts=1)
    with shared_gpu() as shared:
        assert not shared and MPS_PIPES not in os.environ
    write(control, reaches=False)
    with shared_gpu() as shared:
        assert not shared and MPS_PIPES not in os.environ, "a GPU that cannot be reached that way"
    assert not (control.parent / "daemon").exists(), "a daemon that is of no use was left"
