"""The demo: commands that anyone could type, a report at the end, and a kill on the way that costs nothing."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import parse_command

from mixlab.commands.demo import run_demo
from mixlab.run import RunDirectory
from mixlab.studies.demo import FULL, MODELS, QUICK, DemoEffort, plan

LITTLE = DemoEffort(
    num_images=64, dino_epochs=1, num_labelled=64, supervised_epochs=30, probe_epochs=2, num_scored=8, num_ranked=1,
    num_pictures=2,
)  # fmt: skip
TWO = tuple(model for model in MODELS if model.label in ("vit", "gatedconv"))
START = """
from pathlib import Path
from test_demo import LITTLE, TWO, run_demo
if __name__ == "__main__":
    run_demo(Path({folder!r}), LITTLE, seed=0, models=TWO, workers=1)
"""


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_every_step_is_a_command_line_that_parses_and_comes_after_what_it_needs(effort: DemoEffort) -> None:
    seen: set[str] = set()
    for step in plan(Path("demo"), effort, seed=1):
        assert set(step.needs) <= seen, f"{step.name} comes before what it needs"
        seen.add(step.name)
        name, *rest = step.arguments
        if name in ("twin", "speed"):
            continue
        given = parse_command(name, rest)
        assert given.get("run") in (None, Path("demo")) or given["run"].parent == Path("demo")
        if "seed" in given:
            assert given["seed"] == 1
    assert {f"train {model.label}" for model in MODELS} <= seen


@dataclass
class Killed:
    """A demo whose process was killed in mid-training, and that was then run to its end."""

    folder: Path
    worker: int  # the process that was training when the demo was killed
    steps_before: int
    result: dict[str, Any]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("demo") / "a demo"
    script = folder.with_name("start.py")
    script.write_text(START.format(folder=str(folder)))
    places = (Path(__file__).parents[number] for number in (0, 2, 3))
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, places))}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE)
    run = RunDirectory(folder / "gatedconv")
    deadline = time.monotonic() + 120
    while not any(row["step"] >= 4 for row in run.read_metrics()):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "training did not begin"
        time.sleep(0.05)
    worker = int((run.path / ".lock").read_text().split()[1])
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "gatedconv" / "weights.safetensors").exists(), "training was over before the kill"
    result = run_demo(folder, LITTLE, seed=0, models=TWO, workers=1)
    sessions = run.read_config()["sessions"]
    return Killed(folder, worker, sessions[-1]["from_step"], result)


def test_a_killed_demo_goes_on_from_a_checkpoint(killed: Killed) -> None:
    assert killed.steps_before >= 4
    rows = list(RunDirectory(killed.folder / "gatedconv").read_metrics())
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps[-1] == 30 and steps == sorted(set(steps)), "steps are missing or twice there"


def test_a_killed_demo_leaves_no_process_behind(killed: Killed) -> None:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{killed.worker}").exists():
        assert time.monotonic() < deadline, "the worker of the killed demo still lives"
        time.sleep(0.1)


def test_the_demo_ends_with_a_self_contained_report(killed: Killed) -> None:
    page = (killed.folder / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page), "the page fetches something"
    assert all(re.search(r'alt="[^"]+"', image) for image in re.findall(r"<img[^>]+>", page))
    sections = re.findall(r'<section id="(\w+)"', page)
    assert sections[0] == "ledger" and {"models", "maps", "auc", "ranks", "training"} < set(sections)
    assert len(page) < 5e6
    assert killed.result["report"] == str(killed.folder / "report.html")


def test_results_name_the_command_that_anyone_could_type(killed: Killed) -> None:
    results = RunDirectory.open(killed.folder / "vit").results()
    command = results["knn_vit"]["provenance"]["command"]
    assert command.startswith("mixlab knn ") and "--data shapes:n=64" in command
    assert results["cost"]["macs"] > 1e6 and results["cost"]["num_parameters"] > 1e5
    untrained = RunDirectory.open(killed.folder / "vit" / "untrained").results()
    assert {result["measurements"][0]["subject"]["training"] for result in untrained.values()} == {"untrained"}
    matrices = RunDirectory.open(killed.folder).results()["matrices"]
    assert all(model["run_and_look_differ_by"] < 1e-5 for model in matrices["models"])


def test_a_finished_demo_runs_only_what_is_missing(killed: Killed) -> None:
    ledger = killed.folder / "results" / "claims.json"
    weights = killed.folder / "vit" / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    ledger.unlink()
    run_demo(killed.folder, LITTLE, seed=0, models=TWO, workers=1)
    assert ledger.is_file() and weights.stat().st_mtime_ns == before


def test_another_demo_does_not_go_into_the_same_directory(killed: Killed) -> None:
    with pytest.raises(ValueError, match=r"something else than this demo.*another --run"):
        run_demo(killed.folder, LITTLE, seed=1, models=TWO, workers=1)


def test_a_step_that_fails_names_its_log(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "gatedconv").write_config({"nonsense": 1})
    (model,) = (model for model in MODELS if model.label == "gatedconv")
    with pytest.raises(RuntimeError, match=r"gatedconv: train failed.*something other than a training run.*logs"):
        run_demo(tmp_path, LITTLE, seed=0, models=(model,), workers=1)
