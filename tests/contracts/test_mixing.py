"""The contract of all mixers: apply() is matrix() @ values, in values and in gradients, for every mixer."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlab.mixers import (
    MIXERS,
    AttentionConfig,
    CrossScanConfig,
    GatedConvConfig,
    InvertedResidualConfig,
    LinearAttentionConfig,
    Mamba1Config,
    Mamba2Config,
    MixerConfig,
    PlainMambaConfig,
    SkipScanConfig,
    SSDMixing,
)

LENGTHS = [1, 2, 63, 64, 65, 197, 198]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
CONFIGS: dict[str, MixerConfig] = {
    "attention": AttentionConfig(head_dim=8),
    "attention-causal": AttentionConfig(head_dim=8, causal=True),
    "linear": LinearAttentionConfig(head_dim=8),
    "linear-causal": LinearAttentionConfig(head_dim=8, causal=True),
    "linear-features": LinearAttentionConfig(head_dim=8, feature_map="softmax_features"),
    "linear-features-causal": LinearAttentionConfig(head_dim=8, feature_map="softmax_features", causal=True),
    "linear-elu": LinearAttentionConfig(head_dim=8, feature_map="elu"),
    "linear-elu-causal": LinearAttentionConfig(head_dim=8, feature_map="elu", causal=True),
    "mamba2": Mamba2Config(head_dim=8, state=4),
    "mamba2-one-way": Mamba2Config(head_dim=8, state=4, two_way=False),
    "mamba1": Mamba1Config(expand=1, state=3),
    "mamba1-one-way": Mamba1Config(expand=1, state=3, scans=("forward",)),
    "mamba1-grid": Mamba1Config(expand=1, state=2, scans=("h", "v_flip", "snake"), combine="gated_sum"),
    "cross-scan": CrossScanConfig(),
    "skip-scan": SkipScanConfig(expand=1, state=2),
    "plain-mamba": PlainMambaConfig(expand=1, state=2, kernel=3),
    "inverted-residual": InvertedResidualConfig(),
    "gated-conv": GatedConvConfig(),
    "gated-conv-sequence": GatedConvConfig(kernel=4, sequence=True),
    "gated-conv-causal": GatedConvConfig(kernel=4, sequence=True, two_way=False),
}
DIM = 16


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def prepared(config: MixerConfig, length: int, dtype: torch.dtype, seed: int = 0):
    torch.manual_seed(seed)
    mixer = config.build(DIM, 2).to(dtype)
    x = torch.randn(2, length, DIM, dtype=dtype, requires_grad=True)
    return mixer, x, (1, length)


def test_every_registered_mixer_is_enrolled() -> None:
    enrolled = {config.kind for config in CONFIGS.values()}
    lines = [f'    "{kind}": {config.__name__}(),' for kind, config in MIXERS.items() if kind not in enrolled]
    assert not lines, "add to CONFIGS in this file, with small sizes:\n" + "\n".join(lines)
    assert enrolled == set(MIXERS)


@pytest.mark.parametrize("name", CONFIGS)
def test_apply_is_matrix_times_values(name: str) -> None:
    for length, (dtype, tolerance) in product(LENGTHS, TOLERANCE.items()):
        mixer, x, grid = prepared(CONFIGS[name], length, dtype)
        mixing, _ = mixer.prepare(x, grid)
        ran, some = mixing.apply(), slice(None, None, max(mixing.num_heads // 16, 1))
        looked = mixing.matrix(some) @ mixing.values[:, some]
        assert ran.shape == mixing.values.shape
        assert ran.dtype == dtype
        assert relative_error(ran[:, some], looked) < tolerance, f"{length} tokens in {dtype}"


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_of_apply_are_gradients_of_matrix_times_values(name: str) -> None:
    for length, (dtype, tolerance) in product((1, 2, 65, 130), TOLERANCE.items()):
        mixer, x, grid = prepared(CONFIGS[name], length, dtype)
        inputs, direction, gradients = [x, *mixer.parameters()], None, []
        for run in (True, False):
            mixing, _ = mixer.prepare(x, grid)
            y = mixing.apply() if run else mixing.matrix() @ mixing.values
            direction = torch.randn_like(y) if direction is None else direction
            gradients.append(torch.autograd.grad((y * direction).sum(), inputs, allow_unused=True))
        norms = [g.norm() for g in gradients[1] if g is not None]
        for ran, looked in zip(*gradients, strict=True):
            assert (ran is None) == (looked is None)
            if ran is not None:  # against the largest gradient: some, such as a decay's at length 1, are zero
                assert ((ran - looked).norm() / max(norms)).item() < tolerance, f"{length} tokens in {dtype}"


@pytest.mark.parametrize("name", CONFIGS)
def test_forward_is_prepare_apply_merge(name: str) -> None:
    mixer, x, grid = prepared(CONFIGS[name], 70, torch.float64)
    mixing, bypass = mixer.prepare(x, grid)
    expected = mixer.merge(mixing.matrix() @ mixing.values, bypass)
    assert relative_error(mixer(x, grid), expected) < 1e-10


@pytest.mark.parametrize("name", CONFIGS)
def test_a_slice_of_heads_is_a_slice_of_the_matrix(name: str) -> None:
    mixer, x, grid = prepared(CONFIGS[name], 9, torch.float64)
    mixing, _ = mixer.prepare(x, grid)
    whole = mixing.matrix()
    for heads in (slice(0, 1), slice(1, None), slice(None, None, 2)):
        torch.testing.assert_close(mixing.matrix(heads), whole[:, heads])


@pytest.mark.parametrize("name", CONFIGS)
def test_no_head_sees_a_side_that_it_denies_and_no_block_exceeds_its_bound(name: str) -> None:
    mixer, x, grid = prepared(CONFIGS[name], 36, torch.float64)
    mixing, _ = mixer.prepare(x, grid)
    matrix, chunks = mixing.matrix()[0].detach(), [range(start, start + 12) for start in (0, 12, 24)]
    for head in range(0, mixing.num_heads, max(mixing.num_heads // 8, 1)):
        below, above = mixing.sides(head)
        assert below or not matrix[head].tril(-1).any()
        assert above or not matrix[head].triu(1).any()
        for rows, columns in product(chunks, chunks):
            block = matrix[head, rows.start : rows.stop, columns.start : columns.stop]
            singular = torch.linalg.svdvals(block)
            assert (singular > 1e-12 * matrix[head].norm()).sum() <= mixing.rank_bound(rows, columns)


@pytest.mark.parametrize("name", CONFIGS)
def test_weight_decay_spares_the_vectors_of_a_mixer_and_no_matrix_of_its_layers(name: str) -> None:
    mixer, _, _ = prepared(CONFIGS[name], 1, torch.float32)
    spared, parameters = mixer.no_weight_decay(), dict(mixer.named_parameters())
    assert {key for key, value in parameters.items() if value.ndim < 2} <= spared <= parameters.keys()
    layers = [f"{key}.weight" for key, part in mixer.named_modules() if isinstance(part, torch.nn.Linear)]
    assert not spared & set(layers)


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(CONFIGS)), length=st.integers(1, 150), seed=st.integers(0, 2**16))
def test_the_contract_holds_at_random_lengths(name: str, length: int, seed: int) -> None:
    mixer, x, grid = prepared(CONFIGS[name], length, torch.float64, seed)
    mixing, _ = mixer.prepare(x, grid)
    assert relative_error(mixing.apply(), mixing.matrix() @ mixing.values) < 1e-10


@pytest.mark.parametrize("name", [name for name in CONFIGS if "causal" in name or "one-way" in name])
def test_causal_mixers_see_no_later_token(name: str) -> None:
    mixer, x, grid = prepared(CONFIGS[name], 20, torch.float64)
    mixing, _ = mixer.prepare(x, grid)
    assert mixing.matrix().triu(1).abs().max() == 0


def test_reverse_heads_see_only_later_tokens() -> None:
    mixer, x, grid = prepared(CONFIGS["mamba2"], 20, torch.float64)
    mixing, _ = mixer.prepare(x, grid)
    assert isinstance(mixing, SSDMixing)
    forward, reverse = mixing.matrix().chunk(2, dim=1)
    assert forward.triu(1).abs().max() == 0
    assert reverse.tril(-1).abs().max() == 0
    assert forward.tril(-1).abs().max() > 0
    assert reverse.triu(1).abs().max() > 0


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.startswith(("attention", "linear"))])
def test_rows_of_attention_sum_to_one(name: str) -> None:
    mixer, x, grid = prepared(CONFIGS[name], 33, torch.float64)
    mixing, _ = mixer.prepare(x, grid)
    rows = mixing.matrix().sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_grid_convolution_matches_a_plain_loop_over_neighbours() -> None:
    mixer, _, _ = prepared(GatedConvConfig(kernel=3), 1, torch.float64)
    x = torch.randn(1, 12, DIM, dtype=torch.float64)
    mixing, _ = mixer.prepare(x, (3, 4))
    out, values, kernel = mixing.apply(), mixing.values, mixer.conv_weight[0]
    for row in range(3):
        for column in range(4):
            total = torch.zeros(values.shape[1], dtype=torch.float64)
            for dr in (-1, 0, 1):
                for dc in (-1, 0, 1):
                    if 0 <= row + dr < 3 and 0 <= column + dc < 4:
                        total += kernel[:, dr + 1, dc + 1] * values[0, :, (row + dr) * 4 + column + dc, 0]
            torch.testing.assert_close(out[0, :, row * 4 + column, 0], total)
