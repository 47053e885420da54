"""How much memory a process may still take: of the machine, of its container, and of its own limit (`ulimit -v`)."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .cgroups import PROC, ROOT, cgroup_folders

_MEMINFO, _STATM = Path("/proc/meminfo"), Path("/proc/self/statm")
# Of a cgroup's memory, what the system takes back when it is needed; version 1 counts that of all groups within.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
_V1_RECLAIMABLE = ("total_inactive_file", "total_active_file")


def free_memory() -> int | None:
    """Bytes, swap included; None where the system does not say."""
    return min((free for free in (_free_of_machine(), *_free_of_cgroups(), _free_of_limit()) if free is not None),
               default=None)  # fmt: skip


def _free_of_machine(meminfo: Path = _MEMINFO) -> int | None:
    kilobytes = _numbers(meminfo)
    if "MemAvailable:" not in kilobytes:
        return None
    return 1024 * (kilobytes["MemAvailable:"] + kilobytes.get("SwapFree:", 0))


def _free_of_cgroups(proc: Path = PROC, root: Path = ROOT, meminfo: Path = _MEMINFO) -> Iterator[int]:
    swap = 1024 * _numbers(meminfo).get("SwapFree:", 0)
    for folder in cgroup_folders("memory", proc, root):
        modern = (folder / "memory.max").is_file()
        limit, used = ("memory.max", "memory.current") if modern else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        with suppress(OSError, ValueError):  # "max": no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            stat = _numbers(folder / "memory.stat")
            yield left + swap + sum(stat.get(name, 0) for name in (_RECLAIMABLE if modern else _V1_RECLAIMABLE))


def _free_of_limit() -> int | None:
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource  # not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            return limit - int(_STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _numbers(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
        return {row[0]: int(row[1]) for row in rows if len(row) > 1}
    except (OSError, ValueError):
        return {}
