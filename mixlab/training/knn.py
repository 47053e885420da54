"""DINO's weighted vote of nearest neighbours, exact and for any size: blocks of queries against blocks of keys.
`mixlab knn` and the live score of a training run both use it.

Everything that could tie is a whole number. A cosine is rounded to a grid finer than its own error, and of equal ones
the image with the lower number is nearer; weights are rounded relative to the nearest neighbour's, so that sums do not
depend on their order, and of classes with equal votes the lower one wins. Hence the same answer on every device, in
every block size and with any number of ranks.

On a CPU float32 finds candidates, in half the time, and float64 ranks them. A query whose candidates could lack a
neighbour, by the largest error that a product in float32 can have, is looked up in float64 throughout.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mixlab.choices import KS, TEMPERATURE
from mixlab.errors import InputError, check_kind
from mixlab.training.precision import matrix_products

_GRID_BITS = {torch.float32: 22, torch.float64: 30}  # of a cosine; float32 products are good to about 2^-22
_SPARE = 64  # candidates beyond k
_RANKED = 32  # queries whose candidates are ranked at a time, to bound memory
_LOW = (1 << 32) - 1  # a key is (cosine on the grid) * 2^32 + (2^32 - 1 - image number)


@runtime_checkable
class LabelledRows(Protocol):
    """n features with their classes, wherever they lie: `LabelledFeatures` in memory, a `FeatureTable` on the disk."""

    @property
    def labels(self) -> Tensor:
        """Classes (n,), on the host."""

    def __len__(self) -> int: ...

    def block(self, first: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Features (size, D) and labels (size,) from row `first` on, or as many as there are, on the device."""

    def rows(self, indexes: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """Features (n, D) and labels (n,) of some rows, on the device."""


@dataclass(frozen=True)
class LabelledFeatures:
    """Features (n, D) and labels (n,) in memory; labels are kept on the host."""

    features: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        for given in (self.features, self.labels):
            check_kind(given, Tensor, "give features (n, D) and labels (n,) as tensors")
        if self.features.ndim != 2 or self.labels.shape != self.features.shape[:1]:
            shapes = f"{tuple(self.features.shape)} and {tuple(self.labels.shape)}"
            raise InputError(f"features and labels are {shapes}; give (n, D) and (n,)")
        if self.labels.is_floating_point():
            raise InputError(f"labels are {self.labels.dtype}; give whole numbers")
        if not self.features.isfinite().all():
            raise InputError("features hold NaN or infinity; check the weights and images")
        object.__setattr__(self, "labels", self.labels.cpu().long())

    def __len__(self) -> int:
        return len(self.labels)

    def block(self, first: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + size)
        return self.features[rows].to(device), self.labels[rows].to(device)

    def rows(self, indexes: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(indexes).to(self.features.device)
        return self.features[rows].to(device), self.labels[torch.from_numpy(indexes)].to(device)


def check_features(*given: object) -> None:
    """Refuse what is no features with labels, such as a network or its images."""
    for each in given:
        check_kind(each, LabelledRows, "give features with labels: mixlab.labelled_features(backbone, data)")


@torch.no_grad()
def nearest(
    bank: LabelledRows,
    queries: LabelledRows,
    k: int,
    *,
    device: torch.device,
    query_block: int = 1024,
    bank_block: int = 65536,
    progress: Callable[[int], None] = lambda count: None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each block of queries the cosines (q, k), on the grid, and the rows (q, k) of the nearest, nearest first."""
    if k < 1 or len(bank) == 0:
        raise InputError(f"k is {k}, and the bank has {len(bank)} images; both must be at least 1")
    if len(bank) > _LOW:
        raise InputError(f"{len(bank)} images are more than can be numbered in 32 bits; split the bank")
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    k, bits = min(k, len(bank)), _GRID_BITS[dtype]
    bank_block = min(bank_block, len(bank))
    for first in range(0, len(queries), query_block):
        query = F.normalize(queries.block(first, query_block, device)[0].to(dtype), dim=-1)
        found = _from_candidates(query, bank, k, bank_block, bits) if dtype == torch.float64 else None
        if found is None:
            found = _from_all(query, bank, k, bank_block, bits)
        progress(len(query))
        yield (found >> 32).to(dtype) / 2**bits, _LOW - (found & _LOW)


def _from_all(query: Tensor, bank: LabelledRows, k: int, bank_block: int, bits: int) -> Tensor:
    """The k largest keys (q, k), the largest first, from the products with every image."""
    found = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
    for start in range(0, len(bank), bank_block):
        keys = _keys(query, bank, start, bank_block, bits)
        found = torch.cat([found, keys.topk(min(k, keys.shape[1]), dim=1).values], dim=1)
        found = found.topk(min(k, found.shape[1]), dim=1).values
    return found


def _from_candidates(query: Tensor, bank: LabelledRows, k: int, bank_block: int, bits: int) -> Tensor | None:
    """The same; candidates come from products in float32. None where too many are as near as the last to tell."""
    most = k + _SPARE
    if len(bank) < 4 * most:
        return None
    device, narrow = query.device, query.float()
    cosines = torch.empty(len(query), 0, device=device)
    rows = torch.empty(len(query), 0, dtype=torch.int64, device=device)
    for start in range(0, len(bank), bank_block):
        block = F.normalize(bank.block(start, bank_block, device)[0].float(), dim=-1)
        near = (narrow @ block.mT).topk(min(most, len(block)), dim=1)
        cosines, rows = torch.cat([cosines, near.values], dim=1), torch.cat([rows, near.indices + start], dim=1)
        best = cosines.topk(min(most, cosines.shape[1]), dim=1)
        cosines, rows = best.values, rows.gather(1, best.indices)
    # Any sum of D products of unit vectors is off by at most D units in the last place, and both compared ones are;
    # rounding to the grid adds one step of it.
    margin = 2 * (query.shape[1] + 8) * 2.0**-24 + 2.0**-bits
    if (cosines[:, -1] >= cosines[:, k - 1] - margin).any():
        return None
    found = []
    for few, chosen in zip(query.split(_RANKED), rows.split(_RANKED), strict=True):
        features, _ = bank.rows(chosen.flatten().numpy(), device)
        keys = F.normalize(features.to(query.dtype), dim=-1).view(*chosen.shape, -1)
        cosine = torch.einsum("qd,qkd->qk", few, keys)
        found.append(((cosine * 2**bits).round().to(torch.int64) << 32).add_(_LOW - chosen).topk(k, dim=1).values)
    return torch.cat(found)


def _keys(query: Tensor, bank: LabelledRows, start: int, size: int, bits: int) -> Tensor:
    """Cosine and number of each key in one whole number, (q, keys): the larger, the nearer."""
    # The last block is moved back to full size: a product of another shape may round in another way.
    first = max(0, min(start, len(bank) - size))
    block, _ = bank.block(first, size, query.device)
    with matrix_products(exact=True):
        cosine = query @ F.normalize(block.to(query.dtype), dim=-1).mT
    keys = (cosine * 2**bits).round().to(torch.int64) << 32
    keys += _LOW - torch.arange(first, first + size, device=query.device)
    return keys[:, start - first :]


def check_classes(labels: Tensor, num_classes: int, what: str) -> None:
    """Refuse labels (n,) that are no class: -1 stands for none, see `Source.label`."""
    if unlabelled := int((labels < 0).sum()):
        raise InputError(f"{unlabelled} of the {len(labels)} features of {what} have no label (-1); leave them out")
    if len(labels) and (highest := int(labels.max())) >= num_classes:
        raise InputError(f"{what} holds class {highest}; num_classes={num_classes} are 0 to {num_classes - 1}")


def fitting_ks(ks: Sequence[int], num_images: int) -> tuple[int, ...]:
    """The k that do not exceed the size of the bank, each once, in the given order; if there are none, that size."""
    if not ks:
        raise InputError("k has no number; give at least one, such as 20")
    return tuple(dict.fromkeys(k for k in ks if k <= num_images)) or (num_images,)


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature is {temperature}; give a number above 0, such as {TEMPERATURE}")


def vote(cosine: Tensor, labels: Tensor, *, num_classes: int, temperature: float = TEMPERATURE) -> Tensor:
    """Classes (q,) from the cosines and labels (q, k) of the nearest, nearest first."""
    check_temperature(temperature)
    relative = ((cosine.double() - cosine[:, :1].double()) / temperature).exp()
    bits = min(52, 62 - cosine.shape[1].bit_length())  # as fine as float64 allows, and no sum overflows
    weight = (relative * 2**bits).round().to(torch.int64)
    votes = torch.zeros(len(cosine), num_classes, dtype=torch.int64, device=cosine.device)
    return votes.scatter_add_(1, labels, weight).argmax(-1)


@torch.no_grad()
def knn_correct(
    bank: LabelledRows,
    queries: LabelledRows,
    *,
    num_classes: int,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
    device: torch.device,
    query_block: int = 1024,
    bank_block: int = 65536,
    progress: Callable[[int], None] = lambda count: None,
) -> dict[int, Tensor]:
    """For each k, which queries the vote of the k nearest gets right, bool (n,). A k above the bank takes all of it."""
    if not ks or min(ks) < 1:
        raise InputError(f"k {tuple(ks)}: give at least one number from 1 on")
    check_classes(bank.labels, num_classes, "the bank")
    check_classes(queries.labels, num_classes, "the queries")
    labels = bank.labels.to(device)
    right: dict[int, list[Tensor]] = {k: [] for k in ks}
    start = 0
    for cosine, rows in nearest(
        bank, queries, max(ks), device=device, query_block=query_block, bank_block=bank_block, progress=progress
    ):
        truth = queries.labels[start : start + len(rows)]
        start += len(rows)
        for k in ks:
            answer = vote(cosine[:, :k], labels[rows[:, :k]], num_classes=num_classes, temperature=temperature)
            right[k].append(answer.cpu() == truth)
    return {k: torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool) for k, parts in right.items()}


def knn_accuracy(
    bank: LabelledRows,
    queries: LabelledRows,
    *,
    k: int = 20,
    temperature: float = TEMPERATURE,
    num_classes: int | None = None,
    device: torch.device | None = None,
) -> float:
    """The share of queries that a weighted vote of the k nearest in the bank classifies correctly, as in DINO.

    Both are `LabelledFeatures`; k is at most the size of the bank. By default, the number of classes is counted and the
    device is that of the bank.
    """
    check_features(bank, queries)
    if not len(bank) or not len(queries):
        raise InputError(f"{len(queries)} queries in a bank of {len(bank)} features; give at least 1 of each")
    if k > len(bank):
        raise InputError(f"k is {k}, and the bank has {len(bank)} features; give a k of 1 to {len(bank)}")
    if num_classes is None:
        num_classes = 1 + int(max(bank.labels.max(), queries.labels.max()))
    if device is None:
        device = bank.features.device if isinstance(bank, LabelledFeatures) else torch.device("cpu")
    right = knn_correct(bank, queries, num_classes=num_classes, ks=(k,), temperature=temperature, device=device)[k]
    return float(right.double().mean())
