"""Fused linear attention on the GPU against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mixlab
from mixlab.ops.linear_attention import op, reference
from tests.tolerances import TOLERANCES, relative_error


def random_qkv(batch: int, length: int, heads: int, width: int, dtype: torch.dtype, *, scale: float = 1.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(length)
    return (scale * torch.randn(batch, length, 3 * heads * width, generator=generator, device="cuda")).to(dtype)


def output_and_gradient(attention, qkv: Tensor, dout: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    leaf = qkv.detach().requires_grad_()
    out = attention(leaf, head_dim=width)
    return out, *torch.autograd.grad(out, leaf, dout)


def check(qkv: Tensor, *, width: int) -> None:
    assert op.runs_kernels(qkv, head_dim=width)
    generator = torch.Generator("cuda").manual_seed(1)
    dout = torch.randn(*qkv.shape[:2], qkv.shape[2] // 3, generator=generator, device="cuda").to(qkv.dtype)
    results = output_and_gradient(op.softmax_linear_attention, qkv, dout, width=width)
    exact = output_and_gradient(reference.softmax_linear_attention, qkv.double(), dout.double(), width=width)
    assert relative_error(results[0], exact[0]) < TOLERANCES[qkv.dtype]
    if qkv.shape[1] == 1:  # alone, a token is its own average: only v has a gradient
        inner = qkv.shape[2] // 3
        assert results[1][..., : 2 * inner].abs().max() < 1e-2
        results, exact = (tuple(t[..., -inner:] for t in pair) for pair in (results, exact))
    for part, (one, other) in enumerate(zip(results[1].chunk(3, -1), exact[1].chunk(3, -1), strict=True)):
        error = relative_error(one, other)
        assert error < TOLERANCES[qkv.dtype], f"the gradient of part {part} is off by {error:.1e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [1, 2, 38, 63, 64, 65, 197, 1025])
def test_the_kernels_give_the_reference_and_the_gradient(length: int, dtype: torch.dtype, poisoned: None) -> None:
    check(random_qkv(16, length, 4, 64, dtype), width=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("batch", "length"), [(1, 600), (2, 4097)])
def test_few_images_with_many_tokens_are_cut_into_spans(
    batch: int, length: int, dtype: torch.dtype, poisoned: None
) -> None:
    from mixlab.ops.linear_attention.triton_linear_attention import _spans  # there is no Triton on every machine

    tile = 32 if dtype == torch.float32 else 64
    assert _spans(batch * 4, length, tile)[0] > 1
    check(random_qkv(batch, length, 4, 64, dtype), width=64)


@pytest.mark.parametrize("width", [16, 32])
def test_all_widths_of_heads_agree(width: int, poisoned: None) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(random_qkv(16, 50, 3, width, dtype), width=width)


@settings(max_examples=12, deadline=None)
@given(length=st.integers(2, 300), heads=st.integers(1, 6), width=st.sampled_from([16, 32, 64]))
def test_random_shapes_agree(length: int, heads: int, width: int) -> None:
    check(random_qkv(48, length, heads, width, torch.float32), width=width)


def test_large_scores_stay_finite_and_exact() -> None:
    check(random_qkv(16, 198, 4, 64, torch.float32, scale=30.0), width=64)


def test_heads_too_wide_for_the_kernels_run_on_plain_torch() -> None:
    qkv = random_qkv(64, 100, 3, 128, torch.bfloat16)
    assert not op.runs_kernels(qkv, head_dim=128)
    assert op.softmax_linear_attention(qkv, head_dim=128).isfinite().all()


def test_the_operators_pass_torchs_own_check() -> None:
    qkv = random_qkv(16, 20, 3, 16, torch.float32).requires_grad_()
    torch.library.opcheck(op._attention.registered, (qkv, 16))


def test_a_model_compiles_without_a_graph_break_and_agrees() -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("linearvit_tiny", dim=64, depth=2, patch=8, image=64, head_dim=16).cuda()
    images = torch.randn(16, 3, 64, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        eager = model(images)
        compiled = torch.compile(model, fullgraph=True, dynamic=False)(images)
    assert relative_error(compiled, eager.double()) < TOLERANCES[torch.bfloat16]
