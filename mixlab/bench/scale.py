"""What grows with the data and the model, on any machine: opening files and shards, memory of a process and of those
that read data, the time that a save takes from the training, and resuming. Beside torchvision's ImageFolder and
torch.save.

Each is measured in a process of its own. Private memory is what a process has for itself (anonymous pages); shared is
what it maps from files, which the system keeps once for all processes.
"""

import multiprocessing
import os
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets import ImageFolder as TorchvisionFolder

from mixlab.bench.building import measure_building
from mixlab.bench.timing import Row, measured
from mixlab.data.decode import decode, decode_pixels
from mixlab.data.folder_index import PathTable, list_images
from mixlab.data.index_file import Names, StoredIndex, read_index, write_index
from mixlab.data.sample_order import SampleOrder
from mixlab.data.shards import TarShards
from mixlab.training.checkpoint import Checkpoints
from mixlab.training.checkpoint_writer import CheckpointWriter
from mixlab.training.distributed import World

PER_FOLDER, PER_SHARD = 1000, 1000
READS = 64_000  # names that one process looks up
TENSOR = 4_000_000  # elements


def in_own_process(work: Callable[..., Row], *arguments: Any) -> Row:
    """What `work` returns, in a fork of this process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def child() -> None:
        torch.set_num_threads(1)  # a fork has no threads to share work with
        theirs.send(work(*arguments))

    process = context.Process(target=child)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def memory() -> dict[str, int]:
    """Bytes of this process, by the names of /proc/self/smaps_rollup."""
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}


def _look_up(paths: Any, num: int) -> None:
    chance = random.Random(0)
    for _ in range(num):
        paths[chance.randrange(len(paths))]


def _opened(open_paths: Callable[[], Any], num: int, repeats: int) -> Row:
    """Seconds and memory of opening a list of paths, and how much a reading process grows."""
    before, times = memory(), []
    for _ in range(repeats):
        paths, start = None, time.perf_counter()
        paths = open_paths()
        times.append(time.perf_counter() - start)
    seconds, after = min(times), memory()
    growth = in_own_process(_growth, paths)
    return {
        "seconds": seconds,
        "per_s": num / seconds,
        "private_bytes_each": (after["Anonymous"] - before["Anonymous"]) / num,
        "reader_grows_mb": growth["at_first"] / 1e6,
        "later_mb": growth["later"] / 1e6,
    }


def _growth(paths: Any) -> Row:
    """In a fork: what it copies of its parent's memory by looking up paths at random, then four times as many."""
    sizes = [memory()["Private_Dirty"]]
    for num in (READS, 4 * READS):
        _look_up(paths, num)
        sizes.append(memory()["Private_Dirty"])
    return {"at_first": max(0, sizes[1] - sizes[0]), "later": sizes[2] - sizes[1]}


def _torchvision_paths(root: str) -> list[tuple[str, int]]:
    return TorchvisionFolder(root).samples


def measure_opening(num_files: int, folder: Path) -> list[Row]:
    """A folder of empty files: the first time, from the index, and by torchvision."""
    root, cache = folder / "files", folder / "cache"
    for first in range(0, num_files, PER_FOLDER):
        place = root / f"n{first:08d}"
        place.mkdir(parents=True)
        for number in range(first, min(first + PER_FOLDER, num_files)):
            (place / f"n{first:08d}_{number}.JPEG").touch()
    time.sleep(0.1)  # folders that changed a moment ago are not trusted
    rows = []
    ways: dict[str, Callable[[], Any]] = {
        "mixlab, the first time": lambda: list_images(root, cache=cache),
        "mixlab, from its index": lambda: list_images(root, cache=cache),
        "torchvision ImageFolder": lambda: _torchvision_paths(str(root)),
    }
    for name, way in ways.items():
        repeats = 1 if "first" in name else 3  # the best counts
        rows.append(measured({"what": name, "files": num_files, **in_own_process(_opened, way, num_files, repeats)}))
    return rows


