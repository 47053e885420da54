"""The sections of the page that charts fill: Binary-AUC, ranks, training, cost."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mixlab.analysis import figures
from mixlab.analysis.blocks import MEASURES
from mixlab.analysis.comparisons import grouped
from mixlab.analysis.figures import Chart, LineStyle
from mixlab.analysis.score_differences import ScoreDifference
from mixlab.evaluation.methods import METHODS
from mixlab.report.findings import Findings, Record
from mixlab.report.pictures import file_picture
from mixlab.report.seeds import Row, merge_curves, merge_roc, merge_rows
from mixlab.run import base_label

Styles = Mapping[str, LineStyle]
STUDY_ORDER = {"model": 0, "size": 1, "training": 2, "registers": 3, "map": 4, "layer": 5, "register": 6, "head": 7}
MOST_BY_MAP = 4  # networks in a chart of all kinds of maps
SAME_PROTOCOL = ("data", "image", "num_images", "settings", "protocol")  # results that differ in one are drawn apart


def auc_part(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """One chart of each study by one protocol, whichever records it is spread over; seeds as one. Networks made for
    images of other sizes are drawn apart."""
    records = sorted(findings.of("auc"), key=lambda record: STUDY_ORDER.get(record.content["study"], 9))
    kinds = [{"image": _made_for(own[0]), **_auc_figures(own, styles)} for own in grouped(records, _made_for) if own]
    kinds.sort(key=lambda kind: min((place_of(label, styles) for label in kind["labels"]), default=()))
    comparisons = [
        {
            "study": record.content["study"],
            "record": record,
            "images": images_of(record),
            "gap": ScoreDifference.from_json(one),
        }
        for record in records
        for one in record.content["comparisons"]
    ]
    return {"kinds": kinds, "comparisons": comparisons} if any(kind["figures"] for kind in kinds) else None


def _made_for(record: Record) -> int | None:
    """The size of images for which the first network of a result of Binary-AUC was made."""
    image: int | None = next((row.get("native_image") for row in record.content["rows"]), None)
    return image


def _auc_figures(records: list[Record], styles: Styles) -> dict[str, Any]:
    """The charts and tables of some records, and the labels in them."""
    shown: list[Row] = []
    labels: dict[str, None] = {}
    for alike in _drawn_together(records, "study"):
        study, every = alike[0].content["study"], [row for record in alike for row in record.content["rows"]]
        rows = _first_seeds(every) if study == "head" else merge_rows(every)
        rows.sort(key=lambda row: place_of(row["label"], styles))
        labels |= dict.fromkeys(base_label(row["label"]) for row in rows)
        num_seeds = len({row["seed"] for row in every if row.get("seed") is not None}) if len(rows) < len(every) else 1
        about = {
            "study": study,
            "is_small": study == "head",
            "record": alike[0],
            "images": images_of(alike[0]),
            "n": rows[0]["auc"]["n"] if rows else 0,
            "seeds": 1 if study == "head" else num_seeds,
            "chart": None,
            "file": None,
            "table": None,
        }
        shown += [about | chart for chart in _auc_charts(alike, rows, styles)]
    return {"figures": shown, "labels": [*labels]}


def _by_map(rows: list[Row]) -> dict[str, Any]:
    """A table: a row per network, a column per kind of map; None where a network has no such map."""
    kinds = list(dict.fromkeys(row["map"] for row in rows))
    found = {(row["label"], row["map"]): row["auc"] for row in rows}
    labels = dict.fromkeys(row["label"] for row in rows)
    return {"kinds": kinds, "rows": [(label, [found.get((label, kind)) for kind in kinds]) for label in labels]}


def images_of(record: Record) -> str:
    """The images of a result of Binary-AUC, and its map where one was chosen: no chart is without their names."""
    images = f"{record.content.get('data', '')}, {record.content.get('image', '')} px"
    chosen = (record.content.get("protocol") or {}).get("map")
    return f"{images}, map {chosen}" if chosen else images


def _first_seeds(rows: list[Row]) -> list[Row]:
    """Heads of another seed are other heads: one run of each label."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(base_label(row["label"]), row["label"])
    return list({(r["label"], r["layer"], r["index"]): r for r in rows if r["label"] in first.values()}.values())


