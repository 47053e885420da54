"""Claims about the ablations of probes: Tables 5 and 6 of the first paper. All comparisons are within one network, so
seeds are paired. As in the paper, what is not varied stays at a learning rate of 1e-3 without weight decay, or at a
weight decay of 1e-3 where the learning rate varies; probes without these heads are compared by their best ones.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from mixlab.analysis.claims.evidence import Comparison, Evidence, Verdict, compare, title, verdict_of
from mixlab.analysis.claims.orders import SELF_SUPERVISED, is_grid_cell
from mixlab.analysis.comparisons import Group, Network, over_seeds, pairs
from mixlab.run import Measurement

BLOCKS = (4, 3, 2, 1)  # Table 5, left: 77.2, 76.7, 75.6, 71.8 %
WEIGHT_DECAYS = (1e-3, 0.0, 5e-3, 1e-2)  # Table 5, middle, at lr 1e-3: 77.3, 77.2, 76.4, 75.7 %
LEARNING_RATES = (2e-3, 1e-3, 5e-4, 2.5e-4)  # Table 5, right, at weight decay 1e-3: 77.4, 77.3, 77.2, 77.1 %
STRATEGIES = ("cls", "cls+mean", "cls+max", "mean", "max")  # Table 6: 77.2, 76.5, 76.3, 75.9, 74.6 %
_FIXED = 1e-3  # the learning rate while the weight decay varies, and the other way round


class Cell(NamedTuple):
    """A row of an ablation; `lr` and `weight_decay` are None for the best of those that were tried."""

    blocks: int = 4
    strategy: str = "cls"
    lr: float | None = None
    weight_decay: float | None = None

    def __str__(self) -> str:
        return f"{self.strategy} of {self.blocks}{self.rates}"

    @property
    def rates(self) -> str:
        return "" if self.lr is None else f" at lr {self.lr:g}, weight decay {self.weight_decay:g}"

    @classmethod
    def of(cls, m: Measurement) -> "Cell":
        if not is_grid_cell(m):
            return cls(m["blocks"], m["strategy"])
        return cls(m["blocks"], m["strategy"], m["lrs"][0], m["weight_decays"][0])


def probe_ablations(evidence: Evidence) -> Verdict:
    """Claim 18: four blocks probe better than one, and the class token alone beats mean and max pooling."""
    others = (Cell(blocks=1), Cell(strategy="mean"), Cell(strategy="max"))
    return _judge_inputs(evidence, [(Cell(), other) for other in others])


def more_blocks_probe_better(evidence: Evidence) -> Verdict:
    """Claim 27: the accuracy rises from each number of blocks to the next."""
    return _judge_inputs(evidence, pairwise(Cell(blocks=blocks) for blocks in BLOCKS))


def strategies_order(evidence: Evidence) -> Verdict:
    """Claim 28: the whole order of Table 6, combined strategies included."""
    return _judge_inputs(evidence, pairwise(Cell(strategy=strategy) for strategy in STRATEGIES))


def rates_order(evidence: Evidence) -> Verdict:
    """Claim 29: the orders of weight decays and of learning rates, each with the other fixed."""
    decays = [Cell(lr=_FIXED, weight_decay=decay) for decay in WEIGHT_DECAYS]
    rates = [Cell(lr=rate, weight_decay=_FIXED) for rate in LEARNING_RATES]
    return _judge(evidence, [*pairwise(decays), *pairwise(rates)])


def _judge_inputs(evidence: Evidence, asked: Iterable[tuple[Cell, Cell]]) -> Verdict:
    """Each network at the paper's learning rate and weight decay, or else by its best heads."""
    return _judge(evidence, asked, at_plain_rates=True)


def _at_plain_rates(cell: Cell) -> Cell:
    return cell._replace(lr=_FIXED, weight_decay=0.0)


def _judge(evidence: Evidence, asked: Iterable[tuple[Cell, Cell]], *, at_plain_rates: bool = False) -> Verdict:
    groups = over_seeds(
        evidence.select("probe_top1", keep=lambda m: m["training"] == SELF_SUPERVISED and m["blocks"] is not None)
    )
    comparisons: list[Comparison] = []
    missing = []
    for better, worse in asked:
        part = f"{better} above {worse}"
        found = _compared(groups, better, worse, part)
        if at_plain_rates:
            plain = _compared(groups, _at_plain_rates(better), _at_plain_rates(worse), part)
            known = {Network.of(gap.used[0]) for gap in plain}
            found = plain + [gap for gap in found if Network.of(gap.used[0]) not in known]
        comparisons += found
        if not found:
            missing.append(part)
    return verdict_of(sorted(comparisons, key=lambda gap: gap.what.partition(":")[0]), missing)


def _compared(groups: Sequence[Group], better: Cell, worse: Cell, part: str) -> list[Comparison]:
    first, second = ([group for group in groups if Cell.of(group[0]) == cell] for cell in (better, worse))
    apart = ("blocks", "strategy", "lrs", "weight_decays")
    what = f"{better} minus {worse}"
    if better.rates == worse.rates:
        what = f"{better.strategy} of {better.blocks} blocks minus {worse.strategy} of {worse.blocks}{better.rates}"
    return [
        compare(a, b, f"{title(a)}: {what}", part=part)
        for a, b in pairs(first, second, *apart, allowed=lambda a, b: a == b)
    ]
