"""The tables and figures of Dino-Mamba ("RNN as Linear Transformer")."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from mixlab.evaluation import paper
from mixlab.evaluation.features import LIGHT_WIDTH
from mixlab.studies.reproduce import readings
from mixlab.studies.reproduce.data_sets import SHIFTED
from mixlab.studies.reproduce.items import Item, PaperFigure
from mixlab.studies.reproduce.measures import (
    Planned,
    auc_step,
    detect_step,
    maps_step,
    probe_step,
    rank_step,
    robust_step,
    segment_steps,
)
from mixlab.studies.reproduce.networks import ItemSetting, Network

PAPER = "Dino-Mamba"
TITLES = {
    "vit_tiny": "ViT-Ti", "vit_small": "ViT-S", "vit_base": "ViT-B", "linearvit_base": "LinearViT-B",
    "dinovim_tiny": "DinoVim-T", "dinovim_small": "DinoVim-S", "dinovim_base": "DinoVim-B",
    "dinomambareg_base": "DinoMamba-Reg-B",
}  # fmt: skip
# The ViTs' figures are those of DINO itself, whose trainings were longer than the recipe's 100 epochs.
DINO = {
    model: Network(
        model, "dino", title,
        settings=(f"epochs={paper.PRETRAINING_EPOCHS[model]}",) if model in paper.PRETRAINING_EPOCHS else (),
    )
    for model, title in TITLES.items()
}  # fmt: skip
SUPERVISED = {
    **{
        f"vit_{size}": Network(f"vit_{size}", "supervised", f"DeiT-{short}")
        for size, short in (("tiny", "Ti"), ("small", "S"), ("base", "B"))
    },
    **{
        f"{family}_{size}": Network(f"{family}_{size}", "supervised", f"{title}-{short}, supervised")
        for family, title in (("vim", "Vim"), ("mambareg", "Mamba-Reg"))
        for size, short in (("tiny", "T"), ("small", "S"), ("base", "B"))
    },
}
BASE = (DINO["linearvit_base"], DINO["dinovim_base"], DINO["vit_base"])
DINOVIM = (DINO["dinovim_tiny"], DINO["dinovim_small"], DINO["dinovim_base"])
REGISTERS = DINO["dinomambareg_base"]
DINOV2 = tuple(
    Network(
        f"timm/vit_{size}_patch14_{registers}dinov2", "dinov2",
        f"DINOv2 ViT-{size[0].upper()}{' with registers' if registers else ''}",
        tiny=("model.num_registers=4",) if registers else (),
    )
    for size in ("small", "base", "large", "giant") for registers in ("", "reg4_")
)  # fmt: skip
# Figure 4a: each network with labels beside the one without that the paper draws in its colour.
PAIRS = (
    ("vit_small", "vit_small"), ("vit_base", "vit_base"),
    ("dinovim_tiny", "vim_tiny"), ("dinovim_small", "vim_small"), ("dinovim_base", "vim_base"),
    ("dinomambareg_base", "mambareg_base"),
)  # fmt: skip
AP_COLUMNS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
TABLE_2 = {"linearvit_base": (29.2, 38.7), "dinovim_base": (38.0, 47.1), "vit_base": (43.2, 52.5)}
TABLE_3 = {
    "linearvit_base": ((37.1, 54.7, 39.9, 20.3, 39.8, 50.3), (32.6, 52.1, 34.8, 15.0, 34.5, 48.9)),
    "dinovim_base": ((42.8, 60.3, 46.4, 25.4, 46.0, 57.0), (37.4, 58.0, 40.3, 18.2, 40.1, 55.0)),
    "vit_base": ((44.8, 63.7, 48.4, 25.8, 47.8, 61.0), (39.1, 61.0, 41.9, 18.9, 41.0, 58.1)),
}
TABLE_1_BACKBONES = {
    "vit_small": 21, "vit_base": 85, "linearvit_base": 85, "dinovim_tiny": 10, "dinovim_small": 40, "dinovim_base": 88,
    "dinomambareg_base": 88,
}  # fmt: skip
LIGHT, HEAVY, GRID = "probe", "heavy", "grid"  # names of probes; `robust` reads "probe"
Work = Callable[[ItemSetting, Sequence[Network]], Iterator[Planned]]


def _of(model: str) -> tuple[str, ...]:
    """Which heads Table 1 has of a model."""
    return tuple(_head(width) for name, width in paper.TABLE_1 if name == model)


def _head(width: int) -> str:
    return LIGHT if width == LIGHT_WIDTH else HEAVY


def _table1(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        for name in _of(network.model):
            yield probe_step(setting, network, name, "--heads", "light" if name == LIGHT else "heavy")


def _table2(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        yield from segment_steps(setting, network)


def _table3(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        yield detect_step(setting, network, "cascade")


def _table4(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        yield probe_step(setting, network, LIGHT, "--heads", "light")
        yield robust_step(setting, network)


def _ablation(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        yield probe_step(setting, network, GRID, "--heads", "grid")


def _fig4a(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    families = {(network.model.rpartition("_")[0], network.training) for network in networks}
    models = {network.model for network in networks}
    studies = ["model"]
    if len(families) < len(networks):
        studies.append("size")
    if len(models) < len(networks):
        studies.append("training")
    yield auc_step(setting, "dino-mamba-fig4a", networks, *studies)


def _fig4c(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    sizes = [network.size for network in networks]
    studies = ["model"]
    if len(set(sizes)) < len(sizes):
        studies.append("registers")
    if len(networks) > len({"reg4" in network.model for network in networks}):
        studies.append("size")
    yield auc_step(setting, "dino-mamba-fig4c", networks, *studies)


def _fig4d(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    probes = [
        probe_step(setting, network, "registers", "--blocks", "1", "--strategies", "registers") for network in networks
    ]
    yield from probes
    yield auc_step(setting, "dino-mamba-fig4d", networks, "register", after=tuple(one.step.name for one in probes))


def _scored(name: str, *studies: str) -> Work:
    return lambda setting, networks: iter((auc_step(setting, name, networks, *studies),))


THRESHOLD = ("--pca-threshold", "0")  # as the paper colours components: where the first is high


def _drawn(name: str, *options: str, studies: tuple[str, ...] = ()) -> Work:
    """Pictures and, where a figure has ROC curves below them, scores."""

    def work(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
        yield maps_step(setting, name, networks, *options)
        if studies:
            yield auc_step(setting, name, networks, *studies)

    return work


def _above(item: str, study: str, better: Network, worse: Network, column: str = "Binary-AUC") -> PaperFigure:
    return PaperFigure(
        f"{better.title} minus {worse.title}", column, None, readings.score_gap(item, study, better.key, worse.key),
        better, unit=100.0, said="above 0",
    )  # fmt: skip


def _scores(item: str, study: str, networks: Sequence[Network]) -> tuple[PaperFigure, ...]:
    return tuple(
        PaperFigure(
            network.title, "Binary-AUC, %", None, readings.score(item, study, network), network, said="in the picture"
        )
        for network in networks
    )


def _table1_cells() -> Iterator[PaperFigure]:
    for (model, width), value in paper.TABLE_1.items():
        network, name = DINO[model], _head(width)
        title = network.title if name == LIGHT else f"{network.title}, heavy head"
        yield PaperFigure(title, "top-1, %", value, readings.probe_best(network, name), network)
    for model, count in TABLE_1_BACKBONES.items():
        read = readings.backbone_parameters(DINO[model])
        yield PaperFigure(DINO[model].title, "backbone, M", count, read, DINO[model], unit=1e-6)


def _table2_cells() -> Iterator[PaperFigure]:
    for model, values in TABLE_2.items():
        for metric, title, value in zip(("miou", "macc"), ("mIoU, %", "mAcc, %"), values, strict=True):
            yield PaperFigure(DINO[model].title, title, value, readings.segmentation(DINO[model], metric), DINO[model])


def _table3_cells() -> Iterator[PaperFigure]:
    for model, kinds in TABLE_3.items():
        for kind, values in zip(("boxes", "masks"), kinds, strict=True):
            for name, value in zip(AP_COLUMNS, values, strict=True):
                read = readings.detection(DINO[model], kind, name)
                yield PaperFigure(DINO[model].title, f"{kind} {name}", value, read, DINO[model])


def _table4_cells() -> Iterator[PaperFigure]:
    for model, values in paper.TABLE_4.items():
        for name, value in zip(paper.TABLE_4_COLUMNS, values, strict=True):
            yield PaperFigure(DINO[model].title, f"{name}, %", value, readings.shifted(DINO[model], name), DINO[model])


def _ablation_cells(table: int) -> Iterator[PaperFigure]:
    network = DINO[paper.ABLATION_MODEL]
    for (blocks, strategy, lr, decay), value in paper.ABLATIONS.items():
        read = readings.probe_head(network, GRID, blocks, strategy, lr, decay)
        if table == 5 and strategy == "cls":
            yield PaperFigure(f"{blocks} blocks, wd {decay:g}, lr {lr:g}", "top-1, %", value, read, network)
        if table == 6 and (blocks, lr, decay) == (paper.BASE[0], *paper.BASE[2:]):
            yield PaperFigure(strategy, "top-1, %", value, read, network)


def _rank_cells() -> Iterator[PaperFigure]:
    item, C, N = "dino-mamba-ranks", 256, 64
    for network in reversed(BASE):
        yield PaperFigure(
            network.title, "rank, diagonal", C, readings.block_rank(item, network, "diagonal"), network, unit=1.0
        )
        off = readings.block_rank(item, network, "off_diagonal")
        said = {"vit_base": C, "linearvit_base": None, "dinovim_base": None}[network.model]
        words = {"linearvit_base": f"at most {N}", "dinovim_base": f"at most rank(L) x {N}"}.get(network.model, "")
        yield PaperFigure(network.title, "rank, off-diagonal", said, off, network, unit=1.0, said=words)
        bound = readings.block_rank(item, network, "off_diagonal", "bound")
        yield PaperFigure(
            network.title, "bound, off-diagonal", C if network.model == "vit_base" else N, bound, network, unit=1.0
        )


def _drawing(place: str, title: str, note: str) -> Item:
    return Item(f"dino-mamba-{place.lower().replace('figure ', 'fig')}", PAPER, place, title, note=note)


def _item(name: str, place: str, title: str, networks: Sequence[Network], **rest: object) -> Item:
    return Item(f"dino-mamba-{name}", PAPER, place, title, tuple(networks), **rest)  # type: ignore[arg-type]


_PAIRED = tuple((DINO[first], SUPERVISED[second]) for first, second in PAIRS)
_MASKED = {"data": ("imagenet-s",)}
_RELEASED_MAMBAS = (
    "The supervised Vim and Mamba-Reg are Mamba-1 and come from released weights: --weights vim_small=FILE."
)
_OPEN_MAPS = "The paper does not say which images it draws: these are evenly spaced over ImageNet-S's validation."
_FIG5 = tuple(pair for pair in _PAIRED if pair[0].model.endswith("_base"))


def _ranked(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    yield rank_step(setting, "dino-mamba-ranks", networks)


def _orders(item: str, study: str, *networks: Network) -> tuple[PaperFigure, ...]:
    """Each above the next, by what the paper says of them."""
    return tuple(_above(item, study, a, b) for a, b in pairwise(networks))


def _fig4c_cells() -> Iterator[PaperFigure]:
    plain, registers = DINOV2[::2], DINOV2[1::2]
    for with_registers, without in zip(registers, plain, strict=True):
        yield _above("dino-mamba-fig4c", "model", with_registers, without)
    yield from _orders("dino-mamba-fig4c", "model", *plain)


ITEMS: tuple[Item, ...] = (
    _item(
        "table1", "Table 1", "Linear probing on ImageNet-1k", [DINO[model] for model in TABLE_1_BACKBONES],
        work=_table1, cells=tuple(_table1_cells()),
        note="The paper reports the best of sixteen heads on the validation images that choose it; so does this table. "
        "`mixlab probe` also prints what the choice on the other half gives. The ViTs' figures are DINO's own, after "
        "800 (ViT-S) and 400 epochs (ViT-B); its released files replace these trainings: --weights vit_base=FILE.",
    ),
    _item("table2", "Table 2", "Semantic segmentation on ADE20K: UperNet", BASE, data=("ade20k",), work=_table2,
          cells=tuple(_table2_cells()), note="Figures are on one scale: the paper does not mention several."),
    _item("table3", "Table 3", "Detection and instance masks on COCO: Cascade Mask R-CNN", BASE, data=("coco",),
          work=_table3, cells=tuple(_table3_cells())),
    _item("table4", "Table 4", "Accuracy of the probes on shifted sets", BASE, data=SHIFTED, work=_table4,
          cells=tuple(_table4_cells()),
          note="The paper does not say which heads: these are the light ones of Table 1. Its text says that ViT is the "
          "highest on all sets; on Sketch its table has DinoVim-B above ViT-B."),
    _item("table5", "Table 5", "Probes by blocks, weight decay and learning rate", [DINO["dinovim_small"]],
          work=_ablation, cells=tuple(_ablation_cells(5)),
          note="The paper gives lr 1e-3 and wd 0 for what is not varied, and wd 1e-3 where the learning rate is. Table "
          "6 reads the same 320 probes."),
    _item("table6", "Table 6", "Probes by strategy", [DINO["dinovim_small"]], work=_ablation,
          cells=tuple(_ablation_cells(6))),
    _item("ranks", "Appendix G, table of ranks", "Ranks of diagonal and off-diagonal blocks", tuple(reversed(BASE)),
          work=_ranked, cells=tuple(_rank_cells()), **_MASKED,
          note="Blocks of 256 need more than 256 tokens: images of 512 px. The paper's order rests on a mask of high "
          "rank; the mask of Mamba-2 has rank 1 off the diagonal (`mixlab claims`, claim 5), so Mamba's bound is N, as "
          "that of linear attention."),
    _item("fig1", "Figure 1", "Maps of softmax attention, Mamba and linear attention", tuple(reversed(BASE)),
          work=_drawn("dino-mamba-fig1"), **_MASKED, note=_OPEN_MAPS),
    _drawing("Figure 2", "One form for three mixers",
             "A drawing of block matrices. `mixlab rank` draws those of any model, block by block."),
    _drawing("Figure 3", "How Binary-AUC is computed", "A drawing. `mixlab.binary_auc` is the metric."),
    _item("fig4a", "Figure 4a", "Binary-AUC, with labels against without, and by size",
          [*dict.fromkeys(network for pair in _PAIRED for network in pair)], work=_fig4a, **_MASKED,
          cells=(
              *(_above("dino-mamba-fig4a", "model", *pair) for pair in _PAIRED),
              *_orders("dino-mamba-fig4a", "size", *reversed(DINOVIM)),
              *_orders("dino-mamba-fig4a", "size", DINO["vit_base"], DINO["vit_small"]),
          ),
          note=f"{_RELEASED_MAMBAS} Pairs of different architectures are compared by the study `model`."),
    _item("fig4b", "Figure 4b", "Binary-AUC of each head of the last two layers",
          (DINO["vit_base"], DINO["linearvit_base"]), work=_scored("dino-mamba-fig4b", "model", "head"), **_MASKED,
          cells=_orders("dino-mamba-fig4b", "model", DINO["vit_base"], DINO["linearvit_base"]),
          note="Heads are scored by the class token's row of each head's matrix."),
    _item("fig4c", "Figure 4c", "Binary-AUC of DINOv2, with and without registers", DINOV2, work=_fig4c, **_MASKED,
          cells=tuple(_fig4c_cells()),
          note="DINOv2 is not trained here: give its released weights, in timm's form or in its own. The paper has "
          "smaller models above larger ones here."),
    _item("fig4d", "Figure 4d", "Binary-AUC and probe of each register, by its place", (REGISTERS,), work=_fig4d,
          **_MASKED,
          cells=(
              *(
                  PaperFigure(f"middle third minus {part} third", "raw AUC", None, readings.score_gap(
                      "dino-mamba-fig4d", "register", f"{REGISTERS.key}, middle registers",
                      f"{REGISTERS.key}, {part} registers"), REGISTERS, said="above 0")
                  for part in ("first", "last")
              ),
              PaperFigure("AUC with probe accuracy", "rank correlation", None,
                   readings.correlation("dino-mamba-fig4d", "register", REGISTERS.key), REGISTERS, unit=1.0,
                   said="high", digits=2),
          )),
    _item("fig4e", "Figure 4e", "Raw AUC after each layer", tuple(reversed(BASE)),
          work=_scored("dino-mamba-fig4e", "layer"), **_MASKED,
          cells=tuple(
              PaperFigure(network.title, "rank correlation with depth", None,
                   readings.correlation("dino-mamba-fig4e", "layer", network.key), network, unit=1.0, said="rising",
                   digits=2)
              for network in reversed(BASE)
          ),
          note="The paper does not name the models of this panel; these are its base models."),
    _item("fig4f", "Figure 4f", "Binary-AUC of softmax attention, Mamba and linear attention", tuple(reversed(BASE)),
          work=_scored("dino-mamba-fig4f", "model"), **_MASKED,
          cells=(*_scores("dino-mamba-fig4f", "model", tuple(reversed(BASE))),
                 *_orders("dino-mamba-fig4f", "model", *reversed(BASE)))),
    _item("fig5", "Figure 5", "Maps with labels and without: Mamba-Reg, Vim, ViT",
          [*dict.fromkeys(network for pair in _FIG5 for network in pair)], work=_drawn("dino-mamba-fig5"), **_MASKED,
          note=f"{_RELEASED_MAMBAS} {_OPEN_MAPS}"),
    _item("fig6", "Figure 6", "Principal components of three mixers; maps of DinoVim's sizes",
          (*reversed(BASE), DINO["dinovim_small"], DINO["dinovim_tiny"]),
          work=_drawn("dino-mamba-fig6", *THRESHOLD), **_MASKED, note=_OPEN_MAPS),
    _item("fig7", "Figure 7", "One map per register", (REGISTERS,),
          work=_drawn("dino-mamba-fig7", "--map", "register_cosine"), **_MASKED, note=_OPEN_MAPS),
    _item("fig8", "Figure 8", "Class token in the middle against its copy in front: maps and ROC",
          (DINO["dinovim_base"],),
          work=_drawn("dino-mamba-fig8", "--map", "cosine+front_cosine", studies=("token",)), **_MASKED,
          cells=(
              PaperFigure("in the middle minus in front", "Binary-AUC", None, readings.score_gap(
                  "dino-mamba-fig8", "token", f"{DINO['dinovim_base'].key}, class token in the middle",
                  f"{DINO['dinovim_base'].key}, class token in front"), DINO["dinovim_base"], said="above 0"),
          ),
          note="The paper does not name the size. The released model has one class token at two places: in front, with "
          "a position, and in the middle; the map of each is its cosine to the patches."),
    _item("fig9", "Figure 9", "Maps and ROC of DinoVim's sizes", tuple(reversed(DINOVIM)),
          work=_drawn("dino-mamba-fig9", studies=("model",)), **_MASKED,
          cells=(_above("dino-mamba-fig9", "model", DINO["dinovim_small"], DINO["dinovim_base"]),
                 _above("dino-mamba-fig9", "model", DINO["dinovim_small"], DINO["dinovim_tiny"])),
          note="Its caption calls the small model's maps the clearest; Figure 4a has larger models higher."),
    _item("fig10", "Figure 10", "More maps of softmax attention, Mamba and linear attention", tuple(reversed(BASE)),
          work=_drawn("dino-mamba-fig10"), **_MASKED, note=_OPEN_MAPS),
    _item("fig11", "Figure 11", "Maps and ROC, with labels against without",
          [*dict.fromkeys(network for pair in _FIG5 for network in pair)],
          work=_drawn("dino-mamba-fig11", studies=("model",)), **_MASKED,
          cells=tuple(_above("dino-mamba-fig11", "model", *pair) for pair in _FIG5), note=_RELEASED_MAMBAS),
    _item("fig12", "Figure 12", "More principal components, under one threshold", tuple(reversed(BASE)),
          work=_drawn("dino-mamba-fig12", *THRESHOLD), **_MASKED,
          note="The paper does not give its threshold; 0 is the mean of each image's first component."),
    _drawing("Figure 13", "Visual Mamba in DINO", "A drawing of student, teacher and token layouts. The recipes dino_* "
             "are that; docs/mathematics.md has the equations."),
)  # fmt: skip
