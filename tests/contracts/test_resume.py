"""The promise: a run that was stopped, damaged or out of disk space resumes and ends with the same bits."""

import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from command_line import command
from safetensors.torch import load_file

from mixlab.recipes import RECIPES
from mixlab.training.loop import train
from mixlab.training.settings import override
from tests.paused_training import pause
from tests.stopped_runs import stopped_after
from tests.waiting import exit_codes, wait_for

pretrain = command("pretrain")

DATA = "shapes:size=32,n=48"
SMALL = ["epochs=2", "batch=8", "data.size=none", "model.dim=32", "model.depth=2", "model.image=32",
         "log.every_steps=2", "checkpoint.every_steps=1", "checkpoint.keep=99", "knn.every_epochs=0"]  # fmt: skip
DINO = [*SMALL, "method.num_prototypes=32", "method.hidden=16", "method.bottleneck=8", "method.num_local=2",
        "method.global_size=32", "method.local_size=16"]  # fmt: skip
RUNS = {
    "dino": ("dino_vit_tiny64", [*DINO, "model.drop_path=0.2"]),
    "dino-accumulate": (
        "dino_dinovim_tiny64",
        [*DINO, "accumulate=2", "model.drop_path=0.2", "model.state=8", "method.teacher_drop_path=true"],
    ),
    "supervised": (
        "supervised_gatedconv_tiny64",
        [*SMALL, "method.size=32", "method.rand_augment=9", "method.cutmix=1", "method.erasing=0.5"],
    ),
}
LAST = 12  # 2 epochs of 48 / 8 steps
RESUMED = [("dino", 1), ("dino", 6), ("dino", LAST), ("dino-accumulate", 8), ("supervised", 8)]  # 6: an epoch's end
CONTEXT = multiprocessing.get_context("forkserver")
pytestmark = pytest.mark.usefixtures("one_thread")


def run(kind: str, folder: Path, *extra: str) -> None:
    name, settings = RUNS[kind]
    train(override(RECIPES[name](), [*settings, *extra]), data=DATA, run=folder, device="cpu", name=name)


