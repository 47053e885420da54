"""Which implementation of the operations runs; decided by where the tensors are."""

import importlib.util

import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None  # a constant, so that torch.compile can trace the dispatch


def has_triton() -> bool:
    """Whether CUDA tensors can go through our Triton kernels on this machine."""
    return torch.cuda.is_available() and HAS_TRITON


def backend_name() -> str:
    """For people: what `mixlab models` and `mixlab bench` print."""
    if has_triton():
        return f"Triton kernels on {torch.cuda.get_device_name()}"
    return "plain torch on the CPU" if not torch.cuda.is_available() else "plain torch on the GPU (no Triton)"
