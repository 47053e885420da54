"""What plain torch keeps of a Mamba-2 mixer for the backward pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mixlab.ops.mamba2 import op


def inputs(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads, width, state = 2, 16, 16
    inner, channels = heads * width, heads * width + 2 * state
    shapes = [(2, channels, 4), (2, channels), (2, heads), (2, heads), (2, heads), (2, inner), (24, inner)]
    projected = torch.randn(1, length, inner + channels + heads, generator=generator)
    return [projected, *(torch.randn(shape, generator=generator) / 4 for shape in shapes)]


def kept_bytes(run: Callable[[], Tensor]) -> tuple[int, Tensor]:
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    return sum(storages.values()), result


def test_a_long_input_is_kept_alone_and_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [t.requires_grad_() for t in inputs(500)]
    found = {}
    for limit in (10**9, 0):
        monkeypatch.setattr(op, "MAX_RECORDED", limit)
        kept, out = kept_bytes(lambda: op.mamba2(*leaves, head_dim=16, eps=1e-5))
        found[limit] = kept, torch.autograd.grad(out.square().sum(), leaves)
    (everything, expected), (little, gradients) = found.values()
    assert little < 0.1 * everything
    for gradient, other in zip(gradients, expected, strict=True):
        assert ((gradient - other).norm() / other.norm()).item() < 1e-5
