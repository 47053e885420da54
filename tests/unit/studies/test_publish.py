"""Where a study may be published: never over anything but a study that was published before."""

import json
from pathlib import Path

import pytest

from mixlab.run import RunDirectory, provenance, unpacked
from mixlab.run.archive import PUBLISHED_RUNS
from mixlab.studies.miniature import publish
from mixlab.studies.miniature.publish import publish_study


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


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"config.json": '{"compilerOptions": {}}', "index.js": "0"}, ""),
        ({"config.json": "[]"}, "config.json"),
        ({"config.json": '{"study": "miniature"}', "vit-s0/weights.safetensors": "w"}, "vit-s0/weights.safetensors"),
        ({"config.json": '{"study": "miniature"}', ".lock": ""}, ".lock"),
        (
            {"config.json": '{"study": "miniature"}', "results/study.json": "{}", "photos/cat.jpg": "c"},
            "photos/cat.jpg",
        ),
        ({"thesis.txt": "all of it"}, "thesis.txt"),
    ],
    ids=["a project", "no object", "another study", "a study that begins", "one with photographs", "no config"],
)
def test_what_is_no_published_study_is_refused_and_kept(files: dict[str, str], named: str, tmp_path: Path) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    before = contents(out)
    with pytest.raises(ValueError, match=rf"holds something else \(.*{named}\); give a new folder"):
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
        patch.setattr(publish, "write_report", full)
        publish_study(run, out)
    assert contents(out) == before
    publish_study(run, out)
    assert published(out).keys() == names | {"results/more.json"}
    assert contents(out).keys() == {"README.md", "report.html", PUBLISHED_RUNS}
    assert {entry.name for entry in tmp_path.iterdir()} == {"work", "out"}, "something was left beside it"


def test_a_study_that_cannot_be_put_in_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = make_study(tmp_path), tmp_path / "out"
    publish_study(run, out)
    before, rename = contents(out), Path.rename

    def refuses(self: Path, target: Path) -> Path:
        if target == out and self.name == out.name:
            raise OSError("device is busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuses)
    with pytest.raises(OSError, match="device is busy"):
        publish_study(run, out)
    assert contents(out) == before


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


def test_a_study_without_results_is_not_published(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_config({"study": "miniature", "data": "x", "masks": "y"})
    with pytest.raises(ValueError, match="has no results yet"):
        publish_study(run.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
