"""The promise: two processes with half the batch each give the weights of one process, copied or sharded."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from command_line import command
from ranks import CONTEXT, join, run_ranks
from torch.distributed import run as torchrun
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import mixlab
from mixlab.cli import main
from mixlab.run import RunDirectory
from mixlab.run.files import read_json
from mixlab.training.checkpoint import Checkpoints
from mixlab.training.sharded import local
from tests.waiting import exit_codes

pretrain = command("pretrain")


DATA = "shapes:size=32,n=28"  # an odd rest is left out of every epoch
STEPS = 6
BY_MUON = ["optim.name=muon", "method.balance=3"]
SETTINGS = ["batch=8", "epochs=2", "precision=fp64", "data.size=none", "model.dim=32", "model.depth=2",
            "model.image=32", "method.num_prototypes=32", "method.hidden=16", "method.bottleneck=8",
            "method.num_local=2", "method.global_size=32", "method.local_size=16", "optim.warmup_epochs=0",
            "log.every_steps=2", "checkpoint.every_steps=3", "knn.every_epochs=1", "knn.bank=16",
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


@pytest.fixture(scope="module")
def alone_by_muon(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    settings = ["model.state=8", *BY_MUON]
    return run("dino_dinovim_tiny64", tmp_path_factory.mktemp("alone") / "muon", settings, size=1)


@pytest.mark.parametrize(
    ("extra", "by_one"),
    [([], "alone"), (["sharding=fsdp", *BY_MUON], "alone_by_muon")],  # Muon has AdamW for vectors
    ids=["copies", "shards"],
)
def test_two_processes_give_the_weights_of_one_and_one_may_resume_what_two_began(
    extra: list[str], by_one: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    alone = request.getfixturevalue(by_one)
    together = run("dino_dinovim_tiny64", tmp_path / "run", ["model.state=8", *extra], size=2)
    assert together["network/backbone.embed.project.weight"].dtype == torch.float64
    assert largest_difference(together, alone) < 1e-6
    scored = [row["step"] for row in RunDirectory(tmp_path / "run").read_metrics() if "knn_accuracy" in row]
    assert scored == [0, STEPS // 2, STEPS], "before the first epoch, too"
    for file in (tmp_path / "run" / "checkpoints").glob(f"step-{STEPS:08d}.*"):
        file.unlink()
    resumed = run("dino_dinovim_tiny64", tmp_path / "run", ["model.state=8", *extra], size=1)
    assert largest_difference(resumed, alone) < 1e-6


def test_shards_that_were_stopped_while_they_were_scored_are_scored_where_they_resume(tmp_path: Path) -> None:
    run("dino_vit_tiny64", tmp_path, ["sharding=fsdp"], size=2)
    rows = list(RunDirectory(tmp_path).read_metrics())
    for file in (tmp_path / "checkpoints").glob(f"step-{STEPS:08d}.*"):
        file.unlink()
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows if "loss" in r or not r["step"]))
    run("dino_vit_tiny64", tmp_path, ["sharding=fsdp"], size=2)
    first, second = (
        [(row["step"], row["knn_accuracy"]) for row in found if "knn_accuracy" in row]
        for found in (rows, RunDirectory(tmp_path).read_metrics())
    )
    assert first == second and len(first) == 3


class Remembering(torch.optim.RAdam):
    """Keeps the last two gradients of each weight, in a list."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        super().step()
        for weight in (weight for group in self.param_groups for weight in group["params"] if weight.grad is not None):
            before = self.state[weight].get("last", [])
            self.state[weight]["last"] = [*before, weight.grad.clone()][-2:]


