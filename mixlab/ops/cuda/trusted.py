"""Which programs in CUDA C++ run on a GPU and compute what they should: compilers have got kernels wrong before."""

import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from mixlab.ops.backend import obstacle
from mixlab.ops.cuda.program import CompileError

MAX_ERROR = 0.05  # of a program that is not broken: 3e-3 is usual, more where sums cancel


class Trusted:
    """Programs are held against plain torch once for each size and GPU; a warning says why others must do instead.

    `worst_error(*size, device)` is their largest relative error there, `shared_bytes(*size)` what they need.
    """

    def __init__(
        self, what: str, worst_error: Callable[..., float], *, shared_bytes: Callable[..., int] = lambda *size: 0
    ) -> None:
        self.what, self.worst_error, self.shared_bytes = what, worst_error, shared_bytes
        self._verdicts: dict[tuple[torch.device, *tuple[int, ...]], bool] = {}

    def __call__(self, device: torch.device, *size: int) -> bool:
        if device.type != "cuda" or not torch.cuda.is_available():  # of a fake tensor: nothing will run
            return False
        if (device, *size) not in self._verdicts:
            if torch.cuda.is_current_stream_capturing():
                return False  # nothing can be compiled or checked now
            with ThreadPoolExecutor(1) as fresh:  # a thread without autocast, tracing and modes of torch
                self._verdicts[device, *size] = fresh.submit(self._found_right, device, *size).result()
        return self._verdicts[device, *size]

    def _found_right(self, device: torch.device, *size: int) -> bool:
        if obstacle(device.index, torch.bfloat16, self.shared_bytes(*size)) is not None:
            return False
        try:
            with torch.cuda.device(device):
                error = self.worst_error(*size, device)
            why = None if error < MAX_ERROR else f"their error is {error:.2g}"
        except CompileError as failure:
            why = str(failure)
        if why is not None:
            warnings.warn(f"{self.what.format(*size)} run on other kernels: {why}", stacklevel=2)
        return why is None


def drawing(seed: int, device: torch.device) -> Callable[..., Tensor]:
    """Draws tensors of given sizes, in float32 whatever torch's default is."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float32).to(device)


def largest_error(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Of norms relative to those in float64 on the CPU; infinite where a number is none."""
    pairs = zip(found, expected, strict=True)
    errors = [(one.cpu().double() - other).norm() / other.norm() for one, other in pairs]
    return float(torch.stack(errors).detach().nan_to_num(torch.inf).max())
