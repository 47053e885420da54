"""Runs that nobody stopped, and a small file system that can be filled, where the system lets us mount one."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_processes import Group
from small_runs import pretraining


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of so many bytes."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        call = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        try:
            subprocess.run(call, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no tmpfs may be mounted here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Runs that nobody stopped, by their number of ranks."""
    made: dict[int, Path] = {}

    def get(ranks: int) -> Path:
        if ranks not in made:
            made[ranks] = tmp_path_factory.mktemp("whole") / "run"
            group = Group(pretraining(made[ranks], "data.workers=0"), made[ranks].with_name("log.txt"), ranks=ranks)
            assert group.codes() == [0] * ranks, group.said
        return made[ranks]

    return get
