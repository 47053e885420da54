"""The study at 160 px: its parts as command lines, two of them in little, and its folder on another machine."""

import os
import shutil
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import parse_command
from PIL import Image

from mixlab.cli import main
from mixlab.recipes import find_recipe
from mixlab.run.files import read_json, write_json
from mixlab.studies import study
from mixlab.studies.plan import STUDY_FAMILIES, Setting
from mixlab.studies.small.parts import small_study
from mixlab.studies.small.plan import ABLATIONS, FULL, QUICK
from mixlab.studies.speedrun.record import read_record
from mixlab.studies.steps import Step
from mixlab.studies.workers import OWN_JOBS
from tests.drawn_folders import draw_folders, save

STUDY = small_study((0, 1, 2))
SETTING = Setting(
    run=Path("RUN"), data="photos", masks="masked", voc="voc", labelled=True, seeds=(0, 1, 2), device="cuda", workers=1,
    effort=FULL,
)  # fmt: skip
ALL = os.environ.get("MIXLAB_FAULTS") == "all"
RUN_PARTS = ("tune-tiny-vit", "dino-tiny-vit-s0", *(("look-tiny-vit-s0", "ablate-optimiser") if ALL else ()))


class Inline(Executor):
    """Runs a step at once, in this process: workers would import everything anew."""

    def submit(self, function: Any, /, *given: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(function(*given, **named))
        return future


@contextmanager
def inline(workers: int) -> Any:
    yield Inline()


def go(root: Path, parts: tuple[str, ...], run: str = "run") -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "worker_pool", inline)
        return study.run_study(
            small_study((0,)), data=root / "photos", masks=str(root / "masked"), run=root / run, parts=parts,
            seeds=(0,), effort=QUICK, at_once=1, device="cpu", voc=str(root / "voc") if ALL else None,
        )  # fmt: skip


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    _, masked = draw_folders(root)
    shutil.copytree(masked, root / "voc")
    for mask in (masked / "masks").iterdir():  # classes 0 and 1
        save(Image.open(mask).point(lambda value: value // 255), root / "voc" / "labels" / mask.name)
    (root / "voc" / "classes.txt").write_text("ground\nfigure\n")
    go(root, RUN_PARTS)
    return root


def test_every_kind_of_part_is_command_lines_that_parse_after_what_they_need() -> None:
    one_of_each = ("tune-small-vit", "look-tiny-mambareg-s0", "supervised-tiny-gatedconv-s0", "ablate-views", "cost")
    for part in one_of_each:
        seen: set[str] = set()
        for step in STUDY.parts[part].steps(SETTING):
            assert set(step.needs) <= seen, f"{step.name} comes before what it needs"
            seen.add(step.name)
            name, *rest = (*step.arguments, *step.here)
            if name not in OWN_JOBS:
                parse_command(name, rest)


def test_steps_of_one_name_are_the_same_step_and_results_do_not_collide() -> None:
    every: dict[str, Step] = {}
    for part in STUDY.parts.values():
        for step in part.steps(SETTING):
            assert every.setdefault(step.name, step) == step
    results = [step.result for step in every.values() if not step.name.startswith("tuning ")]  # which share one
    assert len(set(results)) == len(results)


def test_each_network_has_its_seeds_and_each_part_about_ten_minutes() -> None:
    trained = {name.removeprefix("dino-") for name in STUDY.parts if name.startswith("dino-")}
    tiny = {f"tiny-{family.label}-s{seed}" for family in STUDY_FAMILIES for seed in (0, 1, 2)}
    small = {f"small-{family.label}-s0" for family in STUDY_FAMILIES} | {"small-vit-s1", "small-vit-s2"}
    assert trained == tiny | small
    assert {f"look-{name}" for name in trained} <= set(STUDY.parts)
    assert all(part.minutes < 12 for part in STUDY.parts.values())


def test_tuning_and_ablations_never_see_validation_images() -> None:
    for name, part in STUDY.parts.items():
        for step in part.steps(SETTING):
            if name.startswith("tune") and step.arguments[0] in ("pretrain", "knn"):
                assert step.arguments[step.arguments.index("--data") + 1] == "heldout:photos"
            if step.arguments[0] == "speedrun":
                assert ("--held-out" in step.arguments) == name.startswith("ablate")


def test_tuning_tries_half_once_and_twice_the_rate_of_each_recipe() -> None:
    for size in ("tiny", "small"):
        own = find_recipe(f"dino_dinovim_{size}160").optim.lr
        steps = STUDY.parts[f"tune-{size}-dinovim"].steps(SETTING)
        tried = [part for step in steps for part in step.arguments if part.startswith("optim.lr=")]
        assert tried == [f"optim.lr={own * times:g}" for times in (0.5, 1, 2)]


def test_ablations_are_of_full_length_and_change_one_thing() -> None:
    asked = ("local", "momentum", "temperature", "koleo", "rate", "batch", "registers", "length", "adamw", "blur")
    named = " ".join(variant for variants in ABLATIONS.values() for variant in variants)
    assert all(word in named for word in asked)
    given = {
        step.name.removeprefix("train "): " ".join(step.arguments)
        for name in ABLATIONS
        for step in STUDY.parts[f"ablate-{name}"].steps(SETTING)
    }
    assert "--set batch=128 --set steps=9000" in given.pop("batch-half") and "steps=2250" in given.pop("batch-double")
    assert "steps=5715" in given.pop("48px") and "steps=2250" in given.pop("half-length")
    assert "steps=9000" in given.pop("double-length") and "steps=" not in " ".join(given.values())


def test_networks_use_their_recipes_rate_and_only_results_and_16_bits_are_kept(studied: Path) -> None:
    run = studied / "run"
    assert read_json(run / "results" / "tuning.json")["chosen"]["dino-tiny"]["vit"] in QUICK.tuned_rates
    record = read_record(run / "vit-tiny-s0")
    assert "optim.lr" not in record["changed"] and not read_json(run / "results" / "study.json")["tuned"]
    assert not list(run.glob("tuning/*/weights.safetensors")) and not list(run.rglob("checkpoints"))
    weights = run / "vit-tiny-s0" / "weights.safetensors"
    assert weights.stat().st_size < 3 * record["measurements"][0]["subject"]["num_parameters"], "bytes of a parameter"


def test_changed_images_are_judged_by_the_papers_probe_wherever_the_network_was_trained() -> None:
    run = Path("RUN/vit-tiny-s0")
    steps = {step.name: step for step in STUDY.parts["look-tiny-vit-s0"].steps(SETTING)}
    assert steps["train vit-tiny-s0"].drops == (run / "probe",), "the speedrun's own probe is found first"
    assert steps["shifts vit-tiny-s0"].reads == (("probe vit-tiny-s0", run / "probe"),)
    assert steps["knn vit-tiny-s0 untrained"].reads == (
        ("twin vit-tiny-s0", run / "untrained" / "weights.safetensors"),
    )


def test_fewer_seeds_keep_what_more_seeds_left_in_the_summary(studied: Path) -> None:
    place = studied / "run" / "results" / "study.json"
    summary = read_json(place)
    step = {"step": "train vit-tiny-s1", "command": "mixlab speedrun", "seconds": 1.0, "date": "2026"}
    write_json(place, summary | {"seeds": [0, 1], "steps": summary["steps"] | {"dino-tiny-vit-s1": [step]}})
    go(studied, ("tune-tiny-vit",))
    found = read_json(place)
    assert found["seeds"] == [0, 1] and found["steps"] == summary["steps"] | {"dino-tiny-vit-s1": [step]}
    place.write_text("{")
    go(studied, ("tune-tiny-vit",))
    assert read_json(place)["seeds"] == [0]


def test_the_folder_goes_on_elsewhere_without_its_weights(studied: Path) -> None:
    other = shutil.copytree(studied / "run", studied / "elsewhere", ignore=shutil.ignore_patterns("*.safetensors"))
    marks = {mark: mark.read_text() for mark in (other / "steps").glob("*.json") if mark.name != "parts.json"}
    go(studied, RUN_PARTS, run="elsewhere")
    assert {mark: mark.read_text() for mark in marks} == marks
    assert not list(other.rglob("*.safetensors")), "something was trained again"


def test_parts_are_listed_with_their_minutes_and_chosen_by_patterns(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "small", "--list", "--part", "dino-tiny-*", "cost"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1 + 15 + 1 and lines[-1].startswith("cost\t")
    assert main(["study", "small", "--list", "--part", "dino-huge-*"]) == 1
    assert main(["study", "small", "--part", "cost"]) == 1
    assert main(["study", "miniature", "--run", "x", "--voc", "y"]) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert " more; --list lists them" in said
    assert "no part dino-huge-*" in said and "give --run DIR" in said and "--voc has no effect" in said
