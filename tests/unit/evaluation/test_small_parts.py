"""Intervals, few labels, splits, and the lists of ImageNet's classes."""

import importlib.resources
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
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
from mixlab.data.labelled import few_labels, labelled_splits
from mixlab.data.source import at_most, evenly_spaced
from mixlab.evaluation.accuracy import accuracy, paired_gap
from mixlab.evaluation.views import CentreView
from mixlab.statistics import bootstrap_difference, bootstrap_mean


def test_the_interval_is_that_of_resampling_images_one_by_one() -> None:
    right = torch.zeros(400, dtype=torch.float64)
    right[:300] = 1
    slow, fast = bootstrap_mean(right, num_resamples=4000), accuracy(300, 400)
    assert fast.value == slow.value == 0.75
    assert abs(fast.low - slow.low) < 0.006 and abs(fast.high - slow.high) < 0.006


def test_the_interval_of_a_difference_is_that_of_resampling_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(500, generator=generator) < 0.8
    second = first ^ (torch.rand(500, generator=generator) < 0.15)
    slow, fast = bootstrap_difference(first.double(), second.double(), num_resamples=4000), paired_gap(first, second)
    assert fast.value == pytest.approx(slow.value)
    assert abs(fast.low - slow.low) < 0.006 and abs(fast.high - slow.high) < 0.006


def test_no_images_have_no_accuracy_and_impossible_counts_are_refused() -> None:
    assert accuracy(0, 0)[:3] == (None, None, None)
    with pytest.raises(ValueError, match="5 of 4"):
        accuracy(5, 4)
    with pytest.raises(ValueError, match="do not pair up"):
        paired_gap(torch.ones(3, dtype=torch.bool), torch.ones(4, dtype=torch.bool))


def test_few_labels_are_a_share_of_every_class_and_one_at_least() -> None:
    labels = torch.tensor([0] * 300 + [1] * 100 + [2] * 7 + [0] * 200)
    for share, counts in ((0.01, [5, 1, 1]), (0.1, [50, 10, 1]), (1.0, [500, 100, 7])):
        chosen = few_labels(labels, share)
        assert torch.bincount(labels[chosen]).tolist() == counts
        assert chosen == sorted(set(chosen))


def test_few_labels_depend_on_the_seed_alone_and_small_shares_lie_in_large_ones() -> None:
    labels = torch.arange(1000) % 10
    one, ten = few_labels(labels, 0.01, seed=1), few_labels(labels, 0.1, seed=1)
    assert set(one) < set(ten) and len(one) == 10 and len(ten) == 100
    assert few_labels(labels, 0.1, seed=1) == ten != few_labels(labels, 0.1, seed=2)
    with pytest.raises(ValueError, match="share of 10"):
        few_labels(labels, 10)


def make_folder(root: Path, classes: dict[str, int]) -> None:
    for name, number in classes.items():
        (root / name).mkdir(parents=True)
        for index in range(number):
            pixels = np.random.default_rng(index).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index:03d}.png")


def test_classes_of_two_splits_are_matched_by_name_and_the_rest_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"ant": 4, "cat": 4, "dog": 4})
    make_folder(tmp_path / "val", {"bee": 2, "cat": 3, "dog": 1})
    splits = labelled_splits(str(tmp_path))
    assert splits.classes == splits.val.classes == ("ant", "cat", "dog")
    assert [splits.val.label(i) for i in range(len(splits.val))] == [1, 1, 1, 2]
    assert [splits.val.name(i) for i in range(4)] == ["cat/000.png", "cat/001.png", "cat/002.png", "dog/000.png"]
    assert splits.unknown == {"bee": 2} and splits.absent == ("ant",)
    assert "2 images of 1 unknown classes are left out: bee" in splits.notes()[0]


def test_a_single_split_is_cut_class_by_class(tmp_path: Path) -> None:
    make_folder(tmp_path, {"ant": 11, "cat": 5})
    splits = labelled_splits(str(tmp_path))
    assert torch.bincount(splits.val.labels()).tolist() == [3, 1]
    assert torch.bincount(splits.train.labels()).tolist() == [8, 4]
    names = [{part.name(i) for i in range(len(part))} for part in (splits.train, splits.val)]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 16


def test_data_without_usable_labels_gets_a_sentence(tmp_path: Path) -> None:
    make_folder(tmp_path / "one", {"ant": 3})
    with pytest.raises(ValueError, match="has 1 classes"):
        labelled_splits(str(tmp_path / "one"))
    make_folder(tmp_path / "two" / "train", {"ant": 3, "bee": 3})
    make_folder(tmp_path / "two" / "val", {"cow": 1, "dog": 1})
    with pytest.raises(ValueError, match=r"no validation image .* found cow, dog, known are ant, bee"):
        labelled_splits(str(tmp_path / "two"))


def test_a_limit_spreads_over_the_whole_source() -> None:
    assert evenly_spaced(100, 4) == [0, 25, 50, 75] and evenly_spaced(3, 9) == [0, 1, 2]
    with pytest.raises(ValueError, match="0 images"):
        evenly_spaced(10, 0)
    shapes = labelled_splits("shapes:n=40,size=16")
    assert len(at_most(shapes.val, 7)) == 7 and at_most(shapes.val, None) is shapes.val


def test_the_view_for_evaluation_is_resize_and_centre_crop(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:150, 0:210]
    waves = np.stack([np.sin(rows / 9), np.cos(columns / 13), np.sin((rows + columns) / 17)], axis=-1)
    (tmp_path / "ant").mkdir()
    Image.fromarray((127 + 120 * waves).astype(np.uint8)).save(tmp_path / "ant" / "a.png")
    view = CentreView(56)  # 64 before the cut, as 256 before 224
    (batch,) = view.loader(ImageFolder(tmp_path), batch=4)
    ours = view(batch.images, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    steps = [transforms.Resize(64, InterpolationMode.BICUBIC), transforms.CenterCrop(56), transforms.ToTensor()]
    theirs = transforms.Compose([*steps, transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))])
    expected = theirs(Image.open(tmp_path / "ant" / "a.png"))
    off = (ours[0] - expected).abs()
    assert off.mean() < 0.1 and off.max() < 0.3  # Resize rounds the longer side: less than a pixel
    assert (ours[0].flip(2) - expected).abs().mean() > 0.3
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
