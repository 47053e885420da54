"""Attention over few tokens on the GPU, against float64."""

import pytest
import torch
from torch import Tensor

import mixlab
from mixlab.ops.attention import op, reference
from tests.tolerances import TOLERANCES, relative_error

HALF = torch.bfloat16


def random_qkv(batch: int, length: int, heads: int, width: int, *, scale: float = 1.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(length)
    return (scale * torch.randn(batch, length, 3 * heads * width, generator=generator, device="cuda")).to(HALF)


def output_and_gradient(attention, qkv: Tensor, dout: Tensor, *, width: int, causal: bool) -> tuple[Tensor, Tensor]:
    leaf = qkv.detach().requires_grad_()
    out = attention(leaf, head_dim=width, causal=causal)
    return out, *torch.autograd.grad(out, leaf, dout)


def check(qkv: Tensor, *, width: int, causal: bool = False) -> None:
    assert op.runs_kernels(qkv, head_dim=width)
    generator = torch.Generator("cuda").manual_seed(1)
    dout = torch.randn(*qkv.shape[:2], qkv.shape[2] // 3, generator=generator, device="cuda").to(HALF)
    found = output_and_gradient(op.softmax_attention, qkv, dout, width=width, causal=causal)
    exact = output_and_gradient(reference.softmax_attention, qkv.double(), dout.double(), width=width, causal=causal)
    assert relative_error(found[0], exact[0]) < TOLERANCES[HALF]
    inner = qkv.shape[2] // 3
    if qkv.shape[1] == 1:  # a token alone has all the attention: only v has a gradient
        assert found[1][..., : 2 * inner].abs().max() < 1e-2
        assert relative_error(found[1][..., 2 * inner :], exact[1][..., 2 * inner :]) < TOLERANCES[HALF]
        return
    for part, (one, other) in enumerate(zip(found[1].chunk(3, -1), exact[1].chunk(3, -1), strict=True)):
        error = relative_error(one, other)
        assert error < TOLERANCES[HALF], f"the gradient of part {part} is off by {error:.1e}"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [*range(1, 20), 31, 32, 33, 37, 63, 64, 65, 100, 101, 127, 128])
def test_the_kernels_give_the_reference_and_the_gradient(length: int, causal: bool, poisoned: None) -> None:
    check(random_qkv(13, length, 3, 64), width=64, causal=causal)


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("length", [10, 65])
def test_all_widths_of_heads_agree(width: int, length: int, poisoned: None) -> None:
    check(random_qkv(5, length, 6, width), width=width)


def test_a_whole_batch_of_views_agrees_and_gives_equal_bits_every_time(poisoned: None) -> None:
    for batch, length in ((1536, 10), (512, 65)):
        qkv = random_qkv(batch, length, 6, 64)
        check(qkv, width=64)
        dout = torch.randn_like(qkv[..., :384])
        first = output_and_gradient(op.softmax_attention, qkv, dout, width=64, causal=False)
        for _ in range(10):
            again = output_and_gradient(op.softmax_attention, qkv, dout, width=64, causal=False)
            assert all(one.equal(other) for one, other in zip(first, again, strict=True))


def test_large_scores_stay_finite_and_exact() -> None:
    check(random_qkv(16, 50, 3, 64, scale=8.0), width=64)


def test_images_do_not_see_each_other() -> None:
    qkv = random_qkv(7, 10, 3, 64)
    alone = torch.cat([op.softmax_attention(image, head_dim=64) for image in qkv.split(1)])
    assert alone.equal(op.softmax_attention(qkv, head_dim=64))


def test_long_sequences_and_wide_heads_are_torchs() -> None:
    assert not op.runs_kernels(random_qkv(2, 129, 3, 64), head_dim=64)
    assert not op.runs_kernels(random_qkv(2, 50, 3, 128), head_dim=128)
    assert not op.runs_kernels(random_qkv(2, 50, 3, 64).float(), head_dim=64)
    assert op.softmax_attention(random_qkv(2, 129, 3, 64), head_dim=64).isfinite().all()


def test_the_operators_pass_torchs_own_check() -> None:
    torch.library.opcheck(op._attention.registered, (random_qkv(3, 20, 3, 16).requires_grad_(), 16, False))


def test_a_model_compiles_without_a_graph_break_and_agrees() -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("vit_tiny", dim=64, depth=2, patch=8, image=64, head_dim=16).cuda()
    images = torch.randn(16, 3, 64, 64, device="cuda")
    with torch.autocast("cuda", dtype=HALF):
        eager = model(images)
        compiled = torch.compile(model, fullgraph=True, dynamic=False)(images)
    assert relative_error(compiled, eager.double()) < TOLERANCES[HALF]
