"""Nearest neighbours of random features: seconds for all queries against a bank of ImageNet's size.

`python -m mixlab.bench.knn`, or with `--quick` in seconds on a CPU. Answers are checked against a plain loop first.
"""

import time
from typing import Any

import torch
import torch.nn.functional as F
import tyro

from mixlab.evaluation.feature_table import FeatureTable
from mixlab.evaluation.knn import KS, knn_correct, nearest

NUM_BANK, NUM_QUERIES, DIM, NUM_CLASSES = 1_281_167, 50_000, 768, 1000  # ImageNet, a base backbone


def measure(
    *,
    num_bank: int = NUM_BANK,
    num_queries: int = NUM_QUERIES,
    dim: int = DIM,
    query_block: int = 1024,
    bank_block: int = 65536,
    device: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Seconds of the vote for all k at once, and of its parts; the features lie on the device."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    generator = torch.Generator(where).manual_seed(seed)

    def table(number: int) -> FeatureTable:
        features = torch.randn(number, dim, generator=generator, device=where)
        labels = torch.randint(NUM_CLASSES, (number,), generator=generator, device=where)
        return FeatureTable.from_tensors(features, labels)

    bank, queries = table(num_bank), table(num_queries)
    check(bank, queries, where)
    few = FeatureTable.from_tensors(queries.all()[:query_block], queries.labels[:query_block])

    def answer(asked: FeatureTable) -> dict[int, torch.Tensor]:
        return knn_correct(
            bank, asked, num_classes=NUM_CLASSES, device=where, query_block=query_block, bank_block=bank_block
        )

    answer(few)  # warm up
    synchronise(where)
    start = time.perf_counter()
    right = answer(queries)
    synchronise(where)
    seconds = time.perf_counter() - start
    return {
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "num_bank": num_bank,
        "num_queries": num_queries,
        "dim": dim,
        "k": list(KS),
        "query_block": query_block,
        "bank_block": bank_block,
        "seconds": seconds,
        "queries_per_s": num_queries / seconds,
        "chance_top1": {k: float(part.float().mean()) for k, part in right.items()},
        "peak_memory_gib": torch.cuda.max_memory_allocated(where) / 2**30 if where.type == "cuda" else None,
    }


def check(bank: FeatureTable, queries: FeatureTable, device: torch.device, most: int = 5000) -> None:
    """The nearest of a few queries among some of the bank, against a sort of all cosines in float64."""
    some = FeatureTable.from_tensors(bank.all()[:most], bank.labels[:most])
    few = FeatureTable.from_tensors(queries.all()[:64], queries.labels[:64])
    ((cosine, rows),) = nearest(some, few, 20, device=device, bank_block=1024)
    keys, asked = (F.normalize(part.all().double(), dim=-1) for part in (some, few))
    expected = (asked @ keys.mT).sort(dim=1, descending=True).values[:, :20]
    true = (asked[:, None] * keys[rows]).sum(-1)
    off = max(float((true - expected).abs().max()), float((cosine - expected).abs().max()))
    if off > 1e-6:
        raise RuntimeError(f"neighbours are {off:.1e} off the nearest ones; speed is measured at 1e-6 at most")


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(*, quick: bool = False, device: str | None = None) -> None:
    """Print the figures; `quick` measures a small case."""
    result = measure(num_bank=20_000, num_queries=500, dim=64, device=device) if quick else measure(device=device)
    for name, value in result.items():
        print(f"{name:>16}  {value}")


if __name__ == "__main__":
    tyro.cli(main)
