"""A package outside of the tree, installed into an environment of its own, adds one of everything: commands, the page
and timm know it. With MIXLAB_FAULTS=all also every command, two ranks, and a run that was killed.
"""

import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mixlab
from mixlab.errors import InputError
from mixlab.evaluation.target import load_target
from tests.paused_training import told
from tests.waiting import wait_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.timeout(1200)  # of every command, on a machine that is busy
EVERYTHING = os.environ.get("MIXLAB_FAULTS") == "all"
SETTINGS = ["model.depth=1", "model.dim=32", "knn.bank=16", "knn.queries=8", "log.every_steps=1",
            "checkpoint.every_steps=1", "checkpoint.keep=99", "optim.warmup_epochs=0"]  # fmt: skip
TRAIN = ["pretrain", "agree_garden_tiny64", "--data", "stripes:16", "--device", "cpu",
         *(part for one in SETTINGS for part in ("--set", one))]  # fmt: skip
# Commands that share a process, and the page: imports take longer than all of them.
SCRIPT = """
import sys, timm, mixlab
from mixlab.cli import main
from live_page import ask, request, serve
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import read_samples
from mixlab.evaluation.target import load_targets

def call(*arguments):
    code = main([str(part) for part in arguments])
    assert code == 0, (code, arguments)

for arguments in COMMANDS:
    call(*arguments)
assert timm.is_model("garden_tiny") and timm.create_model("hedge", num_classes=3).head.out_features == 3
laboratory = Laboratory(load_targets([RUN, "hedge"], device="cpu"), read_samples(["stripes:2"], 2), cache_bytes=2**24)
with serve(laboratory) as address:
    about = request(address, "GET", "/api/about").body
    cards = {card["id"]: card for card in about["models"]}
    assert cards["run"]["family"] == "row" and cards["run"]["has_matrix"] and not cards["hedge"]["has_matrix"], cards
    for model in cards:
        question = {"kind": "map", "picture": about["samples"][0]["id"], "model": model, "layer": 0, "map": "light"}
        assert ask(address, question).status == 200
print("ALL IS WELL")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that sees the packages of this one, with two plugins installed by pip: the
    package beside this file, and the one that docs/plugins.md shows."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place / "venv", with_pip=False)
    interpreter = place / "venv" / "bin" / "python"
    (own,) = (place / "venv" / "lib").glob("python*/site-packages")
    (own / "running.pth").write_text("\n".join(site.getsitepackages()))
    shutil.copytree(HERE / "package", place / "garden")  # setuptools builds where the sources are
    shown = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    for name, language in (("pyproject.toml", "toml"), ("my_mixers.py", "python")):
        (place / "mine").mkdir(exist_ok=True)
        (block,) = re.findall(rf"^```{language}\n(.*?)^```", shown, flags=re.DOTALL | re.MULTILINE)
        (place / "mine" / name).write_text(block, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", str(place / "garden"), str(place / "mine")], check=True)
    return interpreter


def environment(**extra: str) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "unit" / "app")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **extra}


def run(python: Path, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [python, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the plugin's method, on its data, with its mixer, and commands on it."""
    place: Path = tmp_path_factory.mktemp("runs")
    small = ["--data", "stripes:4", "--run", "run"]
    commands: list[list[str]] = [
        ["models", "eluvit_tiny"],
        [*TRAIN, "--run", "run"],
        ["knn", "run", "--data", "stripes:8"],
        ["rank", "run", *small],
        ["maps", "run", *small, "--map", "light"],
        ["brightness", "run", "hedge", *small],
        ["report", "run", "--out", "page.html"],
    ]
    if EVERYTHING:
        commands += [
            ["train", "supervised_hedge_tiny64", "--data", "stripes:16", "--run", "classes", "--device", "cpu",
             "--set", "epochs=1", "--set", "batch=8", "--set", "optim.warmup_epochs=0"],
            ["pretrain", "lejepa_hedge_tiny64", "--data", "stripes:16", "--run", "hedge", "--device", "cpu",
             "--set", "epochs=1", "--set", "batch=8", "--set", "method.num_directions=8"],
            ["probe", "run", "--data", "stripes:16", "--epochs", "1"],
            ["maps", "run", "hedge", *small, "--map", "light+cut"],
            ["auc", "run", "hedge", "--data", "shapes:n=4", "--run", "run"],
            ["norms", "run", *small],
            ["matrices", "run", *small],
            ["export", "run", "--out", "garden.safetensors"],
            ["knn", "garden.safetensors", "--data", "stripes:8", "--run", "look"],
            ["robust", "classes", "--shifts", "stripes:4"],
            ["segment", "segment_garden_tiny64", "--data", "shapes:n=4", "--run", "seg", "--device", "cpu",
             "--set", "steps=1", "--set", "batch=2", "--set", "optim.warmup_steps=0"],
            ["detect", "detect_hedge_tiny64", "--data", "shapes:n=4", "--run", "det", "--device", "cpu",
             "--set", "steps=1", "--set", "batch=2", "--set", "optim.warmup_steps=0"],
            ["claims", "run"],
            ["report", "run", "classes", "--out", "page.html"],
        ]  # fmt: skip
    script = place / "commands.py"
    script.write_text(f"COMMANDS, RUN = {commands!r}, 'run'\n{SCRIPT}")
    assert "ALL IS WELL" in run(python, str(script), cwd=place)
    return place


