"""Programs in CUDA C++, compiled when they are first needed by the compiler that torch brings along (NVRTC).

So nothing is built when mixlab is installed, and no compiler is needed. Files are joined as they are given, so that
each may use what the ones before it define.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

INSTRUCTIONS = Path(__file__).with_name("instructions.cuh")
SHARED_BYTES_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
Argument = Tensor | int | ctypes.Structure


class CompileError(RuntimeError):
    """The compiler or the driver did not take a program; what it said."""


def compile_program(name: str, sources: Sequence[Path], *, capability: tuple[int, int], **numbers: int) -> bytes:
    """The machine code of sources for GPUs of a compute capability, with `numbers` defined; needs no GPU."""
    compiler = _nvrtc()
    text = "\n".join(f'#line 1 "{path.name}"\n{path.read_text(encoding="utf-8")}' for path in (INSTRUCTIONS, *sources))
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    options += [f"-D{key}={number}" for key, number in numbers.items()]
    program = ctypes.c_void_p()
    _check(compiler.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None))
    try:
        wanted = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if compiler.nvrtcCompileProgram(program, len(options), wanted):
            raise CompileError(_read(compiler, program, "ProgramLog").decode(errors="replace").strip("\0\n"))
        return _read(compiler, program, "CUBIN")
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


class Program:
    """A compiled program on the current device, which launches it from any thread."""

    def __init__(self, name: str, code: bytes, *, threads: int, shared_bytes: int) -> None:
        self.threads, self.shared_bytes = threads, shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        driver = _driver()
        self._context = ctypes.c_void_p()
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), torch.cuda.current_device()))
        _check(driver.cuCtxSetCurrent(self._context))
        _check(driver.cuModuleLoadData(ctypes.byref(self._module), code))
        _check(driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode()))
        _check(driver.cuFuncSetAttribute(self._function, SHARED_BYTES_ATTRIBUTE, shared_bytes))

    def launch(self, grid: tuple[int, int], *arguments: Argument) -> None:
        """On the current stream. Numbers are passed as 64 bits, tensors as where they begin."""
        held, places = pack(arguments)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        size = (*grid, 1, self.threads, 1, 1)
        _check(_driver().cuCtxSetCurrent(self._context))  # autograd's threads have none before torch launches something
        _check(_driver().cuLaunchKernel(self._function, *size, self.shared_bytes, stream, places, None))
        del held


def aligned(tensor: Tensor) -> Tensor:
    """Dense, and beginning where 16 bytes do: a part of a larger tensor may not."""
    dense = tensor.contiguous()
    return dense.clone() if dense.data_ptr() % 16 else dense


def as_numbers(parameter: Tensor) -> Tensor:
    """The same in float32: a network as a whole may be in bfloat16."""
    return aligned(parameter.float())


def pack(arguments: Sequence[Argument]) -> tuple[list[Any], ctypes.Array[ctypes.c_void_p]]:
    """Arguments as the driver wants them: what must live until it has read them, and where each lies."""
    held = [_passed(argument) for argument in arguments]
    return held, (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held))


def _passed(argument: Argument) -> ctypes.c_void_p | ctypes.c_longlong | ctypes.Structure:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_longlong(argument) if isinstance(argument, int) else argument


def _read(compiler: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(compiler, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(compiler, f"nvrtcGet{what}")(program, text))
    return text.raw


def _check(result: int) -> None:
    if result:
        raise CompileError(f"CUDA answered with error {result}")


@cache
def _driver() -> ctypes.CDLL:
    return _library("libcuda.so.1")


@cache
def _nvrtc() -> ctypes.CDLL:
    """The library of torch's CUDA: in its own package, or in another that torch has put on the path."""
    version = (torch.version.cuda or "none").split(".")[0]
    name = f"libnvrtc.so.{version}"
    site = Path(torch.__file__).parent.parent / "nvidia"
    return _library(name, *site.glob(f"*/lib/{name}"))


def _library(*names: str | Path) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(str(name))
        except OSError:
            continue
    raise CompileError(f"{names[0]} is not installed")
