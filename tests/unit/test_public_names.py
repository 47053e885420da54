"""What `import mixlab` gives, and what it costs."""

import ast
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from timm.data import create_transform

import mixlab


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in mixlab.__all__:
        said = getattr(mixlab, name).__doc__
        assert said and said != partial.__doc__, f"mixlab.{name} has no docstring"
    assert set(mixlab.__all__) <= set(dir(mixlab))
    with pytest.raises(AttributeError, match="has no attribute 'creat_model'"):
        mixlab.creat_model
    assert mixlab.mixers.MIXERS  # parts are there without being imported by name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(mixlab.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    found = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    assert found == {name: f"mixlab.{module}" for name, module in mixlab._MODULES.items()}


@pytest.fixture
def picture() -> np.ndarray:
    values = np.zeros((20, 40, 3), dtype=np.uint8)
    values[:, 10:30] = 255  # the middle square is white
    return values


def test_pictures_of_any_kind_become_what_a_model_takes(picture: np.ndarray, tmp_path: Path) -> None:
    model = mixlab.create_model("vit_tiny", dim=64, depth=1, patch=8, image=16)
    white = (1 - torch.tensor(model.pixel_mean)) / torch.tensor(model.pixel_std)
    image, file = Image.fromarray(picture), tmp_path / "picture.png"
    image.save(file)
    tensor = torch.from_numpy(picture).permute(2, 0, 1)
    for one in (picture, image, file, str(file)):
        pixels = mixlab.preprocess(model, one)
        assert pixels.shape == (1, 3, 16, 16)
        inner = pixels[0, :, :, 2:-2]  # bicubic resizing sees black pixels beyond the sides
        torch.testing.assert_close(inner, white[:, None, None].expand_as(inner))
    assert mixlab.preprocess(model, [image, picture, tensor], size=24).shape == (3, 3, 24, 24)
    assert mixlab.preprocess(model, tensor).shape == (1, 3, 20, 40)  # pixels that somebody else prepared
    assert mixlab.preprocess(model, tensor[None], size=8).shape == (1, 3, 8, 8)
    squashed = mixlab.preprocess(model, image, fit="squash")
    assert squashed[0, 0, 8, 0] < 0 < squashed[0, 0, 8, 8]
    assert model(mixlab.preprocess(model, file)).shape == (1, 64)


def test_grey_pixels_of_any_form_are_the_grey_picture(picture: np.ndarray) -> None:
    model = mixlab.create_model("vit_tiny", dim=64, depth=1, patch=8, image=16)
    grey = picture[..., 0]
    tensor = torch.from_numpy(grey)
    for one in (grey, grey[..., None], [tensor], [tensor[None]], Image.fromarray(grey)):
        assert torch.equal(mixlab.preprocess(model, one), mixlab.preprocess(model, picture))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_pil_image_is_turned_upright_as_its_file_is(orientation: int, picture: np.ndarray, tmp_path: Path) -> None:
    model, exif = mixlab.create_model("vit_tiny", dim=64, depth=1, patch=8, image=16), Image.Exif()
    picture[:5], exif[0x0112] = 90, orientation
    file = tmp_path / "turned.png"
    Image.fromarray(picture).save(file, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(file)))
    expected = mixlab.preprocess(model, upright)
    assert torch.equal(mixlab.preprocess(model, Image.open(file)), expected)
    assert torch.equal(mixlab.preprocess(model, file), expected)
    assert torch.equal(mixlab.preprocess(model, mixlab.data.decode(file)), expected), "a second time turns nothing"


def test_a_picture_for_a_released_model_is_cut_as_timm_cuts_it() -> None:
    model = mixlab.create_model("vit_tiny", dim=64, depth=1)
    photo = Path(mixlab.__file__).parent / "photographs" / "raccoon.jpg"  # 384 x 288
    picture = Image.open(photo)
    theirs = create_transform(input_size=224, crop_pct=model.crop_share, interpolation="bicubic")(picture)[None]
    ours = mixlab.preprocess(model, photo, crop_share=model.crop_share)
    assert (ours - theirs).abs().max() < 0.05 < (mixlab.preprocess(model, photo) - theirs).abs().mean()
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    torch.testing.assert_close(mixlab.preprocess(model, pixels, crop_share=model.crop_share), ours)
    with pytest.raises(ValueError, match=r"keeps 1\.5 of each side"):
        mixlab.preprocess(model, photo, crop_share=1.5)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "there are no images"),
        (np.zeros((4, 4)), r"cannot read a picture from float64 \(4, 4\)"),
        (7, "cannot read a picture from int"),
        ([torch.zeros(2, 4, 4, dtype=torch.uint8)], r"torch.uint8 \(2, 4, 4\); give a file"),
        (np.zeros((5, 7, 4), np.uint8), r"uint8 \(5, 7, 4\); give a file"),
        ("nowhere.png", "does not exist"),
    ],
    ids=["none", "floats", "a number", "two channels", "four channels", "no file"],
)
def test_what_is_no_picture_is_named(images: object, message: str) -> None:
    model = mixlab.create_model("vit_tiny", dim=64, depth=1, patch=8, image=16)
    with pytest.raises(ValueError, match=message):
        mixlab.preprocess(model, images)


def test_the_overview_and_an_unknown_command_answer_without_torch() -> None:
    code = "import sys; from mixlab.cli import main; print(main([]), main(['prob']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 2 False" and "unknown command 'prob'" in done.stderr
