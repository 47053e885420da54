"""Publishing touches what it wrote and nothing else: other files in the folder stay, and are named."""

import json
import os
import re
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixlab.run import RunDirectory, provenance, unpacked
from mixlab.run.archive import PUBLISHED_RUNS
from mixlab.studies import publishing
from mixlab.studies.publishing import publish_study

OURS = {"README.md", "report.html", PUBLISHED_RUNS, "manifest.json"}


def make_study(root: Path) -> Path:
    """A study with one result, as `mixlab study` leaves it."""
    run = RunDirectory.create(root / "work" / "run")
    run.write_config({"study": "miniature", "data": str(root / "photos"), "masks": "shapes", **provenance()})
    run.write_result("note", {"kind": "note", "rows": [{"system": "mixlab"}], "provenance": provenance()})
    (run.path / ".lock").touch()
    below = RunDirectory.create(run.path / "vit-s0")
    below.write_config({"seed": 0, "sessions": [provenance(seed=0)]})
    below.write_result("knn_vit-s0", {"measurements": [], "provenance": provenance(seed=0)})
    (below.path / "weights.safetensors").write_bytes(b"hours of work")
    return run.path


def published(out: Path) -> dict[str, bytes]:
    """All that was published in a folder, the packed runs by their names."""
    with unpacked(out) as runs:
        return contents(runs) | {name: part for name, part in contents(out).items() if name != PUBLISHED_RUNS}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("place", [".", "published", "vit-s0", "..", "../.."])
def test_a_study_is_not_published_over_itself_in_itself_or_around_itself(place: str, tmp_path: Path) -> None:
    run = make_study(tmp_path)
    for folder in (run.parent, tmp_path):  # as if a study had been published there
        RunDirectory(folder).write_config({"study": "miniature"})
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="is, contains or lies in the study itself; give another folder"):
        publish_study(run, run / place)
    assert contents(tmp_path) == before


STRANGERS = {
    "thesis.txt": "all of it",
    "config.json": '{"study": "miniature"}',
    "results/study.json": "{}",
    "thesis/results/chapter.json": "{}",
    "thesis/README.md": "a chapter",
    ".lock": "",
    "vit-s0/weights.safetensors": "w",
}


def test_files_of_others_stay_whatever_they_are_called_and_are_named(tmp_path: Path, capsys: Any) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    for name, text in STRANGERS.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    (out / "elsewhere").symlink_to(tmp_path / "work")
    for _ in range(2):  # also when it is published again
        publish_study(run, out)
        assert {name: (out / name).read_text() for name in STRANGERS} == STRANGERS
        assert (out / "elsewhere").is_symlink()
        said = " ".join(capsys.readouterr().err.split())
        assert "not written by mixlab, left as it is: .lock, config.json, elsewhere, results, thesis and 2 more" in said
    assert {entry.name for entry in out.iterdir()} >= OURS


@pytest.mark.parametrize("name", ["README.md", "report.html", PUBLISHED_RUNS, "manifest.json"])
@pytest.mark.parametrize("kind", ["file", "folder", "link", "changed"])
def test_a_file_of_somebody_else_in_the_way_is_refused_and_kept(name: str, kind: str, tmp_path: Path) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    out.mkdir()
    if kind == "changed":
        if name == "manifest.json":
            return  # a changed manifest lists other files, which are then somebody else's: see below
        publish_study(run, out)
        (out / name).write_bytes((out / name).read_bytes() + b"my own notes")
    elif kind == "file":
        (out / name).write_text("# A thesis")
    elif kind == "folder":
        (out / name).mkdir()
        (out / name / "thesis.tex").write_text("all of it")
    else:
        (tmp_path / "thesis.md").write_text("all of it")
        (out / name).symlink_to(tmp_path / "thesis.md")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"out holds {re.escape(name)}, .*; move it away, or give another folder"):
        publish_study(run, out)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["{", "[]", '{"files": 7}', '{"files": {}}', '{"files": {"README.md": 7}}'])
def test_without_a_readable_manifest_nothing_is_taken_for_ours(text: str, tmp_path: Path) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    publish_study(run, out)
    (out / "manifest.json").write_text(text)
    before = contents(out)
    with pytest.raises(ValueError, match="move it away"):
        publish_study(run, out)
    assert contents(out) == before


def test_the_manifest_of_another_program_stays(tmp_path: Path) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    out.mkdir()
    for files in ({"main.js": "/static/main.js"}, {"main.js": ["a" * 64]}):
        (out / "manifest.json").write_text(json.dumps({"files": files}))
        before = contents(out)
        with pytest.raises(ValueError, match=r"out holds manifest.json, .*; move it away"):
            publish_study(run, out)
        assert contents(out) == before


