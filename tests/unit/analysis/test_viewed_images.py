"""The images of an analysis: the view of kNN, masks cut alike, limits, and what is remembered."""

import pytest
import torch
from torch import Tensor

from mixlab.analysis import viewed_images
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.data.decode import UnreadableImage
from mixlab.data.images import ImageFolder
from mixlab.data.mask_formats import parse_images_or_masks
from mixlab.data.masks import MaskedImage
from mixlab.data.source import Source
from mixlab.evaluation.machine import CentreView


class Wide(Source[MaskedImage]):
    """One image of 64 x 128 pixels whose red is its mask: foreground right of the middle."""

    def __len__(self) -> int:
        return 1

    def name(self, index: int) -> str:
        return "wide"

    def load(self, index: int) -> MaskedImage:
        mask = torch.zeros(64, 128, dtype=torch.uint8)
        mask[:, 80:] = 1
        return MaskedImage(mask.expand(3, -1, -1) * 255, mask, "wide")


class Plain(Wide):
    def load(self, index: int) -> Tensor:  # type: ignore[override]
        return super().load(index).image


@pytest.mark.parametrize(
    ("fit", "share"),
    [
        ("squash", 48 / 128),  # all of the image
        ("crop", (28 - 16) / 56),  # its middle 56 x 56: 0.875 of 64; the edge lies 16 right of the centre
    ],
)
def test_masks_are_cut_as_their_images_are(fit: str, share: float) -> None:
    seen = ViewedImages(Wide(), size=56, fit=fit).together()
    assert seen.images.shape == (1, 3, 56, 56) and seen.masks.shape == (1, 56, 56)
    assert seen.masks.double().mean().item() == pytest.approx(share, abs=0.02)
    assert torch.equal(seen.images[:, 0] > 127, seen.masks.bool())
    assert torch.equal(ViewedImages(Plain(), size=56, fit=fit).together().images, seen.images)


def test_the_default_is_the_view_of_knn() -> None:
    view = CentreView(48)
    batch = next(iter(view.loader(Plain(), batch=1)))
    assert torch.equal(ViewedImages(Plain(), size=48).together().images, view.crop(batch.images))


def test_images_are_limited_and_read_once_when_they_fit_in_memory() -> None:
    images = ViewedImages("shapes:n=30", size=64, batch=4, num_images=10)
    first, second = list(images), list(images)
    assert [len(batch.names) for batch in first] == [4, 4, 2]
    assert first[0].images is second[0].images
    assert images.choices["num_images"] == 10
    assert ViewedImages("shapes:n=30", size=64, num_images=30).choices["num_images"] is None
    for wrong in ({"num_images": 0}, {"batch": 0}, {"size": 0}, {"fit": "stretch"}):
        with pytest.raises(ValueError, match=r"at least 1|fit 'stretch' is unknown"):
            ViewedImages("shapes:n=30", **({"size": 64} | wrong))


def test_an_image_file_is_an_image_and_not_a_file_of_annotations(tmp_path) -> None:
    from PIL import Image

    file = tmp_path / "photo.jpg"
    Image.new("RGB", (40, 30), "red").save(file)
    source = parse_images_or_masks(str(file))
    assert isinstance(source, ImageFolder)
    seen = ViewedImages(source, size=16).together()
    assert (seen.images.shape, seen.masks, seen.names) == ((1, 3, 16, 16), None, ["photo.jpg"])
    file.write_bytes(b"torn")
    with pytest.raises(ValueError, match="no readable image"):
        ViewedImages(source, size=16).together()


class Numbered(Source[Tensor]):
    """Ten images that are as bright as their number; those of `broken` cannot be read."""

    broken: tuple[int, ...] = ()

    def __len__(self) -> int:
        return 10

    def name(self, index: int) -> str:
        return str(index)

    def load(self, index: int) -> Tensor:
        if index in self.broken:
            raise UnreadableImage(str(index), "torn")
        return torch.full((3, 8, 8), index, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("num_images", "broken", "names"),
    [
        (None, (), "0 1 2 3 4 5 6 7 8 9"),
        (3, (), "0 3 6"),
        (5, (), "0 2 4 6 8"),
        (3, (3, 4, 0), "1 5 6"),  # the next that can be read
        (5, (2, 3), "0 4 6 8"),  # nothing is left of the second fifth
    ],
)
def test_a_number_of_images_is_spread_over_the_set(num_images: int | None, broken: tuple[int, ...], names: str) -> None:
    source = Numbered()
    source.broken = broken
    images = ViewedImages(source, size=8, num_images=num_images)
    assert images.together().names == names.split()
    assert images.choices["spread"] is (True if num_images else None)


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_that_read_and_ranks_give_the_same_batches(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_images, "_BATCHES_PER_WORKER", 1)
    source = Numbered()
    source.broken = (4, 5, 9)  # the third batch of two is empty
    images = ViewedImages(source, size=8, batch=2, workers=workers)
    whole = list(images.batches())
    assert [(number, batch.names) for number, batch in whole] == [
        (0, ["0", "1"]),
        (1, ["2", "3"]),
        (3, ["6", "7"]),
        (4, ["8"]),
    ]
    assert sorted(images.skipped.reasons) == ["4", "5", "9"]
    assert [number for number, _ in images.batches()] == [0, 1, 3, 4]  # as they were kept
    ranks = [list(ViewedImages(source, size=8, batch=2, workers=workers).batches(rank, 2)) for rank in range(2)]
    assert [number for number, _ in ranks[0]] == [0, 4] and [number for number, _ in ranks[1]] == [1, 3]
    for number, batch in sorted([*ranks[0], *ranks[1]], key=lambda pair: pair[0]):
        assert torch.equal(batch.images, dict(whole)[number].images)


def test_two_who_read_the_same_images_at_once_both_see_them_in_order() -> None:
    images = ViewedImages("shapes:n=20,size=16", size=16, batch=2)
    first = iter(images)
    names = [next(first).names]
    for _, ahead in zip(range(3), images, strict=False):  # reads on, and stops
        assert len(ahead.names) == 2
    names += [batch.names for batch in first]
    assert names == [batch.names for batch in ViewedImages("shapes:n=20,size=16", size=16, batch=2)]
