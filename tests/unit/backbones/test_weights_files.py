"""Broken, hostile and mismatched files: a clear error, nothing executed, the model untouched."""

import copy
import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from released_dinomamba import random_state
from safetensors.torch import save, save_file

from mixlab import create_model, load_weights
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import WeightsError, save_weights
from mixlab.evaluation.target import load_target
from mixlab.training.config import ModelConfig


@pytest.fixture
def model() -> Backbone:
    return create_model("dinovim_tiny", dim=64, depth=2)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return random_state("vim", dim=64, depth=2, side=14)


def refused(model: Backbone, path: Path, match: str, **options: str) -> str:
    """Assert that the file is refused and that the model stays as it was; the message."""
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(WeightsError, match=match) as caught:
        load_weights(model, path, **options)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert str(path) in str(caught.value)
    return str(caught.value)


class Malicious:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle", "beside_weights"])
def test_code_in_a_file_is_never_run(form, model, state, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "weights.pth"
    attack = Malicious(f"touch {marker}")
    match form:
        case "zip":
            torch.save(attack, path)
        case "legacy":
            torch.save({"state_dict": attack}, path, _use_new_zipfile_serialization=False)
        case "pickle":
            path.write_bytes(pickle.dumps(attack))
        case "beside_weights":
            torch.save({"teacher": state, "args": attack}, path)
    refused(model, path, "system|a plain pickle, not a checkpoint; it was not run")
    assert not marker.exists()
    pickle.loads(pickle.dumps(attack))
    assert marker.exists(), "the attack would have worked on a careless reader"


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_plain_pickle_is_called_one_and_not_what_torch_would_advise(protocol, model, tmp_path):
    (tmp_path / "w.pth").write_bytes(pickle.dumps({"weight": [1.0, 2.0]}, protocol=protocol))
    message = refused(model, tmp_path / "w.pth", "is a plain pickle, not a checkpoint; it was not run")
    assert "weights_only" not in message


def test_objects_that_torch_would_trust_only_if_told_are_refused(model, state, tmp_path):
    torch.save({"teacher": state, "model": torch.nn.Linear(2, 2)}, tmp_path / "w.pth")
    message = refused(model, tmp_path / "w.pth", "torch.nn.modules.linear.Linear.*not run")
    assert "weights_only=False" not in message


def test_numpy_objects_are_replaced_and_not_built(model, state, tmp_path):
    odd = np.void(b"12345678").astype([("a", "<i8")])
    torch.save({"teacher": state, "lr": np.float32(0.5), "odd": odd}, tmp_path / "w.pth")
    load_weights(model, tmp_path / "w.pth")
    torch.save({"teacher": state, "table": np.zeros(3)}, tmp_path / "array.pth")
    load_weights(model, tmp_path / "array.pth")


def test_missing_empty_text_and_folder_paths_are_told_apart(model, tmp_path):
    refused(model, tmp_path / "absent.pth", "no file")
    (tmp_path / "empty.pth").touch()
    refused(model, tmp_path / "empty.pth", "is empty")
    (tmp_path / "text.pth").write_text("epoch,loss\n1,2\n")
    refused(model, tmp_path / "text.pth", "epoch,los.*neither safetensors nor a torch checkpoint")
    refused(model, tmp_path, "folder; give the file in it")
    os.mkfifo(tmp_path / "pipe.pth")
    refused(model, tmp_path / "pipe.pth", "not a regular file")


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.999])
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_truncated_files_are_refused(form, kept, model, state, tmp_path):
    path = tmp_path / "weights"
    if form == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    refused(model, path, "not a whole torch checkpoint|not whole safetensors|broken zip")


@pytest.mark.parametrize("length", [2**63 - 1, 2**40, 10**9, 3])
def test_a_safetensors_header_of_absurd_length_is_refused(length, model, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", length) + b'{"a":1}')
    refused(model, tmp_path / "w.safetensors", "not whole safetensors")


def test_safetensors_offsets_beyond_the_file_are_refused(model, state, tmp_path):
    content = save({"a": torch.zeros(4)})
    (tmp_path / "w.safetensors").write_bytes(content.replace(b"[4]", b"[9]").replace(b"[0,16]", b"[0,36]"))
    refused(model, tmp_path / "w.safetensors", "not whole safetensors")


def test_an_older_checkpoint_that_ends_like_an_archive_of_many_disks_is_refused_by_name(model, tmp_path):
    many_disks = b"PK\x06\x07" + struct.pack("<LQL", 7, 0, 9)  # zip64's locator: of nine disks, the seventh
    end = b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 0, 0, 0, 0, 0)
    (tmp_path / "w.pth").write_bytes(b"\x80\x02" + b"?" * 40 + many_disks + end)
    with pytest.raises(zipfile.BadZipFile):
        zipfile.is_zipfile(tmp_path / "w.pth")
    refused(model, tmp_path / "w.pth", "not a whole torch checkpoint")


