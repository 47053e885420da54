"""Nearest neighbours of random features: seconds for all queries against a bank of ImageNet's size.

Answers are checked against a plain loop first.
"""

import time
from typing import Any

import torch
import torch.nn.functional as F

from mixlab.evaluation.features import FeatureTable
from mixlab.training.knn import KS, knn_correct, nearest

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
) -> list[dict[str, Any]]:
    """Seconds of the vote for all k at once; the features lie on the device."""
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
    memory = torch.cuda.max_memory_allocated(where) / 2**30 if where.type == "cuda" else None
    row = {"bank": num_bank, "queries": num_queries, "width": dim, "seconds": seconds}
    top1 = float(right[KS[0]].float().mean())  # of random features: chance
    return [{**row, "queries_per_s": num_queries / seconds, "accuracy": top1, "peak_GiB": memory}]


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
