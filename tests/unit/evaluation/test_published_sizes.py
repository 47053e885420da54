"""Parameters and multiply-accumulates of the models in both papers' tables, counted, against the printed figures.

A model is one more row. Rows of models that only stand beside the papers' own are counted with MIXLAB_ALL_SIZES=1.
"""

import os
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixlab.analysis.cost import count_parameters, on_meta
from mixlab.evaluation.detection.recipe import detect
from mixlab.evaluation.detection.regions import MASK_REGION, REGION
from mixlab.evaluation.segmentation.recipe import segment
from mixlab.training.config import ModelConfig

UNCOUNTED = 0.01  # of the MACs: norms, activations and resizing, which some tools count in part and we do not


class Row(NamedTuple):
    """A line of a table: millions of parameters and billions of MACs as printed, None where there is no figure."""

    model: str
    millions: str
    gmacs: str | None = None
    own: bool = True  # of the paper itself


IMAGENET = [  # MambaOut, Tables 1 and 4, 224 x 224: with the classifier
    Row("mambaout_femto", "7.3", "1.2"),
    Row("mambaout_kobe", "9.1"),  # its README
    Row("mambaout_tiny", "26.5", "4.5"),
    Row("mambaout_small", "48.5", "9.0"),
    Row("mambaout_base", "84.8", "15.8"),
    Row("vit_tiny", "6", "1.3"),  # DeiT
    Row("vit_small", "22", "4.6"),
    Row("vit_base", "86.57", "17.5"),  # printed as 86
    Row("timm/convnext_tiny", "29", "4.5", own=False),
    Row("timm/convnext_small", "50", "8.7", own=False),
    Row("timm/convnext_base", "89", "15.4", own=False),
    Row("timm/swin_tiny_patch4_window7_224", "28.3", "4.5", own=False),  # printed as 29
    Row("timm/swin_small_patch4_window7_224", "50", "8.7", own=False),
    Row("timm/swin_base_patch4_window7_224", "88", "15.4", own=False),
    Row("timm/convformer_s18", "27", "3.9", own=False),
    Row("timm/convformer_s36", "40", "7.6", own=False),
    Row("timm/convformer_m36", "57", "12.8", own=False),
    Row("timm/caformer_s18", "26", "4.1", own=False),
    Row("timm/caformer_s36", "39", "8.0", own=False),
    Row("timm/caformer_m36", "56", "13.2", own=False),
    Row("timm/poolformer_s24", "21", "3.4", own=False),
    Row("timm/inception_next_atto", "4", "0.5", own=False),
    Row("timm/inception_next_tiny", "28", "4.2", own=False),
    Row("timm/fasternet_t1", "8", "0.9", own=False),
    Row("timm/mvitv2_small", "35", "7.0", own=False),
]
DINO_BACKBONES = [  # Dino-Mamba, Table 1, which cuts digits off, and its released code: without a classifier
    Row("vit_small", "21.67"),
    Row("vit_base", "85.80"),
    Row("linearvit_base", "85.80"),
    Row("dinovim_tiny", "10.71"),
    Row("dinovim_small", "40.35"),
    Row("dinovim_base", "88.97"),
    Row("dinomambareg_base", "88.88"),
]
MASK_RCNN = [  # MambaOut, Table 2, 800 x 1280, 80 classes
    Row("mambaout_tiny", "43", "262"),
    Row("mambaout_small", "65", "354"),
    Row("mambaout_base", "100", "495"),
    Row("timm/convnext_tiny", "48", "262", own=False),
    Row("timm/convnext_small", "70", "348", own=False),
    Row("timm/convnext_base", "108", "486", own=False),
]
UPERNET = [  # MambaOut, Table 3, 512 x 2048, 150 classes
    Row("mambaout_tiny", "54", "938"),
    Row("mambaout_small", "76", "1032"),
    Row("mambaout_base", "112", "1178"),
    Row("timm/convnext_tiny", "60", "939", own=False),
    Row("timm/convnext_small", "82", "1027", own=False),
    Row("timm/convnext_base", "122", "1170", own=False),
]


def classifier(name: str) -> tuple[nn.Module, float]:
    network = on_meta(name).with_classifier(1000).eval()
    with FlopCounterMode(display=False) as counter:
        network(torch.empty(1, 3, 224, 224))
    return network, counter.get_total_flops() / 2e9


def backbone(name: str) -> tuple[nn.Module, float]:
    return on_meta(name), 0.0


def mask_rcnn(name: str) -> tuple[nn.Module, float]:
    """Heads on 1,000 and masks on 100 regions, as mmdetection counts them."""
    config = detect(ModelConfig(name=name))
    method = replace(config.method, head="mask")
    network = method.build(config.model.build(), num_classes=80, total_steps=1, steps_per_epoch=1).network.eval()
    (stage,) = network.regions.stages
    with FlopCounterMode(display=False) as counter:
        network.proposals.head(network.maps(torch.empty(1, 3, 800, 1280)))
        stage.boxes(torch.empty(1000, 256, REGION, REGION))
        stage.masks(torch.empty(100, 256, MASK_REGION, MASK_REGION))
    return network, counter.get_total_flops() / 2e9


def upernet(name: str) -> tuple[nn.Module, float]:
    config = segment(ModelConfig(name=name))
    recipe = config.method.build(config.model.build(), num_classes=150, total_steps=1, steps_per_epoch=1)
    with FlopCounterMode(display=False) as counter:
        recipe.network.eval()(torch.empty(1, 3, 512, 2048))
    return recipe.network, counter.get_total_flops() / 2e9


TABLES = [(classifier, IMAGENET), (backbone, DINO_BACKBONES), (mask_rcnn, MASK_RCNN), (upernet, UPERNET)]
ROWS = [
    pytest.param(build, row, id=f"{build.__name__}-{row.model}")
    for build, rows in TABLES
    for row in rows
    if row.own or os.environ.get("MIXLAB_ALL_SIZES")
]


def half_a_unit(printed: str) -> float:
    """Of the last digit."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2]) + 1e-9


@pytest.mark.parametrize(("build", "row"), ROWS)
def test_sizes_and_costs_are_those_of_the_papers_tables(build, row: Row) -> None:
    with torch.device("meta"), torch.no_grad():
        network, gmacs = build(row.model)
    assert count_parameters(network) / 1e6 == pytest.approx(float(row.millions), abs=half_a_unit(row.millions))
    if row.gmacs is not None:
        printed = float(row.gmacs)
        assert gmacs == pytest.approx(printed, abs=half_a_unit(row.gmacs) + UNCOUNTED * printed)
