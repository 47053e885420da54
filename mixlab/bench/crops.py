"""DINO's ten crops per image: ours on one CPU core and on a GPU, against torchvision on PIL images on one core.

Every system starts from decoded images of 256 px and ends with normalised tensors. Rounds alternate between the systems
and the best round counts, so that other work on the machine touches all alike. Before anything is timed, both draw
whole images with the same parameters and must agree.
"""

import random
import time
from collections.abc import Callable

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from mixlab.data import IMAGENET_MEAN, IMAGENET_STD, CropKind, MultiCrop, Shapes, dino_crops

PIXELS = 256


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
    parameters = crop.draw(torch.full((len(images), 2), PIXELS), torch.Generator())[kind.size]
    whole = parameters.box.new_tensor([0.0, 0.0, 1.0, 1.0])
    parameters.box[:] = whole
    (ours,) = crop(images, {kind.size: parameters})
    resize = T.Compose(
        [T.Resize(224, T.InterpolationMode.BICUBIC), T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    theirs = torch.stack([resize(Image.fromarray(image.permute(1, 2, 0).cpu().numpy())) for image in images])
    levels = float((ours[0].cpu() - theirs).abs().mul(torch.tensor(IMAGENET_STD)[:, None, None]).mean() * 255)
    if levels > 1:
        raise RuntimeError(f"the systems differ by {levels:.2f} grey levels; speed is compared at 1 at most")
    return levels


def measure(*, num_images: int = 16, gpu_images: int = 256, rounds: int = 5, seed: int = 0) -> list[dict[str, object]]:
    """Images per second of each system; an image means all ten crops."""
    torch.manual_seed(seed), random.seed(seed)
    torch.set_num_threads(1)
    crop, generator = MultiCrop(dino_crops()), torch.Generator().manual_seed(seed)
    source = Shapes(size=PIXELS, num_images=num_images)
    images = torch.stack([source.load(index) for index in range(num_images)])
    pictures = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in images]
    views = [torchvision_crop(kind) for kind in crop.kinds for _ in range(kind.num_views)]

    def ours(batch: Tensor) -> None:
        crop(batch, crop.draw(torch.full((len(batch), 2), PIXELS), generator))

    systems: dict[str, tuple[Callable[[], object], int]] = {
        "torchvision on PIL, one CPU core": (lambda: [view(p) for p in pictures for view in views], num_images),
        "mixlab, one CPU core": (lambda: ours(images), num_images),
    }
    if torch.cuda.is_available():
        there = images.repeat(-(-gpu_images // num_images), 1, 1, 1)[:gpu_images].cuda()
        systems[f"mixlab, {torch.cuda.get_device_name()}"] = (lambda: finish(ours, there), gpu_images)
        check_agreement(there[:num_images])
    agreement = check_agreement(images)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, (work, _number) in systems.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    rates = {name: number / float(np.min(seconds[name])) for name, (_work, number) in systems.items()}
    base = next(iter(rates.values()))
    return [
        {"system": name, "images_per_second": rate, "times_torchvision": rate / base, "grey_levels_apart": agreement}
        for name, rate in rates.items()
    ]


def finish(work: Callable[[Tensor], None], batch: Tensor) -> None:
    """Do the work and wait for the GPU."""
    work(batch)
    torch.cuda.synchronize()
