"""The pyramid: strides, sizes and gradients for every kind of backbone, and where its maps come from."""

import math

import pytest
import torch
from torch import nn

from mixlab.backbones.zoo import create_model
from mixlab.evaluation.pyramid import Level, Pyramid, Tap, choose_taps

PLAIN = {
    "vit-16": ("vit_tiny", {"dim": 32, "depth": 5, "head_dim": 16}),
    "vit-8, two layers": ("vit_tiny", {"dim": 32, "depth": 2, "head_dim": 16, "patch": 8}),
    "linearvit-32": ("linearvit_tiny", {"dim": 32, "depth": 4, "head_dim": 16, "patch": 32}),
    "dinovim-16": ("dinovim_tiny", {"dim": 32, "depth": 4, "head_dim": 16, "state": 8}),
    "dinomambareg-14": (
        "dinomambareg_tiny",
        {"dim": 32, "depth": 4, "head_dim": 16, "state": 8, "patch": 14, "position_image": 112},
    ),
    "gatedconv-4": ("gatedconv_tiny", {"dim": 32, "depth": 4, "patch": 4, "image": 64}),
    "timm's ViT": ("timm/vit_tiny_patch16_224", {"depth": 4}),
}
STAGED = {
    "mambaout": ("mambaout_femto", {"depths": [1, 1, 1, 1], "dims": [8, 16, 24, 32]}),
    "convnext": ("timm/convnext_atto", {"depths": [1, 1, 1, 1], "dims": [8, 16, 24, 32]}),
    "resnet": ("timm/resnet18", {}),
    "swin": ("timm/swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1), "strict_img_size": False}),
}
BACKBONES = {**PLAIN, **STAGED}


def make(kind: str, **options) -> Pyramid:
    torch.manual_seed(0)
    name, fields = BACKBONES[kind]
    return Pyramid(create_model(name, **fields), **options)


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize(("size", "channels"), [((64, 96), None), ((75, 50), 24)])
def test_every_backbone_gives_four_maps_at_their_strides_for_any_size(kind: str, size, channels) -> None:
    pyramid = make(kind, channels=channels).eval()
    with torch.no_grad():
        maps = pyramid(torch.randn(2, 3, *size))
    assert pyramid.strides == [4, 8, 16, 32]
    expected = [(2, width, math.ceil(size[0] / s), math.ceil(size[1] / s)) for width, s in
                zip(pyramid.channels, (4, 8, 16, 32), strict=True)]  # fmt: skip
    assert [tuple(part.shape) for part in maps] == expected
    assert channels is None or set(pyramid.channels) == {24}


@pytest.mark.parametrize("kind", BACKBONES)
def test_gradients_reach_all_that_is_trained_but_a_staged_models_own_head(kind: str) -> None:
    pyramid = make(kind)
    sum(part.square().mean() for part in pyramid(torch.randn(2, 3, 64, 64))).backward()
    without = [name for name, p in pyramid.named_parameters() if p.requires_grad and p.numel() and p.grad is None]
    assert all(name.startswith("backbone.model.head") for name in without), without


def test_taps_of_a_plain_backbone_lie_evenly_and_end_with_the_last_layer() -> None:
    for depth, layers in ((24, [5, 11, 17, 23]), (12, [2, 5, 8, 11]), (4, [0, 1, 2, 3]), (2, [0, 0, 1, 1])):
        backbone = create_model("vit_tiny", dim=32, depth=depth, head_dim=16)
        assert [tap.layer for tap in choose_taps(backbone)] == layers


def test_the_level_of_the_patch_itself_is_the_normalised_tap_and_the_coarser_its_pooling() -> None:
    pyramid = make("vit-16").eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        maps = pyramid(images)
        taps = {layer: f.patches.permute(0, 3, 1, 2) for layer, f in pyramid.backbone.features(images, layers=[3, 4])}
    torch.testing.assert_close(maps[2], taps[3])
    pooled = taps[4].unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(-1, -2))
    torch.testing.assert_close(maps[3], pooled)


def test_a_staged_backbone_gives_its_own_stages_under_a_norm() -> None:
    pyramid = make("mambaout").eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        maps = pyramid(images)
        own = pyramid.backbone.model.forward_intermediates(images, intermediates_only=True, norm=True)
    for ours, theirs in zip(maps, own, strict=True):
        theirs = theirs.permute(0, 3, 1, 2) if theirs.shape[1] != ours.shape[1] else theirs
        normed = (theirs - theirs.mean(1, keepdim=True)) / theirs.var(1, keepdim=True, unbiased=False).add(1e-6).sqrt()
        torch.testing.assert_close(ours, normed, atol=1e-4, rtol=1e-4)


