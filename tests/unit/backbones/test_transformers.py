"""Exported folders in transformers' own hands: the same features, and no code of theirs or ours in the folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mixlab
from mixlab.cli import main

transformers = pytest.importorskip("transformers")

FIELDS = {
    "vit_tiny": {"dim": 32, "depth": 2, "patch": 8, "image": 32, "head_dim": 16},
    "dinovim_tiny": {"dim": 32, "depth": 2, "patch": 8, "image": 32, "head_dim": 16, "state": 8},
    "vim_tiny": {"dim": 32, "depth": 2, "patch": 8, "image": 32},
    "vmamba_tiny": {"dims": [16, 32, 64, 128], "depths": [1, 1, 1, 1], "image": 64},
    "mambaout_femto": {"dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
}


@pytest.fixture(params=FIELDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[mixlab.Backbone, Path]:
    torch.manual_seed(0)
    model = mixlab.create_model(request.param, **FIELDS[request.param]).eval()
    mixlab.save_weights(model, tmp_path / "model.safetensors")
    out = tmp_path / "folder"
    assert main(["export", str(tmp_path / "model.safetensors"), "--format", "transformers", "--out", str(out)]) == 0
    return model, out


@torch.no_grad()
def test_auto_model_and_auto_backbone_give_the_features_of_the_backbone(folder: tuple[mixlab.Backbone, Path]) -> None:
    model, place = folder
    mixlab.register_with_transformers()
    images = torch.randn(2, 3, 64, 64)
    found = transformers.AutoModel.from_pretrained(place).eval()(pixel_values=images, output_hidden_states=True)
    torch.testing.assert_close(found.pooler_output, model(images), rtol=0, atol=0)
    ours = [features.patches for _, features in model.features(images, layers=None)]
    assert len(found.hidden_states) == len(ours)
    torch.testing.assert_close(found.last_hidden_state, ours[-1].flatten(1, 2), rtol=0, atol=0)

    wanted = [0, model.num_layers - 1]
    config = transformers.AutoConfig.from_pretrained(place, out_indices=wanted)
    backbone = transformers.AutoBackbone.from_config(config).eval()  # from_pretrained asks the hub, whatever is here
    backbone.load_state_dict(transformers.AutoModel.from_pretrained(place).state_dict())
    from mixlab.backbones.transformers_models import MixlabBackbone

    maps, again = (
        model(images).feature_maps for model in (backbone, MixlabBackbone.from_pretrained(place, config=config))
    )
    assert all(torch.equal(one, other) for one, other in zip(maps, again, strict=True))
    assert [part.shape[1] for part in maps] == backbone.channels
    for number, part in zip(wanted, maps, strict=True):
        torch.testing.assert_close(part, ours[number].permute(0, 3, 1, 2), rtol=0, atol=0)


def test_the_folder_holds_no_code_and_its_processor_normalises_as_the_backbone_does(
    folder: tuple[mixlab.Backbone, Path],
) -> None:
    model, place = folder
    assert {file.name for file in place.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "preprocessor_config.json"
    }  # fmt: skip
    assert "auto_map" not in (place / "config.json").read_text()
    pixels = torch.randint(0, 256, (1, 3, model.image, model.image), dtype=torch.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(place)
    theirs = processor(images=pixels[0].permute(1, 2, 0).numpy(), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(theirs, model.preprocess(pixels), rtol=0, atol=1e-5)


def test_the_processor_gives_the_pixels_of_preprocess_and_with_a_larger_edge_those_of_knn(tmp_path: Path) -> None:
    assert main(["export", "shipped/vit", "--format", "transformers", "--out", str(tmp_path / "folder")]) == 0
    model = mixlab.create_model("shipped/vit")
    photo = Path(mixlab.__file__).parent / "photographs" / "raccoon.jpg"  # 384 x 288
    views = {share: mixlab.preprocess(model, photo, crop_share=share) for share in (1.0, model.crop_share)}
    for options, share in ({}, 1.0), ({"size": {"shortest_edge": round(model.image / 0.875)}}, 0.875):
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "folder", **options)
        theirs = processor(images=Image.open(photo), return_tensors="pt")["pixel_values"]
        gaps = {known: (theirs - view).abs().mean() for known, view in views.items()}
        assert gaps.pop(share) < 0.001 and min(gaps.values()) > 0.1


def test_a_folder_is_not_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["export", "shipped/vit", "--format", "transformers", "--out", str(tmp_path)]) == 1
    assert "is not an empty folder" in " ".join(capsys.readouterr().err.split())


def test_an_export_draws_no_bar_and_says_what_reads_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "shipped/vit", "--format", "transformers", "--out", str(tmp_path / "folder")]) == 0
    assert "Writing" not in capfd.readouterr().err
    card = (tmp_path / "folder" / "README.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1].split("```")[0].replace('"..."', repr(str(tmp_path / "folder")))
    told: dict[str, Any] = {"images": torch.zeros(1, 3, 80, 80)}
    exec(code, told)
    assert told["backbone"](pixel_values=told["images"]).feature_maps[-1].shape == (1, 192, 10, 10)