def _auc_charts(records: list[Record], rows: list[Row], styles: Styles) -> list[Row]:
    """Title and chart, or a table of many networks, or a picture where the run has only that."""
    study = records[0].content["study"]
    title = {"map": "By kind of map", "head": "Heads of {}"}.get(study, f"By {study}")
    labels = dict.fromkeys(row["label"] for row in rows)
    if study == "map" and len(labels) > MOST_BY_MAP:
        return [{"title": title, "table": _by_map(rows)}]
    charts = figures.study_charts(study, rows, styles)
    found: list[Row] = [
        {"title": title.format(label), "chart": chart} for label, chart in zip(labels, charts, strict=False)
    ]
    file = records[0].run.path / "figures" / "auc_roc.svg"
    curves = [record.content["roc"] for record in records if record.content.get("roc")]
    if curves and study != "token":  # whose curves are several of one network, which look alike
        found.append({"title": "Mean ROC", "chart": figures.roc(merge_roc(curves), styles)})
    elif study == "model" and file.is_file():
        found.append({"title": "Mean ROC", "file": file_picture(file)})
    return found


def rank_part(findings: Findings, styles: Styles) -> list[Row]:
    """Charts of one seed and rows of all, for each set of images and each size of blocks."""
    records = sorted(findings.of("rank"), key=lambda record: place_of(record.content["subject"]["label"], styles))
    found = []
    for alike in _drawn_together(records):
        first: dict[str, Record] = {}
        for record in alike:
            first.setdefault(base_label(record.content["subject"]["label"]), record)
        about = alike[0].content
        count = about.get("num_images", 0)
        images = f"{count} image{'s' if count != 1 else ''} of {about.get('data', '')}, {about['image']} px"
        rows = [_rank_row(record) for record in alike]
        approximated = any(row["left"] is not None for row in rows)
        about_rows = {"labels": [*first], "rows": rows, "images": images, "approximated": approximated}
        found.append({"charts": _rank_charts(first, styles), **about_rows})
    return found


def _rank_charts(records: Mapping[str, Record], styles: Styles) -> dict[str, Chart]:
    results = {label: record.content for label, record in records.items()}
    arrays = {label: record.arrays() for label, record in records.items()}
    shown = {
        f"{measure.capitalize()} rank": figures.rank_by_layer(results, measure, styles)
        for measure in ("numerical", "effective")
    }
    known = {label: stored for label, stored in arrays.items() if "off_diagonal_spectrum" in stored}
    if known:
        shown["Spectra"] = figures.spectra(known, styles)
    known = {label: stored for label, stored in arrays.items() if "grid_profile" in stored}
    if known:
        shown["Where the weight lies"] = figures.distances(known, results, styles)
    return shown


def _is_below(content: Mapping[str, Any]) -> bool:
    """Whether N is below the side of a block, so that an approximation of rank N can leave something."""
    return (content.get("rank") or 0) < content["chunk"]


def _rank_row(record: Record) -> dict[str, Any]:
    overall = record.content["overall"]
    off = overall["off_diagonal"]
    return {
        "label": record.content["subject"]["label"],
        "record": record,
        "chunk": record.content["chunk"],
        "tokens": record.content["num_tokens"],
        "bound": off["bound"]["max"],
        "measures": {name: off[name] for name in MEASURES},
        "mask": overall["scan"]["mask"]["max"] if "scan" in overall else None,
        "rank": record.content.get("rank"),  # older results have no approximation
        "left": off.get("left_by_rank", {}).get("mean") if _is_below(record.content) else None,
        "holds": overall["bound_holds"],
        "self_share": overall["distance"]["self_share"],
    }


