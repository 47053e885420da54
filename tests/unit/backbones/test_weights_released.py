"""Released checkpoints give the released models' features."""

from pathlib import Path

import pytest
import timm
import torch
from released_dino_vit import random_vit_state, released_vit_features
from released_dinomamba import random_state, released_features, save_checkpoint
from released_mambaout import released_mambaout_name
from safetensors.torch import save_file
from torch import Tensor

from mixlab import create_model, load_weights
from mixlab.backbones.weights import WeightsError

SIZES = [(224, 224), (96, 96), (160, 256)]
MODELS = {"vim": ("dinovim_tiny", 14), "mambareg": ("dinomambareg_tiny", 7)}  # and the side of the position table


def images_of(size: tuple[int, int], batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(size[0] + size[1]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("released", MODELS)
@torch.no_grad()
def test_dino_mamba_checkpoints_give_the_released_summary_and_probe_features(released, size, tmp_path):
    name, side = MODELS[released]
    student, teacher = (random_state(released, dim=64, depth=3, side=side, seed=seed) for seed in (1, 2))
    save_checkpoint(tmp_path / "checkpoint.pth", student=student, teacher=teacher)
    images = images_of(size)
    for key, state in (("student", student), ("teacher", teacher))[0 if size == SIZES[0] else 1 :]:
        model = create_model(name, dim=64, depth=3, weights=tmp_path / "checkpoint.pth", checkpoint_key=key).eval()
        summary, probe = released_features(state, images, last=2)
        torch.testing.assert_close(model(images).double(), summary, rtol=0, atol=1e-4)
        branches = [features.summary for _, features in model.features(images, layers=2, source="branch")]
        torch.testing.assert_close(torch.stack(branches).double(), torch.stack(probe), rtol=0, atol=1e-4)


@pytest.mark.parametrize("released", MODELS)
@torch.no_grad()
def test_one_layer_of_base_width_gives_the_released_features(released, tmp_path):
    name, side = MODELS[released]
    state = random_state(released, dim=768, depth=1, side=side)
    torch.save(state, tmp_path / "bare.pth")
    model = create_model(name.replace("tiny", "base"), depth=1, weights=tmp_path / "bare.pth").eval()
    images = images_of((224, 224), batch=1)
    summary, (probe,) = released_features(state, images, last=1)
    torch.testing.assert_close(model(images).double(), summary, rtol=0, atol=1e-4)
    ((_, features),) = model.features(images, layers=1, source="branch")
    torch.testing.assert_close(features.summary.double(), probe, rtol=0, atol=1e-4)


def test_the_report_says_which_part_was_read_and_what_was_left_out(tmp_path):
    state = random_state("vim", dim=64, depth=2, side=14)
    save_checkpoint(tmp_path / "c.pth", student=state, teacher=state)
    model = create_model("dinovim_tiny", dim=64, depth=2)
    report = load_weights(model, tmp_path / "c.pth", checkpoint_key="student")
    assert (report.format, report.part) == ("Dino-Mamba's DinoVim", "student")
    assert report.num_loaded == len(model.state_dict())
    assert set(report.ignored) == {
        "module.head.mlp.0.weight",
        "module.head.last_layer.weight_g",
        "head.weight",
        "head.bias",
    }
    assert not (report.resized or report.not_finite or report.differences)
    assert "student" in str(report) and "head.bias" in str(report)


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_dino_vit_checkpoints_give_the_released_tokens(size, tmp_path):
    state = random_vit_state(dim=128, depth=3, side=28, patch=8)
    torch.save(state, tmp_path / "backbone.pth")
    save_checkpoint(tmp_path / "full.pth", student=state, teacher=state)
    images = images_of(tuple(side // 2 for side in size), batch=1)
    expected = torch.stack(released_vit_features(state, images, last=2))
    for path, key in (("backbone.pth", "teacher"), ("full.pth", "teacher"), ("full.pth", "student")):
        fields = {"dim": 128, "depth": 3, "patch": 8, "image": 224}
        model = create_model("vit_tiny", weights=tmp_path / path, checkpoint_key=key, **fields).eval()
        torch.testing.assert_close(model(images).double(), expected[-1, :, 0], rtol=0, atol=1e-4)
        features = [features for _, features in model.features(images, layers=2)]
        patches = torch.stack([f.patches.flatten(1, 2) for f in features]).double()
        torch.testing.assert_close(patches, expected[:, :, 1:], rtol=0, atol=1e-4)


@torch.no_grad()
def test_our_vit_equals_timms_with_the_same_weights(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=10).eval()
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    ours = create_model("vit_tiny").eval()
    report = load_weights(ours, tmp_path / "timm.safetensors")
    assert set(report.ignored) == {"head.weight", "head.bias"}
    images = images_of((224, 224))
    tokens = theirs.forward_features(images)
    torch.testing.assert_close(ours(images), tokens[:, 0], rtol=0, atol=1e-5)
    ((_, features),) = ours.features(images)
    torch.testing.assert_close(features.patches.flatten(1, 2), tokens[:, 1:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_dino_vit_checkpoint_also_loads_into_timms_model(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=0).eval()
    state = theirs.state_dict()
    save_checkpoint(tmp_path / "full.pth", student=state, teacher=state)
    model = create_model("timm/vit_tiny_patch16_224", weights=tmp_path / "full.pth").eval()
    images = images_of((224, 224), batch=1)
    torch.testing.assert_close(model(images), theirs(images), rtol=0, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"model": state, "epoch": 300}])
@torch.no_grad()
def test_released_mambaout_state_dicts_load_by_their_own_names(wrap, tmp_path):
    theirs = timm.create_model("mambaout_femto").eval()
    state = {released_mambaout_name(name): tensor for name, tensor in theirs.state_dict().items()}
    assert {"downsample_layers.0.conv1.weight", "downsample_layers.2.conv.bias", "stages.3.2.fc2.weight"} <= set(state)
    assert {"norm.weight", "head.fc1.weight", "head.norm.weight", "head.fc2.bias"} <= set(state)
    torch.save(wrap(state), tmp_path / "mambaout.pth")
    model = create_model("mambaout_femto").eval()
    report = load_weights(model, tmp_path / "mambaout.pth")
    assert "head.fc.weight" in report.ignored and not report.resized
    images = images_of((96, 64), batch=1)
    expected = theirs.forward_features(images)
    torch.testing.assert_close(model(images), theirs.head.norm(expected.mean((1, 2))), rtol=0, atol=1e-5)


def test_a_position_table_of_another_size_is_resized_as_the_backbone_would(tmp_path):
    state = random_state("vim", dim=64, depth=1, side=14)
    torch.save(state, tmp_path / "w.pth")
    small = create_model("dinovim_tiny", dim=64, depth=1, image=96)
    report = load_weights(small, tmp_path / "w.pth")
    assert report.resized == ("embed.positions.table: 14 x 14 to 6 x 6",)
    large = create_model("dinovim_tiny", dim=64, depth=1, weights=tmp_path / "w.pth")
    images = images_of((96, 96))
    torch.testing.assert_close(small(images), large(images))
    torch.testing.assert_close(small.embed.positions.table[:, 0], state["pos_embed"][:, 0])


@pytest.mark.parametrize("entries", [196, 99, 1])
def test_a_position_table_that_is_not_square_is_refused(entries, tmp_path):
    state = random_state("vim", dim=64, depth=1, side=14)
    torch.save(state | {"pos_embed": torch.zeros(1, entries, 64)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=f"{entries} entries.*not a square"):
        create_model("dinovim_tiny", dim=64, depth=1, weights=tmp_path / "w.pth")


def test_weights_saved_from_wrapped_models_lose_their_prefixes(tmp_path):
    state = random_state("vim", dim=64, depth=1, side=14)
    for number, prefix in enumerate(("module.", "_orig_mod.", "module._orig_mod.", "backbone.module.")):
        path = tmp_path / f"{number}.safetensors"
        save_file({prefix + key: value for key, value in state.items()}, path)
        model = create_model("dinovim_tiny", dim=64, depth=1, weights=path)
        torch.testing.assert_close(model.layers[0].mixer.skip[1].data, state["layers.0.mixer.D_b"])


def test_half_precision_weights_load_into_a_float32_model(tmp_path):
    state = {key: value.half() for key, value in random_state("mambareg", dim=64, depth=1, side=7).items()}
    save_file(state, Path(tmp_path) / "half.safetensors")
    model = create_model("dinomambareg_tiny", dim=64, depth=1, weights=tmp_path / "half.safetensors")
    assert model.embed.tokens.dtype == torch.float32
    torch.testing.assert_close(model.embed.tokens.data, state["cls_token"].float())


@pytest.mark.parametrize("name", ["timm/resnet18", "efficientvmamba_tiny"])
def test_counts_of_batches_may_be_missing_or_floats(name, tmp_path):
    model = create_model(name)
    state = (model.model if name.startswith("timm/") else model).state_dict()
    weights = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    floats = {key: torch.tensor(7.0) for key in state.keys() - weights.keys()}
    for entries, count in ((weights, 0), (weights | floats, 7)):
        torch.save(entries, tmp_path / "file.pth")
        other = create_model(name, weights=tmp_path / "file.pth")
        found = other.state_dict()
        assert all(torch.equal(found[key], value) for key, value in model.state_dict().items() if "num_b" not in key)
        counts = {int(value) for key, value in found.items() if key.endswith("num_batches_tracked")}
        assert counts == {count}
