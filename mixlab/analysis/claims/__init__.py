"""The ledger: each claim of the two papers in our words, its source, and the verdict, by computation or from the given
runs. No verdict is written by hand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mixlab.analysis.claims import ablations, counting, low_rank, maps, orders, theorems
from mixlab.analysis.claims.evidence import Evidence, Status, Verdict
from mixlab.analysis.comparisons import Network, learnt_features, learnt_maps, training_gains

__all__ = ["CLAIMS", "Claim", "Entry", "Evidence", "Status", "Verdict", "draw_up", "judged_alone"]

DINO_MAMBA, MAMBAOUT = "RNN as Linear Transformer", "MambaOut"


@dataclass(frozen=True)
class Claim:
    """`theorem`: mathematics or counting settles it; `measured`: only experiments do. Numbers never change: what is
    split or added gets a new one."""

    number: int | str
    paper: str
    place: str
    kind: Literal["theorem", "measured"]
    check: Callable[[Evidence], Verdict]
    statement: str
    command: str = ""  # measures what it needs, for each network; none for theorems
    note: str = ""  # what the paper itself says against it, or where the networks here differ from the paper's
    about_maps: bool = False  # it ranks maps by their scores: these must have learnt something


_PROBE = "mixlab probe RUN --data IMAGENET"
_AUC = "mixlab auc RUN --data MASKS"
# fmt: off
CLAIMS: tuple[Claim, ...] = (
    Claim(1, DINO_MAMBA, "eq. 11", "theorem", theorems.one_form,
          "Softmax attention, linear attention and Mamba are all Y = M X."),
    Claim(2, DINO_MAMBA, "Lemmas 1 and 2", "theorem", theorems.lemmas,
          "The rank of an entry-wise product is at most the product of the ranks; the rank of a matrix product is at "
          "most the smaller rank."),
    Claim(3, DINO_MAMBA, "3.3", "theorem", theorems.diagonal_blocks,
          "In causal form, triangular matrices guarantee full rank C of the diagonal blocks of all three mixers.",
          note="The paper's M has no skip connection; checked without it and with it, as networks run."),
    Claim("4a", DINO_MAMBA, "eq. 16", "theorem", theorems.off_diagonal_bounds,
          "Off-diagonal blocks have rank at most D_QK for linear attention, and rank(mask) N for Mamba."),
    Claim("4b", DINO_MAMBA, "3.3", "measured", low_rank.softmax_has_full_rank,
          "Off-diagonal blocks of softmax attention have full rank C.",
          "mixlab rank RUN --data IMAGES --image 512 --chunk 256"),
    Claim(5, DINO_MAMBA, "Appendix G", "theorem", theorems.mask_rank,
          "The rank of Mamba's mask off the diagonal is far above 1 in practice."),
    Claim(6, DINO_MAMBA, "eq. 17", "measured", orders.rank_order,
          "Off-diagonal rank orders softmax attention > Mamba > linear attention.",
          "mixlab rank RUN --data IMAGES --image 512 --chunk 256"),
    Claim(7, DINO_MAMBA, "Figure 4f", "measured", orders.auc_order,
          "Binary-AUC orders softmax attention > Mamba > linear attention.", _AUC, about_maps=True),
    Claim(8, DINO_MAMBA, "Figure 4a", "measured", maps.dino_beats_supervised,
          "DINO's maps score above those of supervised training.", f"{_AUC} --study training",
          note="The paper's supervised Mambas are the released Vim and Mamba-Reg (vim_NAME, mambareg_NAME), which scan "
               "with Mamba-1; `mixlab reproduce dino-mamba-fig4a` scores them. Pairs of one architecture count, too.",
          about_maps=True),
    Claim(9, DINO_MAMBA, "Figure 4a, c", "measured", maps.bigger_scores_higher,
          "Bigger models score higher; DINOv2's score lower.", f"{_AUC} --study size",
          note="Figure 9 of the same paper says otherwise of DinoVim: see claim 31.", about_maps=True),
    Claim(10, DINO_MAMBA, "Figure 4b", "measured", maps.heads_are_unequal,
          "Heads differ, and some do nothing useful.", f"{_AUC} --study head"),
    Claim(11, DINO_MAMBA, "Figure 4c", "measured", maps.registers_help_dinov2,
          "Registers raise the scores of DINOv2.", "mixlab auc timm/MODEL --data MASKS --training dinov2",
          note="The claim is about the released weights, so one network of each kind is enough.", about_maps=True),
    Claim(12, DINO_MAMBA, "Figure 4d", "measured", maps.central_registers_score_highest,
          "Registers in the middle score highest, and scores follow probe accuracy.", f"{_AUC} --study register",
          note="By raw AUC, as in the paper: a map that is darker on the foreground scores below 0.5, however clear.",
          about_maps=True),
    Claim(13, DINO_MAMBA, "Figure 4e", "measured", maps.score_rises_with_depth,
          "Early layers score below 0.5, and scores rise with depth.", f"{_AUC} --study layer", about_maps=True),
    Claim(14, DINO_MAMBA, "Table 1", "measured", orders.probe_order,
          "Linear probes order ViT > Mamba > LinearViT.", _PROBE),
    Claim(15, DINO_MAMBA, "Table 2", "measured", orders.segmentation_order,
          "Semantic segmentation (ADE20K) orders ViT > Mamba > LinearViT.",
          "mixlab segment RUN --data ADE20K --run RUN-segment"),
    Claim(16, DINO_MAMBA, "Table 3", "measured", orders.detection_order,
          "COCO detection and instance segmentation order ViT > Mamba > LinearViT.",
          "mixlab detect RUN --data COCO --run RUN-detect"),
    Claim(17, DINO_MAMBA, "Table 4", "measured", orders.robustness_order,
          "Accuracy under distribution shift orders ViT > Mamba > LinearViT.",
          "mixlab robust RUN --data v2=V2 sketch=SKETCH",
          note="The paper's own Table 4 contradicts it: on Sketch DinoVim-B is ahead of ViT-B (27.6 against 25.5 %), "
               "and on V2 (matched frequency) the two are equal (66.6 %)."),
    Claim(18, DINO_MAMBA, "Tables 5 and 6", "measured", ablations.probe_ablations,
          "Four blocks probe better than one, and the class token better than mean or max pooling.",
          f"{_PROBE} --heads grid"),
    Claim(19, DINO_MAMBA, "3.3", "theorem", counting.linear_cost, "Mamba's cost is linear in tokens and in state."),
    Claim(20, MAMBAOUT, "eqs. 6 and 7", "theorem", counting.long_sequences,
          "A Transformer block costs 24 D² L + 4 D L² FLOPs, so a task is long if L > 6 D: ImageNet is not, "
          "COCO and ADE20K are at the width of ViT-S, and about so at that of ViT-B."),
    Claim(21, MAMBAOUT, "Figure 3", "measured", orders.causal_mixing_costs, "Causal mixing costs a ViT accuracy.",
          "mixlab train supervised_vit_small --data IMAGENET --run RUN --set model.causal=true"),
    Claim(22, MAMBAOUT, "Table 1", "measured", orders.gated_cnn_classifies_better,
          "Without its SSM, a gated CNN classifies better than visual Mambas.",
          "mixlab train supervised_mambaout_tiny --data IMAGENET --run RUN",
          note="gatedconv_NAME is a stand-in: DinoVim's block without its scan, with MambaOut's 7 x 7 window on the "
               "grid instead of four taps along the sequence, and pooled patches instead of a class token. MambaOut "
               "itself is mambaout_NAME, its rivals are vim_NAME, vmamba_NAME and their kin: where these were measured "
               "(`mixlab reproduce mambaout-table1`), they decide."),
    Claim(23, MAMBAOUT, "Tables 2 and 3", "measured", orders.mamba_does_dense_better,
          "In detection and segmentation a gated CNN falls short of state-of-the-art visual Mambas (VMamba, "
          "LocalVMamba), though not of all visual Mambas.",
          "mixlab segment RUN --data ADE20K --run RUN-segment",
          note="DinoVim is a plain Mamba, not one of those: it decides nothing here."),
    Claim(24, MAMBAOUT, "Tables 1 and 4", "theorem", counting.mambaout_sizes, "Sizes and MACs of the MambaOut models."),
    Claim(25, DINO_MAMBA, "Abstract", "measured", low_rank.low_rank_suffices,
          "Mamba, and linear attention, can be viewed as low-rank approximations of softmax attention: rank N holds "
          "99 % of the energy of its matrices.",
          "mixlab rank RUN --data IMAGES --image 512 --chunk 256 --whole",
          note="The best approximation of rank N is the most that any of them could do (Eckart and Young). That a "
               "trained Mamba mixes as a trained softmax does is neither claimed nor tested."),
    Claim(26, DINO_MAMBA, "Figure 4b", "measured", maps.linear_heads_score_lower,
          "Heads of linear attention score below those of softmax attention.", f"{_AUC} --study head", about_maps=True),
    Claim(27, DINO_MAMBA, "Table 5, left", "measured", ablations.more_blocks_probe_better,
          "Probes improve from one block to two, three and four.", f"{_PROBE} --heads grid"),
    Claim(28, DINO_MAMBA, "Table 6", "measured", ablations.strategies_order,
          "Probes order class token > class token and mean > class token and max > mean > max.",
          f"{_PROBE} --heads grid"),
    Claim(29, DINO_MAMBA, "Table 5, middle and right", "measured", ablations.rates_order,
          "Probes order weight decays 1e-3 > 0 > 5e-3 > 1e-2, and learning rates 2e-3 > 1e-3 > 5e-4 > 2.5e-4.",
          f"{_PROBE} --heads grid",
          note="The published steps are 0.1 points, 50 of 50,000 images: one training cannot show them."),
    Claim(30, DINO_MAMBA, "Table 1", "measured", orders.registers_probe_better,
          "Mamba-Reg probes better than DinoVim (78.5 against 78.3 %).", f"{_PROBE} --heads heavy"),
    Claim(31, DINO_MAMBA, "Figure 9", "measured", maps.small_dinovim_scores_highest,
          "Of DinoVim's sizes, small has the clearest maps.", f"{_AUC} --study size",
          note="This claim and claim 9 cannot both hold.", about_maps=True),
    Claim(32, DINO_MAMBA, "3.3", "theorem", counting.linear_attention_cost,
          "Linear attention costs O(L D_QK²)."),
    Claim(33, MAMBAOUT, "Tables 2 and 3", "theorem", counting.dense_sizes,
          "Sizes and MACs of Mask R-CNN and UperNet with MambaOut."),
    Claim(34, DINO_MAMBA, "Figure 8", "measured", maps.middle_token_is_clearer,
          "DinoVim's class token in the middle has clearer maps than its copy in front.", f"{_AUC} --study token",
          about_maps=True),
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
        if verdict.status == Status.NOT_MEASURED:
            verdict = replace(verdict, measured=f"{verdict.measured}; `{claim.command}` measures it")
        yield Entry(claim, verdict)


def judged_alone(studies: Mapping[str, Evidence]) -> dict[int | str, dict[str, Status]]:
    """By the number of each claim that experiments decide: the verdict of each study by itself."""
    found: dict[int | str, dict[str, Status]] = {}
    for name, evidence in studies.items():
        for entry in draw_up(evidence, [claim for claim in CLAIMS if claim.kind == "measured"]):
            found.setdefault(entry.claim.number, {})[name] = entry.verdict.status
    return found


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
