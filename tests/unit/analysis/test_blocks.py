"""Ranks of blocks against numpy's SVD, and what theory says of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlab.analysis.blocks import (
    ScanDecay,
    chunk_spans,
    in_float64,
    numerical_rank,
    rank_after_deflation,
    rank_measures,
    thin_blocks,
)
from mixlab.mixers import (
    AttentionConfig,
    GatedConvConfig,
    LinearAttentionConfig,
    Mamba2Config,
    MixerConfig,
    Mixing,
    SSDMixing,
)

CONFIGS: dict[str, MixerConfig] = {
    "softmax": AttentionConfig(head_dim=8),
    "softmax-causal": AttentionConfig(head_dim=8, causal=True),
    "linear": LinearAttentionConfig(head_dim=8),
    "linear-causal": LinearAttentionConfig(head_dim=8, causal=True),
    "scan": Mamba2Config(head_dim=8, state=4),
    "convolution": GatedConvConfig(kernel=3),
    "convolution-causal": GatedConvConfig(kernel=4, sequence=True, two_way=False),
}


def mixing_of(config: MixerConfig, grid: tuple[int, int], seed: int = 0, gain: float = 1.0) -> Mixing:
    torch.manual_seed(seed)
    mixer = config.build(16, 2).double()
    return mixer.prepare(gain * torch.randn(1, grid[0] * grid[1], 16, dtype=torch.float64), grid)[0]


def numpy_rank(block: torch.Tensor) -> int:
    return int(np.linalg.matrix_rank(block.detach().numpy()))


def random_of_rank(generator: np.random.Generator, rows: int, columns: int, rank: int) -> np.ndarray:
    return generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 20), columns=st.integers(1, 20), rank=st.integers(0, 20), seed=st.integers(0, 2**16))
def test_numerical_rank_is_that_of_numpy(rows: int, columns: int, rank: int, seed: int) -> None:
    matrix = random_of_rank(np.random.default_rng(seed), rows, columns, rank)
    assert numerical_rank(torch.from_numpy(matrix)) == np.linalg.matrix_rank(matrix)


def test_the_five_figures_follow_their_definitions() -> None:
    s = torch.tensor([4.0, 2.0, 1.0, 1e-6, 1e-18], dtype=torch.float64)
    figures = {name: value.item() for name, value in rank_measures(s, (9, 5)).items()}
    share = s.numpy() / s.numpy().sum()
    assert figures["numerical"] == 4
    assert figures["practical"] == 3
    assert figures["effective"] == pytest.approx(math.exp(-(share * np.log(share)).sum()))
    assert figures["stable"] == pytest.approx((16 + 4 + 1) / 16)
    assert figures["energy"] == 3  # 20 of 21 is 95 %
    assert rank_measures(s, (9, 5), energy=0.95)["energy"] == 2


def test_a_zero_block_has_rank_zero_by_every_definition() -> None:
    assert all(value == 0 for value in rank_measures(torch.zeros(6, dtype=torch.float64), (6, 6)).values())


def test_ranks_do_not_depend_on_the_scale_of_a_block() -> None:
    s = torch.tensor([3.0, 1.0, 0.1], dtype=torch.float64)
    for name, value in rank_measures(s * 1e-200, (3, 3)).items():
        assert value == pytest.approx(rank_measures(s, (3, 3))[name].item()), name


def test_a_tolerance_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="practical is 2"):
        rank_measures(torch.ones(3), (3, 3), practical=2)


@pytest.mark.parametrize(("name", "chunk"), [("linear", 5), ("linear-causal", 16), ("scan", 9)])
def test_thin_factors_give_the_singular_values_of_the_plain_blocks(name: str, chunk: int) -> None:
    mixing = mixing_of(CONFIGS[name], (6, 7), gain=3.0)
    spans = chunk_spans(42, chunk)
    whole = mixing.matrix().detach()
    for head in range(mixing.num_heads):
        thin = thin_blocks(in_float64(mixing), head, spans)
        assert thin is not None
        reverse = isinstance(mixing, SSDMixing) and head >= mixing.num_heads - mixing.num_reverse
        pairs = [(i, j) for i in range(len(spans)) for j in range(len(spans)) if (i < j if reverse else i > j)]
        for pair, found in zip(pairs, thin.singular_values(pairs), strict=True):
            block = whole[0, head, spans[pair[0]].slice, spans[pair[1]].slice]
            expected = np.linalg.svd(block.numpy(), compute_uv=False)[: len(found)]
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-13 * expected[0])


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    height=st.integers(2, 7),
    width=st.integers(2, 7),
    chunk=st.integers(2, 20),
    gain=st.sampled_from([0.1, 1.0, 4.0]),
    seed=st.integers(0, 2**16),
)
def test_no_block_exceeds_the_bound_of_theory(
    name: str, height: int, width: int, chunk: int, gain: float, seed: int
) -> None:
    grid = (1, height * width) if "sequence" in str(CONFIGS[name]) else (height, width)
    mixing = mixing_of(CONFIGS[name], grid, seed, gain)
    spans = chunk_spans(height * width, min(chunk, height * width))
    matrix = mixing.matrix().detach()
    for head in range(min(mixing.num_heads, 4)):
        for rows in spans:
            for columns in spans:
                singular = np.linalg.svd(matrix[0, head, rows.slice, columns.slice].numpy(), compute_uv=False)
                rank = (singular > 1e-12 * singular[0]).sum()  # above what rounding leaves in a small block
                assert rank <= mixing.rank_bound(rows.tokens, columns.tokens)


def test_the_bounds_of_scan_and_linear_attention_are_reached() -> None:
    for name, bound in (("scan", 4), ("linear", 8)):
        mixing = mixing_of(CONFIGS[name], (6, 6))
        spans = chunk_spans(36, 12)
        assert mixing.rank_bound(spans[1].tokens, spans[0].tokens) == bound
        assert numpy_rank(mixing.matrix()[0, 0, 12:24, :12]) == bound


def test_every_off_diagonal_block_of_a_scan_mask_has_rank_one() -> None:
    mixing = in_float64(mixing_of(CONFIGS["scan"], (6, 6), gain=2.0))
    assert isinstance(mixing, SSDMixing)
    mask = mixing.mask().detach()
    for head in range(mixing.num_heads):
        reverse = head >= mixing.num_heads - mixing.num_reverse
        rows, columns = (slice(0, 9), slice(9, 18)) if reverse else (slice(9, 18), slice(0, 9))
        block = mask[0, head, rows, columns]
        assert numpy_rank(block) == 1
        decay = ScanDecay.of(mixing, head, chunk_spans(36, 9))
        pair = (0, 1) if reverse else (1, 0)
        torch.testing.assert_close(decay.mask_block(*pair).detach(), block)
        assert decay.largest_log(*pair) == pytest.approx(block.max().log().item())


def test_a_mask_with_a_decay_per_state_can_have_a_higher_rank_and_is_measured_so() -> None:
    steps = -torch.rand(2, 20, dtype=torch.float64).cumsum(1)
    masks = [(s[10:, None] - s[:10]).exp() for s in steps]
    assert rank_after_deflation(masks[0]) == 1
    assert rank_after_deflation(masks[0] + masks[1]) == 2
    assert rank_after_deflation(torch.zeros(3, 4)) == 0


def test_full_visibility_costs_linear_attention_its_full_diagonal_rank() -> None:
    seen, causal = (mixing_of(CONFIGS[name], (6, 6)) for name in ("linear", "linear-causal"))
    assert numpy_rank(causal.matrix()[0, 0, :18, :18]) == 18
    assert numpy_rank(seen.matrix()[0, 0, :18, :18]) == 8
