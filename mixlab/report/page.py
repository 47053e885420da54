"""The page: what the runs hold, section by section; what is missing is left out."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mixlab.analysis.figures import OTHER, legend_key
from mixlab.errors import InputError
from mixlab.report.looks import matrix_pictures, picture_rows
from mixlab.report.models import Figure, collect_models, in_order, style_models
from mixlab.report.records import Findings, read_findings
from mixlab.report.sections import (
    auc_part,
    chance_level,
    commands_with_records,
    ledger_part,
    machines_of,
    other_measurements,
    place_of,
    rank_part,
    training_part,
)
from mixlab.report.seeds import merge_models
from mixlab.report.study import scaling_part, study_part
from mixlab.run import RunDirectory, unpacked
from mixlab.run.directory import write_aside

COLUMNS = {
    "num_parameters": ("parameters", "count"),
    "macs": ("MACs", "count"),
    "images_per_s": ("images/s", ""),
    "top1": ("with labels", "%"),
    "knn_top1": ("kNN", "%"),
    "probe_top1": ("linear probe", "%"),
    "shifted_top1": ("probe, changed images", "%"),
    "binary_auc": ("Binary-AUC", ""),
    "miou": ("mIoU", "%"),
    "numerical_rank": ("numerical rank", ""),
    "effective_rank": ("effective rank", ""),
}


def write_report(places: Sequence[Path], out: Path) -> Path:
    """Write the page of the runs at these places and below them; as .md its tables alone.

    A place is a run directory, an archive of runs, or a published study.
    """
    with ExitStack() as stack:
        folders = [RunDirectory.open(stack.enter_context(unpacked(place))).path for place in places]
        return _write(read_findings(folders), places, out)


def _write(findings: Findings, places: Sequence[Path], out: Path) -> Path:
    if not findings.records and not findings.curves:
        named = ", ".join(map(str, places)) or "no directory"
        raise InputError(
            f"nothing to report in {named}: no results and no training curves; run `mixlab auc`, `rank`, `maps`, `knn` "
            "or `probe` on it first, or `mixlab demo` for a whole example"
        )
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent} does not exist, so {out.name} cannot go there; make it, or change --out")
    text = _in_markdown(findings) if out.suffix == ".md" else _as_page(findings)
    write_aside(out, lambda file: file.write(text.encode()))
    return out


def _as_page(findings: Findings) -> str:
    environment = _templates(autoescape=True)
    return environment.get_template("page.html").render(**page_parts(findings))


def _in_markdown(findings: Findings) -> str:
    """The tables alone, for readers of a repository."""
    environment = _templates(autoescape=False)
    environment.filters["plain"] = lambda text: re.sub(r"([\\`*_|<>\[\]])", r"\\\1", str(text))
    parts = page_parts(findings)
    text = environment.get_template("summary.md").render(**parts)
    return re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"


def _templates(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("mixlab.report"), autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["number"] = show_number
    return environment


def page_parts(findings: Findings) -> dict[str, Any]:
    """Everything that the template shows."""
    models = _drawn("auc", lambda: in_order(merge_models(collect_models(findings))))
    styles = style_models(models)
    parts: dict[str, Callable[[], Any]] = {
        "maps": lambda: [picture_rows(record) for record in findings.of("maps")],
        "matrices": lambda: sorted(
            matrix_pictures(findings), key=lambda look: place_of(look["model"]["label"], styles)
        ),
        "auc": lambda: auc_part(findings, styles),
        "rank": lambda: rank_part(findings, styles),
        "claims": lambda: [ledger_part(record) for record in findings.of("claims")],
        "training": lambda: training_part(findings, styles),
        "study": lambda: study_part(findings),
        "scaling": lambda: [scaling_part(record, styles) for record in findings.of("scaling")],
    }
    return {kind: _drawn(kind, draw) for kind, draw in parts.items()} | {
        "style": Markup(_style()),  # our own file
        "findings": findings,
        "models": models,
        "columns": {key: parts for key, parts in COLUMNS.items() if any(key in model.figures for model in models)},
        "gains": [key for key in ("knn_top1", "probe_top1", "binary_auc") if any(m.gain(key) for m in models)],
        "chance": chance_level(findings),
        "cell": cell,
        "signed": signed,
        "legend": lambda labels: [(label, Markup(legend_key(styles.get(label, OTHER)))) for label in labels],
        "others": other_measurements(findings),
        "made": commands_with_records(findings),
        "machines": machines_of(findings),
    }


def _drawn(kind: str, draw: Callable[[], Any]) -> Any:
    try:
        return draw()
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(
            f"a result of kind {kind!r} does not have the form that the report reads ({error!r}); "
            f"it may be from another version: run `mixlab {kind}` again, or remove the file from results/"
        ) from error


def cell(figure: Figure | None, unit: str) -> dict[str, Any] | None:
    """A number as the tables show it: text, interval, and where it is from."""
    if figure is None:
        return None
    scale, suffix = _unit(figure.value) if unit == "count" else (100.0, " %") if unit == "%" else (1.0, "")

    def show(value: float) -> str:
        value *= scale
        return (
            f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if suffix or abs(value) >= 10 else f"{value:.3f}"
        )

    text = show(figure.value) + suffix
    interval = (
        f"{show(figure.low)} to {show(figure.high)}" if figure.low is not None and figure.high is not None else ""
    )
    return {"text": text, "interval": interval, "n": figure.n, "record": figure.record}


def _unit(value: float) -> tuple[float, str]:
    """The power of a thousand in which a large number is short."""
    for size, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return 1 / size, name
    return 1.0, ""


def signed(figure: Figure, unit: str) -> str:
    """A difference with its interval."""
    scale, places = (100.0, 1) if unit == "%" else (1.0, 3)
    text = f"{scale * figure.value:+.{places}f}"
    if figure.low is not None and figure.high is not None:
        text += f" [{scale * figure.low:+.{places}f}, {scale * figure.high:+.{places}f}]"
    return text


def show_number(value: Any) -> str:
    """A number of a table; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)


def _style() -> str:
    return (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
