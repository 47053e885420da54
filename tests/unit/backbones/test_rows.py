"""Weights in 8 bits for each entry of a row."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import mixlab
from mixlab.backbones.weights import WeightsError, model_from_file, read_architecture, save_weights, shrink_file
from mixlab.backbones.weights.reading import read_metadata
from mixlab.data.images import parse_source


@pytest.mark.parametrize("name", ["shipped/vit", "shipped/mambareg"])
def test_rows_come_back_to_half_a_step_and_features_stay_close(name: str, tmp_path: Path) -> None:
    model, file = mixlab.create_model(name).eval(), tmp_path / "small.safetensors"
    save_weights(model, file, bits=8, extra_metadata={"seed": "7"})
    again = model_from_file(file).eval()
    stored = load_file(file)
    in_rows = [key for key, value in stored.items() if value.dtype == torch.int8]
    assert sum(stored[key].numel() for key in in_rows) > 0.85 * model.num_parameters
    assert file.stat().st_size < 1.25 * model.num_parameters, "bytes of a parameter"
    for key, value in ((key, value) for key, value in model.state_dict().items() if value.numel()):
        step = value.abs().amax(-1, keepdim=True) / 127 if key in in_rows else 1e-3 * value.abs().max()
        assert ((again.state_dict()[key] - value).abs() <= step / 2 * (1 + 1e-4)).all(), key
    source = parse_source("shapes:n=8,size=64")
    images = model.preprocess(torch.stack([source.load(index) for index in range(8)]))
    with torch.no_grad():
        before, after = model(images), again(images)
    assert F.cosine_similarity(before, after).min() > 0.995
    assert F.cosine_similarity(before, before.roll(1, 0)).max() < 0.98, "all images look alike: nothing was shown"

    shrink_file(file, bits=16)
    assert read_metadata(file)["seed"] == "7" and read_architecture(file) == model.architecture()
    assert not any(key.endswith("scale_of_rows") for key in load_file(file))


def test_a_row_of_zeros_stays_one_and_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = mixlab.create_model("vit_tiny", dim=64, depth=1, head_dim=32, patch=8, image=32)
    key, file = "layers.0.mlp.up.weight", tmp_path / "model.safetensors"
    with torch.no_grad():
        model.state_dict()[key][3] = 0
    save_weights(model, file, bits=8)
    assert not model_from_file(file).state_dict()[key][3].any()
    metadata, tensors = read_metadata(file), load_file(file)
    for change, message in (
        ({f"{key}.scale_of_rows": torch.ones(3, 1)}, r"has the shape \(3, 1\), which does not fit"),
        ({key: tensors[key].float()}, "has no layers.0.mlp.up.weight in 8 bits beside it"),
    ):
        save_file(tensors | change, file, metadata=metadata)
        with pytest.raises(WeightsError, match=message):
            model_from_file(file)
