"""Our zoo as timm's models: what timm's own model tests ask of every model, on small ones."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

import mixlab
from mixlab.backbones.classifier import POOLS
from mixlab.backbones.isotropic import IsotropicConfig
from mixlab.backbones.meta import without_storage
from mixlab.backbones.zoo import ZOO

CONFIGS = {name: entry.config for name, entry in ZOO.items() if not isinstance(entry.config, str)}
TINY = [name for name, config in CONFIGS.items() if name.endswith("tiny") and isinstance(config, IsotropicConfig)]
STAGED = ["vmamba_tiny", "vmamba_tiny_s1l8", "localvmamba_tiny", "efficientvmamba_tiny", "mamba2d_small"]
SMALL = {"dim": 64, "depth": 4, "patch_size": 8, "img_size": 32}
IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))


def small(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    chosen = {**SMALL, **options}
    return timm.create_model(name, **{key: value for key, value in chosen.items() if value is not None}).eval()


def test_timm_knows_the_config_of_every_name() -> None:
    for name in CONFIGS:
        config = timm.get_pretrained_cfg(name)
        assert name in timm.list_models(name, name_matches_cfg=True)
        assert (config.architecture, config.input_size, config.num_classes) == (name, (3, 224, 224), 1000)
        whole = name.startswith("mambareg_")  # as released: evaluated on the whole of the shorter side
        assert (config.crop_pct, config.interpolation) == (1.0 if whole else 0.875, "bicubic")


@pytest.mark.parametrize("name", TINY)
def test_the_config_names_the_first_and_the_last_layer(name: str) -> None:
    model = small(name, in_chans=1, num_classes=5)
    assert model.default_cfg["input_size"] == (1, 32, 32)
    state = model.state_dict()
    assert state[f"{model.default_cfg['first_conv']}.weight"].shape == (64, 1, 8, 8)
    assert state[f"{model.default_cfg['classifier']}.weight"].shape == (5, model.backbone.dim)
    assert model.get_classifier().out_features == model.num_classes == 5


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_all_feature_nets_give_the_same_maps(name: str) -> None:
    check_feature_nets(name, [0, -2], expected=[0, 2])
    if name in ("vit_tiny", "dinovim_tiny"):  # which layers, no backbone decides for itself
        check_feature_nets(name, None, expected=[0, 1, 2, 3])
        check_feature_nets(name, 2, expected=[2, 3])


def check_feature_nets(name: str, out_indices: int | list[int] | None, expected: list[int]) -> None:
    kinds = ("getter", "list", "dict", "fx")
    nets = {kind: small(name, features_only=True, out_indices=out_indices, feature_cls=kind) for kind in kinds}
    found = {kind: net(IMAGES) for kind, net in nets.items()}
    maps = small(name).backbone.features(IMAGES, layers=expected)
    for (_, features), *others in zip(maps, found["getter"], found["list"], found["fx"], strict=True):
        for other in others:
            torch.testing.assert_close(other, features.patches.permute(0, 3, 1, 2))
    assert list(found["dict"]) == [str(layer) for layer in expected]
    for one, other in zip(found["dict"].values(), found["getter"], strict=True):
        assert torch.equal(one, other)
    for net in nets.values():
        assert net.feature_info.channels() == [64] * len(expected)
        assert net.feature_info.reduction() == [8] * len(expected)
        assert net.default_cfg["input_size"] == (3, 32, 32) and "classifier" not in net.default_cfg


def test_a_feature_net_that_cannot_be_right_is_refused() -> None:
    with pytest.raises(ValueError, match="feature_cls 'hook' does not work .* choose one of getter, list, dict, fx"):
        small("vit_tiny", features_only=True, feature_cls="hook")


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_intermediates_are_the_stream_with_or_without_the_norm(name: str) -> None:
    model = small(name)
    final, raw = model.forward_intermediates(IMAGES, output_fmt="NLC")
    torch.testing.assert_close(final, model.forward_features(IMAGES))
    normed = model.forward_intermediates(IMAGES, norm=True, output_fmt="NLC", intermediates_only=True)
    for one, other in zip(raw, normed, strict=True):
        torch.testing.assert_close(model.backbone.final_norm.normalise(one), other)
    maps = model.forward_intermediates(IMAGES, indices=[1, -1], intermediates_only=True)
    assert [tuple(each.shape) for each in maps] == [(2, 64, 4, 6)] * 2
    torch.testing.assert_close(maps[0].flatten(2).mT, raw[1])
    early, _ = model.forward_intermediates(IMAGES, indices=[1], stop_early=True)
    torch.testing.assert_close(model.backbone.layout.patches(early), normed[1])
    with pytest.raises(ValueError, match="'NHWC' is not one of NCHW, NLC"):
        model.forward_intermediates(IMAGES, output_fmt="NHWC")


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_prefix_tokens_are_the_summary_and_the_registers(name: str) -> None:
    model = small(name, **({"num_registers": 3} if "reg" in name else {}))
    ((_, features),) = model.backbone.features(IMAGES)
    [(maps, prefix)] = model.forward_intermediates(
        IMAGES, 1, norm=True, return_prefix_tokens=True, intermediates_only=True
    )
    summary = features.summary if model.backbone.dim == 64 else features.registers.mean(1)  # side by side: too wide
    torch.testing.assert_close(prefix, torch.cat([summary[:, None], features.registers], dim=1))
    named = model.forward_intermediates(IMAGES, 1, norm=True, return_prefix_tokens=True, output_dict=True)
    assert list(named) == ["image_intermediates", "image_intermediates_prefix", "image_features"]
    assert torch.equal(named["image_intermediates"][0], maps)
    assert torch.equal(named["image_intermediates_prefix"][0], prefix)
    alone = model.forward_intermediates(IMAGES, 1, intermediates_only=True, output_dict=True)
    assert list(alone) == ["image_intermediates"]


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_a_classifier_can_be_reset_with_another_pool(name: str) -> None:
    model = small(name, depth=2, num_classes=5)
    tokens = model.forward_features(IMAGES)
    patches = model.backbone.layout.patches(tokens)
    expected = {"token": model.backbone(IMAGES), "avg": patches.mean(1), "max": patches.amax(1), "": tokens}
    assert set(expected) == set(POOLS)
    for pool, value in expected.items():
        model.reset_classifier(0, pool)
        torch.testing.assert_close(model(IMAGES), value)
        torch.testing.assert_close(small(name, depth=2, num_classes=0, global_pool=pool)(IMAGES), value)
    model.reset_classifier(7, "avg")
    assert model(IMAGES).shape == (2, 7)
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), expected["avg"])
    with pytest.raises(ValueError, match="global_pool 'map' is not one of 'token', 'avg', 'max', ''"):
        model.reset_classifier(7, "map")


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_a_token_and_what_the_classifier_reads_may_differ_in_width(name: str) -> None:
    model = small(name, depth=1)
    features = model.forward_features(IMAGES)
    assert features.shape[-1] == model.num_features
    assert model.forward_head(features, pre_logits=True).shape[1] == model.head_hidden_size == model.head.in_features


@pytest.mark.parametrize("name", STAGED)
@torch.no_grad()
def test_stages_end_in_a_map_of_the_size_that_the_config_names(name: str) -> None:
    options = {"dims": (16,) * len(CONFIGS[name].dims), "depths": (1,) * len(CONFIGS[name].dims), "img_size": 64}
    model = small(name, **options, depth=None, patch_size=None, dim=None)
    images = torch.randn(2, 3, 64, 96)
    height, width = model.default_cfg["pool_size"]
    features = model.forward_features(images)
    assert features.shape == (2, model.num_features, height, width * 3 // 2)
    torch.testing.assert_close(model.forward_head(features), model(images))
    torch.testing.assert_close(model.forward_intermediates(images)[0], features)
    maps = small(name, **options, depth=None, patch_size=None, dim=None, features_only=True)(images)
    assert maps[-1].shape == features.shape
    for pool, expected in (("avg", features.mean((2, 3))), ("max", features.amax((2, 3))), ("", features)):
        model.reset_classifier(0, pool)
        torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_another_input_size_changes_nothing_but_where_positions_are_kept(name: str) -> None:
    model, images = small(name, depth=2), torch.randn(1, 3, 64, 64)
    expected = model(images)
    model.set_input_size(img_size=(64, 64))
    assert model.backbone.embed.positions.side == 8 and model.backbone.image == 64
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)
    model.set_input_size(patch_size=16)
    assert model.feature_info[0]["reduction"] == 16
    assert model.forward_intermediates(images, 1, intermediates_only=True)[0].shape == (1, 64, 4, 4)
    assert mixlab.backbones.weights.build_architecture(model.backbone.architecture())(images).shape == (
        1,
        model.backbone.dim,
    )
    with pytest.raises(ValueError, match=r"\(64, 32\) is not square"):
        model.set_input_size(img_size=(64, 32))


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_pruning_drops_what_the_maps_do_not_need(name: str) -> None:
    model = small(name)
    expected = model.forward_intermediates(IMAGES, [0, -3], intermediates_only=True)
    assert model.prune_intermediate_layers([0, -3], prune_norm=True) == [0, 1]
    assert {key.split(".")[2] for key in model.state_dict() if ".layers." in key} == {"0", "1"}
    assert not [key for key in model.state_dict() if ("norm" in key and "layers" not in key) or "head" in key]
    for one, other in zip(model.forward_intermediates(IMAGES, intermediates_only=True), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", TINY)
def test_learning_rates_decay_from_the_output_to_the_input(name: str) -> None:
    model = small(name)
    spared, names = model.no_weight_decay(), {id(parameter): key for key, parameter in model.named_parameters()}
    groups = param_groups_layer_decay(model, weight_decay=0.1, layer_decay=0.5, no_weight_decay_list=spared)
    scales = {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}
    assert set(scales) == set(names.values())
    stem, *layers = (
        {scale for key, scale in scales.items() if key.startswith(f"backbone.{start}")}
        for start in ("embed.", "layers.0.", "layers.1.", "layers.2.", "layers.3.")
    )
    assert [stem, *layers] == [{0.5**power} for power in (5, 4, 3, 2, 1)]
    undecayed = {names[id(parameter)] for group in groups if not group["weight_decay"] for parameter in group["params"]}
    assert undecayed == spared | {"head.bias"}


@pytest.mark.parametrize("name", TINY)
def test_torch_fx_traces_what_runs(name: str) -> None:
    for fields in ({}, {"causal": True, "place": "back"}, {"feature_map": "elu"}, {"sequence": True, "place": "none"}):
        if fields.keys() <= (mixlab.backbones.zoo.known_fields(name) or set()):
            check_trace(small(name, depth=2, num_classes=5, **fields).train())


def check_trace(model: nn.Module) -> None:
    graph = torch.fx.symbolic_trace(model)
    found = []
    for network in (model, graph):
        network.zero_grad()
        logits = network(IMAGES)
        logits.square().sum().backward()
        found.append((logits, {key: parameter.grad.clone() for key, parameter in network.named_parameters()}))
    (logits, gradients), (traced, traced_gradients) = found
    assert torch.equal(logits, traced)
    assert traced_gradients.keys() == gradients.keys()
    assert all(torch.equal(gradients[key], value) for key, value in traced_gradients.items())


def test_dropout_before_the_classifier_acts_in_training_only() -> None:
    model = small("vit_tiny", drop_rate=0.5, num_classes=5)
    assert torch.equal(model(IMAGES), model(IMAGES))
    assert not torch.equal(model.train()(IMAGES), model(IMAGES))


def test_weights_of_one_s_own_load_as_timm_s_do(tmp_path: Path) -> None:
    model = small("dinovim_tiny", num_classes=5)
    nn.init.normal_(model.head.weight)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    again = small("dinovim_tiny", num_classes=5, checkpoint_path=str(tmp_path / "weights.pth"))
    published = {"file": str(tmp_path / "weights.pth"), "num_classes": 5}
    for other in (again, small("dinovim_tiny", pretrained=True, pretrained_cfg=published)):
        assert torch.equal(other(IMAGES), model(IMAGES))
    with pytest.raises(ValueError, match="has no published weights to download"):
        small("dinovim_tiny", pretrained=True)


def test_weights_of_a_swin_are_read_again_as_they_were_written(tmp_path: Path) -> None:
    model = mixlab.create_model("timm/swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1))
    mixlab.save_weights(model, tmp_path / "swin.safetensors")
    again = mixlab.model_from_file(tmp_path / "swin.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


# By an assertion, or by shapes that do not fit together.
OTHER_SIZES = {
    "swin_tiny_patch4_window7_224": (96, 64),
    "beit_base_patch16_224": (96, 64),
    "maxvit_nano_rw_256": (96, 64),
    "levit_128s": (96, 64),
    "pit_ti_224": (96, 64),
    "coatnet_pico_rw_224": (96, 64),
    "volo_d1_224": (96, 64),
    "hiera_tiny_224": (96, 64),
    "efficientformer_l1": (96, 64),
    "gcvit_xxtiny": (96, 64),
    "csatv2": (97, 101),
    "tresnet_m": (97, 101),
}


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_a_size_that_a_model_does_not_take_is_named(name: str) -> None:
    with without_storage():
        model = mixlab.create_model(f"timm/{name}").eval()
        images = torch.zeros(1, 3, *OTHER_SIZES[name])
    height, width = OTHER_SIZES[name]
    own = timm.get_pretrained_cfg(name).input_size[1]
    advice = ", and for any with model.strict_img_size=false" if "swin" in name else ""
    said = rf"timm/{name} takes no images of {height} x {width} px( \(.+\))?; it is made for {own} px{advice}$"
    for call in (model, lambda pixels: list(model.features(pixels))):
        with pytest.raises(mixlab.InputError, match=said):
            call(images)


def test_a_size_at_which_timm_s_code_fails_in_other_ways_is_named() -> None:
    """By an index that is out of bounds, and by a variable that was never set where only features are asked for."""
    model = mixlab.create_model("timm/mvitv2_tiny").eval()
    with pytest.raises(mixlab.InputError, match="timm/mvitv2_tiny takes no images of 225 x 217 px .*made for 224 px"):
        model(torch.zeros(1, 3, 225, 217))
    model = mixlab.create_model("timm/resnetv2_18").eval()
    assert model(torch.zeros(1, 3, 97, 101)).shape == (1, 512)
    with pytest.raises(mixlab.InputError, match="timm/resnetv2_18 takes no images of 97 x 101 px .*made for 224 px"):
        list(model.features(torch.zeros(1, 3, 97, 101), layers=[0]))


def test_height_stands_before_width_also_in_the_size_that_a_model_was_made_for() -> None:
    model = mixlab.create_model("timm/vit_tiny_patch16_224", img_size=(96, 224), dynamic_img_size=False, depth=1).eval()
    assert model(torch.zeros(1, 3, 96, 224)).shape == (1, 192)
    said = "no images of 224 x 96 px .*made for 96 x 224 px$"
    for call in (model, model.mixings, lambda images: model.features(images, source="branch")):
        with pytest.raises(mixlab.InputError, match=said):
            list(call(torch.zeros(1, 3, 224, 96)))


class Failing(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("a bug"), IndexError("a bug")])
def test_a_bug_keeps_its_traceback_at_the_size_that_a_model_was_made_for(error: Exception) -> None:
    model = mixlab.create_model("timm/resnet18").eval()
    model.model.conv1 = Failing(error)
    with pytest.raises(type(error)) as raised:
        model(torch.zeros(1, 3, 224, 224))
    assert raised.value is error
    bracket = " (a bug)" if str(error) else ""
    with pytest.raises(mixlab.InputError) as refused:
        model(torch.zeros(1, 3, 96, 64))
    assert str(refused.value) == f"timm/resnet18 takes no images of 96 x 64 px{bracket}; it is made for 224 px"


def test_memory_that_is_not_enough_is_no_matter_of_the_size_that_a_model_takes() -> None:
    model = mixlab.create_model("timm/resnet18").eval()
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ):
        model.model.conv1 = Failing(error)
        with pytest.raises(type(error)) as raised:
            model(torch.zeros(1, 3, 96, 64))
        assert raised.value is error


@pytest.mark.parametrize(("name", "stride"), [("vit_small_r26_s32_224", 32), ("vit_tiny_r_s16_p8_224", 32)])
@torch.no_grad()
def test_patches_behind_a_stem_of_convolutions_are_as_large_as_their_part_of_the_image(name: str, stride: int) -> None:
    """What the stem gives of images that are covered has so many places; timm itself fails on others, or cuts them."""
    model = mixlab.create_model(f"timm/{name}", depth=1).eval()
    images = torch.randn(1, 3, 6 * stride, 5 * stride)
    ((_, features),) = model.features(images)
    stem = model.model.patch_embed(images)
    assert features.grid == (6, 5) and stem[..., 0].numel() == 30
    for call in (model, model.mixings, model.features):
        with pytest.raises(mixlab.InputError, match=f"200px is not a multiple of patch {stride}; try 192"):
            list(call(torch.randn(1, 3, 200, 216)))


@torch.no_grad()
def test_a_vit_that_pads_images_takes_any_size_as_if_it_were_padded() -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("timm/vit_tiny_patch16_224", dynamic_img_pad=True, depth=2).eval()
    images = torch.randn(1, 3, 221, 229)
    padded = nn.functional.pad(images, (0, 240 - 229, 0, 224 - 221))
    torch.testing.assert_close(model(images), model(padded))
    (_, found), (_, expected) = *model.features(images), *model.features(padded)
    assert found.grid == (14, 15)
    torch.testing.assert_close(found.patches, expected.patches)
    (_, found), (_, expected) = *model.features(images, source="branch"), *model.features(padded, source="branch")
    torch.testing.assert_close(found.patches, expected.patches)
    assert [mixing.values.shape[2] for _, mixing in model.mixings(images)] == [14 * 15 + 1] * 2


@torch.no_grad()
def test_the_summary_of_volo_is_what_its_classifier_reads() -> None:
    """Without the maximum over its tokens, which a second classifier scores."""
    model = mixlab.create_model("timm/volo_d1_224", img_size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    network = model.model
    expected = network.forward_head(network.forward_features(images), pre_logits=True)
    torch.testing.assert_close(model(images), expected)
    assert model.train()(images).shape == expected.shape


DECAYING = ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "beit_base_patch16_224",
            "levit_128s", "mvitv2_tiny", "tnt_s_legacy_patch16_224", "crossvit_tiny_240", "resnet18"]  # fmt: skip


@pytest.mark.parametrize("name", DECAYING)
def test_what_decays_of_a_timm_model_is_what_timm_s_own_optimisers_decay(name: str) -> None:
    with without_storage():
        model = mixlab.create_model(f"timm/{name}")
    network = model.model if hasattr(model, "model") else model.network
    spared = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    groups = timm.optim.param_groups_weight_decay(model, 0.1, no_weight_decay_list={f"*.{part}" for part in spared})
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    decayed = {names[id(part)] for group in groups if group["weight_decay"] for part in group["params"]}
    assert set(names.values()) - model.no_weight_decay() == decayed
    assert model.token_names() <= model.no_weight_decay()
    without = ("resnet18", "swinv2_tiny_window8_256")  # timm's SwinV2 names modules, of which it spares nothing
    assert bool(model.token_names()) == (name not in without)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
def test_a_timm_model_without_a_pool_has_the_summary_of_its_last_layer(name: str) -> None:
    """timm's own output is tokens or a map then."""
    backbone = mixlab.create_model(f"timm/{name}", global_pool="").eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        ((_, last),) = backbone.features(images)
        assert backbone.model(images).ndim > 2
        assert torch.equal(backbone(images), last.summary) and last.summary.shape == (1, backbone.dim)


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "ghostnet_050", "efficientvit_b0", "mambaout_femto"])
@torch.no_grad()
def test_the_width_of_a_backbone_is_that_of_its_summary(name: str) -> None:
    model = mixlab.create_model(f"timm/{name}").eval()
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, model.dim)


def test_the_neck_of_sam_sets_the_width_of_its_features() -> None:
    fields: dict[str, Any] = {"depth": 2, "img_size": 64, "global_attn_indexes": (0, 1)}
    model = mixlab.create_model("timm/samvit_base_patch16", **fields).eval()
    images = torch.randn(1, 3, 64, 64)
    assert model(images).shape == (1, model.dim) == (1, 256)
    for shape, (_, features) in zip(model.layer_shapes(), model.features(images, layers=2), strict=True):
        assert features.patches.shape[-1] == shape.width == 256
    for _, mixing in model.mixings(images):
        assert mixing.matrix().shape == (1, 12, 16, 16)
        torch.testing.assert_close(mixing.apply(), mixing.matrix() @ mixing.values)
    without = mixlab.create_model("timm/samvit_base_patch16_224", depth=2, global_attn_indexes=(1,)).eval()
    assert without.dim == 768 and [shape.width for shape in without.layer_shapes()] == [768, 768]


def test_images_of_another_dtype_are_not_called_images_of_another_size() -> None:
    model = mixlab.create_model("timm/test_convnext").eval().to(torch.bfloat16)
    with pytest.raises(RuntimeError, match="type"):
        model(torch.randn(1, 3, 96, 96))
