"""A whole study in little: tuned, trained, judged, reported, published; and what happens when it is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import here
from PIL import Image

from mixlab.cli import main
from mixlab.data.mask_formats import parse_label_maps
from mixlab.errors import InputError, WorkError
from mixlab.run import RunDirectory, unpacked
from mixlab.run.files import read_json, write_json
from mixlab.studies.folders import hold_out, write_labels
from mixlab.studies.manifest import Manifest
from mixlab.studies.miniature.parts import MINIATURE
from mixlab.studies.miniature.plan import QUICK
from mixlab.studies.plan import STUDY_FAMILIES
from mixlab.studies.publishing import publish_study
from mixlab.studies.speedrun import page
from mixlab.studies.study import run_study
from tests.drawn_folders import NUM_MASKS, draw_folders
from tests.waiting import wait_for

SMALL = replace(QUICK, training=(*QUICK.training, "model.dim=32"), num_scored=4)
TWO = tuple(family for family in STUDY_FAMILIES if family.label in ("vit", "mambareg"))
START = """
from pathlib import Path
from test_study import TWO, go
if __name__ == "__main__":
    go(Path({root!r}), ("dino",), families=TWO[1:], seeds=(0,))
"""


def go(root: Path, parts: tuple[str, ...], *, families: Any = TWO, seeds: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    return run_study(
        MINIATURE,
        data=root / "photos",
        masks=str(root / "masked"),
        run=root / "run",
        parts=parts,
        seeds=seeds,
        effort=SMALL,
        at_once=1,
        device="cpu",
        families=families,
    )


@pytest.fixture(scope="module", autouse=True)
def in_this_process() -> Iterator[None]:
    """Steps, not in a worker, which imports torch anew: test_demo.py and test_steps.py have workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixlab.studies.study.worker_pool", here)
        patch.setattr(sys, "argv", ["mixlab"])
        yield


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    draw_folders(root)
    go(root, ("tune", "dino", "registers", "mambaout", "ledger"))
    return root


@pytest.fixture(scope="module")
def published(studied: Path) -> Path:
    """With a result that names a place besides."""
    RunDirectory.open(studied / "run").write_result("note", {"command": "mixlab x --json /srv/my data/a.json --b 3/4"})
    publish_study(studied / "run", studied / "published")
    (studied / "run" / "results" / "note.json").unlink()
    return studied / "published"


def test_the_best_trial_of_each_family_is_chosen_and_used(studied: Path) -> None:
    tuning = read_json(studied / "run" / "results" / "tuning.json")
    assert len(tuning["trials"]) == 2 * len(TWO) * len(QUICK.tuned_rates)
    for training in ("dino", "supervised"):
        for family in TWO:
            own = [t for t in tuning["trials"] if (t["training"], t["family"]) == (training, family.label)]
            best = max(trial["value"] for trial in own)
            assert tuning["chosen"][training][family.label] in {t["lr"] for t in own if t["value"] == best}
    for family in TWO:
        config = RunDirectory.open(studied / "run" / f"{family.label}-s1").read_config()
        assert config["settings"]["optim"]["lr"] == tuning["chosen"]["dino"][family.label]


def test_tuning_never_looks_at_the_held_out_images(studied: Path) -> None:
    folds = studied / "run" / "tuning" / "folds"
    parts = {part: {path.resolve() for path in (folds / part).rglob("*.png")} for part in ("train", "val")}
    assert parts["train"] | parts["val"] == set((studied / "photos" / "train").rglob("*.png"))
    assert parts["val"] and not parts["train"] & parts["val"]


def test_training_with_labels_leaves_the_accuracy_on_held_out_images(studied: Path) -> None:
    result = read_json(studied / "run" / "vit-causal-s0" / "results" / "accuracy.json")
    (found,) = result["measurements"]
    assert (found["metric"], found["seed"]) == ("top1", 0)
    assert (found["subject"]["training"], found["subject"]["causal"]) == ("supervised", True)
    assert found["n"] == len(list((studied / "photos" / "val").rglob("*.png")))
    assert found["value"] == result["score"]["correct"] / found["n"]


def test_the_ledger_finds_what_the_parts_measured(studied: Path) -> None:
    ledger = {claim["number"]: claim for claim in read_json(studied / "run" / "results" / "claims.json")["claims"]}
    for number in (10, 12, 13, 18, 21):
        assert ledger[number]["status"] != "not measured", ledger[number]["statement"]
    assert "register auc follows probe" in ledger[12]["measured"]


def test_the_summary_has_the_minutes_of_each_part_and_the_seconds_of_each_step(studied: Path) -> None:
    summary = read_json(studied / "run" / "results" / "study.json")
    assert list(summary["minutes"]) == ["tune", "dino", "mambaout", "registers", "ledger"]
    assert summary["data"]["num_classes"] == 3 and summary["data"]["num_masks"] == NUM_MASKS
    assert summary["tuned"] and str(studied) not in json.dumps(
        summary["steps"]["dino"][0]["command"].split("--data")[0]
    )
    steps = [step for part in summary["steps"].values() for step in part]
    assert all(step["seconds"] >= 0 and step["command"].startswith("mixlab ") for step in steps)


