"""Runs that differ in their seed alone, as one: means, with 95 % intervals over seeds (Student's t)."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from mixlab.report.findings import Curve
from mixlab.run import base_label
from mixlab.statistics import mean_interval

T = TypeVar("T")
Row = dict[str, Any]


def merge_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows of Binary-AUC, one for all seeds; a row that two records share counts once."""
    once = {(row["label"], row["map"], row["layer"], row["index"]): row for row in rows}

    def key(row: Row) -> Hashable:
        same = ("model", "training", "num_parameters", "map", "layer", "index")
        return tuple(row.get(name) for name in same), base_label(row["label"])

    return [_merged_row(group) for group in _grouped(once.values(), key)]


def merge_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Training curves, one for all seeds: means at the steps that all of them logged."""
    return [_merged_curve(group) for group in _grouped(curves, lambda curve: (base_label(curve.label), curve.method))]


def merge_roc(rates: dict[str, list[float]]) -> dict[str, list[float]]:
    groups = _grouped(rates.items(), lambda item: base_label(item[0]))
    return {
        base_label(group[0][0]): [sum(column) / len(column) for column in zip(*(v for _, v in group), strict=True)]
        for group in groups
    }


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _merged_row(group: list[Row]) -> Row:
    lead = group[0]
    merged = {**lead, "label": base_label(lead["label"])}
    if len(group) == 1:
        return merged
    for name, part in lead.items():
        if isinstance(part, dict) and "mean" in part:
            values = [row[name]["mean"] for row in group if row.get(name) and row[name]["mean"] is not None]
            if values:
                mean = mean_interval(values)
                merged[name] = {**part, "mean": mean.value, "low": mean.low, "high": mean.high}
    return merged


def _merged_curve(group: list[Curve]) -> Curve:
    lead = group[0]
    if len(group) == 1:
        return Curve(base_label(lead.label), lead.rows, lead.config)
    steps = [{row["step"]: row for row in curve.rows if "loss" in row} for curve in group]
    rows = []
    for step in sorted(set.intersection(*(set(part) for part in steps))):
        here = [part[step] for part in steps]
        names = [name for name, value in here[0].items() if all(isinstance(row.get(name), int | float) for row in here)]
        rows.append({name: sum(row[name] for row in here) / len(here) for name in names} | {"step": step})
    return Curve(base_label(lead.label), rows or lead.rows, lead.config)
