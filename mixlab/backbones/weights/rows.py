"""Matrices in 8 or 6 bits: each row as whole numbers from -127 to 127, or -31 to 31, and the scale that gives it back.

A row is a last dimension of at least 64 entries, such as the weights of one output; its scale is KEY.scale_of_rows, in
32 bits. Numbers of 6 bits are packed, four in three bytes, where a row's length allows it. Shorter rows, and vectors,
stay as they are: they are few.
"""

from typing import Literal

import torch
from torch import Tensor

Bits = Literal[6, 8, 16, 32]
SUFFIX = ".scale_of_rows"
LEAST = 64  # entries, so that a scale adds 6 % at most
LARGEST = {8: 127, 6: 31}
SHIFTS = (0, 6, 12, 18)  # of four numbers in 24 bits


def is_scale(key: str) -> bool:
    return key.endswith(SUFFIX)


def rows_in_few_bits(tensors: dict[str, Tensor], bits: Literal[6, 8]) -> dict[str, Tensor]:
    """Every matrix with long rows as whole numbers beside their scales; other tensors as they are."""
    found: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[-1] < LEAST or not tensor.is_floating_point() or not tensor.numel():
            found[key] = tensor
            continue
        values = tensor.float()
        packed = bits == 6 and values.shape[-1] % len(SHIFTS) == 0
        scale = values.abs().amax(-1, keepdim=True) / LARGEST[6 if packed else 8]
        numbers = torch.where(scale > 0, values / scale, 0.0).round().to(torch.int8)
        found[key] = pack(numbers) if packed else numbers
        found[f"{key}{SUFFIX}"] = scale
    return found


def rows_from_few_bits(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The matrices again, in 32 bits. `ValueError` where numbers and scales do not belong together."""
    found = {key: tensor for key, tensor in tensors.items() if not is_scale(key)}
    for key in filter(is_scale, tensors):
        scale, name = tensors[key], key.removesuffix(SUFFIX)
        numbers = tensors.get(name)
        if numbers is None or numbers.dtype not in (torch.int8, torch.uint8):
            raise ValueError(f"{key} has no {name} in 8 or 6 bits beside it")
        if scale.shape != (*numbers.shape[:-1], 1) or not scale.is_floating_point():
            raise ValueError(f"{key} has the shape {tuple(scale.shape)}, which does not fit {tuple(numbers.shape)}")
        if numbers.dtype == torch.uint8:
            if numbers.shape[-1] % 3:
                raise ValueError(f"{name} has rows of {numbers.shape[-1]} bytes; numbers of 6 bits fill whole threes")
            numbers = unpack(numbers)
        found[name] = numbers * scale.float()
    return found


def pack(numbers: Tensor) -> Tensor:
    """Whole numbers (..., 4 n) from -32 to 31 as bytes (..., 3 n)."""
    fours = (numbers.to(torch.int32) + 32).unflatten(-1, (-1, len(SHIFTS)))
    whole = sum(fours[..., index] << shift for index, shift in enumerate(SHIFTS))
    return torch.stack([(whole >> shift) & 255 for shift in (0, 8, 16)], -1).flatten(-2).to(torch.uint8)


def unpack(packed: Tensor) -> Tensor:
    """What `pack` was given."""
    threes = packed.to(torch.int32).unflatten(-1, (-1, 3))
    whole = threes[..., 0] | threes[..., 1] << 8 | threes[..., 2] << 16
    return torch.stack([(whole >> shift & 63) - 32 for shift in SHIFTS], -1).flatten(-2).to(torch.int8)
