"""The study in docs/: tables, verdicts and intervals come out of the JSON beside them."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from mixlab.analysis.claims import CLAIMS, Evidence, draw_up
from mixlab.report import write_report
from mixlab.run import find_runs, unpacked
from mixlab.run.directory import read_json

STUDY = Path(__file__).parents[3] / "docs" / "studies" / "miniature"
OTHER_REGISTERS = ("mambareg-4-", "mambareg-front-", "registers")  # a question of their own


@pytest.fixture(scope="module")
def runs() -> Iterator[Path]:
    with unpacked(STUDY) as folder:
        yield folder


def test_its_tables_are_made_from_its_records(tmp_path: Path) -> None:
    made = write_report([STUDY], tmp_path / "README.md").read_text(encoding="utf-8")
    assert made == (STUDY / "README.md").read_text(encoding="utf-8"), "run `mixlab report` on it with --out README.md"


def test_its_measured_verdicts_follow_from_its_measurements(runs: Path) -> None:
    found = [run.path for run in find_runs([runs])]
    kept = [path for path in found if not any(part.startswith(OTHER_REGISTERS) for part in path.parts)]
    evidence = Evidence.from_runs(kept)
    stored = {claim["number"]: claim for claim in read_json(runs / "results" / "claims.json")["claims"]}
    checked = 0
    for entry in draw_up(evidence, [claim for claim in CLAIMS if claim.kind == "measured"]):
        known, verdict = stored[entry.claim.number], entry.verdict
        assert verdict.status == known["status"], entry.claim.statement
        for name in ("value", "low", "high"):
            assert getattr(verdict, name) == pytest.approx(known[name], abs=1e-3), entry.claim.statement
        checked += 1
    assert checked > 10


def test_the_ledger_reads_all_of_its_archive(runs: Path) -> None:
    every = {m.identity for run in find_runs([runs]) for m in run.measurements()}
    assert {m.identity for m in Evidence.from_runs([STUDY / "runs.tar.xz"]).measurements} == every and len(every) > 1000


def test_intervals_over_images_come_out_of_the_published_scores(runs: Path) -> None:
    result = read_json(runs / "results" / "auc_model.json")
    for row in result["rows"]:
        raw = np.array(result["raw_auc_by_image"][row["label"]], dtype=float)
        scores = np.maximum(raw, 1 - raw)
        draws = np.random.default_rng(0).choice(scores, (2000, len(scores))).mean(1)
        low, high = np.percentile(draws, [2.5, 97.5])
        assert (low, high) == pytest.approx((row["auc"]["low"], row["auc"]["high"]), abs=2e-3)


def test_every_family_has_three_seeds_and_learnt(runs: Path) -> None:
    found = []
    for file in sorted(runs.glob("*-s[0-9]/results/knn_*.json")):
        name = file.parts[-3]
        twin = runs / name / "untrained" / "results" / file.name
        if twin.is_file():
            figures = [read_json(place)["measurements"][0]["value"] for place in (file, twin)]
            found.append((name.rsplit("-s", 1)[0], figures[0] / figures[1]))
    groups = {family: [ratio for _, ratio in rows] for family, rows in groupby(found, key=lambda pair: pair[0])}
    assert {"vit", "linearvit", "dinovim", "mambareg", "gatedconv"} <= groups.keys()
    assert all(len(ratios) == 3 and min(ratios) > 1.5 for ratios in groups.values())
