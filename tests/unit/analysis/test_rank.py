"""Ranks of mixing matrices against numpy's SVD, and what theory says of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixlab
from mixlab.analysis.blocks import (
    ScanDecay,
    chunk_spans,
    in_float64,
    numerical_rank,
    rank_after_deflation,
    rank_bound,
    rank_measures,
    thin_blocks,
)
from mixlab.analysis.distance import distance_profile, uniform_profile
from mixlab.analysis.layer_ranks import BLOCK_COLUMNS, RankSettings, choose_heads, layer_ranks
from mixlab.analysis.rank import summarise_ranks
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


def tiny(name: str, **fields: object) -> mixlab.Backbone:
    torch.manual_seed(0)
    size = {"kernel": 3} if name.startswith("gatedconv") else {"head_dim": 16}
    return mixlab.create_model(name, dim=64, depth=2, image=64, patch=8, **size, **fields).eval()


def mixing_of(config: MixerConfig, grid: tuple[int, int], seed: int = 0, gain: float = 1.0) -> Mixing:
    torch.manual_seed(seed)
    mixer = config.build(16, 2).double()
    return mixer.prepare(gain * torch.randn(1, grid[0] * grid[1], 16, dtype=torch.float64), grid)[0]


def numpy_rank(block: torch.Tensor) -> int:
    return int(np.linalg.matrix_rank(block.detach().numpy()))


def random_of_rank(generator: np.random.Generator, rows: int, columns: int, rank: int) -> np.ndarray:
    return generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))


# ---------------------------------------------------------------- the figures


@settings(max_examples=40, deadline=None)
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


# ---------------------------------------------------------------- the lemmas of the paper


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 24),
    columns=st.integers(1, 24),
    a=st.integers(0, 5),
    b=st.integers(0, 5),
    seed=st.integers(0, 2**16),
)
def test_lemma_1_the_rank_of_a_hadamard_product_is_at_most_the_product_of_the_ranks(
    rows: int, columns: int, a: int, b: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    left, right = (random_of_rank(generator, rows, columns, rank) for rank in (a, b))
    ranks = [int(np.linalg.matrix_rank(matrix)) for matrix in (left, right, left * right)]
    assert ranks[2] <= ranks[0] * ranks[1]


@settings(max_examples=60, deadline=None)
@given(sizes=st.tuples(*[st.integers(1, 20)] * 3), a=st.integers(0, 8), b=st.integers(0, 8), seed=st.integers(0, 2**16))
def test_lemma_2_the_rank_of_a_product_is_at_most_the_smaller_rank(
    sizes: tuple[int, int, int], a: int, b: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    left = random_of_rank(generator, sizes[0], sizes[1], a)
    right = random_of_rank(generator, sizes[1], sizes[2], b)
    ranks = [int(np.linalg.matrix_rank(matrix)) for matrix in (left, right, left @ right)]
    assert ranks[2] <= min(ranks[:2])


# ---------------------------------------------------------------- the blocks


@pytest.mark.parametrize("name", ["linear", "linear-causal", "scan"])
@pytest.mark.parametrize("chunk", [5, 9, 16])
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
                assert rank <= rank_bound(mixing, rows, columns)


def test_the_bounds_of_scan_and_linear_attention_are_reached() -> None:
    for name, bound in (("scan", 4), ("linear", 8)):
        mixing = mixing_of(CONFIGS[name], (6, 6))
        spans = chunk_spans(36, 12)
        assert rank_bound(mixing, spans[1], spans[0]) == bound
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


# ---------------------------------------------------------------- whole backbones


def blocks_of(measured: list, name: str) -> np.ndarray:
    return np.concatenate([layer.blocks[:, BLOCK_COLUMNS.index(name)] for layer in measured])


@pytest.mark.parametrize("name", ["vit_tiny", "linearvit_tiny", "dinovim_tiny", "dinomambareg_tiny", "gatedconv_tiny"])
def test_measured_ranks_are_those_of_a_plain_svd_of_the_matrix(name: str) -> None:
    model = tiny(name)
    images = torch.randn(2, 3, 64, 64)
    measured = list(layer_ranks(model, images, settings=RankSettings(chunk=20, max_heads=4, whole=True)))
    assert [(ranks.image, ranks.layer) for ranks in measured] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with torch.no_grad():
        for index, image in enumerate(images):
            for layer, mixing in model.mixings(image[None]):
                ranks = measured[2 * index + layer]
                for place, head in enumerate(ranks.heads):
                    matrix = in_float64(mixing).matrix(slice(head, head + 1))[0, 0].numpy()
                    assert ranks.whole["numerical"][place] == np.linalg.matrix_rank(matrix)
                    for row in ranks.blocks[ranks.blocks[:, BLOCK_COLUMNS.index("head")] == head]:
                        block = dict(zip(BLOCK_COLUMNS, row, strict=True))
                        i, j = int(block["row"]) * 20, int(block["column"]) * 20
                        singular = np.linalg.svd(matrix[i : i + 20, j : j + 20], compute_uv=False)
                        assert (block["height"], block["width"]) == matrix[i : i + 20, j : j + 20].shape
                        tolerance = singular[0] * 20 * np.finfo(np.float64).eps
                        fewest, most = ((singular > share * tolerance).sum() for share in (1.5, 0.5))
                        assert fewest <= block["numerical"] <= most
                        assert block["practical"] == (singular > 1e-3 * singular[0]).sum()
                        assert block["stable"] == pytest.approx((singular**2).sum() / max(singular[0] ** 2, 1e-300))
                        assert block["numerical"] <= block["bound"]


def test_the_two_methods_agree_on_every_figure() -> None:
    model, image = tiny("dinovim_tiny", state=8), torch.randn(1, 3, 64, 64)
    tables = [
        np.concatenate([layer.blocks for layer in layer_ranks(model, image, settings=chosen)])
        for chosen in (
            RankSettings(chunk=16, method="factors", tolerance=1e-12),
            RankSettings(chunk=16, method="svd", tolerance=1e-12),
        )
    ]
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-6, atol=1e-9)


def test_trained_scans_keep_within_the_bound_and_their_masks_at_rank_one() -> None:
    model = tiny("dinovim_tiny", state=8).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    images, targets = torch.randn(8, 3, 64, 64), torch.randn(8, 64)
    before = model.layers[0].mixer.A_log.detach().clone()
    losses = []
    for _ in range(15):
        loss = (model(images) - targets).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not torch.equal(before, model.layers[0].mixer.A_log)
    measured = list(layer_ranks(model.eval(), images[:1], settings=RankSettings(chunk=22, method="svd")))
    off = blocks_of(measured, "on_diagonal") == 0
    assert (blocks_of(measured, "numerical")[off] <= 8).all()
    assert (blocks_of(measured, "mask")[off] == 1).all()
    assert (blocks_of(measured, "product")[off] <= 8).all()


def test_blocks_that_decay_to_nothing_are_counted_and_have_rank_zero() -> None:
    model, image = tiny("dinovim_tiny", state=8), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.dt_bias.fill_(40.0)  # softplus: dt = 40, A at least 1: exp(-40) a step
    measured = list(layer_ranks(model, image, settings=RankSettings(chunk=11)))
    result, _ = summarise_ranks(measured, model.layout)
    assert result["overall"]["scan"]["num_underflowed"] > 0
    assert result["overall"]["off_diagonal"]["num_zero"] > 0
    assert result["overall"]["off_diagonal"]["numerical"]["min"] >= 1, "what is unknown is left out of means"
    assert result["overall"]["scan"]["mask"]["min"] == result["overall"]["scan"]["mask"]["max"] == 1
    assert result["overall"]["bound_holds"]


def test_a_summary_leaves_ragged_blocks_out_of_averages_and_counts_them() -> None:
    model = tiny("dinovim_tiny", state=8)
    measured = list(layer_ranks(model, torch.randn(3, 3, 64, 64), settings=RankSettings(chunk=32)))
    result, arrays = summarise_ranks(measured, model.layout)
    assert (result["num_tokens"], result["chunk"], result["ragged_chunk"], result["num_images"]) == (66, 32, 2, 3)
    assert result["overall"]["diagonal"]["numerical"]["mean"] == 32
    assert result["overall"]["off_diagonal"]["num_blocks"] == 3 * 2 * 16  # images, layers, heads of both directions
    assert result["overall"]["num_ragged"] == 3 * 2 * 16 * 3
    table = arrays["blocks"]
    assert table.shape[1] == len(BLOCK_COLUMNS)
    rows = table[(table[:, BLOCK_COLUMNS.index("ragged")] == 0) & (table[:, BLOCK_COLUMNS.index("on_diagonal")] == 0)]
    effective = rows[:, BLOCK_COLUMNS.index("effective")]
    per_image = [effective[rows[:, 0] == image].mean() for image in range(3)]
    figure = result["overall"]["off_diagonal"]["effective"]
    assert figure["mean"] == pytest.approx(effective.mean())
    assert figure["std_over_images"] == pytest.approx(np.std(per_image, ddof=1))
    assert arrays["off_diagonal_spectrum"].shape == (2, 16, 32)
    assert (arrays["off_diagonal_spectrum"][..., 8:] < 1e-12).all()


def test_timm_vits_with_and_without_registers_are_measured() -> None:
    for name in ("timm/vit_tiny_patch16_224", "timm/vit_small_patch14_reg4_dinov2"):
        model = mixlab.create_model(name).eval()
        size = 16 * 4 if "patch16" in name else 14 * 4
        layer = next(layer_ranks(model, torch.randn(1, 3, size, size), layers=[0], heads=[1]))
        assert (layer.mixer, layer.heads, layer.grid) == ("SoftmaxMixing", [1], (4, 4))
        assert layer.length == 16 + (1 if "patch16" in name else 5)


def test_stages_of_mambaout_are_measured_each_on_its_own_grid() -> None:
    model = mixlab.create_model("mambaout_femto").eval()
    measured = list(layer_ranks(model, torch.randn(1, 3, 64, 64), settings=RankSettings(max_heads=3)))
    assert [(layer.grid, layer.length, layer.mixer) for layer in measured] == [
        ((16, 16), 256, "ConvMixing"),
        ((8, 8), 64, "ConvMixing"),
        ((4, 4), 16, "ConvMixing"),
        ((2, 2), 4, "ConvMixing"),
    ]
    result, arrays = summarise_ranks(measured, model.layout)
    assert [entry["num_tokens"] for entry in result["layers"]] == [256, 64, 16, 4]
    assert result["overall"]["bound_holds"]
    assert arrays["off_diagonal_spectrum"].shape == (4, 3, 128)


def test_a_backbone_without_mixing_matrices_says_so() -> None:
    model = mixlab.create_model("timm/convnext_atto").eval()
    with pytest.raises(ValueError, match="convnext_atto has no softmax attention"):
        next(layer_ranks(model, torch.randn(1, 3, 64, 64)))


def test_threads_are_left_as_they_were_found() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        next(layer_ranks(tiny("vit_tiny"), torch.randn(1, 3, 64, 64), layers=[0]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_wrong_chunks_and_heads_are_named() -> None:
    with pytest.raises(ValueError, match="chunk of 70 does not fit 65 tokens"):
        next(layer_ranks(tiny("vit_tiny"), torch.randn(1, 3, 64, 64), settings=RankSettings(chunk=70)))
    with pytest.raises(ValueError, match="no head 9 among 4; choose -4 to 3"):
        choose_heads(4, [9], 64)
    assert choose_heads(4, [-1, 0], 64) == [0, 3]
    assert choose_heads(1000, None, 4) == [0, 250, 500, 750]


# ---------------------------------------------------------------- distances


def test_a_distance_profile_is_what_a_double_loop_counts() -> None:
    torch.manual_seed(0)
    matrix, grid, patches = torch.randn(13, 13, dtype=torch.float64), (3, 4), [i for i in range(13) if i != 6]
    profile = distance_profile(matrix, grid, patches)
    sequence, far, mean = [0.0] * 13, 0.0, 0.0
    for i in range(13):
        for j in range(13):
            sequence[abs(i - j)] += abs(matrix[i, j].item()) / matrix[i].abs().sum().item() / 13
    for i, p in enumerate(patches):
        total = matrix[p, patches].abs().sum().item()
        for j, q in enumerate(patches):
            distance = math.dist(divmod(i, 4), divmod(j, 4))
            share = abs(matrix[p, q].item()) / total / 12
            mean += share * distance
            far += share * (distance > 2)
    np.testing.assert_allclose(profile.sequence.numpy(), sequence)
    assert profile.mean_grid_distance == pytest.approx(mean)
    assert profile.far_share == pytest.approx(far)
    assert profile.grid.sum().item() == pytest.approx(1)
    kept = [abs(matrix[p, p].item()) / matrix[p, patches].abs().sum().item() for p in patches]
    assert profile.self_share == pytest.approx(sum(kept) / 12)
    others = [
        sum(abs(matrix[p, q].item()) * math.dist(divmod(i, 4), divmod(j, 4)) for j, q in enumerate(patches))
        / sum(abs(matrix[p, q].item()) for q in patches if q != p)
        for i, p in enumerate(patches)
    ]
    assert profile.distance_to_others == pytest.approx(sum(others) / 12)
    assert profile.mean_sequence_distance == pytest.approx(sum(d * share for d, share in enumerate(sequence)))


def test_a_causal_uniform_matrix_sees_half_as_many_tokens_and_itself() -> None:
    profile = uniform_profile(4, (2, 2), [0, 1, 2, 3], sides=(True, False))
    np.testing.assert_allclose(profile.sequence[0], (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert uniform_profile(4, (2, 2), [0, 1, 2, 3]).sequence[0] == pytest.approx(1 / 4)


def test_a_profile_of_the_wrong_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="4 patches cannot fill a grid of 3 x 3"):
        distance_profile(torch.ones(4, 4), (3, 3), [0, 1, 2, 3])
