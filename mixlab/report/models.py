"""The models of a report, one row each: what was measured of them, and what training brought over an untrained twin."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mixlab.analysis.figures import FAMILIES, OTHER, LineStyle, line_styles
from mixlab.report.records import Findings, Record
from mixlab.run import UNTRAINED

WHOLE_MODELS = ("model", "training", "size", "registers")  # studies of Binary-AUC with one score for each model


@dataclass(frozen=True)
class Figure:
    """A number, its interval, and the record it is from."""

    value: float
    low: float | None
    high: float | None
    n: int | None
    record: Record
    data: str = ""

    def less(self, other: "Figure") -> "Figure":
        """The difference, as if the two were measured on different images, which is cautious."""
        gap = self.value - other.value
        if None in (self.low, self.high, other.low, other.high):
            return Figure(gap, None, None, self.n, self.record, self.data)
        half = math.hypot(*((part.high - part.low) / 2 for part in (self, other)))  # type: ignore[operator]
        return Figure(gap, gap - half, gap + half, self.n, self.record, self.data)

    @property
    def verdict(self) -> str:
        """What a difference says."""
        if self.low is None or self.high is None:
            return "no interval"
        return "more" if self.low > 0 else "less" if self.high < 0 else "not told apart"


@dataclass
class Model:
    label: str
    name: str
    family: str
    training: str
    seed: int | None
    num_parameters: int
    style: LineStyle = OTHER
    figures: dict[str, Figure] = field(default_factory=dict)
    untrained: dict[str, Figure] = field(default_factory=dict)
    passed_over: list[tuple[str, Record, Record]] = field(default_factory=list)  # metric, not shown, shown
    members: tuple[str, ...] = ()  # labels of the seeds that it is the mean of

    @property
    def mixer(self) -> str:
        return FAMILIES.get(self.family, self.family)

    def gain(self, metric: str) -> Figure | None:
        """How much training brought: paired over images where that was measured, else from the two intervals."""
        paired = self.figures.get(f"above_untrained_{metric}")
        if paired or metric not in self.figures or metric not in self.untrained:
            return paired
        return self.figures[metric].less(self.untrained[metric])

    @property
    def learnt(self) -> bool | None:
        """Whether nearest neighbours or probes tell it apart from its untrained twin; None where neither was asked."""
        gains = [gain for gain in map(self.gain, ("knn_top1", "probe_top1")) if gain is not None]
        return any(gain.verdict == "more" for gain in gains) if gains else None


def collect_models(findings: Findings) -> list[Model]:
    """Every trained or untrained model that some measurement names, in the order of their families."""
    models: dict[tuple[Any, ...], Model] = {}
    twins: list[tuple[Record, dict[str, Any]]] = []
    for record, found in findings.measurements():
        if not found.get("label"):
            continue
        if found.get("training") == UNTRAINED and record.run.path.name == UNTRAINED:
            twins.append((record, found))
            continue
        key = tuple(found.get(name) for name in ("label", "model", "training", "seed", "num_parameters"))
        label, name, training, seed, size = key
        family = str(found.get("family", ""))
        model = models.setdefault(key, Model(str(label), str(name), family, str(training), seed, int(size or 0)))
        _note(model, model.figures, record, found)
    for record, found in twins:
        for model in models.values():
            if (model.label, model.name) == (found["label"], found.get("model")):
                _note(model, model.untrained, record, found)
    _add_costs(models, findings)
    _add_twins_of_maps(list(models.values()), findings)
    return in_order(models.values())


def in_order(models: Iterable[Model]) -> list[Model]:
    """Family by family, each by label."""
    order = list(FAMILIES)
    return sorted(models, key=lambda m: (order.index(m.family) if m.family in order else len(order), m.label))


def _note(model: Model, figures: dict[str, Figure], record: Record, found: dict[str, Any]) -> None:
    metric = _column(found)
    if metric is None:
        return
    figure = Figure(found["value"], found.get("low"), found.get("high"), found.get("n"), record, found.get("data", ""))
    known = figures.get(metric)
    if known is not None and found.get("study") in WHOLE_MODELS[1:]:
        return  # the same score once more
    if metric == "probe_top1" and found.get("mode") == "cached" and known is not None:
        return  # the augmented probe, which the paper uses, goes first
    if known is not None and known.record is not record and known.value != figure.value:
        model.passed_over.append((metric, known.record, record))
    figures[metric] = figure


def _column(found: dict[str, Any]) -> str | None:
    """Which column of the table a measurement belongs to, if any."""
    metric = found["metric"]
    if metric == "probe_top1":
        return None if found.get("blocks") is not None or found.get("register") is not None else metric
    if metric in ("binary_auc", "above_untrained", "above_centre_prior"):
        if found.get("study") not in WHOLE_MODELS or found.get("index") is not None:
            return None
        return "above_untrained_binary_auc" if metric == "above_untrained" else metric
    if metric == "off_diagonal_rank":
        return f"{found.get('definition')}_rank" if found.get("definition") in ("numerical", "effective") else None
    return metric if metric in ("knn_top1", "top1", "miou", "images_per_s") else None


def _add_costs(models: dict[tuple[Any, ...], Model], findings: Findings) -> None:
    for record in findings.of("cost"):
        subject = record.content["subject"]
        key = tuple(subject.get(name) for name in ("label", "model", "training", "seed", "num_parameters"))
        if key in models:
            figures = models[key].figures
            figures["num_parameters"] = Figure(record.content["num_parameters"], None, None, None, record)
            figures["macs"] = Figure(record.content["macs"], None, None, None, record)


def _add_twins_of_maps(models: list[Model], findings: Findings) -> None:
    for record in (record for study in WHOLE_MODELS for record in findings.of("auc", study=study)):
        for row in record.content["rows"]:
            for model in models:
                if (model.label, model.name) == (row["label"], row["model"]) and row.get("untrained"):
                    part = row["untrained"]
                    twin = Figure(part["mean"], part["low"], part["high"], part["n"], record, record.content["data"])
                    model.untrained.setdefault("binary_auc", twin)


def style_models(models: list[Model]) -> dict[str, LineStyle]:
    """The line style of every label and of the seeds behind it."""
    found = line_styles({model.label: model.family for model in models})
    for model in models:
        model.style = found[model.label]
    return found | {member: model.style for model in models for member in model.members}
