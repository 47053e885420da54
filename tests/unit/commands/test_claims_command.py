"""`mixlab claims`: the ledger from run directories."""

from pathlib import Path

import pytest
import tyro
from command_line import command
from look_runs import make_run

from mixlab.commands.claims import claims
from mixlab.run import RunDirectory

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
    assert len(ledger) == 24
    assert ledger[5]["status"] == "contradicted"
    assert ledger[6]["status"] != "not measured"
    assert ledger[7]["status"] != "not measured"
    assert ledger[7]["n"] is not None
    assert "shapes" in ledger[7]["scale"]
    assert ledger[14]["status"] == "not measured"
    assert "contradicted" in capsys.readouterr().err


def test_no_run_leaves_the_theorems(tmp_path: Path) -> None:
    found = claims([])
    assert found["num_measurements"] == 0
    assert sum(entry["status"] != "not measured" for entry in found["claims"]) == 8


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a run directory"):
        claims([tmp_path])
