"""The optimiser's parts against plain loops over parameters."""

import pytest
import torch
from torch import nn

from mixlab.backbones.zoo import create_model
from mixlab.training.config import OptimConfig
from mixlab.training.optim import build_adamw, clip_each_, move_towards_, parameter_groups, set_rates

SMALL = {"dim": 32, "depth": 2, "patch": 8, "image": 32}
FIELDS = {
    "vit_tiny": {**SMALL, "head_dim": 16},
    "dinovim_tiny": {**SMALL, "head_dim": 16, "state": 8},
    "dinomambareg_tiny": {**SMALL, "head_dim": 16, "state": 8, "position_image": 32},
    "gatedconv_tiny": SMALL,
}


def test_clipping_scales_each_gradient_by_its_own_norm_like_a_loop_would() -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = (((5, 7), 9.0), ((3,), 0.1), ((2, 2, 2), 4.0))
    gradients = [torch.randn(shape, generator=generator) * scale for shape, scale in kinds]
    expected, squares = [], 0.0
    for gradient in gradients:
        norm = gradient.norm().item()
        squares += norm**2
        expected.append(gradient * min(1.0, 3.0 / (norm + 1e-6)))
    total = clip_each_(gradients, 3.0)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert total.item() == pytest.approx(squares**0.5, rel=1e-6)


def test_without_a_limit_gradients_stay_and_only_the_norm_is_told() -> None:
    gradient = torch.full((4,), 100.0)
    assert clip_each_([gradient], None).item() == pytest.approx(200.0)
    assert gradient.tolist() == [100.0] * 4


def test_the_moving_average_is_momentum_times_old_plus_the_rest_times_new() -> None:
    generator = torch.Generator().manual_seed(1)
    old = [torch.randn(4, 3, generator=generator), torch.randn(6, generator=generator)]
    new = [torch.randn_like(part) for part in old]
    expected = [0.996 * a + (1 - 0.996) * b for a, b in zip(old, new, strict=True)]
    move_towards_(old, new, 1 - 0.996)
    for ours, theirs in zip(old, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FIELDS)
def test_every_trained_parameter_is_in_exactly_one_group_and_vectors_never_decay(name: str) -> None:
    model = create_model(name, **FIELDS[name])
    groups = parameter_groups(model, model.no_weight_decay())
    names = [n for group in groups for n in group["names"]]
    assert sorted(names) == sorted(n for n, _ in model.named_parameters())
    decayed = dict(zip(groups[0]["names"], groups[0]["params"], strict=True))
    assert all(parameter.ndim >= 2 for parameter in decayed.values())
    for never in ("A_log", "skip", "dt_bias", "conv_bias", "tokens", "table", "bias"):
        assert not any(n.endswith(never) for n in decayed), never


def test_a_name_that_is_not_a_parameter_is_told() -> None:
    with pytest.raises(ValueError, match="wieght"):
        parameter_groups(nn.Linear(2, 2), {"wieght"})


def test_weight_decay_reaches_only_the_decayed_group() -> None:
    layer = nn.Linear(3, 3)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    config = OptimConfig(lr=1.0, weight_decay=0.1, weight_decay_end=0.1)
    optimizer = build_adamw(parameter_groups(layer, set()), config)
    set_rates(optimizer, lr=0.5, weight_decay=0.1)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before["weight"] * (1 - 0.5 * 0.1))
    torch.testing.assert_close(layer.bias.detach(), before["bias"])


def test_a_share_of_the_learning_rate_reaches_only_the_parameters_it_names() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    groups = parameter_groups(network, set(), {"0.": 0.25})
    assert sorted(name for group in groups for name in group["names"]) == sorted(before)
    optimizer = build_adamw(groups, OptimConfig(lr=1.0, weight_decay=0.0, weight_decay_end=0.0))
    set_rates(optimizer, lr=0.5, weight_decay=0.0)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # AdamW's first step is the learning rate, whatever the gradient
    for name, value in network.state_dict().items():
        expected = before[name] - 0.5 * (0.25 if name.startswith("0.") else 1.0)
        torch.testing.assert_close(value, expected)