class LocalSum(torch.optim.SGD):
    """Keeps the sum of gradients of this rank's rows alone, which no checkpoint could put together."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["sum"] = torch.zeros_like(local(weight))


def child_with_plugin(rank: int, size: int, port: int, folder: str, name: str) -> None:
    mixlab.register_optimizer("remembering")(lambda groups, config: Remembering(groups, lr=0.0))
    mixlab.register_optimizer("local_sum")(lambda groups, config: LocalSum(groups, lr=0.0))
    extra = ["sharding=fsdp", f"optim.name={name}"]
    refused = pytest.raises(mixlab.WorkError, match="LocalSum of .* keeps 'sum' of a part of each parameter")
    with refused if name == "local_sum" else nullcontext():
        child(rank, size, port, "dino_vit_tiny64", folder, extra)


def test_an_optimiser_of_a_plugin_is_sharded_and_saved_as_ours(tmp_path: Path) -> None:
    def newest(folder: str) -> dict[str, torch.Tensor]:
        found = Checkpoints(tmp_path / folder / "checkpoints", keep=1).newest(pytest.fail)
        assert found is not None and found.step == STEPS
        return dict(found.tensors())

    for folder, size in (("alone", 1), ("together", 2)):
        assert run_ranks(child_with_plugin, str(tmp_path / folder), "remembering", size=size) == [0] * size
    alone = newest("alone")
    assert {f"optimizer/{kind}/backbone.embed.project.weight" for kind in ("exp_avg", "last:0", "last:1")} <= {*alone}
    assert largest_difference(newest("together"), alone) < 1e-6
    for file in (tmp_path / "together" / "checkpoints").glob(f"step-{STEPS:08d}.*"):
        file.unlink()
    assert run_ranks(child_with_plugin, str(tmp_path / "together"), "remembering") == [0, 0]
    assert largest_difference(newest("together"), alone) < 1e-6
    assert run_ranks(child_with_plugin, str(tmp_path / "local"), "local_sum") == [0, 0]


@pytest.mark.skipif(os.environ.get("MIXLAB_FAULTS") != "all", reason="a long test; set MIXLAB_FAULTS=all")
def test_what_four_shards_began_two_go_on_with_and_one_ends(alone, tmp_path: Path) -> None:
    folder, shards = (
        tmp_path / "run",
        ["model.state=8", "sharding=fsdp", "checkpoint.every_steps=1", "checkpoint.keep=99"],
    )
    run("dino_dinovim_tiny64", folder, shards, size=4)
    for size, last in ((2, 2), (1, 4)):
        for file in (folder / "checkpoints").glob("step-*"):
            if int(file.name[5:13]) > last:
                file.unlink()
        found = run("dino_dinovim_tiny64", folder, shards, size=size)
        assert largest_difference(found, alone) < 1e-6
    config = read_json(folder / "config.json")
    assert [(part["world_size"], part["from_step"]) for part in config["sessions"]] == [(4, 0), (2, 2), (1, 4)]


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


def rank_of_torchrun(*given: str) -> None:
    """The program that torchrun is given, in one of its processes."""
    torch.set_num_threads(1)
    assert os.environ["WORLD_SIZE"] == "2"
    sys.exit(main([*given[given.index("pretrain") :]]))


def launch(call: list[str]) -> None:
    """`torchrun`, but that its processes are forks, with everything imported."""

    def launch_forks(config: LaunchConfig, entrypoint: str) -> elastic_launch:
        config.start_method = "fork"
        return elastic_launch(config, rank_of_torchrun)

    with patch.object(torchrun, "elastic_launch", launch_forks):
        torchrun.main(call)


def test_torchrun_works_as_is(tmp_path: Path) -> None:
    """New interpreters under torchrun: tests/faults, tests/plugins."""
    settings = [part for setting in [*SETTINGS, "steps=2"] for part in ("--set", setting)]
    # After "--", or torchrun would take our --run for an abbreviation of its own --run-path.
    options = ["--standalone", "--nproc-per-node", "2", "--no-python", "--", "mixlab"]
    call = ["pretrain", "dino_vit_tiny64", "--data", DATA, "--run", str(tmp_path / "run"), "--device", "cpu"]
    process = CONTEXT.Process(target=launch, args=([*options, *call, *settings],))
    process.start()
    assert exit_codes(process) == [0]
    assert read_json(tmp_path / "run" / "config.json")["sessions"][0]["world_size"] == 2
    assert (tmp_path / "run" / "weights.safetensors").is_file()
