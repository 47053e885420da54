"""The speedrun: stopped, resumed, scored, timed, published; and the page that is made from records."""

import json
import os
import shlex
import shutil
import signal
import sys
from itertools import pairwise, product
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import torch

from mixlab.backbones.weights import model_from_file
from mixlab.cli import main
from mixlab.data.labelled import labelled_splits
from mixlab.evaluation.knn import evaluate_knn
from mixlab.evaluation.settings import KnnSettings
from mixlab.evaluation.target import load_target
from mixlab.recipes import RECIPES, find_recipe
from mixlab.run.codec import to_json
from mixlab.run.files import read_json, write_json
from mixlab.run.provenance import MPS_PIPES
from mixlab.studies import shipping
from mixlab.studies.speedrun import page
from mixlab.studies.speedrun.record import changed_settings, command_of, read_record
from mixlab.training.loop import Trainer
from mixlab.training.settings import override
from tests.drawn_folders import draw_folders

REPORT = Trainer.report

SETTINGS = (
    "model.dim=32", "model.depth=2", "model.head_dim=16", "model.image=32", "data.size=32", "steps=12", "batch=8",
    "optim.warmup_steps=0", "log.every_steps=1", "method.num_prototypes=32", "method.hidden=32", "method.num_local=1",
    "method.global_size=32", "method.local_size=16",
)  # fmt: skip


def go(root: Path, name: str, *more: str, data: bool = True) -> int:
    given = ("--data", str(root / "photos"), "--device", "cpu", "--workers", "0") if data else ()
    settings = [part for setting in SETTINGS for part in ("--set", setting)] if data else []
    return main(["speedrun", "dino_vit_tiny160", "--run", str(root / name), *given, *settings, *more])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ROOT with a run that was stopped in the middle and then finished, and one on the held-out fifth."""
    root = tmp_path_factory.mktemp("speedrun")
    draw_folders(root)

    def stop_after_six(trainer: Trainer) -> None:
        REPORT(trainer)
        if trainer.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(Trainer, "report", stop_after_six)
        patch.setenv(MPS_PIPES, "/mps")
        go(root, "run", "--seed", "1")
    assert stopped.value.code == 143
    assert not (root / "run" / "results" / "speedrun.json").exists()
    (root / "stopped.json").write_text((root / "run" / "seconds.json").read_text())
    assert go(root, "run", "--publish", data=False) == 1, "an unfinished run was published"
    assert go(root, "run", "--seed", "1") == 0
    assert go(root, "tuned", "--held-out", "--set", "optim.lr=3e-3") == 0
    return root


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page without records."""
    shutil.copy(page.DOCS / page.PAGE, tmp_path)
    monkeypatch.setattr(page, "DOCS", tmp_path)
    page.write_page()
    return tmp_path


def clean(root: Path, name: str) -> None:
    """As if a commit without changes had made it."""
    place = root / name / "results" / "speedrun.json"
    record = read_json(place)
    for origin in (*record["sessions"], record["provenance"]):
        origin["commit"] = "abc1234"
    write_json(place, record)


def rows_of(table: str) -> list[str]:
    """Of a table, without its header."""
    return [line for line in table.splitlines() if line.startswith("| ")][2:]


def test_a_stopped_run_resumes_and_its_record_has_scores_that_can_be_measured_again(ran: Path) -> None:
    run = ran / "run"
    record = read_record(run)
    assert [session["from_step"] for session in record["sessions"]] == [0, 6] and record["steps"] == 12
    seconds = record["seconds"]
    assert seconds["training"] > read_json(ran / "stopped.json")["training"] > 0
    assert seconds["all_in"] == pytest.approx(seconds["training"] + seconds["scoring"], abs=0.02)
    assert (record["timed_on"], record["seed"], record["held_out"], record["images_seen"]) == ("CPU", 1, False, 96)
    knn, probe = record["measurements"]
    val = len(list((ran / "photos" / "val").rglob("*.png")))
    assert knn["n"] == probe["n"] == record["num_val"] == val
    again = evaluate_knn(load_target(str(run), device="cpu"), str(ran / "photos"), KnnSettings(k=(20,)))
    assert again.measurements[0].value == knn["value"]
    stored = model_from_file(run).state_dict()["layers.0.mlp.up.weight"]
    assert torch.equal(stored, stored.half().float()), "what is kept has 16 bits"
    assert [row["step"] for row in record["curve"]] == list(range(1, 13))
    assert record["shares_gpu"], "its first session shared the GPU"
    assert not read_record(ran / "tuned")["shares_gpu"]


