"""How much memory is free, by each of those who limit it."""

import resource
from pathlib import Path

import pytest

from mixlab.data import memory


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_room_around_a_process_counts_with_what_the_system_takes_back(
    version: int, tmp_path: Path
) -> None:
    proc, root, meminfo = tmp_path / "cgroup", tmp_path / "root", tmp_path / "meminfo"
    inner = (root / "memory" if version == 1 else root) / "docker" / "abc"
    inner.mkdir(parents=True)
    proc.write_text("4:memory:/docker/abc\n3:cpu:/elsewhere\n" if version == 1 else "0::/docker/abc\n")
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 1 kB\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    for folder, numbers in ((inner, ("7000", "4000")), (inner.parent, ("max" if version == 2 else str(2**60), "9000"))):
        for name, number in zip(names, numbers, strict=True):
            (folder / name).write_text(f"{number}\n")
        prefix = "total_" if version == 1 else ""
        (folder / "memory.stat").write_text(f"anon 3000\n{prefix}active_file 200\n{prefix}inactive_file 50\n")
    assert min(memory._free_of_cgroups(proc, root, meminfo)) == 7000 - 4000 + 250 + 1024
    assert memory._free_of_machine(meminfo) == 6 * 1024
    assert memory._free_of_machine(tmp_path / "none") is None


def test_a_limit_of_the_process_counts_less_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda what: (pages + 2**20, resource.RLIM_INFINITY))
    free = memory.free_memory()
    assert free is not None and abs(free - 2**20) < 2**26
