"""Claims about softmax's own matrices: whether their blocks have full rank, and whether a low rank would do."""

from mixlab.analysis.claims.evidence import (
    NOT_MEASURED,
    Comparison,
    Evidence,
    Status,
    Verdict,
    scale_of,
    title,
    verdict_of,
)
from mixlab.analysis.claims.theorems import softmax_ranks
from mixlab.analysis.comparisons import Network, over_seeds
from mixlab.run import UNTRAINED, Measurement
from mixlab.statistics import Estimate, difference

FULL = 0.95  # of C on average: a trained softmax has singular values below rounding
LITTLE = 0.01  # of the energy may be left: the share that "99 % energy" leaves in every table of ranks
PARTS = {  # what each mixer is bounded in
    "off_diagonal": "off-diagonal blocks (Mamba's bound)",
    "whole": "whole matrices (linear attention's bound)",
}


def softmax_has_full_rank(evidence: Evidence) -> Verdict:
    """Claim 4b: numerical ranks of softmax's off-diagonal blocks. Every block below C is a counterexample; it is no
    theorem, since equal queries give equal rows."""

    def of_softmax(m: Measurement) -> bool:
        return m["family"] == "attention" and m["definition"] == "numerical" and bool(m["chunk"])

    means = evidence.select("off_diagonal_rank", keep=of_softmax)
    random, alike = softmax_ranks()
    text = f"random softmax has rank {min(random)} to {max(random)} of {max(random)}, with equal queries {alike}"
    if not means:
        return Verdict(Status.NOT_MEASURED, f"{NOT_MEASURED}; {text}")
    shares = [m.value / m["chunk"] for m in means]
    lowest = [m.value / m["chunk"] for m in evidence.select("smallest_off_diagonal_rank", keep=of_softmax)]
    counterexamples = sum(share < 1 for share in lowest)
    status = (
        Status.CONTRADICTED
        if min(shares) < FULL
        else Status.IN_PART
        if counterexamples or not lowest
        else Status.SUPPORTED
    )
    text = (
        f"{min(shares):.1%} to {max(shares):.1%} of C on average over blocks ({len(shares)} results); blocks below C, "
        f"counterexamples, in {counterexamples} of {len(lowest)} results"
        + (f" (the lowest block {min(lowest):.1%})" if lowest else "")
        + f"; {text}"
    )
    networks = frozenset(Network.of(m) for m in means)
    return Verdict(status, text, min(shares), n=len(shares), scale=scale_of(means), networks=networks)


def low_rank_suffices(evidence: Evidence) -> Verdict:
    """Claim 25: the best approximation of rank N leaves significantly less than LITTLE of the energy of softmax's
    matrices. What the best one leaves, every linear attention and every scan of that width leaves at least.
    """

    def says_something(m: Measurement) -> bool:
        below = m["chunk"] is None or m["rank"] < m["chunk"]  # else nothing can be left of a block
        return m["family"] == "attention" and m["training"] != UNTRAINED and m["part"] in PARTS and below

    found = evidence.select("low_rank_residual", keep=says_something)
    comparisons, ones, largest = [], [], []
    for group in over_seeds(found):
        lead = group[0]
        if lead["rank"] == 1:
            ones.append(f"rank 1 leaves {_mean(group):.2%} of {lead['part'].replace('_', '-')}")
            continue
        allowed = Estimate(LITTLE, LITTLE, LITTLE, lead.n)
        comparisons.append(
            Comparison(
                f"{title(group)}: {LITTLE:.0%} minus what rank {lead['rank']} leaves of {PARTS[lead['part']]}",
                difference([allowed] * len(group), group),
                tuple(group),
                part=PARTS[lead["part"]],
                trainings=2 if len(group) > 1 else 0,
            )
        )
        own = [
            m.value
            for m in evidence.select("largest_low_rank_residual")
            if (Network.of(m), m.protocol.choices) == (Network.of(lead), lead.protocol.choices)
        ]
        if own:
            largest.append(f"at most {max(own):.2%} in one block or head of {lead['model']}, {lead['part']}")
    missing = [name for name in PARTS.values() if name not in {each.part for each in comparisons}]
    verdict = verdict_of(comparisons, missing)
    return verdict.with_text("; ".join([verdict.measured, *ones, *largest]))


def _mean(group: list[Measurement]) -> float:
    return sum(m.value for m in group) / len(group)
