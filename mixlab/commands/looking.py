"""What `rank`, `maps` and `auc` share: targets as subjects, images to look at, and where results go."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from mixlab.analysis.subjects import UNTRAINED, Subject
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.isotropic import Isotropic
from mixlab.backbones.timm_backbone import TimmBackbone
from mixlab.commands.output import console
from mixlab.commands.targets import Target, load_target, split_target
from mixlab.data.images import parse_source
from mixlab.data.mask_formats import parse_masks
from mixlab.data.unreadable import SkippedImages, UnreadableImage
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from mixlab.run.directory import flat_records
from mixlab.training.distributed import choose_device, make_current

DEFAULT_RUN = Path("runs/look")
T = TypeVar("T")


def load_subjects(
    targets: Sequence[str],
    *,
    weights: str | None = None,
    training: Sequence[str] = (),
    device: str | None = "auto",
    seed: int = 0,
) -> list[Subject]:
    """Every TARGET as a subject. A run's config says how it was trained, unless `training` does (LABEL=KIND).

    The seed is of what is untrained.
    """
    if not targets:
        raise InputError("no target given; name a run, a model of the zoo (`mixlab models`), shipped/NAME or timm/NAME")
    if weights and len(targets) > 1:
        raise InputError(f"--weights {weights} goes with one target, got {len(targets)}; look at them one by one")
    said = dict(_pair(text) for text in training)
    where = choose_device(device)
    make_current(where)
    subjects = [_subject(text, load_target(text, weights=weights, seed=seed), said, where) for text in targets]
    labels = [subject.label for subject in subjects]
    if len(set(labels)) < len(labels):
        raise InputError(f"two targets share a label among {', '.join(labels)}; write TARGET=LABEL to tell them apart")
    unknown = sorted(set(said) - set(labels))
    if unknown:
        raise InputError(f"--training names {', '.join(unknown)}, the labels are {', '.join(labels)}")
    return subjects


def own_size(backbone: Backbone) -> int:
    """The image side that a backbone was made for."""
    if isinstance(backbone, Isotropic):
        return backbone.config.image
    if isinstance(backbone, TimmBackbone):
        config: Any = backbone.model.pretrained_cfg
        return int(config["input_size"][-1])
    return 224


def read_images(
    data: str, *, size: int, num_images: int, fit: str = "squash"
) -> tuple[Tensor, Tensor | None, list[str]]:
    """The first images uint8 (n, 3, S, S) of a source, their masks (n, S, S) where it has masks, and their names."""
    try:
        source = parse_masks(data)
    except (ValueError, OSError) as no_masks:
        try:
            return _plain_images(data, size, num_images, fit)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}. As a set with masks: {no_masks}") from error
    items = read_first(data, lambda index: source.load(index).fitted(size, fit), total=len(source), most=num_images)
    images, masks = (torch.stack([getattr(item, part) for item in items]) for part in ("image", "mask"))
    return images, masks, [item.name for item in items]


def read_first(data: str, load: Callable[[int], T], *, total: int, most: int) -> list[T]:
    """What the first numbers of a source give; those that cannot be read are skipped, and named."""
    found: list[T] = []
    skipped = SkippedImages(total=total, limit=1.0)
    for index in range(total):
        if len(found) >= most:
            break
        try:
            found.append(load(index))
        except UnreadableImage as error:
            skipped.add(error)
    if not found:
        raise InputError(f"{data!r} holds no image that can be read. {skipped.summary()}")
    if len(skipped):
        console.print(skipped.summary())
    return found


def open_run(run: Path | None, targets: Sequence[str]) -> RunDirectory:
    """Where results go: as asked, into the run itself if it is the only target, else into runs/look."""
    names = [split_target(text)[0] for text in targets]
    if run is None and len(names) == 1 and Path(names[0]).is_dir():
        run = Path(names[0])
    place = run or DEFAULT_RUN
    try:
        directory = RunDirectory.create(place)
    except OSError as error:
        raise OSError(f"cannot write to {place} ({error.strerror or error}); choose another --run") from error
    folders = (place, place / "results", place / "figures")
    if not all(os.access(folder, os.W_OK) for folder in folders if folder.is_dir()):
        raise PermissionError(f"{place} may not be written to; choose another --run")
    return directory


def check_counts(**counts: int | None) -> None:
    """Refuse numbers below one, by the names of their options."""
    for name, number in counts.items():
        if number is not None and number < 1:
            raise InputError(f"--{name.replace('_', '-')} is {number}; give at least 1")


def file_name(label: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^\w.-]+", "_", label)


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Any]:
    """Yield a function that moves the bar on by so many steps, with an optional note."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)

        def step(count: int = 1, note: str | None = None) -> None:
            progress.update(task, advance=count, description=note or description)

        yield step


def _subject(text: str, target: Target, said: dict[str, str], device: torch.device) -> Subject:
    place = Path(split_target(text)[0])
    config: dict[str, Any] = {}
    records: list[dict[str, Any]] = []
    if place.is_dir():
        run = RunDirectory(place)
        config = run.read_config() if (place / "config.json").is_file() else {}
        records = [record for result in run.results().values() for record in flat_records(result, place)]
    probes = [record for record in records if record.get("metric") == "probe_top1"]
    by_register = {record["register"]: record["value"] for record in probes if record.get("register") is not None}
    seed = config.get("seed")
    return Subject(
        label=target.label,
        backbone=target.model.to(device),
        training=said.get(target.label) or target.training or _training_of(config, target.weights),
        seed=seed if isinstance(seed, int) else None,
        probe_accuracy=max((record["value"] for record in probes if record.get("register") is None), default=None),
        register_accuracies=tuple(by_register[index] for index in sorted(by_register)),
    )


def _training_of(config: dict[str, Any], weights: str | None) -> str:
    """How a run was trained: the method in its config; other weights are "trained", no weights "untrained"."""
    method = config.get("settings", {}).get("method", {}).get("kind")
    return str(method) if method else UNTRAINED if weights is None else "trained"


def _pair(text: str) -> tuple[str, str]:
    label, equals, kind = text.rpartition("=")
    if not (label and equals and kind):
        raise InputError(f"--training {text!r} must be LABEL=KIND, such as vit_tiny=dino or vit_tiny=supervised")
    return label, kind


def _plain_images(data: str, size: int, num_images: int, fit: str) -> tuple[Tensor, None, list[str]]:
    source = parse_source(data, split="val")

    def load(index: int) -> tuple[Tensor, str]:
        return source.load_fitted(index, size, fit)[0], source.name(index)

    images, names = zip(*read_first(data, load, total=len(source), most=num_images), strict=True)
    return torch.stack(images), None, list(names)