def test_a_finished_part_is_left_alone(studied: Path) -> None:
    weights = studied / "run" / "vit-s0" / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    go(studied, ("dino",))
    assert weights.stat().st_mtime_ns == before
    assert not (studied / "run" / "vit-s0" / "checkpoints").exists(), "what nobody needs was kept"


def test_the_published_form_is_small_names_no_place_and_makes_the_same_report(studied: Path, published: Path) -> None:
    out, page = published, (published / "report.html").read_text(encoding="utf-8")
    assert {file.name for file in out.iterdir()} == {"report.html", "README.md", "runs.tar.xz", "manifest.json"}
    with unpacked(out) as runs:
        files = [*out.glob("*.*m*"), *(file for file in runs.rglob("*") if file.is_file())]
        kinds = {file.suffix for file in files}
        assert kinds <= {".json", ".jsonl", ".html", ".md", ".npz"}, "weights or pictures were published"
        assert [file.name for file in runs.rglob("*.npz")] == ["maps.npz"], "arrays that no figure needs were published"
        for file in files:
            if file.suffix != ".npz":
                assert str(studied) not in file.read_text(encoding="utf-8"), f"{file} names a place on this machine"
        assert read_json(runs / "results" / "maps.json")["data"].startswith("shapes"), "photographs were published"
    sections = re.findall(r'<section id="(\w+)"', page)
    own = re.findall(r'<section id="(\w+)"', (studied / "run" / "report.html").read_text(encoding="utf-8"))
    assert sections == [name for name in own if name != "dense"]  # pictures of scenes are not published
    assert "study" in sections and "ledger" in sections
    assert "2 seeds" in page and "## The ledger" in (out / "README.md").read_text(encoding="utf-8")


def test_no_absolute_path_of_any_kind_is_published(published: Path) -> None:
    with unpacked(published) as runs:
        assert read_json(runs / "results" / "note.json")["command"].startswith("mixlab x --json my ")
        for file in runs.rglob("*.json"):
            assert not re.search(r"""["' =]/\w+/""", file.read_text(encoding="utf-8")), f"{file} names a place"


def test_published_scores_of_images_give_the_published_mean(published: Path) -> None:
    with unpacked(published) as runs:
        result = read_json(runs / "results" / "auc_model.json")
    for row in result["rows"]:
        raw = np.array(result["raw_auc_by_image"][row["label"]], dtype=float)
        assert np.nanmean(np.maximum(raw, 1 - raw)) == pytest.approx(row["auc"]["mean"], abs=1e-3)
        assert len(raw) == SMALL.num_scored


def test_a_folder_that_is_no_study_is_not_published(tmp_path: Path, studied: Path) -> None:
    RunDirectory.create(tmp_path / "run").write_config({"seed": 1})
    with pytest.raises(ValueError, match=r"is not a study.*--run"):
        publish_study(tmp_path / "run", tmp_path / "out")


def test_a_part_whose_needs_are_missing_names_the_part_to_run_first(tmp_path: Path) -> None:
    draw_folders(tmp_path)
    with pytest.raises(ValueError, match=r"part ranks needs part dino.*vit-s0: train.*--part dino"):
        go(tmp_path, ("ranks",), families=TWO[1:])


