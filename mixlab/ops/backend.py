"""Which implementation of the operations runs; decided by where the tensors are."""

import importlib.util
import warnings
from functools import cache

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None  # a constant, so that torch.compile can trace the dispatch
MIN_CAPABILITY = (8, 0)  # the first with matrix products in bfloat16 and TF32
SHARED_BYTES = 101_376  # of a program: what the smallest GPUs of that capability have, 8.6, 8.9 and 12.0


def kernels_run(tensor: Tensor, *, shared_bytes: int = SHARED_BYTES) -> bool:
    """Whether kernels with so much shared memory run where a tensor of this dtype lives.

    Warns, once, of a GPU on which plain torch must do instead.
    """
    return tensor.is_cuda and HAS_TRITON and _runs(tensor.device.index, tensor.dtype, shared_bytes)


def obstacle(device: int, dtype: torch.dtype, shared_bytes: int) -> str | None:
    """Why a GPU cannot run the kernels; None if it can."""
    if not torch.cuda.is_available():  # a fake tensor: nothing will run
        return None
    if torch.version.hip:
        return "the kernels are written for NVIDIA GPUs"
    has = torch.cuda.get_device_properties(device)
    if (has.major, has.minor) < MIN_CAPABILITY:
        return f"its compute capability {has.major}.{has.minor} is below {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}"
    if (has.major, has.minor) == (10, 3) and dtype == torch.float32:
        return "Triton miscompiles float32 products on it (triton issue 10821); bfloat16 runs on kernels"
    if has.shared_memory_per_block_optin < shared_bytes:
        return f"a program needs {shared_bytes:,} bytes of shared memory and gets {has.shared_memory_per_block_optin:,}"
    return None


@torch.compiler.assume_constant_result
def _runs(device: int, dtype: torch.dtype, shared_bytes: int) -> bool:
    return _runs_or_warns(device, dtype, shared_bytes)


@cache
def _runs_or_warns(device: int, dtype: torch.dtype, shared_bytes: int) -> bool:
    why = obstacle(device, dtype, shared_bytes)
    if why is not None:
        name = torch.cuda.get_device_name(device)
        warnings.warn(f"plain torch instead of kernels for {dtype} on {name}: {why}", stacklevel=2)
    return why is None


def backend_name() -> str:
    """For people: what `mixlab models` and `mixlab bench` print."""
    if not torch.cuda.is_available():
        return "plain torch on the CPU"
    if not HAS_TRITON:
        return "plain torch on the GPU (no Triton)"
    why = obstacle(torch.cuda.current_device(), torch.bfloat16, SHARED_BYTES)
    name = torch.cuda.get_device_name()
    return f"Triton kernels on {name}" if why is None else f"plain torch on {name} ({why})"
