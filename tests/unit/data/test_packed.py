"""Crops are cut from images as they are in their files: against torchvision's RandomResizedCrop on those files."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as TF
from PIL import Image

from mixlab.data import (
    CropKind,
    ImageFolder,
    MultiCrop,
    PackedBatch,
    PackedLoader,
    PackedReader,
    SampleOrder,
    Shapes,
    Subset,
    TarShards,
    dino_crops,
)
from mixlab.data.crops import IMAGENET_MEAN, IMAGENET_STD
from mixlab.data.listed import ImageList, ListedSource
from mixlab.data.transforms import whole_boxes
from mixlab.evaluation.probe.training import ProbeCrops

SUPERVISED = CropKind(size=224, scale=(0.08, 1.0))
FILES = {"median": (500, 375), "tall": (300, 640), "small": (150, 110), "photo": (2592, 1944), "wide": (2400, 500)}


def draw_photo(width: int, height: int) -> Image.Image:
    """A drawn scene with fine noise, which a reduction would take away."""
    pixels = Shapes(size=max(width, height), num_images=1).load(0)[:, :height, :width].permute(1, 2, 0).numpy()
    noise = np.random.default_rng(0).normal(0, 12, (height, width, 1)).astype(np.float32)
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    folder = tmp_path_factory.mktemp("files")
    for name, size in FILES.items():
        suffix = "png" if name == "wide" else "jpg"
        draw_photo(*size).save(folder / f"{name}.{suffix}", quality=95)
    return ImageFolder(folder)


def load(source: ImageFolder, crops: MultiCrop, **settings: object) -> PackedBatch:
    order = SampleOrder.in_turn(len(source), len(source))
    loader = PackedLoader(PackedReader(source, crops.reduction), order, **settings)
    (batch,) = loader
    return batch


def enlarged(boxes: torch.Tensor, size: int) -> float:
    return float((boxes[:, 2:] < size).any(1).double().mean())


PROBE = ProbeCrops(224, seed=0).crops.kinds


@pytest.mark.parametrize(
    ("kinds", "which"),
    [(dino_crops(), 0), (dino_crops(), 2), ([SUPERVISED], 0), (PROBE, 0)],
    ids=["global", "local", "supervised", "probe"],
)
def test_as_many_crops_are_enlarged_as_by_torchvision_from_the_file(kinds, which, files: ImageFolder) -> None:
    batch, kind = load(files, MultiCrop(kinds)), kinds[which]
    names = [Path(files.name(index)).stem for index in batch.indexes.tolist()]
    torch.manual_seed(0)
    for row, name in enumerate(names):
        width, height = FILES[name]
        assert batch.sizes[row].tolist() == [height, width]
        # Equal laws: at worst, a standard error of the difference is 1.1 points for the median of ImageNet.
        number, points = (4_000, 0.015) if name == "median" else (400, 0.09)
        one = MultiCrop([kind])
        drawn = one.draw(batch.sizes[row].repeat(number, 1), torch.Generator().manual_seed(row))[kind.size]
        ours = whole_boxes(drawn.box[:number], batch.images.shapes[row].repeat(number, 1))
        blank = torch.empty(3, height, width)
        theirs = [T.RandomResizedCrop.get_params(blank, list(kind.scale), [3 / 4, 4 / 3]) for _ in range(number)]
        assert abs(enlarged(ours, kind.size) - enlarged(torch.tensor(theirs), kind.size)) < points, name
        # With equal draws no reduction enlarges a crop that is not enlarged from the file.
        own = whole_boxes(drawn.box[:number], batch.sizes[row].repeat(number, 1))
        assert enlarged(ours, kind.size) == enlarged(own, kind.size), name


def test_large_files_are_reduced_and_others_kept_as_they_are(files: ImageFolder) -> None:
    dino, supervised = load(files, MultiCrop(dino_crops())), load(files, MultiCrop([SUPERVISED]))
    for row, index in enumerate(dino.indexes.tolist()):
        width, height = FILES[Path(files.name(index)).stem]
        factor = round(height / int(dino.images.shapes[row, 0]))
        assert factor == {2592: 4, 2400: 2}.get(width, 1)
        assert dino.images.shapes[row].tolist() == [-(-height // factor), -(-width // factor)]
        assert supervised.images.shapes[row, 0] == (height // 2 if width == 2592 else height)


def test_crops_have_the_pixels_of_torchvisions_crops_of_the_file(files: ImageFolder) -> None:
    kinds = (CropKind(size=224, scale=(0.4, 1.0)), CropKind(size=96, scale=(0.05, 0.4)))
    crops = MultiCrop(kinds)
    batch = load(files, crops)
    drawn = crops.draw(batch.sizes, torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(part)[:, None, None] for part in (IMAGENET_MEAN, IMAGENET_STD))
    for views, kind in zip(crops(batch.images, drawn), kinds, strict=True):
        parameters = drawn[kind.size]
        for row, view in enumerate(views[0]):
            picture = Image.open(files.root / files.name(int(batch.indexes[row])))
            top, left, height, width = whole_boxes(parameters.box, batch.sizes)[row].tolist()
            size = [kind.size, kind.size]
            theirs = TF.resized_crop(picture, top, left, height, width, size, T.InterpolationMode.BICUBIC)
            theirs = TF.to_tensor(TF.hflip(theirs) if parameters.flip[row] else theirs)
            ours = view * std + mean
            name, levels = Path(picture.filename).stem, (ours - theirs).abs().mean() * 255
            reduced = name in ("photo", "wide")
            assert levels < (4 if reduced else 0.8), (name, kind.size, float(levels))
            ratio = float(sharpness(ours) / sharpness(theirs))
            assert 0.97 < ratio < (1.15 if reduced else 1.03), (name, kind.size, ratio)


def sharpness(image: torch.Tensor) -> torch.Tensor:
    return (image[:, 1:] - image[:, :-1]).square().mean() + (image[:, :, 1:] - image[:, :, :-1]).square().mean()


def test_a_turned_file_is_cut_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    draw_photo(400, 100).save(tmp_path / "a.jpg", exif=exif)
    batch = load(ImageFolder(tmp_path), MultiCrop([CropKind(size=8, scale=(0.5, 1.0))]))
    assert batch.sizes.tolist() == [[400, 100]] and batch.images.shapes.tolist() == [[50, 13]]


def test_shards_subsets_and_lists_give_what_the_folder_gives(files: ImageFolder, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in files.paths:
            tar.add(files.root / name, name)
    crops = MultiCrop(dino_crops())
    theirs = load(files, crops)
    shards = TarShards(str(tmp_path / "a.tar"))
    for source in (shards, Subset(files, range(len(files))), ListedSource(files, ImageList.of(files))):
        ours = load(source, crops)
        assert torch.equal(ours.images.pixels, theirs.images.pixels) and torch.equal(ours.sizes, theirs.sizes)


@pytest.mark.parametrize("size", [None, 8])
def test_a_resident_set_gives_the_same_images_as_the_files(size: int | None, tmp_path: Path) -> None:
    for number in range(12):
        Image.new("RGB", (10 + number, 8), (number, 0, 0)).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "03.png").write_bytes(b"broken")
    reader = PackedReader(ImageFolder(tmp_path), lambda height, width: 1, size)
    order = SampleOrder(12, 5, seed=2)
    with pytest.warns(UserWarning, match="skipped"):
        pairs = list(
            zip(
                PackedLoader(reader, order, skip_limit=0.5, resident_on="cpu"),
                PackedLoader(reader, order, skip_limit=0.5),
                strict=True,
            )
        )
    assert len(pairs) == 2
    for there, here in pairs:
        assert all(torch.equal(a, b) for a, b in zip(there[1:], here[1:], strict=True))
        for row, index in enumerate(there.indexes.tolist()):
            image = there.images.image(row)
            assert torch.equal(image, here.images.image(row)) and int(image[0, 0, 0]) == index
            assert image.shape == ((3, 8, 10 + index) if size is None else (3, 8, 8))
            assert there.sizes[row].tolist() == [8, 10 + index]


def test_a_packed_batch_survives_the_workers(files: ImageFolder) -> None:
    crops = MultiCrop(dino_crops())
    alone, apart = load(files, crops), load(files, crops, num_workers=1)
    assert torch.equal(alone.images.pixels, apart.images.pixels)
    assert torch.equal(alone.images.starts, apart.images.starts)
