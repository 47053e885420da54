"""Exports and reports replace what they wrote, and nothing else."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from mixlab.analysis.figures import save_figure
from mixlab.backbones.weights import model_from_file, save_weights
from mixlab.backbones.zoo import create_model
from mixlab.cli import main
from mixlab.errors import InputError, WorkError
from mixlab.report import write_report
from mixlab.run import RunDirectory
from mixlab.run.aside import folder_aside, written_aside
from mixlab.studies.publishing import publish_study

SMALL = {"dim": 32, "depth": 1, "head_dim": 16, "patch": 8, "image": 32}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunDirectory.create(tmp_path / "run")
    folder.write_config({"seed": 0})
    folder.write_result("note", {"kind": "note"})
    save_weights(create_model("vit_tiny", **SMALL), folder.path / "weights.safetensors")
    return folder.path


def export(run: Path, out: Path, *options: str) -> int:
    return main(["export", str(run / "weights.safetensors"), "--out", str(out), *options])


def test_an_export_does_not_replace_a_file_unless_it_is_told_to(run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "model.safetensors"
    assert export(run, out) == 0
    whole = out.read_bytes()
    assert export(run, out, "--half") == 1
    assert "exists; name another file, or add --force" in " ".join(capsys.readouterr().err.split())
    assert out.read_bytes() == whole
    assert export(run, out, "--half", "--force") == 0
    assert len(out.read_bytes()) < len(whole)


@pytest.mark.parametrize(
    "name",
    ["weights.safetensors", "classifier.safetensors", "segmenter.safetensors", "detector.safetensors", "config.json",
     "checkpoints/step-00000004.safetensors", "results/probe.safetensors"],
)  # fmt: skip
def test_an_export_never_replaces_the_files_of_a_run(run: Path, tmp_path: Path, name: str, capsys) -> None:
    own = run / name
    own.parent.mkdir(exist_ok=True)
    if not own.exists():
        own.write_bytes(b"hours of work")
    before = own.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(own)
    for out in (own, run / ".." / "run" / name, tmp_path / "link.safetensors"):
        assert export(run, out, "--half", "--force", "--format", "safetensors") == 1
        assert "and cannot be replaced; name another file" in " ".join(capsys.readouterr().err.split())
        assert own.read_bytes() == before
    assert export(run, run / "half.safetensors", "--half") == 0  # beside them there is room


def test_the_partial_file_of_a_killed_export_is_tidied_by_the_next(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    if (child := os.fork()) == 0:
        with written_aside(out) as aside:
            aside.write_bytes(b"half of a file")
            os.kill(os.getpid(), 9)
    assert os.waitpid(child, 0)[1] == 9
    assert not out.exists() and len(list(tmp_path.glob(".model.safetensors.*.partial"))) == 1
    (tmp_path / ".model.safetensors.notes.partial").write_text("somebody's own")
    assert export(run, out) == 0
    assert model_from_file(out).num_layers == 1
    assert [entry.name for entry in tmp_path.glob(".*")] == [".model.safetensors.notes.partial"]


def test_what_another_process_is_writing_at_the_moment_is_not_tidied(tmp_path: Path) -> None:
    out = tmp_path / "model.bin"
    going, writing = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        with written_aside(out) as aside:
            aside.write_bytes(b"first")
            os.write(writing[1], b".")
            os.read(going[0], 1)
        os._exit(0)
    os.read(writing[0], 1)
    with written_aside(out) as aside:
        aside.write_bytes(b"second")
    assert out.read_bytes() == b"second"
    assert len(list(tmp_path.glob(".*.partial"))) == 1, "the other one's file was taken away"
    os.write(going[1], b".")
    assert os.waitpid(child, 0)[1] == 0 and out.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.bin"]


def test_many_processes_write_one_file_at_a_time_and_none_takes_the_partial_file_of_another(tmp_path: Path) -> None:
    out, children = tmp_path / "about.json", []
    for number in range(4):
        if (child := os.fork()) == 0:
            code = 1
            try:
                for _ in range(150):
                    with written_aside(out) as aside:
                        aside.write_text(str(number))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert out.read_text() in set("0123") and [entry.name for entry in tmp_path.iterdir()] == ["about.json"]


def test_a_failure_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("before")
    for made in (written_aside, folder_aside):
        with pytest.raises(KeyboardInterrupt), made(out) as aside:
            (aside if made is written_aside else aside / "part").write_text("half")
            raise KeyboardInterrupt
    assert out.read_text() == "before" and [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("suffix", [".html", ".md"])
def test_a_report_replaces_its_own_page_and_no_other(run: Path, tmp_path: Path, suffix: str, capsys) -> None:
    out = tmp_path / f"page{suffix}"
    arguments = ["report", str(run), "--out", str(out), "--no-measure"]
    assert main(arguments) == 0 and main(arguments) == 0
    changed = out.read_text().replace("mixlab", "Mixlab", 1)
    for text in (changed, "# My thesis\n\nWritten by me, with `mixlab report`.\n", ""):
        out.write_text(text)
        assert main(arguments) == 1
        assert "did not write it, or it was changed since" in " ".join(capsys.readouterr().err.split())
        assert out.read_text() == text
    assert main([*arguments, "--force"]) == 0 and main(arguments) == 0


def test_a_page_from_before_pages_had_a_mark_is_replaced(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    write_report([run], out)
    content, mark = out.read_text().rstrip().rsplit("\n", 1)
    assert mark.startswith("<!-- written by mixlab report; sha256")
    out.write_text(content)
    write_report([run], out)


def test_the_mark_is_the_digest_that_sha256sum_finds(run: Path, tmp_path: Path) -> None:
    out = write_report([run], tmp_path / "page.md")
    text = f"head -n -1 {out} | sha256sum"
    found = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout.split()[0]
    assert found in out.read_text().splitlines()[-1]


def test_pipes_and_devices_are_never_replaced_by_a_file(run: Path, tmp_path: Path, capsys) -> None:
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    for call in (["report", str(run), "--out", str(pipe), "--no-measure", "--force"], ["models", "--json", str(pipe)],
                 ["export", "vit_tiny", "--out", str(pipe), "--format", "safetensors", "--force"]):  # fmt: skip
        assert main(call) == 1
        assert str(pipe) in capsys.readouterr().err.replace("\n", "")
    assert pipe.is_fifo()
    with pytest.raises(InputError, match="a device or a pipe and cannot be replaced"), written_aside(Path("/dev/null")):
        pass


def test_an_answer_replaces_an_earlier_answer_and_nothing_else(run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "answer.json"
    for _ in range(2):
        assert main(["models", "vit_tiny", "--json", str(out)]) == 0
    out.write_text("# A thesis")
    own = {file: file.read_bytes() for file in (out, run / "config.json", run / "results" / "note.json")}
    for file in own:
        assert main(["models", "vit_tiny", "--json", str(file)]) == 1
        assert "; name another file" in " ".join(capsys.readouterr().err.split())
    assert {file: file.read_bytes() for file in own} == own


def test_a_study_is_published_into_a_mounted_folder_and_a_full_one_stays_as_it_was(
    run: Path, small_disk: Callable[[int], Path]
) -> None:
    RunDirectory(run).write_config({"study": "miniature", "data": "shapes", "masks": "shapes"})
    out, size = small_disk(2**23), 2**23
    (out / "thesis.txt").write_text("all of it")
    for _ in range(2):
        publish_study(run, out)
        names = {entry.name for entry in out.iterdir()}
        assert names == {"manifest.json", "README.md", "report.html", "runs.tar.xz", "thesis.txt"}
    (out / "thesis.txt").write_bytes(bytes(size - sum(entry.stat().st_size for entry in out.iterdir()) - 2**15))
    before = {entry: entry.read_bytes() for entry in out.iterdir()}
    with pytest.raises(WorkError, match="No space left on device"):
        publish_study(run, out)
    assert {entry: entry.read_bytes() for entry in out.iterdir()} == before


def test_a_picture_that_a_full_disk_does_not_take_is_named(small_disk: Callable[[int], Path]) -> None:
    place = small_disk(2**14)
    (place / "other").write_bytes(bytes(2**14))
    with pytest.raises(WorkError, match=r"maps\.png could not be written .No space left on device.*are free in"):
        save_figure(Figure(), place / "maps.png")
