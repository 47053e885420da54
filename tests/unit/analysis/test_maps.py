"""Activation maps against plain loops over tokens, on our backbones and on timm's."""

import json

import pytest
import torch

import mixlab
from mixlab.analysis.activation_maps import activation_maps
from mixlab.analysis.maps import MAPS, MapOfMixing, activation_map, default_map, find_map, read_maps
from mixlab.analysis.pca import pca_maps
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.evaluation.target import Target

IMAGES = torch.randn(2, 3, 64, 48, generator=torch.Generator().manual_seed(1))  # 8 x 6 patches


def tiny(name: str, **fields: object) -> mixlab.Backbone:
    torch.manual_seed(0)
    size = {} if name.startswith("gatedconv") else {"head_dim": 16}
    return mixlab.create_model(name, dim=64, depth=2, image=64, patch=8, **size, **fields).eval()


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b) / (a.norm() * b.norm())


@pytest.mark.parametrize("name", ["vit_tiny", "linearvit_tiny", "dinovim_tiny", "dinomambareg_tiny", "gatedconv_tiny"])
def test_similarity_maps_are_those_of_a_loop_over_patches(name: str) -> None:
    model = tiny(name)
    with torch.no_grad():
        _, features = next(model.features(IMAGES))
        dot, cos, norm = (MAPS[kind](model, IMAGES) for kind in ("dot", "cosine", "norm"))
        assert dot.shape == cos.shape == norm.shape == (2, 8, 6)
        for b, i, j in [(0, 0, 0), (1, 3, 2), (0, 7, 5)]:
            patch, summary = features.patches[b, i, j], features.summary[b]
            torch.testing.assert_close(dot[b, i, j], patch @ summary)
            torch.testing.assert_close(cos[b, i, j], cosine(patch, summary))
            torch.testing.assert_close(norm[b, i, j], patch.norm())


def test_the_summary_of_a_map_is_what_the_backbone_returns() -> None:
    model = tiny("dinomambareg_tiny", num_registers=4)
    with torch.no_grad():
        summary = model(IMAGES)
        _, features = next(model.features(IMAGES))
        expected = cosine(summary[1], features.patches[1, 2, 3])
    torch.testing.assert_close(MAPS["cosine"](model, IMAGES)[1, 2, 3], expected)


def test_register_maps_have_one_picture_per_register() -> None:
    model = tiny("dinomambareg_tiny", num_registers=4)
    with torch.no_grad():
        _, features = next(model.features(IMAGES, layers=[0]))
    maps = {kind: MAPS[kind](model, IMAGES, layer=0) for kind in ("register_cosine", "register_dot")}
    for b, r, i, j in [(0, 0, 0, 0), (1, 3, 7, 5)]:
        register, patch = features.registers[b, r], features.patches[b, i, j]
        torch.testing.assert_close(maps["register_cosine"][b, r, i, j], cosine(register, patch))
        torch.testing.assert_close(maps["register_dot"][b, r, i, j], register @ patch)
    assert maps["register_dot"].shape == (2, 4, 8, 6)


def test_mixing_rows_of_attention_are_the_class_tokens_row_at_each_patch() -> None:
    model = tiny("vit_tiny")
    rows = MAPS["mixing_rows"](model, IMAGES, layer=0)
    with torch.no_grad():
        _, mixing = next(model.mixings(IMAGES, layers=[0]))
        matrix = mixing.matrix()
    assert rows.shape == (2, 4, 8, 6)
    torch.testing.assert_close(rows, matrix[:, :, 0, 1:].unflatten(-1, (8, 6)))
    torch.testing.assert_close(MAPS["mixing_mean"](model, IMAGES, layer=0), rows.mean(1))


def test_mixing_rows_of_a_scan_join_its_two_directions_around_the_middle_token() -> None:
    model = tiny("dinovim_tiny")
    rows = MAPS["mixing_rows"](model, IMAGES)
    directions = MAPS["direction_rows"](model, IMAGES)
    with torch.no_grad():
        _, mixing = next(model.mixings(IMAGES, layers=[1]))
        matrix = mixing.matrix().abs()
    num_heads = matrix.shape[1] // 2
    assert rows.shape == (2, num_heads, 8, 6)
    middle = (48 + 1) // 2  # of 48 patches and the copy in front
    for head in (0, num_heads - 1):
        before = matrix[:, head, middle, 1:middle]
        after = matrix[:, num_heads + head, middle, middle + 1 :]
        torch.testing.assert_close(rows[:, head].flatten(1), torch.cat([before, after], dim=1))
    assert directions.shape == (2, 2, 8, 6)
    assert directions[:, 0].flatten(1)[:, middle - 1 :].abs().max() == 0
    assert directions[:, 1].flatten(1)[:, : middle - 1].abs().max() == 0


