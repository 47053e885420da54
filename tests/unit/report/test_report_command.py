"""`mixlab report` from run directories to a page."""

import json
from pathlib import Path

import pytest
import torch
import tyro
from example_run import keep_results, make_example

import mixlab
from mixlab.analysis.cost import count_macs, on_meta
from mixlab.commands.report import report
from mixlab.errors import WorkError
from mixlab.run import RunDirectory, write_archive

FIELDS = {"dim": 64, "depth": 2, "image": 32, "patch": 8, "head_dim": 16}


def make_trained(folder: Path) -> Path:
    torch.manual_seed(0)
    run = RunDirectory.create(folder)
    run.write_config({"seed": 0, "settings": {"method": {"kind": "dino"}}})
    mixlab.save_weights(mixlab.create_model("vit_tiny", **FIELDS), folder / "weights.safetensors")
    return folder


def test_a_run_that_does_not_say_how_large_it_is_gets_measured(tmp_path: Path) -> None:
    run = make_trained(tmp_path / "mine")
    page = tmp_path / "page.html"
    tyro.cli(report, args=[str(run), "--out", str(page), "--json", str(tmp_path / "summary.json")])
    cost = RunDirectory.open(run).results()["cost"]
    assert cost["macs"] == count_macs(on_meta("vit_tiny", **FIELDS), 32)
    assert cost["num_parameters"] == sum(p.numel() for p in mixlab.create_model("vit_tiny", **FIELDS).parameters())
    (speed,) = cost["measurements"]
    assert speed["low"] <= speed["value"] <= speed["high"] and speed["n"] >= 10
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["bytes"] == page.stat().st_size and "mine/results/cost.json" in page.read_text(encoding="utf-8")
    before = (run / "results" / "cost.json").stat().st_mtime_ns
    report([run], out=page)
    assert (run / "results" / "cost.json").stat().st_mtime_ns == before, "what is known was measured again"


def test_a_network_that_cannot_be_read_does_not_keep_its_results_from_the_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_example(tmp_path / "run").path
    (run / "vit" / "results" / "cost.json").unlink(missing_ok=True)
    (run / "vit" / "weights.safetensors").write_bytes(b"of a plugin, or damaged")
    report([run], out=tmp_path / "page.html")
    said = " ".join(capfd.readouterr().err.split())
    assert f"{run / 'vit'} is reported without its size and speed: " in said
    assert "vit/results/knn_vit.json" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_run_that_cannot_be_written_to_is_reported_without_its_size_and_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_trained(tmp_path / "run")
    RunDirectory.open(run).write_result("knn", {})
    refused = f"{run} is reported without its size and speed: it cannot be written to, so they are not measured"
    with monkeypatch.context() as patched:
        patched.setattr("os.access", lambda place, mode: not Path(place).is_relative_to(run))  # root may write anywhere
        report([run], out=tmp_path / "page.html")
    assert refused in " ".join(capsys.readouterr().err.split()) and (tmp_path / "page.html").is_file()

    def full(*_: object) -> None:
        raise WorkError("cost.json could not be written (No space left on device)")

    monkeypatch.setattr(RunDirectory, "write_result", full)
    report([run], out=tmp_path / "page.html")
    assert "size and speed: cost.json could not be written" in " ".join(capsys.readouterr().err.split())
    assert not (run / "results" / "cost.json").exists()


def test_nothing_is_measured_unless_asked(tmp_path: Path) -> None:
    run = make_trained(tmp_path / "mine")
    with pytest.raises(ValueError, match="nothing to report"):
        report([run], out=tmp_path / "page.html", measure=False)
    assert not (run / "results").exists()


def test_several_runs_share_one_page(tmp_path: Path) -> None:
    for name in ("one", "two"):
        keep_results(make_example(tmp_path / name), "auc_model")
    report([tmp_path / "one", tmp_path / "two"], out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "one/results/auc_model.json" in page and "two/vit/results/knn_vit.json" in page


def test_an_archive_makes_the_page_of_the_runs_in_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "lab")
    run.write_result("note", {"kind": "note", "text": "one"})
    packed = write_archive(run.path, tmp_path / "lab.tar.xz")
    pages = [tmp_path / "a.html", tmp_path / "b.html"]
    for place, page in zip((run.path, packed), pages, strict=True):
        report([place], out=page)
    assert pages[0].read_bytes() == pages[1].read_bytes() and b"lab/results/note.json" in pages[0].read_bytes()
    (tmp_path / "nothing" / "in").mkdir(parents=True)
    (tmp_path / "nothing" / "in" / "it.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"nothing.tar.xz is not a run directory"):
        report([write_archive(tmp_path / "nothing", tmp_path / "nothing.tar.xz")], out=pages[0])


def test_a_folder_of_runs_makes_the_page_of_all_of_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        RunDirectory.create(tmp_path / "runs" / name).write_result("note", {"kind": "note", "text": name})
    (tmp_path / "runs" / "empty").mkdir()
    report([tmp_path / "runs"], out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "runs/a/results/note.json" in page and "runs/b/results/note.json" in page
    assert "<title>mixlab report: runs</title>" in page


def test_two_values_of_one_thing_are_not_mixed_up_in_silence(tmp_path: Path) -> None:
    for name, value in (("one", 0.5), ("two", 0.9)):
        keep_results(make_example(tmp_path / name))
        run = RunDirectory(tmp_path / name / "vit")
        result = run.results()["knn_vit"]
        result["measurements"][0]["value"] = value
        run.write_result("knn_vit", result)
    report([tmp_path / "one", tmp_path / "two"], out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("has different values in two files") == 1
    note = page.split("has different values in two files")[1].split("</p>")[0]
    assert note.index("two/vit/results/knn_vit.json") < note.index("one/vit/results/knn_vit.json")


def test_a_folder_without_results_does_not_keep_others_from_the_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keep_results(make_example(tmp_path / "one"), "auc_model")
    keep_results(make_example(tmp_path / "two"), "auc_model")
    (tmp_path / "study").mkdir()
    write_archive(tmp_path / "two", tmp_path / "study" / "runs.tar.xz")
    (tmp_path / "killed" / "features").mkdir(parents=True)
    report([tmp_path / name for name in ("killed", "one", "study")], out=tmp_path / "page.html", measure=False)
    page, said = (tmp_path / "page.html").read_text(encoding="utf-8"), " ".join(capfd.readouterr().err.split())
    assert "one/results/auc_model.json" in page and "two/results/auc_model.json" in page
    assert "killed is left out: it has neither config.json nor results/" in said and "study is left out" not in said
    with pytest.raises(FileNotFoundError, match="killed is not a run directory"):
        report([tmp_path / "killed"], out=tmp_path / "page.html", measure=False)


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"empty is not a run directory"):
        report([tmp_path / "empty"], out=tmp_path / "page.html")
    with pytest.raises(ValueError, match="no run given"):
        report([], out=tmp_path / "page.html")
