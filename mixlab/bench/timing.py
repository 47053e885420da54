"""Timing: whole calls on any device; on a GPU also kernels, CUDA graphs, and the peak bandwidth and FLOP/s."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from mixlab.console import console

Row = dict[str, Any]
CPU = torch.device("cpu")
PEER_SECONDS = 60.0  # that a peer may take for one row, its compilation and tuning included


def measured(row: Row) -> Row:
    """Show a row as soon as it is there; the tables come at the end."""
    parts = (f"{key.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{key.replace('_', ' ')} {value}"
             for key, value in row.items() if value not in (None, ""))  # fmt: skip
    console.print("measured: " + ", ".join(parts))
    return row


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError out of what takes longer, where signals can reach it: in the main thread, not on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call_seconds(
    run: Callable[[], object], *, repeats: int = 3, calls: int = 1, warm_up: int = 1, device: torch.device = CPU
) -> list[float]:
    """Seconds of one call in each of some repeats, as a mean over `calls` in a row; peak memory counts from here."""
    for _ in range(warm_up):
        run()
    synchronise(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        synchronise(device)
        times.append((time.perf_counter() - start) / calls)
    return times


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def training_pass(model: nn.Module, images: Tensor) -> Callable[[], None]:
    """One forward and backward pass, on a GPU under bf16 autocast; gradients are written over, as after a step."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=images.is_cuda):
            loss = model(images).float().square().mean()
        loss.backward()

    return step


def kernel_ms(run: Callable[[], object], *, repeats: int = 10) -> float:
    """Milliseconds that the GPU is busy in one call: the sum over its kernels, launches left out."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / repeats / 1e3


def wall_ms(run: Callable[[], object], *, repeats: int = 20) -> float:
    """Milliseconds of one call as a program sees it, the median of several."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def graph_ms(run: Callable[[], object]) -> float:
    """Milliseconds of one call replayed from a CUDA graph: what is left when launches cost nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return wall_ms(graph.replay)


def copy_bandwidth() -> float:
    """Bytes per second that a large copy moves, read and written."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (kernel_ms(lambda: target.copy_(source)) / 1e3)


def matrix_rate() -> float:
    """Floating-point operations per second of a large bf16 matrix product on random data."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / (kernel_ms(lambda: a @ b) / 1e3)
