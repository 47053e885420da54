"""CUDA's MPS, under which kernels of several processes run side by side on one GPU."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mixlab.run.provenance import MPS_PIPES

CONTROL = "nvidia-cuda-mps-control"
PATIENCE_S = 10.0  # for the control program
TRIAL_S = 60.0


@contextmanager
def shared_gpu() -> Iterator[bool]:
    """MPS for the processes that start within, where the machine has it and no one set it up; yields whether it has.

    Nothing depends on it but speed: whatever goes wrong, processes take turns.
    """
    if shutil.which(CONTROL) is None or MPS_PIPES in os.environ:
        yield MPS_PIPES in os.environ
        return
    place = Path(tempfile.gettempdir()) / f"mixlab-mps-{os.getuid()}"
    ours = {MPS_PIPES: str(place), "CUDA_MPS_LOG_DIRECTORY": str(place)}
    with suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
    running = _says("get_server_list", ours)  # left by a study that was killed
    started = not running and _succeeds([CONTROL, "-d"], ours, timeout_s=PATIENCE_S, text="")
    shared = (running or started) and _works(ours)
    if shared:
        os.environ |= ours
    try:
        yield shared
    finally:
        if shared:
            for name in ours:
                os.environ.pop(name, None)
        if started:
            _says("quit", ours)


def _works(environment: dict[str, str]) -> bool:
    """Whether a process reaches the GPU that way: some containers let the daemon start, and nothing else."""
    tried = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
    return _succeeds(tried, environment, timeout_s=TRIAL_S)


def _says(command: str, environment: dict[str, str]) -> bool:
    return _succeeds([CONTROL], environment, timeout_s=PATIENCE_S, text=f"{command}\n")


def _succeeds(command: list[str], environment: dict[str, str], *, timeout_s: float, text: str | None = None) -> bool:
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "text": True, "input": text}
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, timeout=timeout_s, **streams)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
