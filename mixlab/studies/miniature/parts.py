"""The parts of `mixlab study miniature`: each a question of the two papers, as steps."""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from mixlab.recipes.small import MINI_DEPTHS
from mixlab.studies.miniature.plan import FULL, QUICK, Variant, score_variant, train
from mixlab.studies.plan import (
    RANKED,
    TUNING_SEED,
    Setting,
    Training,
    cost_step,
    ledger_step,
    map_studies,
    rank_step,
    score,
    shifts_step,
)
from mixlab.studies.steps import Step, sets
from mixlab.studies.study import Part, Study

SEGMENTED = ("dinovim", "gatedconv", "vit", "linearvit")
POOLED = ("model.place=none",)  # a class token in front would see nothing of a causal sequence
DRAWN = "shapes:size=112"
REGISTERS = {"4": ("model.num_registers=4",), "front": ("model.place=front",)}
TRAININGS: tuple[Training, ...] = ("dino", "supervised")


def tune(setting: Setting) -> Iterator[Step]:
    """Short trainings of every family with the same learning rates, evaluated on a split of the training part."""
    effort = setting.effort
    place = setting.run / "tuning"
    folds = place / "folds"
    split = Step(
        "tuning folds",
        "tuning: a split of the training images",
        "learning rates are tuned without the validation images",
        ("split", setting.data, str(folds)),
        folds / "split.json",
    )
    yield split
    needs, trials = [], []
    for training, family, rate in product(TRAININGS, setting.families, effort.tuned_rates):
        run = place / f"{training}-{family.label}-{rate:g}"
        steps = effort.tuning_steps[training]
        short = (f"steps={steps}", f"optim.warmup_steps={steps // 5}")
        made = train(
            setting, Variant(family, training), TUNING_SEED, place=run, data=str(folds), rate=rate, settings=short,
            needs=(split.name,),
        )  # fmt: skip
        yield made
        trials.append(f"{training}/{family.label}/{rate:g}")
        needs.append(made.name)
        if training == "dino":
            asked = Step(
                f"knn {run.name}",
                f"{run.name}: nearest neighbours",
                "which learning rate gives the best features?",
                ("knn", str(run), "--data", str(folds), "--seed", str(TUNING_SEED)),
                run / "results" / f"knn_{run.name}.json",
                here=setting.here,
                needs=(made.name,),
            )
            yield asked
            needs.append(asked.name)
    yield Step(
        "tuning",
        "tuning: the choice",
        "the best learning rate of each family, and every trial beside it",
        ("choose", str(setting.run), *trials),
        setting.run / "results" / "tuning.json",
        needs=tuple(needs),
    )


def dino(setting: Setting) -> Iterator[Step]:
    """DINO on every family and seed, with its untrained twin; accuracy, then maps."""
    yield from _trained_and_judged(setting, [Variant(family) for family in setting.families], setting.seeds, twin=True)
    runs = _runs(setting, "dino")
    if setting.labelled:
        yield from (shifts_step(setting, run, (f"probe {run.name}",)) for run in runs)
    yield score(setting, runs, ("model",), needs=_judged(setting, runs))
    for family, seed in product(setting.families, setting.seeds):
        run = Variant(family).run(setting, seed)
        for asked in (map_studies(family), ("map",)):
            yield score(setting, [run], asked, into=run, needs=_judged(setting, [run]))
    first = [Variant(family).run(setting, setting.seeds[0]) for family in setting.families]
    yield Step(
        "maps",
        "maps and principal components",
        "the same drawn scenes through one network of each family; photographs would not be ours to show",
        ("maps", *map(str, first), "--data", DRAWN, "--num-images", "5", "--image", "112", "--run", str(setting.run)),
        setting.run / "results" / "maps.json",
        here=("--device", setting.device),
        needs=tuple(f"train {run.name}" for run in first),
    )


def supervised(setting: Setting) -> Iterator[Step]:
    """The same with labels: does DINO's map score higher?"""
    variants = [Variant(family, "supervised") for family in setting.families]
    yield from _trained_and_judged(setting, variants, setting.seeds, twin=False)
    own = _runs(setting, "supervised")
    yield score(setting, [*_runs(setting, "dino"), *own], ("training",), needs=_judged(setting, own))


def sizes(setting: Setting) -> Iterator[Step]:
    """Half the width, a quarter of the parameters: do scores fall?"""
    width = (f"model.dim={setting.effort.narrow_dim}",)
    variants = [Variant(family, name="narrow", settings=width) for family in setting.families]
    yield from _trained_and_judged(setting, variants, setting.seeds, twin=True)
    narrow = [variant.run(setting, seed) for variant, seed in product(variants, setting.seeds)]
    yield score(setting, [*_runs(setting, "dino"), *narrow], ("size",), needs=_judged(setting, narrow))


