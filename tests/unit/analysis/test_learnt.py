"""What only runs that learnt nothing say is no verdict."""

from dataclasses import replace

from mixlab.analysis.claims import CLAIMS, draw_up
from mixlab.analysis.evidence import Evidence
from tests.unit.analysis.records import RANKED, measured


def test_runs_that_learnt_nothing_give_no_verdict_on_learning() -> None:
    scores = [measured("binary_auc", family, 0.8 - 0.1 * place, map="cosine") for place, family in enumerate(RANKED)]
    sure = {"low": 0.29, "high": 0.31}
    twins = [measured("knn_top1", family, 0.3, training="untrained", **sure) for family in RANKED]
    same = [measured("knn_top1", family, 0.3, **sure) for family in RANKED]
    better = [measured("knn_top1", family, 0.6, low=0.59, high=0.61) for family in RANKED]
    (claim,) = [claim for claim in CLAIMS if claim.number == 7]
    alone, unlearnt, learnt = (
        next(draw_up(Evidence([*scores, *other]), [claim])).verdict
        for other in ([], [*twins, *same], [*twins, *better])
    )
    assert alone.status == learnt.status != "not resolved at this scale"
    assert unlearnt.status == "not resolved at this scale"
    assert "features of dinovim_tiny" in unlearnt.measured and "untrained twins" in unlearnt.measured


def test_what_theory_forbids_is_contradicted_whatever_runs_learnt() -> None:
    values = {"attention": 256.0, "mamba2": 60.0, "linear_attention": 64.0}
    bounds = {"attention": 256.0, "mamba2": 64.0, "linear_attention": 64.0}
    ranks = [measured("off_diagonal_rank", f, v, definition="numerical", bound=bounds[f]) for f, v in values.items()]
    unlearnt = [measured("knn_top1", f, 0.3, training=t) for f in RANKED for t in ("dino", "untrained")]
    (claim,) = [claim for claim in CLAIMS if claim.number == 6]
    assert next(draw_up(Evidence([*ranks, *unlearnt]), [claim])).verdict.status == "contradicted"
    free = [replace(m, where=m.where | {"bound": 256.0}) for m in ranks]
    assert next(draw_up(Evidence([*free, *unlearnt]), [claim])).verdict.status == "not resolved at this scale"


def test_maps_no_better_than_untrained_ones_give_no_verdict_on_maps() -> None:
    scores = [measured("binary_auc", family, 0.8 - 0.1 * place, map="cosine") for place, family in enumerate(RANKED)]
    gains = [measured("above_untrained", family, 0.1, map="cosine") for family in RANKED]
    none = [replace(gain, value=0.0, low=-0.01, high=0.01) for gain in gains]
    (claim,) = [claim for claim in CLAIMS if claim.number == 7]
    learnt, unlearnt = (next(draw_up(Evidence([*scores, *other]), [claim])).verdict for other in (gains, none))
    assert learnt.status == "supported"
    assert unlearnt.status == "not resolved at this scale" and "but maps of dinovim_tiny" in unlearnt.measured