def training_part(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """Curves by the method of training: its loss, kNN while training, and what its class says is worth a chart."""
    curves = sorted(merge_curves(findings.curves), key=lambda curve: place_of(curve.label, styles))
    if not curves:
        return None
    shown = {}

    def add(title: str, name: str, ylabel: str, method: str | None = None) -> None:
        points = {curve.label: curve.points(name) for curve in curves if method in (None, curve.method)}
        lines = {label: part for label, part in points.items() if part[0]}
        if any(len(part[0]) > 1 for part in lines.values()):
            shown[title] = figures.training_curves(lines, ylabel, title, styles)

    methods = sorted({curve.method for curve in curves}, key=lambda name: [*METHODS, "", name].index(name))
    for method in methods:
        add(f"{method_label(method)}: loss", "loss", "loss", method)
    add("kNN while training", "knn_accuracy", "kNN accuracy")
    for method in methods:
        for name, (title, unit) in METHODS[method].curves.items() if method in METHODS else ():
            add(f"{method_label(method)}: {title}", name, unit, method)
    return {"charts": shown, "curves": curves}


def method_label(kind: str) -> str:
    """A method's name in titles; of one that no plugin brought along, its kind."""
    if kind not in METHODS:
        return kind or "Training"
    return METHODS[kind].label or METHODS[kind].title


def scaling_part(record: Record, styles: Styles) -> dict[str, Any]:
    """Images per second and memory per image against tokens."""
    rows = sorted(record.content["rows"], key=lambda row: row["tokens"])
    shown = {}
    for kind, title in (("forward", "Forward"), ("training", "Forward and backward")):
        own = [row for row in rows if row["pass"] == kind]
        name, speeds = f"{title}: images per second", _by_label(own, lambda row: row["images_per_s"]["value"])
        shown[name] = figures.cost_by_tokens(speeds, "images/s", name, styles)
        if all(row["peak_gib"] for row in own):
            name, memory = f"{title}: GiB per image", _by_label(own, lambda row: row["peak_gib"] / row["batch"])
            shown[name] = figures.cost_by_tokens(memory, "GiB / image", name, styles)
    table: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["pass"] == "training":
            table.setdefault(row["tokens"], {})[row["label"]] = row
    labels = sorted({row["label"] for row in rows}, key=lambda label: place_of(label, styles))
    launched = _launched(rows) if any(row["peak_gib"] for row in rows) else ""
    on = ((record.content.get("provenance") or {}).get("machine") or {}).get("device", "")
    return {"record": record, "charts": shown, "labels": labels, "table": table, "launched": launched, "on": on}


def _launched(rows: Sequence[Mapping[str, Any]]) -> str:
    """How the passes of a GPU began."""
    captured = {bool(row.get("graph")) for row in rows}
    if captured == {True}:
        return "replayed from CUDA graphs"
    some = "some replayed from CUDA graphs, the others " if True in captured else ""
    return f"{some}launched kernel by kernel: of small networks the host may set the speed"


def place_of(label: str, styles: Styles) -> tuple[int, str]:
    """Sorts labels as the table of models does, seeds in their order."""
    name = base_label(label)
    return (list(styles).index(name) if name in styles else len(styles), label)


def _drawn_together(records: Iterable[Record], *names: str) -> list[list[Record]]:
    """Records of the same images and settings, in their order."""
    same = (*names, *SAME_PROTOCOL)
    return grouped(records, lambda record: json.dumps([record.content.get(name) for name in same], sort_keys=True))


def _by_label(rows: list[Row], value: Callable[[Row], float]) -> dict[str, tuple[list[int], list[float]]]:
    """Tokens and values of each model."""
    own = grouped(rows, lambda row: row["label"])
    return {part[0]["label"]: ([row["tokens"] for row in part], [value(row) for row in part]) for part in own}
