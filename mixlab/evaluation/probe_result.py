"""From right answers to figures: the best head, what choosing it was worth, and the tables of the paper's ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.evaluation import paper
from mixlab.evaluation.accuracy import accuracy
from mixlab.evaluation.head_grid import Head

VARIED = {"blocks": "blocks", "strategy": "strategy", "lr": "learning rate", "weight_decay": "weight decay"}


def best_head(correct: Tensor, finite: Tensor) -> int:
    """The head that gets most images right, the first of equals; diverged heads do not count."""
    if not finite.any():
        raise InputError("every head diverged; lower the learning rates")
    return int(torch.where(finite, correct.sum(1), -1).argmax())


def summarise_head(head: Head, correct: Tensor, *, seed: int = 0) -> dict[str, Any]:
    """One head and its accuracy, as JSON."""
    return {**head._asdict(), **accuracy(int(correct.sum()), len(correct), seed=seed).as_json()}


def chosen_elsewhere(correct: Tensor, finite: Tensor, *, seed: int = 0) -> dict[str, Any] | None:
    """The accuracy of the best head where it was not chosen: on each half of the images, the head that the other half
    prefers. The best of many heads on the images that chose it is a little too good; this is not.
    """
    halves = [torch.arange(correct.shape[1]) % 2 == half for half in (0, 1)]
    if correct.shape[1] < 2:
        return None
    right = sum(int(correct[best_head(correct[:, ~half], finite), half].sum()) for half in halves)
    return accuracy(right, correct.shape[1], seed=seed).as_json()


def ablations(
    heads: Sequence[Head], correct: Tensor, finite: Tensor, setting: paper.Setting, *, seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Tables 5 and 6: one thing varied at a time, from the paper's own middle, or from the best head without it."""
    numbers = {head: number for number, head in enumerate(heads)}
    middle = Head(*paper.BASE)
    if middle not in numbers:
        middle = heads[best_head(correct, finite)]
    tables = {}
    for name in VARIED:
        # The paper varies the learning rate at a weight decay of 1e-3.
        at = middle._replace(weight_decay=1e-3) if name == "lr" else middle
        at = at if at in numbers else middle
        values = dict.fromkeys(getattr(head, name) for head in heads)
        chosen = [at._replace(**{name: value}) for value in values]
        tables[name] = [
            row_of(head, correct[numbers[head]], setting, diverged=not bool(finite[numbers[head]]), seed=seed)
            for head in chosen
            if head in numbers
        ]
    return tables


def row_of(head: Head, correct: Tensor, setting: paper.Setting, *, diverged: bool, seed: int = 0) -> dict[str, Any]:
    """One head as a row: its accuracy, and the paper's where it measured the same."""
    figure = paper.probe_figure(setting, **head._asdict())
    return {**summarise_head(head, correct, seed=seed), "paper": figure, "diverged": diverged}


def measurements(
    about: dict[str, Any], data: str, best: dict[str, Any], heads: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Records for the ledger: the best head of all, and the best of each `blocks`, `strategy` and `register`."""

    def record(row: dict[str, Any], where: dict[str, Any]) -> dict[str, Any]:
        figure = {"metric": "probe_top1", "value": row["top1"], "low": row["low"], "high": row["high"], "n": row["n"]}
        return {**about, **figure, "data": data, **where}

    sound = sorted((row for row in heads if not row["diverged"]), key=lambda row: float(row["top1"]))
    cells = {(row["blocks"], row["strategy"]): row for row in sound}  # the best comes last
    ablation = [
        record(row, {"blocks": blocks, "strategy": strategy} | _register(strategy))
        for (blocks, strategy), row in sorted(cells.items())
    ]
    return [record(best, {}), *(ablation if len(ablation) > 1 else [])]


def _register(strategy: str) -> dict[str, int]:
    """Which register a head reads, if it reads one alone."""
    kind, _, index = strategy.partition("_")
    return {"register": int(index)} if kind == "register" else {}
