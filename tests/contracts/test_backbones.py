"""What training, evaluation and analysis rely on, held over every backbone of the zoo in a small size."""

import json
import os
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import mixlab
from mixlab.backbones.block import AddNorm
from mixlab.backbones.isotropic import Isotropic, IsotropicConfig
from mixlab.backbones.staged import Staged, StagedConfig, mambaout_shape
from mixlab.backbones.tokens import Features
from mixlab.backbones.visual_mambas import VISUAL_MAMBAS
from mixlab.backbones.weights import build_architecture
from mixlab.backbones.zoo import ZOO
from mixlab.errors import InputError
from mixlab.mixers import MIXERS

SMALL = {"dim": 64, "depth": 3, "patch": 8, "image": 32}
ISOTROPIC = [
    *(name for name, entry in ZOO.items() if isinstance(entry.config, IsotropicConfig) and name.endswith("tiny")),
    "plainmamba_l1",
]
STAGES = {"dims": (8, 16, 32, 64), "depths": (1, 1, 2, 1), "image": 32}
STAGED = [
    "vmamba_tiny_s1l8",
    "localvmamba_tiny",
    "efficientvmamba_tiny",
    "mamba2d_small",
]  # each kind of stem and block
OURS = [*ISOTROPIC, *STAGED]
VIT = {"depth": 3, "embed_dim": 64, "num_heads": 2}
STAGED_TIMM = {"dims": (8, 16, 24, 32), "depths": (1, 1, 1, 1)}
TIMM: dict[str, dict[str, Any]] = {
    "mambaout_femto": STAGED_TIMM,
    "timm/vit_tiny_patch16_224": VIT,
    "timm/convnext_atto": STAGED_TIMM,
    "timm/vit_small_patch14_reg4_dinov2": VIT,
}


def small(name: str, **fields: object) -> mixlab.Backbone:
    torch.manual_seed(0)
    own = {"stem_stride": 4} if name == "mamba2d_small" else {}
    return mixlab.create_model(name, **{**(STAGES if name in STAGED else SMALL), **own, **fields}).eval()


def test_every_kind_of_mixer_and_every_shape_of_stages_is_among_them() -> None:
    staged = [entry.config for entry in ZOO.values() if isinstance(entry.config, StagedConfig)]
    here = [ZOO[name].config for name in STAGED]
    shapes = [
        {(c.stem, c.down, c.mixer.kind, c.late_mixer and c.late_mixer.kind) for c in each} for each in (staged, here)
    ]
    assert shapes[0] == shapes[1]
    kinds = {config.mixer.kind for config in (ZOO[name].config for name in OURS)} | {"inverted_residual"}
    missing = set(MIXERS) - kinds
    assert not missing, f"add a backbone with the mixer {', '.join(missing)} to ZOO, named NAME_tiny"
    assert kinds == set(MIXERS)


