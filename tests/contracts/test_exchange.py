"""The promise: gradients that ranks average after a step's passes, as CUDA graphs need it, give the bits of DDP; and
all ranks have one set of batch statistics."""

import signal
from pathlib import Path

import torch
import torch.distributed as dist
from deadly_photos import DeadlyPhotos
from ranks import CASES, DINO, join, run_ranks, weights_after
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixlab.recipes import find_recipe
from mixlab.run.files import read_json
from mixlab.training.distributed import World
from mixlab.training.exchange import GradientExchange, StatisticsExchange, in_buckets
from mixlab.training.loop import Trainer, train
from mixlab.training.settings import override


class Uneven(nn.Module):
    """Of its parts, one is used by the first rank alone, one by nobody; a small one gets gradients that cancel."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)  # DDP starts all copies from the first rank's
        self.all, self.first, self.nobody = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("flags", torch.tensor([rank == 0]))
        self.rank = rank

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.first(x) if self.rank == 0 else x).square().mean()


def compare_with_ddp(rank: int, size: int, port: int, folder: str) -> None:
    join(rank, size, port)
    dist.init_process_group("gloo")
    ours, theirs = Uneven(rank), Uneven(rank)
    exchange, ddp = GradientExchange(ours), DistributedDataParallel(theirs, find_unused_parameters=True)
    assert bool(ours.flags)
    for _ in range(2):
        images = torch.randn(3, 4)
        ours.zero_grad(set_to_none=True), theirs.zero_grad(set_to_none=True)
        ours(images).backward()
        exchange()
        ddp(images).backward()
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other), name
            assert (mine.grad is None) == (other.grad is None) == name.startswith("nobody"), name
            assert mine.grad is None or torch.equal(mine.grad, other.grad), name
    world = World(torch.device("cpu"), rank, size)
    for case, (name, settings) in CASES.items():
        found = [weights_after(name, settings, graph=graph, world=world) for graph in (None, False)]
        torch.save(found, f"{folder}/{case} {rank}.pt")
    dist.destroy_process_group()


def test_gradients_averaged_after_the_passes_train_to_the_bits_of_ddp(tmp_path: Path) -> None:
    assert run_ranks(compare_with_ddp, str(tmp_path)) == [0, 0]
    for case in CASES:
        (ours, ddp), (others, _) = (torch.load(tmp_path / f"{case} {rank}.pt") for rank in range(2))
        assert ours.keys() == ddp.keys() == others.keys()
        assert not [key for key in ours if not torch.equal(ours[key], ddp[key])], case
        assert not [key for key in ours if not torch.equal(ours[key], others[key])], f"{case}: ranks differ"


def test_buckets_hold_neighbours_of_one_type_and_a_large_parameter_is_alone() -> None:
    sizes = [3, 2, 9, 1, 1]
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes] + [nn.Parameter(torch.zeros(1).double())]
    found = [[len(p) for p in bucket] for bucket in in_buckets(parameters, most=5 * 4)]
    assert found == [[3, 2], [9], [1, 1], [1]]


def train_a_rank(rank: int, size: int, port: int, folder: str, kill_at: int, settings: list[str]) -> None:
    join(rank, size, port)
    config = override(find_recipe("dino_vit_tiny64"), [*DINO, "epochs=2", "data.workers=0", *settings])
    train(config, data=DeadlyPhotos(32, kill_at if rank == 1 else -1), run=folder, device="cpu")


def test_a_rank_that_is_killed_and_resumed_ends_with_the_bits_of_ddp(tmp_path: Path) -> None:
    often = ["checkpoint.every_steps=1", "log.every_steps=1"]
    read_before = 32 + 16 + 1  # for labels, a fingerprint, and to see what it is
    codes = run_ranks(train_a_rank, str(tmp_path / "killed"), read_before + 5 * 4 + 2, often)
    assert codes[1] == -signal.SIGKILL and codes[0] not in (0, None)
    assert run_ranks(train_a_rank, str(tmp_path / "killed"), -1, often) == [0, 0]
    assert run_ranks(train_a_rank, str(tmp_path / "ddp"), -1, ["graph=false"]) == [0, 0]
    sessions = [session["from_step"] for session in read_json(tmp_path / "killed" / "config.json")["sessions"]]
    assert sessions[0] == 0 and 1 <= sessions[-1] < 8
    ours, theirs = (load_file(tmp_path / run / "checkpoints/step-00000008.safetensors") for run in ("killed", "ddp"))
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


BATCH_NORMS = ["batch=8", "steps=3", "optim.warmup_epochs=0", "knn.every_epochs=0", "model.image=32", "method.size=32"]


def train_batch_norms(rank: int, size: int, port: int, folder: str) -> None:
    join(rank, size, port)
    config = override(find_recipe("supervised_plainmamba_tiny64"), BATCH_NORMS)

    def keep(trainer: Trainer) -> None:
        statistics = {name: value for name, value in trainer.recipe.network.named_buffers() if "running" in name}
        torch.save(statistics, f"{folder}/{rank}.pt")

    train(config, data="shapes:size=32,n=32", run=f"{folder}/run", device="cpu", then=keep)


def test_batch_statistics_are_the_same_on_all_ranks_so_that_all_score_the_exported_network(tmp_path: Path) -> None:
    assert run_ranks(train_batch_norms, str(tmp_path)) == [0, 0]
    ours, theirs = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    exported = load_file(tmp_path / "run" / "weights.safetensors")
    assert ours
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
        assert torch.equal(value, exported[name.removeprefix("backbone.")]), name


def average_statistics(rank: int, size: int, port: int) -> None:
    join(rank, size, port)
    dist.init_process_group("gloo")
    network = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval(), nn.BatchNorm1d(2, track_running_stats=False))
    for norm in network[:2]:
        norm.running_mean.fill_(rank)
        norm.running_var.fill_(2 + rank)
    StatisticsExchange(network)()
    assert network[0].running_mean.tolist() == [0.5, 0.5] and network[0].running_var.tolist() == [2.5, 2.5]
    assert network[1].running_mean.tolist() == [rank, rank], "a frozen one stays as it is"
    dist.destroy_process_group()


def test_statistics_are_averaged_and_those_of_frozen_norms_stay() -> None:
    assert run_ranks(average_statistics) == [0, 0]
