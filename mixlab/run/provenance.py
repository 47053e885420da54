"""The origin of a result: command, seed, versions and machine."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"  # where it is set, processes share a GPU


def program_name() -> str:
    """`mixlab` also where it was started as `python -m mixlab`."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def provenance(*, seed: int | None = None, device: str = "cpu") -> dict[str, Any]:
    """What to store beside a result; names the command as it was typed."""
    return {
        "command": shlex.join([program_name(), *sys.argv[1:]]),
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "device": device_name(device),
            "processor": processor_name(),
            "system": platform.platform(terse=True),
            **({"shares_gpu": True} if MPS_PIPES in os.environ else {}),
        },
        "versions": {name: _version(name) for name in ("mixlab", "torch", "timm", "numpy")},
        "commit": _commit(),
    }


def device_name(device: str) -> str:
    """A GPU by its own name: "cuda" and "auto" say little to a reader."""
    if not device.startswith(("cuda", "auto")):
        return device
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return str(torch.cuda.get_device_name(None if device == "auto" else device))


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        if names:
            return f"{names[0]}, {len(names)} cores"
    return platform.processor() or platform.machine()


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache  # the code that runs stays what it was when it was imported
def _commit() -> str | None:
    """The commit of a source checkout, with a mark if it was changed; elsewhere what MIXLAB_COMMIT says, or nothing."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return os.environ.get("MIXLAB_COMMIT")  # of a container, or of a copy on a cluster
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip()
