"""What studies share: families of mixers, how much work there is, and measurements of trained runs as command lines."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mixlab.studies.steps import Step, sets

Training = Literal["dino", "supervised"]
TUNING_SEED = 100  # none of those that are compared
RANKED = ("vit", "linearvit", "dinovim", "mambareg")  # labels of those whose ranks are measured


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
    auc_image: int | None = 112  # None: the size that the networks were made for
    num_scored: int = 1000  # images with masks, at most
    rank_image: int = 512
    rank_chunk: int = 256
    depth: int | None = None  # of every family, where not the recipe's
    scaling: tuple[int, ...] = (64, 112, 224, 448)  # px
    scaling_tokens: int = 262144  # of a batch: enough that launching kernels does not count

    @property
    def scored(self) -> tuple[str, ...]:
        """Size and number of the images that maps are scored on, as `mixlab auc` takes them."""
        size = () if self.auc_image is None else ("--image", str(self.auc_image))
        return (*size, "--num-images", str(self.num_scored))


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
    effort: StudyEffort = field(default_factory=StudyEffort)
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


def score(
    setting: Setting, runs: list[Path], studies: tuple[str, ...], *, into: Path | None = None, needs: tuple[str, ...]
) -> Step:
    """Binary-AUC of some runs on the images with masks."""
    into = into or setting.run
    effort = setting.effort
    names = tuple(map(str, runs))
    title = into.name if len(runs) == 1 else f"{len(runs)} runs"
    return Step(
        f"auc {into.name if into != setting.run else ''} {' '.join(studies)}".replace("  ", " "),
        f"{title}: Binary-AUC by {', '.join(studies)}",
        "do the maps find the foreground? compared with a centre prior and untrained twins",
        ("auc", *names, "--study", *studies, "--data", setting.masks, *effort.scored, "--run", str(into)),
        into / "results" / f"auc_{studies[-1]}.json",
        here=("--device", setting.device, "--batch", "64"),
        needs=needs,
    )


def map_studies(family: Family) -> tuple[str, ...]:
    """The studies of Binary-AUC by the parts of a network, as far as the family has them."""
    wanted = {"register": "registers" in family.strategies, "head": "cls" in family.strategies, "layer": True}
    return tuple(study for study, there in wanted.items() if there)


def shifts_step(setting: Setting, run: Path, needs: tuple[str, ...]) -> Step:
    head = run / "probe" / "cached" / "best_head.safetensors"  # of every run, trained with labels or without
    return Step(
        f"shifts {run.name}",
        f"{run.name}: changed images",
        "accuracy of the probe on grey, blurred, noisy and pale images, and on edges",
        ("robust", f"{run}={run.name}", "--shifts", setting.data),
        run / "results" / f"shifts_{run.name}.json",
        here=(*setting.here, "--batch", "256", "--head", str(head)),
        needs=needs,
        reads=((f"probe {run.name}", run / "probe"),),
    )


def cost_step(setting: Setting, models: Iterable[str]) -> Step:
    """Of each LABEL=RECIPE."""
    effort = setting.effort
    return Step(
        "cost",
        "speed and memory against tokens",
        "forward alone, and forward with backward, at rising image sizes; alone on the machine",
        ("scaling", str(setting.run), ",".join(map(str, effort.scaling)), str(effort.scaling_tokens), *models),
        setting.run / "results" / "scaling.json",
        here=(setting.device,),
        alone=True,
    )


def rank_step(setting: Setting, run: Path, depth: int, needs: tuple[str, ...] = (), *, whole: bool = False) -> Step:
    """Ranks of a run at each quarter of its depth, with those of whole matrices if asked."""
    effort = setting.effort
    layers = sorted({max(1, round((effort.depth or depth) * quarter / 4)) - 1 for quarter in (1, 2, 3, 4)})
    size = ("--image", str(effort.rank_image), "--chunk", str(effort.rank_chunk), "--num-images", "1")
    return Step(
        f"rank {run.name}",
        f"{run.name}: ranks",
        "what is the rank of off-diagonal blocks?",
        (
            "rank",
            str(run),
            "--data",
            setting.masks,
            *size,
            "--layers",
            *map(str, layers),
            *(["--whole"] if whole else []),
        ),
        run / "results" / f"rank_{run.name}.json",
        here=("--device", setting.device),
        needs=needs,
    )


def ledger_step(setting: Setting, *, without: Collection[str] = ()) -> Step:
    """Every claim against every run that is there, but for those in folders of these names."""
    runs = [place for place in finished_runs(setting.run) if not set(place.parts) & set(without)]
    return Step(
        "claims",
        "the ledger",
        "each claim of the two papers against mathematics and against these runs",
        ("claims", *map(str, runs), "--run", str(setting.run)),
        setting.run / "results" / "claims.json",
    )


def finished_runs(folder: Path) -> list[Path]:
    """The study itself, its runs and their twins: all that have results."""
    places = [
        folder,
        folder / "registers",
        *sorted(folder.glob("*-s[0-9]*")),
        *sorted(folder.glob("*-s[0-9]*/untrained")),
        *sorted(folder.glob("*-s[0-9]*/voc")),
    ]
    return [place for place in places if any((place / "results").glob("*.json"))]
