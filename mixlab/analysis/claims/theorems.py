"""Claims that mathematics or counting decides: computed each time the ledger is made, in seconds."""

from collections.abc import Callable
from functools import cache, wraps

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mixlab.analysis.blocks import chunk_spans, in_float64, numerical_rank, off_diagonal_pairs, visible_sides
from mixlab.analysis.claims.evidence import Evidence, Status, Verdict
from mixlab.analysis.cost import count_macs, count_with_classifier, give_advice, on_meta
from mixlab.backbones.block import Layer
from mixlab.mixers import (
    MIXERS,
    AttentionConfig,
    LinearAttentionConfig,
    Mamba2Config,
    MixerConfig,
    Mixing,
    SSDMixing,
)
from mixlab.ops.ssd.op import ssd

_DIM, _HEAD, _STATE, _CHUNK, _LENGTH = 32, 16, 16, 40, 120  # C > N = D_QK, or no bound would bite
_NUM_DRAWS = 200
_FULL = 0.95  # of C: a trained softmax has singular values below rounding
MAMBAOUT = {  # MambaOut, Tables 1 and 4: parameters in M, MACs in G at 224 px; kobe: its README, no MACs given
    "femto": (7.3, 1.2),
    "kobe": (9.1, None),
    "tiny": (26.5, 4.5),
    "small": (48.5, 9.0),
    "base": (84.8, 15.8),
}


def _settled(compute: Callable[[], Verdict]) -> Callable[[Evidence], Verdict]:
    """A verdict that no run can change, computed once."""
    found = cache(compute)
    return wraps(compute)(lambda evidence: found())


@_settled
def one_form() -> Verdict:
    """Claim 1: apply() against matrix() @ values for every registered mixer."""
    errors = {kind: _form_error(config(), _DIM * 4) for kind, config in MIXERS.items()}
    worst = max(errors.values())
    text = "largest relative error of running against multiplying: " + _listed(errors, "{:.1e}")
    return Verdict(_holds(worst < 1e-10), text, worst, scale="random inputs, float64")


@_settled
def lemmas() -> Verdict:
    """Claim 2: both rank inequalities on random matrices of known low rank."""
    generator = torch.Generator().manual_seed(0)

    def low_rank(rows: int, columns: int, rank: int) -> Tensor:
        left, right = (torch.randn(size, rank, generator=generator, dtype=torch.float64) for size in (rows, columns))
        return left @ right.mT

    violations = 0
    for _ in range(_NUM_DRAWS):
        m, n, p, r, s = torch.randint(1, 25, (5,), generator=generator).tolist()
        r, s = min(r, 5), min(s, 5)
        a, b, c = low_rank(m, n, r), low_rank(m, n, s), low_rank(n, p, s)
        rank_a, rank_b, rank_c = (numerical_rank(matrix) for matrix in (a, b, c))
        violations += numerical_rank(a * b) > rank_a * rank_b
        violations += numerical_rank(a @ c) > min(rank_a, rank_c)
    text = f"{violations} violations in {_NUM_DRAWS} random draws of each; the proofs are elementary"
    return Verdict(_holds(not violations), text, float(violations), n=_NUM_DRAWS, scale="float64")


@_settled
def diagonal_blocks() -> Verdict:
    """Claim 3: a triangular block is non-singular if and only if its diagonal has no zero."""
    smallest = {}
    for kind, config in _configs(causal=True).items():
        diagonals = _mixing(config).matrix().diagonal(dim1=-2, dim2=-1)
        smallest[kind] = float(diagonals.abs().min())
    seen = {kind: _mixing(config).matrix()[0, 0, :_CHUNK, :_CHUNK] for kind, config in _configs(causal=False).items()}
    ranks = {kind: float(numerical_rank(block)) for kind, block in seen.items() if kind != "mamba2"}
    text = (
        f"in the causal form no diagonal entry is zero (smallest: {_listed(smallest, '{:.1e}')}), so each diagonal "
        f"block has full rank. Not so in the fully visible form that LinearViT runs: blocks of {_CHUNK} have rank "
        f"{_listed(ranks, '{:.0f}')}, and linear attention's can never exceed D_QK = {_HEAD}"
    )
    return Verdict(_holds(min(smallest.values()) > 0), text, min(smallest.values()), scale=_scale())


