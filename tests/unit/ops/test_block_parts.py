"""The pieces around the scan against loops written out by hand."""

import pytest
import torch

from mixlab.ops.add_norm.reference import add_norm
from mixlab.ops.gated_norm.reference import gated_norm
from mixlab.ops.linear_attention.reference import linear_attention
from mixlab.ops.short_conv.reference import short_conv


def test_short_convolution_is_a_loop_over_the_tokens_before() -> None:
    x, weight, bias = torch.randn(2, 9, 3), torch.randn(3, 4), torch.randn(3)
    expected = torch.zeros(2, 9, 3)
    for t in range(9):
        for w in range(4):
            if t - 3 + w >= 0:
                expected[:, t] += weight[:, w] * x[:, t - 3 + w]
    expected = torch.nn.functional.silu(expected + bias)
    torch.testing.assert_close(short_conv(x, weight, bias, reverse=False), expected)
    backward = short_conv(x.flip(1), weight, bias, reverse=True).flip(1)
    torch.testing.assert_close(backward, expected)


def test_gated_norm_is_the_gate_then_the_norm() -> None:
    y, gate, weight = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(8)
    gated = y * gate * torch.sigmoid(gate)
    expected = gated / (gated.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(gated_norm(y, gate, weight, eps=1e-5), expected)


@pytest.mark.parametrize("centred", [False, True], ids=["RMSNorm", "LayerNorm"])
def test_the_stream_stays_float32_beside_a_bfloat16_branch(centred: bool) -> None:
    branch, stream, weight = torch.randn(2, 5, 8).bfloat16(), torch.randn(2, 5, 8), torch.randn(8)
    bias = torch.randn(8) if centred else None
    added, normed = add_norm(branch, stream, weight, bias, eps=1e-5)
    total = stream + branch.float()
    torch.testing.assert_close(added, total)
    assert normed.dtype == torch.bfloat16
    rest = total - total.mean(-1, keepdim=True) if centred else total
    expected = rest / (rest.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight + (0 if bias is None else bias)
    torch.testing.assert_close(normed.float(), expected, rtol=1e-2, atol=1e-2)


def test_causal_linear_attention_is_the_lower_triangle() -> None:
    q, k, v = torch.rand(2, 3, 70, 4), torch.rand(2, 3, 70, 4), torch.randn(2, 3, 70, 5)
    torch.testing.assert_close(linear_attention(q, k, v, causal=True), (q @ k.mT).tril() @ v, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(linear_attention(q, k, v, causal=False), q @ k.mT @ v, rtol=1e-4, atol=1e-4)