@pytest.mark.parametrize("name", ISOTROPIC)
def test_images_of_any_shape_give_a_summary_and_a_grid(name: str) -> None:
    model = small(name)
    for size in ((32, 32), (16, 48), (64, 40)):
        images = torch.randn(2, 3, *size)
        summary = model(images)
        [(layer, features)] = list(model.features(images))
        assert summary.shape == (2, model.dim) and layer == 2
        assert features.grid == (size[0] // 8, size[1] // 8)
        assert features.patches.shape == (2, *features.grid, 64)
        torch.testing.assert_close(features.summary, summary)


@pytest.mark.parametrize("name", STAGED)
@torch.no_grad()
def test_every_block_of_a_backbone_in_stages_has_a_grid_of_its_own(name: str) -> None:
    model = small(name)
    for height, width in ((64, 96), (52, 76)):
        images = torch.randn(2, 3, height, width)
        found = dict(model.features(images, layers=None))
        assert list(found) == [0, 1, 2, 3, 4]
        grids = [(-(-height // stride), -(-width // stride)) for stride in (4, 8, 16, 16, 32)]
        assert [features.grid for features in found.values()] == grids
        assert [features.patches.shape[-1] for features in found.values()] == [8, 16, 32, 32, 64]
        torch.testing.assert_close(found[4].summary, model(images))
        torch.testing.assert_close(model.summary_norm(found[4].patches.mean((1, 2))), model(images))
    with pytest.raises(ValueError, match="3 x 64 pixels are less than one patch"):
        model(torch.randn(1, 3, 3, 64))


@torch.no_grad()
def test_mambaouts_shape_takes_any_mixer() -> None:
    """Stem, what halves the grid, and the end are timm's, number for number; what is between is the mixer's."""
    theirs = mixlab.create_model("mambaout_femto").eval().model
    images = torch.randn(1, 3, 40, 64)
    for kind, mixer in MIXERS.items():
        heads = {"head_dim": 16} if "head_dim" in mixer.__dataclass_fields__ else {}  # 64 does not divide its widths
        ours = Staged(mambaout_shape("femto", mixer(**heads))).eval()
        assert ours(images).shape == (1, 288) and ours.family in MIXERS, kind
    for stem, name in ((ours.stem.first, "conv1"), (ours.stem.first_norm, "norm1"), (ours.stem.project, "conv2"),
                       (ours.stem.norm, "norm2")):  # fmt: skip
        stem.load_state_dict(getattr(theirs.stem, name).state_dict())
    tokens, grid = ours.stem(images)
    maps = theirs.stem(images)
    torch.testing.assert_close(tokens.unflatten(1, grid), maps)
    for stage, other in zip(ours.stages, theirs.stages, strict=True):
        assert len(stage.blocks) == len(other.blocks)
        if stage.down is not None:
            for part in ("conv", "norm"):
                getattr(stage.down, part).load_state_dict(getattr(other.downsample, part).state_dict())
            tokens, grid = stage.down(tokens, grid)
            maps = other.downsample(maps)
            torch.testing.assert_close(tokens.unflatten(1, grid), maps)
    ours.final_norm.load_state_dict(theirs.head.norm.state_dict())
    torch.testing.assert_close(ours.summary(tokens), theirs.head.norm(maps.mean((1, 2))))


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_are_backbones_too(name: str) -> None:
    model = any_small(name)
    images = torch.randn(1, 3, 112, 168) if "patch14" in name else torch.randn(1, 3, 96, 160)
    with torch.no_grad():
        layers = list(model.features(images, layers=2))
        assert model(images).shape == (1, model.dim)
    assert [layer for layer, _ in layers] == [model.num_layers - 2, model.num_layers - 1]
    last = layers[-1][1]
    assert last.patches.shape[1:3] == last.grid
    assert last.summary.shape == (1, model.dim)


def any_small(name: str) -> mixlab.Backbone:
    if name in OURS:
        return small(name)
    torch.manual_seed(0)
    return mixlab.create_model(name, **TIMM.get(name, {})).eval()


def some_images(model: mixlab.Backbone, num: int = 1) -> torch.Tensor:
    side = 56 if "patch14" in model.name else 64
    return model.preprocess(torch.randint(256, (num, 3, side, side), dtype=torch.uint8))


@pytest.mark.parametrize("name", [*OURS, *TIMM])
@torch.no_grad()
def test_what_others_ask_of_a_backbone_is_answered_whoever_wrote_it(name: str) -> None:
    model = any_small(name)
    images = some_images(model)
    assert model.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert model.image % model.layer_shapes()[0].stride == 0 and model.family in {*MIXERS, "other"}
    assert model.is_causal == ("causal" in name) and 0 < model.crop_share <= 1
    features = dict(model.features(images, layers=None))
    for shape, found in zip(model.layer_shapes(), features.values(), strict=True):
        assert found.patches.shape[-1] == shape.width
        assert found.grid == (images.shape[-2] // shape.stride, images.shape[-1] // shape.stride)
    again = build_architecture(json.loads(json.dumps(model.architecture())))
    again.load_state_dict(model.state_dict())
    with FlopCounterMode(display=False) as counter:  # which refuses modules that give views of their parameters
        summary = model(images)
    assert counter.get_total_flops() > 0
    torch.testing.assert_close(again.eval()(images), summary)


@pytest.mark.parametrize("name", [*OURS, *TIMM])
@torch.no_grad()
def test_a_twin_is_drawn_from_its_seed_alone(name: str) -> None:
    model = any_small(name)
    state = torch.random.get_rng_state()
    one, again, other = (model.twin(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state) and not one.training
    for key, value in one.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    images = some_images(model)
    assert not torch.equal(one(images), other(images)) and not torch.equal(one(images), model(images))


@pytest.mark.parametrize("name", [*OURS, *TIMM])
def test_a_classifier_starts_from_the_weights_and_hands_them_back(name: str) -> None:
    model = any_small(name)
    network = model.with_classifier(5)
    images, before = some_images(model, 2), {key: value.clone() for key, value in model.state_dict().items()}
    for key, value in before.items():
        assert torch.equal(network.state_dict()[model.name_in_classifier(key)], value)
    head = model.classifier_names(network)
    assert head and head.isdisjoint(model.name_in_classifier(key) for key in before)
    logits = network.eval()(images)
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad.sign()
    model.load_from_classifier(network.state_dict())
    assert all(
        torch.equal(network.state_dict()[model.name_in_classifier(key)], value)
        for key, value in model.state_dict().items()
    )
    assert any(not torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", [*OURS, "timm/vit_tiny_patch16_224"])
def test_checkpointing_changes_no_gradient(name: str) -> None:
    model = any_small(name)
    images, found = some_images(model), []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(images).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(plain, thrifty) for plain, thrifty in zip(*found, strict=True))


def test_only_networks_with_mamba_2_keep_scans() -> None:
    model = small("dinovim_tiny")
    for enable in (True, False):
        model.set_keep_scans(enable)
        assert all(layer.mixer.keep_scan is enable for layer in model.layer_modules)
    with pytest.raises(InputError, match="has no Mamba-2 layers; leave out keep_scans"):
        small("vit_tiny").set_keep_scans()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_preprocess_takes_the_mean_and_deviation_of_the_backbone_out(dtype: torch.dtype) -> None:
    model = mixlab.create_model("timm/mixer_s32_224").to(dtype)  # its mean and deviation are 0.5
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)[:, None, None].expand(3, 32, 32)
    expected = torch.tensor([-1.0, -0.6, 1.0], dtype=dtype)
    for pixels in (model.preprocess(images), model.preprocess(images[None])):
        assert pixels.shape == (1, 3, 32, 32)
        torch.testing.assert_close(pixels[0, :, 0, 0], expected, rtol=0, atol=1e-6)


def test_images_of_one_channel_are_normalised_by_the_mean_over_channels() -> None:
    model = small("vit_tiny", channels=1)
    pixels = model.preprocess(torch.full((2, 1, 32, 32), 255, dtype=torch.uint8))
    expected = (1 - sum(model.pixel_mean) / 3) / (sum(model.pixel_std) / 3)
    torch.testing.assert_close(pixels, torch.full((2, 1, 32, 32), expected))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 32, 32), "takes uint8 pixels from 0 to 255, got torch.float32"),
        (torch.zeros(1, 32, 32, dtype=torch.uint8), r"takes images \(B, 3, H, W\) or \(3, H, W\), got \(1, 32, 32\)"),
        (torch.zeros(32, 32, dtype=torch.uint8), r"got \(32, 32\)"),
    ],
    ids=["floats", "channels", "no channels"],
)
def test_preprocess_says_what_it_takes(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small("vit_tiny").preprocess(images)


def test_causality_is_that_of_the_mixer() -> None:
    assert small("vit_tiny", causal=True, place="none").is_causal and small("dinovim_tiny", two_way=False).is_causal
    assert small("gatedconv_tiny", sequence=True, two_way=False).is_causal
    assert not small("gatedconv_tiny", two_way=False).is_causal  # a window on the grid looks around


@pytest.mark.parametrize(("name", "fields"), [("vit_causal_tiny", {}), ("linearvit_tiny", {"place": "back"}),
                                              ("vit_tiny", {"place": "none"})])  # fmt: skip
def test_a_causal_network_sees_every_patch_in_its_summary(name: str, fields: dict[str, str]) -> None:
    model = small(name, causal=True, **fields).eval()
    images = torch.randn(1, 3, 64, 64, requires_grad=True)
    model(images).square().sum().backward()
    size = model.layer_shapes()[0].stride
    seen = images.grad.unfold(2, size, size).unfold(3, size, size).abs().amax((0, 1, 4, 5))
    assert (seen > 0).all()


@pytest.mark.parametrize(("name", "fields"), [("vit_tiny", {"causal": True}), ("linearvit_tiny", {"causal": True}),
                                              ("vit_causal_tiny", {"place": "front"})])  # fmt: skip
def test_a_class_token_that_would_see_nothing_is_refused_with_two_ways_out(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the same feature for every image; choose place=\"back\" .* place=\"none\""):
        small(name, **fields)


def test_a_timm_model_says_the_image_size_that_it_was_made_for() -> None:
    assert mixlab.create_model("timm/vit_tiny_patch16_384").image == 384
    assert mixlab.create_model("timm/vit_tiny_patch16_224", img_size=64).image == 64
    assert mixlab.create_model("timm/vit_tiny_patch16_224", img_size=(64, 96)).image == 96


@pytest.mark.parametrize("name", OURS)
def test_each_layer_has_a_mixing_that_keeps_the_contract(name: str) -> None:
    model = small(name).double()
    images = torch.randn(1, 3, 32, 40, dtype=torch.float64)
    mixings = list(model.mixings(images))
    assert [layer for layer, _ in mixings] == list(range(model.num_layers))
    for _, mixing in mixings:
        some = slice(None, None, max(mixing.num_heads // 8, 1))
        torch.testing.assert_close(mixing.apply()[:, some], mixing.matrix(some) @ mixing.values[:, some])


@pytest.mark.parametrize("name", [*OURS, *(name for name in TIMM if "convnext" not in name)])
def test_features_and_mixings_together_are_those_of_a_pass_for_each(name: str) -> None:
    backbone = small(name) if name in OURS else mixlab.create_model(name, **TIMM[name]).eval()
    images = torch.randn(1, 3, *((32, 40) if name in OURS else (backbone.image, backbone.image)))
    with torch.no_grad():
        features = dict(backbone.features(images, layers=[0, -1]))
        mixings = dict(backbone.mixings(images, layers=1))
        together = list(backbone.features_and_mixings(images, features=[0, -1], mixings=1))
    order = [(layer, isinstance(found, Features)) for layer, found in together]
    assert set(order) == {(layer, True) for layer in features} | {(layer, False) for layer in mixings}
    for layer, found in together:
        if isinstance(found, Features):
            assert torch.equal(found.patches, features[layer].patches)
            assert torch.equal(found.summary, features[layer].summary)
        else:
            assert torch.equal(found.matrix(), mixings[layer].matrix())
            assert order.index((layer, False)) > order.index((layer, True))


def test_mixings_of_mambaout_are_its_convolutions() -> None:
    model = mixlab.create_model("mambaout_femto").eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        mixings = dict(model.mixings(images, layers=[0, 3]))
        block = model.model.stages[0].blocks[-1]
        maps = model.model.stages[0].blocks[:-1](model.model.stages[0].downsample(model.model.stem(images)))
        convolved = block.fc1(block.norm(maps)).split(block.split_indices, dim=-1)[-1].permute(0, 3, 1, 2)
        expected = block.conv(convolved) - block.conv.bias[:, None, None]
    assert list(mixings) == [0, 3]
    torch.testing.assert_close(mixings[0].apply().squeeze(-1), expected.flatten(2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mixings[3].apply(), mixings[3].matrix() @ mixings[3].values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["timm/convnext_atto", "timm/swin_tiny_patch4_window7_224"])
def test_a_model_without_a_matrix_says_so(name: str) -> None:
    model = mixlab.create_model(name)
    images = torch.randn(1, 3, 224, 224)
    with pytest.raises(ValueError, match="has no mixing matrices: it does not attend"):
        list(model.mixings(images))
    with pytest.raises(ValueError, match="has no branch features"):
        list(model.features(images, source="branch"))


@pytest.mark.parametrize("name", ISOTROPIC)
def test_the_stream_after_each_layer_adds_up(name: str) -> None:
    """Features of layer i are those of the model cut after layer i."""
    model = small(name)
    images = torch.randn(2, 3, 32, 32)
    whole = dict(model.features(images, layers=None))
    for depth in (1, 2):
        cut = small(name, depth=depth)
        cut.load_state_dict({k: v for k, v in model.state_dict().items() if k in cut.state_dict()})
        torch.testing.assert_close(cut(images), whole[depth - 1].summary)


@pytest.mark.parametrize("name", [*OURS, *TIMM])
@torch.no_grad()
def test_the_raw_stream_is_what_the_final_norm_is_given(name: str) -> None:
    model = any_small(name)
    images = some_images(model)
    normed, raw = (dict(model.features(images, layers=1, norm=norm)) for norm in (True, False))
    [(last, found)] = raw.items()
    assert found.patches.shape == normed[last].patches.shape
    norm = getattr(model, "final_norm", None) or getattr(getattr(model, "model", None), "norm", None)
    if isinstance(norm, AddNorm):
        torch.testing.assert_close(norm.normalise(found.patches.flatten(1, 2)), normed[last].patches.flatten(1, 2))
    elif isinstance(norm, torch.nn.LayerNorm) and norm.weight.shape[0] == found.patches.shape[-1]:
        torch.testing.assert_close(norm(found.patches), normed[last].patches)
    else:
        assert torch.equal(found.patches, normed[last].patches), "without a final norm both are the same"


def test_branch_features_leave_the_residual_stream_out() -> None:
    model = small("dinovim_tiny")
    images = torch.randn(1, 3, 32, 32)
    [(_, branch)] = model.features(images, layers=[0], source="branch")
    start, stream, grid = model.start(images)
    mixed = model.layers[0].mixer(model.layers[0].norm(start, stream)[1], grid)
    expected = mixed * (mixed.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * model.final_norm.weight
    torch.testing.assert_close(branch.summary, expected[:, 8])  # 16 patches and a copy in front: the middle is 8


@pytest.mark.parametrize("name", OURS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = small(name).train()
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    silent = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert not silent


@pytest.mark.parametrize("name", OURS)
def test_bfloat16_autocast_stays_close_to_float32(name: str) -> None:
    model = small(name)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        exact = model(images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = model(images)
    assert ((rounded.float() - exact).norm() / exact.norm()).item() < 0.05


# One of each kind of mixer, and MIXLAB_COMPILE_ALL=1 the others, and as far as AOTAutograd, which opcheck tries for our
# operators; of those with long graphs, as little as there can be.
COMPILED: dict[str, dict[str, object]] = {
    **{name: {"depth": 1} for name in ("vit_tiny", "linearvit_tiny", "gatedconv_tiny", "dinovim_tiny", "vim_tiny")},
    "efficientvmamba_tiny": {"dims": (8, 16), "depths": (1, 1), "late_stages": 1},
}
COMPILE_ALL = bool(os.environ.get("MIXLAB_COMPILE_ALL"))
if COMPILE_ALL:
    COMPILED |= {name: {"depth": 1} for name in ISOTROPIC if name not in VISUAL_MAMBAS or name == "plainmamba_l1"}


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_as_one_graph(name: str) -> None:
    model = small(name, **COMPILED[name])
    images = torch.randn(2, 3, 32, 40)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager" if COMPILE_ALL else "eager")
        torch.testing.assert_close(compiled(images), model(images))


@torch.no_grad()
def test_attention_exports() -> None:
    """Both scans are exported, and run by others, in test_onnx_file.py."""
    model, images = small("vit_tiny", depth=1), torch.randn(2, 3, 32, 40)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), model(images))


@pytest.mark.parametrize("name", OURS)
def test_nan_in_one_image_stays_in_that_image(name: str) -> None:
    model = small(name)
    images = torch.randn(2, 3, 32, 32)
    clean = model(images)
    images[0, 0, 0, 0] = torch.nan
    spoilt = model(images)
    assert spoilt[0].isnan().all()
    torch.testing.assert_close(spoilt[1], clean[1])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 30, 32), "30px is not a multiple of patch 8; try 24"),
        (torch.zeros(1, 1, 32, 32), "1 channels, this backbone takes 3"),
        (torch.zeros(0, 3, 32, 32), "the batch is empty"),
        (torch.zeros(3, 32, 32), r"images must be \(B, 3, H, W\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "scale them to floats"),
    ],
    ids=["size", "channels", "empty", "no batch", "integers"],
)
def test_wrong_images_are_refused_with_the_rule(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small("dinovim_tiny")(images)


def test_unknown_names_and_fields_are_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="dinovim_tiny"):
        mixlab.create_model("dinovim_tinny")
    with pytest.raises(ValueError, match="timm/vit_base_patch16_224"):
        mixlab.create_model("vit_base_patch16_224")
    with pytest.raises(ValueError, match="did you mean depth"):
        mixlab.create_model("dinovim_tiny", deph=3)
    with pytest.raises(ValueError, match="timm .* has no model 'nothing'"):
        mixlab.create_model("timm/nothing")


def test_fields_of_the_mixer_and_the_layout_can_be_set_by_name() -> None:
    model = small("linearvit_tiny", feature_map="elu", num_registers=4)
    assert isinstance(model, Isotropic)
    assert model.config.mixer.feature_map == "elu"
    [(_, features)] = model.features(torch.randn(1, 3, 32, 32))
    assert features.registers.shape == (1, 4, 64)


@pytest.mark.parametrize("choice", [0, 4, [3], [-4]])
def test_layers_that_do_not_exist_are_refused(choice: int | list[int]) -> None:
    with pytest.raises(ValueError, match="layer"):
        list(small("vit_tiny").features(torch.randn(1, 3, 32, 32), layers=choice))


def test_decay_spares_vectors_tokens_positions_and_the_scan_s_own_parameters() -> None:
    model = small("dinomambareg_tiny")
    decayed = {key for key, _ in model.named_parameters()} - model.no_weight_decay()
    kinds = {key.split(".", 2)[-1] if key.startswith("layers") else key for key in decayed}
    assert kinds == {"embed.project.weight", "mixer.in_proj.weight", "mixer.conv_weight", "mixer.out_proj.weight"}


def test_drop_path_acts_in_training_only() -> None:
    model = small("dinovim_tiny", drop_path=0.5)
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))
