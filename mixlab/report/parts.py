"""What the templates show: every section from what the runs hold. What is missing is empty there, and left out."""

from collections import Counter
from typing import Any

from markupsafe import Markup

from mixlab.analysis.claims import Status
from mixlab.analysis.figures import OTHER, legend_key
from mixlab.report.baselines import baseline_columns
from mixlab.report.conclusions import conclusions
from mixlab.report.exhibits import exhibit_part
from mixlab.report.findings import Findings, Record
from mixlab.report.models import mean_of, model_table, style_rows
from mixlab.report.origins import commands_with_records, machines_of
from mixlab.report.photograph import through_models
from mixlab.report.pictures import dense_pictures, matrix_pictures, picture_rows, where_coloured
from mixlab.report.probes import chosen_elsewhere
from mixlab.report.reproduced import reproduced_part
from mixlab.report.same_images import join_maps
from mixlab.report.sections import auc_part, place_of, rank_part, scaling_part, training_part
from mixlab.report.shown_numbers import shown, signed
from mixlab.report.study import study_part
from mixlab.report.table import Table
from mixlab.run import UNTRAINED, base_label


def page_parts(findings: Findings, *, pictures: bool = True) -> dict[str, Any]:
    """Everything that the templates show."""
    table = model_table(findings)
    styles = style_rows(table, findings)
    matrices = matrix_pictures(findings) if pictures else []
    claims = [ledger_part(record) for record in findings.of("claims")]
    seen = join_maps(findings.of("maps"), styles) if pictures else []
    through = through_models(seen, findings, styles)
    looks = [record for record in seen if not _is_shown_above(record, through)]
    return {
        "through": through,
        "conclusions": conclusions(table, findings, claims),
        "findings": findings,
        "table": table,
        "chance": chance_level(findings),
        "probes": chosen_elsewhere(findings),
        "maps": [picture_rows(record) for record in looks],
        "matrices": sorted(matrices, key=lambda look: place_of(look["model"]["label"], styles)),
        "auc": auc_part(findings, styles),
        "baselines": baseline_columns(findings),
        "rank": rank_part(findings, styles),
        "exhibits": exhibit_part(findings) if pictures else [],
        "claims": claims,
        "dense": dense_pictures(findings) if pictures else [],
        "training": training_part(findings, styles),
        "study": study_part(findings),
        "reproduced": reproduced_part(findings),
        "scaling": [scaling_part(record, styles) for record in findings.of("scaling")],
        "has_models": bool(table.rows),
        "has_robustness": bool(table.robustness),
        "has_ranks": bool(matrices or findings.of("rank")),
        "made": commands_with_records(findings),
        "machines": machines_of(findings),
        "legend": lambda labels: [(label, Markup(legend_key(styles.get(label, OTHER)))) for label in labels],
        "coloured": where_coloured,
        "shown": shown,
        "signed": signed,
        "mean": lambda group: group[0] if len(group) == 1 else mean_of(group),
    }


def _is_shown_above(record: Record, through: dict[str, Any] | None) -> bool:
    """Whether the first screen shows all of these maps."""
    return (
        through is not None
        and through["record"] is record
        and len(record.content["images"]) == 1
        and not through["left_out"]
    )


def ledger_part(record: Record) -> dict[str, Any]:
    claims = record.content["claims"]
    counts = Counter(claim["status"] for claim in claims)
    known = [claim for claim in claims if claim["status"] != Status.NOT_MEASURED]
    rest = [claim for claim in claims if claim["status"] == Status.NOT_MEASURED]
    groups = [(is_open, group) for is_open, group in ((True, known), (False, rest)) if group]
    in_order = {str(s): counts[s] for s in Status if counts[s]}
    return {"record": record, "claims": claims, "counts": in_order, "groups": groups}


def chance_level(findings: Findings) -> float | None:
    """The accuracy of guessing, where all kNN and probes had as many classes."""
    records = [record for kind in ("knn", "probe") for record in findings.of(kind)]
    counts = {record.content["num_classes"] for record in records if record.content.get("num_classes")}
    return 1 / counts.pop() if len(counts) == 1 else None


def title_of(table: Table, through: dict[str, Any] | None, findings: Findings) -> str:
    """The mixers that are compared, or the one model, of the first picture where nothing was measured; else the name
    of the run."""
    models = [(row.label, row.mixer) for row in table.rows]
    models = models or [(model["label"], model["mixer"]) for model in (through or {"models": []})["models"]]
    mixers = list(dict.fromkeys(mixer for _, mixer in models if mixer and mixer != "other"))
    if len(mixers) > 1:
        title = f"{', '.join(mixers[:-1])} and {mixers[-1]}"
        return title[0].upper() + title[1:]
    labels = list(dict.fromkeys(label for label, _ in models))
    if labels:
        name = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        return f"{name}: {mixers[0]}" if mixers else name
    return findings.name


def about_runs(table: Table, findings: Findings) -> str:
    """How much is behind the page, in a line."""
    dates = sorted(str((r.content.get("provenance") or {}).get("date"))[:10] for r in findings.records)
    dates = [date for date in dates if date != "None"]
    counts = {
        "model": _num_models(table, findings),
        "result": len(findings.records),
        "training run": len(findings.curves),
    }
    said = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count)
    return " · ".join([findings.name, said, *dates[-1:]])


def _num_models(table: Table, findings: Findings) -> int:
    """Rows of the table, and networks that only pictures and charts show, without untrained twins."""
    labels = {m.subject.label for m in findings.measurements.values() if m.subject.label}
    pictured = [subject for record in findings.of("maps") for subject in record.content["subjects"]]
    trained = {subject.get("model") for subject in pictured if subject.get("training") != UNTRAINED}
    labels |= {s["label"] for s in pictured if s.get("training") != UNTRAINED or s.get("model") not in trained}
    labels |= {model["label"] for record in findings.of("matrices") for model in record.content["models"]}
    return len(table.rows) + len({base_label(label) for label in labels} - {row.label for row in table.rows})
