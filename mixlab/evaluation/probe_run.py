"""A probe from images to scores: features in one pass, the grid trained on them, the best head written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from mixlab.backbones.backbone import Backbone, Source
from mixlab.data.labelled import LabelledSplits
from mixlab.errors import InputError
from mixlab.evaluation.classifier import ProbeHead, save_head
from mixlab.evaluation.feature_cache import Extraction, FeatureCache, Stored
from mixlab.evaluation.feature_plan import FeaturePlan, head_inputs
from mixlab.evaluation.feature_table import FeatureTable
from mixlab.evaluation.head_grid import Head, HeadGrid
from mixlab.evaluation.head_sharing import collect_heads
from mixlab.evaluation.probe import SAVE_EVERY_S, Probe, Say
from mixlab.evaluation.probe_result import best_head, summarise_head
from mixlab.evaluation.probe_streams import AugmentedStream, CachedStream, FeatureStream
from mixlab.evaluation.target import weights_checksum
from mixlab.evaluation.views import (
    CROP_SHARE,
    CentreView,
    Precision,
    ProbeCrops,
    precision_in_use,
    run_precision,
)
from mixlab.training.distributed import World, from_all
from mixlab.training.stopping import StopRequests

Mode = Literal["augmented", "cached"]
LRS = (2.5e-4, 5e-4, 1e-3, 2e-3)  # Dino-Mamba, Table 5, as the next
WEIGHT_DECAYS = (0.0, 1e-3, 5e-3, 1e-2)
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """All that decides the outcome of a probe, beside the backbone and the data."""

    blocks: tuple[int, ...]
    strategies: tuple[str, ...]
    source: Source
    image: int
    mode: Mode = "augmented"
    lrs: tuple[float, ...] = LRS
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS
    epochs: int = 100
    batch: int = 1024  # over all ranks; DINO's 128 on each of 8
    seed: int = 0
    label_share: float = 1.0
    crop_share: float = CROP_SHARE
    load_size: int | None = None  # the side at which images are held for cropping; twice the crop's without it
    precision: Precision = "auto"
    stored: Stored = "float16"

    @property
    def view(self) -> CentreView:
        return CentreView(self.image, self.crop_share)


@dataclass(frozen=True)
class Machine:
    """Where and how a probe runs; none of it changes the outcome by more than rounding."""

    world: World
    folder: Path  # of this probe
    features: Path  # where extracted features are kept, for other probes too
    workers: int = 0
    extract_batch: int = 256
    resident: bool = False
    save_every_s: float = SAVE_EVERY_S


@dataclass(frozen=True)
class ProbeOutcome:
    """Every head with the images it gets right, bool (heads, n)."""

    heads: tuple[Head, ...]
    correct: Tensor
    finite: Tensor  # bool (heads,): training did not blow up
    plan: FeaturePlan
    batch: int  # as trained, which few images may make smaller
    num_train: int
    val_numbers: Tensor  # the images' places in the validation source, (n,)
    unreadable: dict[str, str]


def run_probe(
    backbone: Backbone,
    splits: LabelledSplits,
    settings: ProbeSettings,
    machine: Machine,
    *,
    data: str,
    stop: StopRequests,
    bar: Bar,
    say: Say = lambda text: None,
) -> ProbeOutcome:
    """Train and score the grid, going on where an earlier call stopped. `splits` are already cut to the label share."""
    world = machine.world
    inputs = head_inputs(backbone, settings.blocks, settings.strategies)
    plan = FeaturePlan.build(backbone, inputs, source=settings.source, image=settings.image)
    grid = HeadGrid(
        plan,
        lrs=settings.lrs,
        weight_decays=settings.weight_decays,
        num_classes=len(splits.classes),
        seed=settings.seed,
        world=world,
    )
    val = _table(backbone, splits, "val", plan, settings, machine, data, bar)
    if not len(val):
        raise InputError(f"none of the {len(splits.val)} images to recognise can be read; {next(iter(val.unreadable))}")
    stream = _stream(backbone, splits, plan, settings, machine, data, bar)
    probe = Probe(
        grid,
        stream,
        val,
        epochs=settings.epochs,
        folder=machine.folder,
        settings=_as_json(settings, backbone, splits, data),
        say=say,
        exact=settings.precision == "fp32",
        save_every_s=machine.save_every_s,
    )
    title = f"{len(grid.heads)} heads, {settings.mode}"
    with bar(title, probe.total_steps) as step:
        probe.train(stop, step)
    correct, finite = probe.score()
    unreadable = {path: why for part in from_all(stream.unreadable) for path, why in part.items()}
    outcome = ProbeOutcome(
        grid.heads,
        correct,
        finite,
        plan,
        stream.batch,
        stream.num_images,
        val.numbers,
        {**val.unreadable, **unreadable},
    )
    _write_best(grid, outcome, settings, splits, backbone, machine.folder / "best_head.safetensors")
    return outcome


def _stream(
    backbone: Backbone,
    splits: LabelledSplits,
    plan: FeaturePlan,
    settings: ProbeSettings,
    machine: Machine,
    data: str,
    bar: Bar,
) -> FeatureStream:
    world = machine.world
    if settings.mode == "cached":
        table = _table(backbone, splits, "train", plan, settings, machine, data, bar)
        return CachedStream(
            table, batch=_batch(settings.batch, len(table), world), seed=settings.seed, device=world.device
        )
    return AugmentedStream(
        splits.train,
        backbone=backbone,
        plan=plan,
        crops=ProbeCrops(settings.image, seed=settings.seed),
        batch=_batch(settings.batch, len(splits.train), world),
        seed=settings.seed,
        load_size=settings.load_size or 2 * settings.image,
        world=world,
        precise=run_precision(settings.precision, world.device),
        workers=machine.workers,
        resident=machine.resident,
    )


def _batch(asked: int, num_images: int, world: World) -> int:
    """The batch as asked, or as large as the images allow; the learning rate follows."""
    if num_images < world.size:
        raise InputError(f"{num_images} images to learn from are too few for {world.size} ranks")
    return min(asked, num_images // world.size * world.size)


def _table(
    backbone: Backbone,
    splits: LabelledSplits,
    which: Literal["train", "val"],
    plan: FeaturePlan,
    settings: ProbeSettings,
    machine: Machine,
    data: str,
    bar: Bar,
) -> FeatureTable:
    source = getattr(splits, which)
    precision = precision_in_use(settings.precision, machine.world.device)
    extraction = Extraction(plan, settings.view, precision, settings.stored)
    name = f"{data} [{which}]"
    cache = FeatureCache(machine.features, extraction, backbone=backbone, source=source, name=name)
    with bar(f"features, {which}", len(source)) as step:
        return cache.fill(
            world=machine.world,
            batch=machine.extract_batch,
            workers=machine.workers,
            precise=run_precision(precision, machine.world.device),
            progress=step,
        )


def _as_json(settings: ProbeSettings, backbone: Backbone, splits: LabelledSplits, data: str) -> dict[str, Any]:
    """What must not change when a probe goes on."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}
    about = {"backbone": backbone.name, "weights": weights_checksum(backbone), "data": data}
    sizes = {"num_train": len(splits.train), "num_val": len(splits.val), "num_classes": len(splits.classes)}
    return {**values, **about, **sizes}


def _write_best(
    grid: HeadGrid,
    outcome: ProbeOutcome,
    settings: ProbeSettings,
    splits: LabelledSplits,
    backbone: Backbone,
    path: Path,
) -> None:
    tensors = collect_heads(grid)
    if not grid.world.is_first:
        return
    number = best_head(outcome.correct, outcome.finite)
    head = grid.heads[number]
    row = [other for other, candidate in enumerate(grid.heads) if candidate.input == head.input].index(number)
    name = f"{head.blocks}/{head.strategy}"
    about = {
        **summarise_head(head, outcome.correct[number], seed=settings.seed),
        "backbone": backbone.name,
        "image": settings.image,
        "crop_share": settings.crop_share,
        "mode": settings.mode,
        "epochs": settings.epochs,
    }
    save_head(
        ProbeHead(
            tensors[f"{name}/weight"][row],
            tensors[f"{name}/bias"][row],
            head.input,
            settings.source,
            splits.classes,
            about,
        ),
        path,
    )
