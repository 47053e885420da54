"""The page: what the runs hold, section by section; what is missing is left out. Sections without charts are here: the
study and its learning rates, the ledger, commands and machines.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mixlab.analysis.claims import Status
from mixlab.analysis.figures import OTHER, legend_key
from mixlab.errors import InputError
from mixlab.report.conclusions import conclusions
from mixlab.report.exhibits import exhibit_part
from mixlab.report.findings import Findings, Record, read_findings
from mixlab.report.models import Cell, Table, mean_of, model_table, style_rows
from mixlab.report.photograph import through_models
from mixlab.report.pictures import dense_pictures, matrix_pictures, picture_rows
from mixlab.report.reproduced import reproduced_part
from mixlab.report.same_images import join_maps
from mixlab.report.sections import auc_part, place_of, rank_part, scaling_part, training_part
from mixlab.run import UNTRAINED, RunDirectory, base_label, unpacked
from mixlab.run.directory import write_atomically
from mixlab.statistics import Quantity, with_interval

MARK = "<!-- written by mixlab report; sha256 of all above: {} -->"
CONTENTS = {
    "reproduced": "Our results beside the papers'",
    "study": "The study",
    "ledger": "The ledger",
    "models": "Models",
    "robustness": "Robustness",
    "maps": "Maps",
    "auc": "Binary-AUC",
    "ranks": "Matrices and ranks",
    "dense": "Segmentation and detection",
    "cost": "Cost",
    "training": "Training",
}
PART_OF = {
    "ledger": "claims",
    "models": "has_models",
    "robustness": "has_robustness",
    "ranks": "has_ranks",
    "cost": "scaling",
}
MOST_PARTS = 12  # of a study that are named one by one
OLDER = ("<title>mixlab report: ", "Written by `mixlab report`")  # in pages from before there was a mark


def write_report(places: Sequence[Path], out: Path, *, title: str | None = None, force: bool = False) -> Path:
    """Write the page of the runs at these places and below them; as .md its tables alone. Without a title, the page is
    called by the mixers that it compares.

    A place is a run directory, an archive of runs, or a published study. A file that is no page of ours, or that was
    changed by hand, is replaced only with `force`.
    """
    if not force:
        check_page(out)
    with ExitStack() as stack:
        folders = [stack.enter_context(unpacked(place)) for place in places]
        for place, folder in zip(places, folders, strict=True):
            if not RunDirectory(folder).exists():
                RunDirectory.open(place)  # raises, and says what is missing
        findings = read_findings(folders)
        if not findings.records and not findings.curves:
            named = ", ".join(map(str, places)) or "no directory"
            raise InputError(
                f"nothing to report in {named}: no results and no training curves; run `mixlab auc`, `rank`, `maps`, "
                "`knn` or `probe` on it first, or `mixlab demo` for a whole example"
            )
        if not out.parent.is_dir():
            raise FileNotFoundError(f"the folder {out.parent} of --out does not exist; create it, or change --out")
        text = _in_markdown(findings) if out.suffix == ".md" else _as_page(findings, title)
        content = f"{text.rstrip()}\n".encode(errors="backslashreplace")
        mark = MARK.format(hashlib.sha256(content).hexdigest())
        write_atomically(out, lambda file: file.write(content + f"{mark}\n".encode()))
    return out


def first_sentences(places: Sequence[Path]) -> list[str]:
    """What the page of these run directories says first."""
    findings = read_findings(places)
    claims = [ledger_part(record) for record in findings.of("claims")]
    return ["".join(part.text for part in said) for said in conclusions(model_table(findings), findings, claims)]


def check_page(out: Path) -> None:
    """Refuse a place where something would be lost."""
    if os.path.lexists(out) and not _is_ours(out):
        raise InputError(
            f"{out} exists, and `mixlab report` did not write it, or it was changed since; name another file, or add "
            "--force to replace it"
        )


def _is_ours(page: Path) -> bool:
    """Whether a page is as `write_report` left it."""
    if page.is_symlink() or not page.is_file():
        return False
    content, _, last = page.read_bytes().rstrip().rpartition(b"\n")
    if last.startswith(MARK.partition("{")[0].encode()):
        return last.decode(errors="replace") == MARK.format(hashlib.sha256(content + b"\n").hexdigest())
    return any(words.encode() in content[:10_000] for words in OLDER)


def _as_page(findings: Findings, title: str | None) -> str:
    style = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    parts = page_parts(findings) | {"style": Markup(style)}  # our own file
    table = parts["table"]
    parts |= {"title": title or title_of(table, parts["through"], findings), "about": about_runs(table, findings)}
    parts |= {"contents": [(anchor, name) for anchor, name in CONTENTS.items() if parts[PART_OF.get(anchor, anchor)]]}
    parts["contents"] += [(f"exhibit-{n}", one["about"]["title"]) for n, one in enumerate(parts["exhibits"], 1)]
    parts["contents"].append(("made", "Commands and records"))
    return _templates(autoescape=True).get_template("page.html").render(**parts)


def _in_markdown(findings: Findings) -> str:
    """The tables alone, for readers of a repository."""
    text = _templates(autoescape=False).get_template("summary.md").render(**page_parts(findings, pictures=False))
    return re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"


@cache  # to compile them takes longer than to fill them in
def _templates(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("mixlab.report"), autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["number"] = show_number
    environment.filters["plain"] = lambda text: re.sub(r"([\\`*_|<>\[\]])", r"\\\1", str(text))  # in Markdown
    environment.filters["svg"] = lambda chart, scale=1.0: Markup(chart.svg(scale))  # its texts are escaped
    return environment


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
        "maps": [picture_rows(record) for record in looks],
        "matrices": sorted(matrices, key=lambda look: place_of(look["model"]["label"], styles)),
        "auc": auc_part(findings, styles),
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
        "shown": shown,
        "signed": signed,
        "mean": lambda group: group[0] if len(group) == 1 else mean_of(group),
    }


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
    return findings.runs[0].path.name if findings.runs else "mixlab"


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
    names = list(dict.fromkeys(run.path.name for run in findings.runs))[:1]
    return " · ".join([*names, said, *dates[-1:]])


def _num_models(table: Table, findings: Findings) -> int:
    """Rows of the table, and networks that only pictures and charts show, without untrained twins."""
    labels = {m.subject.label for m in findings.measurements.values() if m.subject.label}
    pictured = [subject for record in findings.of("maps") for subject in record.content["subjects"]]
    trained = {subject.get("model") for subject in pictured if subject.get("training") != UNTRAINED}
    labels |= {s["label"] for s in pictured if s.get("training") != UNTRAINED or s.get("model") not in trained}
    labels |= {model["label"] for record in findings.of("matrices") for model in record.content["models"]}
    return len(table.rows) + len({base_label(label) for label in labels} - {row.label for row in table.rows})


def _is_shown_above(record: Record, through: dict[str, Any] | None) -> bool:
    """Whether the first screen shows all of these maps."""
    return (
        through is not None
        and through["record"] is record
        and len(record.content["images"]) == 1
        and not through["left_out"]
    )


def shown(cell: Cell | Quantity, unit: str) -> dict[str, str]:
    """A number as the tables show it, and its interval."""
    scale, suffix = _unit(cell.value) if unit == "count" else (100.0, " %") if unit == "%" else (1.0, "")

    def show(value: float) -> str:
        value *= scale
        return (
            f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if suffix or abs(value) >= 10 else f"{value:.3f}"
        )

    known = cell.low is not None and cell.high is not None
    return {
        "text": show(cell.value) + suffix,
        "interval": f"{show(cell.low)} to {show(cell.high)}" if known else "",  # type: ignore[arg-type]
    }


def _unit(value: float) -> tuple[float, str]:
    """The power of a thousand in which a large number is short."""
    for size, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return 1 / size, name
    return 1.0, ""


def signed(difference: Quantity, unit: str) -> str:
    """A difference with its interval."""
    form, scale = ("+.1f", 100.0) if unit == "%" else ("+.3f", 1.0)
    return with_interval(difference.value, difference.low, difference.high, form=form, unit=scale)


def show_number(value: Any) -> str:
    """A number of a table; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)


