"""Tensors to a file in safetensors' format: the same tensors give the same bytes, flushed to the disk.

The library's own writer puts metadata into a new order each time, does not flush, and gives no checksum.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> tuple[int, str]:
    """Write tensors in their order, one at a time in the host's memory. Returns the bytes written and their SHA-256.

    `gather` puts a sharded tensor together.
    """
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            digest.update(piece)
            size += file.write(piece)
        for tensor in tensors.values():
            values = gather(tensor).detach().to("cpu").contiguous().reshape(-1)
            data = values.view(torch.uint8).numpy().data
            digest.update(data)
            size += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def num_bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """What the tensors take in a file, without its header."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
