"""The CUDA C++ of the triangle on a CPU: compiled by the machine's own compiler, every thread a fiber."""

import ctypes
import mmap
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

import mixlab
from mixlab.ops.cuda.program import Argument, pack
from mixlab.ops.ssd import cuda_triangle

HERE = Path(__file__).parent
SOURCES = Path(mixlab.__file__).parent / "ops" / "ssd"
COMPILER = shutil.which("g++") or shutil.which("clang++")


class Order(IntEnum):
    """Which threads run ahead of others, as in cuda_on_cpu.h."""

    EVENLY = 0
    FIRST_AHEAD = 1
    LAST_AHEAD = 2


class EmulatedProgram:
    """As `mixlab.ops.cuda.program.Program`, on tensors of the CPU."""

    order = Order.EVENLY

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._run, self._set_order = getattr(library, name), library.set_order
        self.threads = getattr(library, f"{name}_threads")()
        self.shared_bytes = getattr(library, f"{name}_bytes")()

    def launch(self, grid: tuple[int, int], *arguments: Argument) -> None:
        held, places = pack(arguments)
        self._set_order(self.order)
        self._run(*grid, places)
        del held


@cache
def emulated_programs(blocks: int) -> tuple[EmulatedProgram, EmulatedProgram]:
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "triangle.so"
        options = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-DBLOCKS={blocks}", f"-I{SOURCES}"]
        subprocess.run([COMPILER, *options, str(HERE / "triangle_on_cpu.cpp"), "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))
    return EmulatedProgram(loaded, "forward"), EmulatedProgram(loaded, "backward")


@contextmanager
def emulation() -> Iterator[None]:
    with patch.object(cuda_triangle, "_loaded", lambda device, blocks: emulated_programs(blocks)):
        yield


@contextmanager
def fenced_tensors() -> Iterator[None]:
    """Inside, new tensors hold NaN and end where memory ends: what nobody wrote or nobody has cannot pass."""
    maps: list[mmap.mmap] = []
    plain_empty = torch.empty

    def fenced_empty(*shape: int | tuple[int, ...], dtype: torch.dtype | None = None, **_: object) -> Tensor:
        like = plain_empty(*shape, dtype=dtype, device="meta")  # type: ignore[call-overload]
        return fenced(like, maps).fill_(torch.nan)

    with patch.object(torch, "empty", fenced_empty):
        yield


def fenced(like: Tensor, maps: list[mmap.mmap]) -> Tensor:
    """A dense tensor of the same shape, directly before a page that must not be touched."""
    size = like.numel() * like.element_size()
    pages = -(-size // mmap.PAGESIZE) + 1
    area = mmap.mmap(-1, pages * mmap.PAGESIZE)
    maps.append(area)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    end = (pages - 1) * mmap.PAGESIZE
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(whole.data_ptr() + end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return whole[end - size : end].view(like.dtype).view(like.shape)