def test_commands_the_page_and_timm_know_an_installed_package(folder: Path) -> None:
    stored = json.loads((folder / "run" / "config.json").read_text())
    (needed,) = stored["plugins"]
    assert needed["package"] == "mixlab-garden==0.3" and needed["adds"] == {
        "recipe": ["agree_garden_tiny64"], "method": ["agree"], "source": ["stripes"], "backbone": ["garden_tiny"],
        "mixer": ["row"], "optimizer": ["spade"], "schedule": ["wane"],
    }  # fmt: skip
    results = {file.stem: json.loads(file.read_text()) for file in (folder / "run" / "results").glob("*.json")}
    assert results["knn_run"]["measurements"][0]["subject"]["family"] == "row"
    bounds = [m["value"] for m in results["rank_run"]["measurements"] if m["metric"] == "off_diagonal_rank_bound"]
    assert set(bounds) == {1.0}, "the bound is the plugin's own"
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "Agreement: loss" in page and "Agreement: distance of views" in page and "How bright it is." in page


def test_without_the_package_a_run_says_what_it_needs(folder: Path, tmp_path: Path) -> None:
    assert "mixlab_garden" not in sys.modules
    with pytest.raises(
        InputError, match=r"weights.safetensors needs the plugin mixlab_garden \(mixer row\).*install mix"
    ):
        load_target(str(folder / "run"))
    stopped = shutil.copytree(folder / "run", tmp_path / "stopped")
    (stopped / "weights.safetensors").unlink()
    with pytest.raises(InputError, match=r"stopped needs the plugin mixlab_garden \(recipe agree_garden_tiny64, meth"):
        load_target(str(stopped))
    with pytest.raises(InputError, match="needs the plugin mixlab_garden"):
        mixlab.recipes.find_recipe(str(folder / "run" / "config.json"))


@pytest.mark.skipif(not EVERYTHING, reason="takes half a minute; MIXLAB_FAULTS=all runs it")
def test_two_ranks_that_are_killed_resume_to_the_same_bits(python: Path, tmp_path: Path) -> None:
    launch = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch += ["--no-python", "--", str(python), "-m", "mixlab"]
    options = {"cwd": tmp_path, "env": environment(), "start_new_session": True, "stdout": subprocess.DEVNULL}
    whole = subprocess.run([*launch, *TRAIN, "--run", "whole"], **options, check=False, timeout=240)  # type: ignore[call-overload]
    assert whole.returncode == 0
    pauses = environment(MIXLAB_IMPORT="tests.paused_training", **told({3: tmp_path / "never"}))
    call = [*launch, *TRAIN, "--run", "killed"]
    process = subprocess.Popen(call, **(options | {"env": pauses}))  # type: ignore[call-overload]
    checkpoints = tmp_path / "killed" / "checkpoints"
    wait_for(lambda: any(checkpoints.glob("step-*.json")) or process.poll() is not None)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()  # with groups of their own
    for each in (process.pid, *map(int, ranks)):
        os.kill(each, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(Path("/proc", rank).exists() for rank in ranks))
    assert checkpoints.is_dir() and not (tmp_path / "killed" / "weights.safetensors").is_file()
    again = subprocess.run([*launch, *TRAIN, "--run", "killed"], **options, check=False, timeout=240)  # type: ignore[call-overload]
    assert again.returncode == 0
    sessions = json.loads((tmp_path / "killed" / "config.json").read_text())["sessions"]
    assert [session["world_size"] for session in sessions] == [2, 2] and sessions[1]["from_step"] > 0
    ours, theirs = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "killed"))
    assert ours.keys() == theirs.keys() and not [name for name in ours if not torch.equal(ours[name], theirs[name])]
