"""UperNet against what MambaOut publishes of it."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mixlab.recipes import RECIPES


@pytest.mark.parametrize(("size", "millions", "gmacs"), [("tiny", 54, 938), ("small", 76, 1032), ("base", 112, 1178)])
def test_upernet_on_mambaout_has_the_parameters_and_macs_of_table_3(size: str, millions: int, gmacs: int) -> None:
    """At 512 x 2048, 150 classes; the published figures are rounded."""
    config = RECIPES[f"segment_mambaout_{size}"]()
    with torch.device("meta"):
        recipe = config.method.build(config.model.build(), num_classes=150, total_steps=1, steps_per_epoch=1)
        network, images = recipe.network.eval(), torch.empty(1, 3, 512, 2048)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(images)
    assert sum(parameter.numel() for parameter in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.5)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, rel=2e-3)
