"""How many cores a process may use, and its share of those that several ranks of a job may use.

The system says which cores (affinity), a container for how much of the time (the quota of its cgroup). SLURM binds each
task to cores of its own, torchrun lets all ranks use all of them: so every rank says which it has, and a core is shared
by those that have it.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .cgroups import PROC, ROOT, cgroup_folders

_V1_PERIOD = "cpu.cfs_period_us"
_V1_QUOTA = "cpu.cfs_quota_us"  # -1: none


@dataclass(frozen=True)
class Cores:
    """What one process may use of its machine."""

    machine: str
    numbers: frozenset[int]  # empty where the system does not say (macOS)
    count: int
    quota: float | None = None  # cores' worth of time, shared by all processes of `group`
    group: str = ""

    def share(self, everyone: Sequence["Cores"]) -> float:
        """Of these cores, among all ranks of the job, each of which has said what it may use."""
        here = [other for other in everyone if other.machine == self.machine]
        if self.numbers:
            cores = sum(1 / max(1, sum(number in other.numbers for other in here)) for number in self.numbers)
        else:
            cores = self.count / max(1, len(here))
        if self.quota is None:
            return cores
        return min(cores, self.quota / max(1, sum(other.group == self.group for other in here)))


def own_cores() -> Cores:
    """Those of this process."""
    numbers = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
    quota, group = cgroup_quota()
    return Cores(
        machine=_machine(),
        numbers=numbers,
        count=len(numbers) or os.cpu_count() or 1,
        quota=quota,
        group=f"{socket.gethostname()} {group}",
    )


def num_cores() -> int:
    """Cores that this process may use, at least one; a quota counts as so many whole cores."""
    own = own_cores()
    return max(1, own.count if own.quota is None else min(own.count, int(own.quota)))


def cgroup_quota(proc: Path = PROC, root: Path = ROOT) -> tuple[float | None, str]:
    """The smallest quota of this process's cgroup and those around it, in cores, and which one has it."""
    found = [
        (quota, str(folder)) for folder in cgroup_folders("cpu", proc, root) if (quota := _quota_of(folder)) is not None
    ]
    return min(found, default=(None, ""))


def _quota_of(folder: Path) -> float | None:
    try:
        if (modern := folder / "cpu.max").is_file():
            quota, period = modern.read_text().split()
        else:
            quota, period = ((folder / name).read_text().strip() for name in (_V1_QUOTA, _V1_PERIOD))
        cores = float(quota) / float(period)  # "max": no quota
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _machine() -> str:
    """The same for all processes of one machine, also in different containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
