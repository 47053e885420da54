"""`mixlab claims`: the ledger from run directories."""

from pathlib import Path

import pytest
import tyro
from command_line import command
from look_runs import make_run

from mixlab.analysis.claims import CLAIMS
from mixlab.commands.claims import claims
from mixlab.report import write_report
from mixlab.run import RunDirectory, write_archive
from tests.unit.analysis.records import measured, seeds

rank = command("rank")
auc = command("auc")


def test_the_ledger_reads_what_the_other_commands_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"vit": "vit_tiny", "vim": "dinovim_tiny", "linear": "linearvit_tiny"}
    targets = [str(make_run(tmp_path / label, name)) for label, name in names.items()]
    out = tmp_path / "out"
    rank(targets, data="shapes:n=2", num_images=2, layers=(-1,), chunk=32, run=out)
    auc(targets, data="shapes:n=6", study=("model", "layer"), twins=False, run=out)
    tyro.cli(claims, args=[str(out), "--run", str(out)])
    ledger = {entry["number"]: entry for entry in RunDirectory.open(out).results()["claims"]["claims"]}
    assert len(ledger) == len(CLAIMS)
    assert ledger[5]["status"] == "contradicted"
    assert ledger[6]["status"] != "not measured"
    assert ledger[7]["status"] != "not measured"
    assert ledger[7]["n"] is not None
    assert "shapes" in ledger[7]["scale"]
    assert ledger[14]["status"] == "not measured"
    assert "contradicted" in capsys.readouterr().out


def test_no_run_leaves_the_theorems(tmp_path: Path) -> None:
    found = claims([])
    assert found["num_measurements"] == 0
    settled = {entry["number"] for entry in found["claims"] if entry["status"] != "not measured"}
    assert settled == {1, 2, 3, "4a", 5, 19, 20, 24, 32, 33}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a run directory"):
        claims([tmp_path])


def test_runs_of_an_archive_are_counted_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        RunDirectory.create(tmp_path / "study" / name).write_result("knn", {"kind": "knn", "measurements": []})
    archive = write_archive(tmp_path / "study", tmp_path / "runs.tar.xz")
    claims([archive, tmp_path / "study" / "a"])
    assert "against 0 measurements of 4 runs" in capsys.readouterr().err
    claims([tmp_path / "study"])  # a folder of runs
    assert "against 0 measurements of 3 runs" in capsys.readouterr().err


def test_an_old_directory_that_is_measured_again_shows_its_gain_once(tmp_path: Path) -> None:
    """Older records name neither the split nor the weights."""
    for number, value, training in ((0, 0.6, "dino"), (1, 0.3, "untrained")):
        old = measured("knn_top1", "attention", value, label="vit-s0", training=training, seed=0, k=20)
        again = measured(
            "knn_top1", "attention", value, label="vit-s0", training=training, seed=0, k=20, split="val", fit="crop",
            weights=f"digest{number}",
        )  # fmt: skip
        run = RunDirectory.create(tmp_path / training)
        for m in (old, again):
            run.write("knn", {"kind": "knn", "measurements": [m.to_json()]})
    found = claims([tmp_path / "dino", tmp_path / "untrained"])
    assert found["num_measurements"] == 4
    assert [(gain["metric"], round(gain["value"], 6)) for gain in found["gains"]] == [("knn_top1", 0.3)]


def test_of_several_studies_the_verdict_of_each_is_given_where_it_differs(tmp_path: Path) -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    for study, values in (("one", order), ("other", dict(zip(order, (0.7, 0.8, 0.9), strict=True)))):
        for family, value in values.items():
            for place in ("a", "b"):
                found = seeds("probe_top1", family, value, data=study) if place == "a" else []
                content = {"kind": "probe", "measurements": [m.to_json() for m in found]}
                RunDirectory.create(tmp_path / study / family / place).write_result("probe", content)
    ledger = {entry["number"]: entry for entry in claims([tmp_path / "one", tmp_path / "other"])["claims"]}
    assert ledger[14]["status"] == "contradicted"
    assert ledger[14]["alone"] == {"one": "supported", "other": "contradicted"}
    assert ledger[16]["alone"] == ledger[1]["alone"] == {}
    page = write_report([tmp_path / "one"], tmp_path / "none.md").read_text(encoding="utf-8")
    assert " alone: " not in page
    claims([tmp_path / "one", tmp_path / "other"], run=tmp_path / "ledger")
    for name in ("page.md", "page.html"):
        page = write_report([tmp_path / "ledger"], tmp_path / name).read_text(encoding="utf-8")
        assert "one alone: supported" in page and "other alone: contradicted" in page