def test_a_compressed_archive_is_refused_before_it_unfolds(model, tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("archive/data/0", bytes(10**7))
    refused(model, tmp_path / "bomb.pth", "compressed")


def test_random_bytes_behind_a_valid_start_are_refused(model, tmp_path):
    noise = np.random.default_rng(0)
    for start in (b"PK\x03\x04", b"\x80\x02", b"\x80\x04", struct.pack("<Q", 20) + b"{"):
        for trial in range(20):
            (tmp_path / "noise").write_bytes(start + noise.bytes(50 + 40 * trial))
            refused(model, tmp_path / "noise", "not a whole torch checkpoint|not whole safetensors|broken zip|asks to")


def test_another_depth_and_width_are_named_with_a_way_out(model, tmp_path):
    torch.save(random_state("vim", dim=128, depth=3, side=14), tmp_path / "w.pth")
    message = refused(model, tmp_path / "w.pth", "does not fit dinovim_tiny, dim 64, patch 16, depth 2")
    assert "DinoVim, dim 128, patch 16, depth 3" in message
    assert "embed.tokens is (1, 1, 128), expected (1, 1, 64)" in message
    assert "9 unknown (layers.2." in message and "create_model('dinovim_tiny', dim=128, depth=3)" in message


def test_missing_and_unknown_keys_are_counted_and_named(model, state, tmp_path):
    del state["layers.1.mixer.in_proj.weight"], state["norm_f.weight"]
    torch.save(state | {"norm_f.weight": torch.ones(64), "layers.0.mixer.surprise": torch.ones(1)}, tmp_path / "w.pth")
    message = refused(model, tmp_path / "w.pth", "does not fit")
    assert "1 missing (layers.1.mixer.in_proj.weight)" in message
    assert "1 unknown (layers.0.mixer.surprise)" in message


def test_a_lost_direction_is_an_error_and_not_a_one_way_model(model, state, tmp_path):
    torch.save({key: value for key, value in state.items() if not key.endswith("D_b")}, tmp_path / "w.pth")
    message = refused(model, tmp_path / "w.pth", "2 of another shape")
    assert "layers.0.mixer.skip is (1, 2), expected (2, 2)" in message


def test_weights_of_another_kind_of_model_are_refused_even_where_shapes_agree(state, tmp_path):
    torch.save(state, tmp_path / "vim.pth")
    front = create_model("dinovim_tiny", dim=64, depth=2, place="front")
    refused(front, tmp_path / "vim.pth", "a class token in the middle.*mamba2 and a class token in front")
    refused(create_model("vit_tiny", dim=64, depth=2), tmp_path / "vim.pth", "trained with mamba2")
    save_weights(create_model("vit_tiny", dim=64, depth=2), tmp_path / "vit.safetensors")
    linear = create_model("linearvit_tiny", dim=64, depth=2)
    refused(linear, tmp_path / "vit.safetensors", "mixer.kind is 'attention', expected 'linear_attention'")


def test_weights_of_another_timm_model_are_refused(state, tmp_path):
    torch.save(state, tmp_path / "vim.pth")
    for name in ("timm/vit_tiny_patch16_224", "mambaout_femto"):
        refused(create_model(name), tmp_path / "vim.pth", "missing|cannot convert")


def test_a_classifier_is_not_taken_for_a_backbone(model, tmp_path):
    probe = {"epoch": 3, "state_dict": {"module.linear.weight": torch.ones(2, 2), "module.linear.bias": torch.ones(2)}}
    torch.save(probe, tmp_path / "probe.pth")
    refused(model, tmp_path / "probe.pth", "linear.weight, linear.bias, which no known format has")


@pytest.mark.parametrize(
    ("name", "lost"),
    [("vit_tiny", "embed.project.weight"), ("vit_tiny", "final_norm.weight"), ("vmamba_tiny", "stem.project.weight")],
)
def test_a_file_of_ours_without_an_essential_tensor_is_told_what_it_lacks(name: str, lost: str, tmp_path: Path) -> None:
    small = {"dims": (16, 32), "depths": (1, 1)} if name == "vmamba_tiny" else {"dim": 64, "depth": 1}
    model = create_model(name, image=64, **small)
    entries = {key: value for key, value in model.state_dict().items() if key != lost}
    torch.save(entries, tmp_path / "half.pth")
    refused(model, tmp_path / "half.pth", rf"\(mixlab, .*does not fit {name}.*: 1 missing \({lost}\)")


def test_a_missing_part_lists_the_parts_there_are(model, state, tmp_path):
    torch.save({"student": state, "dino_loss": {"center": torch.zeros(1)}, "epoch": 1}, tmp_path / "w.pth")
    refused(model, tmp_path / "w.pth", "no 'teacher', but student, dino_loss. Write .*w.pth::student to choose student")
    load_weights(model, tmp_path / "w.pth", checkpoint_key="student")


def test_a_part_is_chosen_behind_the_name_of_the_file(model, state, tmp_path):
    other = {key: torch.zeros_like(value) for key, value in state.items()}
    torch.save({"student": other, "teacher": state, "epoch": 1}, tmp_path / "w.pth")
    torch.save(state, tmp_path / "bare.pth")
    assert load_weights(model, tmp_path / "w.pth").part == "teacher"
    assert load_weights(model, f"{tmp_path / 'w.pth'}::student").part == "student"
    assert not model.final_norm.weight.any()
    with pytest.raises(WeightsError, match="w.pth has no part 'ema', but student, teacher. Write .*w.pth::student to"):
        load_weights(model, f"{tmp_path / 'w.pth'}::ema")
    with pytest.raises(WeightsError, match="bare.pth holds one model and no parts; leave out ::ema"):
        load_weights(model, f"{tmp_path / 'bare.pth'}::ema")
    (tmp_path / "bare.pth").rename(tmp_path / "a::b")
    assert load_weights(model, tmp_path / "a::b").part is None


def test_training_and_commands_take_a_part(tmp_path):
    state = random_state("vim", dim=256, depth=24, side=14)
    other = {key: torch.zeros_like(value) for key, value in state.items()}
    torch.save({"student": other, "teacher": state, "epoch": 1}, tmp_path / "w.pth")
    for part in ("student", "teacher"):
        file = f"{tmp_path / 'w.pth'}::{part}"
        begun, measured = (
            ModelConfig(name="dinovim_tiny", weights=file).build(),
            load_target("dinovim_tiny", weights=file),
        )
        for backbone in (begun, measured.backbone):
            assert backbone.final_norm.weight.any() == (part == "teacher")


def test_the_only_model_of_a_checkpoint_is_loaded_whatever_it_is_called(model, state, tmp_path):
    torch.save({"student": state, "epoch": 1}, tmp_path / "w.pth")
    assert load_weights(model, tmp_path / "w.pth").part == "student"


@pytest.mark.parametrize(("usual", "average"), [("model", "model_ema"), ("state_dict", "state_dict_ema")])
def test_which_of_two_models_was_loaded_is_said(usual, average, model, state, tmp_path):
    torch.save({average: state, usual: state, "centre": {"c": torch.zeros(1)}}, tmp_path / "w.pth")
    with pytest.warns(UserWarning, match=f"w.pth also holds {average}; {usual} is loaded. Write .*w.pth::{average} to"):
        assert load_weights(model, tmp_path / "w.pth").part == usual
    assert load_weights(model, tmp_path / "w.pth", checkpoint_key=average).part == average


@pytest.mark.parametrize("payload", [[1, 2], {}, {"epoch": 3}, torch.zeros(2), {1: torch.zeros(1)}, OrderedDict()])
def test_files_without_a_state_dict_say_what_they_hold(payload, model, tmp_path):
    torch.save(payload, tmp_path / "w.pth")
    refused(model, tmp_path / "w.pth", "not a state dict|no state dict")


def test_keys_that_collide_without_their_prefix_are_refused(model, state, tmp_path):
    torch.save(state | {"module.cls_token": state["cls_token"]}, tmp_path / "w.pth")
    refused(model, tmp_path / "w.pth", "same keys under several prefixes")


def test_sparse_and_integer_tensors_in_place_of_weights_are_refused(model, state, tmp_path):
    torch.save(state | {"cls_token": torch.zeros(1, 1, 64).to_sparse()}, tmp_path / "sparse.pth")
    refused(model, tmp_path / "sparse.pth", "cls_token.*not a plain dense tensor|not a whole")
    torch.save(state | {"norm_f.weight": torch.ones(64, dtype=torch.int64)}, tmp_path / "integer.pth")
    refused(model, tmp_path / "integer.pth", "final_norm.weight is torch.int64, expected torch.float32")
    torch.save(state | {"norm_f.weight": torch.ones(64, dtype=torch.complex64)}, tmp_path / "complex.pth")
    refused(model, tmp_path / "complex.pth", "final_norm.weight is torch.complex64")


def test_weights_that_are_not_finite_are_loaded_with_a_warning_and_reported(model, state, tmp_path):
    state["layers.1.norm.weight"][3] = torch.nan
    state["layers.0.mixer.A_log_b"][0] = torch.inf
    torch.save(state, tmp_path / "w.pth")
    with pytest.warns(UserWarning, match="not finite in layers.0.mixer.A_log, layers.1.norm.weight"):
        report = load_weights(model, tmp_path / "w.pth")
    assert report.not_finite == ("layers.0.mixer.A_log", "layers.1.norm.weight")
    assert model.layers[1].norm.weight.isnan().sum() == 1


def test_the_name_of_a_file_means_nothing(model, state, tmp_path):
    save_file(state, tmp_path / "weights.pth")
    torch.save(state, tmp_path / "weights.safetensors")
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=False)
    (tmp_path / "weights").write_bytes(buffer.getvalue())
    for name in ("weights.pth", "weights.safetensors", "weights"):
        assert load_weights(model, tmp_path / name).format == "Dino-Mamba's DinoVim"
