"""Shifts that need no data of their own: held-out images without colour, blurred, noisy, pale, or as edges alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.data.source import ImageSource, Subset
from mixlab.evaluation.classifier import Classifier

LUMA = (0.299, 0.587, 0.114)
Shift = Callable[[Tensor, torch.Generator], Tensor]  # pixels (B, 3, S, S) in [0, 1], and whence noise comes


def _grey(x: Tensor, _: torch.Generator) -> Tensor:
    return _luma(x).expand_as(x)


def _blur(x: Tensor, _: torch.Generator) -> Tensor:
    """As wide at any size: a fortieth of the side."""
    sigma = x.shape[-1] / 40
    reach = int(3 * sigma) + 1
    away = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    weights = torch.softmax(-0.5 * (away / sigma) ** 2, 0)
    for kernel in (weights[:, None], weights[None]):
        padded = F.pad(x, (reach * (kernel.shape[1] > 1),) * 2 + (reach * (kernel.shape[0] > 1),) * 2, mode="replicate")
        x = F.conv2d(padded, kernel.expand(3, 1, -1, -1), groups=3)
    return x


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator).to(x)


def _pale(x: Tensor, _: torch.Generator) -> Tensor:
    return 0.5 + 0.3 * (x - 0.5)


def _edges(x: Tensor, _: torch.Generator) -> Tensor:
    """Dark lines on white where lightness changes: a drawing of sorts."""
    light = F.pad(_luma(x), (1, 1, 1, 1), mode="replicate")
    across = light[..., 1:-1, 2:] - light[..., 1:-1, :-2]
    down = light[..., 2:, 1:-1] - light[..., :-2, 1:-1]
    return (1 - 2 * (across**2 + down**2).sqrt()).expand_as(x)


def _luma(x: Tensor) -> Tensor:
    return torch.einsum("bchw,c->bhw", x, x.new_tensor(LUMA))[:, None]


PLAIN = "plain"
SHIFTS: dict[str, Shift] = {"grey": _grey, "blur": _blur, "noise": _noise, "pale": _pale, "edges": _edges}


def shifted(images: Tensor, name: str, generator: torch.Generator) -> Tensor:
    """Pixels uint8 (B, 3, S, S), changed."""
    return (255 * SHIFTS[name](images.float() / 255, generator).clamp(0, 1)).round().to(torch.uint8)


@torch.no_grad()
def score_shifts(
    images: ImageSource,
    classifier: Classifier,
    *,
    device: torch.device,
    precise: Callable[[], AbstractContextManager[None]],
    batch: int = 64,
    workers: int = 0,
    shard: tuple[int, int] = (0, 1),
    progress: Callable[[int], None] = lambda count: None,
) -> dict[str, Tensor]:
    """Whether the classifier is right, bool (n,), on images as they are (PLAIN) and under every shift."""
    outputs = {name: number for number, name in enumerate(classifier.classes)}
    known = [number for number, name in enumerate(images.classes) if name in outputs]
    numbers = [index for index in range(len(images)) if images.label(index) in known]
    if not numbers:
        raise ValueError(
            f"none of the classes {', '.join(images.classes[:4])} ... is among those of the classifier "
            f"({', '.join(classifier.classes[:4])} ...); give images of its own classes"
        )
    wanted = Subset(images, numbers[shard[0] :: shard[1]])
    noise = torch.Generator().manual_seed(shard[0])
    right: dict[str, list[Tensor]] = {name: [] for name in (PLAIN, *SHIFTS)}
    answers = torch.tensor([outputs.get(name, -1) for name in images.classes], device=device)
    for found in classifier.view.loader(wanted, batch=batch, workers=workers, pin_memory=device.type == "cuda"):
        pixels, expected = found.images.to(device), answers[found.labels.to(device)]
        for name, hits in right.items():
            changed = pixels if name == PLAIN else shifted(pixels, name, noise)
            with precise():
                view = classifier.view(changed, mean=classifier.pixel_mean, std=classifier.pixel_std)
                hits.append((classifier(view).argmax(-1) == expected).cpu())
        progress(len(pixels))
    return {name: torch.cat(hits) for name, hits in right.items()}
