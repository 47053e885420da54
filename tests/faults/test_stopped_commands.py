"""The promise for every command that takes long: a signal to its group ends it with one line, its own exit code and no
traceback, and the same command again ends with the results of one that nobody stopped."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_processes import (
    ALL,
    PATIENCE_S,
    STOPS,
    Group,
    children_of,
    last_logged,
    left_in,
    moments,
    only_all,
    start_program,
    steps_of,
    wait_for,
)
from small_runs import assert_same_end, pretraining, wait_for_moment

from mixlab.backbones.weights import save_weights
from mixlab.backbones.zoo import create_model
from mixlab.signals import STOP_SIGNALS
from tests.drawn_folders import draw_folders

pytestmark = pytest.mark.timeout(3600 if ALL else 1200)


def settings(*given: str) -> list[str]:
    return [part for setting in given for part in ("--set", setting)]


SEGMENT = settings("steps=24", "batch=8", "model.dim=16", "model.depth=4", "model.image=32", "model.patch=4",
                   "method.crop=32", "method.short_side=32", "method.channels=16", "method.auxiliary_channels=8",
                   "optim.warmup_steps=1", "log.tensorboard=false", "data.workers=2")  # fmt: skip
DETECT = settings("steps=12", "batch=4", "model.depths=[1,1,1,1]", "model.dims=[8,8,16,16]", "method.short=32,32",
                  "method.channels=16", "method.hidden=16", "method.mask_convs=1", "optim.warmup_steps=1",
                  "model.drop_path_rate=0.1", "log.tensorboard=false", "data.workers=2")  # fmt: skip
FROZEN = ["--data", "shapes:n=300,size=32", "--image", "32", "--workers", "2"]
CALLS: dict[str, Callable[[Path, str], list[str]]] = {
    "segment": lambda run, model: ["segment", "segment_gatedconv_tiny64", "--data", "shapes:n=48,size=32", *SEGMENT,
                                   "--num-val", "10", "--run", str(run)],
    "detect": lambda run, model: ["detect", "detect_mambaout_femto64", "--data", "shapes:n=24,size=32", *DETECT,
                                  "--num-val", "8", "--run", str(run)],
    "probe": lambda run, model: ["probe", model, *FROZEN, "--epochs", "20", "--batch", "100", "--run", str(run)],
    "knn": lambda run, model: ["knn", model, *FROZEN, "--batch", "16", "--run", str(run)],
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("model") / "vit.safetensors"
    save_weights(create_model("vit_tiny", dim=64, depth=4, image=32), file)
    return str(file)


def results(run: Path) -> dict[str, Any]:
    """What the run found, without when and how it was found."""
    found = {file.stem: json.loads(file.read_text()) for file in (run / "results").glob("*.json")}
    for result in found.values():
        result.pop("provenance", None)
        result.pop("figures", None)  # rates
    return found


@only_all
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_command_that_is_signalled_ends_cleanly_and_then_finds_the_same(
    name: str, ranks: int, model: str, tmp_path: Path
) -> None:
    chance, log = moments(f"{name} {ranks}"), tmp_path / "log.txt"
    whole, run = tmp_path / "a" / "run", tmp_path / "b" / "run"
    for folder in (whole, run):
        folder.mkdir(parents=True)
    group = Group([*CALLS[name](whole, model), "--device", "cpu"], log, ranks=ranks)
    start = time.monotonic()
    assert group.codes() == [0] * ranks, group.said
    numbers = [each for each in STOP_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]  # SIGHUP under nohup
    took, stopped, finished, is_fresh = time.monotonic() - start, 0, 0, True
    while stopped < STOPS or not finished:
        number, start = numbers[stopped % len(numbers)], time.monotonic()
        group = Group([*CALLS[name](run, model), "--device", "cpu"], log, ranks=ranks)
        if stopped < STOPS:
            moment = start + chance.random() * took * 0.8
            wait_for(lambda group=group, moment=moment: time.monotonic() > moment or not group.is_alive())
            group.signal(number)
        codes = group.codes()
        assert set(codes) <= {128 + number, 0}, group.said  # of two ranks, the second has less to do at the end
        assert "Traceback" not in group.said
        assert group.said.count("stopped by") == (codes[0] != 0), group.said
        if codes[0]:
            stopped, is_fresh = stopped + 1, False
            continue
        if is_fresh:  # the first of all imports, perhaps on a busy machine
            took = min(took, time.monotonic() - start)
        is_fresh = True
        finished += 1  # from what earlier ones left, or before the signal came: then all begins again
        assert results(run) == results(whole)
        for file in whole.glob("*.safetensors"):
            assert file.read_bytes() == run.joinpath(file.name).read_bytes()  # two equal runs, to the byte
        shutil.rmtree(run.parent)
        run.mkdir(parents=True)
    print(f"{name}, {ranks} ranks: {stopped} stops, {finished} finished with equal results")


def wait_until_begun(process: subprocess.Popen[bytes]) -> None:
    """Until our first line has run: Python's own handler of Ctrl-C is gone, or ours are there."""
    python_began = False

    def has_begun() -> bool:
        nonlocal python_began
        text = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(next(line for line in text.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        ctrl_c, ours = (bool(caught >> (number - 1) & 1) for number in (signal.SIGINT, signal.SIGTERM))
        begun = ours or (python_began and not ctrl_c) or process.poll() is not None
        python_began |= ctrl_c
        return begun

    wait_for(has_begun)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=only_all)])
