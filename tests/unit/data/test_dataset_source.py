"""Data sets of somebody's own: what they may give, what is refused, and how they are named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset, Subset
from torchvision.datasets import ImageFolder

import mixlab
from mixlab.data import BatchLoader, ImageReader, SampleOrder, SkippedImages, parse_source
from mixlab.data.dataset_source import DatasetSource
from mixlab.data.given import GivenData, as_data, fingerprint

Maker = Callable[[int], Any]


class Samples(Dataset):
    """`make(index)` for each index; those in `broken` raise."""

    def __init__(self, make: Maker, number: int = 12, broken: tuple[int, ...] = ()) -> None:
        self.make, self.number, self.broken = make, number, broken

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        if index in self.broken:
            raise OSError(f"no bytes for {index}")
        return self.make(index)


def picture(index: int, size: tuple[int, int] = (6, 8)) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (*size, 3), dtype=np.uint8)


def pair(index: int) -> tuple[Image.Image, int]:
    return Image.fromarray(picture(index)), index % 3


FORMS: dict[str, Maker] = {
    "PIL": lambda i: Image.fromarray(picture(i)),
    "array": picture,
    "tensor": lambda i: torch.from_numpy(picture(i)).permute(2, 0, 1),
    "pair": pair,
    "list": lambda i: list(pair(i)),
    "mapping": lambda i: {"img": Image.fromarray(picture(i)), "label": i % 3, "name": str(i)},
    "three": lambda i: (*pair(i), {"id": i}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_sample_gives_the_same_pixels(form: str) -> None:
    source = DatasetSource(Samples(FORMS[form]))
    expected = torch.from_numpy(picture(4)).permute(2, 0, 1)
    assert torch.equal(source.load(4), expected) and source.name(4) == "Samples[4]"
    labelled = form in ("pair", "list", "mapping", "three")
    assert source.classes == (("0", "1", "2") if labelled else ())
    assert source.labels().tolist() == [i % 3 if labelled else -1 for i in range(12)]


def test_grey_pixels_become_three_equal_channels() -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for form in (grey, grey[..., None], torch.from_numpy(grey), torch.from_numpy(grey)[None], Image.fromarray(grey)):
        loaded = DatasetSource([form]).load(0)
        assert loaded.shape == (3, 3, 4) and all(torch.equal(channel, torch.from_numpy(grey)) for channel in loaded)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_pil_images_are_turned_upright_as_files_are(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "0" / "a.png"
    file.parent.mkdir()
    Image.fromarray(picture(0)).save(file, exif=exif)
    expected = torch.from_numpy(np.array(ImageOps.exif_transpose(Image.open(file)))).permute(2, 0, 1)
    for data in ([Image.open(file)], ImageFolder(tmp_path)):  # whose loader keeps the notes of the camera
        assert torch.equal(DatasetSource(data).load(0), expected)
    assert torch.equal(parse_source(str(file.parent), split="train").load(0), expected)


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (["dog", "cat", "dog"], ("cat", "dog"), [1, 0, 1]),
        ([torch.tensor(2), torch.tensor([5]), torch.tensor(2)], ("2", "5"), [0, 1, 0]),
        ([np.int64(1), np.int64(0), np.int64(1)], ("0", "1"), [1, 0, 1]),
        ([1, None, 0], ("0", "1"), [1, -1, 0]),
        ([10, 9, 10], ("9", "10"), [1, 0, 1]),
    ],
    ids=["names", "tensors", "numpy", "none", "gaps"],
)
def test_labels_may_be_names_numbers_or_tensors(labels: list[Any], classes: tuple[str], numbers: list[int]) -> None:
    source = DatasetSource([(picture(i), label) for i, label in enumerate(labels)])
    assert source.classes == classes and source.labels().tolist() == numbers


def test_labels_and_classes_that_a_data_set_keeps_are_read_without_its_images() -> None:
    read: list[int] = []

    class Kept(Samples):
        targets = torch.arange(12) % 3
        classes = ("ant", "bee", "cow")

    def make(index: int) -> tuple[Image.Image, int]:
        read.append(index)
        return pair(index)

    part = Subset(Kept(make), [5, 4, 1, 0, 2, 3, 9])
    source = DatasetSource(part)
    assert source.classes == ("ant", "bee", "cow") and source.labels().tolist() == [2, 1, 1, 0, 2, 0, 0]
    assert len(read) <= 5  # the first, and a few to see that the labels are these
    changed = Kept(lambda index: (picture(index), "ant" if index % 2 else "cow"))  # as a target_transform does
    assert DatasetSource(changed).labels().tolist() == [2, 0] * 6


def test_given_labels_need_no_reading_and_count_from_zero() -> None:
    source = DatasetSource(Samples(picture, number=4), labels=[1, 0, 0, 1], classes=["no", "yes"])
    assert source.classes == ("no", "yes") and source.label(0) == 1
    with pytest.raises(ValueError, match="3 labels were given for 4 samples"):
        DatasetSource(Samples(picture, number=4), labels=[1, 0, 0]).labels()
    with pytest.raises(ValueError, match=r"labels that are not among its 2 classes \(no, yes\): 2"):
        DatasetSource(Samples(picture, number=2), labels=[1, 2], classes=["no", "yes"]).labels()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "list is empty; give at least one image"),
        ([torch.zeros(3, 4, 4)], r"holds torch.float32, and pixels are uint8 .* Leave out ToTensor and Normalize"),
        ([np.zeros((4, 4, 3))], "holds float64"),
        ([torch.zeros(4, 4, 3, dtype=torch.uint8)], r"has the shape \(4, 4, 3\); give \(3, H, W\)"),
        ([torch.zeros(2, 3, 4, 4, dtype=torch.uint8)], r"the shape \(2, 3, 4, 4\)"),
        ([np.zeros((5, 7, 4), np.uint8)], r"the shape \(5, 7, 4\); give \(H, W, 3\), or \(H, W\) for grey"),
        (["photo.jpg"], "is a str, not an image"),
        ([{"a": 1, "b": 2}], "which of a, b is the image is not clear"),
        (iter([1]), "a list_iterator cannot be used as data"),
        (Samples(pair, broken=tuple(range(12))), "none of the first 12 samples of Samples can be read: OSError: no"),
    ],
    ids=["empty", "floats", "doubles", "last", "batch", "transparent", "path", "keys", "stream", "broken"],
)
def test_what_cannot_be_read_is_refused_when_it_is_given(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DatasetSource(data)


def test_a_label_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"the label of list\[0\] is a Tensor of shape \(3, 4\); give a class"):
        DatasetSource([(picture(0), torch.zeros(3, 4))]).labels()


def test_a_stream_of_torch_is_refused_with_the_way_out() -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(ValueError, match="a Stream cannot be used as data: .* put it into a list"):
        as_data(Stream())


def test_a_sample_that_raises_is_skipped_counted_and_named() -> None:
    source = DatasetSource(Samples(pair, broken=(0, 7)), name="mine")
    skipped = SkippedImages(total=12, limit=1.0)
    assert [index for index, _ in source.read(skipped)] == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert skipped.reasons == {"mine[0]": "OSError: no bytes for 0", "mine[7]": "OSError: no bytes for 7"}
    assert (source.labels() >= 0).all()  # so that a validation split can be cut
    loader = BatchLoader(ImageReader(source, 8), SampleOrder.in_turn(12, 4), unreadable="drop", skip_limit=1.0)
    with pytest.warns(UserWarning, match=r"skipped mine\[7\]"):
        assert sum(len(batch.indexes) for batch in loader) == 10


def test_a_sample_that_failed_once_is_left_out_even_if_it_is_back() -> None:
    """Its label was never read."""
    data = Samples(pair, broken=(3,))
    source = DatasetSource(data)
    source.labels()
    data.broken = ()
    with pytest.raises(mixlab.UnreadableImage, match="no bytes for 3"):
        source.load(3)


def test_a_float_among_pixels_is_skipped_like_a_damaged_file() -> None:
    source = DatasetSource([picture(0), torch.zeros(3, 4, 4)])
    with pytest.raises(mixlab.UnreadableImage, match=r"list\[1\]: .*uint8"):
        source.load(1)


def test_images_of_unequal_sizes_make_batches() -> None:
    source = DatasetSource(Samples(lambda i: picture(i, (5 + i, 9))))
    batch = next(iter(BatchLoader(ImageReader(source, 8), SampleOrder.in_turn(12, 12))))
    assert batch.images.shape == (12, 3, 8, 8) and batch.sizes.tolist() == [[5 + i, 9] for i in range(12)]


def test_a_name_identifies_data_and_without_one_a_fingerprint_does() -> None:
    one, same = (str(as_data(Samples(pair))) for _ in range(2))
    assert one == same and one.startswith("dataset:Samples-")
    other = [Samples(pair, number=11), Samples(lambda i: pair(i + 1)), Samples(lambda i: (pair(i)[0], 0))]
    assert len({one, *(str(as_data(data)) for data in other)}) == 4
    assert str(as_data(DatasetSource(Samples(pair), name="mine"))) == "dataset:mine"
    assert str(as_data({"train": Samples(pair), "test": DatasetSource([picture(0)], name="b")})) == f"{one} + b"
    assert as_data(Path("photos")) == "photos"
    with pytest.raises(ValueError, match="needs the key 'train', and has val"):
        as_data({"val": Samples(pair)})


def test_a_fingerprint_reads_few_images_of_a_large_set() -> None:
    read: list[int] = []

    def make(index: int) -> np.ndarray:
        read.append(index)
        return picture(index)

    fingerprint(DatasetSource(Samples(make, number=5000)))
    assert len(read) <= 17


def test_what_was_given_in_python_is_not_looked_for_on_the_disk() -> None:
    with pytest.raises(ValueError, match="was given in Python and cannot be opened by its name"):
        parse_source("dataset:mine")


def test_a_mapping_has_a_validation_set_of_its_own() -> None:
    given = as_data({"train": Samples(pair), "validation": Samples(pair, number=5)})
    assert isinstance(given, GivenData) and given.val is not None and len(parse_source(given, split="val")) == 5
    splits = mixlab.labelled_splits({"train": Samples(pair), "val": Samples(pair, number=5)})
    assert (len(splits.train), len(splits.val)) == (12, 5)
    splits = mixlab.labelled_splits(Samples(pair), val_data=Samples(pair, number=4))
    assert len(splits.val) == 4 and splits.val_data is not None and splits.val_data.startswith("dataset:Samples-")
    held_out = mixlab.labelled_splits(Samples(pair, number=30))
    assert (len(held_out.train), len(held_out.val)) == (24, 6)


def test_columns_of_a_hugging_face_data_set_are_found_by_their_kind() -> None:
    datasets = pytest.importorskip("datasets")
    kinds = {
        "photo": datasets.Image(),
        "what": datasets.ClassLabel(names=["ant", "bee"]),
        "note": datasets.Value("string"),
    }
    rows = {
        "photo": [Image.fromarray(picture(i)) for i in range(6)],
        "what": [i % 2 for i in range(6)],
        "note": list("abcdef"),
    }
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    source = DatasetSource(table)
    assert source.classes == ("ant", "bee") and source.labels().tolist() == [0, 1] * 3
    assert torch.equal(source.load(3), torch.from_numpy(picture(3)).permute(2, 0, 1))
    both = datasets.DatasetDict(train=table, test=table.select([0, 1]))
    splits = mixlab.labelled_splits(both)
    assert (len(splits.train), len(splits.val), splits.classes) == (6, 2, ("ant", "bee"))
    with pytest.raises(ValueError, match="IterableDataset cannot be used as data"):
        as_data(table.to_iterable_dataset())