def write_table(file: Path, num_entries: int) -> int:
    """The index of a folder that does not exist, with as many entries; returns the bytes of their names."""
    per_folder = PER_FOLDER
    num_folders = -(-num_entries // per_folder)
    sizes = np.full(num_folders, per_folder, dtype=np.int64)
    sizes[-1] = num_entries - (num_folders - 1) * per_folder
    folders = Names.of([f"class{number % 1000:04d}/part{number:06d}" for number in range(num_folders)])
    name = np.frombuffer(b"n00000000_000.JPEG", dtype=np.uint8)
    digits = np.array([list(f"{number:03d}".encode()) for number in range(per_folder)], dtype=np.uint8)
    block = np.tile(name, (per_folder, 1))
    block[:, 10:13] = digits
    index = StoredIndex(
        {"format": 3},
        {
            "folders": folders.text,
            "folder_ends": folders.ends,
            "stamps": np.zeros(num_folders, dtype=np.int64),
            "run_folders": np.arange(num_folders, dtype=np.int32),
            "run_starts": np.arange(num_folders, dtype=np.int64) * per_folder,
            "run_bases": np.arange(num_folders, dtype=np.int64) * (per_folder * len(name)),
            "names": np.tile(block.reshape(-1), num_folders)[: num_entries * len(name)],
            "ends": np.tile(np.arange(1, per_folder + 1, dtype=np.uint32) * len(name), num_folders)[:num_entries],
        },
    )
    write_index(file, index)
    return num_entries * len(name)


def _open_table(file: Path, num: int) -> Row:
    before, start = memory(), time.perf_counter()
    index = read_index(file)
    assert index is not None
    paths = PathTable(index)
    paths[num // 2]
    seconds = time.perf_counter() - start
    order = SampleOrder(num, 256, seed=1)
    first_batch = next(iter(order.batches(3, start=num // 512 * 256)))
    batch_seconds = time.perf_counter() - start - seconds
    _look_up(paths, READS)
    assert paths[int(first_batch[0])]
    np.asarray(paths._names).max()  # every page of it, as an epoch would
    paths._ends.max()
    after = memory()
    return {
        "open_s": seconds,
        "first_order_s": batch_seconds,
        "private_mb": (after["Anonymous"] - before["Anonymous"]) / 1e6,
        "shared_gb": (after["Rss"] - after["Anonymous"] - before["Rss"] + before["Anonymous"]) / 1e9,
    }


def measure_table(num_entries: int, folder: Path) -> list[Row]:
    """A list of paths from its index, every page of which was looked at; and a batch from the middle of an epoch."""
    file = folder / "table.index"
    names = write_table(file, num_entries)
    row = {"entries": num_entries, "names_gb": names / 1e9, "index_gb": file.stat().st_size / 1e9}
    found = measured(row | in_own_process(_open_table, file, num_entries))
    file.unlink()
    return [found]


def measure_shards(num_shards: int, folder: Path) -> list[Row]:
    """Tar shards of small samples: indexed, and from the index."""
    place, cache = folder / "shards", folder / "shard-cache"
    place.mkdir()
    image = BytesIO()
    Image.new("RGB", (8, 8)).save(image, "JPEG")
    first = place / "s-00000.tar"
    with tarfile.open(first, "w") as tar:
        for number in range(PER_SHARD):
            for suffix, data in (("jpg", image.getvalue()), ("cls", b"7")):
                about = tarfile.TarInfo(f"{number:09d}.{suffix}")
                about.size = len(data)
                tar.addfile(about, BytesIO(data))
    for number in range(1, num_shards):
        os.link(first, place / f"s-{number:05d}.tar")
    rows = []
    for name in ("the first time", "from its index"):
        before, start = memory()["Anonymous"], time.perf_counter()
        source = TarShards(f"{place}/s-*.tar", cache=cache)
        seconds = time.perf_counter() - start
        private = (memory()["Anonymous"] - before) / len(source)
        rows.append(
            measured(
                {
                    "what": name,
                    "shards": num_shards,
                    "samples": len(source),
                    "seconds": seconds,
                    "shards_per_s": num_shards / seconds,
                    "private_bytes_each": private,
                }
            )
        )
    return rows


def measure_saves(megabytes: int, folder: Path, *, rounds: int = 3) -> list[Row]:
    """How long a save holds the training, and how long until it is on the disk; then what reading it back takes."""
    num = max(1, megabytes * 250_000 // TENSOR)
    tensors = {f"weight {number}": torch.randn(min(TENSOR, megabytes * 250_000)) for number in range(num)}
    size = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    writer = CheckpointWriter(checkpoints, world=World(torch.device("cpu")), sharded=False)
    stalls, writes, plain, saved = [], [], [], []
    writer.prepare(tensors).join()  # as a run does after its first step, minutes before its first save
    for step in range(rounds + 1):
        start = time.perf_counter()
        writer.start(step, tensors, {})
        stalls.append(time.perf_counter() - start)
        writer.wait()
        writes.append(time.perf_counter() - start)
        start = time.perf_counter()
        checkpoints.save(step, tensors, {})
        plain.append(time.perf_counter() - start)
        start = time.perf_counter()
        _torch_save(tensors, folder / "plain.pt")
        saved.append(time.perf_counter() - start)
    start = time.perf_counter()
    found = checkpoints.newest(print)
    assert found is not None
    for name, value in found.tensors():
        tensors[name].copy_(value)
    resumed = time.perf_counter() - start
    ways = {
        "mixlab, the first": (stalls[0], writes[0]),
        "mixlab": (min(stalls[1:]), min(writes[1:])),
        "mixlab, in the foreground": (min(plain[1:]), min(plain[1:])),
        "torch.save and fsync": (min(saved[1:]), min(saved[1:])),
    }
    rows = [
        {
            "what": name,
            "state_mb": size,
            "stall_s": stall,
            "on_disk_s": whole,
            "of_two_minutes_%": 100 * stall / 120,
            "of_torch_save": stall / min(saved[1:]),
        }
        for name, (stall, whole) in ways.items()
    ]
    rows.append(
        {"what": "resume: checked and read", "state_mb": size, "stall_s": resumed, "on_disk_s": None,
         "of_two_minutes_%": None, "of_torch_save": resumed / min(saved[1:])}
    )  # fmt: skip
    return [measured(row) for row in rows]


def _torch_save(tensors: Mapping[str, Tensor], file: Path) -> None:
    with file.open("wb") as out:
        torch.save(dict(tensors), out)
        out.flush()
        os.fsync(out.fileno())


def measure_decoding(num: int, *, rounds: int = 3) -> list[Row]:
    """Images per second of one core: JPEGs of ImageNet's median size, by the decoder of the readers and by Pillow."""
    chance = np.random.default_rng(0)
    files = []
    for _ in range(num):
        small = Image.fromarray(chance.integers(0, 255, (47, 63, 3), dtype=np.uint8))
        buffer = BytesIO()
        small.resize((500, 375), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    ways: dict[str, Callable[[bytes], object]] = {
        "mixlab (torchvision)": decode_pixels,
        "Pillow": lambda data: np.asarray(decode(data)),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            for data in files:
                way(data)
            best[name] = min(best[name], time.process_time() - start)
    return [measured({"what": name, "images_per_cpu_s": num / seconds}) for name, seconds in best.items()]


def run_scale(
    *, num_files: int, num_entries: int, num_shards: int, megabytes: int, millions: int, num_ranks: int
) -> dict[str, list[Row]]:
    """All tables, in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {
            "Building a network to be sharded": measure_building(millions, num_ranks),
            "Opening a folder of files": measure_opening(num_files, folder),
            "A list of paths from its index": measure_table(num_entries, folder),
            "Opening shards": measure_shards(num_shards, folder),
            "Saving and resuming": measure_saves(megabytes, folder),
            "Decoding JPEGs of 500 x 375 px": measure_decoding(64),
        }
