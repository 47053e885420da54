"""Processes that tests start by multiprocessing's "forkserver" are forks of one that has everything imported already.

Python would start that server as a new interpreter, which imports torch, timm and mixlab anew: seconds, for every
process that runs tests. Here it is a fork of the process that has collected the tests, before any test has run. It
ends as Python's own does, when nobody holds the other end of its pipe: no later than the tests.
"""

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker, set_forkserver_preload, util
from pathlib import Path
from unittest.mock import patch

import torch

_start_interpreter = util.spawnv_passfds


def start() -> None:
    """Fork the server now, while this process has no threads of its own."""
    resource_tracker.ensure_running()  # a process that stays as small as Python makes it
    set_forkserver_preload([])
    with patch.object(util, "spawnv_passfds", _fork):
        forkserver.ensure_running()


def _fork(program: bytes, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """In the place of a new interpreter that is told `-c CODE` and given some open files."""
    if child := os.fork():
        return child
    try:
        util.spawnv_passfds = _start_interpreter  # for what its children start
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))  # not pytest's
        _leave_others_files(kept)
        torch.set_num_threads(1)
        forkserver._forkserver._lock = threading.Lock()  # type: ignore[attr-defined]  # held while it forks
        exec(arguments[-1], {})
    except SystemExit:
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def _leave_others_files(kept: Sequence[int]) -> None:
    """Open files of the process that runs tests, such as its pipe to the one that counts them, become /dev/null."""
    place = Path("/proc/self/fd")
    opened = [int(file.name) for file in place.iterdir()] if place.is_dir() else []
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in {*opened} - {0, 1, 2, nothing, *kept}:
        os.dup2(nothing, number, inheritable=False)