def test_register_rows_have_one_picture_per_register() -> None:
    model = tiny("dinomambareg_tiny", num_registers=3)
    rows = MAPS["register_rows"](model, IMAGES)
    with torch.no_grad():
        _, mixing = next(model.mixings(IMAGES, layers=[1]))
    registers = model.layout.positions(48)
    patches = [token for token in range(51) if token not in registers]
    expected = mixing.matrix()[:, :, registers[1]][..., patches].abs().mean(1)
    torch.testing.assert_close(rows[:, 1].flatten(1), expected.detach())


def test_one_pass_gives_all_layers() -> None:
    model = tiny("vit_tiny")
    for name in ("cosine", "mixing_mean"):
        layers = {layer: found for _, layer, found in read_maps(model, IMAGES, [(MAPS[name], None)])}
        assert sorted(layers) == [0, 1]
        torch.testing.assert_close(layers[0], MAPS[name](model, IMAGES, layer=0))
        torch.testing.assert_close(layers[1], MAPS[name](model, IMAGES))


def test_the_component_map_is_that_of_the_features() -> None:
    model = tiny("dinovim_tiny")
    with torch.no_grad():
        _, features = next(model.features(IMAGES))
    torch.testing.assert_close(MAPS["pca"](model, IMAGES), pca_maps(features.patches).first)


@pytest.mark.parametrize("name", ["vit_tiny", "linearvit_tiny", "dinovim_tiny", "dinomambareg_tiny", "gatedconv_tiny"])
def test_the_default_map_is_the_papers_and_exists_for_every_family(name: str) -> None:
    model = tiny(name)
    assert default_map(model) == ("pooled_cosine" if name == "gatedconv_tiny" else "cosine")
    assert activation_map(model, IMAGES).shape == (2, 8, 6)
    torch.testing.assert_close(activation_map(model, IMAGES), MAPS[default_map(model)](model, IMAGES))


@pytest.mark.parametrize("name", ["convnext_atto", "mambaout_femto"])
def test_grid_only_models_of_timm_have_feature_maps_and_say_what_they_lack(name: str) -> None:
    model = mixlab.create_model(f"timm/{name}").eval()
    images = torch.randn(1, 3, 224, 224)
    assert default_map(model) == "pooled_cosine"
    assert activation_map(model, images).shape == (1, 7, 7)
    with pytest.raises(ValueError, match=r"has no mixing matrices|need a token that is the summary"):
        MAPS["mixing_rows"](model, images)
    with pytest.raises(ValueError, match="no registers to map"):
        MAPS["register_cosine"](model, images)


def test_registers_that_do_not_make_up_the_summary_have_maps_but_no_rows() -> None:
    model = mixlab.create_model("timm/vit_wee_patch16_reg1_gap_256", depth=1).eval()
    images = torch.randn(1, 3, 256, 256)
    assert MAPS["register_cosine"](model, images).shape == (1, 1, 16, 16)
    with pytest.raises(ValueError, match="the summary, which in this backbone is the mean of patches"):
        MAPS["mixing_rows"](model, images)


def test_a_network_is_named_once_in_what_it_lacks() -> None:
    for name, said in (
        ("convnext_atto", "^timm/convnext_atto has no mixing"),
        ("mambaout_femto", "^timm/mambaout_femto: rows"),
    ):
        with pytest.raises(ValueError, match=said):
            mixlab.activation_maps([mixlab.load_target(f"timm/{name}")], "photo:cat", map_name="mixing_mean")


def test_timm_vits_have_every_map_that_their_tokens_allow() -> None:
    model = mixlab.create_model("timm/vit_small_patch14_reg4_dinov2").eval()
    images = torch.randn(1, 3, 56, 70)
    lacking = {"direction_rows", "front_cosine"}
    shapes = {name: MAPS[name](model, images, layer=1).shape for name in MAPS if name not in lacking}
    assert shapes["cosine"] == shapes["pca"] == shapes["mixing_mean"] == (1, 4, 5)
    assert shapes["register_cosine"] == (1, 4, 4, 5)
    assert shapes["mixing_rows"] == (1, 6, 4, 5)
    attention = next(model.mixings(images, layers=[1]))[1].matrix()
    torch.testing.assert_close(MAPS["mixing_rows"](model, images, layer=1).flatten(2), attention[:, :, 0, 5:].detach())


