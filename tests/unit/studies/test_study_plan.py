"""What a study would do: command lines that parse, each after what it needs, each part by itself."""

import re
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path

from command_line import parse_command

from mixlab.recipes import find_recipe
from mixlab.run.files import write_json
from mixlab.studies.miniature.parts import PARTS
from mixlab.studies.miniature.plan import FULL
from mixlab.studies.plan import STUDY_FAMILIES, Setting
from mixlab.studies.steps import Step, is_done, mark_of
from mixlab.studies.workers import OWN_JOBS

SETTING = Setting(
    run=Path("RUN"),
    data="photos",
    masks="masked",
    labelled=True,
    seeds=(0, 1, 2),
    device="cuda",
    workers=1,
    rates={"dino": {"vit": 5e-4}},
)


def steps_of(setting: Setting) -> dict[str, list[Step]]:
    return {name: list(part.steps(setting)) for name, part in PARTS.items()}


def test_every_step_is_a_command_line_that_parses_and_comes_after_what_it_needs() -> None:
    """Those of a quick study are run: test_study.py. Lines that differ in numbers alone are parsed once."""
    parsed: set[str] = set()
    for steps in steps_of(replace(SETTING, effort=FULL)).values():
        seen: set[str] = set()
        for step in steps:
            assert set(step.needs) <= seen, f"{step.name} comes before what it needs"
            seen.add(step.name)
            name, *rest = (*step.arguments, *step.here)
            form = re.sub(r"\d+", "0", shlex.join(rest))
            if name not in OWN_JOBS and f"{name} {form}" not in parsed:
                parse_command(name, rest)
                parsed.add(f"{name} {form}")


def test_no_two_steps_share_a_name_a_result_or_a_run() -> None:
    every = [step for steps in steps_of(SETTING).values() for step in steps]
    assert len({step.name for step in every}) == len(every)
    assert len({step.result for step in every}) == len(every)
    trained = [step.trains for step in every if step.trains]
    assert len(set(trained)) == len(trained)


def test_every_family_and_seed_is_trained_without_and_with_labels() -> None:
    for part, suffix in (("dino", ""), ("supervised", "-supervised")):
        trained = {step.trains for step in steps_of(SETTING)[part] if step.trains}
        assert trained == {Path(f"RUN/{f.label}{suffix}-s{seed}") for f, seed in product(STUDY_FAMILIES, (0, 1, 2))}


def test_tuning_tries_the_same_rates_on_every_family_with_a_seed_that_is_not_compared() -> None:
    tried: dict[tuple[str, str], set[str]] = {}
    for step in steps_of(SETTING)["tune"]:
        if step.trains:
            settings = {text for text in step.arguments if "=" in text}
            assert "seed=100" in settings and not {"seed=0", "seed=1", "seed=2"} & settings
            rate = next(text for text in settings if text.startswith("optim.lr="))
            tried.setdefault((step.arguments[0], step.arguments[1].split("_")[1]), set()).add(rate)
    assert len(tried) == 2 * len(STUDY_FAMILIES)
    assert len({frozenset(rates) for rates in tried.values()}) == 1


def test_a_tuned_rate_is_used_by_all_runs_of_its_family_and_by_no_other() -> None:
    for step in steps_of(SETTING)["dino"] + steps_of(SETTING)["sizes"]:
        if step.trains:
            assert ("optim.lr=0.0005" in step.arguments) == (step.trains.name.split("-")[0] == "vit")


def test_families_differ_in_nothing_but_mixer_depth_and_layout() -> None:
    configs = [find_recipe(family.recipe("dino")) for family in STUDY_FAMILIES]
    for config in configs[1:]:
        assert replace(config, model=configs[0].model) == configs[0]
    sizes = [sum(p.numel() for p in config.model.build().parameters()) for config in configs]
    assert max(sizes) < 1.25 * min(sizes), "parameters are not matched"


def test_without_labels_nothing_that_needs_them_is_left() -> None:
    setting = replace(SETTING, labelled=False)
    left = [step for name, steps in steps_of(setting).items() if not PARTS[name].labels for step in steps]
    assert not {"knn", "probe", "train"} & {step.arguments[0] for step in left}
    assert {"pretrain", "auc", "segment", "rank"} <= {step.arguments[0] for step in left}


def test_a_causal_vit_and_its_rival_pool_their_patches() -> None:
    runs = {
        step.trains.name: step for step in steps_of(SETTING)["mambaout"] if step.trains and "segment" not in step.name
    }
    assert set(runs) == {f"vit-{kind}-s{seed}" for kind in ("pooled", "causal") for seed in (0, 1, 2)}
    for name, step in runs.items():
        assert "model.place=none" in step.arguments
        assert ("model.causal=true" in step.arguments) == ("causal" in name)


def test_a_step_is_done_on_whatever_machine_it_ran_but_not_by_another_command_line(tmp_path: Path) -> None:
    step = Step("a", "a", "", ("knn", f"{tmp_path}/vit", "--seed", "0"), tmp_path / "result", here=("--device", "cuda"))
    assert not is_done(step, tmp_path) and mark_of(step, tmp_path) == {}
    step.result.touch()
    write_json(tmp_path / "steps" / "a.json", {"arguments": ["knn", "RUN/vit", "--seed", "0"], "seconds": 1.0})
    assert is_done(replace(step, here=("--device", "cpu")), tmp_path)
    assert not is_done(replace(step, arguments=("knn", f"{tmp_path}/vit", "--seed", "1")), tmp_path)


def test_what_was_trained_on_a_gpu_is_done_on_a_cpu_too() -> None:
    there, here = (steps_of(replace(SETTING, device=device)) for device in ("cuda", "cpu"))
    for part in there:
        assert [step.arguments for step in there[part]] == [step.arguments for step in here[part]]
    assert any("precision=fp32" in step.here for step in here["dino"])