def test_patches_of_another_size_are_sampled_where_the_cells_of_the_level_lie() -> None:
    """A map that holds the pixel position of each 14 px patch must hold that of each 16 px cell after resizing."""
    level = Level(Tap(0, 1, 14, False), 1, 16)
    position = (torch.arange(32) + 0.5) * 14
    found = level(position[None, None, None].expand(1, 1, 32, 32), (448, 448))
    cells = (torch.arange(28) + 0.5) * 16
    torch.testing.assert_close(found[0, 0, 0, :-1], cells[:-1])  # the last may hang over the border


def test_images_are_padded_at_their_right_and_bottom_with_the_mean_colour() -> None:
    pyramid = make("gatedconv-4").eval()
    images = torch.randn(1, 3, 50, 40)
    padded = torch.zeros(1, 3, 64, 64)
    padded[..., :50, :40] = images
    with torch.no_grad():
        ours, theirs = pyramid(images), pyramid(padded)
    for small, large in zip(ours, theirs, strict=True):
        torch.testing.assert_close(small, large[..., : small.shape[-2], : small.shape[-1]])


def test_a_frozen_backbone_gets_no_gradient_and_stays_in_evaluation_mode() -> None:
    pyramid = make("dinovim-16", frozen=True).train()
    assert not pyramid.backbone.training and pyramid.levels.training
    sum(part.mean() for part in pyramid(torch.randn(1, 3, 64, 64))).backward()
    assert all(p.grad is None and not p.requires_grad for p in pyramid.backbone.parameters())
    assert all(p.grad is not None for p in pyramid.levels.parameters())


def test_layers_after_the_last_tap_are_not_run_and_not_trained() -> None:
    pyramid = make("vit-16", taps=(0, 1, 2, 3))
    sum(part.mean() for part in pyramid(torch.randn(1, 3, 64, 64))).backward()
    assert not any(p.requires_grad for p in pyramid.backbone.layers[4].parameters())
    assert all(p.grad is not None for p in pyramid.parameters() if p.requires_grad and p.numel())


@pytest.mark.parametrize("kind", ["vit-16", "dinovim-16"])
def test_activations_made_twice_change_no_gradient_and_run_every_layer_twice(kind: str) -> None:
    images, calls = torch.randn(1, 3, 64, 64), []
    plain, thrifty = make(kind).double(), make(kind).double()
    for layer in thrifty.backbone.layers:
        layer.mixer.register_forward_pre_hook(lambda *_: calls.append(1))
    thrifty.backbone.set_grad_checkpointing()
    for pyramid in (plain, thrifty):
        sum(part.square().mean() for part in pyramid(images.double())).backward()
    assert len(calls) == 2 * plain.backbone.num_layers
    for (name, ours), theirs in zip(plain.named_parameters(), thrifty.parameters(), strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


@pytest.mark.parametrize("taps", [(0, 1, 2), (3, 2, 1, 0), (0, 1, 2, 9), (-1, 0, 1, 2)])
def test_taps_that_do_not_exist_or_do_not_rise_are_refused(taps) -> None:
    with pytest.raises(ValueError, match="give four layers from 0 to 4 in rising order"):
        make("vit-16", taps=taps)


def test_a_model_of_one_size_says_how_to_free_it() -> None:
    pyramid = Pyramid(create_model("timm/swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)))
    with pytest.raises(ValueError, match="strict_img_size=false"):
        pyramid(torch.randn(1, 3, 64, 64))


def test_a_bug_in_a_backbone_is_not_taken_for_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("a bug")

    pyramid = make("vit-16")
    monkeypatch.setattr(pyramid.backbone, "features", broken)
    with pytest.raises(AssertionError, match="a bug"):
        pyramid(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize(
    ("name", "fields", "taps"),
    [
        ("timm/resnet18", {"output_stride": 16}, [1, 2, 4, 4]),  # strides 4, 8 and 16
        ("mamba2d_small", {"dims": (16, 16), "depths": (2, 1), "image": 64}, [1, 1, 2, 2]),  # 8 and 16
    ],
)
def test_a_stride_that_a_backbone_lacks_is_made_from_the_nearest(name: str, fields: dict, taps: list[int]) -> None:
    pyramid = Pyramid(create_model(name, **fields)).eval()
    assert [tap.layer for tap in pyramid.taps] == taps
    with torch.no_grad():
        levels = pyramid(torch.randn(1, 3, 64, 96))
    assert [tuple(level.shape[2:]) for level in levels] == [(16, 24), (8, 12), (4, 6), (2, 3)]


def test_every_level_is_a_module_with_a_norm_only_where_the_backbone_has_none() -> None:
    assert all(isinstance(level.norm, nn.Identity) for level in make("vit-16").levels)
    assert not any(isinstance(level.norm, nn.Identity) for level in make("resnet").levels)
