"""The ledger: each claim of the two papers in our words, where it stands, and what becomes of it, by computation or by
the runs at hand. No verdict is written by hand.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from mixlab.analysis.claims import measured, theorems
from mixlab.analysis.claims.evidence import Evidence, Status, Verdict
from mixlab.analysis.comparisons import Network, learnt_features, learnt_maps, training_gains

DINO_MAMBA, MAMBAOUT = "RNN as Linear Transformer", "MambaOut"


@dataclass(frozen=True)
class Claim:
    """`theorem`: mathematics or counting settles it; `measured`: only experiments do."""

    number: int
    paper: str
    place: str
    statement: str
    kind: Literal["theorem", "measured"]
    check: Callable[[Evidence], Verdict]
    about_maps: bool = False  # it compares scores of whole models' maps, which must have learnt something


def _theorem(number: int, paper: str, place: str, statement: str, check: Callable[[Evidence], Verdict]) -> Claim:
    return Claim(number, paper, place, statement, "theorem", check)


def _measured(number: int, paper: str, place: str, statement: str, check: Callable[[Evidence], Verdict]) -> Claim:
    return Claim(number, paper, place, statement, "measured", check)


def _of_maps(number: int, place: str, statement: str, check: Callable[[Evidence], Verdict]) -> Claim:
    return Claim(number, DINO_MAMBA, place, statement, "measured", check, about_maps=True)


CLAIMS: tuple[Claim, ...] = (
    _theorem(
        1, DINO_MAMBA, "eq. 11", "Softmax attention, linear attention and Mamba are all Y = M X.", theorems.one_form
    ),
    _theorem(
        2,
        DINO_MAMBA,
        "Lemmas 1 and 2",
        "The rank of an entry-wise product is at most the product of the ranks, that of a product at most the smaller.",
        theorems.lemmas,
    ),
    _theorem(
        3,
        DINO_MAMBA,
        "3.3",
        "In causal form the diagonal blocks of all three have full rank C.",
        theorems.diagonal_blocks,
    ),
    _theorem(
        4,
        DINO_MAMBA,
        "eq. 16",
        "Off-diagonal blocks have rank C for softmax, at most D_QK for linear attention, rank(mask) N for Mamba.",
        theorems.off_diagonal_bounds,
    ),
    _theorem(
        5,
        DINO_MAMBA,
        "Appendix G",
        "The rank of Mamba's mask off the diagonal is far above 1 in practice.",
        theorems.mask_rank,
    ),
    _measured(
        6, DINO_MAMBA, "eq. 17", "So off-diagonal rank orders softmax > Mamba > linear attention.", measured.rank_order
    ),
    _of_maps(7, "Figure 4f", "Binary-AUC orders them the same way.", measured.auc_order),
    _of_maps(
        8,
        "Figure 4a",
        "DINO's maps score above those of supervised training.",
        measured.dino_beats_supervised,
    ),
    _of_maps(
        9,
        "Figure 4a, c",
        "Bigger models score higher; DINOv2's score lower.",
        measured.bigger_scores_higher,
    ),
    _measured(
        10, DINO_MAMBA, "Figure 4b", "Heads are unequal, and some do nothing of use.", measured.heads_are_unequal
    ),
    _of_maps(11, "Figure 4c", "Registers raise the scores of DINOv2.", measured.registers_help_dinov2),
    _measured(
        12,
        DINO_MAMBA,
        "Figure 4d",
        "Registers in the middle score highest, and scores follow probe accuracy.",
        measured.central_registers_score_highest,
    ),
    _of_maps(
        13,
        "Figure 4e",
        "Early layers score below 0.5, and scores rise with depth.",
        measured.score_rises_with_depth,
    ),
    _measured(14, DINO_MAMBA, "Table 1", "Linear probes order ViT > Mamba > LinearViT.", measured.probe_order),
    _measured(15, DINO_MAMBA, "Table 2", "Semantic segmentation (ADE20K) orders them so.", measured.segmentation_order),
    _measured(
        16, DINO_MAMBA, "Table 3", "COCO detection and instance segmentation order them so.", measured.detection_order
    ),
    _measured(
        17, DINO_MAMBA, "Table 4", "Accuracy under distribution shift orders them so.", measured.robustness_order
    ),
    _measured(
        18,
        DINO_MAMBA,
        "Tables 5 and 6",
        "Four blocks probe better than one, and the class token better than mean or max pooling.",
        measured.probe_ablations,
    ),
    _theorem(19, DINO_MAMBA, "3.3", "Mamba's cost is linear in tokens and in state.", theorems.linear_cost),
    _theorem(
        20,
        MAMBAOUT,
        "eqs. 6 and 7",
        "A Transformer block costs 24 D² L + 4 D L² FLOPs, so a task is long from L > 6 D on: ImageNet is not, COCO "
        "and ADE20K are (at the width of ViT-S; at ViT-B's about).",
        theorems.long_sequences,
    ),
    _measured(21, MAMBAOUT, "Figure 3", "Causal mixing costs a ViT accuracy.", measured.causal_mixing_costs),
    _measured(
        22,
        MAMBAOUT,
        "Table 1",
        "Without its SSM, a gated CNN classifies better than visual Mambas.",
        measured.gated_cnn_classifies_better,
    ),
    _measured(
        23,
        MAMBAOUT,
        "Tables 2 and 3",
        "In detection and segmentation it does not: Mamba is ahead.",
        measured.mamba_does_dense_better,
    ),
    _theorem(24, MAMBAOUT, "Tables 1 and 4", "Sizes and MACs of the MambaOut models.", theorems.mambaout_sizes),
)


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    claim: Claim
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        claim = {key: value for key, value in vars(self.claim).items() if key not in ("check", "about_maps")}
        return claim | self.verdict.to_json()


def draw_up(evidence: Evidence, claims: Iterable[Claim] = CLAIMS) -> Iterator[Entry]:
    """Yield the verdict on each claim; what rests on networks that learnt nothing is no verdict."""
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
    """Networks that learnt nothing. A network without a twin of its own (one that was fine-tuned) is judged by those of
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
