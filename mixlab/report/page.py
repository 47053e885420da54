"""The page as a file: written from templates, marked as ours, and never over what somebody else wrote."""

import hashlib
import html
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mixlab.errors import InputError
from mixlab.report.conclusions import conclusions
from mixlab.report.findings import Findings, read_findings
from mixlab.report.models import model_table
from mixlab.report.parts import about_runs, ledger_part, page_parts, title_of
from mixlab.report.shown_numbers import show_number
from mixlab.run import RunDirectory, find_runs, unpacked
from mixlab.run.files import write_atomically

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
OLDER = ("<title>mixlab report: ", "Written by `mixlab report`")  # in pages from before there was a mark


def write_report(places: Sequence[Path], out: Path, *, title: str | None = None, force: bool = False) -> Path:
    """Write the page of the runs at these places and below them; as .md its tables alone. Without a title, the page is
    called by the mixers that it compares.

    A place is a run directory, a folder of runs, an archive of runs, or a published study. A file that is no page of
    ours, or that was changed by hand, is replaced only with `force`.
    """
    if not force:
        check_page(out)
    with ExitStack() as stack:
        folders = [stack.enter_context(unpacked(place)) for place in places]
        for place, folder in zip(places, folders, strict=True):
            if not folder.is_dir() or not find_runs([folder]):
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
    environment.filters["preformatted"] = lambda text: Markup(html.escape(text, quote=False))  # quotes stay
    environment.filters["svg"] = lambda chart, scale=1.0: Markup(chart.svg(scale))  # its texts are escaped
    return environment
