"""Counted, not typed in: the arithmetic of mixers and the advice that follows. Sizes: test_published_sizes.py."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import mixlab
from mixlab.analysis import cost
from mixlab.analysis.cost import count_macs, give_advice, mixer_costs, on_meta
from mixlab.analysis.equal_parts import form_of
from mixlab.backbones.block import Layer
from mixlab.evaluation.target import Target
from mixlab.mixers import AttentionConfig, GatedConvConfig, LinearAttentionConfig, MixerConfig
from mixlab.run import measurements_of


def test_macs_of_a_scan_are_linear_in_tokens_and_those_of_attention_are_not() -> None:
    def growth(name: str) -> float:
        small, large = (count_macs(on_meta(name, image=side, depth=2, dim=64), side) for side in (256, 512))
        return large / small

    assert growth("dinovim_tiny") < 4.1
    assert growth("vit_tiny") > 6


@pytest.mark.parametrize(
    ("size", "dim", "length"),
    [
        ((224, 224), 384, "short"),  # ImageNet
        ((224, 224), 768, "short"),
        ((800, 1280), 384, "long"),  # COCO at test time
        ((512, 2048), 384, "long"),  # ADE20K
        ((800, 1280), 768, "near the threshold"),  # 4,000 tokens against 4,608: the paper's "approximately"
        ((2048, 2048), 768, "long"),
    ],
)
def test_the_paper_s_own_examples_come_out_as_it_says(size: tuple[int, int], dim: int, length: str) -> None:
    advice = give_advice(height=size[0], width=size[1], patch=16, dim=dim)
    assert advice.length == length
    assert advice.threshold == 6 * dim
    assert length in advice.answer


def test_the_quadratic_part_overtakes_the_linear_part_at_six_times_the_width() -> None:
    dim = 64
    attention = mixer_costs(6 * dim, dim)[0]
    assert attention.mixing_flops * 2 == attention.layer_flops


def test_attention_costs_are_what_a_real_layer_runs() -> None:
    dim, length = 128, 96
    layer = Layer(dim=dim, depth=1, mixer=AttentionConfig(), norm="layer", mlp_ratio=4.0, drop_path=0.0)
    layer.requires_grad_(False)
    tokens = torch.randn(1, length, dim)
    with FlopCounterMode(display=False) as counter:
        layer(tokens, tokens, (8, 12))
    assert counter.get_total_flops() == mixer_costs(length, dim)[0].layer_flops


@pytest.mark.parametrize("config", [AttentionConfig(), LinearAttentionConfig(), GatedConvConfig()])
def test_a_mixer_counts_what_its_mixing_runs(config: MixerConfig) -> None:
    mixing, _ = config.build(dim=128, depth=1).requires_grad_(False).prepare(torch.randn(1, 96, 128), (8, 12))
    with FlopCounterMode(display=False) as counter:
        mixing.apply()
    assert counter.get_total_flops() == 2 * config.mixing_macs(96, 128)


def test_autoregressive_tasks_are_told_about_the_state() -> None:
    assert "token by token" in give_advice(height=224, width=224, patch=16, dim=384, autoregressive=True).answer


def test_a_scan_is_not_advised_where_attention_costs_less() -> None:
    found = give_advice(height=230, width=17, patch=16, dim=1).answer
    assert "take softmax attention" in found and "worth trying" not in found
    assert "worth trying" in give_advice(height=800, width=1280, patch=16, dim=384).answer


@pytest.mark.parametrize("bad", [{"height": 8}, {"patch": 0}, {"dim": -1}])
def test_impossible_sizes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="patch|at least 1"):
        give_advice(**{"height": 224, "width": 224, "patch": 16, "dim": 384, **bad})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("dinovim_tiny", {"dim": 32, "depth": 3, "drop_path": 0.2}),
        ("localvim_tiny", {"dim": 32, "depth": 3}),  # every layer has scans of its own, some pad the grid
        ("plainmamba_l1", {"dim": 32, "depth": 3}),  # the first layer has one convolution more
        ("efficientvmamba_tiny", {"dims": (16, 32, 64, 128), "depths": (1, 2, 2, 1)}),
        ("mambaout_femto", {}),
    ],
)
def test_equal_parts_are_run_once_and_counted_as_often_as_they_are_there(name: str, fields: dict[str, Any]) -> None:
    def counted_one_by_one(side: int) -> int:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, side, side))
        return counter.get_total_flops() // 2

    model, known = on_meta(name, **fields), {}
    assert [count_macs(model, 224, known=known) for _ in range(2)] == [counted_one_by_one(224)] * 2
    if name == "mambaout_femto":  # other shapes are other work
        assert count_macs(model, 192, known=known) == counted_one_by_one(192)


def test_parts_that_differ_in_a_setting_are_not_equal() -> None:
    one, other, wider = (nn.Conv2d(4, 4, 3, stride=stride, padding=1) for stride in (1, 1, 2))
    assert form_of(one) == form_of(other) != form_of(wider)
    assert form_of(nn.Sequential(one, nn.ReLU())) != form_of(nn.Sequential(one, nn.GELU()))


def test_speeds_on_other_numbers_of_threads_are_of_another_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TIMED_SECONDS", 0.0)
    model = mixlab.create_model("vit_tiny", dim=32, depth=1, image=32, head_dim=16).eval()
    result = cost.measure_cost(Target(label="vit", backbone=model))
    [speed] = measurements_of(result, "cost")
    assert speed["threads"] == torch.get_num_threads() and speed["device"] == "cpu"
