"""The demo ends with a page that stands on its own."""

import re
from pathlib import Path

import pytest

from mixlab.cli import main
from mixlab.report.page import write_report
from mixlab.run import RunDirectory


def test_the_demo_ends_with_a_self_contained_report(tmp_path: Path) -> None:
    run = tmp_path / "a demo"
    assert main(["demo", "--run", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page), "the page fetches something"
    assert all(re.search(r'alt="[^"]+"', image) for image in re.findall(r"<img[^>]+>", page))
    assert "dinovim_tiny" in page
    result = RunDirectory.open(run).results()["demo"]
    errors = [float(row[5]) for row in result["rows"]]
    assert max(errors) < 1e-5
    for row in result["rows"]:
        assert row[6] <= row[7], f"the rank of a far block of {row[0]} exceeds its bound"


def test_a_report_of_nothing_says_so(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    run.write_config({})
    with pytest.raises(ValueError, match="nothing to report"):
        write_report([run], tmp_path / "report.html")
