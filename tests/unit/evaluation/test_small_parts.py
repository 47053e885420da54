"""Intervals of accuracies, the view for evaluation, and the lists of ImageNet's classes."""

import importlib.resources
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from mixlab.data.imagenet_labels import (
    imagenet_a_classes,
    imagenet_classes,
    imagenet_r_classes,
    real_labels,
    val_number,
)
from mixlab.data.images import ImageFolder
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.machine import CentreView


def test_accuracies_of_nothing_and_of_everything_have_intervals_with_a_width() -> None:
    for correct, inner in ((0, "high"), (50, "low")):
        found = Accuracy(correct, 50).to_json()
        assert found["low"] <= found["top1"] == correct / 50 <= found["high"]
        # Wilson's inner end at 0 or n of n is z^2 / (n + z^2) away from it.
        assert abs(found[inner] - found["top1"]) == pytest.approx(1.959964**2 / (50 + 1.959964**2), abs=1e-6)
    assert Accuracy(0, 0).to_json() == {"top1": None, "low": None, "high": None, "correct": 0, "n": 0}
    with pytest.raises(ValueError, match="5 of 4"):
        Accuracy(5, 4).to_json()


@pytest.mark.parametrize("shape", [(150, 210), (210, 151), (150, 220)], ids=str)
def test_the_view_for_evaluation_is_resize_and_centre_crop(shape: tuple[int, int], tmp_path: Path) -> None:
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    waves = np.stack([np.sin(rows / 9), np.cos(columns / 13), np.sin((rows + columns) / 17)], axis=-1)
    (tmp_path / "ant").mkdir()
    Image.fromarray((127 + 120 * waves).astype(np.uint8)).save(tmp_path / "ant" / "a.png")
    view = CentreView(56)  # 64 before the cut, as 256 before 224
    (batch,) = view.loader(ImageFolder(tmp_path), batch=4)
    ours = view.crop(batch.images)[0] / 255
    steps = [transforms.Resize(64, InterpolationMode.BICUBIC), transforms.CenterCrop(56), transforms.ToTensor()]
    expected = transforms.Compose(steps)(Image.open(tmp_path / "ant" / "a.png"))
    assert (ours - expected).abs().max() < 2.5 / 255  # PIL may resize rows before columns, and rounds in between
    assert (ours.flip(2) - expected).abs().mean() > 0.09
    for size, share in ((0, 0.9), (8, 0.0), (8, 1.1)):
        with pytest.raises(ValueError, match="give at least 1 px"):
            CentreView(size, share)


def timm_file(name: str) -> str:
    return (importlib.resources.files("timm.data") / "_info" / name).read_text()


def test_imagenet_a_and_r_are_200_classes_at_the_places_that_timm_lists() -> None:
    classes = imagenet_classes()
    assert len(classes) == len(set(classes)) == 1000
    assert all(re.fullmatch(r"n\d{8}", synset) for synset in classes)
    assert classes[0] == "n01440764" and classes[207] == "n02099601" and classes[999] == "n15075141"
    for subset, file in (
        (imagenet_a_classes(), "imagenet_a_indices.txt"),
        (imagenet_r_classes(), "imagenet_r_indices.txt"),
    ):
        assert len(subset) == len(set(subset)) == 200
        assert [classes.index(synset) for synset in subset] == [int(line) for line in timm_file(file).split()]


def test_46837_of_the_50000_validation_images_have_real_labels() -> None:
    labels = real_labels()
    assert len(labels) == 50_000
    assert sum(bool(part) for part in labels) == 46_837
    assert max(max(part) for part in labels if part) == 999
    assert [sorted(part) for part in labels[:50]] == [
        sorted(part) for part in json.loads(timm_file("imagenet_real_labels.json"))[:50]
    ]


def test_validation_images_are_known_by_their_file_names() -> None:
    assert val_number("n01440764/ILSVRC2012_val_00000293.JPEG") == 292
    assert val_number("ILSVRC2012_val_00050000.jpg") == 49_999
    for name in ("ILSVRC2012_val_00050001.JPEG", "ILSVRC2012_val_00000000.JPEG", "n01440764_293.JPEG", "x/293.jpg"):
        assert val_number(name) is None