def assert_same_end(folder: Path, other: Path) -> None:
    for file in (f"checkpoints/step-{LAST:08d}.safetensors", "weights.safetensors"):
        ours, theirs = load_file(folder / file), load_file(other / file)
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory):
    """Each kind of run from start to end, made once."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "run"
            run(kind, made[kind])
        return made[kind]

    return get


@pytest.mark.parametrize(("kind", "step"), RESUMED)
def test_a_run_resumed_at_any_step_ends_with_the_same_bits(kind: str, step: int, uninterrupted, tmp_path: Path) -> None:
    whole = uninterrupted(kind)
    folder = stopped_after(whole, tmp_path / "run", step)
    run(kind, folder)
    assert_same_end(folder, whole)


def test_the_loss_actually_moves_the_weights_and_the_teacher_follows(uninterrupted) -> None:
    folder = uninterrupted("dino")
    first, epoch, last = (load_file(folder / "checkpoints" / f"step-{step:08d}.safetensors") for step in (1, 6, LAST))
    for name in ("network/backbone.embed.project.weight", "teacher/backbone.embed.project.weight", "centre/mean"):
        assert not torch.equal(first[name], last[name]), name
    prototypes = "network/head.prototypes"  # frozen in the first epoch
    assert torch.equal(first[prototypes], epoch[prototypes]) and not torch.equal(first[prototypes], last[prototypes])


def test_metrics_hold_every_report_once_after_a_resume(uninterrupted, tmp_path: Path) -> None:
    folder = stopped_after(uninterrupted("dino"), tmp_path / "run", 5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')  # what a kill leaves
    run("dino", folder)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == LAST


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(uninterrupted, tmp_path: Path, capfd) -> None:
    whole = uninterrupted("dino")
    folder = stopped_after(whole, tmp_path / "run", 9)
    flip_a_byte(folder / "checkpoints" / "step-00000009.safetensors")
    run("dino", folder)
    shown = capfd.readouterr().err
    assert "step 9 is damaged" in shown and "resuming from step 8" in shown
    assert_same_end(folder, whole)


def test_when_every_checkpoint_is_damaged_the_run_stops_instead_of_starting_over(uninterrupted, tmp_path: Path) -> None:
    folder = stopped_after(uninterrupted("dino"), tmp_path / "run", 2)
    for step in (1, 2):
        flip_a_byte(folder / "checkpoints" / f"step-{step:08d}.safetensors")
    with pytest.raises(OSError, match="no checkpoint in .* can be read; restore one"):
        run("dino", folder)


def test_other_settings_or_data_are_refused_but_what_changes_no_weight_is_not(uninterrupted, tmp_path: Path) -> None:
    whole = uninterrupted("dino")
    folder = stopped_after(whole, tmp_path / "run", 9)
    with pytest.raises(ValueError, match=r"optim.lr was 0\.\d+, is 0\.5"):
        run("dino", folder, "optim.lr=0.5")
    with pytest.raises(ValueError, match="was started on"):
        name, settings = RUNS["dino"]
        train(override(RECIPES[name](), settings), data="shapes:size=32,n=64", run=folder, device="cpu")
    run("dino", folder, "log.every_steps=1", "checkpoint.keep=2")
    assert_same_end(folder, whole)


def test_a_warm_up_longer_than_the_run_is_refused_before_anything_is_trained(uninterrupted, tmp_path: Path) -> None:
    for settings in (["steps=4"], ["steps=4", "optim.warmup_steps=5"]):  # the recipe warms up for an epoch of 6 steps
        with pytest.raises(ValueError, match=r"warm-up of [56] steps .* run of 4; add --set optim.warmup_steps=0"):
            run("dino", tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()
    run("dino", tmp_path / "run", "steps=4", "optim.warmup_steps=4")


def child(folder: str, settings: list[str], file_limit: int | None = None) -> None:
    torch.set_num_threads(1)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    pretrain("dino_vit_tiny64", data=DATA, run=Path(folder), set=settings, device="cpu")


def child_that_pauses(folder: str, settings: list[str], go: str) -> None:
    pause({LAST // 2: Path(go)})
    child(folder, settings)


def test_ctrl_c_saves_the_step_and_stops(uninterrupted, tmp_path: Path) -> None:
    """SIGTERM, and signals to groups: tests/faults."""
    folder, settings = tmp_path / "run", [*RUNS["dino"][1], "checkpoint.every_steps=1000"]
    go = tmp_path / "go"
    process = CONTEXT.Process(target=child_that_pauses, args=(str(folder), settings, str(go)))
    process.start()
    wait_for(lambda: (folder / "metrics.jsonl").is_file())
    os.kill(process.pid, signal.SIGINT)
    go.touch()
    assert exit_codes(process) == [130]
    (saved,) = (folder / "checkpoints").glob("step-*.json")
    assert 0 < int(saved.stem.removeprefix("step-")) < LAST
    run("dino", folder, "checkpoint.every_steps=1000")
    assert_same_end(folder, uninterrupted("dino"))


def test_a_second_run_into_the_same_directory_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = CONTEXT.Process(target=child, args=(str(folder), [*RUNS["dino"][1], "epochs=1000"]))
    process.start()
    try:
        wait_for(lambda: (folder / "metrics.jsonl").is_file())
        with pytest.raises(RuntimeError, match=f"in use by process {process.pid}"):
            run("dino", folder, "epochs=1000")
    finally:
        process.kill()
        process.join()


def test_a_full_disk_stops_the_run_and_leaves_the_last_good_checkpoint(uninterrupted, tmp_path: Path) -> None:
    folder = stopped_after(uninterrupted("dino"), tmp_path / "run", 4)
    size = (folder / "checkpoints" / "step-00000004.safetensors").stat().st_size
    process = CONTEXT.Process(target=child, args=(str(folder), RUNS["dino"][1], size // 2))
    process.start()
    assert exit_codes(process) == [1]
    assert sorted(file.name for file in (folder / "checkpoints").iterdir())[-1] == "step-00000004.safetensors"
    run("dino", folder)
    assert_same_end(folder, uninterrupted("dino"))


def test_a_loss_that_is_no_number_stops_with_step_files_and_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not a finite number at step") as error:
        run("dino", tmp_path / "run", "optim.lr=1e30", "optim.clip=none", "log.every_steps=3")
    text = str(error.value)
    assert "shapes/train/0/" in text
    last_good = int(text.split("last good checkpoint is that of step ")[1].split(".")[0])
    bad = int(text.split("at step ")[1].split(";")[0])
    assert last_good == bad - 1
    kept = load_file(tmp_path / "run" / "checkpoints" / f"step-{last_good:08d}.safetensors")
    assert all(tensor.isfinite().all() for tensor in kept.values())
