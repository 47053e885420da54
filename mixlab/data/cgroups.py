"""Where the system keeps what a container allows: the folders of a process's cgroup and of those around it."""

from collections.abc import Iterator
from pathlib import Path

PROC, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cgroup_folders(controller: str, proc: Path = PROC, root: Path = ROOT) -> Iterator[Path]:
    """From the innermost on, of version 2 and of version 1, where `controller` (cpu, memory) has a tree of its own."""
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if controllers and controller not in controllers.split(","):
            continue
        for place in [root / controllers, root / controller] if controllers else [root]:
            group = place / path.strip("/")
            for folder in (group, *group.parents):
                yield folder
                if folder == place:
                    break
