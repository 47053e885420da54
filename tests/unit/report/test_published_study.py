"""The study in docs/: tables, verdicts and intervals come out of the JSON beside them."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mixlab.analysis.claims import CLAIMS, Evidence, draw_up
from mixlab.choices import SHOWN_MAP
from mixlab.report import write_report
from mixlab.run import Measurement, find_runs, unpacked
from mixlab.run.files import read_json

STUDIES = Path(__file__).parents[3] / "docs" / "studies"
STUDY = STUDIES / "miniature"
LEDGER = STUDIES / "ledger"  # over all of them
OTHER_REGISTERS = ("mambareg-4-", "mambareg-front-", "registers")  # a question of their own


@pytest.fixture(scope="module")
def runs() -> Iterator[Path]:
    with unpacked(STUDY) as folder:
        yield folder


@pytest.mark.parametrize("study", sorted(place.parent.name for place in STUDIES.glob("*/README.md")))
def test_its_tables_are_made_from_its_records(study: str, tmp_path: Path) -> None:
    made = write_report([STUDIES / study], tmp_path / "README.md").read_text(encoding="utf-8")
    kept = (STUDIES / study / "README.md").read_text(encoding="utf-8")
    assert made == kept, "run `mixlab report` on it with --out README.md"


@pytest.mark.skipif(not LEDGER.exists(), reason="no ledger over several studies is published")
def test_the_ledger_over_all_studies_follows_from_their_archives() -> None:
    stored = read_json(LEDGER / "results" / "claims.json")
    assert stored["runs"] == [f"docs/studies/{place.parent.name}" for place in sorted(STUDIES.glob("*/runs.tar.xz"))]
    evidence = Evidence.from_runs(STUDIES.parents[1] / run for run in stored["runs"])
    found = draw_up(evidence, [claim for claim in CLAIMS if claim.kind == "measured"])
    known = {claim["number"]: claim["status"] for claim in stored["claims"]}
    assert {entry.claim.number: entry.verdict.status for entry in found}.items() <= known.items()


@pytest.mark.parametrize("study", sorted(place.parent.name for place in STUDIES.glob("*/runs.tar.xz")))
def test_differences_of_maps_to_their_baselines_come_out_of_the_scores_of_images(study: str) -> None:
    """Results from before these scores were kept have none."""
    num = 0
    with unpacked(STUDIES / study) as folder:
        for run in find_runs([folder]):
            shown = [m for m in run.measurements() if m["map"] == SHOWN_MAP]
            found = {(m.metric, *_of_one_map(m)): m for m in shown}
            for (metric, *rest), gap in found.items():
                baseline = {"above_centre_prior": "centre_prior", "above_untrained": "untrained"}.get(metric)
                sides = [found.get((name, *rest)) for name in ("binary_auc", baseline)]
                scores = [None if side is None else side.by_image for side in sides]
                if baseline and scores[0] is not None and scores[1] is not None:
                    differences = scores[0] - scores[1]
                    differences = differences[~np.isnan(differences)]
                    draws = np.random.default_rng(0).choice(differences, (1000, len(differences))).mean(1)
                    again = (differences.mean(), *np.percentile(draws, [2.5, 97.5]))
                    assert again == pytest.approx((gap.value, gap.low, gap.high), abs=5e-3)
                    num += 1
    assert num or study == "miniature"


def _of_one_map(m: Measurement) -> tuple[object, ...]:
    return m.subject, m.seed, m["data"], m["map"], m["layer"], m["index"], m["fit"], m["image"]


def test_its_measured_verdicts_follow_from_its_measurements(runs: Path) -> None:
    """Of the runs that its own ledger reads, and of all: single runs beside repeated ones decide nothing."""
    found = [run.path for run in find_runs([runs])]
    kept = [path for path in found if not any(part.startswith(OTHER_REGISTERS) for part in path.parts)]
    stored = {claim["number"]: claim for claim in read_json(runs / "results" / "claims.json")["claims"]}
    assert list(stored) == [claim.number for claim in CLAIMS]
    assert len(kept) < len(found)
    for places in (kept, found):
        for entry in draw_up(Evidence.from_runs(places), [claim for claim in CLAIMS if claim.kind == "measured"]):
            known, verdict = stored[entry.claim.number], entry.verdict
            assert verdict.status == known["status"], entry.claim.statement
            for name in ("value", "low", "high"):
                assert getattr(verdict, name) == pytest.approx(known[name], abs=1e-3), entry.claim.statement


def test_claim_22_is_supported_by_hand(runs: Path) -> None:
    """From the JSON alone, by Welch's interval with the variance over images added: both comparisons above zero."""

    def read(label: str) -> list[dict[str, float]]:
        files = [runs / f"{label}-supervised-s{seed}" / "results" / "accuracy.json" for seed in range(3)]
        return [read_json(file)["measurements"][0] for file in files]

    ends = {}
    for rival in ("dinovim", "mambareg"):
        parts, means = [], []
        for side in (read("gatedconv"), read(rival)):
            values = np.array([m["value"] for m in side])
            images = [((m["high"] - m["low"]) / 2 / stats.t.ppf(0.975, m["n"] - 1)) ** 2 for m in side]
            parts += [(values.var(ddof=1) / 3, 2), (np.mean(images), side[0]["n"] - 1)]
            means.append(values.mean())
        total = sum(part for part, _ in parts)
        half = stats.t.ppf(0.975, total**2 / sum(part**2 / freedom for part, freedom in parts)) * np.sqrt(total)
        ends[rival] = (means[0] - means[1] - half, means[0] - means[1] + half)
    assert min(low for low, _ in ends.values()) > 0
    (claim,) = (c for c in read_json(runs / "results" / "claims.json")["claims"] if c["number"] == 22)
    assert claim["status"] == "supported"
    assert (claim["low"], claim["high"]) == pytest.approx(ends["mambareg"], abs=1e-4)


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
