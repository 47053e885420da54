"""Programs in CUDA C++ on a CPU: compiled by the machine's own compiler, every thread a fiber."""

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
from mixlab.ops.scale_each import op as scale_each
from mixlab.ops.short_conv import cuda_short_conv
from mixlab.ops.ssd import cuda_steps, cuda_triangle

HERE = Path(__file__).parent
SOURCES = Path(mixlab.__file__).parent / "ops"
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
        self._run, self._set_order = getattr(library, f"run_{name}"), library.set_order
        self.threads = getattr(library, f"{name}_threads")()
        self.shared_bytes = getattr(library, f"{name}_bytes")()

    def launch(self, grid: tuple[int, int], *arguments: Argument) -> None:
        held, places = pack(arguments)
        self._set_order(self.order)
        self._run(*grid, places)
        del held


@cache
def _compiled(file: str, **numbers: int) -> ctypes.CDLL:
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "programs.so"
        options = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-I{SOURCES}"]
        options += [f"-D{name}={number}" for name, number in numbers.items()]
        subprocess.run([COMPILER, *options, str(HERE / file), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


def triangle_program(name: str, device: int | None, blocks: int) -> EmulatedProgram:
    return EmulatedProgram(_compiled("triangle_on_cpu.cpp", BLOCKS=blocks), name)


def march_program(device: int | None, directions: int, values: int, keys: int, token_bytes: int) -> EmulatedProgram:
    sizes = {"DIRECTIONS": directions, "VALUES": values, "KEYS": keys, "X_TOKEN": token_bytes}
    return EmulatedProgram(_compiled("short_conv_on_cpu.cpp", **sizes), cuda_short_conv.NAME)


def steps_program(device: int | None, length: int, directions: int, heads: int) -> EmulatedProgram:
    sizes = {"LENGTH": length, "DIRECTIONS": directions, "HEADS_OF_ONE": heads}
    return EmulatedProgram(_compiled("steps_on_cpu.cpp", **sizes), cuda_steps.NAME)


def scaling_program(device: int | None) -> EmulatedProgram:
    return EmulatedProgram(_compiled("scale_each_on_cpu.cpp"), scale_each.NAME)


@contextmanager
def emulation() -> Iterator[None]:
    with (
        patch.object(cuda_triangle, "_loaded", triangle_program),
        patch.object(cuda_triangle, "convolved_triangles_run", lambda *_: True),
        patch.object(cuda_short_conv, "_loaded", march_program),
        patch.object(cuda_short_conv, "marches_run", lambda *_: True),
        patch.object(cuda_steps, "_loaded", steps_program),
        patch.object(scale_each, "_loaded", scaling_program),
        patch.object(cuda_steps, "steps_run", lambda *_: True),
    ):
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
