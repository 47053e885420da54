"""Tests that pass, fail, warn and kill their process, run by several processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

FIRST = """
import os, warnings
def test_passes(): warnings.warn("a word of warning")
def test_fails(): print("its last words"); assert 1 == 2
def test_dies(): os._exit(3)
def test_interrupts(): raise KeyboardInterrupt
def test_comes_after_it(): pass
"""
OTHER = """
import os, pytest
@pytest.fixture(scope="module")
def made(): return os.getpid()
@pytest.mark.parametrize("number", range(3))
def test_tests_of_a_file_share_their_fixtures(made, number): assert made == os.getpid()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_first.py").write_text(FIRST)
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text(OTHER)
    return tmp_path


def ran(folder: Path, *options: str) -> tuple[int, str]:
    """By an interpreter of its own, which knows nothing of the tests around it, nor whether it is CI that runs them."""
    plugins = ["-p", "tests.forked_workers", "-p", "no:cacheprovider", "-rN"]  # no summary: it says things again
    places = ["-c", os.devnull, "--rootdir", str(folder), "--basetemp", str(folder / "temporary"), str(folder)]
    alone = {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "pytest", *plugins, *options, *places]
    done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_every_test_is_reported_once_and_the_death_of_a_process_is_a_failure(folder: Path) -> None:
    code, said = ran(folder, "--verbose")
    assert code == 1, said
    assert "3 failed, 20 passed, 1 warning in" in said, said
    for words in (
        "\nits last words",
        "E   assert 1 == 2",
        "ended with code 3",
        "ended with code 1",
        "UserWarning: a word of warning",
    ):
        assert said.count(words) == 1, (words, said)
    assert len(re.findall(r"test_\w+\.py::\S+ (?:PASSED|FAILED)", said)) == 23, said


def test_the_first_failure_ends_all_where_that_is_asked_for(folder: Path) -> None:
    code, said = ran(folder, "--exitfirst")
    assert code == 1 and "1 failed" in said and "stopping after 1 failures" in said, said
