"""Many tensors, each times its own factor, in place: a kernel for CUDA tensors, else plain torch."""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from mixlab.ops.cuda.program import Program, compile_program
from mixlab.ops.cuda.trusted import Trusted, drawing, largest_error
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
    dense = [runs_kernel(tensor, factors) for tensor in tensors]
    if any(dense):
        with torch.cuda.device_of(factors):
            _launch(tensors, factors, dense)
    if others := [place for place, is_dense in enumerate(dense) if not is_dense]:
        reference.scale_each_([tensors[place] for place in others], torch.stack([factors[place] for place in others]))


def runs_kernel(tensor: Tensor, factors: Tensor) -> bool:
    """The one dispatch: whether a kernel scales this one of the tensors."""
    dense = tensor.is_contiguous() and factors.is_contiguous() and tensor.device == factors.device
    fits = dense and tensor.dtype == factors.dtype == torch.float32
    return fits and _scaling_runs(factors.device)


def _launch(tensors: Sequence[Tensor], factors: Tensor, dense: Sequence[bool]) -> None:
    for first in range(0, len(tensors), TENSORS):
        some = tensors[first : first + TENSORS]
        counts = [t.numel() * is_dense for t, is_dense in zip(some, dense[first:], strict=False)]  # none of the others
        ends = list(accumulate(-(-count // NUMBERS) for count in counts))
        many = _Many(
            (ctypes.c_void_p * TENSORS)(*(t.data_ptr() for t in some)),
            (ctypes.c_longlong * TENSORS)(*counts),
            (ctypes.c_int * TENSORS)(*ends, *[ends[-1]] * (TENSORS - len(some))),
        )
        if ends[-1]:
            _loaded(factors.device.index).launch((ends[-1], 1), many, factors[first:])


@cache
def _loaded(device: int) -> Program:
    """On the current device."""
    code = compile_scaling(capability=torch.cuda.get_device_capability(device))
    return Program(NAME, code, threads=THREADS, shared_bytes=0)


def compile_scaling(*, capability: tuple[int, int]) -> bytes:
    return compile_program(NAME, [SOURCE], capability=capability)


def worst_error(device: torch.device) -> float:
    """The largest relative error for more tensors than one launch takes, some empty, some of several programs."""
    draw, sizes = drawing(0, device), [37 * (n % 5) ** 4 for n in range(TENSORS + 4)]
    tensors, factors = [draw(size) for size in sizes], draw(len(sizes)).abs().clamp(min=0.1, max=1)
    expected = [t.cpu().double() * factor for t, factor in zip(tensors, factors.cpu(), strict=True)]
    _launch(tensors, factors, [True] * len(tensors))
    return largest_error(*([t for t in some if t.numel()] for some in (tensors, expected)))


_scaling_runs = Trusted("products of tensors and factors", worst_error)
