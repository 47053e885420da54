"""The tables and figures of MambaOut ("do we really need Mamba for vision?")."""

from collections.abc import Iterator, Sequence
from typing import Any

from mixlab.analysis.claims.counting import MAMBAOUT
from mixlab.recipes import find_recipe
from mixlab.studies.reproduce import readings
from mixlab.studies.reproduce.items import Item, PaperFigure
from mixlab.studies.reproduce.mambaout_tables import TABLE_1, TABLE_2, TABLE_3
from mixlab.studies.reproduce.measures import Planned, accuracy_steps, detect_step, segment_steps
from mixlab.studies.reproduce.networks import ItemSetting, Network
from mixlab.training.supervised import SupervisedConfig

PAPER = "MambaOut"
SIZES = ("femto", "tiny", "small", "base")
# The paper's names: ours, and timm's name where released weights are a classifier of timm.
OWN = {
    **{f"MambaOut-{size.title()}": (f"mambaout_{size}", f"mambaout_{size}") for size in SIZES},
    "DeiT-Ti": ("vit_tiny", ""), "DeiT-S": ("vit_small", ""), "DeiT-B": ("vit_base", ""),
    "Vim-Ti": ("vim_tiny", ""), "Vim-S": ("vim_small", ""),
    "LocalVim-T": ("localvim_tiny", ""), "LocalVim-S": ("localvim_small", ""),
    "EfficientVMamba-T": ("efficientvmamba_tiny", ""), "EfficientVMamba-S": ("efficientvmamba_small", ""),
    "EfficientVMamba-B": ("efficientvmamba_base", ""),
    "VMamba-T": ("vmamba_tiny", ""), "VMamba-S": ("vmamba_small", ""), "VMamba-B": ("vmamba_base", ""),
    "VMambaV9-T": ("vmamba_tiny_s2l5", ""), "VMambaV9-S": ("vmamba_small_s2l15", ""),
    "VMambaV9-B": ("vmamba_base_s2l15", ""),
    "LocalVMamba-T": ("localvmamba_tiny", ""), "LocalVMamba-S": ("localvmamba_small", ""),
    "PlainMamba-L1": ("plainmamba_l1", ""), "PlainMamba-L2": ("plainmamba_l2", ""),
    "PlainMamba-L3": ("plainmamba_l3", ""),
    "Mamba-2D-S": ("mamba2d_small", ""), "Mamba-2D-B": ("mamba2d_base", ""),
}  # fmt: skip
# Models that the paper quotes and timm has under a name that can only mean them.
QUOTED = {
    "FasterNet-T1": "fasternet_t1", "InceptionNeXt-A": "inception_next_atto", "InceptionNeXt-T": "inception_next_tiny",
    "PVTv2-B0": "pvt_v2_b0", "PVTv2-B2": "pvt_v2_b2", "PVTv2-B3": "pvt_v2_b3", "PVTv2-B5": "pvt_v2_b5",
    "PoolFormer-S24": "poolformer_s24",
    "ConvNeXt-T": "convnext_tiny", "ConvNeXt-S": "convnext_small", "ConvNeXt-B": "convnext_base",
    "Swin-T": "swin_tiny_patch4_window7_224", "Swin-S": "swin_small_patch4_window7_224",
    "Swin-B": "swin_base_patch4_window7_224",
    "ConvFormer-S18": "convformer_s18", "ConvFormer-S36": "convformer_s36", "ConvFormer-M36": "convformer_m36",
    "CAFormer-S18": "caformer_s18", "CAFormer-S36": "caformer_s36", "CAFormer-M36": "caformer_m36",
    "MViTv2-S": "mvitv2_small", "MViTv2-B": "mvitv2_base",
}  # fmt: skip
CROPPED = ("ConvNeXt", "PVTv2", "Swin", "MViTv2")  # published with 224 of 256 px; timm has other shares of them
CAUSAL = {
    size: Network(
        f"vit_causal_{size}", "supervised", f"ViT-{short}, causal", tiny=("model.causal=true", "model.place=back")
    )
    for size, short in (("tiny", "Ti"), ("small", "S"))
}
FIGURE_3B = {"tiny": ("ViT-Ti", 72.2, 70.6), "small": ("ViT-S", 79.8, 78.9)}
FIGURE_1B = ("MambaOut", "VMamba", "PlainMamba", "Vim")  # families in the chart
MASK_RCNN = ("method.head=mask", "optim.weight_decay=0.05", "optim.weight_decay_end=0.05")
UPERNET = ("optim.lr=1e-4",)
AP_COLUMNS = (
    ("boxes", "AP"),
    ("boxes", "AP50"),
    ("boxes", "AP75"),
    ("masks", "AP"),
    ("masks", "AP50"),
    ("masks", "AP75"),
)


