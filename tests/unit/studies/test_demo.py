"""The demo: commands that anyone could type, a report at the end, and a kill on the way that costs nothing."""

import multiprocessing
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import parse_command
from in_process import here

from mixlab.commands.demo import run_demo
from mixlab.report import write_report
from mixlab.run import RunDirectory
from mixlab.studies.demo import FULL, QUICK, TUNED, DemoEffort, plan
from tests.paused_training import told
from tests.terminal import terminal
from tests.waiting import wait_for

EPOCHS = 8  # of one step
LITTLE = DemoEffort(
    minutes="seconds", networks=("shipped/vit",), num_tuned=8, batch=8, epochs=EPOCHS, num_watched=8, num_judged=8,
    num_scored=4, num_ranked=1, num_photographs=1, photo_image=64, studies=("model",),
)  # fmt: skip


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_every_step_is_a_command_line_that_parses_and_comes_after_what_it_needs(effort: DemoEffort) -> None:
    seen: set[str] = set()
    steps = plan(Path("demo"), effort, seed=1)
    for step in steps:
        assert set(step.needs) <= seen | {other.name for other in steps[: steps.index(step)]}, step.name
        seen.add(step.name)
        name, *rest = step.arguments
        if name == "twin":
            continue
        given = parse_command(name, rest)
        assert given.get("run") in (None, Path("demo")) or given["run"].parent == Path("demo")
        if "seed" in given:
            assert given["seed"] == 1


@dataclass
class Killed:
    """A demo whose process was killed in mid-training, and that was then run to its end."""

    folder: Path
    worker: int  # the process that was training when the demo was killed
    steps_before: int
    result: dict[str, Any]


