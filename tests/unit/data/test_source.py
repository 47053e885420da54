"""Parts of sources: subsets, splits, few labels; and labelled sets with one list of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mixlab.data.labelled import label_subset, labelled_splits
from mixlab.data.source import ImageSource, at_most, evenly_spaced, split


class Numbered(ImageSource):
    """Grey images of the value of their number, with the labels given."""

    def __init__(self, labels: list[int]) -> None:
        self._labels = labels
        self.classes = tuple("abc") + tuple(map(str, range(3, max(labels) + 1)))

    def __len__(self) -> int:
        return len(self._labels)

    def load(self, index: int) -> Tensor:
        return torch.full((3, 4, 6), self.check(index), dtype=torch.uint8)

    def label(self, index: int) -> int:
        return self._labels[index]

    def name(self, index: int) -> str:
        return str(index)


def numbers(source: ImageSource) -> list[int]:
    return [int(source.load(index)[0, 0, 0]) for index in range(len(source))]


def test_every_fifth_sample_of_each_class_is_held_out() -> None:
    train, val = split(Numbered([0, 0, 0, 1, 0, 0, 0, 1, 1]))  # class 0: 0 1 2 4 5 6; class 1: 3 7 8
    assert numbers(val) == [0, 3, 6] and numbers(train) == [1, 2, 4, 5, 7, 8]
    assert val.label(1) == 1 and val.name(1) == "3" and val.classes == ("a", "b", "c")
    image, own = val.load_fitted(2, 8, "squash")
    assert own == (4, 6) and image.shape == (3, 8, 8) and image.unique().tolist() == [6]


def test_every_fifth_of_all_is_held_out_where_there_are_no_classes_or_one_sample_of_each() -> None:
    for labels in ([-1] * 11, list(range(11))):
        train, val = split(Numbered(labels))
        assert numbers(val) == [0, 5, 10] and len(train) == 8


def test_few_labels_are_a_share_of_every_class_and_one_at_least() -> None:
    labels = torch.tensor([0] * 300 + [1] * 100 + [2] * 7 + [0] * 200)
    for share, counts in ((0.01, [5, 1, 1]), (0.1, [50, 10, 1])):
        chosen = label_subset(Numbered(labels.tolist()), share).indexes.tolist()
        assert torch.bincount(labels[chosen]).tolist() == counts
        assert chosen == sorted(set(chosen))


def test_few_labels_depend_on_the_seed_alone_and_small_shares_lie_in_large_ones() -> None:
    source = Numbered([*range(10)] * 100)
    one, ten, other = (
        label_subset(source, share, seed=seed).indexes.tolist() for share, seed in ((0.01, 1), (0.1, 1), (0.1, 2))
    )
    assert set(one) < set(ten) and len(one) == 10 and len(ten) == 100
    assert label_subset(source, 0.1, seed=1).indexes.tolist() == ten != other
    assert label_subset(source, 1.0) is source
    with pytest.raises(ValueError, match="label share is 10"):
        label_subset(source, 10)


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
    assert splits.notes() == ["2 images are left out, of 1 unknown class: bee", "1 class has no validation image: ant"]


def test_a_single_split_is_cut_class_by_class(tmp_path: Path) -> None:
    make_folder(tmp_path, {"ant": 11, "cat": 5})
    splits = labelled_splits(str(tmp_path))
    assert torch.bincount(splits.val.labels()).tolist() == [3, 1]
    assert torch.bincount(splits.train.labels()).tolist() == [8, 4]
    names = [{part.name(i) for i in range(len(part))} for part in (splits.train, splits.val)]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 16


def test_data_without_usable_labels_gets_a_sentence(tmp_path: Path) -> None:
    make_folder(tmp_path / "one", {"ant": 3})
    with pytest.raises(ValueError, match="has 1 class"):
        labelled_splits(str(tmp_path / "one"))
    make_folder(tmp_path / "two" / "train", {"ant": 3, "bee": 3})
    make_folder(tmp_path / "two" / "val", {"cow": 1, "dog": 1})
    with pytest.raises(ValueError, match=r"no validation image .* found cow, dog, known are ant, bee"):
        labelled_splits(str(tmp_path / "two"))


def test_a_limit_spreads_over_the_whole_source() -> None:
    assert evenly_spaced(100, 4) == [0, 25, 50, 75] and evenly_spaced(3, 9) == [0, 1, 2]
    with pytest.raises(ValueError, match="images is 0"):
        evenly_spaced(10, 0)
    shapes = labelled_splits("shapes:n=40,size=16")
    assert len(at_most(shapes.val, 7)) == 7 and at_most(shapes.val, None) is shapes.val


def test_a_folder_with_train_and_no_val_is_cut_as_one_without_splits(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"ant": 10, "bee": 6})
    splits = labelled_splits(str(tmp_path))
    assert splits.classes == ("ant", "bee") and (len(splits.train), len(splits.val)) == (12, 4)
    inside = labelled_splits(str(tmp_path / "train"))
    assert [splits.val.name(index) for index in range(4)] == [inside.val.name(index) for index in range(4)]