def study_part(findings: Findings) -> list[dict[str, Any]]:
    """Each study with its minutes, and its tuning where it has one."""
    tunings = {record.run.path: record for record in findings.of("tuning")}
    return [
        {
            "record": record,
            "content": record.content,
            "num_steps": sum(len(steps) for steps in record.content["steps"].values()),
            "minutes": _by_kind(record.content["minutes"]),
            "tuning": _tuning(tunings[record.run.path]) if record.run.path in tunings else None,
        }
        for record in findings.of("study")
    ]


def _by_kind(minutes: dict[str, float]) -> dict[str, float]:
    """Minutes of parts; of many parts, those of one kind together: look-tiny-vit-s0 is one of `look`."""
    if len(minutes) <= MOST_PARTS:
        return minutes
    kinds: dict[str, float] = {}
    for name, spent in minutes.items():
        kind = name.partition("-")[0]
        kinds[kind] = kinds.get(kind, 0.0) + spent
    return kinds


def _tuning(record: Record) -> dict[str, Any]:
    """A table: a row per training and family, a column per learning rate."""
    trials, chosen = record.content["trials"], record.content["chosen"]
    rates = sorted({trial["lr"] for trial in trials})
    rows = []
    for training, families in chosen.items():
        for family, best in sorted(families.items()):
            own = {t["lr"]: t for t in trials if (t["training"], t["family"]) == (training, family)}
            rows.append({"training": training, "family": family, "best": best, "cells": [own.get(r) for r in rates]})
    steps = {trial["training"]: trial["steps"] for trial in trials}
    return {"record": record, "rates": rates, "rows": rows, "steps": steps, "n": trials[0]["n"] if trials else 0}


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


def commands_with_records(findings: Findings) -> list[dict[str, Any]]:
    """Commands with the records that they left."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in findings.records:
        origin = record.content.get("provenance") or {}
        if "command" in origin:
            n = _sample_size(record)
            key = (origin["command"], origin.get("seed"), n, record.run.path)
            row = {"records": [], "n": n, "command": origin["command"], "seed": origin.get("seed")}
            rows.setdefault(key, row)["records"].append(record)
    return list(rows.values())


def machines_of(findings: Findings) -> list[str]:
    """Machines, versions and dates of the results, each combination once."""
    found: dict[str, list[str]] = {}
    for record in findings.records:
        origin = record.content.get("provenance") or {}
        machine, versions = origin.get("machine") or {}, origin.get("versions") or {}
        if machine:
            place = f"{machine.get('processor')} ({machine.get('device')})"
            place += "".join(f", {name} {versions[name]}" for name in ("torch", "mixlab") if versions.get(name))
            commit = f" at {origin['commit']}" if origin.get("commit") else ""
            found.setdefault(place + commit, []).append(str(origin.get("date"))[:10])
    return [f"{place}, {' to '.join(sorted({min(dates), max(dates)}))}" for place, dates in found.items()]


def _sample_size(record: Record) -> int | None:
    content = record.content
    if record.kind == "auc" and content["rows"]:
        return content["rows"][0]["auc"]["n"]
    if isinstance(content.get("images"), list):
        return len(content["images"])
    return content.get("num_images") or (record.measurements[0].n if record.measurements else None)
