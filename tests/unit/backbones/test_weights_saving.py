"""Our own files: what is saved comes back, architecture included, from the file alone."""

import json
import os
import stat
import struct
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mixlab import Backbone, create_model, load_weights
from mixlab.backbones.isotropic import Isotropic
from mixlab.backbones.timm_backbone import TimmBackbone
from mixlab.backbones.weights import (
    WeightsError,
    build_architecture,
    model_from_file,
    read_architecture,
    save_weights,
)
from mixlab.mixers import AttentionConfig

SMALL = {
    "dinovim_tiny": {"dim": 64, "depth": 2, "image": 64},
    "dinomambareg_tiny": {"dim": 64, "depth": 2, "state": 16},
    "vit_tiny": {
        "dim": 64,
        "depth": 2,
        "patch": 8,
        "image": 32,
        "class_token": False,
        "num_registers": 2,
        "causal": True,
    },
    "linearvit_tiny": {"dim": 64, "depth": 1, "feature_map": "elu", "drop_path": 0.1},
    "gatedconv_tiny": {"dim": 64, "depth": 1, "channels": 3},
    "mambaout_femto": {"dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    "timm/vit_tiny_patch16_224": {"depth": 2, "img_size": [64, 64]},
}


def images() -> Tensor:
    return torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_a_model_comes_back_from_its_file_alone(name, tmp_path):
    model = create_model(name, **SMALL[name]).eval()
    save_weights(model, tmp_path / "w.safetensors")
    again = model_from_file(tmp_path / "w.safetensors").eval()
    assert type(again) is type(model) and again.name == name
    assert again.architecture() == model.architecture()
    torch.testing.assert_close(again(images()), model(images()), rtol=0, atol=0)
    assert [(layer, f.grid) for layer, f in again.features(images())] == [
        (layer, f.grid) for layer, f in model.features(images())
    ]


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_sixteen_bits_halve_a_file_and_hardly_change_features(name, tmp_path):
    model = create_model(name, **SMALL[name]).eval()
    for kind, half in (("whole", False), ("half", True)):
        save_weights(model, tmp_path / kind, half=half)
    again = model_from_file(tmp_path / "half").eval()
    assert {value.dtype for value in again.state_dict().values() if value.is_floating_point()} == {torch.float32}
    assert (tmp_path / "half").stat().st_size < 0.62 * (tmp_path / "whole").stat().st_size
    before, after = model(images()), again(images())
    assert 0 < (after - before).norm() < 5e-3 * before.norm()


def test_weights_beyond_sixteen_bits_are_named(tmp_path):
    model = create_model("vit_tiny", **SMALL["vit_tiny"])
    with torch.no_grad():
        model.layers[0].mixer.get_parameter("qkv.weight")[0, 0] = 1e6
    with pytest.raises(WeightsError, match=r"qkv.weight reaches 1e\+06, beyond 16 bits"):
        save_weights(model, tmp_path / "w", half=True)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("name", ["dinovim_tiny", "mambaout_femto"])
def test_our_files_load_into_a_model_by_name_and_are_recognised(name, tmp_path):
    model = create_model(name, **SMALL[name])
    save_weights(model, tmp_path / "w")
    other = create_model(name, **SMALL[name])
    report = load_weights(other, tmp_path / "w")
    assert report.format == "mixlab" and not report.differences
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_fields_that_differ_between_file_and_model_are_reported(tmp_path):
    pooled = partial(create_model, "vit_tiny", dim=64, depth=1, place="none")
    save_weights(pooled(image=64), tmp_path / "w")
    report = load_weights(pooled(image=96, causal=True), tmp_path / "w")
    assert set(report.differences) == {
        "image is 64, expected 96",
        "mixer.causal is False, expected True",
    }
    assert report.resized == ("embed.positions.table: 4 x 4 to 6 x 6",)


def test_our_files_of_timm_models_are_resized_by_timm_and_told_apart_from_other_models(tmp_path):
    small, large = ({"depth": 1, "img_size": [side, side]} for side in (32, 64))
    save_weights(create_model("timm/vit_tiny_patch16_224", **small), tmp_path / "w")
    report = load_weights(create_model("timm/vit_tiny_patch16_224", **large), tmp_path / "w")
    assert report.format == "mixlab" and report.resized == ("pos_embed: (1, 5, 192) to (1, 17, 192)",)
    deeper = create_model("timm/vit_tiny_patch16_224", depth=2)
    with pytest.raises(WeightsError, match=r"12 missing \(model.blocks.1.norm1.weight, .* and 8 more\)"):
        load_weights(deeper, tmp_path / "w")


def test_the_architecture_and_extra_metadata_are_plain_json_in_the_file(tmp_path):
    model = create_model("dinovim_tiny", dim=64, depth=1)
    save_weights(model, tmp_path / "new" / "w.safetensors", extra_metadata={"epoch": "7"})
    with safe_open(tmp_path / "new" / "w.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["epoch"] == "7"
    stored = json.loads(metadata["mixlab"])
    assert stored == read_architecture(tmp_path / "new" / "w.safetensors") == model.architecture()
    assert stored["name"] == "dinovim_tiny"
    assert stored["config"]["mixer"] == {
        "kind": "mamba2",
        "expand": 2,
        "head_dim": 64,
        "state": 64,
        "conv": 4,
        "two_way": True,
    }


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "w.safetensors"
    model = create_model("dinovim_tiny", dim=64, depth=1)
    save_weights(model, path)
    old = path.read_bytes()
    for bad in ({"mixlab": "mine"}, {"epoch": 7}):
        with pytest.raises(WeightsError, match="not allowed"):
            save_weights(model, path, extra_metadata=bad)
    with pytest.raises(UnicodeEncodeError):  # refused by safetensors itself
        save_weights(model, path, extra_metadata={"note": "\ud800"})
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
    with pytest.raises(WeightsError, match="is a folder"):
        save_weights(model, tmp_path)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_weights_have_the_rights_that_umask_leaves(mask, tmp_path):
    before = os.umask(mask)
    try:
        save_weights(create_model("vit_tiny", dim=64, depth=1), tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o666 & ~mask


def test_saving_over_a_file_that_is_being_read_does_not_disturb_the_reader(tmp_path):
    path = tmp_path / "w.safetensors"
    first, second = (create_model("dinovim_tiny", dim=64, depth=1) for _ in range(2))
    save_weights(first, path)
    with safe_open(path, framework="pt") as reader:
        save_weights(second, path)
        assert torch.equal(reader.get_tensor("embed.tokens"), first.embed.tokens)
    load_weights(first, path)
    assert torch.equal(first.embed.tokens, second.embed.tokens)


def test_files_of_others_cannot_name_their_model(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "w.safetensors")
    torch.save({"a": torch.ones(1)}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        with pytest.raises(WeightsError, match=r"does not say which model.*create_model"):
            model_from_file(tmp_path / name)


def with_architecture(path: Path, text: str) -> Path:
    """The same tensors under other metadata."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["mixlab"] = text
    encoded = json.dumps(header).encode()
    changed = path.with_name("changed.safetensors")
    changed.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])
    return changed


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"config": {"dim": 10**9}}, "cannot be built"),
        ({"config": {"depth": 10**9}}, "depth 1000000000, its tensors are those of 1 layers"),
        ({"config": {"image": 16 * 10**6}}, "wants embed.positions.table of shape"),
        ({"config": {"mixer": {"expand": 10**6}}}, "of shape .* which is not among its tensors|cannot be built"),
        ({"config": {"dim": "64"}}, "config.dim is '64'; expected int"),
        ({"config": {"depth": True}}, "config.depth is True; expected int"),
        ({"config": {"hidden": 3}}, "config has no field 'hidden'"),
        ({"config": {"mixer": {"kind": "os.system"}}}, "config.mixer.kind is 'os.system'; choose one of attention"),
        ({"config": {"layout": {"place": "behind"}}}, "config.layout.place is 'behind'; expected one of none"),
        ({"surprise": 1}, "an architecture has name and config"),
        ({"name": 5}, "without a name"),
    ],
)
def test_a_hostile_architecture_is_refused_before_anything_is_built(change, match, tmp_path):
    model = create_model("dinovim_tiny", dim=64, depth=1)
    save_weights(model, tmp_path / "w.safetensors")

    def merged(old: dict, new: dict) -> dict:
        return old | {key: merged(old[key], new[key]) if isinstance(new[key], dict) else new[key] for key in new}

    path = with_architecture(tmp_path / "w.safetensors", json.dumps(merged(model.architecture(), change)))
    with pytest.raises(WeightsError, match=match):
        model_from_file(path)


def test_a_run_is_read_as_its_exported_file_and_other_folders_name_theirs(tmp_path):
    model = create_model("dinovim_tiny", dim=64, depth=1)
    save_weights(model, tmp_path / "weights.safetensors")
    torch.testing.assert_close(model_from_file(tmp_path).state_dict(), model.state_dict(), rtol=0, atol=0)
    (tmp_path / "weights.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match=r"is a folder; give the file in it, such as .*other\.safetensors"):
        model_from_file(tmp_path)


def test_a_file_of_ours_in_the_wrong_model_is_sent_to_the_right_one(tmp_path):
    save_weights(create_model("dinovim_tiny", dim=64, depth=1), tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"does not fit.*mixlab\.model_from_file\('.*w\.safetensors'\)"):
        load_weights(create_model("vit_tiny", dim=64, depth=1), tmp_path / "w.safetensors")


def test_metadata_that_is_not_json_is_refused(tmp_path):
    model = create_model("dinovim_tiny", dim=64, depth=1)
    save_weights(model, tmp_path / "w.safetensors")
    path = with_architecture(tmp_path / "w.safetensors", "{name: dinovim")
    for read in (model_from_file, read_architecture, lambda path: load_weights(model, path)):
        with pytest.raises(WeightsError, match="not JSON"):
            read(path)


@pytest.mark.parametrize("field", ["pretrained", "checkpoint_path", "pretrained_cfg"])
def test_a_file_cannot_send_timm_to_fetch_other_weights(field):
    described = {"name": "x", "timm_name": "vit_tiny_patch16_224", "fields": {field: "elsewhere"}}
    with pytest.raises(ValueError, match=f"field {field} names a source of weights"):
        build_architecture(described)
    with pytest.raises(ValueError, match="no model 'hf-hub:some/where'"):
        build_architecture({"name": "x", "timm_name": "hf-hub:some/where", "fields": {}})


def test_what_json_cannot_hold_is_named(tmp_path):
    model = create_model("timm/vit_tiny_patch16_224", depth=1, norm_layer=torch.nn.LayerNorm)
    with pytest.raises(ValueError, match=r"field norm_layer is .* JSON cannot hold"):
        save_weights(model, tmp_path / "w")


@pytest.mark.parametrize("name", ["dinovim_tiny", "mambaout_femto"])
@torch.no_grad()
def test_a_pretrained_folder_gives_the_model_back(name, tmp_path):
    model = create_model(name, **SMALL[name]).eval()
    model.save_pretrained(tmp_path / "folder")
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["name"] == name
    assert "library_name: mixlab" in (tmp_path / "folder" / "README.md").read_text()
    again = Backbone.from_pretrained(tmp_path / "folder")
    assert not again.training
    torch.testing.assert_close(again(images()), model(images()), rtol=0, atol=0)
    other = TimmBackbone if isinstance(model, Isotropic) else Isotropic
    with pytest.raises(WeightsError, match=f"not a {other.__name__}"):
        other.from_pretrained(tmp_path / "folder")


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"no file .*model.safetensors"):
        Backbone.from_pretrained(tmp_path)


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    model = create_model("vit_tiny", dim=64, depth=1, image=32)
    metadata = dict.fromkeys(("recipe", "step", "data", "seed", "note"), "x")
    files = [tmp_path / f"{number}.safetensors" for number in range(4)]
    for file in files:
        save_weights(model, file, extra_metadata=metadata)
    assert len({file.read_bytes() for file in files}) == 1


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    """Refused with the reason, before a file is touched."""

    @dataclass(frozen=True, kw_only=True)
    class Unknown(AttentionConfig):
        kind: ClassVar[str] = "unknown"

    place = tmp_path / "weights.safetensors"
    small = create_model("vit_tiny", dim=64, depth=1, patch=8, image=16)
    with pytest.raises(WeightsError, match=r"could not be loaded again: config.mixer.kind is 'unknown'.*plugin"):
        save_weights(Isotropic(replace(small.config, mixer=Unknown())), place)
    small.layers[0].mlp.up = torch.nn.Linear(64, 32)
    with pytest.raises(WeightsError, match=r"changed after it was built.*layers.0.mlp.up.bias.*register_backbone"):
        save_weights(small, place)
    assert not list(tmp_path.iterdir())


def test_a_hint_names_each_model_once() -> None:
    with pytest.raises(ValueError, match="unknown model 'resnet18'") as error:
        create_model("resnet18")
    assert str(error.value).count("timm/resnet18") == 1
