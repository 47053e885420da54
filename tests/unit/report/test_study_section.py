"""The section on a study: what it cost, wherever its networks were trained."""

from pathlib import Path
from typing import Any

import pytest

from mixlab.report import write_report
from mixlab.report.findings import read_findings
from mixlab.report.study import study_part
from mixlab.run import RunDirectory


def write_study(place: Path, *, shares: bool) -> None:
    data = {"name": "photos", "num_images": 9, "num_classes": 0, "num_masks": 3}
    minutes = {"dino-tiny-vit-s0": 0.3, **{f"look-tiny-vit-s{n}": 0.1 for n in range(12)}}  # done elsewhere
    trained = {"step": "train vit-tiny-s0", "seconds": 120.0}
    looked = [trained, {"step": "auc vit-tiny-s0", "seconds": 60.0}, {"step": "knn vit-tiny-s0", "seconds": None}]
    steps = {"dino-tiny-vit-s0": [trained], **{f"look-tiny-vit-s{n}": looked for n in range(12)}}
    about: dict[str, Any] = {"kind": "study", "data": data, "masks": "masks", "seeds": [0, 1], "steps": steps}
    about |= {"minutes": minutes, "total_minutes": 1.5, "provenance": {"command": "mixlab study small"}}
    RunDirectory.create(place).write_result("study", about)
    for seed, seconds in enumerate((100.0, 140.0)):
        timed = {"kind": "speedrun", "method": "dino", "recipe": "dino_vit_tiny160", "timed_on": "GPU", "seed": seed}
        timed |= {"seconds": {"training": seconds, "scoring": 20.0, "all_in": seconds + 20}, "steps": 4500}
        timed |= {"images_seen": 1_152_000, "shares_gpu": shares and seed == 1, "sessions": [{"commit": "abc"}]}
        RunDirectory.create(place / f"vit-tiny-s{seed}").write_result("speedrun", timed)


def test_minutes_are_those_of_networks_and_steps_and_not_of_the_part_that_found_them_done(tmp_path: Path) -> None:
    write_study(tmp_path / "small", shares=False)
    (one,) = study_part(read_findings([tmp_path / "small"]))
    assert one["minutes"] == pytest.approx({"networks": 280 / 60, "look": 12.0})
    assert one["total_minutes"] == pytest.approx(12 + 280 / 60)
    (row,) = one["trainings"]
    assert (row["label"], row["seconds"], row["commits"]) == ("vit-tiny", {"training": 120, "all_in": 140}, ["abc"])
    table = write_report([tmp_path / "small"], tmp_path / "README.md").read_text(encoding="utf-8")
    assert "37 steps in 16.7 minutes, on a GPU or a CPU, each counted in full: networks 4.7, look 12.0." in table
    assert "| vit-tiny | 0, 1 | dino\\_vit\\_tiny160 | 4,500 | 1,152,000 | 120 | 140 | abc |" in table


def test_networks_that_shared_a_gpu_have_no_time_of_their_own(tmp_path: Path) -> None:
    write_study(tmp_path / "small", shares=True)
    (one,) = study_part(read_findings([tmp_path / "small"]))
    assert one["trainings"][0]["seconds"] is None
    minutes = {"networks": 120 / 60, "networks trained several at a time": 160 / 60, "look": 12.0}
    assert one["minutes"] == pytest.approx(minutes)
    for name in ("README.md", "page.html"):
        made = write_report([tmp_path / "small"], tmp_path / name).read_text(encoding="utf-8")
        assert "– | – | abc" in made or 'data-name="all in, s"><span>–' in made


def test_learning_rates_that_were_tried_stand_with_length_n_and_error(tmp_path: Path) -> None:
    write_study(tmp_path / "small", shares=False)
    about = {"training": "dino-tiny", "family": "vit", "metric": "knn_top1", "steps": 1000, "n": 1899, "k": 20}
    trials = [about | {"lr": lr, "value": v, "low": v - 0.022, "high": v + 0.022} for lr, v in ((0.1, 0.5), (0.2, 0.6))]
    tuned = {"kind": "tuning", "chosen": {"dino-tiny": {"vit": 0.2}}, "trials": trials}
    RunDirectory(tmp_path / "small").write_result("tuning", tuned)
    said = "(dino-tiny: 1,000 steps; n = 1,899): kNN accuracy (k = 20) after DINO, in %, within ± 2.2 over images."
    for name in ("README.md", "page.html"):
        made = write_report([tmp_path / "small"], tmp_path / name).read_text(encoding="utf-8")
        assert said in made and "rate 0.2" in made
    trials[0].pop("k")
    RunDirectory(tmp_path / "small").write_result("tuning", tuned)
    made = write_report([tmp_path / "small"], tmp_path / "README.md").read_text(encoding="utf-8")
    assert "kNN accuracy after DINO" in made, "not all trials say how many neighbours"
