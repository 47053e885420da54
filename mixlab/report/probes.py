"""Linear probes whose heads were chosen on other images, beside the best of many heads, which is a little too good."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mixlab.analysis.comparisons import grouped
from mixlab.report.findings import Findings
from mixlab.report.models import PROBES
from mixlab.run import UNTRAINED, base_label


@dataclass(frozen=True)
class ChosenElsewhere:
    """Accuracies of one network by one grid of heads, means over its seeds."""

    label: str
    heads: str  # whose learning rates
    best: float  # of the heads that the scored images themselves prefer
    elsewhere: float  # each half of the images by the head that the other half prefers
    num_seeds: int


def chosen_elsewhere(findings: Findings) -> list[ChosenElsewhere]:
    """A row for each trained network and grid of heads whose results say so."""
    rows = []
    for group in grouped(_scored(findings), lambda found: found[:3]):
        (label, heads, _), scores = group[0][:3], [found[3] for found in group]
        best, elsewhere = (fmean(score[name] for score in scores) for name in ("best", "chosen_elsewhere"))
        rows.append(ChosenElsewhere(label, heads, best, elsewhere, len(scores)))
    return rows


def _scored(findings: Findings) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Label, heads, what else they have in common, and both accuracies of each probe, the newest of equals alone."""
    newest: dict[Any, tuple[str, str, Any, dict[str, Any]]] = {}
    for record in findings.of("probe"):
        about = record.content.get("subject") or {}
        lead = next((m for m in record.measurements if m["heads"] == "grid" and m["blocks"] is None), None)
        for mode, found in (record.content.get("modes") or {}).items():
            scores = {name: (found.get(name) or {}).get("top1") for name in ("best", "chosen_elsewhere")}
            if lead is None or None in scores.values() or about.get("training") == UNTRAINED:
                continue
            heads: str = PROBES.get(lead["lrs"], "other rates")
            same = (mode, lead["data"], lead["image"], about.get("model"), about.get("num_parameters"))
            newest[about["label"], heads, same] = (base_label(about["label"]), heads, same, scores)
    yield from newest.values()
