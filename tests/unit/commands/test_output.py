"""What commands print: people's own words as they are, and every failure in a line."""

import io
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from safetensors import SafetensorError

import mixlab.commands.models
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.cli import main
from mixlab.commands import output
from mixlab.commands.output import console, emit, print_left_out, progress_bar, table
from mixlab.data.decode import UnreadableImage
from mixlab.data.source import TooManyUnreadableError
from mixlab.errors import InputError
from mixlab.studies.steps import Step, run_steps

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


def test_a_command_that_does_not_exist_is_named_as_it_was_typed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["[/models]"]) == 2
    assert "unknown command '[/models]'; mixlab knows demo" in said(capfd)


def test_brackets_in_tables_titles_and_paths_are_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table("of [/data]", ("[model]", "n"), [("runs/[a]", 1), ("[/b]", 2)])
    printed = said(capfd)
    assert all(word in printed for word in ("of [/data]", "[model]", "runs/[a]", "[/b]"))
    emit({}, str(tmp_path / "[x].json"))
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


def test_a_wide_table_is_printed_in_parts_that_fit_with_no_number_cut(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "console", Console(stderr=True, width=80))
    columns = ["batch", "tokens", "system", *(f"milliseconds of kind{n}" for n in range(8))]
    rows = [[64, 198, name, *(1000.25 + n for n in range(8))] for name in ("mixlab", "mamba_ssm twice, chunk 128")]
    output.table("Times", columns, rows)
    lines = capfd.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    printed = "\n".join(lines)
    assert "…" not in printed and printed.count("Times") == 1
    assert printed.count("mamba_ssm twice, chunk 128") > 1  # each part names its rows
    assert [printed.count(f"{1000 + n:,}") for n in range(8)] == [2] * 8
    output.table("Narrow", ["a", "b"], [["x", 1.0]])
    assert capfd.readouterr().err.count("┃") == 3
