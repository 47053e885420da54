"""What `mixlab demo` does: commands that anyone could type, what each is for, and what must come before it. One job has
no command: sizes and speed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mixlab.analysis.cost import measure_cost
from mixlab.backbones.zoo import SHIPPED
from mixlab.evaluation.target import load_target
from mixlab.recipes import find_recipe
from mixlab.run import RunDirectory, provenance
from mixlab.studies.scoring import score_run
from mixlab.studies.steps import Step


@dataclass(frozen=True)
class DemoModel:
    """One of the five: its label is also the name of its run."""

    label: str
    recipe: str
    about: str
    strategies: tuple[str, ...] = ("cls", "mean", "max")  # features that probes read

    @property
    def command(self) -> Literal["pretrain", "train"]:
        return "train" if find_recipe(self.recipe).method.command == "train" else "pretrain"


# The slowest first, so that two cores finish at about the same time.
MODELS = (
    DemoModel("mambareg", "dino_dinomambareg_tiny64", "a Mamba-2 scan in both directions, with twelve registers"),
    DemoModel("gatedconv", "supervised_gatedconv_tiny64", "a Mamba block without its scan", ("mean", "max")),
    DemoModel("dinovim", "dino_dinovim_tiny64", "a Mamba-2 scan in both directions"),
    DemoModel("vit", "dino_vit_tiny64", "softmax attention"),
    DemoModel("linearvit", "dino_linearvit_tiny64", "linear attention"),
)
SHOWN_ORDER = ("vit", "linearvit", "dinovim", "mambareg", "gatedconv")


@dataclass(frozen=True)
class DemoEffort:
    """How much work; the recipes say everything else."""

    num_images: int = 768  # drawn scenes for training without labels, and as many others for validation
    dino_epochs: int = 5
    num_labelled: int = 2048  # drawn scenes for training with labels, which is faster
    supervised_epochs: int = 16
    probe_epochs: int = 30
    num_scored: int = 150  # images with masks for Binary-AUC
    num_ranked: int = 2
    num_pictures: int = 5


FULL = DemoEffort()
QUICK = DemoEffort(
    num_images=128, dino_epochs=1, num_labelled=128, supervised_epochs=4, probe_epochs=10, num_scored=32,
    num_ranked=1, num_pictures=3,
)  # fmt: skip
PHOTO_IMAGE = 192
RANK_IMAGE, RANK_CHUNK = 128, 64  # 256 patches: blocks of 64 are then larger than the state of 16
PROBE = ("--mode", "cached", "--blocks", "1", "4", "--lrs", "0.01", "0.1", "--weight-decays", "0", "--batch", "128")
HERE = ("--workers", "0", "--device", "cpu")


def plan(run: Path, effort: DemoEffort, *, seed: int, models: tuple[DemoModel, ...] = MODELS) -> list[Step]:
    """All steps, each after those it needs."""
    judged = [step for model in models for step in _judged(run, model, effort, seed)]
    steps = [_train(run, model, effort, seed) for model in models] + judged
    shown = tuple(sorted(models, key=lambda model: SHOWN_ORDER.index(model.label)))
    steps += _look(run, shown, effort, seed)
    measured = tuple(step.name for step in steps)
    runs = [str(run / model.label) for model in shown]
    speed = Step(
        "speed",
        "sizes and speed",
        "parameters, multiply-accumulates and images per second, with nothing else running",
        ("speed", *runs),
        run / shown[-1].label / "results" / "cost.json",
        needs=measured,
        alone=True,
    )
    ledger = Step(
        "claims",
        "the ledger",
        "each claim of the two papers against mathematics and against these runs",
        ("claims", str(run), *runs, *(f"{folder}/untrained" for folder in runs), "--run", str(run)),
        run / "results" / "claims.json",
        needs=measured,
    )
    return [*steps, speed, ledger]


def _train(run: Path, model: DemoModel, effort: DemoEffort, seed: int) -> Step:
    folder = run / model.label
    dino = model.command == "pretrain"
    epochs = effort.dino_epochs if dino else effort.supervised_epochs
    data = f"shapes:n={effort.num_images if dino else effort.num_labelled}"
    how = "DINO without labels: a student matches its own slow average on other crops" if dino else "with labels"
    chosen = (f"epochs={epochs}", f"seed={seed}", "log.every_steps=2", "knn.bank=400", "knn.queries=400")
    settings = tuple(part for setting in chosen for part in ("--set", setting))
    return Step(
        f"train {model.label}",
        f"{model.label}: train",
        f"{model.about}; {how}",
        (model.command, model.recipe, "--data", data, "--run", str(folder), "--device", "cpu", *settings),
        folder / "weights.safetensors",
        trains=folder,
    )


def _judged(run: Path, model: DemoModel, effort: DemoEffort, seed: int) -> Iterator[Step]:
    heads = (*PROBE, "--strategies", *model.strategies, "--epochs", str(effort.probe_epochs))
    return score_run(
        run / model.label, model.label, data=f"shapes:n={effort.num_images}", seed=seed, heads=heads, here=HERE
    )


def _look(run: Path, models: tuple[DemoModel, ...], effort: DemoEffort, seed: int) -> Iterator[Step]:
    runs = tuple(str(run / model.label) for model in models)
    tokens = tuple(str(run / model.label) for model in models if "cls" in model.strategies)
    registers = tuple(str(run / model.label) for model in models if "reg" in model.label)
    # Figures of probes go into the correlation of Binary-AUC with them.
    judged = tuple(f"{kind} {model.label}" for model in models for kind in ("train", "probe"))
    seeded = ("--seed", str(seed), "--device", "cpu")
    masks = ("--data", f"shapes:n={effort.num_scored}", *seeded, "--run", str(run))
    blocks = ("--image", str(RANK_IMAGE), "--chunk", str(RANK_CHUNK))
    results = run / "results"
    yield Step(
        "auc",
        "Binary-AUC, by model and layer",
        "does the map of the summary token find the foreground? compared with a centre prior and an untrained twin",
        ("auc", *runs, "--study", "model", "layer", *masks),
        results / "auc_layer.json",
        needs=judged,
    )
    if tokens:
        yield Step(
            "auc head",
            "Binary-AUC, by head",
            "are some heads idle?",
            ("auc", *tokens, "--study", "head", *masks),
            results / "auc_head.json",
            needs=judged,
        )
    if registers:
        yield Step(
            "auc register",
            "Binary-AUC, by register",
            "which registers look at objects?",
            ("auc", *registers, "--study", "register", *masks),
            results / "auc_register.json",
            needs=judged,
        )
    yield Step(
        "rank",
        "ranks of the mixing matrices",
        "what is the rank of off-diagonal blocks, and what are the bounds of theory?",
        ("rank", *runs, *blocks, "--num-images", str(effort.num_ranked), *seeded, "--run", str(run)),
        results / f"rank_{models[-1].label}.json",
        needs=judged,
    )
    yield Step(
        "matrices",
        "the matrices themselves",
        "every mixing is run, and written out as a matrix: the same map",
        ("matrices", *runs, "--data", "shapes", "--image", str(RANK_IMAGE), *seeded, "--run", str(run)),
        results / "matrices.json",
        needs=judged,
    )
    trained = tuple(f"{name}={name.removeprefix('shipped/')}, shipped" for name in SHIPPED)
    photo = ("--data", "photo", "--image", str(PHOTO_IMAGE), *seeded, "--run", str(run / "photo"))
    yield Step(
        "photo",
        "a photograph through trained networks",
        "the networks that come with mixlab were trained on photographs, for longer than a demo",
        ("maps", *trained, "--num-images", "1", *photo),
        run / "photo" / "results" / "maps.json",
    )
    yield Step(
        "photo matrices",
        "their matrices on the photograph",
        "which patches read which: attention everywhere, a scan along its direction, a convolution nearby",
        ("matrices", *trained, *photo),
        run / "photo" / "results" / "matrices.json",
    )
    yield Step(
        "maps",
        "activation maps and principal components",
        "the same images through every model",
        ("maps", *runs, "--num-images", str(effort.num_pictures), *seeded, "--run", str(run)),
        results / "maps.json",
        needs=judged,
    )


def write_all_costs(*runs: str) -> None:
    """The job of the step "speed"."""
    for run in runs:
        write_costs(Path(run))


def write_costs(run: Path) -> None:
    """Parameters, multiply-accumulates and images per second of a run's backbone, into results/cost.json."""
    result = measure_cost(load_target(str(run), device="cpu"))
    RunDirectory.open(run).write_result("cost", result | {"provenance": provenance(device="cpu")})
