"""The building blocks of a study: families, training runs and their evaluation, as command lines."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mixlab.studies.scoring import score_run
from mixlab.studies.steps import Step

Training = Literal["dino", "supervised"]
COMMANDS: dict[Training, str] = {"dino": "pretrain", "supervised": "train"}
PROBE = (
    "--mode", "cached", "--blocks", "1", "4", "--lrs", "0.01", "0.1", "0.5", "--weight-decays", "0", "--batch", "256",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One way to mix tokens: its name in labels, in the zoo and in recipes, and the features that probes read."""

    label: str
    name: str
    strategies: tuple[str, ...] = ("cls", "mean")

    def recipe(self, kind: str, size: str = "mini") -> str:
        return f"{kind}_{self.name}_{size}"


# The slowest first, so that parallel processes finish at about the same time.
STUDY_FAMILIES = (
    Family("mambareg", "dinomambareg", ("cls", "mean", "registers")),
    Family("dinovim", "dinovim"),
    Family("gatedconv", "gatedconv", ("mean", "max")),
    Family("vit", "vit"),
    Family("linearvit", "linearvit"),
)


@dataclass(frozen=True, kw_only=True)
class StudyEffort:
    """How much work; the recipes say everything else."""

    least_images: int = 160  # for training: one batch, after a fifth became validation images
    training: tuple[str, ...] = ()  # settings of every training run
    dino: tuple[str, ...] = ()
    segment: tuple[str, ...] = ()
    tuned_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)  # for a batch of 256
    tuning_steps: dict[Training, int] = field(default_factory=lambda: {"dino": 500, "supervised": 400})
    narrow_dim: int = 64
    num_variant_seeds: int = 1  # of registers
    probe_epochs: int = 50
    auc_image: int = 112
    num_scored: int = 1000  # images with masks, at most
    rank_image: int = 512
    rank_chunk: int = 256
    depth: int | None = None  # of every family, where not the recipe's
    scaling: tuple[int, ...] = (64, 112, 224, 448)  # px
    scaling_tokens: int = 262144  # of a batch: enough that launching kernels does not count


FULL = StudyEffort()
QUICK = StudyEffort(
    least_images=20,
    training=("model.dim=64", "model.depth=4", "steps=2", "batch=8", "optim.warmup_steps=0", "log.every_steps=1"),
    dino=("method.num_prototypes=64", "method.num_local=1"),
    segment=("steps=2", "batch=2", "method.crop=64", "method.short_side=64", "method.channels=8",
             "method.auxiliary_channels=8", "optim.warmup_steps=1"),
    tuned_rates=(5e-4, 1e-3),
    tuning_steps={"dino": 2, "supervised": 2},
    narrow_dim=32,
    probe_epochs=2,
    auc_image=64,
    num_scored=8,
    rank_image=128,
    rank_chunk=64,
    depth=4,
    scaling=(64, 112),
    scaling_tokens=128,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a study runs, on what, and how much of it."""

    run: Path
    data: str  # train/ and val/ with class folders; without labels any folder
    masks: str
    labelled: bool
    voc: str | None = None  # images with the masks and the label maps of PASCAL VOC
    seeds: tuple[int, ...]
    device: str
    workers: int  # processes that read images, per step
    effort: StudyEffort = FULL
    families: tuple[Family, ...] = STUDY_FAMILIES
    rates: dict[str, dict[str, float]] = field(default_factory=dict)  # training: family: the tuned learning rate

    @property
    def here(self) -> tuple[str, ...]:
        return ("--workers", str(self.workers), "--device", self.device)

    @property
    def trains_here(self) -> tuple[str, ...]:
        precise = ("precision=fp32",) if self.device == "cpu" else ()
        return ("--device", self.device, *sets(f"data.workers={self.workers}", *precise))

    @property
    def variant_seeds(self) -> tuple[int, ...]:
        return self.seeds[: self.effort.num_variant_seeds]

    def having(self, *labels: str) -> tuple[Family, ...]:
        return tuple(family for family in self.families if family.label in labels)


@dataclass(frozen=True)
class Variant:
    """A family trained in one way, perhaps with another shape; its runs are LABEL-s0, LABEL-s1, ..."""

    family: Family
    training: Training = "dino"
    name: str = ""  # beside the family's: narrow, causal, ...
    settings: tuple[str, ...] = ()
    strategies: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        kind = "supervised" if self.training == "supervised" and not self.name else ""
        return "-".join(part for part in (self.family.label, self.name, kind) if part)

    def run(self, setting: Setting, seed: int) -> Path:
        return setting.run / f"{self.label}-s{seed}"


def sets(*settings: str) -> tuple[str, ...]:
    return tuple(part for setting in settings for part in ("--set", setting))


def train(
    setting: Setting,
    variant: Variant,
    seed: int,
    *,
    place: Path | None = None,
    data: str | None = None,
    rate: float | None = None,
    settings: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
) -> Step:
    """One training run, by default at the tuned learning rate."""
    effort, training, family = setting.effort, variant.training, variant.family
    place = place or variant.run(setting, seed)
    rate = rate or setting.rates.get(training, {}).get(family.label)
    chosen = [*effort.training, *(effort.dino if training == "dino" else ()), f"seed={seed}"]
    chosen += [f"optim.lr={rate:g}"] if rate else []
    arguments = (COMMANDS[training], family.recipe(training), "--data", data or setting.data, "--run", str(place))
    return Step(
        f"train {place.name}",
        f"{place.name}: train",
        "DINO without labels" if training == "dino" else "with labels",
        (*arguments, *sets(*chosen, *variant.settings, *settings)),
        place / "weights.safetensors",
        here=setting.trains_here,
        needs=needs,
        trains=place,
    )


def score_variant(setting: Setting, variant: Variant, seed: int, *, twin: bool, probe: bool = True) -> Iterator[Step]:
    """kNN and a linear probe of a run, and of its untrained twin, where there are labels."""
    if setting.labelled:
        run, strategies = variant.run(setting, seed), variant.strategies or variant.family.strategies
        heads = (*PROBE, "--strategies", *strategies, "--epochs", str(setting.effort.probe_epochs))
        yield from score_run(
            run, run.name, data=setting.data, seed=seed, heads=heads if probe else None, here=setting.here, twin=twin
        )


def score(
    setting: Setting, runs: list[Path], studies: tuple[str, ...], *, into: Path | None = None, needs: tuple[str, ...]
) -> Step:
    """Binary-AUC of some runs on the images with masks."""
    into = into or setting.run
    effort = setting.effort
    size = ("--image", str(effort.auc_image), "--num-images", str(effort.num_scored))
    names = tuple(map(str, runs))
    title = into.name if len(runs) == 1 else f"{len(runs)} runs"
    return Step(
        f"auc {into.name if into != setting.run else ''} {' '.join(studies)}".replace("  ", " "),
        f"{title}: Binary-AUC by {', '.join(studies)}",
        "do the maps find the foreground? compared with a centre prior and untrained twins",
        ("auc", *names, "--study", *studies, "--data", setting.masks, *size, "--run", str(into)),
        into / "results" / f"auc_{studies[-1]}.json",
        here=("--device", setting.device, "--batch", "64"),
        needs=needs,
    )
