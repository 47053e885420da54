"""Run directories in one file: packed alike everywhere, read without unpacking by hand, and never written outside."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from mixlab.errors import InputError
from mixlab.run import RunDirectory, archive, find_runs, unpacked, write_archive


def make_runs(folder: Path) -> Path:
    for name in ("vit", "vim"):
        run = RunDirectory.create(folder / name)
        run.write_config({"seed": 0})
        run.write_result("knn", {"kind": "knn", "of": name})
    return folder


def make_tar(file: Path, *entries: tarfile.TarInfo, content: bytes = b"{}") -> Path:
    with tarfile.open(file, "w:xz") as tar:
        for entry in entries:
            entry.size = len(content) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(content))
    return file


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def test_runs_come_back_out_of_an_archive_and_nothing_is_left_behind(tmp_path: Path) -> None:
    packed = write_archive(make_runs(tmp_path / "study"), tmp_path / "study.tar.xz")
    with unpacked(packed) as folder:
        found = {run.path.name: run.results() for run in find_runs([folder])}
        assert folder.name == "study"
    assert found == {name: {"knn": {"kind": "knn", "of": name}} for name in ("vim", "vit")}
    assert not folder.exists()
    with unpacked(tmp_path / "study") as folder:
        assert folder == tmp_path / "study", "a directory is read where it is"


def test_the_same_runs_are_the_same_bytes_whenever_and_by_whomever_they_are_packed(tmp_path: Path) -> None:
    first = write_archive(make_runs(tmp_path / "one" / "study"), tmp_path / "one.tar.xz")
    again = make_runs(tmp_path / "two" / "study")
    for file in again.rglob("*.json"):
        file.chmod(0o600)
        os.utime(file, (0, 0))
    assert write_archive(again, tmp_path / "two.tar.xz").read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    "bad",
    [
        entry("../outside.json"),
        entry("/outside.json"),
        entry("study/link", tarfile.SYMTYPE, "/etc"),
        entry("study/link", tarfile.LNKTYPE, "study/config.json"),
        entry("study/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda bad: f"{bad.name} {bad.type.decode()}",
)
def test_links_and_files_outside_are_refused(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    packed = make_tar(tmp_path / "bad.tar.xz", entry("study/config.json"), bad)
    with pytest.raises(InputError, match="a link or a file outside"), unpacked(packed):
        pass
    assert {file.name for file in tmp_path.iterdir()} == {"bad.tar.xz"}


@pytest.mark.parametrize(("limit", "value"), [("MOST_FILES", 2), ("MOST_BYTES", 5)])
def test_an_archive_of_any_size_is_not_unpacked(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = make_tar(tmp_path / "large.tar.xz", *(entry(f"study/{index}.json") for index in range(3)))
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(InputError, match="holds more than"), unpacked(packed):
        pass


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.tar.xz").write_text("no archive")
    with pytest.raises(InputError, match=r"text.tar.xz is not an archive of runs"), unpacked(tmp_path / "text.tar.xz"):
        pass
    packed = write_archive(make_runs(tmp_path / "study"), tmp_path / "cut.tar.xz")
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    with pytest.raises(InputError, match=r"cut.tar.xz is not an archive of runs"), unpacked(packed):
        pass
    two = make_tar(tmp_path / "two.tar.xz", entry("a/config.json"), entry("b/config.json"))
    with pytest.raises(InputError, match="holds a, b; an archive of runs holds one folder"), unpacked(two):
        pass
