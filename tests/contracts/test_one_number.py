"""A number has one interval wherever it is shown, and no number replaces another of a different protocol.

That both are on the page, too, is in tests/unit/report/test_models.py.
"""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import mixlab
from mixlab.analysis.claims import Evidence
from mixlab.analysis.comparisons import over_seeds
from mixlab.cli import main
from mixlab.commands.answer import WideAnswer
from mixlab.commands.claims import claims
from mixlab.report import write_report
from mixlab.run import METRICS, Measurement, RunDirectory, Subject
from mixlab.run.protocols import DRAWN, PROTOCOLS, KnnProtocol
from tests.unit.run.test_measurement import another

TRAINED, UNTRAINED, CAUSAL = [0.61, 0.66, 0.63], [0.31, 0.35, 0.30], [0.52, 0.50, 0.55]
N = 400


def write(folder: Path, values: list[float], **about: Any) -> list[Path]:
    """A run per seed, each with its kNN accuracy."""
    runs = []
    for seed, value in enumerate(values):
        run = RunDirectory.create(folder / f"{about['name']}-s{seed}" / about.get("below", ""))
        run.write_config({"seed": seed})
        subject = Subject(
            label=f"{about['name']}-s{seed}",
            model="vit_tiny",
            family="attention",
            training=about.get("training", "dino"),
            num_parameters=6_000_000,
            num_layers=12,
            causal=about.get("causal", False),
        )
        answers = about["answers"][seed] if "answers" in about else None
        found = Measurement(
            metric="knn_top1", value=value, low=value - 0.03, high=value + 0.03, n=N, subject=subject, seed=seed,
            protocol=KnnProtocol(data="photos", k=20), by_image=answers,
        )  # fmt: skip
        run.write("knn", {"kind": "knn", "num_classes": 10, "measurements": [found.to_json()]})
        runs.append(run.path)
    return runs


def by_hand(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """Welch's interval with the variance over images added."""
    images = (0.03 / stats.t.ppf(0.975, N - 1)) ** 2
    parts = [(np.var(side, ddof=1) / len(side), len(side) - 1) for side in (first, second)] + [(images, N - 1)] * 2
    total = sum(part for part, _ in parts)
    half = stats.t.ppf(0.975, total**2 / sum(part**2 / freedom for part, freedom in parts)) * np.sqrt(total)
    gap = float(np.mean(first) - np.mean(second))
    return gap, gap - half, gap + half


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "study"
    return [
        *write(folder, TRAINED, name="vit"),
        *write(folder, UNTRAINED, name="vit", training="untrained", below="untrained"),
        *write(folder, CAUSAL, name="vit-causal", causal=True),
    ]


def test_the_ledger_the_command_line_and_the_page_have_one_interval_for_a_comparison(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims(runs, WideAnswer(json=str(tmp_path / "claims.json")), run=tmp_path / "study")
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    result = json.loads((tmp_path / "claims.json").read_text())
    pages = [write_report([tmp_path / "study"], tmp_path / f"page.{kind}").read_text() for kind in ("html", "md")]

    causal = next(claim for claim in result["claims"] if claim["number"] == 21)
    expected = by_hand(TRAINED, CAUSAL)
    assert (causal["value"], causal["low"], causal["high"]) == pytest.approx(expected, abs=1e-6)
    text = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*expected)
    assert all(text in place.replace("\\", "") for place in (causal["measured"], *pages))

    (gain,) = result["gains"]
    expected = by_hand(TRAINED, UNTRAINED)
    assert (gain["value"], gain["low"], gain["high"]) == pytest.approx(expected, abs=1e-6)
    assert (gain["num_trained"], gain["num_untrained"]) == (3, 3)
    assert "{:+.3f} [{:+.3f}, {:+.3f}]".format(*expected) in printed
    points = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value for value in expected))  # as pages show accuracies
    assert all(points in page for page in pages)
    assert all("significantly more" in place for place in (gain["significance"], printed, *pages))


