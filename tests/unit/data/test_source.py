"""Parts of sources: subsets, splits and evenly spaced samples."""

from __future__ import annotations

import torch
from torch import Tensor

from mixlab.data.source import ImageSource, split


class Numbered(ImageSource):
    """Grey images of the value of their number, with the labels given."""

    def __init__(self, labels: list[int]) -> None:
        self._labels = labels
        self.classes = tuple("abc")

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