def off_diagonal_bounds(evidence: Evidence) -> Verdict:
    """Claim 4, by plain SVD of random mixings and by every rank result of the given runs."""
    ranks = {kind: _off_diagonal_ranks(_mixing(config)) for kind, config in _configs(causal=False).items()}
    held = max(ranks["linear_attention"]) <= _HEAD and max(ranks["mamba2"]) <= _STATE
    broken = evidence.select("rank_bound_holds", keep=lambda m: m.value != 1)
    softmax, smallest = (
        evidence.select(metric, keep=lambda m: m["family"] == "attention" and m["definition"] == "numerical")
        for metric in ("off_diagonal_rank", "smallest_off_diagonal_rank")
    )
    full = min(ranks["attention"]) == _CHUNK and all(m.value >= _FULL * m["chunk"] for m in softmax)
    text = (
        f"blocks of {_CHUNK}: linear attention at most {max(ranks['linear_attention'])} (bound {_HEAD}), "
        f"Mamba-2 at most {max(ranks['mamba2'])} (bound {_STATE}), softmax {min(ranks['attention'])} to "
        f"{max(ranks['attention'])}; in runs the bounds fail in {len(broken)} results"
    )
    if softmax:
        shares = [m.value / m["chunk"] for m in softmax]
        lowest = min((m.value / m["chunk"] for m in smallest), default=min(shares))
        text += (
            f", and softmax's numerical rank is {min(shares):.1%} to {max(shares):.1%} of C on average over blocks "
            f"(the lowest block {lowest:.1%}, {len(softmax)} results)"
        )
    holds = _holds(held and full and not broken)
    return Verdict(holds, text, float(max(ranks["mamba2"])), n=len(softmax), scale=_scale())


def mask_rank(evidence: Evidence) -> Verdict:
    """Claim 5: the rank of the mask's off-diagonal blocks, which the proof in `blocks.py` says is 1."""
    mixing = _mixing(Mamba2Config(head_dim=_HEAD, state=_STATE))
    assert isinstance(mixing, SSDMixing)
    ranks = _off_diagonal_ranks(mixing, mixing.mask())
    measured = evidence.select("mask_rank")
    largest = max([max(ranks), *(m.value for m in measured)])
    beyond = f"; {largest:.0f} in runs" if largest > max(ranks) else ""
    text = (
        f"rank {min(ranks)} to {max(ranks)} in random scans{beyond}. With one scalar decay a step the mask is an outer "
        "product exp(S_i) exp(-S_j) off the diagonal: rank exactly 1, so a Mamba-2 block is bounded by N, as linear "
        "attention's is by D_QK"
    )
    return Verdict(_holds(largest > 1), text, float(largest), n=len(ranks), scale=_scale())


@_settled
def linear_cost() -> Verdict:
    """Claim 19: count the scan's own multiplications at L, 2L, 4L and at N, 2N, 4N."""
    by_length = [_scan_flops(length, 64) for length in (1024, 2048, 4096)]
    by_state = [_scan_flops(2048, state) for state in (64, 128, 256)]
    attention = [_attention_flops(length) for length in (1024, 2048, 4096)]
    growth = {
        name: max(counts[1] / counts[0], counts[2] / counts[1])
        for name, counts in (("L", by_length), ("N", by_state), ("attention in L", attention))
    }
    text = "each doubling multiplies the scan's arithmetic by at most " + _listed(growth, "{:.2f}")
    holds = growth["L"] <= 2.05 and growth["N"] <= 2.05
    return Verdict(_holds(holds), text, growth["L"], scale="counted, as run on a CPU")


@_settled
def long_sequences() -> Verdict:
    """Claim 20: count the operations of a Transformer block, and compare the three tasks with 6D."""
    errors = []
    for dim, length in ((128, 64), (128, 1024), (192, 640)):
        counted = _block_flops(dim, length)
        errors.append(abs(counted / (24 * dim**2 * length + 4 * dim * length**2) - 1))
    tasks = {"ImageNet 224 px": (224, 224), "COCO 800 x 1280": (800, 1280), "ADE20K 512 x 2048": (512, 2048)}
    ratios = {
        f"{task}, D = {dim}": give_advice(height=height, width=width, patch=16, dim=dim).ratio
        for task, (height, width) in tasks.items()
        for dim in (384, 768)
    }
    short = all(ratio < 0.1 for name, ratio in ratios.items() if "ImageNet" in name)
    long_at_small = all(ratio > 1 for name, ratio in ratios.items() if "ImageNet" not in name and "384" in name)
    text = (
        f"the formula is exact to {max(errors):.0e} of the operations counted. L / 6D: {_listed(ratios, '{:.2f}')}: "
        "the two dense tasks are long at the width of ViT-S, and just below the threshold at that of ViT-B"
    )
    holds = max(errors) < 1e-9 and short and long_at_small
    return Verdict(_holds(holds), text, max(errors), scale="counted")


