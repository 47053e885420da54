"""Runs that differ in their seed alone, drawn as one: means, with 95 % intervals over seeds (Student's t)."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from mixlab.analysis.comparisons import grouped
from mixlab.report.findings import Curve
from mixlab.run import base_label
from mixlab.run.protocols import METRICS
from mixlab.statistics import mean_interval

Row = dict[str, Any]


def merge_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows of Binary-AUC, one for all seeds; a row that two records share counts once."""
    once = {(row["label"], row["map"], row["layer"], row["index"]): row for row in rows}

    def key(row: Row) -> Hashable:
        same = ("model", "training", "num_parameters", "map", "layer", "index")
        return tuple(row.get(name) for name in same), base_label(row["label"])

    return [_merged_row(group) for group in grouped(once.values(), key)]


def merge_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Training curves, one for all seeds: of each metric, means at the steps at which all of them logged it."""
    return [_merged_curve(group) for group in grouped(curves, lambda curve: (base_label(curve.label), curve.method))]


def merge_roc(curves: Sequence[Row]) -> Row:
    """Mean ROC curves of some records as one, seeds averaged; what was read at other rates than the first is left out.
    A label that two records share counts once."""
    at = curves[0]["false_positive_rate"]
    alike = [curve["true_positive_rate"] for curve in curves if curve["false_positive_rate"] == at]
    once = {label: rates for part in alike for label, rates in part.items() if len(rates) == len(at)}
    merged = {
        base_label(group[0][0]): [sum(column) / len(column) for column in zip(*(v for _, v in group), strict=True)]
        for group in grouped(once.items(), lambda item: base_label(item[0]))
    }
    return {"false_positive_rate": at, "true_positive_rate": merged}


def _merged_row(group: list[Row]) -> Row:
    lead = group[0]
    merged = {**lead, "label": base_label(lead["label"])}
    if len(group) == 1:
        return merged
    for name, part in lead.items():
        if isinstance(part, dict) and "mean" in part:
            values = [row[name]["mean"] for row in group if row.get(name) and row[name]["mean"] is not None]
            if values:
                lowest = METRICS[name].lowest if name in METRICS else 0.0  # of a difference -1
                mean = mean_interval(values, low=lowest, high=1.0)
                merged[name] = {**part, "mean": mean.value, "low": mean.low, "high": mean.high}
    return merged


def _merged_curve(group: list[Curve]) -> Curve:
    """Losses and scores are lines of their own. A metric without a step in common is the first seed's."""
    lead = group[0]
    if len(group) == 1:
        return Curve(base_label(lead.label), lead.rows, lead.config)
    rows: dict[int, Row] = {}
    for name in dict.fromkeys(name for row in lead.rows for name in row if name != "step"):
        values = [{row["step"]: row[name] for row in curve.rows if name in row} for curve in group]
        shared = set.intersection(*map(set, values))
        for step in shared or values[0]:
            here = [part[step] for part in (values if shared else values[:1])]
            rows.setdefault(step, {"step": step})[name] = sum(here) / len(here)
    return Curve(base_label(lead.label), [rows[step] for step in sorted(rows)], lead.config)
