"""The weighted nearest-neighbour vote of DINO: how well features recognise classes, with nothing to train."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.errors import InputError

CHUNK = 1024  # queries at a time


@torch.no_grad()
def knn_predict(
    bank: Tensor, labels: Tensor, queries: Tensor, *, num_classes: int, k: int = 20, temperature: float = 0.07
) -> Tensor:
    """Classes (Q,) of queries (Q, D): the k nearest of the bank (n, D) vote with exp(cosine / temperature)."""
    if len(bank) == 0 or len(bank) != len(labels):
        raise InputError(f"{len(bank)} features and {len(labels)} labels make no bank; give one label for each feature")
    if k < 1 or temperature <= 0:
        raise InputError(f"k = {k} and temperature {temperature}: give at least 1 and more than 0")
    bank = F.normalize(bank, dim=-1)
    k = min(k, len(bank))
    found = []
    for chunk in F.normalize(queries, dim=-1).split(CHUNK):
        cosine, nearest = (chunk @ bank.mT).topk(k, dim=-1)  # (q, k)
        votes = torch.zeros(len(chunk), num_classes, dtype=bank.dtype, device=bank.device)
        votes.scatter_add_(1, labels[nearest], (cosine / temperature).exp())
        found.append(votes.argmax(-1))
    return torch.cat(found) if found else labels.new_zeros(0)


def knn_accuracy(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    *,
    num_classes: int,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """The share of queries that the vote of `knn_predict` gets right."""
    predicted = knn_predict(bank, labels, queries, num_classes=num_classes, k=k, temperature=temperature)
    return float((predicted == query_labels).float().mean())
