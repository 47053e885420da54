"""What this machine has to offer: a device to run on, and cores."""

from __future__ import annotations

import os
import re

import torch

from mixlab.errors import InputError


def choose_device(text: str | None = "auto") -> torch.device:
    """`auto`, or None, is a GPU where there is one; `cpu`, `cuda` and `cuda:N` are taken at their word."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text is None or text == "auto":
        return torch.device("cuda" if num_gpus else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise InputError(f"device {text!r} does not exist; choose auto, cpu, cuda or cuda:N")
    device = torch.device(text)
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        seen = f"{num_gpus} GPU{'s' * (num_gpus > 1)} here, counted from 0" if num_gpus else "no GPU here"
        raise InputError(f"device {text!r}, but torch sees {seen}; leave it out or give --device cpu")
    return device


def make_current(device: torch.device) -> None:
    """Kernels of Triton are launched on the current GPU, wherever their tensors are."""
    if device.index is not None:
        torch.cuda.set_device(device)


def num_cores() -> int:
    """Those that this process may use; all of them where the system does not say (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