def test_a_signal_while_a_command_starts_is_one_line_and_no_traceback(number: int, tmp_path: Path) -> None:
    chance, log = moments(f"start {number}"), tmp_path / "log.txt"
    for attempt in range(2 * STOPS if ALL else 2):
        call = [["models", "vit*"], pretraining(tmp_path / "run", "data.workers=2")][attempt % 2]
        process = start_program(*call, log=log)
        wait_until_begun(process)
        time.sleep(chance.random() ** 2 * (4.0 if ALL else 0.8))  # early ones are likelier
        os.killpg(process.pid, number)
        assert process.wait(PATIENCE_S) in (128 + number, -number, 0), (
            log.read_text()
        )  # by Ctrl-C itself, before our imports
        said = log.read_text()
        assert "Traceback" not in said and "Error" not in said and "Exception" not in said, said
        wait_for(lambda process=process: not left_in(process.pid))


@only_all
@pytest.mark.parametrize("to", ["torchrun alone", "its group", "one rank"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_torchrun_that_is_signalled_gives_its_ranks_time_to_save(
    number: int, workers: int, to: str, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    chance, run, log = moments(f"torchrun {number} {to} {workers}"), tmp_path / "run", tmp_path / "log.txt"
    call = pretraining(run, f"data.workers={workers}")
    log.touch()
    for _ in range(STOPS):
        before, done = len(log.read_text()), last_logged(run)
        process = start_program(*call, log=log, torchrun=2)
        if chance.random() < 0.2:
            wait_for(lambda before=before: "DINO pretraining: " in log.read_text()[before:])
        else:
            wait_for_moment(run, done, chance)
        if to == "one rank":
            os.kill(chance.choice(children_of(process.pid)), number)
        else:
            os.killpg(process.pid, number) if to == "its group" else process.send_signal(number)
        code = process.wait(PATIENCE_S)
        wait_for(lambda process=process: not left_in(process.pid))
        said = " ".join(log.read_text()[before:].split())
        assert said.count(f"stopped by {signal.Signals(number).name} after step {last_logged(run)}") == 1, said
        assert code == 1, said  # torchrun's own, whatever ended it
        assert to != "one rank" or f"exitcode : {128 + number}" in said, said
        assert (steps_of(run) or [0])[-1] == last_logged(run)
    process = start_program(*call, log=log, torchrun=2)
    assert process.wait(PATIENCE_S) == 0, log.read_text()
    assert_same_end(run, whole(2))
    print(f"{signal.Signals(number).name} to {to}, {workers} workers: {STOPS} of {STOPS} saved, bit-equal")


@only_all
def test_a_study_that_is_signalled_stops_its_processes_and_resumes(tmp_path: Path) -> None:
    chance, log = moments("study"), tmp_path / "log.txt"
    photos, masks = draw_folders(tmp_path)
    call = ["study", "miniature", "--data", str(photos), "--masks", str(masks), "--run", str(tmp_path / "run"),
            "--quick", "--part", "dino", "--seeds", "1", "--at-once", "2", "--device", "cpu"]  # fmt: skip
    codes: list[int] = []
    for attempt in range(STOPS):
        number = (signal.SIGTERM, signal.SIGINT)[attempt % 2]
        before = len(log.read_text()) if log.is_file() else 0
        process = start_program(*call, log=log)
        wait_until_begun(process)
        time.sleep(chance.random() * 20)
        os.killpg(process.pid, number)
        codes.append(process.wait(PATIENCE_S))
        said = " ".join(log.read_text()[before:].split())
        assert codes[-1] in (128 + number, 0), said
        assert "Traceback" not in said, said
        wait_for(lambda process=process: not left_in(process.pid))
    process = start_program(*call, log=log)
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-3000:]
    print(f"study: {sum(code != 0 for code in codes)} of {STOPS} stopped before the end")