def test_a_published_study_is_replaced_and_only_once_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    page = publish_study(run, out)
    assert page == out / "report.html" and page.is_file()
    before, names = contents(out), published(out).keys()
    RunDirectory(run).write_result("more", {"kind": "note"})

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(publishing, "write_report", full)
        publish_study(run, out)
    assert contents(out) == before
    publish_study(run, out)
    assert published(out).keys() == names | {"results/more.json"}
    assert contents(out).keys() == OURS
    assert {entry.name for entry in tmp_path.iterdir()} == {"work", "out"}, "something was left beside it"


@pytest.mark.parametrize("move", [1, 4])
def test_a_study_that_cannot_be_put_in_place_leaves_the_old_one(
    move: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    publish_study(run, out)
    RunDirectory(run).write_result("more", {"kind": "note"})
    before, replace, moves = contents(out), Path.replace, count()

    def refuses(self: Path, target: Path) -> Path:
        is_move = target.parent.name == "before" or self.parent.name == "made" != target.parent.name
        if is_move and next(moves) == move:
            raise OSError("device is busy")
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="device is busy"):
        patch.setattr(Path, "replace", refuses)
        publish_study(run, out)
    assert contents(out) == before
    publish_study(run, out)
    assert "results/more.json" in published(out)


def test_what_a_killed_process_left_is_completed_and_tidied_by_the_next(tmp_path: Path) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    publish_study(run, out)
    first = contents(out)
    RunDirectory(run).write_result("more", {"kind": "note"})
    if (child := os.fork()) == 0:
        replace, left = Path.replace, iter(range(4))

        def dies(self: Path, target: Path) -> Path:
            is_move = target.parent.name == "before" or self.parent.name == "made" != target.parent.name
            if is_move and next(left, None) is None:
                os.kill(os.getpid(), 9)
            return replace(self, target)

        Path.replace = dies  # type: ignore[method-assign, assignment]
        publish_study(run, out)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 9
    assert contents(out) != first and any(entry.suffix == ".partial" for entry in tmp_path.iterdir())
    publish_study(run, out)
    assert "results/more.json" in published(out)
    assert {entry.name for entry in tmp_path.iterdir()} == {"work", "out"}, "something was left beside it"


def test_the_kernel_of_the_machine_is_not_published_its_processor_is(tmp_path: Path) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    machine = provenance()["machine"]
    publish_study(run, out)
    files = published(out)
    for name, text in files.items():
        assert machine["system"] not in text.decode(), name
    note = json.loads(files["results/note.json"])
    assert note["provenance"]["machine"] == {key: machine[key] for key in ("device", "processor")}
    assert note["provenance"]["versions"]["torch"]
    assert note["rows"] == [{"system": "mixlab"}], "a program is no kernel"
    assert b"system" not in files["vit-s0/config.json"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config", {"study": "miniature", "masks": "shapes"}, "config.json has data None, not text"),
        ("config", {"study": 3, "data": "x", "masks": "y"}, "config.json has study 3, not text"),
        (
            "results/auc_model",
            {"kind": "auc", "study": "model", "rows": 7, "comparisons": []},
            "auc_model.json has rows",
        ),
        ("results/maps", {"kind": "maps"}, "maps.json has no field data"),
    ],
)
def test_a_study_with_strange_json_is_refused_by_file_and_field(
    name: str, content: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = make_study(tmp_path)
    (run / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said):
        publish_study(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_photographs_stay_at_home_whatever_their_folder_is_called(tmp_path: Path) -> None:
    run, out = RunDirectory(make_study(tmp_path)), tmp_path / "out"
    for name, data in (("maps", "shapes:n=2"), ("maps_2", "shapes_of_clay"), ("maps_3", "photo:all")):
        about = {"data": data, "layer": 0, "images": [], "subjects": [], "maps": {}, "pca": {"fit": "image"}}
        run.write_result(name, {"kind": "maps", **about}, {"order": np.zeros(1)})
    publish_study(run.path, out)
    kept = {file for file in published(out) if file.startswith("results/maps")}
    assert {"results/maps.json", "results/maps_3.json"} <= kept and "results/maps_2.json" not in kept, "ours, and drawn"


def test_a_long_curve_keeps_its_scores_and_its_last_step(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    assert run.thinned_metrics() == []
    rows = [{"step": step, "loss": 1.0} for step in range(500)]
    rows.insert(251, {"step": 250, "knn_accuracy": 0.5})
    for row in rows:
        run.append_metrics(row)
    kept = run.thinned_metrics()
    assert len(kept) < 80 and kept[-1]["step"] == 499 and {"step": 250, "knn_accuracy": 0.5} in kept


def test_a_study_without_results_is_not_published(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_config({"study": "miniature", "data": "x", "masks": "y"})
    with pytest.raises(ValueError, match="has no results yet"):
        publish_study(run.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