def test_a_trained_run_whose_record_is_gone_is_scored_again_and_never_trained_again(
    ran: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(ran / "run", ran / "again")
    weights, seconds, config = (run / name for name in ("weights.safetensors", "seconds.json", "config.json"))
    before, trained = weights.read_bytes(), read_json(seconds)["training"]
    (run / "results" / "speedrun.json").unlink()
    assert go(ran, "again", "--seed", "1") == 0
    assert weights.read_bytes() == before
    assert "loss" in read_json(run / "results" / "training.json")["figures"], "lost by a resume without a step to do"
    shutil.rmtree(run / "checkpoints")
    (run / "results" / "speedrun.json").unlink()
    sessions = len(read_json(config)["sessions"])
    assert go(ran, "again", "--seed", "2") == 1
    assert "another speedrun (seed was 1, is 2)" in " ".join(capfd.readouterr().err.split())
    assert go(ran, "again", "--seed", "1") == 0
    assert weights.read_bytes() == before and len(read_json(config)["sessions"]) == sessions
    assert read_json(seconds)["training"] < 2 * trained
    settings = [part for setting in (*SETTINGS, "seed=1", "precision=fp32") for part in ("--set", setting)]
    given = ["--data", str(ran / "photos"), "--run", str(run), "--device", "cpu", *settings]
    assert main(["pretrain", "dino_vit_tiny160", *given]) == 1
    assert "nothing to resume; to train it again, choose another" in " ".join(capfd.readouterr().err.split())
    assert weights.read_bytes() == before


def test_a_second_command_is_refused_while_the_first_one_scores(ran: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(ran / "run", ran / "scored")
    shutil.rmtree(run / "checkpoints")
    (run / "results" / "speedrun.json").unlink()
    held = "import sys; from pathlib import Path; from mixlab.run.lock import RunLock\n"
    held += "with RunLock(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    with Popen([sys.executable, "-c", held, str(run)], stdin=PIPE, stdout=PIPE) as first:
        assert first.stdout and first.stdout.readline() and first.stdin
        assert go(ran, "scored", "--seed", "1") == 1
        assert f"in use by process {first.pid}" in " ".join(capfd.readouterr().err.split())
        first.stdin.close()
    assert go(ran, "scored", "--seed", "1") == 0


def test_damaged_records_are_refused_with_a_way_out(ran: Path, docs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = ran / "tuned" / "results" / "speedrun.json"
    before = place.read_text()
    record = json.loads(before)
    fields = ("data", "seconds", "sessions", "provenance", "held_out", "timed_on", "measurements", "changed")
    for damaged in ({}, {"kind": "speedrun"}, record | {"measurements": []}, *(record | {f: None} for f in fields)):
        write_json(place, damaged)
        assert go(ran, "tuned", data=False) == 1
        said = " ".join(capfd.readouterr().err.split())
        assert "speedrun.json" in said and "remove it, and run the command that wrote it again" in said
    place.write_text(before)
    clean(ran, "tuned")
    (docs / page.RECORDS / "results").mkdir(parents=True)
    other = docs / page.RECORDS / "results" / "other.json"
    write_json(other, {"kind": "speedrun"})
    assert go(ran, "tuned", "--publish", data=False) == 1
    assert "other.json has no field" in " ".join(capfd.readouterr().err.split())
    other.unlink()
    (docs / page.PAGE).write_text("no marks")
    assert go(ran, "tuned", "--publish", data=False) == 1
    assert "lacks the marks" in capfd.readouterr().err
    assert not list(other.parent.iterdir()), "a record without its row"
    place.write_text(before)


def test_tuning_scores_the_held_out_fifth(ran: Path) -> None:
    record = read_record(ran / "tuned")
    fifth = labelled_splits(f"heldout:{ran / 'photos'}")
    assert record["held_out"] and record["num_val"] == len(fifth.val) and record["num_train"] == len(fifth.train)
    assert record["changed"]["optim.lr"] == 3e-3 and "seed" not in record["changed"]


def test_a_record_says_what_differs_from_its_recipe_as_that_is_today(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"optim.lr", "steps"} <= set(read_record(ran / "tuned")["changed"])
    then = find_recipe("dino_vit_tiny160")
    monkeypatch.setitem(RECIPES.data, "dino_vit_tiny160", lambda: override(then, ("optim.lr=3e-3", "steps=12")))
    assert not {"optim.lr", "steps"} & set(read_record(ran / "tuned")["changed"])


def test_runs_of_a_changed_tree_unknown_commits_or_other_settings_are_refused(
    ran: Path, docs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = ran / "run" / "results" / "speedrun.json"
    before = place.read_text()

    def said(*more: str, **changed: Any) -> str:
        record = json.loads(before)
        record["provenance"]["commit"] = "abc1234"
        for session in record["sessions"]:
            session |= {"commit": "abc1234"} | changed
        write_json(place, record)
        assert go(ran, "run", *more, data=False) == 1
        place.write_text(before)
        return " ".join(capfd.readouterr().err.split())

    assert "by a changed source tree (abc1234-dirty)" in said("--publish", commit="abc1234-dirty")
    assert "does not say which commit made it" in said("--publish", commit=None)
    assert "by several commits (abc1234, def5678)" in said("--publish", commit="def5678")
    assert "another speedrun (seed was 1, is 2)" in said("--seed", "2")
    assert "another speedrun (data was photos, is cats)" in said("--data", "cats")
    assert "data was photos, is heldout:photos" in said("--data", "/elsewhere/photos", "--held-out")
    assert "needs labelled images: give --data" in (go(ran, "new", data=False), capfd.readouterr().err)[1]
    trained = ["--run", str(ran / "new"), "--data", str(ran / "photos" / "train")]
    assert main(["speedrun", "dino_vit_tiny160", *trained]) == 1
    assert "no validation images of its own; add val/" in " ".join(capfd.readouterr().err.split())
    for split, numbers in (("train", range(3)), ("val", range(3, 5))):
        (ran / "few" / split / "one").mkdir(parents=True)
        (ran / "few" / split / "two").mkdir()
        for file, number in product(sorted((ran / "photos" / "val").rglob("*.png"))[:2], numbers):
            for name in ("one", "two"):
                shutil.copy(file, ran / "few" / split / name / f"{number}-{file.name}")
    few = ["--run", str(ran / "new"), "--data", str(ran / "few")]
    assert main(["speedrun", "dino_vit_tiny160", *few]) == 1 and not (ran / "new").exists()
    assert "has 12 training images; a speedrun scores by 20 neighbours" in " ".join(capfd.readouterr().err.split())
    shutil.copytree(ran / "run", ran / "other", ignore=shutil.ignore_patterns("seconds.json", "speedrun.json"))
    assert go(ran, "other", "--seed", "1") == 1
    assert "started by another command" in " ".join(capfd.readouterr().err.split())
    assert page.NONE_YET in (docs / page.PAGE).read_text() and not page.read_records(docs)


def test_published_runs_are_rows_without_places_that_can_be_made_again(ran: Path, docs: Path) -> None:
    empty = (docs / page.PAGE).read_text()
    assert empty.count(page.NONE_YET) == 2
    for name in ("run", "tuned"):
        clean(ran, name)
        assert go(ran, name, "--publish", data=False) == 0
    text = (docs / page.PAGE).read_text()
    assert page.NONE_YET not in text and "CPU-seconds" in text and "abc1234" in text
    knn = read_record(ran / "run")["measurements"][0]["value"]
    table, tuned = (
        text.partition(f"<!-- {mark} -->")[2].partition("<!-- end")[0] for mark in ("runs", "held-out runs")
    )
    assert f"| 1: {100 * knn:.1f} |" in table and "mixlab speedrun dino_vit_tiny160 --data photos" in table
    seconds = read_record(ran / "run")["seconds"]["training"]
    assert f"| ({seconds:,.0f}) |" in table, "seconds of a run that shared the GPU"
    assert "optim.lr=0.003" in tuned and "optim.lr" not in table
    for file in docs.rglob("*.json"):
        assert str(ran) not in file.read_text(), f"{file} names a place on this machine"
    assert go(ran, "run", "--publish", data=False) == 0
    assert (docs / page.PAGE).read_text() == text, "a run published twice is one row"
    shutil.rmtree(docs / page.RECORDS)
    page.write_page()
    assert (docs / page.PAGE).read_text() == empty


def test_a_difference_is_from_the_run_with_one_change_less(ran: Path) -> None:
    record = json.loads((ran / "tuned" / "results" / "speedrun.json").read_text())
    base = {**record, "changed": {name: value for name, value in record["changed"].items() if name != "optim.lr"}}
    fewer = {**base, "changed": {}}
    assert page._base(record, [record, fewer, base]) is base and page._base(base, [record, base]) is None
    first, last = rows_of(page.held_out_table([record, base]))
    assert first.startswith("| `dino_vit_tiny160`, `batch=8`, ") and last.startswith("| ↳ `optim.lr=0.003` | ")
    assert "| +0.0" in last and "| +0.0" not in first


def test_runs_of_another_length_are_no_ablations_unless_length_is_the_change(ran: Path) -> None:
    record = json.loads((ran / "tuned" / "results" / "speedrun.json").read_text())
    images = record["images_seen"]
    whole = {**record, "changed": {}}
    half = {**whole, "changed": {"steps": 6}, "images_seen": images // 2}
    clipped = {**half, "changed": {"steps": 6, "optim.clip": 1.0}}
    assert page._base(half, [whole, half, clipped]) is whole
    assert page._base(clipped, [whole, clipped]) is None and page._base(clipped, [whole, half, clipped]) is half
    small = {**whole, "changed": {"batch": 4, "steps": 24}}
    assert page._base(small, [whole, half, small]) is whole, "as many images in smaller batches"


def test_other_data_have_a_table_of_their_own(ran: Path) -> None:
    record = json.loads((ran / "run" / "results" / "speedrun.json").read_text()) | {"data": "photos"}
    easy = {**record, "data": "easy", "seconds": record["seconds"] | {"all_in": 120.0}, "shares_gpu": False}
    table = page.runs_table([easy, {**record, "seed": 2}, record])
    said = [line.split("data ")[1] for line in table.splitlines() if line.startswith("All rows: ")]
    assert said == [f"photos, n = {record['num_val']}.", f"easy, n = {record['num_val']}."]
    assert "All runs together: 2 minutes all in." in page.runs_table([easy])
    quick = {**easy, "seconds": easy["seconds"] | {"all_in": 60.0}}
    assert "All runs together: 1 minute all in." in page.runs_table([quick])


def test_what_all_rows_share_is_said_once(ran: Path) -> None:
    record = json.loads((ran / "tuned" / "results" / "speedrun.json").read_text())
    other = {**record, "seed": 1}
    processor = record["provenance"]["machine"]["processor"]
    said, _, columns, *_ = page.held_out_table([record]).splitlines()
    assert said == f"All rows: seed 0; on {processor}." and "| seed |" not in columns and "| on |" not in columns
    table = page.held_out_table([other, record])
    said, _, columns, *_ = table.splitlines()
    assert said == f"All rows: on {processor}." and "| seed |" in columns
    assert [row.split(" | ")[1] for row in rows_of(table)] == ["0", "1"]


def test_the_page_of_this_checkout_is_the_one_that_its_records_make() -> None:
    text = (page.DOCS / page.PAGE).read_text(encoding="utf-8")
    assert page.page_text(text, page.read_records(page.DOCS)) == text, "run python -m mixlab.studies.speedrun.page"


def test_a_network_is_shipped_with_a_card_of_what_was_measured(
    ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, data = tmp_path / "vit.safetensors", str(ran / "photos")
    options = ["--bits", "8", "--device", "cpu", "--data", data, "--licence", "drawn by us"]
    assert main(["ship", str(ran / "run"), "--out", str(out), *options]) == 0
    card = out.with_suffix(".md").read_text()
    knn, probe = read_record(ran / "run")["measurements"]
    for part in ("# vit", "| training | dino, `dino_vit_tiny160`, ",
                 "`steps=12`, 12 steps |", "drawn by us", "| seed, commit | 1, ",
                 f"{100 * knn['value']:.1f} [", f"{100 * probe['value']:.1f} ["):  # fmt: skip
        assert part in card
    assert str(ran) not in card
    assert load_target(str(out), device="cpu").backbone.num_parameters == knn["subject"]["num_parameters"]
    assert main(["ship", str(ran / "run"), "--out", str(out), *options]) == 1, "a file was replaced without --force"
    monkeypatch.setattr(shipping, "MOST_LOST", -1.0)
    before = out.read_bytes()
    assert main(["ship", str(ran / "run"), "--out", str(out), *options, "--force"]) == 1
    assert out.read_bytes() == before and len([*tmp_path.iterdir()]) == 2, "a file that loses too much took one along"


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("dino_vit_tiny160", ("model.causal=true", "model.place=back")),
        ("dino_vit_tiny160", ("optim.lr=0.00123456789", "optim.clip=none", "method.norm_last_layer=false")),
        ("dino_vit_tiny160", ("method.local_scale=0.05,0.25", "optim.name=adamw")),
        ("supervised_vmamba_tiny64", ("model.dims=[16,24,32,48]",)),
    ],
)
def test_the_published_command_repeats_every_setting(recipe: str, settings: tuple[str, ...]) -> None:
    config = override(find_recipe(recipe), settings)
    changed = changed_settings(recipe, to_json(config))
    words = shlex.split(command_of({"recipe": recipe, "changed": changed, "data": "x", "held_out": False, "seed": 0}))
    again = [value for option, value in pairwise(words) if option == "--set"]
    assert len(again) == len(changed) and override(find_recipe(recipe), again) == config