def test_images_that_both_saw_are_paired_in_the_ledger_as_by_hand_from_the_files(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    hard = random.random(N)
    sides = {
        name: [(hard + 0.1 * random.normal(size=N) < level + 0.01 * seed).astype(float) for seed in range(3)]
        for name, level in (("vit", 0.6), ("vit-causal", 0.5))
    }
    folder = tmp_path / "study"
    for name, answers in sides.items():
        causal = name == "vit-causal"
        write(folder, [float(each.mean()) for each in answers], name=name, causal=causal, answers=answers)
    runs = sorted(folder.iterdir())
    result = claims(runs, run=folder)

    read = {name: [] for name in sides}  # from the text of the files alone
    for run in runs:
        (record,) = json.loads((run / "results" / "knn.json").read_text())["measurements"]
        read[run.name.rpartition("-")[0]].append([int(answer) for answer in record["by_image"]])
    first, second = (np.array(answers) for answers in read.values())
    gaps = first.mean(0) - second.mean(0)
    parts = [(side.mean(1).var(ddof=1) / 3, 2) for side in (first, second)] + [(gaps.var(ddof=1) / N, N - 1)]
    total = sum(part for part, _ in parts)
    half = stats.t.ppf(0.975, total**2 / sum(part**2 / freedom for part, freedom in parts)) * np.sqrt(total)
    expected = (gaps.mean(), gaps.mean() - half, gaps.mean() + half)
    causal = next(claim for claim in result["claims"] if claim["number"] == 21)
    assert (causal["value"], causal["low"], causal["high"]) == pytest.approx(expected, abs=1e-9)
    assert 2 * half < 0.8 * np.subtract(*by_hand(*(side.mean(1).tolist() for side in (first, second)))[:0:-1])
    page = write_report([folder], tmp_path / "page.md").read_text().replace("\\", "")
    assert "{:+.3f} [{:+.3f}, {:+.3f}]".format(*expected) in page


def test_what_auc_prints_of_a_network_and_its_twin_is_what_the_ledger_and_the_page_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bootstrap intervals are not symmetric about their value."""
    torch.manual_seed(1)  # the twin has seed 0
    model = mixlab.create_model("vit_tiny", dim=64, depth=2, patch=8, image=32)
    mixlab.save_weights(model, tmp_path / "vit.safetensors")
    assert main(["auc", str(tmp_path / "vit.safetensors"), "--data", "shapes:n=9", "--run", str(tmp_path / "run")]) == 0
    (row,) = json.loads((tmp_path / "run" / "results" / "auc_model.json").read_text())["rows"]
    gap = row["above_untrained"]
    assert gap["low"] + gap["high"] != pytest.approx(2 * gap["mean"], abs=1e-6), "or this tests nothing"
    text = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**gap)
    capsys.readouterr()
    claims([tmp_path / "run"])
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert all(text in place for place in (printed, write_report([tmp_path / "run"], tmp_path / "page.md").read_text()))


@pytest.mark.parametrize("cls", PROTOCOLS.values(), ids=lambda cls: cls.kind)
def test_two_that_differ_in_one_choice_both_survive_a_run_directory_and_the_ledger(cls: Any, tmp_path: Path) -> None:
    subject = Subject(label="vit", model="vit_tiny", family="attention", training="dino", num_parameters=5)
    metric = next(name for name, metric in METRICS.items() if metric.protocol is cls)
    first = Measurement(metric=metric, value=0.5, n=10, subject=subject, protocol=cls(data="photos"), seed=0)
    for name in (item.name for item in fields(cls)):
        other = replace(first.protocol, **{name: another(cls, name, getattr(first.protocol, name))})
        run = RunDirectory.create(tmp_path / name)
        for measurement in (first, replace(first, value=0.75, protocol=other)):
            run.write("result", {"kind": cls.kind, "measurements": [measurement.to_json()]})
        evidence = Evidence.from_runs([run.path])
        assert {m.value for m in evidence.measurements} == {0.5, 0.75}, name
        groups = sorted([m.value for m in group] for group in over_seeds(evidence.measurements))
        # What was drawn twice for one network is averaged; any other choice makes no further seed.
        assert groups == ([[0.625]] if name in DRAWN else [[0.5], [0.75]]), name
