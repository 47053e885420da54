"""The optimiser's parts against plain loops over parameters, and schedules against the tables that DINO builds."""

import math

import numpy as np
import pytest
import torch
from timm.scheduler import CosineLRScheduler
from torch import nn

from mixlab.backbones.zoo import create_model
from mixlab.evaluation.methods import train_config
from mixlab.recipes import RECIPES
from mixlab.run.codec import to_json
from mixlab.training.config import OptimConfig
from mixlab.training.optim import build_optimizer, clip_each_, move_towards_, parameter_groups, set_rates
from mixlab.training.schedules import Course, cosine, learning_rate, linear_by_epoch
from mixlab.training.stored_settings import is_older

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
    optimizer = build_optimizer(parameter_groups(layer, set()), config)
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
    optimizer = build_optimizer(groups, OptimConfig(lr=1.0, weight_decay=0.0, weight_decay_end=0.0))
    set_rates(optimizer, lr=0.5, weight_decay=0.0)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # AdamW's first step is the learning rate, whatever the gradient
    for name, value in network.state_dict().items():
        expected = before[name] - 0.5 * (0.25 if name.startswith("0.") else 1.0)
        torch.testing.assert_close(value, expected)


def dino_table(base: float, final: float, epochs: int, per_epoch: int, warmup_epochs: int = 0) -> np.ndarray:
    """One value per step: a ramp, then half a cosine over what is left."""
    ramp = np.linspace(0, base, warmup_epochs * per_epoch)
    rest = np.arange(epochs * per_epoch - len(ramp))
    return np.concatenate([ramp, final + 0.5 * (base - final) * (1 + np.cos(np.pi * rest / len(rest)))])


@pytest.mark.parametrize(("epochs", "per_epoch", "warmup"), [(10, 7, 3), (5, 1, 2), (4, 9, 0), (3, 5, 1)])
def test_the_learning_rate_follows_the_table_of_dino_at_every_step(epochs: int, per_epoch: int, warmup: int) -> None:
    table = dino_table(2e-3, 1e-6, epochs, per_epoch, warmup)
    ours = [
        learning_rate(step, Course(peak=2e-3, end=1e-6, warmup=warmup * per_epoch, total=epochs * per_epoch))
        for step in range(epochs * per_epoch)
    ]
    np.testing.assert_allclose(ours, table, rtol=1e-12, atol=1e-15)


def test_the_learning_rate_by_epoch_is_that_of_timm() -> None:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=4e-3)
    timms = CosineLRScheduler(optimiser, t_initial=30, lr_min=1e-5, warmup_t=4, warmup_lr_init=1e-6)
    schedule = {"peak": 4e-3, "end": 1e-5, "start": 1e-6, "warmup": 4 * 7, "total": 30 * 7, "steps_per_epoch": 7}
    for epoch in range(30):
        (expected,) = timms._get_lr(epoch)
        ours = [learning_rate(7 * epoch + step, Course(**schedule), "cosine_by_epoch") for step in (0, 6)]
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_published_recipes_with_labels_have_timms_learning_rate_and_older_runs_keep_theirs() -> None:
    for name in ("supervised_mambaout_tiny", "supervised_vit_small"):
        config = RECIPES[name]()
        assert config.optim.decay == "cosine_by_epoch"
        stored = to_json(config)
        assert not is_older(stored, config)
        assert is_older({**stored, "optim": {**stored["optim"], "decay": "cosine"}}, config)
    dino = RECIPES["dino_vit_small"]()
    assert dino.optim.decay == "cosine" and not is_older(to_json(dino), dino)


def test_a_run_of_a_recipe_before_muon_resumes_by_adamw() -> None:
    config = RECIPES["dino_vit_tiny160"]()
    stored = to_json(config)
    assert config.optim.name == "muon" and not is_older(stored, config)
    del stored["optim"]["name"]
    assert is_older(stored, config) and train_config(stored).optim.name == "adamw"


def test_momentum_and_weight_decay_follow_a_cosine_without_warm_up() -> None:
    table = dino_table(0.996, 1.0, 6, 11)
    np.testing.assert_allclose([cosine(s, start=0.996, end=1.0, total=66) for s in range(66)], table, rtol=1e-12)


def test_the_teacher_temperature_rises_in_equal_steps_and_then_stays() -> None:
    table = np.concatenate([np.linspace(0.04, 0.07, 30), np.full(20, 0.07)])
    np.testing.assert_allclose([linear_by_epoch(e, start=0.04, end=0.07, epochs=30) for e in range(50)], table)


def test_no_warm_up_means_the_final_temperature_from_the_start() -> None:
    assert linear_by_epoch(0, start=0.04, end=0.07, epochs=0) == 0.07


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_short_warm_up_of_the_temperature_is_that_of_dinos_table(epochs: int) -> None:
    table = [*np.linspace(0.04, 0.07, epochs), 0.07, 0.07]
    found = [linear_by_epoch(epoch, start=0.04, end=0.07, epochs=epochs) for epoch in range(epochs + 2)]
    np.testing.assert_allclose(found, table)


def test_a_cosine_ends_where_it_should_and_stays_there() -> None:
    assert cosine(100, start=1.0, end=0.25, total=100) == pytest.approx(0.25)
    assert cosine(500, start=1.0, end=0.25, total=100) == pytest.approx(0.25)
    assert math.isclose(cosine(50, start=1.0, end=0.0, total=100), 0.5)


def test_poly_falls_in_a_straight_line_after_the_warm_up() -> None:
    course = Course(peak=6e-5, end=0.0, start=6e-11, warmup=15, total=115)
    rates = [learning_rate(s, course, "poly") for s in range(116)]
    np.testing.assert_allclose(rates[:15], np.linspace(6e-11, 6e-5, 15))
    np.testing.assert_allclose(rates[15:], np.linspace(6e-5, 0.0, 101), atol=1e-18)


def test_drops_leave_a_tenth_each() -> None:
    course = Course(peak=1e-4, end=0.0, warmup=2, total=12, drops=(8, 11))
    rates = [learning_rate(s, course, "drops") for s in range(12)]
    np.testing.assert_allclose(rates, [0, *[1e-4] * 7, *[1e-5] * 3, 1e-6])


def test_unknown_names_are_refused() -> None:
    for setting, said in (("decay", "cosine, cosine_by_epoch, poly, drops"), ("name", "adamw, muon")):
        with pytest.raises(ValueError, match=f"optim.{setting} is 'stairs'; choose one of {said}, or load the plugin"):
            OptimConfig(lr=1.0, weight_decay=0.0, weight_decay_end=0.0, **{setting: "stairs"})


def test_a_warm_up_of_one_step_has_the_full_rate_and_not_none() -> None:
    rates = [learning_rate(s, Course(peak=2.0, end=0.0, warmup=1, total=9), "drops") for s in range(3)]
    assert rates == [2.0] * 3


def test_muon_trains_a_matrix_that_does_not_decay() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    groups = parameter_groups(network, {"0.weight"}, muon={"0.weight", "1.weight"})
    assert [(group["names"], group["decay"]) for group in groups if group["muon"]] == [
        (["1.weight"], True),
        (["0.weight"], False),
    ]
