"""The sections of the page that charts and tables fill, each from the records of its kind."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from mixlab.analysis import figures
from mixlab.analysis.blocks import MEASURES
from mixlab.analysis.figures import LineStyle, base_label
from mixlab.report.models import Figure
from mixlab.report.pictures import file_picture
from mixlab.report.records import Findings, Record
from mixlab.report.seeds import merge_curves, merge_roc, merge_rows

Styles = Mapping[str, LineStyle]
STUDY_ORDER = {"model": 0, "size": 1, "training": 2, "registers": 3, "map": 4, "layer": 5, "register": 6, "head": 7}
VERDICTS = ("supported", "supported in part", "contradicted", "not resolved at this scale", "not measured")
SHOWN_ELSEWHERE = {
    "knn_top1", "probe_top1", "binary_auc", "binary_auc_raw", "centre_matched_auc", "centre_prior", "untrained",
    "above_centre_prior", "above_untrained", "best_head_over_worst", "off_diagonal_rank", "diagonal_rank", "mask_rank",
    "smallest_off_diagonal_rank", "smallest_diagonal_rank", "off_diagonal_rank_bound", "diagonal_rank_bound",
    "rank_bound_holds", "images_per_s", "middle_registers_over_first", "middle_registers_over_last",
    "untrained_middle_over_first", "untrained_middle_over_last", "register_auc_follows_probe", "auc_follows_probe",
    "shift_top1", "shifted_top1", "top1", "miou", "forward_images_per_s", "training_images_per_s",
}  # fmt: skip


def chance_level(findings: Findings) -> float | None:
    records = [record for kind in ("knn", "probe") for record in findings.of(kind)]
    counts = {record.content["num_classes"] for record in records if record.content.get("num_classes")}
    return 1 / counts.pop() if len(counts) == 1 else None


def auc_part(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """One chart of each study on the same images, whichever records it is spread over; seeds as one."""
    figures: list[dict[str, Any]] = []
    comparisons: list[dict[str, Any]] = []
    labels: dict[str, None] = {}
    studies: dict[tuple[Any, ...], list[Record]] = {}
    for record in sorted(findings.of("auc"), key=lambda record: STUDY_ORDER.get(record.content["study"], 9)):
        study = record.content["study"]
        studies.setdefault((study, record.content.get("data"), record.content.get("image")), []).append(record)
        comparisons += [{"study": study, "record": record, **one} for one in record.content["comparisons"]]
    for records in studies.values():
        every = [row for record in records for row in record.content["rows"]]
        study = records[0].content["study"]
        shown = _first_seeds(every) if study == "head" else merge_rows(every)
        rows = sorted(shown, key=lambda row: place_of(row["label"], styles))
        labels |= dict.fromkeys(row["label"] for row in rows if base_label(row["label"]) not in labels)
        seeds = len({row["seed"] for row in every if row.get("seed") is not None}) if len(rows) < len(every) else 1
        figures += [
            {
                "name": f"auc {title}",
                "title": title,
                "svg": svg,
                "file": file,
                "record": records[0],
                "n": rows[0]["auc"]["n"],
                "seeds": seeds if study != "head" else 1,
            }
            for title, svg, file in _auc_charts(records[0], rows, styles)
        ]
    return {"figures": figures, "comparisons": comparisons, "labels": list(labels)} if figures else None


def _first_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Heads of another seed are other heads: one run of each label."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(base_label(row["label"]), row["label"])
    return list({(r["label"], r["layer"], r["index"]): r for r in rows if r["label"] in first.values()}.values())


def _auc_charts(
    record: Record, rows: list[dict[str, Any]], styles: Styles
) -> list[tuple[str, Markup | None, str | None]]:
    """Title, chart, or a picture where the run has only that."""
    study = record.content["study"]
    title = {"map": "By kind of map", "head": "Heads of {}"}.get(study, f"By {study}")
    labels = dict.fromkeys(row["label"] for row in rows)
    found: list[tuple[str, Markup | None, str | None]] = [
        (title.format(label), inline(chart), None)
        for label, chart in zip(labels, figures.study_charts(study, rows, styles), strict=False)
    ]
    file = record.run.path / "figures" / "auc_roc.svg"
    if "roc" in record.content:
        roc = record.content["roc"]
        roc = {**roc, "true_positive_rate": merge_roc(roc["true_positive_rate"])}
        found.append(("Mean ROC", inline(figures.roc(roc, styles)), None))
    elif study == "model" and file.is_file():
        found.append(("Mean ROC", None, file_picture(file)))
    return found


def inline(chart: figures.Chart) -> Markup:
    """A chart as a part of the page."""
    return Markup(chart.svg())  # its texts are escaped


def place_of(label: str, styles: Styles) -> int:
    """The place of a model in the table."""
    return list(styles).index(label) if label in styles else len(styles)


def rank_part(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    found = {record.content["subject"]["label"]: record for record in findings.of("rank")}
    if not found:
        return None
    ordered = {label: found[label] for label in sorted(found, key=lambda label: (place_of(label, styles), label))}
    first: dict[str, str] = {}
    for label in ordered:
        first.setdefault(base_label(label), label)
    records = {label: ordered[label] for label in first.values()}  # charts show one seed, the table all
    results = {label: record.content for label, record in records.items()}
    arrays = {label: record.arrays() for label, record in records.items()}
    shown = {
        f"{measure.capitalize()} rank": inline(figures.rank_by_layer(results, measure, styles))
        for measure in ("numerical", "effective")
    }
    if any("off_diagonal_spectrum" in stored for stored in arrays.values()):
        known = {label: stored for label, stored in arrays.items() if "off_diagonal_spectrum" in stored}
        shown["Spectra"] = inline(figures.spectra(known, styles))
    if all("grid_profile" in stored for stored in arrays.values()):
        shown["Where the weight lies"] = inline(figures.distances(arrays, results, styles))
    rows = [_rank_row(label, record) for label, record in ordered.items()]
    return {"charts": shown, "labels": list(records), "rows": rows, "measures": MEASURES}


def _rank_row(label: str, record: Record) -> dict[str, Any]:
    overall = record.content["overall"]
    off = overall["off_diagonal"]
    return {
        "label": label,
        "record": record,
        "chunk": record.content["chunk"],
        "tokens": record.content["num_tokens"],
        "bound": off["bound"]["max"],
        "figures": [off[name] for name in MEASURES],
        "mask": overall["scan"]["mask"]["max"] if "scan" in overall else None,
        "holds": overall["bound_holds"],
        "self_share": overall["distance"]["self_share"],
        "reach": overall["distance"]["distance_to_others"],
    }


def training_part(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    if not findings.curves:
        return None
    ordered = sorted(merge_curves(findings.curves), key=lambda curve: place_of(curve.label, styles))
    supervised, segment = ([c for c in ordered if _method(c.config) == kind] for kind in ("supervised", "segment"))
    dino = [curve for curve in ordered if curve not in supervised and curve not in segment]
    wanted = {
        "Loss of DINO": (dino, "loss", "loss"),
        "Loss with labels": (supervised, "loss", "loss"),
        "Loss of segmentation": (segment, "loss", "loss"),
        "Nearest neighbours, live": (ordered, "knn_accuracy", "kNN accuracy"),
        "Entropy of the teacher": (dino, "teacher_entropy", "nats"),
    }
    shown = {}
    for title, (curves, name, ylabel) in wanted.items():
        lines = {curve.label: curve.points(name) for curve in curves}
        lines = {label: points for label, points in lines.items() if points[0]}
        if lines:
            shown[title] = inline(figures.training_curves(lines, ylabel, title, styles))
    steps = {curve.label: curve.rows[-1].get("step") for curve in ordered}
    configs = {curve.label: curve.config for curve in ordered}
    return {"charts": shown, "labels": list(steps), "steps": steps, "configs": configs}


def _method(config: dict[str, Any]) -> str:
    return str(config.get("settings", {}).get("method", {}).get("kind", ""))


def ledger_part(record: Record) -> dict[str, Any]:
    claims = record.content["claims"]
    counts = Counter(claim["status"] for claim in claims)
    return {"record": record, "claims": claims, "counts": {name: counts[name] for name in VERDICTS if counts[name]}}


def other_measurements(findings: Findings) -> list[dict[str, Any]]:
    """Measurements that no section above shows: robustness, segmentation, detection and what is still to come."""
    return [
        {"record": record, "figure": Figure(m["value"], m.get("low"), m.get("high"), m.get("n"), record), **m}
        for record, m in findings.measurements()
        if m["metric"] not in SHOWN_ELSEWHERE
    ]


def commands_with_records(findings: Findings) -> list[dict[str, Any]]:
    """Commands with the records that they left."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in findings.records:
        origin = record.content.get("provenance")
        if origin:
            key = (origin["command"], origin["seed"], _sample_size(record), record.run.path)
            row = rows.setdefault(key, {"records": [], "n": _sample_size(record), **origin})
            row["records"].append(record)
    return list(rows.values())


def machines_of(findings: Findings) -> list[str]:
    """What the records were made on, and when, each combination once."""
    found: dict[str, list[str]] = {}
    for record in findings.records:
        origin = record.content.get("provenance")
        if origin:
            machine, versions = origin["machine"], origin["versions"]
            place = (
                f"{machine['processor']} ({machine['device']}), torch {versions['torch']}, mixlab {versions['mixlab']}"
            )
            commit = f" at {origin['commit']}" if origin.get("commit") else ""
            found.setdefault(place + commit, []).append(origin["date"][:10])
    return [f"{place}, {' to '.join(sorted({min(dates), max(dates)}))}" for place, dates in found.items()]


def _sample_size(record: Record) -> int | None:
    content = record.content
    if content.get("rows"):
        return content["rows"][0].get("auc", {}).get("n")
    if "num_images" in content:
        return content["num_images"]
    if isinstance(content.get("images"), list):
        return len(content["images"])
    sizes = [m.get("n") for m in content.get("measurements", [])]
    return sizes[0] if sizes else None
