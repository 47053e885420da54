"""Features of a set of images on disk, in shards that are written once; a stopped extraction resumes.

FOLDER/KEY/about.json        network, images and settings; KEY is its checksum, so no two sets of features mix
FOLDER/KEY/00000.npy         features (n, F), half precision by default
FOLDER/KEY/00000.rows.npy    int64 (n, 2): the number of each image in the source, and its label
FOLDER/KEY/00000.json        checksums of both, and the images that could not be read; a shard exists once this does
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.room import check_room
from mixlab.data.dataset_source import DatasetSource
from mixlab.data.given import fingerprint
from mixlab.data.images import ImageFolder
from mixlab.data.shards import TarShards
from mixlab.data.source import ImageSource, Subset
from mixlab.errors import InputError, WorkError, few
from mixlab.evaluation.features import FeaturePlan, FeatureTable
from mixlab.evaluation.machine import CentreView, Machine, PrecisionInUse, run_precision
from mixlab.evaluation.target import network_digest
from mixlab.run.disk import in_units
from mixlab.run.files import read_json, write_atomically, write_json
from mixlab.training.checkpoint import checksum_of, sha256_of
from mixlab.training.distributed import World, from_all, only_first

FORMAT = 2
SHARD = 4096  # images; about a second of a GPU's work to lose
Stored = Literal["float16", "float32"]


@dataclass(frozen=True)
class Extraction:
    """How features are made: all that decides their values but the weights and the images."""

    plan: FeaturePlan
    view: CentreView
    precision: PrecisionInUse
    stored: Stored = "float16"

    def about(self, backbone: Backbone, source: ImageSource, name: str) -> dict[str, Any]:
        """The identity of these features, as JSON. Names and dates of files are looked up by the first rank alone;
        nodes may hold copies of other dates."""
        checksum, files = only_first(lambda: (images_checksum(source), files_checksum(source)))
        return {
            "format": FORMAT,
            "backbone": backbone.name,
            "network": network_digest(backbone),
            "images": {
                "name": name,
                "number": len(source),
                "checksum": checksum,
                "files": files,
            },
            "source": self.plan.source,
            "pools": [[pool, list(widths)] for pool, widths in self.plan.pools],
            "view": asdict(self.view),
            "precision": self.precision,
            "stored": self.stored,
            "shard": SHARD,
        }


def extract_features(
    backbone: Backbone, source: ImageSource, extraction: Extraction, *, name: str, machine: Machine
) -> FeatureTable:
    """The features of all images of a source that can be read, out of `machine.features` where they are there."""
    if not machine.features:  # without a place to share, each rank makes them all
        machine = replace(machine, world=World(machine.world.device))
    with nullcontext(machine.features) if machine.features else tempfile.TemporaryDirectory() as folder:
        cache = FeatureCache(Path(folder), extraction, backbone=backbone, source=source, name=name)
        with machine.bar(f"features of {name}", cache.num_images(cache.own_shards(machine))) as step:
            table = cache.fill(machine, step)
    if not len(table):
        from_all(None)  # until every rank has seen that there is nothing to keep
        only_first(lambda: shutil.rmtree(cache.folder, ignore_errors=True))
        named = few((f"{path} ({why})" for path, why in table.unreadable.items()), 1)
        raise InputError(f"none of the {len(source)} images of {name} can be read, such as {named}; repair them")
    return table


def check_batch(backbone: Backbone, view: CentreView, sources: Iterable[ImageSource], machine: Machine) -> None:
    """Refuse sizes of which memory cannot hold a batch, before anything is read; not where features may be there."""
    for about in machine.features.glob("*/about.json") if machine.features else ():
        with suppress(OSError, ValueError):
            if read_json(about).get("view") == asdict(view):
                return
    check_room(backbone, view.size, images=min(_batch(machine), max(map(len, sources))))


def _batch(machine: Machine) -> int:
    """Images through the network at a time: no batch in two shards."""
    return next(size for size in range(min(machine.batch, SHARD), 0, -1) if SHARD % size == 0)


WORTH_SAYING = 100e6  # bytes


def describe_needs(extraction: Extraction, sources: Iterable[ImageSource], machine: Machine) -> str | None:
    """What features of these images will take, before anything is read; nothing where that is little."""
    number, width = sum(map(len, sources)), extraction.plan.width
    num_bytes = number * width * np.dtype(extraction.stored).itemsize
    where = machine.features or Path(tempfile.gettempdir())
    place = next(folder for folder in (where, *where.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    if num_bytes < min(WORTH_SAYING, free):
        return None
    short = "" if num_bytes < free else ", which is too little; choose another --run or fewer images"
    return (
        f"features of {number:,} images, {width:,} values each: {in_units(num_bytes)} in {where}, where "
        f"{in_units(free)} are free{short}; they are read from there as they are needed"
    )


class FeatureCache:
    """The features of one source. Every rank extracts shards of its own; all read all of them."""

    def __init__(
        self, folder: Path, extraction: Extraction, *, backbone: Backbone, source: ImageSource, name: str
    ) -> None:
        self.extraction, self.backbone, self.source = extraction, backbone, source
        self.about = extraction.about(backbone, source, name)
        self.folder = folder / checksum_of(self.about)[:16]
        self.num_shards = -(-len(source) // SHARD)

    def fill(self, machine: Machine, progress: Callable[[int], None] = lambda count: None) -> FeatureTable:
        """Extract what is missing or damaged, and open the whole."""
        if len(set(from_all(self.folder.name))) > 1:
            raise WorkError("ranks hold different weights or images; give all of them the same, and the same seed")
        own = self.own_shards(machine)
        missing = [number for number in own if not self._is_whole(number)]
        progress(self.num_images(own) - self.num_images(missing))
        if missing:
            self._extract(missing, machine, progress)
        from_all(len(missing))  # wait for the other ranks
        return self.open()

    def own_shards(self, machine: Machine) -> range:
        """Those that this rank extracts."""
        return range(machine.world.rank, self.num_shards, machine.world.size)

    def num_images(self, shards: Iterable[int]) -> int:
        return sum(len(self._range(number)) for number in shards)

    def open(self) -> FeatureTable:
        """All shards as one table; they stay on the disk until rows are asked for."""
        parts, rows = [], []
        unreadable: dict[str, str] = {}
        for number in range(self.num_shards):
            features, numbers, about = self._files(number)
            if not about.is_file():
                raise FileNotFoundError(
                    f"{about} does not exist; ranks must share the folder, and all must have finished extracting"
                )
            parts.append(np.load(features, mmap_mode="r", allow_pickle=False))
            rows.append(np.load(numbers, allow_pickle=False))
            unreadable |= read_json(about)["unreadable"]
        return FeatureTable(parts, np.concatenate(rows), unreadable)

    def _extract(self, missing: list[int], machine: Machine, progress: Callable[[int], None]) -> None:
        device, precise = machine.world.device, run_precision(self.extraction.precision, machine.world.device)
        wanted = Subset(self.source, [index for number in missing for index in self._range(number)])
        view, plan, batch = self.extraction.view, self.extraction.plan, _batch(machine)
        check_room(self.backbone, view.size, images=min(batch, len(wanted)))
        loader = view.loader(wanted, batch=batch, workers=machine.workers, pin_memory=device.type == "cuda")
        known = set(loader.skipped.reasons)
        features: list[Tensor] = []
        rows: list[NDArray[np.int64]] = []
        here = 0  # which of the missing shards is being filled

        def finish() -> None:
            nonlocal known
            new = {path: why for path, why in loader.skipped.reasons.items() if path not in known}
            known |= set(new)
            self._write(missing[here], features, rows, new)
            features.clear()
            rows.clear()

        for found in loader:
            while here < int(found.indexes[0]) // SHARD:
                finish()
                here += 1
            with precise():
                images = found.images.to(device, non_blocking=True)
                pixels = self.backbone.preprocess(view.crop(images))
                features.append(self._checked(plan.extract(self.backbone, pixels)))
            numbers = wanted.indexes[found.indexes.numpy()]
            rows.append(np.stack([numbers, found.labels.numpy()], axis=1))
            progress(len(numbers))
        while here < len(missing):
            finish()
            here += 1

    def _checked(self, features: Tensor) -> Tensor:
        kept = features.to(getattr(torch, self.extraction.stored)).cpu()
        if not kept.isfinite().all():
            way_out = "store them as float32" if features.isfinite().all() else "check the weights, or use fp32"
            raise InputError(f"features hold NaN or infinity in {self.extraction.stored}; {way_out}")
        return kept

    def _write(
        self, number: int, features: list[Tensor], rows: list[NDArray[np.int64]], unreadable: dict[str, str]
    ) -> None:
        plan = self.extraction.plan
        values = torch.cat(features).numpy() if features else np.zeros((0, plan.width), dtype=self.extraction.stored)
        numbers = np.concatenate(rows) if rows else np.zeros((0, 2), dtype=np.int64)
        files = self._files(number)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "about.json").is_file():
            write_json(self.folder / "about.json", self.about)
        for file, array in zip(files, (values, numbers), strict=False):
            write_atomically(file, lambda handle, array=array: np.save(handle, array, allow_pickle=False))
        about = {"features": sha256_of(files[0]), "rows": sha256_of(files[1]), "unreadable": unreadable}
        write_json(files[2], about | {"checksum": checksum_of(about)})

    def _is_whole(self, number: int) -> bool:
        features, numbers, about = self._files(number)
        try:
            stored = read_json(about)
            claimed = stored.pop("checksum")
            return (
                claimed == checksum_of(stored)
                and sha256_of(features) == stored["features"]
                and sha256_of(numbers) == stored["rows"]
            )
        except (OSError, ValueError, KeyError):
            return False

    def _range(self, number: int) -> range:
        return range(number * SHARD, min((number + 1) * SHARD, len(self.source)))

    def _files(self, number: int) -> tuple[Path, Path, Path]:
        stem = f"{number:05d}"
        return self.folder / f"{stem}.npy", self.folder / f"{stem}.rows.npy", self.folder / f"{stem}.json"


def images_checksum(source: ImageSource) -> str:
    """The same for the same names in the same order with the same labels."""
    digest = hashlib.sha256()
    for line in _lines(source):
        digest.update(line.encode())
    return digest.hexdigest()


def files_checksum(source: ImageSource) -> str | None:
    """The same for files of the same sizes and dates, so that replaced images are noticed; the fingerprint of a data
    set of somebody's own; None where nothing is read.

    One `stat` a file: 6 s for a million on two busy cores and a local disk. Reading contents would take as long as
    extracting the features.
    """
    indexes: NDArray[np.int64] = np.arange(len(source))
    while isinstance(source, Subset):
        indexes = source.indexes[indexes]
        source = source.source
    if isinstance(source, TarShards):
        files: Iterable[str] = map(str, source.shards)
    elif isinstance(source, ImageFolder):
        root, paths = str(source.root), source.paths
        files = (f"{root}/{paths[index]}" for index in indexes.tolist())
    elif isinstance(source, DatasetSource):
        return fingerprint(source)
    else:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(_size_and_date(file))
    return digest.hexdigest()


def _size_and_date(file: str) -> bytes:
    try:
        about = os.stat(file)  # noqa: PTH116 - a million Paths are slow
    except OSError:
        return b"gone\n"  # the loader says so when it comes to it
    return b"%d %d\n" % (about.st_size, about.st_mtime_ns)


def _lines(source: ImageSource) -> Iterator[str]:
    yield " ".join(source.classes) + "\n"
    for name, label in zip(source.names(), source.labels().numpy(), strict=True):
        yield f"{name} {label}\n"
