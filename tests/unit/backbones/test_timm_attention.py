"""Mixings and branches of timm's models are what they run, or are refused."""

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import (
    DiffParallelScalingBlock,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
)
from torch.overrides import TorchFunctionMode

import mixlab

VIT = {"depth": 3, "embed_dim": 64, "num_heads": 2}
# norms before and after attention, scaled branches, norms of q and k, gates, attention beside the MLP
VITS: dict[str, tuple[str, dict[str, Any]]] = {
    "pre-norm": ("vit_tiny_patch16_224", VIT),
    "post-norm": ("vit_base_patch16_rpn_224", VIT | {"init_values": 0.5}),
    "layer scale": ("vit_small_patch14_reg4_dinov2", VIT | {"init_values": 0.5}),
    "q and k norms": ("vit_tiny_patch16_224", VIT | {"qk_norm": True}),
    "scale norms": ("vit_tiny_patch16_224", VIT | {"scale_attn_norm": True}),
    "parallel MLP": ("vit_tiny_patch16_224", VIT | {"block_fn": ParallelScalingBlock}),
}
# rotary positions and registers; rotary with sub-norms; relative position bias; bias from a small network; post-norm
OTHERS = {
    "rotary": ("vit_small_patch16_dinov3", VIT),
    "rotary, sub-norms": ("eva02_tiny_patch14_224", VIT),
    "position bias": ("beit_base_patch16_224", VIT | {"img_size": 64}),
    "bias network": ("vit_srelpos_small_patch16_224", VIT | {"img_size": 64}),
    "bias, post-norm": ("vit_relpos_base_patch32_plus_rpn_256", VIT | {"img_size": 64}),
}


class Outputs(TorchFunctionMode):
    """What torch's attention gave, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[torch.Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.given.append(out)
        return out


@torch.no_grad()
def build(name: str, fields: dict[str, Any]) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    model: Any = mixlab.create_model(f"timm/{name}", **fields).eval()
    for parameter in model.parameters():  # biases start at zero: make them matter
        parameter.add_(0.05 * torch.randn_like(parameter))
    side = 56 if "patch14" in name else 64
    return model, torch.randn(2, 3, side, side)


@pytest.mark.parametrize(("name", "fields"), [*VITS.values(), *OTHERS.values()], ids=[*VITS, *OTHERS])
@torch.no_grad()
def test_matrix_times_values_is_what_each_layer_computed(name: str, fields: dict[str, Any]) -> None:
    model, images = build(name, fields)
    with Outputs() as outputs:
        model(images)
    found = list(model.mixings(images))
    assert [layer for layer, _ in found] == list(range(model.num_layers))
    for (_, mixing), given in zip(found, outputs.given, strict=True):
        torch.testing.assert_close(mixing.matrix() @ mixing.values, given, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mixing.matrix(slice(1, 2)), mixing.matrix()[:, 1:2])
    ((layer, last),) = model.mixings(images, layers=[-1])
    assert layer == model.num_layers - 1 and torch.equal(last.q, found[-1][1].q)
    assert model.family == "attention"


@pytest.mark.parametrize("name", [name for name in VITS if name != "parallel MLP"])
@torch.no_grad()
def test_a_branch_is_what_attention_adds_to_the_stream(name: str) -> None:
    """Without the MLP, a layer's output is its input and the branch."""
    model, images = build(*VITS[name])
    block = model.model.blocks[1]
    for parameter in (block.norm2 if isinstance(block, ResPostBlock) else block.mlp.fc2).parameters():
        parameter.zero_()
    final_norm, model.model.norm = model.model.norm, torch.nn.Identity()
    stream = dict(model.features(images, layers=[0, 1]))
    ((_, branch),) = model.features(images, layers=[1], source="branch")
    torch.testing.assert_close(branch.patches, stream[1].patches - stream[0].patches, rtol=1e-4, atol=1e-5)
    model.model.norm = final_norm
    ((_, normed),) = model.features(images, layers=[1], source="branch")
    torch.testing.assert_close(normed.patches, final_norm(branch.patches))


@pytest.mark.parametrize("block", [ParallelThingsBlock, DiffParallelScalingBlock])
def test_blocks_that_attend_twice_are_refused(block: type) -> None:
    model, images = build("vit_tiny_patch16_224", VIT | {"block_fn": block})
    with pytest.raises(ValueError, match="2 calls of torch's attention in layer 0"):
        next(iter(model.mixings(images)))
    with pytest.raises(ValueError, match="add attention and MLP one after the other"):
        next(iter(model.features(images, source="branch")))
    ((_, features),) = model.features(images)
    assert features.patches.shape == (2, 4, 4, 64)