@pytest.fixture(scope="module")
def module_patch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def start_demo(folder: Path) -> None:
    """In a process of its own, which starts a worker as the command does. Training pauses until it is asked to stop."""
    os.environ |= {"MIXLAB_IMPORT": "tests.paused_training", **told({EPOCHS // 2: None})}
    run_demo(folder, LITTLE, seed=0, workers=1)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, module_patch: pytest.MonkeyPatch) -> Killed:
    folder = tmp_path_factory.mktemp("demo") / "a demo"
    process = multiprocessing.get_context("forkserver").Process(target=start_demo, args=(folder,))
    process.start()
    run = RunDirectory(folder / TUNED)
    wait_for(lambda: any(row["step"] >= 2 for row in run.read_metrics()) or not process.is_alive())
    worker = int((run.path / ".lock").read_text().split()[1])
    process.kill()
    process.join()
    assert not (run.path / "weights.safetensors").exists()
    module_patch.setattr("mixlab.studies.workers.worker_pool", here)
    module_patch.setattr(sys, "argv", ["mixlab"])
    module_patch.setenv("OMP_NUM_THREADS", "1")
    result = run_demo(folder, LITTLE, seed=0, workers=1)
    return Killed(folder, worker, run.read_config()["sessions"][-1]["from_step"], result)


def test_a_killed_demo_resumes_from_a_checkpoint(killed: Killed) -> None:
    assert 2 <= killed.steps_before <= EPOCHS // 2 + 1  # its worker found that the command is gone, and saved
    rows = list(RunDirectory(killed.folder / TUNED).read_metrics())
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps[-1] == EPOCHS and steps == sorted(set(steps)), "steps are missing or twice there"


def test_a_killed_demo_leaves_no_process_behind(killed: Killed) -> None:
    def has_ended() -> bool:
        try:
            return Path(f"/proc/{killed.worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    wait_for(has_ended, seen=lambda: "Its worker still lives.")


def test_the_demo_ends_with_three_sentences_and_a_self_contained_report(killed: Killed) -> None:
    page = (killed.folder / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page), "the page fetches something"
    assert all(re.search(r'alt="[^"]+"', image) for image in re.findall(r"<img[^>]+>", page))
    sections = re.findall(r'<section id="(\w+)"', page)
    assert sections[0] == "ledger" and {"models", "maps", "auc", "ranks", "training"} < set(sections)
    assert len(page) < 5e6
    assert killed.result["report"] == str(killed.folder / "report.html")
    found = killed.result["found"]
    assert len(found) == 3 and all(sentence.endswith(".") for sentence in found)
    words = re.sub(r"<[^>]+>", "", page)
    assert all(sentence in words for sentence in found)


def test_the_first_screen_shows_trained_networks_and_the_maps_their_untrained_twins(killed: Killed) -> None:
    page = (killed.folder / "report.html").read_text(encoding="utf-8")
    [first] = re.findall(r'<figure class="through.*?</figure>', page, re.S)
    shown, told = first.split("<figcaption>")
    assert "Mixing matrix of vit" in shown and "untrained" not in shown and "1 untrained network is below" in told
    assert "vit, untrained" in page.split('<section id="maps"')[1].split("</section>")[0]


def test_results_name_the_command_that_anyone_could_type(killed: Killed) -> None:
    results = RunDirectory.open(killed.folder / "vit").results()
    command = results["knn_vit"]["provenance"]["command"]
    assert command.startswith("mixlab knn ") and "--data shapes:n=8" in command
    untrained = RunDirectory.open(killed.folder / "vit" / "untrained").results()
    assert {result["measurements"][0]["subject"]["training"] for result in untrained.values()} == {"untrained"}
    matrices = RunDirectory.open(killed.folder / "photographs").results()["matrices"]
    assert all(model["run_and_look_differ_by"] < 1e-5 for model in matrices["models"])


def test_a_finished_demo_runs_only_what_is_missing(killed: Killed) -> None:
    matrices = killed.folder / "photographs" / "results" / "matrices.json"
    weights = killed.folder / TUNED / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    matrices.unlink()
    with terminal(80) as screen:
        run_demo(killed.folder, LITTLE, seed=0, workers=1)
    assert matrices.is_file() and weights.stat().st_mtime_ns == before
    assert re.match(r"Done in \d+ s\. What was found:\n- ", screen.text) and screen.text.count("\n- ") == 3
    assert all(len(line) <= 80 or "/" in line for line in screen.lines), "only a path may be longer"
    last = " ".join(screen.text.split())
    assert f"Open the report: {killed.folder}/report.html" in last and "mixlab app shipped/vit" in last


def test_another_demo_does_not_go_into_the_same_directory(killed: Killed) -> None:
    with pytest.raises(ValueError, match=r"begun with other settings \(seed was 0, is 1\); give another --run"):
        run_demo(killed.folder, LITTLE, seed=1, workers=1)


def test_a_step_that_fails_names_its_log(tmp_path: Path, module_patch: pytest.MonkeyPatch) -> None:
    module_patch.setattr("mixlab.studies.workers.worker_pool", here)
    RunDirectory.create(tmp_path / TUNED).write_config({"nonsense": 1})
    with pytest.raises(RuntimeError, match=r"fine-tune .* failed.*something other than a training run.*logs"):
        run_demo(tmp_path, LITTLE, seed=0, workers=1)


def test_a_folder_of_an_earlier_demo_still_makes_a_report_and_is_not_continued(tmp_path: Path, killed: Killed) -> None:
    """Earlier demos trained five networks, each beside its twin, and had no photographs; files were as they are."""
    old = RunDirectory.create(tmp_path / "demo")
    old.write_config({"demo": {"seed": 0, "num_images": 768, "dino_epochs": 5}})
    run = RunDirectory.create(old.path / "vit")
    run.write_config({"seed": 0, "settings": {"method": {"kind": "dino"}}})
    for name, content in RunDirectory.open(killed.folder / "vit").results().items():
        run.write_result(name, content)
    page = write_report([old.path], tmp_path / "report.html")
    assert "kNN" in page.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="begun with other settings .*and 9 more"):
        run_demo(old.path, LITTLE, seed=0, workers=1)