def test_bad_folders_are_refused_before_anything_is_trained(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    photos, masked = draw_folders(tmp_path)
    run = tmp_path / "run"
    for data, masks in ((tmp_path / "nowhere", masked), (photos, tmp_path / "nowhere"), (photos, photos)):
        assert main(["study", "miniature", "--data", str(data), "--masks", str(masks), "--run", str(run)]) == 1
        assert "error" in capfd.readouterr().err
    empty = shutil.copytree(photos, tmp_path / "empty")
    shutil.rmtree(empty / "val")
    (empty / "val").mkdir()
    assert main(["study", "miniature", "--data", str(empty), "--masks", str(masked), "--run", str(run), "--quick"]) == 1
    assert "empty/val holds no images" in " ".join(capfd.readouterr().err.split())
    assert not run.exists()
    assert main(["study", "miniature", "--data", str(photos), "--masks", str(masked), "--run", str(run),
                 "--part", "sleep"]) == 1  # fmt: skip
    assert "no part sleep" in capfd.readouterr().err
    assert main(["study", "miniature", "--data", str(photos), "--masks", str(masked), "--run", str(run)]) == 1
    assert "images for training; the study needs 160 or more" in " ".join(capfd.readouterr().err.split())


def test_a_place_that_cannot_be_published_to_is_refused_before_anything_is_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, masked = draw_folders(tmp_path)
    (tmp_path / "file").touch()
    given = ["study", "miniature", "--data", str(photos), "--masks", str(masked), "--run", str(tmp_path / "run")]
    assert main([*given, "--quick", "--publish", str(tmp_path / "file")]) == 1
    assert main([*given, "--quick", "--publish", str(tmp_path / "run" / "site")]) == 1
    monkeypatch.setattr("mixlab.studies.publishing.os.access", lambda place, mode: False)
    assert main([*given, "--quick", "--publish", str(tmp_path / "new" / "site")]) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert "is a file; give a folder" in said and "lies in the study itself" in said
    assert f"{tmp_path} is not writable; give another folder" in said
    assert not (tmp_path / "run").exists() and not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", ["", "{}"])
def test_a_damaged_choice_of_rates_is_refused_with_a_way_out(content: str, studied: Path) -> None:
    place = studied / "run" / "results" / "tuning.json"
    before = place.read_text()
    place.write_text(content)
    with pytest.raises(InputError, match=r"tuning\.json .*; remove it, and run the command that wrote it again"):
        go(studied, ("dino",))
    place.write_text(before)


def test_a_ledger_that_fails_leaves_the_earlier_one(studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = studied / "run" / "results" / "claims.json"
    before = place.read_text()

    def fails(*given: object, **named: object) -> None:
        raise WorkError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(WorkError, match="the disk is full"):
        patch.setattr("mixlab.studies.study.run_steps", fails)
        go(studied, ("ledger",))
    assert place.read_text() == before
    write_json(place, json.loads(before) | {"claims": []})
    go(studied, ("ledger",))
    assert len(read_json(place)["claims"]) == len(json.loads(before)["claims"]), "the ledger was not drawn up again"


def test_another_study_does_not_go_into_the_same_directory(studied: Path) -> None:
    with pytest.raises(ValueError, match=r"begun with other settings \(data was .*; give another --run"):
        run_study(
            MINIATURE,
            data=studied / "photos" / "train",
            masks=str(studied / "masked"),
            run=studied / "run",
            parts=("dino",),
            seeds=(0,),
            effort=QUICK,
            at_once=1,
            device="cpu",
        )


@pytest.mark.skipif(os.environ.get("MIXLAB_FAULTS") != "all", reason="a long test; set MIXLAB_FAULTS=all")
def test_a_killed_study_of_images_without_classes_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    photos, _ = draw_folders(tmp_path)
    files = sorted(photos.rglob("*.png"))
    for file in files:
        file.rename(photos / file.name)
    for folder in ("train", "val"):
        shutil.rmtree(photos / folder)
    script = tmp_path / "start.py"
    script.write_text(START.format(root=str(tmp_path)))
    own, _, tests, repository = Path(__file__).parents[:4]
    environment = os.environ | {"PYTHONPATH": f"{own}:{tests}:{repository}"}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE)
    marks = tmp_path / "run" / "steps"
    wait_for(lambda: any(marks.glob("train*.json")) or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1].decode()
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {mark.name: mark.stat().st_mtime_ns for mark in marks.glob("*.json") if mark.name != "parts.json"}
    used = read_json(marks / "parts.json")["dino"]
    assert used > 0
    assert not (marks / "auc_vit-s0_head_layer.json").exists(), "the study was over before the kill"
    found = go(tmp_path, ("tune", "dino"), families=TWO[1:], seeds=(0,))
    said = " ".join(capfd.readouterr().err.split())
    assert "no class folders" in said and "tune is left out" in said
    assert list(found["parts"]) == ["dino"]
    assert {name: (marks / name).stat().st_mtime_ns for name in before} == before
    assert read_json(marks / "parts.json")["dino"] > used
    assert {file.stem for file in (tmp_path / "run" / "vit-s0" / "results").glob("*.json")} == {
        "training", "auc_head", "auc_layer", "auc_map",
    }  # fmt: skip


def test_every_fifth_image_of_a_class_is_held_out_where_there_is_no_split(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    hold_out(str(photos / "train"), str(tmp_path / "held"))
    for name in (path.name for path in (photos / "train").iterdir() if path.is_dir()):
        total = len(list((photos / "train" / name).iterdir()))
        assert len(list((tmp_path / "held" / "val" / name).iterdir())) == -(-total // 5)
        assert len(list((tmp_path / "held" / "train" / name).iterdir())) == total - -(-total // 5)


def test_masks_become_label_maps_of_ground_and_figure(tmp_path: Path) -> None:
    _, masked = draw_folders(tmp_path)
    write_labels(str(masked), str(tmp_path / "labels"))
    train, val = (parse_label_maps(str(tmp_path / "labels"), split=part) for part in ("train", "val"))
    assert (len(train), len(val)) == (NUM_MASKS * 3 // 4, NUM_MASKS // 4)
    assert train.classes == ("ground", "figure")
    first = val.load(0)
    expected = np.array(Image.open(masked / "masks" / "0.png")) > 0
    assert np.array_equal(first.mask.numpy() == 1, expected)


def test_the_study_in_the_documentation_is_as_it_was_published() -> None:
    assert not Manifest(page.DOCS / "studies" / "miniature").foreign()
