"""What `mixlab demo` does: commands that anyone could type, what each is for, and what must come before it.

All that it shows was learnt: the networks that come with mixlab look at photographs and at drawn scenes, beside
untrained twins, and one of them is fine-tuned on the scenes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mixlab.backbones.zoo import SHIPPED
from mixlab.choices import SHOWN_MAP
from mixlab.studies.scoring import score_run
from mixlab.studies.steps import Step, sets


@dataclass(frozen=True)
class DemoEffort:
    """How much work. `minutes` is what two cores were measured to need (EXPERIMENTS.md)."""

    minutes: str = "about three minutes"
    networks: tuple[str, ...] = SHIPPED
    num_tuned: int = 512  # drawn scenes for fine-tuning
    batch: int = 64
    epochs: int = 3
    num_watched: int = 160  # scenes for kNN while training, and as many to classify
    num_judged: int = 160  # scenes for kNN, and as many others to classify
    num_scored: int = 64  # scenes with masks for Binary-AUC
    num_ranked: int = 1
    num_photographs: int = 6
    photo_image: int = 160  # px
    studies: tuple[str, ...] = ("model", "layer")  # of Binary-AUC


FULL = DemoEffort()
QUICK = DemoEffort(
    minutes="about a minute", num_tuned=256, epochs=1, num_watched=64, num_judged=64, num_scored=16, num_photographs=2,
    photo_image=120, studies=("model",),
)  # fmt: skip
TUNED = "vit-tuned"
RECIPE, START = "supervised_vit_tiny64", "shipped/vit"  # attention learns the scenes in the fewest seconds
RANK_IMAGE, RANK_CHUNK = 128, 128  # 256 patches: blocks of 128 exceed state and head width, which are 64
EYE = "0.38", "0.38"  # of the cat, from the left and from the top
HERE = ("--workers", "0", "--device", "cpu")


def plan(run: Path, effort: DemoEffort, *, seed: int) -> list[Step]:
    """All steps, each after those it needs; the longest first, so that two cores finish at about the same time."""
    steps = [_tune(run, effort, seed), *_judge(run, effort, seed), *_photographs(run, effort, seed)]
    steps += _look(run, effort, seed)
    measured = tuple(step.name for step in steps)
    runs = [str(run / label_of_shipped(name)) for name in effort.networks]
    places = (*runs, *(f"{folder}/untrained" for folder in runs), str(run / TUNED))
    ledger = Step(
        "claims",
        "the ledger",
        "a verdict on each claim of the two papers, by mathematics or by these networks",
        ("claims", str(run), *places, "--run", str(run)),
        run / "results" / "claims.json",
        needs=measured,
    )
    return [*steps, ledger]


def label_of_shipped(name: str) -> str:
    return name.removeprefix("shipped/")


def _labelled(effort: DemoEffort) -> tuple[str, ...]:
    return tuple(f"{name}={label_of_shipped(name)}" for name in effort.networks)


def _tune(run: Path, effort: DemoEffort, seed: int) -> Step:
    chosen = (f"model.name={START}", f"epochs={effort.epochs}", f"batch={effort.batch}", f"seed={seed}",
              "optim.lr=1e-3", "method.mixup=0", "log.every_steps=2", "knn.every_epochs=1",
              f"knn.bank={effort.num_watched}", f"knn.queries={effort.num_watched}")  # fmt: skip
    return Step(
        f"train {TUNED}",
        "fine-tune the attention network",
        "it was trained on photographs and now learns drawn scenes, with labels: watch the loss fall",
        ("train", RECIPE, "--data", f"shapes:n={effort.num_tuned}", "--run", str(run / TUNED), "--device", "cpu",
         *sets(*chosen)),
        run / TUNED / "weights.safetensors",
        trains=run / TUNED,
    )  # fmt: skip


def _photographs(run: Path, effort: DemoEffort, seed: int) -> Iterator[Step]:
    place = run / "photographs"
    seen = ("--seed", str(seed), *HERE, "--run", str(place))
    names = [label_of_shipped(name) for name in effort.networks]
    twins = [f"{run / name / 'untrained'}={name}, untrained" for name in names]
    beside = [target for pair in zip(_labelled(effort), twins, strict=True) for target in pair]
    kinds = [f"{name}, untrained=untrained" for name in names]
    yield Step(
        "photographs",
        "photographs through the networks that come with mixlab",
        "what stands out from the border of the image, and similar patches in one colour; below each, its twin",
        ("maps", *beside, "--training", *kinds, "--data", "photo:all", "--num-images", str(effort.num_photographs),
         "--image", str(effort.photo_image), "--map", SHOWN_MAP, *seen),
        place / "results" / "maps.json",
        needs=tuple(f"twin {name}" for name in names),
    )  # fmt: skip
    yield Step(
        "matrices",
        "mixing matrices of these networks",
        "which patch reads which: attention everywhere, a scan along its direction, a convolution nearby",
        ("matrices", *_labelled(effort), "--data", "photo:cat", "--image", str(RANK_IMAGE), "--patch", *EYE, *seen),
        place / "results" / "matrices.json",
    )


def _judge(run: Path, effort: DemoEffort, seed: int) -> Iterator[Step]:
    data = f"shapes:n={effort.num_judged}"
    for name in effort.networks:
        label = label_of_shipped(name)
        yield from score_run(run / label, label, data=data, seed=seed, heads=None, here=HERE, shipped=name)
    yield from score_run(run / TUNED, TUNED, data=data, seed=seed, heads=None, here=HERE, twin=False)


def _look(run: Path, effort: DemoEffort, seed: int) -> Iterator[Step]:
    networks = _labelled(effort)
    seeded = ("--seed", str(seed), *HERE)
    results = run / "results"
    yield Step(
        "rank",
        "ranks of the mixing matrices",
        "how much can distant patches exchange? measured, and compared with the bounds of theory",
        ("rank", *networks, "--data", "photo:all", "--image", str(RANK_IMAGE), "--chunk", str(RANK_CHUNK),
         "--num-images", str(effort.num_ranked), *seeded, "--run", str(run)),
        results / f"rank_{label_of_shipped(effort.networks[-1])}.json",
    )  # fmt: skip
    yield Step(
        "auc",
        "Binary-AUC",
        "does the map find the foreground? compared with a centre prior and an untrained twin",
        ("auc", *networks, str(run / TUNED), "--study", *effort.studies, "--data", f"shapes:n={effort.num_scored}",
         *seeded, "--run", str(run)),
        results / f"auc_{effort.studies[-1]}.json",
        needs=(f"train {TUNED}",),
    )  # fmt: skip
