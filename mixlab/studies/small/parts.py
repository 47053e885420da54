"""The parts of `mixlab study small`. Each ends within about ten minutes on one H200.

Parts leave JSON, and weights in 16 bits. `look-X` needs the weights of `dino-X`, or trains them; nothing else needs
any, so that the folder of a study may go to another machine without them.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mixlab.backbones.weights import shrink_file
from mixlab.choices import SHOWN_MAP
from mixlab.data.images import HELD_OUT_OF
from mixlab.recipes import find_recipe
from mixlab.recipes.small import DEPTHS_160
from mixlab.studies.plan import (
    RANKED,
    STUDY_FAMILIES,
    TUNING_SEED,
    Family,
    Setting,
    StudyEffort,
    cost_step,
    ledger_step,
    map_studies,
    rank_step,
    score,
    shifts_step,
)
from mixlab.studies.scoring import score_run
from mixlab.studies.small.plan import (
    ABLATIONS,
    FULL,
    LOOKING_MINUTES,
    QUICK,
    SCORING_MINUTES,
    SIDE_BY_SIDE,
    SIZES,
    in_numbers,
    recipe_of,
    seeds_of,
    training_minutes,
    tried_rates,
    tuning_steps,
)
from mixlab.studies.steps import Step, sets
from mixlab.studies.study import Part, Study
from mixlab.training.settings import override

PAPERS_PROBE = ("--mode", "cached")  # and the paper's grid of heads, rates and decays
OUR_PHOTOGRAPHS = "photo:all"  # which may be shown
WEIGHTS = "weights.safetensors"
LABELS = {family.label: family for family in STUDY_FAMILIES}
ABLATED = recipe_of("dino", "tiny", LABELS["vit"])


def small_study(seeds: tuple[int, ...]) -> Study:
    """All parts for these seeds."""
    return Study(
        "small",
        _parts(seeds),
        full=FULL,
        quick=QUICK,
        copy_side=192,
        most_at_once=3,
        uses_tuned_rates=False,
        tidy=keep_16_bits,
    )


def _parts(seeds: tuple[int, ...]) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    pairs = [(size, family) for size in SIZES for family in STUDY_FAMILIES]
    for size, family in pairs:
        short = (f"steps={tuning_steps(size, FULL)}",)
        num_rates = len(tried_rates(recipe_of("dino", size, family), FULL))
        minutes = num_rates * (training_minutes("dino", size, family, short) + 0.2)
        question = f"would another learning rate suit {family.label}, {size}, better?"
        parts[f"tune-{size}-{family.label}"] = Part(question, partial(tune, size, family), minutes, labels=True)
    vit = LABELS["vit"]
    networks = [(size, family, seed) for size, family in pairs for seed in seeds_of(size, family, seeds)]
    for size, family, seed in networks:
        minutes = training_minutes("dino", size, family) + SCORING_MINUTES
        question = f"what does {family.label}, {size}, learn without labels? seed {seed}"
        parts[f"dino-{size}-{family.label}-s{seed}"] = Part(
            question, partial(network, size, family, seed), minutes, labels=True
        )
    for size, family, seed in networks:
        parts[f"look-{size}-{family.label}-s{seed}"] = Part(
            "its maps, ranks and features, against its untrained twin",
            partial(look, size, family, seed),
            LOOKING_MINUTES,
            labels=True,
        )
    for family in STUDY_FAMILIES:
        minutes = training_minutes("supervised", "tiny", family) + SCORING_MINUTES + 0.5
        parts[f"supervised-tiny-{family.label}-s{seeds[0]}"] = Part(
            f"what does {family.label}, tiny, learn with labels?",
            partial(supervised, family, seeds[0]),
            minutes,
            labels=True,
        )
    for name in ABLATIONS:
        tried = _ablations(name, FULL).values()
        minutes = sum(training_minutes("dino", "tiny", vit, each) + SCORING_MINUTES for each in tried) / SIDE_BY_SIDE
        question = f"what made the difference: {name}?"
        parts[f"ablate-{name}"] = Part(question, partial(ablate, name), minutes, labels=True)
    parts["cost"] = Part("how does the cost of each grow with tokens?", cost, 2.2)
    parts["ledger"] = Part("what is the verdict on each claim of the papers?", ledger, 1.0)
    return parts


def tune(size: str, family: Family, setting: Setting) -> Iterator[Step]:
    """Short trainings with some learning rates, for every family alike, scored on a fifth of the training images."""
    effort, held_out, needs, trials = setting.effort, HELD_OUT_OF + setting.data, list[str](), list[str]()
    recipe = recipe_of("dino", size, family)
    for rate in tried_rates(recipe, effort):
        place = setting.run / "tuning" / f"dino-{size}-{family.label}-{rate:g}"
        steps = tuning_steps(size, effort)
        short = (f"steps={steps}", f"optim.warmup_steps={steps // 5}", f"optim.lr={rate:g}", f"seed={TUNING_SEED}")
        settings = sets(*effort.training, *effort.dino, *short)
        trained = Step(
            f"train {place.name}",
            f"{place.name}: train",
            "learning rates are tuned without the validation images",
            ("pretrain", recipe, "--data", held_out, "--run", str(place), *settings),
            place / "results" / "training.json",
            here=setting.trains_here,
            trains=place,
        )
        asked = Step(
            f"knn {place.name}",
            f"{place.name}: nearest neighbours",
            "which learning rate gives the best features in as few steps?",
            ("knn", str(place), "--data", held_out, "--seed", str(TUNING_SEED)),
            place / "results" / f"knn_{place.name}.json",
            here=setting.here,
            needs=(trained.name,),
        )
        yield from (trained, asked)
        needs.append(asked.name)
        trials.append(f"dino-{size}/{family.label}/{rate:g}")
    yield Step(
        f"tuning {size} {family.label}",
        f"{family.label}, {size}: the choice",
        "the best learning rate, and every trial beside it",
        ("choose", str(setting.run), *trials),
        setting.run / "results" / "tuning.json",
        needs=tuple(needs),
    )


def network(size: str, family: Family, seed: int, setting: Setting) -> Iterator[Step]:
    """One network trained without labels, scored and timed."""
    own = (*setting.effort.training, *setting.effort.dino)
    yield _speedrun(setting, recipe_of("dino", size, family), _place(size, family, seed, setting), seed, own)


def look(size: str, family: Family, seed: int, setting: Setting) -> Iterator[Step]:
    """Everything else that is measured of that network; the step that trains it is done by now."""
    yield from network(size, family, seed, setting)
    place = _place(size, family, seed, setting)
    yield from _scored(setting, place, seed, twin=True)
    probes = [_register_probe(setting, place, seed)] if "registers" in family.strategies else []
    yield from probes
    needs = (f"train {place.name}", f"probe {place.name}", *(step.name for step in probes))
    yield from _looked_at(setting, place, family, size, seed, needs)


def _scored(setting: Setting, place: Path, seed: int, *, twin: bool) -> Iterator[Step]:
    heads = (*PAPERS_PROBE, "--epochs", str(setting.effort.probe_epochs)) if setting.effort is QUICK else PAPERS_PROBE
    return score_run(place, place.name, data=setting.data, seed=seed, heads=heads, here=setting.here, twin=twin)


def _register_probe(setting: Setting, place: Path, seed: int) -> Step:
    named = (f"{place}={place.name}", "--data", setting.data, "--seed", str(seed), "--name", "register_probe")
    rates = ("--lrs", "0.01", "0.1", "0.5", "--weight-decays", "0", "--batch", "256")
    heads = ("--mode", "cached", "--blocks", "1", "--strategies", "registers", *rates)
    return Step(
        f"register probe {place.name}",
        f"{place.name}: a probe of each register",
        "do registers that look at objects also know the class?",
        ("probe", *named, *heads, "--epochs", str(setting.effort.probe_epochs)),
        place / "results" / "register_probe.json",
        here=setting.here,
        needs=(f"train {place.name}",),
    )


def _place(size: str, family: Family, seed: int, setting: Setting) -> Path:
    return setting.run / f"{family.label}-{size}-s{seed}"


def _speedrun(
    setting: Setting, recipe: str, place: Path, seed: int, settings: tuple[str, ...], *more: str, timed: bool = True
) -> Step:
    named = ("--data", setting.data, "--run", str(place), "--seed", str(seed))
    return Step(
        f"train {place.name}",
        f"{place.name}: train and score",
        "alone on the GPU, since it is timed" if timed else "several at once, since they are not timed",
        ("speedrun", recipe, *named, *more, *sets(*settings)),
        place / "results" / "speedrun.json",
        here=setting.here,
        drops=(place / "probe",),  # its own: the paper's probe is the one that later steps read
        trains=place,
        alone=timed,
    )


def _looked_at(
    setting: Setting, place: Path, family: Family, size: str, seed: int, trained: tuple[str, ...]
) -> Iterator[Step]:
    """Maps against masks, corrupted images, ranks, pictures and segmentation, after these steps."""
    effort = setting.effort
    tokens = ("token",) if family.label == "dinovim" else ()  # in the middle, and its copy in front
    studies = ("map", *map_studies(family), *tokens, "model")
    yield score(setting, [place], studies, into=place, needs=trained)
    if setting.voc is not None:
        yield Step(
            f"auc voc {place.name}",
            f"{place.name}: Binary-AUC on VOC",
            "the same maps on other photographs",
            ("auc", str(place), "--study", *studies, "--data", setting.voc, *effort.scored, "--run", f"{place}/voc"),
            place / "voc" / "results" / "auc_model.json",
            here=("--device", setting.device, "--batch", "64"),
            needs=trained,
        )
    yield shifts_step(setting, place, trained)
    yield Step(
        f"maps {place.name}",
        f"{place.name}: maps and principal components",
        "photographs that come with mixlab: no network has seen them",
        ("maps", str(place), "--data", OUR_PHOTOGRAPHS, "--map", SHOWN_MAP, "--image", "160", "--run", str(place)),
        place / "results" / "maps.json",
        here=("--device", setting.device),
        needs=trained,
    )
    if family.label in RANKED:
        whole = (size, family.label) == ("small", "vit")  # is a low rank enough for softmax? matrices of 1,024 tokens
        yield rank_step(setting, place, DEPTHS_160[family.name], trained, whole=whole)
    if setting.voc is not None and seed == setting.seeds[0]:
        segmented = place.with_name(f"{place.name.rpartition('-')[0]}-segment-s{seed}")
        recipe, settings = recipe_of("segment", size, family), sets(*effort.segment, f"seed={seed}")
        data = ("--data", setting.voc, "--run", str(segmented))
        yield Step(
            f"segment {segmented.name}",
            f"{segmented.name}: UperNet",
            "fine-tuned on the label maps of VOC, every fifth image for validation",
            ("segment", str(place), "--recipe", recipe, *data, *settings),
            segmented / "results" / "segmentation.json",
            here=setting.trains_here,
            needs=trained,
            trains=segmented,
        )


def supervised(family: Family, seed: int, setting: Setting) -> Iterator[Step]:
    """The tiny twin with labels: its accuracy, features and maps."""
    place = setting.run / f"{family.label}-tiny-supervised-s{seed}"
    settings = sets(*setting.effort.training, f"seed={seed}")
    recipe = recipe_of("supervised", "tiny", family)
    yield Step(
        f"train {place.name}",
        f"{place.name}: train",
        "with labels",
        ("train", recipe, "--data", setting.data, "--run", str(place), *settings),
        place / "results" / "training.json",
        here=setting.trains_here,
        trains=place,
    )
    yield from _scored(setting, place, seed, twin=False)
    yield score(setting, [place], ("map", "model"), into=place, needs=(f"train {place.name}", f"probe {place.name}"))


def ablate(name: str, setting: Setting) -> Iterator[Step]:
    """Speedruns of ViT-T on the held-out fifth, of full length, each with one thing changed."""
    for variant, settings in _ablations(name, setting.effort).items():
        place = setting.run / "ablate" / variant
        yield _speedrun(setting, ABLATED, place, setting.seeds[0], settings, "--held-out", timed=False)


def _ablations(name: str, effort: StudyEffort) -> dict[str, tuple[str, ...]]:
    """The settings of each."""
    own = (*effort.training, *effort.dino)
    config = override(find_recipe(ABLATED), own)
    return {variant: (*own, *in_numbers(changed, config)) for variant, changed in ABLATIONS[name].items()}


def cost(setting: Setting) -> Iterator[Step]:
    """Images per second and memory against tokens, with nothing else running."""
    families = setting.families
    yield cost_step(setting, [f"{f.label}-{size}={recipe_of('dino', size, f)}" for size in SIZES for f in families])


def ledger(setting: Setting) -> Iterator[Step]:
    yield ledger_step(setting)


def keep_16_bits(run: Path) -> None:
    """Keep the weights of a network of the study in 16 bits; of trials, twins and segmenters only their results."""
    for place in (run / "untrained" / WEIGHTS, run / "segmenter.safetensors"):
        place.unlink(missing_ok=True)
    for folder in (place for place in run.glob("*probe*") if place.is_dir()):
        shutil.rmtree(folder)
    weights = run / WEIGHTS
    if run.parent.name in ("tuning", "ablate") or "-segment-" in run.name:
        weights.unlink(missing_ok=True)
    elif weights.is_file():
        shrink_file(weights, bits=16)
