"""Many tensors, each times its own factor, in place: a kernel for CUDA tensors, else plain torch."""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from mixlab.ops.cuda.program import Program, compile_program
from mixlab.ops.cuda.trusted import Trusted
from mixlab.ops.scale_each import reference

SOURCE = Path(__file__).with_name("scale_each.cu")
NAME = "scale_each"
TENSORS, NUMBERS, THREADS = 128, 4096, 256  # of a launch, of a program, as there


class _Many(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_void_p * TENSORS),
        ("numbers", ctypes.c_longlong * TENSORS),
        ("end", ctypes.c_int * TENSORS),
    ]


def scale_each_(tensors: Sequence[Tensor], factors: Tensor) -> None:
    """tensors[i] *= factors[i], on a GPU in one launch for 128 tensors; what has the factor 1 is not even read."""
    if runs_kernel(tensors, factors):
        with torch.cuda.device_of(factors):
            _launch(tensors, factors)
    else:
        reference.scale_each_(tensors, factors)


def runs_kernel(tensors: Sequence[Tensor], factors: Tensor) -> bool:
    """The one dispatch: whether a kernel scales all of them."""
    fits = all(t.dtype == torch.float32 and t.device == factors.device and t.is_contiguous() for t in tensors)
    return fits and factors.dtype == torch.float32 and factors.is_contiguous() and _scaling_runs(factors.device)


def _launch(tensors: Sequence[Tensor], factors: Tensor) -> None:
    for first in range(0, len(tensors), TENSORS):
        some = tensors[first : first + TENSORS]
        ends = list(accumulate(-(-t.numel() // NUMBERS) for t in some))
        many = _Many(
            (ctypes.c_void_p * TENSORS)(*(t.data_ptr() for t in some)),
            (ctypes.c_longlong * TENSORS)(*(t.numel() for t in some)),
            (ctypes.c_int * TENSORS)(*ends, *[ends[-1]] * (TENSORS - len(some))),
        )
        if ends[-1]:
            _loaded(factors.device.index).launch((ends[-1], 1), many, factors[first:])


@cache
def _loaded(device: int) -> Program:
    """On the current device."""
    has = torch.cuda.get_device_properties(device)
    return Program(NAME, compile_scaling(capability=(has.major, has.minor)), threads=THREADS, shared_bytes=0)


def compile_scaling(*, capability: tuple[int, int]) -> bytes:
    return compile_program(NAME, [SOURCE], capability=capability)


def worst_error(device: torch.device) -> float:
    """The largest relative error for more tensors than one launch takes, some empty, some of several programs."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(37 * (n % 5) ** 4, generator=generator).to(device) for n in range(TENSORS + 4)]
    factors = torch.rand(len(tensors), generator=generator).clamp(min=0.1, max=0.5).mul_(2).to(device)
    expected = [t.cpu() * factor for t, factor in zip(tensors, factors.cpu(), strict=True)]
    _launch(tensors, factors)
    pairs = zip(tensors, expected, strict=True)
    errors = [(one.cpu() - other).norm() / other.norm() for one, other in pairs if other.numel()]
    return float(torch.stack(errors).nan_to_num(torch.inf).max())


_scaling_runs = Trusted("products of tensors and factors", worst_error)
