"""Linear probes whose heads were chosen on other images, beside the best of many heads, which is a little too good."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mixlab.report.findings import Findings
from mixlab.report.models import PROBES
from mixlab.run import UNTRAINED, base_label


@dataclass(frozen=True)
class ChosenElsewhere:
    """Accuracies of one network by one grid of heads, means over its seeds."""

    label: str
    heads: str  # whose learning rates, and on which features
    best: float  # of the heads that the scored images themselves prefer
    elsewhere: float  # each half of the images by the head that the other half prefers
    num_seeds: int


def chosen_elsewhere(findings: Findings) -> list[ChosenElsewhere]:
    """A row for each trained network and grid of heads whose results say so; of equal probes the newest counts."""
    groups: dict[tuple[Any, ...], dict[str, tuple[float, float]]] = {}  # by what seeds have in common: by label
    for record in findings.of("probe"):
        about = record.content.get("subject") or {}
        lead = next((m for m in record.measurements if m["heads"] == "grid" and m["blocks"] is None), None)
        if lead is None or about.get("training") == UNTRAINED:
            continue
        for mode, found in (record.content.get("modes") or {}).items():
            best, elsewhere = ((found.get(name) or {}).get("top1") for name in ("best", "chosen_elsewhere"))
            if best is not None and elsewhere is not None:
                own = (base_label(about["label"]), PROBES.get(lead["lrs"], "other rates"), mode)
                same = (lead["data"], lead["image"], about.get("model"), about.get("num_parameters"))
                groups.setdefault(own + same, {})[about["label"]] = (best, elsewhere)
    rows = []
    for (label, heads, mode, *_), seeds in groups.items():
        best, elsewhere = map(fmean, zip(*seeds.values(), strict=True))
        rows.append(ChosenElsewhere(label, f"{heads}, {mode}", best, elsewhere, len(seeds)))
    return rows
