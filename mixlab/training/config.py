"""What a training run is made of. Every field can be set on the command line: `--set optim.lr=1e-3`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights.reading import split_part
from mixlab.backbones.zoo import create_model
from mixlab.data.crops import MultiCrop
from mixlab.data.given import Data
from mixlab.data.images import parse_source
from mixlab.data.loader import BatchLoader
from mixlab.data.source import Source
from mixlab.errors import InputError
from mixlab.run.codec import check_values
from mixlab.training.optim import OPTIMIZERS
from mixlab.training.schedules import SCHEDULES

if TYPE_CHECKING:
    from mixlab.training.distributed import World
    from mixlab.training.live_scores import Scores
    from mixlab.training.precision import Precise
    from mixlab.training.recipe import Recipe

TrainingPrecision = Literal["bf16", "fp32", "fp64"]
Sharding = Literal["ddp", "fsdp"]


def check_numbers(
    config: Any,
    prefix: str = "",
    *,
    at_least: Mapping[str, int] | None = None,
    above_zero: Sequence[str] = (),
    shares: Sequence[str] = (),
) -> None:
    """Refuse values of another type, and numbers that cannot work, by the names of their settings: below a number, not
    above 0, or not from 0 to 1. None passes where a setting may be None; NaN and infinity never do.
    """
    check_values(type(config), {part.name: getattr(config, part.name) for part in fields(config)}, prefix=prefix)
    for name, low in (at_least or {}).items():
        value = getattr(config, name)
        if value is not None and not low <= value < math.inf:
            raise InputError(f"{prefix}{name} is {value}; give {'at least 1' if low == 1 else f'{low} or more'}")
    for name in above_zero:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{prefix}{name} is {value}; give a number above 0")
    for name in shares:
        value = getattr(config, name)
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{prefix}{name} is {value}; give a number from 0 to 1")


class Watch(Protocol):
    """Checks the logged metrics for signs of failure."""

    def look(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Warnings to print."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ABC):
    """A training method. By default its samples are images, the live score is kNN, and nothing is watched.

    `mixlab pretrain` runs it, on images without labels; with `command = "train"`, `mixlab train`, which expects the
    network of its recipe to be a classifier: images to logits (B, K).
    """

    kind: ClassVar[str]  # its name in files, and in the table `mixlab.evaluation.methods.METHODS`
    title: ClassVar[str]  # its name in messages
    label: ClassVar[str] = ""  # its name in the titles of charts; without one, `title`
    command: ClassVar[str] = "pretrain"  # which `mixlab` command runs its recipes
    shown: ClassVar[tuple[str, ...]] = ("knn_accuracy",)  # the scores that a progress bar shows
    curves: ClassVar[Mapping[str, tuple[str, str]]] = {}  # metrics that a report draws beside the loss: title and unit
    earlier: ClassVar[Mapping[str, Any]] = {}  # settings that are newer than some runs: what those did
    unused: ClassVar[tuple[str, ...]] = ()  # settings of a run, by their dotted names, that make no difference here

    @property
    @abstractmethod
    def image(self) -> int:
        """The side in pixels of the images on which the trained backbone is evaluated."""

    @abstractmethod
    def build(self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int) -> Recipe:
        """A fresh recipe around a backbone, for a run of `total_steps`, which may be less than an epoch."""

    def open(self, data: Data) -> Source[Any]:
        """The samples to train on."""
        return parse_source(data)

    def crops(self) -> MultiCrop:
        """The views that are cut from each image; a method that cuts none has a `loader` of its own."""
        raise NotImplementedError

    def loader(self, source: Any, config: TrainConfig, *, world: World) -> BatchLoader[Any]:
        """This rank's batches of what `open` gave."""
        from mixlab.training.batches import build_loader  # which reads this module

        return build_loader(source, config, self.crops(), world=world)

    def scores(self, data: Data, source: Any, config: TrainConfig, *, world: World, precise: Precise) -> Scores:
        """What to measure during a run."""
        from mixlab.training.live_scores import KnnScores  # which reads this module

        return KnnScores(data, source, config, world=world, precise=precise)

    def watch(self) -> Watch | None:
        """A check for runs that fail without an error; None for none."""
        return None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A name of `mixlab models`, or `timm/<name>`, and any field of its own config: `--set model.dim=64`."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None  # a file of weights (FILE::PART for one of its models), or a finished run, to start from

    def build(self) -> Backbone:
        """A backbone, fresh or with the weights to start from."""
        path = None if self.weights is None else Path(self.weights)
        if path is not None and path.is_dir():
            path = path / "weights.safetensors"
        if path is not None and not split_part(path)[0].is_file():
            raise FileNotFoundError(f"model.weights: there is no {path}; give a file of weights, or a finished run")
        return create_model(self.name, weights=path, **self.fields)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    size: int | None = None  # pixels: squash images to this size before crops are cut; None: from the image as it is
    workers: int | None = None  # data loading processes per rank; None: this rank's cores, less one
    resident: bool = False  # the whole set in the device's memory
    skip_limit: float = 0.01  # the share of unreadable images that stops the run

    def __post_init__(self) -> None:
        check_numbers(self, "data.", at_least={"size": 1, "workers": 0}, shares=("skip_limit",))


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """A linear warm-up, then `decay`; the weight decay follows a cosine of its own."""

    # adamw; muon: for matrices between the first and the last layer, adamw for the rest; a plugin's
    name: str = "adamw"
    lr: float
    lr_batch: int = 256  # `lr` is meant for this batch and grows in proportion
    min_lr: float = 1e-6
    # cosine: from the end of the warm-up (DINO); cosine_by_epoch: timm's, see `training.schedules`; poly: linearly to
    # `min_lr`; drops: to a tenth after each of `drop_epochs`; a plugin's
    decay: str = "cosine"
    drop_epochs: tuple[int, int] = (8, 11)  # of 12: the 1x schedule
    warmup_epochs: int = 10
    warmup_steps: int | None = None  # instead of `warmup_epochs`
    warmup_start: float = 0.0  # the share of `lr` at step 0
    weight_decay: float
    weight_decay_end: float
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None  # largest norm of each parameter's gradient

    def __post_init__(self) -> None:
        not_negative = ("min_lr", "warmup_epochs", "warmup_steps", "weight_decay", "weight_decay_end")
        at_least = {"lr_batch": 1, **dict.fromkeys(not_negative, 0)}
        check_numbers(self, "optim.", at_least=at_least, above_zero=("lr", "clip"), shares=("warmup_start",))
        for setting, given, table in (("name", self.name, OPTIMIZERS), ("decay", self.decay, SCHEDULES)):
            if given not in table:
                raise InputError(
                    f"optim.{setting} is {given!r}; choose one of {', '.join(table)}, or load the plugin that adds it "
                    "(mixlab --import)"
                )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"optim.betas are {self.betas}; give two numbers from 0 to below 1, such as 0.9,0.999")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often a checkpoint is written, and how many are kept."""

    every_steps: int = 500
    every_minutes: float | None = None  # also after so many minutes, whichever comes first
    keep: int = 3

    def __post_init__(self) -> None:
        check_numbers(self, "checkpoint.", at_least={"every_steps": 1, "keep": 1}, above_zero=("every_minutes",))


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """How often metrics are logged, and where."""

    every_steps: int = 10  # metrics are copied from the device this often
    tensorboard: bool = True  # where it is installed
    wandb: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, "log.", at_least={"every_steps": 1})


@dataclass(frozen=True, kw_only=True)
class KnnConfig:
    """The live kNN score of the exported backbone, where the data has labels.

    Queries are validation images; where there are none, training images: then the score shows progress alone.
    """

    every_epochs: int = 10  # 0: never
    bank: int = 20_000  # neighbours: maximum number of training images
    queries: int = 5_000  # maximum number of validation images
    k: int = 20  # DINO
    temperature: float = 0.07  # DINO

    def __post_init__(self) -> None:
        at_least = {"every_epochs": 0, "bank": 1, "queries": 1, "k": 1}
        check_numbers(self, "knn.", at_least=at_least, above_zero=("temperature",))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole training run, without its data and its directory."""

    method: MethodConfig
    model: ModelConfig
    optim: OptimConfig
    data: DataConfig = field(default_factory=DataConfig)
    epochs: int = 0
    steps: int | None = None  # of the optimiser; where given, they count instead of `epochs`
    batch: int  # images per step over all ranks
    accumulate: int = 1  # passes that share one step, to fit a batch into memory
    seed: int = 0
    precision: TrainingPrecision = "bf16"
    compile: bool = False
    graph: bool | None = None  # a pass as one CUDA graph, so that launches take no time; None: wherever it can be one
    activation_checkpointing: bool = False
    keep_scans: bool | None = None  # of Mamba-2, for the backward pass: faster, for memory; None: where there is room
    sharding: Sharding = "ddp"
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    knn: KnnConfig = field(default_factory=KnnConfig)

    def __post_init__(self) -> None:
        length = "epochs" if self.steps is None else "steps"
        check_numbers(self, at_least={length: 1, "batch": 1, "accumulate": 1, "seed": 0})
        by_epochs = self.steps is None and self.optim.warmup_steps is None
        if by_epochs and self.optim.warmup_epochs > self.epochs:
            raise InputError(
                f"{self.optim.warmup_epochs} warm-up epochs do not fit into {self.epochs}; "
                f"set optim.warmup_epochs to at most {self.epochs}"
            )

    def warmup_steps(self, steps_per_epoch: int) -> int:
        given = self.optim.warmup_steps
        return given if given is not None else self.optim.warmup_epochs * steps_per_epoch

    def total_steps(self, steps_per_epoch: int) -> int:
        return self.steps if self.steps is not None else self.epochs * steps_per_epoch

    def part_size(self, world_size: int) -> int:
        """Images in one pass on one rank."""
        parts = world_size * self.accumulate
        if self.batch % parts:
            near = max(self.batch // parts, 1) * parts
            raise InputError(
                f"a batch of {self.batch} cannot be shared by {world_size} ranks x {self.accumulate} passes; "
                f"set batch={near}"
            )
        return self.batch // parts
