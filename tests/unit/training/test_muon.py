"""Muon: its matrices against torch's own, which takes them one by one; the rest as AdamW."""

import pytest
import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.zoo import create_model
from mixlab.data.loader import Batch
from mixlab.recipes import RECIPES
from mixlab.training.config import OptimConfig
from mixlab.training.distributed import World
from mixlab.training.muon import linear_weights, orthogonal
from mixlab.training.optim import build_optimizer, parameter_groups, set_rates
from mixlab.training.recipe import seed_all
from mixlab.training.settings import override
from mixlab.training.state import TrainingState
from mixlab.training.update import Update

CONFIG = OptimConfig(name="muon", lr=1e-3, weight_decay=0.1, weight_decay_end=0.1)
SMALL = ["optim.name=muon", "precision=fp32", "batch=4", "model.dim=32", "model.depth=2", "model.image=32",
         "method.num_prototypes=16", "method.hidden=16", "method.bottleneck=8", "method.num_local=2",
         "method.global_size=32", "method.local_size=16", "optim.warmup_epochs=0", "epochs=2"]  # fmt: skip
FAMILIES = ["vit", "linearvit", "dinovim", "dinomambareg", "gatedconv"]


@pytest.mark.parametrize("shape", [(40, 100), (100, 40), (64, 64), (7, 1)])
def test_singular_values_end_near_one_and_their_vectors_stay(shape: tuple[int, int]) -> None:
    given = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = orthogonal(given)
    left, values, right = torch.linalg.svd(given, full_matrices=False)
    seen = left.mT @ found @ right.mT  # diagonal: the same singular vectors
    diagonal = seen.diagonal(dim1=-2, dim2=-1)
    assert (seen - torch.diag_embed(diagonal)).abs().max() < 1e-9
    large = values > 0.02 * values[:, :1]  # smaller ones need more iterations
    assert diagonal[large].min() > 0.5
    assert diagonal.max() < 1.3


def train(network: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_a_step_is_torchs_for_matrices_and_adamws_for_the_rest() -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(24, 48), nn.Linear(48, 24), nn.Linear(24, 24))

    ours, theirs = network(), network()
    groups = parameter_groups(ours, set(), muon=("0.weight", "1.weight"))
    optimizer = build_optimizer(groups, CONFIG)
    set_rates(optimizer, lr=1e-2, weight_decay=0.1)
    matrices = [theirs[0].weight, theirs[1].weight]
    rest = [theirs[0].bias, theirs[1].bias, theirs[2].bias]
    peer = [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([theirs[2].weight], lr=1e-2, weight_decay=0.1),
        torch.optim.AdamW(rest, lr=1e-2, weight_decay=0.0),
    ]
    before = [parameter.detach().clone() for parameter in ours.parameters()]
    found = train(ours, [optimizer])
    expected = train(theirs, peer)
    for start, own, other in zip(before, found, expected, strict=True):
        moved = (other - start).norm()
        assert (own - other).norm() < 0.02 * moved  # torch's works in bfloat16 here, too
        assert moved > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_nearly_all_of_a_backbone_is_matrices_of_layers(family: str) -> None:
    network = nn.Sequential(create_model(f"{family}_tiny"), nn.Linear(192, 10))
    names = linear_weights(network, inside=Backbone)
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    assert names <= sizes.keys()
    assert all(name.startswith("0.") for name in names)  # not the head
    assert sum(sizes[name] for name in names) > 0.9 * sum(sizes.values())


def state_and_step(family: str):
    setup = override(RECIPES[f"dino_{family}_tiny64"](), SMALL)
    seed_all(0)
    recipe = setup.method.build(setup.model.build(), num_classes=4, total_steps=4, steps_per_epoch=2)
    update = Update(recipe, setup, steps_per_epoch=2, world=World(torch.device("cpu")))
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch = Batch(pixels, torch.zeros(4).long(), torch.arange(4), torch.full((4, 2), 32))
    return TrainingState(recipe, update.optimizer), lambda step: update([batch], step)


@pytest.mark.parametrize("family", ["vit", "dinovim"])
def test_a_run_resumes_to_the_same_bits(family: str) -> None:
    whole, step = state_and_step(family)
    for number in range(2):
        step(number)
    stored = {name: value.clone() for name, value in whole.tensors().items()}
    assert any(name.startswith("optimizer/momentum/") for name in stored)
    resumed, other_step = state_and_step(family)
    resumed.load(iter(stored.items()))
    for number in range(2, 4):
        step(number)
        other_step(number)
    ours, theirs = resumed.tensors(), whole.tensors()
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