TOWERS = {
    "qwen3_vit_88m": {},
    "gemma4_vit_167m": {"head_dim": 32, "intermediate_size": 128},
    "deepseek_vit_412m": {},
}


@pytest.mark.parametrize("name", TOWERS)
@torch.no_grad()
def test_vits_of_language_models_attend_as_vits(name: str) -> None:
    if not timm.is_model(name):
        pytest.skip("this timm lacks it")
    torch.manual_seed(0)
    for variant in (name, f"{name}_enc"):
        model = mixlab.create_model(f"timm/{variant}", **VIT | TOWERS[name]).eval()
        images = torch.rand(2, 3, 84, 84) if "deepseek" in name else torch.rand(2, 3, 96, 96)
        with Outputs() as outputs:
            model.model(images)
        found = list(model.mixings(images))
        assert model.family == "attention" and len(found) == 3
        for (_, mixing), given in zip(found, outputs.given, strict=True):
            torch.testing.assert_close(mixing.matrix() @ mixing.values, given, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_heads_that_are_folded_into_the_images_are_unfolded_image_by_image() -> None:
    """SAM's own windows are all tokens at this size."""
    torch.manual_seed(0)
    model = mixlab.create_model("timm/samvit_base_patch16_224", **VIT).eval()
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    images = torch.randn(2, 3, 224, 224)
    with Outputs() as outputs:
        model(images)
    found = list(model.mixings(images))
    assert len(found) == 3
    for (layer, mixing), given in zip(found, outputs.given, strict=True):
        assert given.ndim == 3 and mixing.values.shape == (2, 2, 196, 32)
        torch.testing.assert_close(mixing.matrix() @ mixing.values, given.unflatten(0, (2, 2)), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mixing.apply(), given.unflatten(0, (2, 2)), rtol=1e-4, atol=1e-4)
        ((_, alone),) = model.mixings(images[1:], layers=[layer])
        torch.testing.assert_close(alone.matrix()[0], mixing.matrix()[1], rtol=1e-4, atol=1e-5)


def test_windows_are_not_taken_for_heads() -> None:
    """A strip of 1 x 4 patches is two padded windows of 2 x 2: as many tokens as the image has, and twice the heads."""
    fields = VIT | {"img_size": 64, "window_size": 2, "global_attn_indexes": (1,), "neck_chans": None}
    model = mixlab.create_model("timm/samvit_base_patch16", **fields).eval()
    for height, width in ((16, 64), (64, 96)):
        with pytest.raises(ValueError, match="1 calls of torch's attention in 3 layers are over all tokens"):
            list(model.mixings(torch.randn(2, 3, height, width)))
    assert len(list(model.mixings(torch.randn(2, 3, 32, 32)))) == 3  # one window


def test_without_fused_attention_there_is_nothing_to_hear() -> None:
    model, images = build("vit_tiny_patch16_224", VIT)
    for block in model.model.blocks:
        block.attn.fused_attn = False
    with pytest.raises(ValueError, match="0 calls .* fused attention on"):
        next(iter(model.mixings(images)))


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "pvt_v2_b0", "resnet18"])
def test_models_that_do_not_attend_over_all_tokens_say_so(name: str) -> None:
    model = mixlab.create_model(f"timm/{name}").eval()
    with pytest.raises(ValueError, match="has no mixing matrices: it does not attend"):
        next(iter(model.mixings(torch.randn(1, 3, 224, 224))))


def test_class_token_and_registers_of_models_beside_plain_vits_are_told_apart() -> None:
    model = mixlab.create_model("timm/vit_small_patch16_dinov3", **VIT).eval()
    ((_, features),) = model.features(torch.randn(1, 3, 64, 96))
    assert features.summary.shape == (1, 64)
    assert features.registers.shape == (1, 4, 64)
    assert features.grid == (4, 6)


@pytest.mark.parametrize(
    ("name", "size", "dim"),
    [
        ("inception_next_atto", 64, 320),
        ("hiera_tiny_224", 224, 768),
        ("efficientvit_m0", 224, 192),
        ("shvit_s1", 224, 320),
    ],
)
def test_models_with_odd_heads_or_norms_give_pooled_features(name: str, size: int, dim: int) -> None:
    model = mixlab.create_model(f"timm/{name}").eval()
    assert model(torch.randn(1, 3, size, size)).shape == (1, dim)
    ((_, features),) = model.features(torch.randn(1, 3, size, size))
    assert features.summary.shape == (1, dim)
