"""Checkpoints: the state of a run (`training.state`), written atomically and verified by checksum.

checkpoints/step-00000500.safetensors    every tensor of the run; of a sharded one, what lies on the first rank
checkpoints/step-00000500.shard-3.safetensors    what lies on rank 3: of each sharded tensor the next rows
checkpoints/step-00000500.json           the rest, with the checksums of these and of itself

All are written under a temporary name, flushed and renamed, the JSON last: a checkpoint exists once its JSON does. If
the newest is damaged, the one before it is used. Nothing in these files is ever executed; that is why
`torch.distributed.checkpoint` is not used, whose metadata are a pickle.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mixlab.backbones.weights import save_weights
from mixlab.backbones.weights.saving import file_order, save_tensors
from mixlab.backbones.weights.writing import num_bytes_of, write_safetensors
from mixlab.errors import InputError, WorkError
from mixlab.run.disk import check_free, naming_file
from mixlab.run.files import check_regular
from mixlab.training.recipe import Recipe
from mixlab.training.sharded import whole

FORMAT, SHARDED_FORMAT = 1, 2
NAME = re.compile(r"step-(\d{8,})\.json")
TENSORS = re.compile(r"step-(\d{8,})(\.shard-\d+)?\.safetensors")
PARTIAL = ".partial"
MOST_TRIES = 50


T = TypeVar("T")
Gather = Callable[[Any], list[Any]]  # what each rank holds, in the order of ranks


def alone(value: Any) -> list[Any]:
    """`Gather` of one process."""
    return [value]


class DamagedCheckpoint(Exception):  # noqa: N818  it names the thing
    """A damaged checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole: its step, what JSON holds of it, and the files of its tensors, open: a run that goes on
    training may remove them meanwhile."""

    step: int
    state: dict[str, Any]
    tensor_file: Path
    files: tuple[Any, ...]  # safe_open; of a sharded run one for each rank

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, read, and put together from its shards, as it is asked for."""
        names = [set(file.keys()) for file in self.files]
        for name in self.files[0].keys():  # noqa: SIM118  not a mapping
            parts = [file.get_tensor(name) for file, known in zip(self.files, names, strict=True) if name in known]
            yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


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
        rank: int = 0,
        gather: Gather = alone,
    ) -> None:
        """Write a checkpoint, then remove the oldest ones beyond the limit.

        Of a sharded one every rank writes its part, at the same time; `gather` lets them agree.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with naming_file(self._files(step)[0], num_bytes_of(tensors), self._way_out()):
            self._write(step, tensors, state, rank, gather)
        if rank == 0:
            self._tidy()

    def check_free(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Refuse to train towards a checkpoint of these tensors for which the disk has no room."""
        self.folder.mkdir(parents=True, exist_ok=True)
        check_free(self._files(step)[0], num_bytes_of(tensors), self._way_out())

    def steps(self) -> list[int]:
        """Steps with a checkpoint, whole or not, rising."""
        found = (NAME.fullmatch(entry.name) for entry in self.folder.glob("step-*.json"))
        return sorted(int(match[1]) for match in found if match)

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint; `warn` is called for each damaged one. None where none was ever written.

        Another process may be training: what it removes while we look has a newer one in its place.
        """
        damaged: set[int] = set()
        while steps := self._steps_or_wait():
            left = [step for step in steps if step not in damaged]
            if not left:
                raise OSError(
                    f"no checkpoint in {self.folder} can be read; restore one, "
                    "or start again in another --run directory"
                )
            try:
                return self._read(left[-1])
            except DamagedCheckpoint as error:
                if self._files(left[-1])[1].is_file():
                    damaged.add(left[-1])
                    warn(f"the checkpoint of step {left[-1]} is damaged: {error}; using the one before")
        return None

    def _steps_or_wait(self) -> list[int]:
        """Steps with a checkpoint. A listing may miss both the one that is being removed and the one that replaced it:
        where there are any files of one, there is one in a moment, or none was ever finished."""
        for _ in range(MOST_TRIES):
            if (steps := self.steps()) or not any(self.folder.glob("step-*")):
                return steps
            time.sleep(0.01)
        return []

    def remove_partial(self) -> None:
        """Temporary files of a killed run, and tensors without their JSON."""
        whole = set(self.steps())
        for file in self.folder.glob("step-*"):
            named = TENSORS.fullmatch(file.name)
            if file.name.endswith(PARTIAL) or (named and int(named[1]) not in whole):
                file.unlink(missing_ok=True)

    def _write(
        self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], rank: int, gather: Gather
    ) -> None:
        json_file = self._files(step)[1]
        tensor_file = self._files(step, rank)[0]
        asides = [file.with_name(file.name + PARTIAL) for file in (tensor_file, json_file)]

        def write() -> dict[str, Any]:
            num_bytes, digest = write_tensors(asides[0], tensors)
            return {"file": tensor_file.name, "bytes": num_bytes, "sha256": digest}

        def describe(parts: list[dict[str, Any]]) -> bool:
            if rank == 0:
                self._describe(asides[1], step, parts, state)
            asides[0].replace(tensor_file)
            flush_folder(self.folder)  # the tensors' names must not come to the disk after the JSON's
            return True

        try:
            parts = _on_every_rank(write, gather)
            _on_every_rank(lambda: describe(parts), gather)
            if rank == 0:
                asides[1].replace(json_file)
                flush_folder(self.folder)
        except BaseException:
            for aside in asides[: 2 if rank == 0 else 1]:
                aside.unlink(missing_ok=True)
            raise

    def _describe(self, aside: Path, step: int, parts: list[dict[str, Any]], state: dict[str, Any]) -> None:
        content = {
            "format": FORMAT if len(parts) == 1 else SHARDED_FORMAT,
            "step": step,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "tensors": {**parts[0], **({"shards": parts[1:]} if len(parts) > 1 else {})},
            "state": state,
        }
        with aside.open("w", encoding="utf-8") as file:
            json.dump({**content, "sha256": checksum_of(content)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, step: int) -> Checkpoint:
        tensor_file, json_file = self._files(step)
        try:
            check_regular(json_file)
            content = json.loads(json_file.read_text(encoding="utf-8"))
            claimed = content.pop("sha256")
            tensors = content["tensors"]
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise DamagedCheckpoint(f"{json_file.name} cannot be read ({type(error).__name__}: {error})") from error
        if claimed != checksum_of(content):
            raise DamagedCheckpoint(f"{json_file.name} is not what was written")
        if content["format"] not in (FORMAT, SHARDED_FORMAT):
            raise InputError(
                f"{json_file} has format {content['format']}, this version reads up to {SHARDED_FORMAT}; update mixlab"
            )
        files = tuple(self._open(self.folder / part["file"], part) for part in (tensors, *tensors.get("shards", ())))
        return Checkpoint(step, content["state"], tensor_file, files)

    def _open(self, tensor_file: Path, written: dict[str, Any]) -> Any:
        try:
            file = safe_open(tensor_file, framework="pt")
            size, digest = tensor_file.stat().st_size, sha256_of(tensor_file)
        except (OSError, SafetensorError, RuntimeError) as error:  # torch opens it once more, and has its own kind
            raise DamagedCheckpoint(f"{tensor_file.name} cannot be read ({error})") from error
        if size != written["bytes"]:
            raise DamagedCheckpoint(f"{tensor_file.name} has {size} of {written['bytes']} bytes")
        if digest != written["sha256"]:
            raise DamagedCheckpoint(f"{tensor_file.name} does not match its checksum")
        return file

    def _tidy(self) -> None:
        for step in self.steps()[: -self.keep]:
            tensor_file, json_file = self._files(step)
            json_file.unlink(missing_ok=True)  # first: without it the checkpoint is not one
            for file in (tensor_file, *self.folder.glob(f"{tensor_file.stem}.shard-*.safetensors")):
                file.unlink(missing_ok=True)

    def _way_out(self) -> str:
        last = self.steps()[-1:]
        good = f"the last good checkpoint is that of step {last[0]}" if last else "there is no earlier checkpoint"
        fewer = f", or keep fewer than {self.keep} (checkpoint.keep)," if self.keep > 1 else ""
        return f"{good}. Make room{fewer} and run the same command again to resume"

    def _files(self, step: int, rank: int = 0) -> tuple[Path, Path]:
        stem = f"step-{step:08d}"
        shard = f".shard-{rank}" if rank else ""
        return self.folder / f"{stem}{shard}.safetensors", self.folder / f"{stem}.json"


def _on_every_rank(action: Callable[[], T], gather: Gather) -> list[T]:
    """What it gives on each rank. Where it fails on one, it fails on all."""
    try:
        own = action()
    except BaseException:
        gather(None)
        raise
    found = gather(own)
    if None in found:
        raise WorkError(f"rank {found.index(None)} could not write its part of the checkpoint; see its own message")
    return found


def checksum_of(content: dict[str, Any]) -> str:
    """Of what JSON holds, in any order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write safetensors' format; one tensor at a time is put together from its shards."""
    return write_safetensors(path, tensors, gather=whole)


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


def export_weights(recipe: Recipe, folder: Path, *, is_first: bool, metadata: dict[str, str]) -> None:
    """RUN/weights.safetensors, and RUN/classifier.safetensors or as the recipe's head is called.

    Every rank takes part, the first one writes, with one parameter at a time in its memory.
    """
    backbone = recipe.exported()
    head = {name: whole(value) for name, value in recipe.exported_head().items()}
    if not is_first:
        for tensor in file_order(backbone.state_dict()).values():
            whole(tensor)  # each rank gives its shard
        return
    save_weights(backbone, folder / "weights.safetensors", extra_metadata=metadata, gather=whole)
    if head:
        save_tensors(head, folder / f"{recipe.head_name}.safetensors", metadata=metadata)
