"""From correct predictions to results: the best head, its selection bias, the paper's ablations, measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.evaluation import paper
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.features import FeaturePlan, HeadInput
from mixlab.evaluation.probe.heads import Head
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import ONE_HEAD, ProbeProtocol
from mixlab.statistics import Estimate, paired_accuracy_difference

ProbeMode = Literal["augmented", "cached"]
VARIED = {"blocks": "blocks", "strategy": "strategy", "lr": "learning rate", "weight_decay": "weight decay"}


@dataclass(frozen=True)
class GridScores:
    """Every head with the images it gets right, bool (heads, n)."""

    heads: tuple[Head, ...]
    correct: Tensor
    finite: Tensor  # bool (heads,): training did not diverge
    plan: FeaturePlan
    batch: int  # as trained, which few images may make smaller
    num_train: int
    val_numbers: Tensor  # the images' numbers in the validation source, (n,)
    unreadable: dict[str, str]
    knn: Accuracy | None = None  # of nearest neighbours in the features that the best head reads, on few images

    @property
    def best(self) -> int:
        return best_head(self.correct, self.finite)

    def accuracy(self, number: int) -> Accuracy:
        return Accuracy.of(self.correct[number])

    def doubts(self) -> list[str]:
        """Signs that the heads were not trained well (the best rate at the edge of the range, kNN above them), or that
        they are many for so few images."""
        found = []
        best, counts = self.heads[self.best], self.correct.sum(1)
        rates = sorted({head.lr for head in self.heads})
        inner = [number for number, head in enumerate(self.heads) if head.lr in rates[1:-1] and self.finite[number]]
        at_edge = best.lr in (rates[0], rates[-1]) and all(counts[number] < counts[self.best] for number in inner)
        if len(rates) > 1 and at_edge:
            edge, further = ("highest", best.lr * 4) if best.lr == rates[-1] else ("lowest", best.lr / 4)
            found.append(f"the best learning rate, {best.lr:g}, is the {edge} that was tried; add {further:g} to --lrs")
        own = self.accuracy(self.best)
        if self.knn is not None and self.knn.correct > own.correct:
            figures = f"{100 * own.correct / own.n:.1f} % against {100 * self.knn.correct / self.knn.n:.1f} %"
            found.append(f"the probe is below nearest neighbours in the same features, {figures}; give more --epochs")
        if own.n < len(self.heads):
            same = "the same image" if own.n == 1 else f"the same {own.n} images"
            found.append(
                f"the best of {len(self.heads)} heads was chosen on {same}, so part of its accuracy "
                'is luck; --wide shows it as chosen on the other half of them ("other half %")'
            )
        return found


@dataclass(frozen=True)
class ProbeResult:
    """The scores of one mode or both."""

    subject: Subject
    seed: int | None  # of the network
    protocol: ProbeProtocol  # of all heads; mode, blocks, strategy and register are theirs
    scores: dict[ProbeMode, GridScores]
    num_classes: int
    unknown_classes: dict[str, int]  # of the validation set alone: images left out
    absent_classes: tuple[str, ...]  # of the training set alone
    published: bool  # the network was pretrained as the paper's, and heads read what the paper's read
    folder: Path | None  # where the best head of each mode is: FOLDER/MODE/best_head.safetensors

    @property
    def measurements(self) -> list[Measurement]:
        """Of each mode the best head of all, and, where several inputs were tried, the best of each, and every head of
        the paper's ablations.

        Inputs are `blocks` with a `strategy`; a strategy that reads one register names it.
        """
        found = []
        for mode, scores in self.scores.items():
            protocol = self._protocol(mode)
            found.append(self._measured(scores, scores.best, protocol))
            counts = scores.correct.sum(1).tolist()
            best: dict[HeadInput, int] = {}
            for number, head in enumerate(scores.heads):
                if scores.finite[number]:
                    best[head.input] = max(best.get(head.input, number), number, key=counts.__getitem__)
            for (blocks, strategy), number in sorted(best.items()) if len(best) > 1 else ():
                where = replace(protocol, blocks=blocks, strategy=strategy, register=register_of(strategy))
                found.append(self._measured(scores, number, where))
            for number, head in enumerate(scores.heads):
                if tuple(head) in paper.ABLATIONS and scores.finite[number] and len(scores.heads) > 1:
                    where = replace(protocol, blocks=head.blocks, strategy=head.strategy, heads=ONE_HEAD)
                    where = replace(where, lrs=(head.lr,), weight_decays=(head.weight_decay,))
                    found.append(self._measured(scores, number, where))
        return found

    @property
    def arrays(self) -> dict[str, Any]:
        """Which images each head gets right (bits), and which images those are."""
        found: dict[str, Any] = {}
        for mode, scores in self.scores.items():
            found[f"{mode}_correct_bits"] = np.packbits(scores.correct.numpy(), axis=1)
            found[f"{mode}_images"] = scores.val_numbers.numpy()
        return found

    @property
    def differences(self) -> dict[str, Estimate]:
        """Cached minus augmented on the same images: of the head that is best with augmentation, and of each mode's
        best; empty for one mode."""
        if len(self.scores) < 2:
            return {}
        augmented, cached = self.scores["augmented"], self.scores["cached"]
        best = augmented.correct[augmented.best]
        return {
            "same_head": paired_accuracy_difference(cached.correct[augmented.best], best),
            "best_heads": paired_accuracy_difference(cached.correct[cached.best], best),
        }

    def to_json(self) -> dict[str, Any]:
        protocol = self.protocol
        gaps = {
            name: {"difference": gap.value, "low": gap.low, "high": gap.high, "n": gap.n}
            for name, gap in self.differences.items()
        }
        return {
            "kind": "probe",
            "subject": asdict(self.subject) | {"seed": self.seed},
            "data": protocol.data,
            "val_data": protocol.val_data,
            "num_classes": self.num_classes,
            "label_share": protocol.label_share,
            "image": protocol.image,
            "epochs": protocol.epochs,
            "source": protocol.source,
            "heads": protocol.heads,
            "seed": protocol.head_seed,
            "modes": {mode: self._mode_json(mode, scores) for mode, scores in self.scores.items()},
            "difference": gaps or None,
            "unknown_classes": self.unknown_classes,
            "absent_classes": list(self.absent_classes),
            "measurements": [found.to_json() for found in self.measurements],
        }

    def _protocol(self, mode: ProbeMode) -> ProbeProtocol:
        return replace(self.protocol, mode=mode, load_size=self.protocol.load_size if mode == "augmented" else None)

    def _measured(self, scores: GridScores, number: int, protocol: ProbeProtocol) -> Measurement:
        found = scores.accuracy(number).estimate
        return Measurement.of("probe_top1", found, subject=self.subject, protocol=protocol, seed=self.seed)

    def _mode_json(self, mode: ProbeMode, scores: GridScores) -> dict[str, Any]:
        setting = paper.ProbeSetting(
            model=self.subject.model,
            pretrained=self.published,
            num_classes=self.num_classes,
            num_train=scores.num_train,
            epochs=self.protocol.epochs or 0,
            augmented=mode == "augmented",
        )
        rows = [_row(scores, number, setting) for number in range(len(scores.heads))]
        best = dict(rows[scores.best])
        chosen = scores.heads[scores.best].input
        width = scores.plan.width_of(chosen)
        figure = paper.best_probe_figure(setting, width=width, strategy=chosen.strategy)
        best |= {"width": width, "paper": figure or best["paper"]}
        elsewhere = chosen_elsewhere(scores.correct, scores.finite)
        return {
            "best": best,
            "chosen_elsewhere": None if elsewhere is None else elsewhere.to_json(),
            "tables": _ablations(scores, rows),
            "heads": rows,
            "num_train": scores.num_train,
            "batch": scores.batch,
            "knn": None if scores.knn is None else scores.knn.to_json(),
            "unreadable": scores.unreadable,
        }


def best_head(correct: Tensor, finite: Tensor) -> int:
    """The head with the most correct predictions, the first of equals; diverged heads do not count."""
    if not finite.any():
        raise InputError("every head diverged; lower the learning rates")
    return int(torch.where(finite, correct.sum(1), -1).argmax())


def chosen_elsewhere(correct: Tensor, finite: Tensor) -> Accuracy | None:
    """The accuracy of the best head where it was not chosen: on each half of the images, the head that the other half
    prefers. The best of many heads on the images that chose it is a little too good; this is not.
    """
    halves = [torch.arange(correct.shape[1]) % 2 == half for half in (0, 1)]
    if correct.shape[1] < 2:
        return None
    right = sum(int(correct[best_head(correct[:, ~half], finite), half].sum()) for half in halves)
    return Accuracy(right, correct.shape[1])


def register_of(strategy: str) -> int | None:
    """Which register a head reads, if it reads one alone."""
    kind, _, index = strategy.partition("_")
    return int(index) if kind == "register" else None


def _row(scores: GridScores, number: int, setting: paper.ProbeSetting) -> dict[str, Any]:
    """One head: its accuracy, and the paper's where it measured the same."""
    head = scores.heads[number]
    figure = paper.probe_figure(setting, **head._asdict())
    diverged = not bool(scores.finite[number])
    return {**head._asdict(), **scores.accuracy(number).to_json(), "paper": figure, "diverged": diverged}


def _ablations(scores: GridScores, rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Tables 5 and 6: one thing varied at a time, from the paper's own middle, or from the best head without it."""
    numbers = {head: number for number, head in enumerate(scores.heads)}
    middle = Head(*paper.BASE)
    if middle not in numbers:
        middle = scores.heads[scores.best]
    tables = {}
    for name in VARIED:
        # The paper varies the learning rate at a weight decay of 1e-3.
        at = middle._replace(weight_decay=1e-3) if name == "lr" else middle
        at = at if at in numbers else middle
        values = dict.fromkeys(getattr(head, name) for head in scores.heads)
        chosen = [at._replace(**{name: value}) for value in values]
        tables[name] = [rows[numbers[head]] for head in chosen if head in numbers]
    return tables