@_settled
def mambaout_sizes() -> Verdict:
    """Claim 24: count parameters and multiply-accumulates on shapes."""
    found, wrong = [], []
    for size, (published_params, published_macs) in MAMBAOUT.items():
        model = on_meta(f"mambaout_{size}")
        params, macs = count_with_classifier(model) / 1e6, count_macs(model, 224) / 1e9
        found.append(f"{size} {params:.1f} M, {macs:.2f} G")
        if not (_agrees(params, published_params) and _agrees(macs, published_macs)):
            wrong.append(size)
    text = "; ".join(found) + (f"; differ from the published values: {', '.join(wrong)}" if wrong else "")
    return Verdict(_holds(not wrong), text, n=len(found), scale="counted at 224 px")


def _holds(held: bool) -> Status:
    return Status.SUPPORTED if held else Status.CONTRADICTED


def _agrees(counted: float, published: float | None) -> bool:
    """Within the rounding of one decimal and 1 % for what counters leave out (norms, the classifier's hidden layer)."""
    return published is None or abs(counted - published) <= 0.05 + 0.01 * published


def _configs(*, causal: bool) -> dict[str, MixerConfig]:
    return {
        "attention": AttentionConfig(head_dim=_HEAD, causal=causal),
        "linear_attention": LinearAttentionConfig(head_dim=_HEAD, causal=causal),
        "mamba2": Mamba2Config(head_dim=_HEAD, state=_STATE, two_way=not causal),
    }


@torch.no_grad()
def _mixing(config: MixerConfig, dim: int = _DIM, length: int = _LENGTH) -> Mixing:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixer = config.build(dim, 1).double()
        for parameter in mixer.parameters():
            if parameter.ndim == 2 and min(parameter.shape) > 2:
                nn.init.normal_(parameter, std=dim**-0.5)  # scores of order one, as in a trained layer
        return in_float64(mixer.prepare(torch.randn(1, length, dim, dtype=torch.float64), (1, length))[0])


def _form_error(config: MixerConfig, dim: int) -> float:
    mixing = _mixing(config, dim, 30)
    looked = mixing.matrix() @ mixing.values
    return float((mixing.apply() - looked).norm() / looked.norm())


def _off_diagonal_ranks(mixing: Mixing, matrix: Tensor | None = None) -> list[int]:
    matrix = mixing.matrix() if matrix is None else matrix
    spans = chunk_spans(_LENGTH, _CHUNK)
    return [
        numerical_rank(matrix[0, head, spans[row].slice, spans[column].slice])
        for head in range(mixing.num_heads)
        for row, column in off_diagonal_pairs(len(spans), visible_sides(mixing, head))
    ]


def _scan_flops(length: int, state: int) -> int:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        q, v = torch.empty(1, length, 1, state), torch.empty(1, length, 2, 64)
        ssd(q, q, v, torch.empty(1, length, 2), torch.empty(2), torch.empty(2))
    return counter.get_total_flops()


def _attention_flops(length: int) -> int:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        tokens = torch.empty(1, 2, length, 64)
        nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
    return counter.get_total_flops()


def _block_flops(dim: int, length: int) -> int:
    with torch.device("meta"):
        layer = Layer(dim=dim, depth=1, mixer=AttentionConfig(), norm="layer", mlp_ratio=4.0, drop_path=0.0)
        tokens = torch.empty(1, length, dim)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(tokens, tokens, (1, length))
    return counter.get_total_flops()


def _listed(figures: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in figures.items())


def _scale() -> str:
    return f"random weights and inputs, {_LENGTH} tokens, C = {_CHUNK}, N = D_QK = {_HEAD}, float64"
