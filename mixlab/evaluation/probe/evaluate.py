"""A linear probe from images to scores: features in one pass, the grid trained on them, the best head written."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from mixlab.backbones.backbone import Backbone
from mixlab.data.given import AnyData
from mixlab.data.labelled import LabelledSplits, labelled_splits
from mixlab.errors import InputError, check_kind, counted
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.feature_cache import Extraction, check_batch, describe_needs, extract_features
from mixlab.evaluation.features import FeaturePlan, FeatureTable, head_inputs, published_source
from mixlab.evaluation.machine import CentreView, Machine, Say, precision_in_use, run_precision
from mixlab.evaluation.probe.heads import HeadGrid, collect_heads
from mixlab.evaluation.probe.result import GridScores, ProbeMode, ProbeResult
from mixlab.evaluation.probe.training import (
    SAVE_EVERY_S,
    AugmentedStream,
    CachedStream,
    FeatureStream,
    ProbeCrops,
    ProbeTrainer,
)
from mixlab.evaluation.probe_head import ProbeHead, save_head
from mixlab.evaluation.settings import BATCH, FEW_IMAGES, ProbeSettings
from mixlab.evaluation.target import Target, as_target, network_digest, weights_checksum
from mixlab.run.codec import differences
from mixlab.run.files import read_json, write_json
from mixlab.run.lock import RunLock
from mixlab.signals import StopRequests
from mixlab.training.distributed import World, entries_of_all, from_first
from mixlab.training.knn import fitting_ks, knn_correct
from mixlab.training.precision import matrix_products

NEIGHBOURS = 10  # of the kNN that a probe on few images is compared with
STORED: Literal["float16"] = "float16"  # features of plain images
MODES: dict[str, tuple[ProbeMode, ...]] = {
    "augmented": ("augmented",),
    "cached": ("cached",),
    "both": ("augmented", "cached"),
}


def stored_settings(settings: ProbeSettings, backbone: Backbone, splits: LabelledSplits) -> dict[str, Any]:
    """What must be the same when a probe resumes, as settings.json stores it."""
    decided = {"num_train", "num_val", "heads"}  # which images and inputs these led to is what counts
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
        if name not in decided
    }
    network = {"weights": weights_checksum(backbone), "network": network_digest(backbone)}
    about = {"stored": STORED, "backbone": backbone.name, **network}
    data = " ".join(filter(None, (splits.data, splits.val_data)))
    sizes = {"num_train": len(splits.train), "num_val": len(splits.val), "num_classes": len(splits.classes)}
    crops = {} if settings.mode == "cached" else {"load_size": settings.load_size or 0}
    return {**values, **about, **crops, "data": data, **sizes}


def evaluate_linear_probe(
    target: Target | Backbone,
    data: AnyData | LabelledSplits,
    settings: ProbeSettings = ProbeSettings(),  # noqa: B008  frozen
    *,
    machine: Machine | None = None,
    folder: str | Path | None = None,
    resident: bool = False,
    save_every_s: float = SAVE_EVERY_S,
    stop: StopRequests | None = None,
) -> ProbeResult:
    """Train linear probes on frozen features and score each on the validation images.

    `data` is labelled images: a name as for `--data`, a `Source`, a data set of (image, label), a mapping of "train"
    and "val", or `labelled_splits` of these. With a `folder`, a stopped call resumes there, and the best head of each
    mode is kept. A folder that holds a probe with other settings is not changed: FOLDER_2 is used, and so on.
    `resident` holds all training images in the device's memory. Raises `Stopped`, with everything saved, after a signal
    while heads are trained, or a request to `stop`.
    """
    check_kind(settings, ProbeSettings, "give mixlab.ProbeSettings(...)")
    found, splits = as_target(target), labelled_splits(data)
    backbone = found.backbone
    machine = machine or Machine.of(backbone)
    cut = settings.cut(splits)
    settings = settings.for_data(len(cut.train))
    protocol = settings.probe_protocol(backbone, splits, machine.world.device)
    full = settings.for_backbone(backbone)
    scores: dict[ProbeMode, GridScores] = {}
    with ExitStack() as stack:
        if folder is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            place = from_first(choose_folder(Path(folder), full, backbone, cut, machine.say))
        if machine.world.is_first:
            place.mkdir(parents=True, exist_ok=True)
            stack.enter_context(RunLock(place))
        for mode in MODES[settings.mode]:
            run = _ProbeRun(backbone, cut, replace(full, mode=mode), machine, place / mode, resident)
            scores[mode] = run.scores(stop, save_every_s)
    return ProbeResult(
        subject=found.subject,
        seed=found.seed,
        protocol=protocol,
        scores=scores,
        num_classes=len(splits.classes),
        unknown_classes=splits.unknown,
        absent_classes=splits.absent,
        published=found.published and full.source == published_source(backbone) and not full.load_size,
        folder=None if folder is None else place,
    )


def choose_folder(folder: Path, settings: ProbeSettings, backbone: Backbone, splits: LabelledSplits, say: Say) -> Path:
    """FOLDER if it is free or holds this very probe, else the first of FOLDER_2, FOLDER_3, ... that is or does."""
    for number in count(1):
        place = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        changed: dict[str, tuple[Any, Any]] = {}
        for mode in MODES[settings.mode]:
            file = place / mode / "settings.json"
            if file.is_file():
                stored, now = read_json(file), stored_settings(replace(settings, mode=mode), backbone, splits)
                if mode == "augmented" and stored.get("load_size", 0) is None:  # what the default once was
                    stored["load_size"] = 2 * stored["image"]
                changed |= differences(stored, {key: now[key] for key in now if key in stored})  # older ones say less
            elif any((place / mode / "checkpoints").glob("step-*.json")):
                changed[str(file)] = ("there", "gone")
        if not changed:
            return place
        listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
        say(f"{place} holds a probe with other settings ({listed}); this one gets another folder")
    raise AssertionError


@dataclass(frozen=True)
class _ProbeRun:
    """One mode of a probe; `settings` are those for the backbone, and `splits` are cut to what they ask for."""

    backbone: Backbone
    splits: LabelledSplits
    settings: ProbeSettings
    machine: Machine
    folder: Path
    resident: bool

    @property
    def view(self) -> CentreView:
        return self.settings.view(self.backbone)

    def scores(self, stop: StopRequests | None, save_every_s: float) -> GridScores:
        """Train and score the grid, resuming where an earlier call stopped."""
        settings, world = self.settings, self.machine.world
        sources = (self.splits.train, self.splits.val) if settings.mode == "cached" else (self.splits.val,)
        check_batch(self.backbone, self.view, sources, self.machine)
        inputs = head_inputs(self.backbone, settings.blocks, settings.strategies)
        plan = FeaturePlan.build(
            self.backbone, inputs, source=settings.read_source(self.backbone), image=self.view.size
        )
        grid = HeadGrid(
            plan,
            lrs=settings.lrs,
            weight_decays=settings.weight_decays,
            num_classes=len(self.splits.classes),
            seed=settings.seed,
            world=world,
        )
        if needs := describe_needs(self._extraction(plan), sources, self.machine):
            self.machine.say(needs)
        heads = f"{counted(grid.heads, 'head', 'heads')} of {len(self.splits.classes):,} classes"
        self.machine.say(f"{heads}, {self._cost(plan, grid)}")
        val = self._table("val", plan)
        stream = self._stream(plan)
        if world.is_first and not (self.folder / "settings.json").is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "settings.json", stored_settings(settings, self.backbone, self.splits))
        trainer = ProbeTrainer(
            grid,
            stream,
            val,
            epochs=settings.epochs,
            folder=self.folder,
            say=self.machine.say,
            exact=settings.precision == "fp32",
            save_every_s=save_every_s,
        )
        listening = StopRequests() if stop is None else nullcontext(stop)
        with (
            self.machine.bar(f"{counted(grid.heads, 'head', 'heads')}, {settings.mode}", trainer.total_steps) as step,
            listening as asked,
        ):
            trainer.train(asked, step)
        correct, finite = trainer.score()
        found = GridScores(
            grid.heads,
            correct,
            finite,
            plan,
            batch=stream.batch,
            num_train=stream.num_images,
            val_numbers=val.numbers,
            unreadable={**val.unreadable, **entries_of_all(stream.unreadable)},
        )
        found = replace(found, knn=self._neighbours(found, val))
        self._write_best(grid, found)
        return found

    def _cost(self, plan: FeaturePlan, grid: HeadGrid) -> str:
        """What the probe will take, from the time of a small batch and of one step; on a CPU, what would be quicker."""
        settings, world = self.settings, self.machine.world
        device, number, unseen = world.device, len(self.splits.train), len(self.splits.val)
        batch = _batch(settings.batch or BATCH, number, world)
        with matrix_products(exact=settings.precision == "fp32"):
            heads = settings.epochs * max(1, number // batch) * grid.seconds_of_step(batch)
        blank = next(self.backbone.parameters()).new_zeros(4, self.backbone.channels, self.view.size, self.view.size)
        with run_precision(settings.precision, device)():
            plan.extract(self.backbone, blank)
            start = time.perf_counter()
            plan.extract(self.backbone, blank).cpu()
        each = (time.perf_counter() - start) / len(blank) / world.size
        epochs, images = counted(settings.epochs, "epoch", "epochs"), counted(number, "image", "images")
        what = f"{epochs} of {images} in batches of {batch}"
        once, every = each * (number + unseen), each * (settings.epochs * number + unseen)
        if settings.mode == "cached":
            return f"cached: {what}, each image through the network once, {_estimate(once, heads)}"
        note = f"augmented: {what}, each through the network every time, {_estimate(every, heads)}"
        return note if device.type != "cpu" else f"{note}; --mode cached passes each once, {_estimate(once, heads)}"

    def _neighbours(self, scores: GridScores, val: FeatureTable) -> Accuracy | None:
        """kNN in the features that the best head reads, where training images are few: a probe should not be below."""
        if len(self.splits.train) >= FEW_IMAGES or self.machine.world.size > 1:
            return None
        chosen = scores.heads[scores.best].input
        tables = [
            FeatureTable.from_tensors(scores.plan.take(table.all().float(), chosen), table.labels)
            for table in (self._table("train", scores.plan), val)
        ]
        (k,) = fitting_ks((NEIGHBOURS,), len(tables[0]))
        device, num_classes = self.machine.world.device, len(self.splits.classes)
        return Accuracy.of(knn_correct(*tables, num_classes=num_classes, ks=(k,), device=device)[k])

    def _stream(self, plan: FeaturePlan) -> FeatureStream:
        settings, world = self.settings, self.machine.world
        if settings.mode == "cached":
            table = self._table("train", plan)
            batch = _batch(settings.batch or BATCH, len(table), world)
            return CachedStream(table, batch=batch, seed=settings.seed, device=world.device)
        return AugmentedStream(
            self.splits.train,
            backbone=self.backbone,
            plan=plan,
            crops=ProbeCrops(self.view.size, seed=settings.seed, load_size=settings.load_size or None),
            batch=_batch(settings.batch or BATCH, len(self.splits.train), world),
            machine=self.machine,
            precise=run_precision(settings.precision, world.device),
            resident=self.resident,
        )

    def _extraction(self, plan: FeaturePlan) -> Extraction:
        precision = precision_in_use(self.settings.precision, self.machine.world.device)
        return Extraction(plan, self.view, precision, STORED)

    def _table(self, which: Literal["train", "val"], plan: FeaturePlan) -> FeatureTable:
        extraction = self._extraction(plan)
        source, name = getattr(self.splits, which), self.splits.name(which)
        return extract_features(self.backbone, source, extraction, name=name, machine=self.machine)

    def _write_best(self, grid: HeadGrid, scores: GridScores) -> None:
        tensors = collect_heads(grid)
        if not grid.world.is_first:
            return
        settings, number = self.settings, scores.best
        head = grid.heads[number]
        row = [other for other, candidate in enumerate(grid.heads) if candidate.input == head.input].index(number)
        name = f"{head.blocks}/{head.strategy}"
        about = {
            **head._asdict(),
            **scores.accuracy(number).to_json(),
            "backbone": self.backbone.name,
            "image": settings.image,
            "crop_share": settings.crop_share,
            "mode": settings.mode,
            "epochs": settings.epochs,
            "label_share": settings.label_share,
        }
        weight, bias = tensors[f"{name}/weight"][row], tensors[f"{name}/bias"][row]
        probe = ProbeHead(weight, bias, head.input, scores.plan.source, self.splits.classes, about)
        save_head(probe, self.folder / "best_head.safetensors")


def _estimate(network: float, heads: float) -> str:
    """Seconds of both in words."""
    return f"about {_duration(network + heads)}, of which the heads take {_duration(heads)}"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 100 else f"{max(1, round(seconds))} s"


def _batch(asked: int, num_images: int, world: World) -> int:
    """The requested batch, or the number of images if that is smaller; the learning rate is scaled accordingly."""
    if asked < 1:
        raise InputError(f"a batch of {asked} images trains nothing; give at least 1")
    if num_images < world.size:
        raise InputError(f"{num_images} training images are too few for {world.size} ranks; start fewer")
    return min(asked, num_images // world.size * world.size)