def mambaout(setting: Setting) -> Iterator[Step]:
    """Does causal mixing cost a ViT accuracy? Does a scan help on long sequences?"""
    if setting.labelled:
        for family in setting.having("vit"):
            shapes = {"pooled": POOLED, "causal": (*POOLED, "model.causal=true")}
            variants = [Variant(family, "supervised", name, settings) for name, settings in shapes.items()]
            for variant, seed in product(variants, setting.seeds):
                yield train(setting, variant, seed)
                yield from score_variant(setting, variant, seed, twin=False, probe=False)
    labels = setting.run / "labels"
    made = Step(
        "labels",
        "segmentation: label maps",
        "masks as classes: background and foreground; every fourth image for validation",
        ("labels", setting.masks, str(labels)),
        labels / "classes.txt",
    )
    yield made
    for family, seed in product(setting.having(*SEGMENTED), setting.seeds):
        place = setting.run / f"{family.label}-segment-s{seed}"
        yield Step(
            f"segment {place.name}",
            f"{place.name}: UperNet",
            "fine-tuned at twelve times as many tokens: foreground against background",
            (
                "segment", str(Variant(family).run(setting, seed)), "--recipe", family.recipe("segment"),
                "--data", str(labels), "--run", str(place), *sets(*setting.effort.segment, f"seed={seed}"),
            ),
            place / "results" / "segmentation.json",
            here=setting.trains_here,
            needs=(made.name,),
            trains=place,
        )  # fmt: skip


def registers(setting: Setting) -> Iterator[Step]:
    """Fewer registers, and all of them in front: what do their number and place change?"""
    for family in setting.having("mambareg"):
        variants = [Variant(family, name=name, settings=settings) for name, settings in REGISTERS.items()]
        yield from _trained_and_judged(setting, variants, setting.variant_seeds, twin=False)
        other = [variant.run(setting, seed) for variant, seed in product(variants, setting.variant_seeds)]
        own, into = Variant(family).run(setting, setting.seeds[0]), setting.run / "registers"
        yield score(setting, [own, *other], ("register",), into=into, needs=_judged(setting, other))
        without = [Variant(plain).run(setting, setting.seeds[0]) for plain in setting.having("dinovim")]
        if without:
            yield score(setting, [own, *other, *without], ("registers",), into=into, needs=_judged(setting, other))


def cost(setting: Setting) -> Iterator[Step]:
    """Images per second and memory against tokens, with nothing else running."""
    yield cost_step(setting, [f"{family.label}={family.recipe('dino')}" for family in setting.families])


def ranks(setting: Setting) -> Iterator[Step]:
    """Off-diagonal ranks of trained models on real images, in blocks larger than the state."""
    for family, seed in product(setting.having(*RANKED), setting.seeds):
        yield rank_step(setting, Variant(family).run(setting, seed), MINI_DEPTHS[family.name])


def ledger(setting: Setting) -> Iterator[Step]:
    """But for other numbers and places of registers: those answer a question of their own and would count as more
    Mambas."""
    yield ledger_step(setting, without=_other_registers(setting))


PARTS: dict[str, Part] = {
    "tune": Part("which learning rate suits each family?", tune, 2.9, labels=True),
    "dino": Part("what do five mixers learn without labels?", dino, 8.4),
    "supervised": Part("what do they learn with labels?", supervised, 2.2, needs=("dino",), labels=True),
    "sizes": Part("do larger models score higher?", sizes, 6.2, needs=("dino",)),
    "mambaout": Part("is a scan needed? does causal mixing cost accuracy?", mambaout, 2.7, needs=("dino",)),
    "registers": Part("how many registers, and where?", registers, 2, needs=("dino",)),
    "cost": Part("how does the cost of each grow with tokens?", cost, 0.7),
    "ranks": Part("what rank do trained matrices have?", ranks, 2, needs=("dino",)),
    "ledger": Part("what is the verdict on each claim of the papers?", ledger, 0.3),
}
MINIATURE = Study("miniature", PARTS, full=FULL, quick=QUICK)


def _other_registers(setting: Setting) -> set[str]:
    variants = [Variant(family, name=name) for family in setting.having("mambareg") for name in REGISTERS]
    return {
        "registers",
        *(variant.run(setting, seed).name for variant, seed in product(variants, setting.variant_seeds)),
    }


def _trained_and_judged(
    setting: Setting, variants: Iterable[Variant], seeds: tuple[int, ...], *, twin: bool
) -> Iterator[Step]:
    pairs = list(product(variants, seeds))
    yield from (train(setting, variant, seed) for variant, seed in pairs)
    for variant, seed in pairs:
        yield from score_variant(setting, variant, seed, twin=twin)


def _runs(setting: Setting, training: Training) -> list[Path]:
    return [Variant(family, training).run(setting, seed) for family, seed in product(setting.families, setting.seeds)]


def _judged(setting: Setting, runs: list[Path]) -> tuple[str, ...]:
    """The steps needed before a run's maps can be compared with its probes."""
    kinds = ("train", "probe") if setting.labelled else ("train",)
    return tuple(f"{kind} {run.name}" for kind in kinds for run in runs)
