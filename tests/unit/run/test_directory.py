"""Run directories: what is written is read back, and half a file is never seen."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import mixlab
from mixlab.errors import InputError, WorkError
from mixlab.run import RunDirectory, provenance
from mixlab.run.files import write_atomically


def test_results_and_arrays_come_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a run")
    run.write_config({"seed": 1})
    run.write_result("rank", {"n": 3}, {"spectrum": np.arange(4.0)})
    again = RunDirectory.open(tmp_path / "a run")
    assert again.read_config() == {"seed": 1}
    assert again.results() == {"rank": {"n": 3}}
    np.testing.assert_array_equal(again.arrays("rank")["spectrum"], np.arange(4.0))


def test_metrics_cut_short_by_a_kill_are_left_out(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    run.append_metrics({"step": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert list(run.read_metrics()) == [{"step": 1}]


@pytest.mark.parametrize(
    "line", [b"7", b"null", b'["step"]', b"\xff\xfe", b'{"step": "1"}', b"{", b"\0" * 50, b"[" * 9999]
)
def test_a_damaged_line_of_metrics_hides_no_other(line: bytes, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    run.append_metrics({"step": 1, "loss": 2.5})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(line + b'\n{"step": 2, "loss": "much", "lr": 1}\n')
    assert list(run.read_metrics()) == [{"step": 1, "loss": 2.5}, {"step": 2, "lr": 1}]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("old")

    def fails(_: object) -> None:
        raise OSError("disk full")

    with pytest.raises(WorkError, match=r"x.json could not be written \(disk full\): .* are free in .*; make room"):
        write_atomically(file, fails)
    assert file.read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_rights_that_umask_leaves(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "x.json", lambda file: file.write(b"{}"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == 0o666 & ~mask


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a run directory"):
        RunDirectory.open(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        RunDirectory.create(tmp_path / "file")
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(ValueError, match="not valid JSON.*; restore it, or start again"):
        RunDirectory.open(tmp_path).read_config()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"settings": [1]}, "settings [1], not an object"),
        ({"settings": {"method": None}}, "settings.method None, not an object"),
        ({"settings": {"method": {"kind": 7}}}, "settings.method.kind 7, not text"),
        ({"settings": {"model": {"fields": "dim"}}}, "settings.model.fields 'dim', not an object"),
        ({"data": 3}, "data 3, not text"),
        ({"classes": "cat"}, "classes 'cat', not a list"),
    ],
)
def test_a_field_of_another_kind_in_config_json_is_named_whoever_reads_it(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_config(config)
    readers = (
        run.read_config,
        lambda: mixlab.load_target(str(run.path)),
        lambda: mixlab.evaluate_segmentation(run.path, "shapes"),
        lambda: mixlab.find_recipe(str(run.path / "config.json")),
    )
    for read in readers:
        with pytest.raises(InputError, match=re.escape(f"config.json has {said}")):
            read()
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "step-00000001.json").touch()
    with pytest.raises(InputError, match="remove it, and resume: the newest checkpoint has a copy"):
        run.read_config()


def test_a_config_may_lack_fields_and_say_null_where_others_say_text(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert run.read_config_if_any() == {}
    run.write_config({"seed": None, "data": None, "settings": {}})
    assert run.read_config_if_any() == {"seed": None, "data": None, "settings": {}}


def test_a_result_without_measurements_is_replaced_by_one_of_the_same_protocol_alone(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    for data, name in (("photos", "maps"), ("pets", "maps_2"), ("photos", "maps"), ("cats", "maps_3")):
        assert run.write("maps", {"kind": "maps", "protocol": {"data": data}}, {"x": np.ones(1)}) == name
    assert [result["protocol"]["data"] for result in run.results().values()] == ["photos", "pets", "cats"]
    assert run.arrays("maps_2")["x"] == 1


@pytest.mark.parametrize("text", ['{"kind": "kn', "[1]", '{"measurements": 5}', '{"measurements": [5]}', "\udcff"])
def test_a_damaged_result_is_named_with_what_to_do(text: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    run.write_result("good", {"measurements": []})
    (tmp_path / "results" / "knn.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"results/knn\.json.*; remove it, and run the command that wrote it again"):
        run.results()


def test_provenance_can_be_stored(tmp_path: Path) -> None:
    stored = json.loads(json.dumps(provenance(seed=3)))
    assert stored["seed"] == 3
    assert stored["versions"]["torch"]
    assert stored["machine"]["processor"]


def test_a_copy_without_git_names_the_commit_it_is_told(tmp_path: Path) -> None:
    package = Path(mixlab.__file__).parent
    shutil.copytree(package / "run", tmp_path / "mixlab" / "run", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mixlab" / "__init__.py").touch()
    for file in ("errors.py", "plugins.py"):
        shutil.copy(package / file, tmp_path / "mixlab")
    asked = "from mixlab.run.provenance import provenance; print(provenance()['commit'])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "MIXLAB_COMMIT": "abc1234"}
    told = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told.stdout.strip() == "abc1234", told.stderr


def test_two_processes_never_take_one_name(tmp_path: Path) -> None:
    """As threads: each opens the lock for itself."""
    run = RunDirectory.create(tmp_path)
    first, second = ({"kind": "note", "protocol": {"number": number}} for number in range(2))
    other = Thread(target=run.write, args=("note", second))
    with run.named("note", first) as name:
        other.start()
        other.join(0.3)  # long enough to write, were the name not taken
        run.write_result(name, first)
    other.join()
    assert run.results() == {"note": first, "note_2": second}