def test_maps_that_cannot_be_are_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match="there is no map 'cosin'; did you mean cosine"):
        activation_map(tiny("vit_tiny"), IMAGES, "cosin")
    with pytest.raises(ValueError, match="only scans have directions"):
        MAPS["direction_rows"](tiny("vit_tiny"), IMAGES)
    with pytest.raises(ValueError, match="need a token that is the summary"):
        MAPS["mixing_rows"](tiny("gatedconv_tiny"), IMAGES)
    with pytest.raises(ValueError, match="no layer 7 among 2"):
        MAPS["cosine"](tiny("vit_tiny"), IMAGES, layer=7)


def test_every_map_explains_itself_and_keeps_no_gradient() -> None:
    model = tiny("dinomambareg_tiny", num_registers=4)
    with_copy = tiny("dinovim_tiny")
    for name, kind in MAPS.items():
        assert kind.about
        assert not kind(with_copy if name == "front_cosine" else model, IMAGES).requires_grad, name
    assert any(isinstance(kind, MapOfMixing) for kind in MAPS.values())


def test_several_maps_of_features_come_out_of_one_pass() -> None:
    model = tiny("vit_tiny")
    stacked = find_map("cosine+norm+pca")(model, IMAGES)
    for place, name in enumerate(("cosine", "norm", "pca")):
        torch.testing.assert_close(stacked[:, place], MAPS[name](model, IMAGES), check_dtype=False)
    with pytest.raises(ValueError, match="no map 'cos'; did you mean"):
        find_map("cos+norm")
    with pytest.raises(ValueError, match="only maps of features can be combined"):
        find_map("cosine+mixing_mean")


def test_maps_and_components_of_several_networks_are_a_result_for_json_and_arrays() -> None:
    targets = [Target(label=name, backbone=tiny(name)) for name in ("vit_tiny", "gatedconv_tiny")]
    images = ViewedImages("shapes:n=9", size=64, num_images=3)
    explained = {}
    for fit in ("image", "set"):
        result = activation_maps(targets, images, layer=0, pca_fit=fit)
        stored = json.loads(json.dumps(result.to_json(), allow_nan=False))
        explained[fit] = [len(shares) for shares in stored["pca"]["explained"].values()]
    assert explained == {"image": [3, 3], "set": [1, 1]}
    assert stored["maps"] == {"vit_tiny": "cosine", "gatedconv_tiny": "pooled_cosine"}
    choices = {"data": "shapes:n=9", "split": "val", "num_images": 3, "image": 64, "fit": "crop", "layer": 0}
    assert choices.items() <= stored["protocol"].items()
    pixels = targets[0].backbone.preprocess(images.together().images)
    expected = activation_map(targets[0].backbone, pixels, "cosine", 0)
    torch.testing.assert_close(torch.stack(result.maps["vit_tiny"]), expected)
    torch.testing.assert_close(torch.from_numpy(result.arrays["map_vit_tiny"]), expected)
    assert {name: array.shape for name, array in result.arrays.items()} == {
        "images": (3, 3, 64, 64),
        "masks": (3, 64, 64),
        **{f"map_{target.label}": (3, 8, 8) for target in targets},
        **{f"pca_first_{target.label}": (3, 8, 8) for target in targets},
        **{f"pca_colours_{target.label}": (3, 8, 8, 3) for target in targets},
    }
    with pytest.raises(ValueError, match="different labels"):
        activation_maps([targets[0], targets[0]], images)


def test_the_map_of_the_front_copy_is_its_cosine_to_each_patch() -> None:
    torch.manual_seed(0)
    fields = {"dim": 32, "depth": 2, "image": 32, "patch": 8, "head_dim": 16}
    model = mixlab.create_model("dinovim_tiny", **fields).eval()
    images = torch.rand(2, 3, 32, 32)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    model.final_norm.register_forward_hook(lambda module, given, out: seen.append(out))
    found = MAPS["front_cosine"](model, images)
    tokens = seen[-1][1]  # (2, 18, 32): front, 7 patches, middle, 9 patches
    patches = torch.cat([tokens[:, 1:8], tokens[:, 9:]], dim=1)
    expected = torch.nn.functional.cosine_similarity(tokens[:, :1], patches, dim=-1).unflatten(1, (4, 4))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert not torch.allclose(found, MAPS["cosine"](model, images), atol=1e-3)
