"""Several small trainings on one GPU: under CUDA's MPS their kernels run beside each other, else they take turns."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
PATIENCE_S = 10.0
TRIAL_S = 60.0


@contextlib.contextmanager
def shared_gpu() -> Iterator[bool]:
    """MPS for the processes that start within, where the machine has it and no one set it up; yields whether it has.

    Nothing depends on it but speed: whatever goes wrong, processes take turns.
    """
    if shutil.which(CONTROL) is None or PIPES in os.environ:
        yield PIPES in os.environ
        return
    place = Path(tempfile.gettempdir()) / f"mixlab-mps-{os.getuid()}"
    ours = {PIPES: str(place), "CUDA_MPS_LOG_DIRECTORY": str(place)}
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
    running = _says("get_server_list", ours)  # left by a study that was killed
    started = not running and _starts(ours)
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
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(tried, env={**os.environ, **environment}, capture_output=True, timeout=TRIAL_S)
        return done.returncode == 0
    return False


def _starts(environment: dict[str, str]) -> bool:
    return _control(["-d"], "", environment)


def _says(command: str, environment: dict[str, str]) -> bool:
    return _control([], f"{command}\n", environment)


def _control(arguments: list[str], text: str, environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            [CONTROL, *arguments],
            input=text,
            env={**os.environ, **environment},
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
