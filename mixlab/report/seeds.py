"""Runs that differ in their seed alone, as one: means, with 95 % intervals over seeds (Student's t)."""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from mixlab.analysis.figures import base_label
from mixlab.report.models import Figure, Model
from mixlab.report.records import Curve
from mixlab.statistics import Estimate, mean_interval

T = TypeVar("T")


def merge_models(models: Iterable[Model]) -> list[Model]:
    """One row for all seeds of a network that was trained in one way; in their order."""

    def key(model: Model) -> Hashable:
        return base_label(model.label), model.name, model.training, model.num_parameters

    return [_merged_model(group) for group in _groups(models, key)]


def merge_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of Binary-AUC, one for all seeds; a row that two records share counts once."""
    once = {(row["label"], row["map"], row["layer"], row["index"]): row for row in rows}

    def key(row: dict[str, Any]) -> Hashable:
        same = ("model", "training", "num_parameters", "map", "layer", "index")
        return tuple(row.get(name) for name in same), base_label(row["label"])

    return [_merged_row(group) for group in _groups(once.values(), key)]


def merge_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Training curves, one for all seeds: means at the steps that all of them logged."""
    return [_merged_curve(group) for group in _groups(curves, lambda curve: base_label(curve.label))]


def merge_roc(rates: dict[str, list[float]]) -> dict[str, list[float]]:
    groups = _groups(rates.items(), lambda item: base_label(item[0]))
    return {
        base_label(group[0][0]) if len(group) > 1 else group[0][0]: [
            sum(column) / len(column) for column in zip(*(values for _, values in group), strict=True)
        ]
        for group in groups
    }


def _groups(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _merged_model(group: list[Model]) -> Model:
    lead = group[0]
    if len(group) == 1:
        return lead
    return replace(
        lead,
        label=base_label(lead.label),
        seed=None,
        figures=_merged_figures([model.figures for model in group]),
        untrained=_merged_figures([model.untrained for model in group]),
        passed_over=[entry for model in group for entry in model.passed_over],
        members=tuple(model.label for model in group),
    )


def _merged_figures(groups: list[dict[str, Figure]]) -> dict[str, Figure]:
    merged = {}
    for name in dict.fromkeys(name for figures in groups for name in figures):
        known = [figures[name] for figures in groups if name in figures]
        if len(known) == 1:
            merged[name] = known[0]
        else:
            mean = mean_interval([figure.value for figure in known])
            merged[name] = replace(known[0], value=mean.value, low=mean.low, high=mean.high)
    return merged


def _merged_row(group: list[dict[str, Any]]) -> dict[str, Any]:
    lead = group[0]
    if len(group) == 1:
        return lead
    merged = {**lead, "label": base_label(lead["label"])}
    for name, part in lead.items():
        if isinstance(part, dict) and "mean" in part:
            values = [row[name]["mean"] for row in group if row.get(name) and row[name]["mean"] is not None]
            mean = mean_interval(values) if values else Estimate(math.nan, None, None, 0)
            merged[name] = {**part, "mean": mean.value if values else None, "low": mean.low, "high": mean.high}
    return merged


def _merged_curve(group: list[Curve]) -> Curve:
    lead = group[0]
    if len(group) == 1:
        return lead
    steps = [{row["step"]: row for row in curve.rows if "loss" in row} for curve in group]
    rows = []
    for step in sorted(set.intersection(*(set(part) for part in steps))):
        here = [part[step] for part in steps]
        names = [name for name, value in here[0].items() if isinstance(value, int | float)]
        means = {name: sum(row.get(name, math.nan) for row in here) / len(here) for name in names}
        rows.append({**means, "step": step})
    return Curve(base_label(lead.label), rows or lead.rows, lead.config)
