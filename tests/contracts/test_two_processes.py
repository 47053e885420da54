"""The promise: two processes with half the batch each give the weights of one process, copied or sharded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import command
from ranks import join, run_ranks

from mixlab.run.directory import read_json
from mixlab.training.checkpoint import Checkpoints

pretrain = command("pretrain")


DATA = "shapes:size=32,n=44"  # an odd rest is left out of every epoch
STEPS = 10
SETTINGS = ["batch=8", "epochs=2", "precision=fp64", "data.size=none", "model.dim=32", "model.depth=2",
            "model.image=32", "method.num_prototypes=32", "method.hidden=16", "method.bottleneck=8",
            "method.num_local=2", "method.global_size=32", "method.local_size=16", "optim.warmup_epochs=0",
            "log.every_steps=3", "checkpoint.every_steps=5", "knn.every_epochs=1", "knn.bank=20",
            "knn.queries=10"]  # fmt: skip


def child(rank: int, size: int, port: int, recipe: str, folder: str, extra: list[str]) -> None:
    if size > 1:
        join(rank, size, port)
    torch.set_num_threads(1)
    pretrain(recipe, data=DATA, run=Path(folder.format(rank=rank)), set=[*SETTINGS, *extra], device="cpu")


def run(recipe: str, folder: Path, extra: list[str], *, size: int) -> dict[str, torch.Tensor]:
    assert run_ranks(child, recipe, str(folder), extra, size=size) == [0] * size
    found = Checkpoints(folder / "checkpoints", keep=1).newest(pytest.fail)
    assert found is not None and found.step == STEPS
    assert len(found.files) == (size if "sharding=fsdp" in extra else 1)  # every rank has written its own shards
    return dict(found.tensors())


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours if ours[name].numel())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return run("dino_dinovim_tiny64", tmp_path_factory.mktemp("alone") / "run", ["model.state=8"], size=1)


@pytest.mark.parametrize("extra", [[], ["sharding=fsdp"]], ids=["copies", "shards"])
def test_two_processes_give_the_weights_of_one_and_one_may_resume_what_two_began(
    extra: list[str], alone, tmp_path: Path
) -> None:
    together = run("dino_dinovim_tiny64", tmp_path / "run", ["model.state=8", *extra], size=2)
    assert together["network/backbone.embed.project.weight"].dtype == torch.float64
    assert largest_difference(together, alone) < 1e-6
    for file in (tmp_path / "run" / "checkpoints").glob(f"step-{STEPS:08d}.*"):
        file.unlink()
    resumed = run("dino_dinovim_tiny64", tmp_path / "run", ["model.state=8", *extra], size=1)
    assert largest_difference(resumed, alone) < 1e-6


@pytest.mark.skipif(os.environ.get("MIXLAB_FAULTS") != "all", reason="a long test; set MIXLAB_FAULTS=all")
def test_what_four_shards_began_two_go_on_with_and_one_ends(alone, tmp_path: Path) -> None:
    folder, shards = (
        tmp_path / "run",
        ["model.state=8", "sharding=fsdp", "checkpoint.every_steps=1", "checkpoint.keep=99"],
    )
    run("dino_dinovim_tiny64", folder, shards, size=4)
    for size, last in ((2, 3), (1, 7)):
        for file in (folder / "checkpoints").glob("step-*"):
            if int(file.name[5:13]) > last:
                file.unlink()
        found = run("dino_dinovim_tiny64", folder, shards, size=size)
        assert largest_difference(found, alone) < 1e-6
    config = read_json(folder / "config.json")
    assert [(part["world_size"], part["from_step"]) for part in config["sessions"]] == [(4, 0), (2, 3), (1, 7)]


def test_two_processes_with_two_passes_each_give_the_weights_of_one_pass(tmp_path: Path) -> None:
    settings = ["model.state=8", "method.spread=0"]  # which looks at one pass at a time
    alone = run("dino_dinovim_tiny64", tmp_path / "alone", settings, size=1)
    together = run("dino_dinovim_tiny64", tmp_path / "run", [*settings, "accumulate=2"], size=2)
    assert largest_difference(together, alone) < 1e-6


def test_the_first_process_alone_touches_the_run_directory(tmp_path: Path) -> None:
    each = str(tmp_path / "run{rank}")  # each on a machine of its own, where the other's folder is not seen
    assert run_ranks(child, "dino_vit_tiny64", each, ["steps=2"]) == [0, 0]
    assert (tmp_path / "run0" / "weights.safetensors").is_file()
    assert not (tmp_path / "run1").exists()


def test_torchrun_works_as_is(tmp_path: Path) -> None:
    program = "from mixlab.commands.pretrain import pretrain; import tyro; tyro.cli(pretrain)"
    script = tmp_path / "pretrain.py"
    script.write_text(program)
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    # After "--", or torchrun would take our --run for an abbreviation of its own --run-path.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--"]
    call = [str(script), "dino_vit_tiny64", "--data", DATA, "--run", str(tmp_path / "run"), "--device", "cpu"]
    done = subprocess.run([*torchrun, *call, *settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run" / "weights.safetensors").is_file()
