"""From files to crops. `measure_crops`: DINO's ten crops per image, ours on one CPU core and on a GPU, against
torchvision on PIL images on one core. `describe_crops`: how many are enlarged, and how sharp they are, against
torchvision from the files.

Crops start from decoded images of 500 x 375 px, the median of ImageNet, and end with normalised tensors. Rounds
alternate between the systems and the best round counts, so that other work on the machine touches all alike. Before
anything is timed, both draw whole images with the same parameters and must agree.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torchvision.transforms as T
import torchvision.transforms.functional as TF
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from mixlab.bench.drawn_files import FILE_HEIGHT, FILE_WIDTH, draw_scenes
from mixlab.bench.timing import Row, synchronise
from mixlab.data import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CropKind,
    ImageFolder,
    MultiCrop,
    PackedImages,
    Shapes,
    decode,
    dino_crops,
    make_crops,
    normalise,
    pack_images,
)
from mixlab.data.crops import ASPECT
from mixlab.data.packed import PackedReader
from mixlab.data.transforms import whole_boxes
from mixlab.evaluation.probe.training import ProbeCrops


class Sometimes:
    """A change of a PIL image with a probability."""

    def __init__(self, probability: float, change: Callable[[Image.Image], Image.Image]) -> None:
        self.probability, self.change = probability, change

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.change(image) if random.random() < self.probability else image


def torchvision_crop(kind: CropKind) -> Callable[[Image.Image], Tensor]:
    """The same view by torchvision's own transforms."""
    jitter = T.ColorJitter(*kind.strengths)
    return T.Compose(
        [
            T.RandomResizedCrop(kind.size, scale=kind.scale, interpolation=T.InterpolationMode.BICUBIC),
            T.RandomHorizontalFlip(kind.flip),
            T.RandomApply([jitter], kind.jitter),
            T.RandomGrayscale(kind.grey),
            Sometimes(kind.blur, lambda image: image.filter(ImageFilter.GaussianBlur(random.uniform(*kind.sigma)))),
            Sometimes(kind.solarise, ImageOps.solarize),
            T.ToTensor(),
            T.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )


def check_agreement(images: Tensor) -> float:
    """Mean difference in grey levels of plainly resized images; an error if the two systems do not agree."""
    kind = CropKind(size=224, scale=(1.0, 1.0), flip=0.0)
    crop = MultiCrop((kind,))
    parameters = crop.draw(torch.tensor([images.shape[2:]] * len(images)), torch.Generator())[kind.size]
    whole = parameters.box.new_tensor([0.0, 0.0, 1.0, 1.0])
    parameters.box[:] = whole
    (ours,) = crop(images, {kind.size: parameters})
    resize = T.Compose(
        [T.Resize((224, 224), T.InterpolationMode.BICUBIC), T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    theirs = torch.stack([resize(Image.fromarray(image.permute(1, 2, 0).cpu().numpy())) for image in images])
    levels = float((ours[0].cpu() - theirs).abs().mul(torch.tensor(IMAGENET_STD)[:, None, None]).mean() * 255)
    if levels > 1:
        raise RuntimeError(f"the systems differ by {levels:.2f} grey levels; speed is compared at 1 at most")
    return levels


def measure_crops(*, num_images: int = 16, rounds: int = 5) -> list[Row]:
    """Images per second of each system; an image means all ten crops."""
    torch.manual_seed(0), random.seed(0)
    torch.set_num_threads(1)
    crop, generator = MultiCrop(dino_crops()), torch.Generator().manual_seed(0)
    source = Shapes(size=FILE_WIDTH, num_images=num_images)
    images = torch.stack([source.load(index)[:, :FILE_HEIGHT] for index in range(num_images)])
    pictures = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in images]
    views = [torchvision_crop(kind) for kind in crop.kinds for _ in range(kind.num_views)]

    def ours(batch: PackedImages) -> None:
        crop(batch, crop.draw(batch.shapes, generator))
        synchronise(batch.pixels.device)

    here = pack_images(images)
    systems: dict[str, tuple[Callable[[], object], int]] = {
        "torchvision on PIL, one CPU core": (lambda: [view(p) for p in pictures for view in views], num_images),
        "mixlab, one CPU core": (lambda: ours(here), num_images),
    }
    if torch.cuda.is_available():
        many = images.repeat(256 // num_images, 1, 1, 1).cuda()
        there = pack_images(many)
        systems[f"mixlab, {torch.cuda.get_device_name()}"] = (lambda: ours(there), len(many))
        check_agreement(many[:num_images])
    agreement = check_agreement(images)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, (work, _number) in systems.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    rates = {name: number / min(seconds[name]) for name, (_work, number) in systems.items()}
    base = next(iter(rates.values()))
    return [
        {"system": name, "images_per_second": rate, "times_torchvision": rate / base, "grey_levels_apart": agreement}
        for name, rate in rates.items()
    ]


def describe_crops(data: str | None = None, *, num_draws: int = 60_000) -> list[Row]:
    """Crops of files, of 500 x 375 px unless `data` names others: by torchvision's RandomResizedCrop from the file, by
    mixlab, and by mixlab from images squashed to 256 px, as it once did.

    enlarged: the share of crops with a side of fewer pixels than the crop has. sharpness: the mean square of
    differences between neighbouring pixels, as a ratio to torchvision's crop of the same box.
    """
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            data = str(draw_scenes(Path(folder), 16) / "images")
        source = ImageFolder(data)
        dino, supervised = dino_crops(), (CropKind(size=224, scale=(0.08, 1.0)),)
        probe = ProbeCrops(224, seed=0).crops.kinds
        views: dict[str, tuple[Sequence[CropKind], CropKind]] = {
            "DINO, global": (dino, dino[0]),
            "DINO, local": (dino, dino[2]),
            "supervised": (supervised, supervised[0]),
            "linear probe": (probe, probe[0]),
        }
        return [row for name, (kinds, kind) in views.items() for row in _describe(name, kinds, kind, source, num_draws)]


def _describe(
    name: str, kinds: Sequence[CropKind], kind: CropKind, source: ImageFolder, num_draws: int
) -> Iterator[Row]:
    """A row for each system."""
    torch.manual_seed(0)
    each = -(-num_draws // len(source))
    plain = MultiCrop([CropKind(size=kind.size, scale=kind.scale, flip=0.0, bilinear=kind.bilinear)])
    interpolation = T.InterpolationMode.BILINEAR if kind.bilinear else T.InterpolationMode.BICUBIC
    law = (list(kind.scale), list(ASPECT))
    loaders = {
        "mixlab": PackedReader(source, MultiCrop(kinds).reduction, None),
        "mixlab from 256 px": PackedReader(source, MultiCrop(kinds).reduction, 256),
    }
    enlarged, sharp = (dict.fromkeys(("torchvision", *loaders), 0.0) for _ in range(2))
    for index in range(len(source)):
        picture = decode(source.root / source.paths[index])
        blank = torch.empty(3, picture.height, picture.width)
        theirs = torch.tensor([T.RandomResizedCrop.get_params(blank, *law) for _ in range(each)])
        enlarged["torchvision"] += float((theirs[:, 2:] < kind.size).any(1).float().mean())
        own = torch.tensor([[picture.height, picture.width]] * each)
        drawn = plain.draw(own, torch.Generator().manual_seed(index))[kind.size]
        top, left, height, width = whole_boxes(drawn.box, own)[0].tolist()
        crop = TF.resized_crop(picture, top, left, height, width, [kind.size] * 2, interpolation)
        expected = _sharpness(normalise(TF.pil_to_tensor(crop)[None])[0])
        sharp["torchvision"] += 1.0
        for system, reader in loaders.items():
            images = reader.collate([reader.read(index, 0)]).images
            boxes = whole_boxes(drawn.box, images.shapes.expand(each, -1))
            enlarged[system] += float((boxes[:, 2:] < kind.size).any(1).float().mean())
            sharp[system] += _sharpness(make_crops(images, drawn[:1], size=kind.size)[0]) / expected
    for system in enlarged:
        shares = {"enlarged": enlarged[system] / len(source), "sharpness": sharp[system] / len(source)}
        yield {"crop": name, "system": system, **shares}


def _sharpness(image: Tensor) -> float:
    down, along = image[:, 1:] - image[:, :-1], image[:, :, 1:] - image[:, :, :-1]
    return float(down.square().mean() + along.square().mean())
