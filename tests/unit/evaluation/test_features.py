"""What probes read, against features put together by hand."""

import pytest
import torch
from torch import Tensor

import mixlab
from mixlab.backbones.backbone import Backbone
from mixlab.evaluation.features import (
    FeaturePlan,
    HeadInput,
    head_inputs,
    heavy_blocks,
    is_light_as_dinos,
    light_blocks,
    possible_strategies,
    published_source,
)

SMALL = {"dim": 32, "depth": 4, "image": 32, "patch": 8}


def make(name: str, **fields) -> Backbone:
    torch.manual_seed(0)
    return mixlab.create_model(name, **SMALL, **fields).eval()


def by_hand(backbone: Backbone, images: Tensor, head: HeadInput, source: str) -> Tensor:
    layers = [features for _, features in backbone.features(images, layers=head.blocks, source=source)]
    pools = {
        "cls": [f.summary for f in layers],
        "mean": [f.patches.flatten(1, 2).sum(1) / f.patches[0, ..., 0].numel() for f in layers],
        "max": [f.patches.flatten(1, 2).max(1).values for f in layers],
    }
    return torch.cat([part for pool in head.strategy.split("+") for part in pools[pool]], dim=1)


@pytest.mark.parametrize("name", ["dinovim_tiny", "dinomambareg_tiny", "vit_tiny"])
@pytest.mark.parametrize("source", ["branch", "stream"])
def test_every_input_is_cut_from_one_pass_as_if_it_were_taken_alone(name: str, source: str) -> None:
    heads = {"num_registers": 3} if "reg" in name else {}
    backbone = make(name, head_dim=16, **heads)
    images = torch.randn(3, 3, 32, 32)
    inputs = head_inputs(backbone, (1, 2, 4), possible_strategies(backbone))
    assert len(inputs) == 15
    plan = FeaturePlan.build(backbone, inputs, source=source, image=32)
    features = plan.extract(backbone, images)
    assert features.shape == (3, plan.width) == (3, 3 * 4 * 32)
    for head in inputs:
        expected = by_hand(backbone, images, head, source)
        torch.testing.assert_close(plan.take(features, head), expected, rtol=1e-5, atol=1e-5)
        assert plan.width_of(head) == expected.shape[1]


def test_only_what_is_asked_for_is_taken() -> None:
    backbone = make("vit_tiny", head_dim=16)
    plan = FeaturePlan.build(backbone, [HeadInput(4, "cls"), HeadInput(1, "cls+max")], source="stream", image=32)
    assert plan.pools == (("cls", (32, 32, 32, 32)), ("max", (32,)))
    assert plan.width == 160


def test_stages_of_different_width_are_put_together_too() -> None:
    backbone = mixlab.create_model("mambaout_femto").eval()
    images = torch.randn(2, 3, 64, 64)
    plan = FeaturePlan.build(backbone, head_inputs(backbone, (1, 3), ("mean", "max")), source="stream", image=64)
    assert plan.pools[0] == ("mean", (96, 192, 288))
    features = plan.extract(backbone, images)
    head = HeadInput(3, "max")
    torch.testing.assert_close(plan.take(features, head), by_hand(backbone, images, head, "stream"))


def test_the_output_is_what_the_backbone_returns() -> None:
    backbone = mixlab.create_model("timm/tf_efficientnet_lite0").eval()
    images = torch.randn(2, 3, 64, 64)
    inputs = head_inputs(backbone, (1, 2), ("output", "mean"))
    assert inputs == (HeadInput(1, "output"), HeadInput(1, "mean"), HeadInput(2, "mean"))
    plan = FeaturePlan.build(backbone, inputs, source="stream", image=64)
    with torch.no_grad():
        torch.testing.assert_close(plan.take(plan.extract(backbone, images), inputs[0]), backbone(images))


def test_registers_can_be_probed_one_by_one() -> None:
    backbone = make("dinomambareg_tiny", num_registers=3, head_dim=16)
    inputs = head_inputs(backbone, (2,), ("registers",))
    assert [head.strategy for head in inputs] == ["register_0", "register_1", "register_2"]
    plan = FeaturePlan.build(backbone, inputs, source="branch", image=32)
    images = torch.randn(2, 3, 32, 32)
    features = plan.extract(backbone, images)
    layers = [f.registers for _, f in backbone.features(images, layers=2, source="branch")]
    for index, head in enumerate(inputs):
        expected = torch.cat([registers[:, index] for registers in layers], dim=1)
        torch.testing.assert_close(plan.take(features, head), expected)


def test_impossible_inputs_get_a_sentence() -> None:
    vit, conv = make("vit_tiny", head_dim=16), make("gatedconv_tiny")
    with pytest.raises(ValueError, match="the last 5 of 4 blocks"):
        head_inputs(vit, (5,), ("cls",))
    with pytest.raises(ValueError, match="'median' does not exist; choose among cls, mean"):
        head_inputs(vit, (1,), ("median",))
    with pytest.raises(ValueError, match="no class token, so 'cls' would be the mean"):
        head_inputs(conv, (1,), ("cls",))
    with pytest.raises(ValueError, match="has no registers"):
        head_inputs(vit, (1,), ("registers",))
    assert possible_strategies(conv) == ("output", "mean", "max")


def test_light_and_heavy_heads_have_the_widths_of_table_1() -> None:
    with torch.device("meta"):
        models = {name: mixlab.create_model(name) for name in ("dinovim_tiny", "dinovim_small", "vit_small")}
    assert [heavy_blocks(model) * model.dim for model in models.values()] == [2048, 2048, 1536]
    assert [light_blocks(model) * model.dim for model in models.values()] == [1536, 1536, 1536]
    with torch.device("meta"):
        names = ("vit_small", "vit_base", "linearvit_base", "dinovim_base", "dinomambareg_base", "gatedconv_base")
        assert [is_light_as_dinos(mixlab.create_model(name)) for name in names] == [
            False,
            True,
            True,
            False,
            False,
            False,
        ]
    assert published_source(models["dinovim_small"]) == "branch" and published_source(models["vit_small"]) == "stream"
