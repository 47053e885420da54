"""What commands print: people's own words as they are, and every failure in a line."""

import errno
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors import SafetensorError

import mixlab.commands.models
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.cli import main
from mixlab.commands import output
from mixlab.commands.answer import Answer, WideAnswer
from mixlab.commands.output import console, percent, percent_interval, print_left_out, progress_bar
from mixlab.console import put
from mixlab.data.decode import UnreadableImage
from mixlab.data.skipped import TooManyUnreadableError
from mixlab.errors import InputError, counted
from mixlab.studies.steps import Step, run_steps
from tests.terminal import terminal

BRACKETS = "[/tmp/x] [bold]mixlab[onnx] a:dog:b\\"


def said(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    "error",
    [
        InputError(f"install mixlab[onnx], not {BRACKETS}"),
        UnreadableImage("[/tmp/x]/a.jpg", "torn"),
        TooManyUnreadableError("3 of 4 images cannot be read"),
        SafetensorError("no space left"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_told_in_its_own_words(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(mixlab.commands.models, "models", fails)
    assert main(["models"]) == 1
    assert said(capfd) == f"error: {error}"


def test_a_share_and_its_interval_have_the_same_decimals() -> None:
    """An AP of 0.01 % once had the interval 0.0 to 0.0."""
    for value, low, high in ((1e-4, 2e-5, 4e-4), (0.8235, 0.80, 0.8461)):
        ends = [float(end) for end in percent_interval({"low": low, "high": high}).split(" to ")]
        assert ends == [percent(low), percent(high)] and ends[0] < percent(value) < ends[1]
    assert percent_interval({"low": None, "high": None}) == "-"


def test_a_command_that_does_not_exist_is_named_as_it_was_typed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["[/models]"]) == 2
    assert "unknown command '[/models]'; did you mean models?" in said(capfd)


def test_brackets_in_tables_titles_and_paths_are_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with terminal() as screen:
        Answer().table("of [/data]", ("[model]", "n"), [("runs/[a]", 1), ("[/b]", 2)])
    assert screen.lines == ["of [/data]", "[model]   n", "runs/[a]  1", "[/b]      2"]
    Answer(json=str(tmp_path / "[x].json")).emit({})
    assert "[x].json" in said(capfd).replace(" ", "")
    console.rule("[/part]: why?")
    assert "[/part]: why?" in said(capfd)


def test_a_progress_bar_takes_any_label(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    terminal = Console(file=printed, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    monkeypatch.setattr(output, "console", terminal)
    with progress_bar("ranks of [/run]", 2) as step:
        step(note="[/other]")
    assert "ranks of [/run]" in printed.getvalue() and "[/other]" in printed.getvalue()


def test_notes_fit_a_terminal_with_paths_whole_and_are_one_line_in_a_log() -> None:
    path = f"/{'long' * 30}/photo.jpg"
    for is_terminal in (True, False):
        file = io.StringIO()
        shown = type(console)(file=file, width=80, force_terminal=is_terminal, highlight=False)
        shown.print(f"{'word ' * 30}in {path}, {'more ' * 20}")
        lines = file.getvalue().splitlines()
        assert any(f"{path}," in line for line in lines)
        assert all(len(line) <= 80 for line in lines if path not in line) and (len(lines) > 1) is is_terminal


def test_images_that_cannot_be_read_are_named_whatever_their_folder_is_called(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "[tmp]"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"torn")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "b.png")
    images = ViewedImages(str(folder), size=8)
    seen = images.together()
    assert (seen.images.shape, seen.masks, seen.names) == ((1, 3, 8, 8), None, ["b.png"])
    print_left_out(images)
    assert "[tmp]/a.png" in said(capfd).replace("\n", "")


class Pool:
    """Does every step at once, and well."""

    def submit(self, *_: object) -> Future[int]:
        future: Future[int] = Future()
        future.set_result(0)
        return future


def test_steps_are_told_by_their_titles_whatever_these_hold(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    step = Step("a", "[/runs]: ranks of [x]", "why [not]?", ("rank",), tmp_path)
    run_steps([step], tmp_path, Pool(), workers=1, command="test")  # type: ignore[arg-type]
    printed = said(capfd)
    assert "[/runs]: ranks of [x]: why [not]?" in printed and "done [/runs]: ranks of [x], 0" in printed


def test_a_wide_table_is_printed_in_parts_that_fit_with_no_number_cut() -> None:
    columns = ["batch", "tokens", "system", *(f"milliseconds of kind{n}" for n in range(8))]
    rows = [[64, 198, name, *(1000.25 + n for n in range(8))] for name in ("mixlab", "mamba_ssm, chunk 128")]
    with terminal(80) as screen:
        Answer().table("Times", columns, rows)
    assert max(map(len, screen.lines)) <= 80
    printed = screen.text
    assert "…" not in printed and printed.count("Times") == 1
    assert printed.count("mamba_ssm, chunk 128") > 1  # each part names its rows
    assert [printed.count(f"{1000 + n:,}") for n in range(8)] == [2] * 8


def test_sentences_are_wrapped_and_names_never_cut() -> None:
    name, said = "a_name_that_is_longer_than_the_whole_screen_" * 2, "twenty words " * 10
    with terminal(60) as screen:
        Answer().table("Claims", ("name", "sentence"), [(name, said)])
        Answer().line(said)
    assert name in screen.text and screen.text.count("twenty") == 20
    assert all("twenty words" in line for line in screen.lines[2:])


def test_columns_beyond_the_question_are_shown_on_request() -> None:
    table = ("T", ("model", "AUC", "raw"), [("vit", 0.75, 0.25)])
    with terminal() as short:
        WideAnswer().table(*table, more=("raw",))
    with terminal() as wide:
        WideAnswer(wide=True).table(*table, more=("raw",))
    assert short.lines == ["T", "model   AUC", "vit    0.75"] and wide.lines[1] == "model   AUC   raw"


def test_other_programs_get_lines_with_tabs_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    Answer().table("A title", ("name", "n", "share"), [("a\tb", 12_345, 0.123456789), ("c", None, 1234.5)])
    printed = capfd.readouterr()
    assert printed.out == "name\tn\tshare\na b\t12345\t0.123457\nc\t-\t1234.5\n"
    assert printed.err == "A title\n"


def test_while_json_has_stdout_tables_are_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    answer = Answer(json="-")
    answer.table("T", ("a",), [(1,)])
    answer.line("a sentence")
    answer.emit({"a": 1})
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {"a": 1} and printed.err == "T\na\n1\na sentence\n"


def test_a_reader_that_leaves_early_breaks_nothing() -> None:
    script = """
from contextlib import suppress
from mixlab.cli import main
from mixlab.console import put
[put('x' * 1000) for _ in range(1000)]
main([])
with suppress(SystemExit):
    main(["models", "--help"])
open('done', 'w').close()
"""
    with tempfile.TemporaryDirectory() as folder:
        shell = f"{sys.executable} -c {shlex.quote(script)} | head -1"
        done = subprocess.run(shell, shell=True, cwd=folder, capture_output=True, text=True, env=environment())
        assert (done.stderr, len(done.stdout), (Path(folder) / "done").is_file()) == ("", 1001, True)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(mixlab.__file__).parents[1])}


def test_names_with_control_characters_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    put("a\x1b[2Jb\tc")
    console.print("error: \x1b]0;title\x07 in\nd\x9b31m")
    printed = capsys.readouterr()
    assert printed.out == "a\\x1b[2Jb\tc\n"
    assert printed.err == "error: \\x1b]0;title\\x07 in\nd\\x9b31m\n"


OUT_OF_MEMORY = {
    "torch on a CPU": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 156250000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "torch on a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "Python": MemoryError(),
    "the system": OSError(errno.ENOMEM, "Cannot allocate memory"),
}


@pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
@pytest.mark.parametrize(
    ("command", "ways"),
    [
        ("rank", "smaller images (--image), fewer images (--num-images), fewer processes that read data (--workers)"),
        ("knn", "smaller images (--image), smaller batches (--batch), fewer processes that read data (--workers)"),
        ("pretrain", "smaller batches (--set batch=N) or more passes for each (--set accumulate=N)"),
    ],
)
def test_where_memory_is_not_enough_a_sentence_says_what_to_make_smaller(
    command: str, ways: str, error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("mixlab.commands.help.tyro.cli", fails)
    assert main([command]) == 1
    asked = {"torch on a CPU": ": 156.2 GB more were needed", "torch on a GPU": ": 20.00 GiB more were needed"}
    wanted = next((words for name, words in asked.items() if OUT_OF_MEMORY[name] is error), "")
    assert said(capfd) == f"error: memory is not enough{wanted}; use {ways}, or a machine with more memory"
    monkeypatch.setenv("MIXLAB_DEBUG", "1")
    with pytest.raises(type(error)):
        main([command])


def test_help_has_colours_only_where_they_are_wanted_and_names_what_was_given() -> None:
    for wishes, coloured in (({"NO_COLOR": "", "TERM": "xterm"}, True), ({"NO_COLOR": "1", "TERM": "xterm"}, False),
                             ({"NO_COLOR": "", "TERM": "dumb"}, False)):  # fmt: skip
        with terminal(80, **wishes) as screen, pytest.raises(SystemExit):
            main(["look", "photo.jpg", "--help"])
        assert ("\x1b[" in screen.text) == coloured
        assert "image files, or folders of images." in re.sub(r"\x1b\[[\d;]*m", "", screen.text)


def test_one_thing_is_one() -> None:
    assert [counted(things, "image is", "images are") for things in (0, 1, [5], 2000)] == [
        "0 images are", "1 image is", "1 image is", "2,000 images are"
    ]  # fmt: skip
