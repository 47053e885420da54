"""Matrices in 8 bits: each row as whole numbers from -127 to 127, and the scale that gives it back.

A row is a last dimension of at least 64 entries, such as the weights of one output; its scale is KEY.scale_of_rows, in
32 bits. Shorter rows, and vectors, stay as they are: they are few.
"""

from typing import Literal

import torch
from torch import Tensor

Bits = Literal[8, 16, 32]
SUFFIX = ".scale_of_rows"
LEAST = 64  # entries, so that a scale adds 6 % at most
LARGEST = 127


def is_scale(key: str) -> bool:
    return key.endswith(SUFFIX)


def rows_in_8_bits(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix with long rows as whole numbers beside their scales; other tensors as they are."""
    found: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[-1] < LEAST or not tensor.is_floating_point() or not tensor.numel():
            found[key] = tensor
            continue
        values = tensor.float()
        scale = values.abs().amax(-1, keepdim=True) / LARGEST
        steps = torch.where(scale > 0, values / scale, 0.0)
        found[key] = steps.round().to(torch.int8)
        found[f"{key}{SUFFIX}"] = scale
    return found


def rows_from_8_bits(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The matrices again, in 32 bits. `ValueError` where numbers and scales do not belong together."""
    found = {key: tensor for key, tensor in tensors.items() if not is_scale(key)}
    for key in filter(is_scale, tensors):
        scale, name = tensors[key], key.removesuffix(SUFFIX)
        numbers = tensors.get(name)
        if numbers is None or numbers.dtype != torch.int8:
            raise ValueError(f"{key} has no {name} in 8 bits beside it")
        if scale.shape != (*numbers.shape[:-1], 1) or not scale.is_floating_point():
            raise ValueError(f"{key} has the shape {tuple(scale.shape)}, which does not fit {tuple(numbers.shape)}")
        found[name] = numbers * scale.float()
    return found
