"""Weights in 8 or 6 bits for each entry of a row."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import mixlab
from mixlab.backbones.weights import WeightsError, model_from_file, read_architecture, save_weights, shrink_file
from mixlab.backbones.weights.reading import read_metadata
from mixlab.backbones.weights.rows import Bits, pack, unpack
from mixlab.data.images import parse_source


@pytest.mark.parametrize(
    "name, bits, largest, alike",
    [("shipped/vit", 8, 127, 0.995), ("shipped/vit", 6, 31, 0.98), ("shipped/mambareg", 6, 31, 0.98)],
)
def test_rows_come_back_to_half_a_step_and_features_stay_close(
    name: str, bits: Bits, largest: int, alike: float, tmp_path: Path
) -> None:
    model, file = mixlab.create_model(name).eval(), tmp_path / "small.safetensors"
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():  # it came in 6 bits: between their steps
            weight.mul_(1 + 0.01 * torch.randn_like(weight))
    save_weights(model, file, bits=bits, extra_metadata={"seed": "7"})
    again = model_from_file(file).eval()
    stored = load_file(file)
    in_rows = [key for key, value in stored.items() if value.dtype in (torch.int8, torch.uint8)]
    assert sum(stored[key].numel() for key in in_rows) > 0.85 * model.num_parameters * bits / 8
    assert file.stat().st_size < 1.1 * model.num_parameters * bits / 8, "bytes"
    for key, value in ((key, value) for key, value in model.state_dict().items() if value.numel()):
        step = value.abs().amax(-1, keepdim=True) / largest if key in in_rows else 1e-3 * value.abs().max()
        assert ((again.state_dict()[key] - value).abs() <= step / 2 * (1 + 1e-4)).all(), key
    source = parse_source("shapes:n=8,size=64")
    images = model.preprocess(torch.stack([source.load(index) for index in range(8)]))
    with torch.no_grad():
        before, after = model(images), again(images)
    assert F.cosine_similarity(before, after).min() > alike
    assert F.cosine_similarity(before, before.roll(1, 0)).max() < 0.98, "all images look alike: nothing was shown"

    shrink_file(file, bits=16)
    assert read_metadata(file)["seed"] == "7" and read_architecture(file) == model.architecture()
    assert not any(key.endswith("scale_of_rows") for key in load_file(file))


def test_numbers_of_6_bits_are_packed_as_in_plain_arithmetic_and_come_back() -> None:
    numbers = torch.arange(-32, 32, dtype=torch.int8).roll(5)[None]
    packed = pack(numbers)
    in_24_bits = [sum((int(n) + 32) << 6 * i for i, n in enumerate(four)) for four in numbers[0].split(4)]
    assert bytes(packed[0].tolist()) == b"".join(number.to_bytes(3, "little") for number in in_24_bits)
    assert torch.equal(unpack(packed), numbers)


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
        ({key: tensors[key].float()}, "has no layers.0.mlp.up.weight in 8 or 6 bits beside it"),
        ({key: tensors[key][:, :-2].to(torch.uint8)}, "has rows of 62 bytes; numbers of 6 bits fill whole threes"),
    ):
        save_file(tensors | change, file, metadata=metadata)
        with pytest.raises(WeightsError, match=message):
            model_from_file(file)
