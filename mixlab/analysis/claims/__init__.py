"""The ledger: each claim of the two papers in our words, its source, and the verdict, by computation or from the given
runs. No verdict is written by hand.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from mixlab.analysis.claims import measured, theorems
from mixlab.analysis.claims.evidence import Evidence, Status, Verdict
from mixlab.analysis.comparisons import Network, learnt_features, learnt_maps, training_gains

__all__ = ["CLAIMS", "Claim", "Entry", "Evidence", "Status", "Verdict", "draw_up"]

DINO_MAMBA, MAMBAOUT = "RNN as Linear Transformer", "MambaOut"


@dataclass(frozen=True)
class Claim:
    """`theorem`: mathematics or counting settles it; `measured`: only experiments do."""

    number: int
    paper: str
    place: str
    kind: Literal["theorem", "measured"]
    check: Callable[[Evidence], Verdict]
    statement: str
    about_maps: bool = False  # it compares scores of whole models' maps, which must have learnt something


# fmt: off
CLAIMS: tuple[Claim, ...] = (
    Claim(1, DINO_MAMBA, "eq. 11", "theorem", theorems.one_form,
          "Softmax attention, linear attention and Mamba are all Y = M X."),
    Claim(2, DINO_MAMBA, "Lemmas 1 and 2", "theorem", theorems.lemmas,
          "The rank of an entry-wise product is at most the product of the ranks, that of a product at most the "
          "smaller."),
    Claim(3, DINO_MAMBA, "3.3", "theorem", theorems.diagonal_blocks,
          "In causal form the diagonal blocks of all three have full rank C."),
    Claim(4, DINO_MAMBA, "eq. 16", "theorem", theorems.off_diagonal_bounds,
          "Off-diagonal blocks have rank C for softmax, at most D_QK for linear attention, rank(mask) N for Mamba."),
    Claim(5, DINO_MAMBA, "Appendix G", "theorem", theorems.mask_rank,
          "The rank of Mamba's mask off the diagonal is far above 1 in practice."),
    Claim(6, DINO_MAMBA, "eq. 17", "measured", measured.rank_order,
          "So off-diagonal rank orders softmax > Mamba > linear attention."),
    Claim(7, DINO_MAMBA, "Figure 4f", "measured", measured.auc_order,
          "Binary-AUC orders them the same way.", about_maps=True),
    Claim(8, DINO_MAMBA, "Figure 4a", "measured", measured.dino_beats_supervised,
          "DINO's maps score above those of supervised training.", about_maps=True),
    Claim(9, DINO_MAMBA, "Figure 4a, c", "measured", measured.bigger_scores_higher,
          "Bigger models score higher; DINOv2's score lower.", about_maps=True),
    Claim(10, DINO_MAMBA, "Figure 4b", "measured", measured.heads_are_unequal,
          "Heads are unequal, and some do nothing of use."),
    Claim(11, DINO_MAMBA, "Figure 4c", "measured", measured.registers_help_dinov2,
          "Registers raise the scores of DINOv2.", about_maps=True),
    Claim(12, DINO_MAMBA, "Figure 4d", "measured", measured.central_registers_score_highest,
          "Registers in the middle score highest, and scores follow probe accuracy."),
    Claim(13, DINO_MAMBA, "Figure 4e", "measured", measured.score_rises_with_depth,
          "Early layers score below 0.5, and scores rise with depth.", about_maps=True),
    Claim(14, DINO_MAMBA, "Table 1", "measured", measured.probe_order, "Linear probes order ViT > Mamba > LinearViT."),
    Claim(15, DINO_MAMBA, "Table 2", "measured", measured.segmentation_order,
          "Semantic segmentation (ADE20K) orders them so."),
    Claim(16, DINO_MAMBA, "Table 3", "measured", measured.detection_order,
          "COCO detection and instance segmentation order them so."),
    Claim(17, DINO_MAMBA, "Table 4", "measured", measured.robustness_order,
          "Accuracy under distribution shift orders them so."),
    Claim(18, DINO_MAMBA, "Tables 5 and 6", "measured", measured.probe_ablations,
          "Four blocks probe better than one, and the class token better than mean or max pooling."),
    Claim(19, DINO_MAMBA, "3.3", "theorem", theorems.linear_cost, "Mamba's cost is linear in tokens and in state."),
    Claim(20, MAMBAOUT, "eqs. 6 and 7", "theorem", theorems.long_sequences,
          "A Transformer block costs 24 D² L + 4 D L² FLOPs, so a task is long from L > 6 D on: ImageNet is not, "
          "COCO and ADE20K are (at the width of ViT-S; at ViT-B's about)."),
    Claim(21, MAMBAOUT, "Figure 3", "measured", measured.causal_mixing_costs, "Causal mixing costs a ViT accuracy."),
    Claim(22, MAMBAOUT, "Table 1", "measured", measured.gated_cnn_classifies_better,
          "Without its SSM, a gated CNN classifies better than visual Mambas."),
    Claim(23, MAMBAOUT, "Tables 2 and 3", "measured", measured.mamba_does_dense_better,
          "In detection and segmentation it does not: Mamba is ahead."),
    Claim(24, MAMBAOUT, "Tables 1 and 4", "theorem", theorems.mambaout_sizes, "Sizes and MACs of the MambaOut models."),
)
# fmt: on


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    claim: Claim
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        claim = {key: value for key, value in vars(self.claim).items() if key not in ("check", "about_maps")}
        return claim | self.verdict.to_json()


def draw_up(evidence: Evidence, claims: Iterable[Claim] = CLAIMS) -> Iterator[Entry]:
    """Yield the verdict on each claim; one that rests on networks that learnt nothing is "not resolved"."""
    gains = training_gains(evidence.measurements)
    networks = {Network.of(m) for m in evidence.measurements}
    features, maps = (_unlearnt(networks, learnt(gains)) for learnt in (learnt_features, learnt_maps))
    for claim in claims:
        verdict = claim.check(evidence)
        doubtful = {"features": features, "maps": maps if claim.about_maps else set[Network]()}
        decided = verdict.status not in (Status.NOT_RESOLVED, Status.NOT_MEASURED)
        if claim.kind == "measured" and decided and not verdict.proven:
            without = set().union(*doubtful.values())
            firm = claim.check(Evidence(m for m in evidence.measurements if Network.of(m) not in without))
            verdict = firm if firm.status == verdict.status else _withheld(verdict, doubtful)
        yield Entry(claim, verdict)


def _unlearnt(networks: Iterable[Network], learnt: dict[Network, bool]) -> set[Network]:
    """Networks that learnt nothing. A network without a twin of its own (a fine-tuned one) counts as those of
    its architecture and training."""
    kin: dict[Network, list[bool]] = {}
    for network, found in learnt.items():
        kin.setdefault(network._replace(name=""), []).append(found)
    return {each for each in networks if not learnt.get(each, any(kin.get(each._replace(name=""), [True])))}


def _withheld(verdict: Verdict, doubtful: dict[str, set[Network]]) -> Verdict:
    """Not resolved, with the networks that it rests on and that learnt nothing."""
    involved = {kind: sorted({str(each) for each in found & verdict.networks}) for kind, found in doubtful.items()}
    kinds = " and ".join(f"{kind} of {', '.join(names)}" for kind, names in involved.items() if names)
    why = f"but {kinds} are not significantly better than those of their untrained twins"
    return replace(verdict, status=Status.NOT_RESOLVED, measured=f"{verdict.measured}; {why}")
