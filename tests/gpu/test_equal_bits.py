"""Equal inputs give equal gradients on a GPU, bit by bit, for every family at every image size."""

import pytest
import torch

import mixlab
from mixlab.bench.timing import training_pass

FAMILIES = ("dinovim_tiny", "dinomambareg_tiny", "vit_tiny", "linearvit_tiny", "gatedconv_tiny")
SIZES = ((224, 224), (96, 96), (160, 256))  # the last two resize the position table
REPEATS = 100


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_equal_inputs_are_equal_bits(name: str) -> None:
    torch.manual_seed(0)
    model = mixlab.create_model(name, depth=2).cuda().train()
    for size in SIZES:
        step = training_pass(model, torch.randn(16, 3, *size, device="cuda"))
        step()
        first = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        assert len(first) > 10
        for _ in range(REPEATS - 1):
            step()
            different = [key for key, p in model.named_parameters() if key in first and not p.grad.equal(first[key])]
            assert not different, f"{name} at {size}: {different}"
