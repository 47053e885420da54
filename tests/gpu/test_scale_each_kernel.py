"""Many tensors, each times its own factor, on a GPU: the bits of torch, launched or replayed."""

import torch

from mixlab.ops.scale_each.op import runs_kernel, scale_each_
from mixlab.ops.scale_each.reference import scale_each_ as scale_by_torch
from mixlab.training.optim import clip_each_


def drawn() -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = [(1,), (3, 5), (768, 768), (64,), (1, 7), (12_289,)] * 50
    tensors = [torch.randn(*size, generator=generator, device="cuda") for size in sizes]
    whole = torch.randn(1001, generator=generator, device="cuda")
    factors = torch.rand(len(tensors) + 1, generator=generator, device="cuda").mul_(2).clamp_(max=1)
    return [*tensors, whole[1:]], factors


def test_every_tensor_is_scaled_as_by_torch() -> None:
    tensors, factors = drawn()
    expected = [t.clone() for t in tensors]
    assert all(runs_kernel(tensor, factors) for tensor in tensors)
    tensors[2], expected[2] = tensors[2].mT, expected[2].mT
    scale_each_(tensors, factors)
    scale_by_torch(expected, factors)
    assert all(torch.equal(one, other) for one, other in zip(tensors, expected, strict=True))


def test_a_replayed_graph_scales_what_is_there_then() -> None:
    tensors, factors = drawn()
    kept = [t.clone() for t in tensors]
    clip_each_(tensors, 3.0)  # so that nothing is compiled while it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale_each_(tensors, factors)
    for tensor, value in zip(tensors, kept, strict=True):
        tensor.copy_(value)
    factors.mul_(0.5)
    graph.replay()
    scale_by_torch(kept, factors)
    assert all(torch.equal(one, other) for one, other in zip(tensors, kept, strict=True))
