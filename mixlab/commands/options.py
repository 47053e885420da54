"""Options that commands share, each declared and explained once: tyro makes options of the fields, and help of what is
written beside or below them. Imports of whatever needs torch are late, so that `--help` need not wait for it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import tyro

from mixlab.choices import NO_TARGET
from mixlab.commands.output import open_run
from mixlab.errors import InputError, check_counts
from mixlab.run import RunDirectory
from mixlab.training.slurm import SlurmConfig

if TYPE_CHECKING:
    import torch

    from mixlab.data.labelled import LabelledSplits
    from mixlab.evaluation.target import Target

T = TypeVar("T")
Flat = Annotated[T, tyro.conf.arg(name="")]  # a dataclass whose fields are options without a prefix
Settings = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
Device = Annotated[str | None, tyro.conf.arg(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]


@dataclass(frozen=True)
class OneTarget:
    """The network that a command measures, and where its results go."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """a run, an exported file, a zoo model (see `mixlab models`), shipped/NAME or timm/NAME; TARGET=LABEL sets the
    label in tables."""
    _: KW_ONLY
    weights: str | None = None
    """a weight file, if TARGET is a zoo model or timm/NAME; FILE::PART chooses a model in it, such as teacher."""
    training: str | None = None  # how the target was trained (dino, supervised, ...), if its run does not record it.
    device: Device = "auto"
    run: Path | None = None  # directory for results; default: the target if it is a run, else runs/look.

    def open_run(self) -> RunDirectory:
        return open_run(self.run, [self.target])

    def load(self, device: torch.device, seed: int) -> Target:
        from mixlab.evaluation.target import load_target

        return load_target(self.target, weights=self.weights, training=self.training, device=device, seed=seed)


@dataclass(frozen=True)
class LabelledTarget(OneTarget):
    """A network whose frozen features are classified."""

    data: str = "shapes"
    """shapes (drawn scenes), a folder with one sub-folder per class (with or without train/ and val/), wds:PATTERN
    (tar shards), or heldout:SOURCE (validates on a fifth of SOURCE's training images)."""
    val_data: str | None = None
    """another source of validation images; default: the val split, or every fifth image of each class."""
    workers: int | None = None  # data loading processes per rank; default: this rank's cores, less one.

    def splits(self) -> LabelledSplits:
        from mixlab.data.labelled import labelled_splits

        return labelled_splits(self.data, val_data=self.val_data)


@dataclass(frozen=True)
class SeveralTargets:
    """Networks side by side on the same images."""

    targets: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TARGET ...")]
    """runs, exported files, zoo models (see `mixlab models`), shipped/NAME or timm/NAME; TARGET=LABEL sets the label
    in tables and pictures."""
    _: KW_ONLY
    data: str = "shapes"
    """shapes (drawn scenes), a folder of images, wds:PATTERN (tar shards), or images with masks: a folder with both, a
    COCO JSON file, or FORMAT:PATH (FORMAT: masks, imagenet-s, voc, pets, coco or ade)."""
    image: int | None = None
    """image size in pixels; default: the first backbone's own size (`rank`: each backbone's own; `maps` of photographs:
    its largest multiple up to 192 px)."""
    weights: tuple[str, ...] = ()
    """NAME=FILE, a weight file for the target NAME; with one target, FILE is enough. FILE::PART chooses a model in it,
    such as teacher."""
    training: tuple[str, ...] = ()
    """LABEL=KIND, how a target was trained (dino, supervised, dinov2, ...), if its run does not record it."""
    device: Device = "auto"
    seed: int = 0  # seed of untrained targets, and of the untrained twins of targets without a recorded seed.
    run: Path | None = None
    """directory for results and figures; default: the target if it is a single run, else runs/look."""
    workers: int | None = None  # data loading processes per rank; default: this rank's cores, less one.

    def check(self) -> None:
        """Before anything is imported that takes seconds."""
        if not self.targets:
            raise InputError(NO_TARGET)

    def load(self, device: torch.device | None = None) -> list[Target]:
        from mixlab.evaluation.target import load_targets

        check_counts(image=self.image)
        chosen = self.device if device is None else str(device)
        return load_targets(self.targets, weights=self.weights, training=self.training, device=chosen, seed=self.seed)

    def open_run(self) -> RunDirectory:
        return open_run(self.run, self.targets)


@dataclass(frozen=True)
class DenseTarget(OneTarget):
    """The backbone of a dense task, and how the task is trained on it."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """a run (its backbone), an exported file, a zoo model (see `mixlab models`), shipped/NAME, timm/NAME, or a recipe
    such as segment_dinovim_tiny64 or detect_mambaout_femto64, whose backbone is trained from scratch."""
    _: KW_ONLY
    run: Path | None = None  # the directory of this run; default with --evaluate-only: the target itself.
    recipe: str | None = None
    """a recipe, or the config.json of a run; default: the papers' recipe (for shapes: a small one)."""
    set: Settings = ()  # a setting such as steps=2000 or seed=1; can be repeated.
    frozen: bool = False  # freeze the backbone; train only the neck and the heads.
    num_val: int | None = None
    """maximum number of validation images, evenly spaced; also for scores during training."""
    evaluate_only: bool = False  # evaluate a finished or stopped run of this command on this data, without training.


@dataclass(frozen=True)
class TrainingRun:
    """A recipe on data, and where it is trained."""

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """a recipe such as dino_dinovim_tiny64 or supervised_mambaout_tiny, or the config.json of another run."""
    _: KW_ONLY
    data: str
    """shapes (drawn scenes), a folder of images (for `train`: one sub-folder per class), wds:PATTERN (tar shards), or
    heldout:SOURCE (four fifths of SOURCE's training images)."""
    run: Path  # the directory of this run.
    set: Settings = ()  # a setting such as optim.lr=1e-3; can be repeated.
    device: Device = "auto"
    launcher: Literal["here", "slurm"] = "here"  # slurm submits the run as a job (needs the extra mixlab[slurm]).
    slurm: SlurmConfig = SlurmConfig()  # noqa: RUF009  frozen
    """resources to request from SLURM."""
