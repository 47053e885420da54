"""Tensors in one file, safetensors' format, written piece by piece: one tensor in host memory, one pass over the bytes.

The library's own writer is not used because it neither flushes to the disk nor gives a checksum of what it wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Written(NamedTuple):
    bytes: int
    sha256: str


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, whole: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Written:
    """Write all tensors and flush them to the disk. `whole` puts a sharded tensor together when its turn comes."""
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            digest.update(piece)
            size += file.write(piece)
        for tensor in tensors.values():
            values = whole(tensor).detach().to("cpu").contiguous().reshape(-1)
            data = values.view(torch.uint8).numpy().data
            digest.update(data)
            size += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Written(size, digest.hexdigest())


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_folder(folder: Path) -> None:
    """Make names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