def network_of(title: str) -> Network | None:
    """The network behind a row; None for what neither the zoo nor timm has."""
    if title in OWN:
        return Network(OWN[title][0], "supervised", title, timm_name=OWN[title][1])
    if title in QUOTED:
        share = 0.875 if title.startswith(CROPPED) else None
        return Network(f"timm/{QUOTED[title]}", "supervised", title, timm_name=QUOTED[title], crop_share=share)
    return None


def _networks(titles: Sequence[str]) -> tuple[Network, ...]:
    return tuple(network for title in titles if (network := network_of(title)) is not None)


def _classified(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        yield from accuracy_steps(setting, network)


def _detected(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        own = network.model.startswith(("mambaout", "timm/"))  # whose recipe it is already
        yield detect_step(setting, network, "mask", *(() if own else MASK_RCNN[1:]))


def _segmented(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        own = network.model.startswith("mambaout")
        yield from segment_steps(setting, network, *(() if own else UPERNET), multi=True)


def _never(setting: ItemSetting) -> None:
    """Of rows that the paper quotes and nothing here has."""


def _table1_cells(titles: Sequence[str]) -> Iterator[PaperFigure]:
    for title in titles:
        params, macs, top1 = TABLE_1[title]
        network = network_of(title)
        read = _never if network is None else readings.top1(network)
        yield PaperFigure(title, "top-1, %", top1, read, network)
        if network is not None and not network.model.startswith("timm/"):
            yield PaperFigure(title, "parameters, M", params, readings.num_parameters(network), network, unit=1e-6)
            if macs is not None:
                yield PaperFigure(title, "MACs, G", macs, readings.num_macs(network), network, unit=1e-9)


def _table2_cells() -> Iterator[PaperFigure]:
    for title, (_, _, *values) in TABLE_2.items():
        network = network_of(title)
        for (kind, name), value in zip(AP_COLUMNS, values, strict=True):
            if value is not None:
                read = _never if network is None else readings.detection(network, kind, name)
                yield PaperFigure(title, f"{kind} {name}", value, read, network)


def _table3_cells() -> Iterator[PaperFigure]:
    for title, (_, _, *values) in TABLE_3.items():
        network = network_of(title)
        for mode, value in zip(("single", "multi"), values, strict=True):
            if value is not None:
                read = _never if network is None else readings.segmentation(network, "miou", mode)
                yield PaperFigure(title, f"mIoU, {mode}-scale", value, read, network)


def _table4_cells() -> Iterator[PaperFigure]:
    for size in SIZES:
        params, macs = MAMBAOUT[size]
        network = network_of(f"MambaOut-{size.title()}")
        assert network is not None
        yield PaperFigure(
            network.title, "parameters, M", params, readings.num_parameters(network, always=True), network, unit=1e-6
        )
        yield PaperFigure(network.title, "MACs, G", macs, readings.num_macs(network, always=True), network, unit=1e-9)


def table5_settings() -> list[tuple[str, Any, Any]]:
    """Each setting of Table 5: its name, ours by the recipe, the paper's."""
    found: list[tuple[str, Any, Any]] = []
    for size, drop_path in zip(SIZES, (0.025, 0.2, 0.4, 0.6), strict=True):
        config = find_recipe(f"supervised_mambaout_{size}")
        method, optim = config.method, config.optim
        assert isinstance(method, SupervisedConfig)
        found.append((f"stochastic depth, {size}", config.model.fields["drop_path_rate"], drop_path))
        if size == "femto":
            found += [
                ("input", method.size, 224),
                ("epochs", config.epochs, 300),
                ("batch", config.batch, 4096),
                ("learning rate", optim.lr * config.batch / optim.lr_batch, 4e-3),
                ("decay", optim.decay.partition("_")[0], "cosine"),
                ("betas", optim.betas, (0.9, 0.999)),
                ("gradient clipping", optim.clip, None),
                ("warm-up epochs", optim.warmup_epochs, 20),
                ("weight decay", optim.weight_decay, 0.05),
                ("RandAugment", method.rand_augment, 9.0),
                ("mixup", method.mixup, 0.8),
                ("cutmix", method.cutmix, 1.0),
                ("switch", method.switch, 0.5),
                ("erasing", method.erasing, 0.25),
                ("label smoothing", method.smoothing, 0.1),
            ]
    return found


def _drawing(name: str, place: str, title: str, note: str) -> Item:
    return Item(f"mambaout-{name}", PAPER, place, title, note=note)


_ROWS = {name: [*table] for name, table in (("1", TABLE_1), ("2", TABLE_2), ("3", TABLE_3))}
_CHART = [title for title in TABLE_1 if title.partition("-")[0] in FIGURE_1B]
_VITS = tuple(network_of(title) for title in ("DeiT-Ti", "DeiT-S"))
_CHARTED = "A chart of rows of Table 1: the visual Mambas come from released weights."
_QUOTED = (
    "The paper quotes all models but its own. Those that the zoo or timm has come from released weights: --weights "
    "vmamba_tiny=FILE, --weights timm/convnext_tiny=FILE; the others are listed for comparison."
)


def _fig3b_cells() -> Iterator[PaperFigure]:
    for size, (title, visible, causal) in FIGURE_3B.items():
        own = Network(f"vit_{size}", "supervised", title)
        yield PaperFigure(f"{title}, fully visible", "top-1, %", visible, readings.top1(own), own)
        yield PaperFigure(f"{title}, causal", "top-1, %", causal, readings.top1(CAUSAL[size]), CAUSAL[size])


ITEMS: tuple[Item, ...] = (
    _drawing("fig1a", "Figure 1a", "Gated CNN and Mamba blocks",
             "A drawing. `gatedconv_*` is the block of Dino-Mamba without its scan, `mambaout_*` the paper's own."),
    Item("mambaout-fig1b", PAPER, "Figure 1b", "Accuracy against MACs", _networks(_CHART), classifies=True,
         work=_classified, cells=tuple(_table1_cells(_CHART)), note=_CHARTED),
    _drawing("fig2", "Figure 2", "Memory of causal attention and of RNNs", "A drawing."),
    _drawing("fig3a", "Figure 3a", "Two modes of token mixing",
             "A drawing. `mixlab app` shows the matrices of a causal ViT (`vit_causal_tiny`) and of a plain one."),
    Item("mambaout-fig3b", PAPER, "Figure 3b", "Causal mixing costs a ViT accuracy",
         (*(network for network in _VITS if network), *CAUSAL.values()), classifies=True, work=_classified,
         cells=tuple(_fig3b_cells()),
         note="The paper does not say how its causal ViT reads its answer. A class token in front would see nothing: "
         "ours comes last (`vit_causal_*`). Both are trained by DeiT's recipe, on which the paper builds."),
    _drawing("fig4", "Figure 4", "The four stages of MambaOut", "A drawing. `mixlab models mambaout_*` has the sizes."),
    Item("mambaout-table1", PAPER, "Table 1", "Classification of ImageNet-1k", _networks(_ROWS["1"]),
         classifies=True, work=_classified, cells=tuple(_table1_cells(_ROWS["1"])), note=_QUOTED),
    Item("mambaout-table2", PAPER, "Table 2", "Detection and instance masks on COCO: Mask R-CNN, 1x",
         _networks(_ROWS["2"]), data=("coco",), work=_detected, cells=tuple(_table2_cells()), note=_QUOTED),
    Item("mambaout-table3", PAPER, "Table 3", "Semantic segmentation of ADE20K: UperNet", _networks(_ROWS["3"]),
         data=("ade20k",), work=_segmented, cells=tuple(_table3_cells()), note=_QUOTED),
    Item("mambaout-table4", PAPER, "Table 4", "Sizes of MambaOut", cells=tuple(_table4_cells()),
         note="Counted, not measured: nothing has to be trained."),
    Item("mambaout-table5", PAPER, "Table 5", "Settings of training with labels", settings=table5_settings,
         note="The settings of the recipes supervised_mambaout_*, beside the paper's."),
)  # fmt: skip
