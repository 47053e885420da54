"""Steps in a few processes: one that fails ends the others, and none is left behind."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from in_process import here
from rich.console import Console
from rich.progress import Progress

from mixlab.errors import InputError, WorkError
from mixlab.run import RunDirectory
from mixlab.run.files import write_json
from mixlab.studies.demo import QUICK, plan
from mixlab.studies.elapsed import elapsed, noting_time
from mixlab.studies.reproduce.run import check_agreement
from mixlab.studies.steps import Step, _columns, _unfinished, is_done, keep_settings, rename_folder, run_steps
from mixlab.studies.workers import num_threads, run_step, worker_pool
from tests.drawn_folders import draw_folders
from tests.waiting import wait_for

ENDLESS = ("epochs=100000", "model.dim=32", "model.depth=2", "batch=16", "log.every_steps=1", "knn.every_epochs=0")


@pytest.mark.skipif(os.environ.get("MIXLAB_FAULTS") != "all", reason="a long test; set MIXLAB_FAULTS=all")
def test_a_step_that_fails_stops_the_others_which_save(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = tuple(part for setting in ENDLESS for part in ("--set", setting))
    training = ("pretrain", "dino_vit_tiny64", "--data", "shapes:n=64", "--run", str(run), "--device", "cpu", *settings)
    fails = Step(
        "twin", "twin", "of no run", ("twin", str(tmp_path / "no run"), str(tmp_path / "x"), "0"), tmp_path / "never"
    )
    with pytest.raises(RuntimeError, match="twin failed: .*there is no file"), worker_pool(2) as pool:
        pool.submit(run_step, training, tmp_path / "log.txt", 1, "test")
        wait_for((run / "metrics.jsonl").is_file, seen=lambda: "Training did not begin.")
        processes = list((pool._processes or {}).values())
        run_steps([fails], tmp_path, pool, workers=1, command="test")
    assert not any(process.is_alive() for process in processes)
    assert list((run / "checkpoints").iterdir()), "what was trained is lost"


def marked(folder: Path, name: str, **given: Any) -> Step:
    """A step that is done."""
    step = Step(name, name, "", (name,), folder / f"{name}.json", **given)
    write_json(step.result, {})
    write_json(folder / "steps" / f"{name.replace(' ', '_')}.json", {"arguments": [name]})
    return step


@pytest.mark.parametrize("damaged", ["x.json", "steps/x.json"])
@pytest.mark.parametrize("content", ["", '{"arguments": ["x"', "[]"])
def test_a_step_with_a_damaged_result_or_mark_is_not_done(damaged: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    step = marked(tmp_path, "x")
    assert is_done(step, tmp_path)
    (tmp_path / damaged).write_text(content)
    assert not is_done(step, tmp_path)


def test_what_a_step_left_is_made_again_for_an_unfinished_step_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    head = tmp_path / "head"
    trained, probed = marked(tmp_path, "train"), marked(tmp_path, "probe x", needs=("train",))
    scored = marked(tmp_path, "score", needs=("probe x",), reads=(("probe x", head),))
    ranked = marked(tmp_path, "rank", needs=("probe x",))
    steps = [trained, probed, scored, ranked]
    assert not _unfinished(steps, tmp_path)
    ranked.result.unlink()
    assert _unfinished(steps, tmp_path) == [ranked]
    scored.result.unlink()
    assert _unfinished(steps, tmp_path) == [scored, ranked, probed]
    head.touch()
    assert _unfinished(steps, tmp_path) == [scored, ranked]


def test_an_error_quotes_the_last_attempt_alone_also_where_a_name_is_no_text(tmp_path: Path) -> None:
    missing = str(tmp_path / "no\udcffrun")
    step = Step("twin", "twin", "of no run", ("twin", missing, str(tmp_path / "x"), "0"), tmp_path / "never")
    for _ in range(2):
        with (
            pytest.raises(WorkError, match=r"twin failed: error: .*Run the same command again") as told,
            here(1) as pool,
        ):
            run_steps([step], tmp_path, pool, workers=1, command="test")
    assert str(told.value).count("error: ") == 1 and "$ mixlab" not in str(told.value)


def test_what_no_other_step_may_find_is_gone_once_a_step_is_done(tmp_path: Path) -> None:
    (tmp_path / "run" / "probe").mkdir(parents=True)
    _, masks = draw_folders(tmp_path)
    labels = tmp_path / "labels"
    step = Step(
        "labels", "labels", "", ("labels", str(masks), str(labels)), labels, drops=(tmp_path / "run" / "probe",)
    )
    with here(1) as pool:
        run_steps([step], tmp_path, pool, workers=1, command="test")
    assert is_done(step, tmp_path) and list((tmp_path / "run").iterdir()) == []


def test_the_error_within_is_raised_where_the_time_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "parts.json"
    with noting_time(place, "dino"):
        pass
    assert list(elapsed(place)) == ["dino"]

    def fails(*given: object) -> None:
        raise WorkError("the disk is full")

    monkeypatch.setattr("mixlab.studies.elapsed.write_json", fails)
    with pytest.raises(ValueError, match="what happened"), noting_time(place, "dino"):
        raise ValueError("what happened")
    with pytest.raises(WorkError, match="the disk is full"), noting_time(place, "dino"):
        pass
    for content in ("", '{"dino": "long"}'):
        place.write_text(content)
        with pytest.raises(InputError, match=r"parts.json.*; restore the file, or remove it to count the time"):
            elapsed(place)


@pytest.mark.parametrize("under", [None, "demo"])
def test_steps_resume_with_their_own_settings_alone(under: str | None, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    keep_settings(run, {"seed": 1, "data": "photos"}, under=under)
    keep_settings(run, {"seed": 1, "data": "photos"}, under=under)
    with pytest.raises(InputError, match=r"begun with other settings \(seed was 1, is 2\); give another --run, or the"):
        keep_settings(run, {"seed": 2, "data": "photos"}, under=under)
    (run.path / "steps").mkdir()
    (run.path / "steps" / "knn.json").touch()
    (run.path / "config.json").unlink()
    with pytest.raises(InputError, match="finished steps without their config.json"):
        keep_settings(run, {"seed": 2, "data": "photos"}, under=under)


def test_a_reproduction_neither_replaces_settings_that_are_gone_nor_those_of_something_else(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_config({"demo": {"seed": 0}})
    with pytest.raises(InputError, match="belongs to another command"):
        check_agreement(run, tmp_path, "full")
    (run.path / "config.json").unlink()
    (run.path / "steps").mkdir()
    (run.path / "steps" / "train.json").touch()
    with pytest.raises(InputError, match="finished steps without their config.json"):
        check_agreement(run, tmp_path, "tiny")


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("dino_vit_tiny64", "vit", "dino_vit_tiny64"),  # a recipe, in a run that is called vit
        ("vit_tiny", "vit", "vit_tiny"),
        ("vit", "vit", "vit"),
        ("vit/dino_vit_s0", "vit", "RUN/dino_vit_s0"),
        ("model.weights=vit/dino_vit_s0", "vit", "model.weights=RUN/dino_vit_s0"),
        ("mixlab study miniature --run vit --part vit", "vit", "mixlab study miniature --run RUN --part vit"),
        ("runs/a/x and runs/ab/x", "runs/a", "RUN/x and runs/ab/x"),
        ("knn /home/me/runs/a --json -", "/home/me/runs/a", "knn RUN --json -"),
        ("wds:/home/me/runs/a/{0..3}.tar", "/home/me/runs/a", "wds:RUN/{0..3}.tar"),
    ],
)
def test_a_folder_gets_another_name_and_words_with_its_letters_do_not(text: str, place: str, told: str) -> None:
    assert rename_folder(text, place, "RUN") == told


def test_running_steps_fit_eighty_columns_with_numbers_and_time_whole() -> None:
    screen = Console(width=80, record=True, file=io.StringIO())
    progress = Progress(*_columns(), console=screen)
    [trained] = [step for step in plan(Path("demo"), QUICK, seed=0) if step.trains]
    note = "loss 2.31 kNN 47.8 % accuracy 36.0 %"
    progress.add_task(trained.title, total=10, completed=3, note=note)
    progress.add_task("ranks of the mixing matrices", total=None, note="")
    screen.print(progress.get_renderable())
    shown = screen.export_text()
    assert f"{trained.title} " in shown and note in shown and shown.count("0:00:00") == 2 and "…" not in shown, shown


@pytest.mark.parametrize(("said", "threads"), [("", 4), ("16", 4), ("2", 2), ("0", 4), ("all", 4)])
def test_workers_share_the_cores_whatever_a_cluster_says(
    said: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixlab.studies.workers.num_cores", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert num_threads(4) == threads and num_threads(40) == 1
