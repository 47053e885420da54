"""UperNet as MMSegmentation behaves, in float64 and by definition: the oracle of our head and its loss.

From reading MMSegmentation 1.2 (configs/_base_/models/upernet_swin.py and what it builds): UPerHead, FCNHead with one
convolution on the third map, cross-entropy over all pixels, those that are ignored included, and align_corners False.
`weights` are tensors by our names of the parameters. Dropout is left out.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

IGNORE = 255
Weights = dict[str, torch.Tensor]


def matrix(old: int, new: int) -> np.ndarray:
    """Bilinear resizing of a line from `old` to `new` points, align_corners False: (new, old)."""
    rows = np.zeros((new, old))
    for place in range(new):
        at = max((place + 0.5) * old / new - 0.5, 0.0)
        low = min(int(at), old - 1)
        high = min(low + 1, old - 1)
        rows[place, low] += 1 - (at - low)
        rows[place, high] += at - low
    return rows


def resize(maps: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    down, across = (torch.from_numpy(matrix(old, new)) for old, new in zip(maps.shape[-2:], size, strict=True))
    return down @ maps @ across.T


def pool(maps: torch.Tensor, cells: int) -> torch.Tensor:
    """Adaptive average pooling."""
    height, width = maps.shape[-2:]
    out = maps.new_zeros(*maps.shape[:2], cells, cells)
    for row in range(cells):
        for column in range(cells):
            rows = slice(math.floor(row * height / cells), math.ceil((row + 1) * height / cells))
            columns = slice(math.floor(column * width / cells), math.ceil((column + 1) * width / cells))
            out[..., row, column] = maps[..., rows, columns].mean((-2, -1))
    return out


def conv_module(maps: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
    """Convolution without bias, batch norm by the batch's own statistics, ReLU."""
    kernel = weights[f"{name}.0.weight"]
    maps = F.conv2d(maps, kernel, padding=kernel.shape[-1] // 2)
    mean = maps.mean((0, 2, 3), keepdim=True)
    variance = ((maps - mean) ** 2).mean((0, 2, 3), keepdim=True)
    scale, shift = (weights[f"{name}.1.{part}"].reshape(1, -1, 1, 1) for part in ("weight", "bias"))
    return ((maps - mean) / torch.sqrt(variance + 1e-5) * scale + shift).clamp(min=0)


def decode_head(maps: list[torch.Tensor], weights: Weights) -> torch.Tensor:
    """Logits at the size of the finest map."""
    coarsest = maps[-1]
    context = [
        resize(conv_module(pool(coarsest, cells), weights, f"head.pools.{place}.1"), coarsest.shape[-2:])
        for place, cells in enumerate((1, 2, 3, 6))
    ]
    laterals = [conv_module(part, weights, f"head.lateral.{level}") for level, part in enumerate(maps[:-1])]
    laterals.append(conv_module(torch.cat([coarsest, *context], dim=1), weights, "head.pooled"))
    for level in (3, 2, 1):
        laterals[level - 1] = laterals[level - 1] + resize(laterals[level], laterals[level - 1].shape[-2:])
    outs = [conv_module(laterals[level], weights, f"head.smooth.{level}") for level in range(3)] + [laterals[-1]]
    outs = [outs[0], *(resize(part, outs[0].shape[-2:]) for part in outs[1:])]
    fused = conv_module(torch.cat(outs, dim=1), weights, "head.fuse")
    return F.conv2d(fused, weights["classify.1.weight"], weights["classify.1.bias"])


def auxiliary_head(maps: list[torch.Tensor], weights: Weights) -> torch.Tensor:
    hidden = conv_module(maps[2], weights, "auxiliary.0")
    return F.conv2d(hidden, weights["auxiliary.1.1.weight"], weights["auxiliary.1.1.bias"])


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The mean over all pixels, with 0 for those that are ignored."""
    shares = resize(logits.detach(), tuple(labels.shape[-2:])).log_softmax(dim=1)
    total = 0.0
    for image, mask in enumerate(labels.tolist()):
        for row, line in enumerate(mask):
            for column, label in enumerate(line):
                total -= float(shares[image, label, row, column]) if label != IGNORE else 0.0
    return total / labels.numel()


def losses(maps: list[torch.Tensor], weights: Weights, labels: torch.Tensor) -> tuple[float, float]:
    """Of the decode head, and of the auxiliary head, which counts 0.4."""
    main = cross_entropy(decode_head(maps, weights), labels)
    return main, 0.4 * cross_entropy(auxiliary_head(maps, weights), labels)
