"""Claims that mathematics decides: computed each time the ledger is made, in seconds."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps

import torch
from torch import Tensor, nn

from mixlab.analysis.blocks import chunk_spans, in_float64, numerical_rank, off_diagonal_pairs
from mixlab.analysis.claims.evidence import Evidence, Status, Verdict
from mixlab.mixers import (
    MIXERS,
    AttentionConfig,
    LinearAttentionConfig,
    Mamba1Config,
    Mamba2Config,
    MixerConfig,
    Mixing,
    SelectiveMixing,
    SoftmaxMixing,
    SSDMixing,
)

_DIM, _HEAD, _STATE, _CHUNK, _LENGTH = 32, 16, 16, 40, 120  # C > N = D_QK, or no bound would bite
_NUM_DRAWS = 200


def settled(compute: Callable[[], Verdict]) -> Callable[[Evidence], Verdict]:
    """A verdict that no run can change, computed once."""
    found = cache(compute)
    return wraps(compute)(lambda evidence: found())


@settled
def one_form() -> Verdict:
    """Claim 1: apply() against matrix() @ values for every registered mixer."""
    errors = {kind: _form_error(config(), _DIM * 4) for kind, config in MIXERS.items()}
    worst = max(errors.values())
    text = "largest relative error of running against multiplying: " + listed(errors, "{:.1e}")
    return Verdict(Status.of(worst < 1e-10), text, worst, scale="random inputs, float64")


@settled
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
    return Verdict(Status.of(not violations), text, float(violations), n=_NUM_DRAWS, scale="float64")


def diagonal_blocks(evidence: Evidence) -> Verdict:
    """Claim 3: a triangular block is non-singular if and only if its diagonal has no zero. The paper's M has no skip
    connection; networks run with it.

    Softmax and linear attention have positive entries there, so for them it is proven. A scan has q_i . k_i, of any
    sign, and the triangle does not keep that from being zero: then the block loses a rank. With the skip connection the
    two would have to cancel. Runs show what trained scans have.
    """
    matrices = {kind: _mixing(config).matrix() for kind, config in _configs(causal=True).items()}
    scan = _scan()
    bare, broken = (replace(each, skip=torch.zeros_like(scan.skip)) for each in (scan, _orthogonal_once(scan)))
    matrices |= {"mamba2 without its skip": bare.matrix()}
    smallest = {kind: float(m.diagonal(dim1=-2, dim2=-1).abs().min()) for kind, m in matrices.items()}
    ranks = {kind: float(min(_diagonal_ranks(m))) for kind, m in matrices.items()}
    lost = min(_diagonal_ranks(broken.matrix()))
    seen = {kind: _mixing(config).matrix()[0, 0, :_CHUNK, :_CHUNK] for kind, config in _configs(causal=False).items()}
    visible = {kind: float(numerical_rank(block)) for kind, block in seen.items() if kind != "mamba2"}
    text = (
        f"in the causal form no diagonal entry is zero (smallest: {listed(smallest, '{:.1e}')}), so each diagonal "
        f"block has full rank, {_CHUNK} (numerically at least {listed(ranks, '{:.0f}')}). Softmax and linear attention "
        f"are positive there, which proves it. The triangle alone does not: a scan without its skip whose q and k are "
        f"orthogonal at one token has rank {lost}. Nor does it hold in the fully visible form that LinearViT runs: "
        f"blocks of {_CHUNK} have rank {listed(visible, '{:.0f}')}, and linear attention's can never exceed D_QK = "
        f"{_HEAD}"
    )
    text += _diagonals_of_runs(evidence)
    holds = min(smallest.values()) > 0
    status = Status.CONTRADICTED if not holds else Status.IN_PART if lost < _CHUNK else Status.SUPPORTED
    return Verdict(status, text, min(smallest.values()), scale=_scale())


def _diagonals_of_runs(evidence: Evidence) -> str:
    """The lowest rank of a diagonal block of trained scans, with the skip connection and without."""
    found = evidence.select(
        "smallest_diagonal_rank", keep=lambda m: m["family"] == "mamba2" and m["definition"] == "numerical"
    )
    text = ""
    for skip, name in ((True, "with the skip connection"), (False, "without it (`mixlab rank --no-skip`)")):
        shares = [m.value / m["chunk"] for m in found if m["skip"] is skip and m["chunk"]]
        text += f"; scans of runs {name}: " + (f"at least {min(shares):.1%} of C" if shares else "not measured")
    return text if found else ""


def off_diagonal_bounds(evidence: Evidence) -> Verdict:
    """Claim 4a, by plain SVD of random mixings and by every rank result of the runs; `blocks.py` has the proof."""
    ranks = {kind: _off_diagonal_ranks(_mixing(config)) for kind, config in _configs(causal=False).items()}
    held = max(ranks["linear_attention"]) <= _HEAD and max(ranks["mamba2"]) <= _STATE
    tried = evidence.select("rank_bound_holds")
    broken = [m for m in tried if m.value != 1]
    text = (
        f"proven: a product of factors N wide has at most rank N. Blocks of {_CHUNK}: linear attention at most "
        f"{max(ranks['linear_attention'])} (bound {_HEAD}), Mamba-2 at most {max(ranks['mamba2'])} (bound {_STATE}); "
        f"in runs the bounds fail in {len(broken)} of {len(tried)} results"
    )
    return Verdict(Status.of(held and not broken), text, float(max(ranks["mamba2"])), n=len(tried), scale=_scale())


def softmax_ranks() -> tuple[list[int], int]:
    """Ranks of the off-diagonal blocks of a random softmax attention, and of one whose queries are all alike."""
    mixing = _mixing(_configs(causal=False)["attention"])
    assert isinstance(mixing, SoftmaxMixing)
    alike = replace(mixing, q=mixing.q[:, :, :1].expand_as(mixing.q))
    return _off_diagonal_ranks(mixing), max(_off_diagonal_ranks(alike))


def mask_rank(evidence: Evidence) -> Verdict:
    """Claim 5: the rank of the mask's off-diagonal blocks, which the proof in `blocks.py` says is 1."""
    mixing = _scan(two_way=True)
    ranks = _off_diagonal_ranks(mixing, mixing.mask())
    measured = evidence.select("mask_rank")
    largest = max([max(ranks), *(m.value for m in measured)])
    beyond = f"; {largest:.0f} in runs" if largest > max(ranks) else ""
    text = (
        f"rank {min(ranks)} to {max(ranks)} in random scans{beyond}. With one scalar decay a step the mask is an outer "
        "product exp(S_i) exp(-S_j) off the diagonal: rank exactly 1, so a Mamba-2 block is bounded by N, as linear "
        f"attention's is by D_QK. {_mask_of_many_decays()}"
    )
    return Verdict(Status.of(largest > 1), text, float(largest), n=len(ranks), scale=_scale())


