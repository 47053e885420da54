"""Checkpoints that survive anything but the loss of the disk.

checkpoints/step-00000500.safetensors    every tensor of the run
checkpoints/step-00000500.json           the rest, with the checksum of the tensors and of itself

Both are written aside, flushed and renamed, the JSON last: a checkpoint exists once its JSON does. Whatever is wrong
with the newest, the one before it is taken. Nothing in these files is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from mixlab.errors import InputError

FORMAT = 1
NAME = re.compile(r"step-(\d{8,})\.json")
PARTIAL = ".partial"
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


class DamagedCheckpoint(Exception):  # noqa: N818  it names the thing
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole: its step, what JSON holds of it, and the file of its tensors."""

    step: int
    state: dict[str, Any]
    tensor_file: Path

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, read as it is asked for."""
        with safe_open(self.tensor_file, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                yield name, file.get_tensor(name)


class Checkpoints:
    """The checkpoints of one run. One process writes; see `RunLock`."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: dict[str, Any],
        *,
        whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        """Write a checkpoint, then remove those too many."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._write(step, tensors, state, whole)
        except OSError as error:
            last = self.steps()[-1:]
            good = f"the last good one is of step {last[0]}" if last else "there is none before it"
            raise OSError(
                error.errno,
                f"the checkpoint of step {step} could not be written to {self.folder} ({error.strerror}); {good}. "
                "Make room and run the same command again to resume from there",
            ) from error
        self._tidy()

    def steps(self) -> list[int]:
        """Steps with a checkpoint, whole or not, rising."""
        found = (NAME.fullmatch(entry.name) for entry in self.folder.glob("step-*.json"))
        return sorted(int(match[1]) for match in found if match)

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint; `warn` is called for each damaged one. None where none was ever written."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self._read(step)
            except DamagedCheckpoint as error:
                warn(f"the checkpoint of step {step} is damaged: {error}; going back to the one before")
        if steps:
            raise OSError(
                f"none of the {len(steps)} checkpoints in {self.folder} can be read; restore one, "
                "or start again in another --run directory"
            )
        return None

    def remove_partial(self) -> None:
        """What a killed run left half-written."""
        for file in self.folder.glob(f"*{PARTIAL}"):
            file.unlink(missing_ok=True)

    def _write(
        self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], whole: Callable[[Tensor], Tensor]
    ) -> None:
        tensor_file, json_file = self._files(step)
        asides = [file.with_name(file.name + PARTIAL) for file in (tensor_file, json_file)]
        try:
            written = write_tensors(asides[0], tensors, whole=whole)
            content = {
                "format": FORMAT,
                "step": step,
                "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "tensors": {"file": tensor_file.name, "bytes": written.bytes, "sha256": written.sha256},
                "state": state,
            }
            with asides[1].open("w", encoding="utf-8") as file:
                json.dump({**content, "sha256": _checksum(content)}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            asides[0].replace(tensor_file)
            flush_folder(self.folder)  # the tensors' name must not come to the disk after the JSON's
            asides[1].replace(json_file)
            flush_folder(self.folder)
        except BaseException:
            for aside in asides:
                aside.unlink(missing_ok=True)
            raise

    def _read(self, step: int) -> Checkpoint:
        tensor_file, json_file = self._files(step)
        try:
            content = json.loads(json_file.read_text(encoding="utf-8"))
            claimed = content.pop("sha256")
            tensors = content["tensors"]
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise DamagedCheckpoint(f"{json_file.name} cannot be read ({type(error).__name__}: {error})") from error
        if claimed != _checksum(content):
            raise DamagedCheckpoint(f"{json_file.name} is not what was written")
        if content["format"] != FORMAT:
            raise InputError(f"{json_file} has format {content['format']}, this version reads {FORMAT}; update mixlab")
        if not tensor_file.is_file():
            raise DamagedCheckpoint(f"{tensor_file.name} is gone")
        if tensor_file.stat().st_size != tensors["bytes"]:
            raise DamagedCheckpoint(f"{tensor_file.name} has {tensor_file.stat().st_size} of {tensors['bytes']} bytes")
        if sha256_of(tensor_file) != tensors["sha256"]:
            raise DamagedCheckpoint(f"{tensor_file.name} does not match its checksum")
        return Checkpoint(step, content["state"], tensor_file)

    def _tidy(self) -> None:
        for step in self.steps()[: -self.keep]:
            tensor_file, json_file = self._files(step)
            json_file.unlink(missing_ok=True)  # first: without it the checkpoint is not one
            tensor_file.unlink(missing_ok=True)

    def _files(self, step: int) -> tuple[Path, Path]:
        stem = f"step-{step:08d}"
        return self.folder / f"{stem}.safetensors", self.folder / f"{stem}.json"


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Written(NamedTuple):
    bytes: int
    sha256: str


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, whole: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Written:
    """Write safetensors' format piece by piece, one tensor in host memory, and flush it to the disk.

    The library's own writer neither flushes nor gives a checksum of what it wrote. `whole` puts a sharded tensor
    together when its turn comes.
    """
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
