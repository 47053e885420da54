"""How many cores a rank has: under torchrun, SLURM, in containers and alone."""

import multiprocessing
import os
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
import torch
from ranks import free_port

from mixlab.data import cores
from mixlab.data.cores import Cores, cgroup_quota, num_cores, own_cores
from mixlab.data.index_file import is_trusted
from mixlab.training.distributed import World, describe_workers, join_world, num_workers, once_per_machine, only_first
from tests.waiting import exit_codes


def rank(numbers: range, *, machine: str = "a", quota: float | None = None, group: str = "") -> Cores:
    return Cores(machine, frozenset(numbers), len(numbers), quota, group)


def test_cores_are_those_that_may_be_used_and_all_where_the_system_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "cgroup_quota", lambda: (None, ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 5, 7}, raising=False)
    assert num_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    assert num_cores() == 9
    world = World(torch.device("cpu"))
    assert (num_workers(None, world), num_workers(5, world)) == (8, 5)


def test_ranks_share_the_cores_that_torchrun_leaves_to_all() -> None:
    everyone = [rank(range(64)) for _ in range(8)] + [rank(range(64), machine="b") for _ in range(8)]
    assert all(one.share(everyone) == pytest.approx(8) for one in everyone)


def test_a_task_that_slurm_bound_to_its_own_cores_has_all_of_them() -> None:
    """12 cores for each of 8 ranks: all ranks together have 96, and each reads with 11 processes."""
    everyone = [rank(range(12 * place, 12 * place + 12)) for place in range(8)]
    shares = [one.share(everyone) for one in everyone]
    assert shares == [pytest.approx(12)] * 8
    assert num_workers(None, World(torch.device("cpu"), size=8, cores=shares[0])) == 11


def test_a_container_s_quota_is_shared_by_its_ranks_alone() -> None:
    first = [rank(range(32), quota=8.0, group="one") for _ in range(2)]
    second = [rank(range(32), quota=3.0, group="two")]
    everyone = [*first, *second]
    assert [one.share(everyone) for one in everyone] == [4, 4, 3]
    assert rank(range(2), quota=8.0).share([rank(range(2), quota=8.0)]) == 2  # more time than cores


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_quota_around_a_process_counts(version: int, tmp_path: Path) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "root"
    top = root / "cpu,cpuacct" if version == 1 else root
    inner = top / "docker" / "abc"
    inner.mkdir(parents=True)
    proc.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n" if version == 1 else "0::/docker/abc\n")
    assert cgroup_quota(proc, root) == (None, "")
    for folder, quota in ((inner, "-1" if version == 1 else "max"), (inner.parent, "250000")):
        if version == 1:
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
        else:
            (folder / "cpu.max").write_text(f"{quota} 100000\n")
    assert cgroup_quota(proc, root) == (2.5, str(inner.parent))
    assert cgroup_quota(tmp_path / "none", root) == (None, "")


def test_the_number_is_said_with_its_reason() -> None:
    alone = World(torch.device("cpu"), cores=2.0)
    assert describe_workers(None, alone) == "1 process reads data (of 2 cores)"
    assert describe_workers(3, World(torch.device("cpu"), size=4, cores=2.0)) == (
        "3 processes read data for each rank (workers is 3)"
    )
    assert describe_workers(0, alone) == "no extra process reads data (workers is 0)"


def bound(number: int, port: int, found: SimpleQueue) -> None:
    mine = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {mine[number % len(mine)]})  # as SLURM does
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in names.items()}
    looked: list[bool] = []
    with join_world("cpu") as world:
        once_per_machine(world, lambda: looked.append(is_trusted()))
        first = only_first(lambda: number)
        found.put((number, world.cores, looked, first))


@pytest.mark.skipif(own_cores().count < 2 or own_cores().quota is not None, reason="needs two cores of its own")
def test_real_ranks_do_not_divide_cores_of_their_own_and_one_of_them_compares_the_index() -> None:
    context, port = multiprocessing.get_context("fork"), free_port()
    found = context.SimpleQueue()
    processes = [context.Process(target=bound, args=(number, port, found)) for number in range(2)]
    for process in processes:
        process.start()
    assert exit_codes(*processes) == [0, 0]
    assert sorted(found.get() for _ in processes) == [(0, 1.0, [False], 0), (1, 1.0, [True], 0)]