@cache
def _mask_of_many_decays() -> str:
    """The other half of claim 5: Mamba-1 has a decay for every state."""
    mixing = _mixing(Mamba1Config(expand=1, state=_STATE))
    assert isinstance(mixing, SelectiveMixing)
    few, chunk = slice(0, 8), slice(_CHUNK, 2 * _CHUNK)
    masks = torch.stack([mixing.mask(state, few) for state in range(_STATE)])  # (N, 1, h, L, L)
    single, summed, whole = (
        {numerical_rank(block) for block in blocks[..., chunk, :_CHUNK].reshape(-1, _CHUNK, _CHUNK)}
        for blocks in (masks, masks.sum(0), mixing.matrix(few))
    )
    return (
        f"Mamba-1 has a decay for every state: each of its masks has rank {max(single)}, their sum {min(summed)} to "
        f"{max(summed)} with N = {_STATE}, and a block at most {max(whole)}: the bound is N all the same"
    )


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


def _scan(*, two_way: bool = False) -> SSDMixing:
    mixing = _mixing(Mamba2Config(head_dim=_HEAD, state=_STATE, two_way=two_way))
    assert isinstance(mixing, SSDMixing)
    return mixing


def _orthogonal_once(scan: SSDMixing) -> SSDMixing:
    """The same scan with q orthogonal to k at one token."""
    q, token = scan.q.clone(), _CHUNK // 2
    k = scan.k[:, token]
    q[:, token] -= (q[:, token] * k).sum(-1, keepdim=True) / k.square().sum(-1, keepdim=True) * k
    return replace(scan, q=q)


def _diagonal_ranks(matrix: Tensor) -> list[int]:
    spans = chunk_spans(_LENGTH, _CHUNK)
    return [numerical_rank(head[span.slice, span.slice]) for head in matrix[0] for span in spans]


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
        for row, column in off_diagonal_pairs(len(spans), mixing.sides(head))
    ]


def listed(figures: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in figures.items())


def _scale() -> str:
    return f"random weights and inputs, {_LENGTH} tokens, C = {_CHUNK}, N = D_QK = {_HEAD}, float64"
