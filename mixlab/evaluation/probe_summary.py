"""What a probe leaves in a run directory: one result for one mode or both, with the difference between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixlab.backbones.backbone import Source
from mixlab.data.labelled import LabelledSplits
from mixlab.evaluation import paper
from mixlab.evaluation.accuracy import paired_gap
from mixlab.evaluation.probe_result import ablations, best_head, chosen_elsewhere, measurements, row_of
from mixlab.evaluation.probe_run import Mode, ProbeOutcome, ProbeSettings

Outcomes = dict[Mode, tuple[ProbeSettings, ProbeOutcome]]


def summarise_probe(
    outcomes: Outcomes,
    splits: LabelledSplits,
    *,
    about: dict[str, Any],
    data: str,
    published: Source,
    origin: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result as JSON, and as arrays which images each head gets right (bits) and which images those are.

    `about` describes the backbone: its model, training and so on. `published` is what published probes of it read.
    """
    modes, arrays = {}, {}
    records: list[dict[str, Any]] = []
    for kind, (settings, outcome) in outcomes.items():
        setting = paper.Setting(
            model=about["model"],
            training=about["training"],
            num_classes=len(splits.classes),
            num_train=outcome.num_train,
            epochs=settings.epochs,
            augmented=kind == "augmented",
            published_features=settings.source == published,
        )
        number = best_head(outcome.correct, outcome.finite)
        head = outcome.heads[number]
        best = row_of(head, outcome.correct[number], setting, diverged=False, seed=settings.seed)
        width = outcome.plan.width_of(head.input)
        best |= {"width": width, "paper": paper.best_probe_figure(setting, width=width) or best["paper"]}
        tables = ablations(outcome.heads, outcome.correct, outcome.finite, setting, seed=settings.seed)
        heads = [
            row_of(each, right, setting, diverged=not bool(fine), seed=settings.seed)
            for each, right, fine in zip(outcome.heads, outcome.correct, outcome.finite, strict=True)
        ]
        modes[kind] = {
            "best": best,
            "chosen_elsewhere": chosen_elsewhere(outcome.correct, outcome.finite, seed=settings.seed),
            "tables": tables,
            "heads": heads,
            "num_train": outcome.num_train,
            "batch": outcome.batch,
            "unreadable": outcome.unreadable,
        }
        arrays[f"{kind}_correct_bits"] = np.packbits(outcome.correct.numpy(), axis=1)
        arrays[f"{kind}_images"] = outcome.val_numbers.numpy()
        records += measurements({**about, "mode": kind}, data, best, heads) if not records else []
    settings, _ = next(iter(outcomes.values()))
    result = {
        "kind": "probe",
        "subject": about,
        "data": data,
        "num_classes": len(splits.classes),
        "label_share": settings.label_share,
        "image": settings.image,
        "epochs": settings.epochs,
        "source": settings.source,
        "seed": settings.seed,
        "modes": modes,
        "difference": _difference(outcomes),
        "unknown_classes": splits.unknown,
        "absent_classes": list(splits.absent),
        "measurements": records,
        "provenance": origin,
    }
    return result, arrays


def _difference(outcomes: Outcomes) -> dict[str, Any] | None:
    """Cached less augmented on the same images: of the head that is best with augmentation, and of each mode's best."""
    if len(outcomes) < 2:
        return None
    (_, augmented), (_, cached) = outcomes["augmented"], outcomes["cached"]
    first, second = (best_head(outcome.correct, outcome.finite) for outcome in (augmented, cached))
    seed = outcomes["cached"][0].seed
    return {
        "same_head": paired_gap(cached.correct[first], augmented.correct[first], seed=seed).as_json(),
        "best_heads": paired_gap(cached.correct[second], augmented.correct[first], seed=seed).as_json(),
    }
