"""Build the documentation: `python docs/build.py --out site`. Markdown in, plain pages out; nothing is fetched.

Formulas become MathML. A broken link, a picture without a description or a formula that cannot be parsed is an error.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import markdown
import tyro
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from latex2mathml.converter import convert
from pygments.formatters import HtmlFormatter

HERE = Path(__file__).parent
STYLE = HERE.parent / "mixlab" / "report" / "templates" / "style.css"
PAGES = {
    "index": "mixlab",
    "tutorial": "Tutorial",
    "own_images": "My own images",
    "own_timm_model": "My own timm model",
    "miniature": "Both papers on photographs",
    "scaling": "From one GPU to four nodes",
    "long_sequences": "Where attention falls behind",
    "reproduce": "Both papers, item by item",
    "table1": "Table 1 on ImageNet",
    "dense_tasks": "Detection and segmentation as published",
    "choices": "What the papers leave open",
    "reliability": "What is never lost",
    "mambas": "The visual Mambas",
    "plugins": "Plugins",
    "add_a_mixer": "Add a mixer",
    "add_a_backbone": "Add a backbone",
    "add_a_method": "Add a training method",
    "add_a_recipe": "Add a recipe",
    "add_an_analysis": "Add an analysis",
    "mathematics": "The mathematics",
    "gallery": "Gallery",
    "reference": "Reference",
}

REPORTS = ("studies/miniature/report.html",)  # copied unchanged


class DocsError(Exception):
    """An error in the documentation; the message says where."""


@dataclass(frozen=True)
class Page:
    name: str
    title: str
    body: str


def build(out: Path) -> list[Path]:
    """Write the site; returns its pages."""
    pages = [Page(name, title, render(name, read_page(name))) for name, title in PAGES.items()]
    check_links(pages)
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    template = environment.get_template("page.html")
    out.mkdir(parents=True, exist_ok=True)
    (out / "style.css").write_text(STYLE.read_text(encoding="utf-8") + (HERE / "docs.css").read_text() + _code_style())
    shutil.copytree(HERE / "gallery", out / "gallery", dirs_exist_ok=True)
    for report in REPORTS:
        (out / report).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / report, out / report)
    files = []
    for page in pages:
        files.append(out / f"{page.name}.html")
        files[-1].write_text(template.render(page=page, pages=PAGES), encoding="utf-8")
    return files


def read_page(name: str) -> str:
    """The Markdown of a page; the reference is written from docstrings."""
    if name == "reference":
        sys.path.insert(0, str(HERE))
        from reference import reference_page

        return reference_page()
    return (HERE / f"{name}.md").read_text(encoding="utf-8")


def render(name: str, text: str) -> str:
    """Markdown with formulas to HTML; links to pages become links to their HTML."""
    text, formulas = _set_formulas_aside(name, text)
    extensions = ["fenced_code", "tables", "toc", "codehilite", "sane_lists"]
    settings = {"codehilite": {"guess_lang": False}}
    body = markdown.markdown(text, extensions=extensions, extension_configs=settings)
    for mark, formula in formulas.items():
        body = body.replace(f"<p>{mark}</p>", formula).replace(mark, formula)
    return re.sub(r'href="([\w-]+)\.md(#[\w-]+)?"', r'href="\1.html\2"', body)


def check_links(pages: list[Page]) -> None:
    """Every link inside the site leads somewhere, every picture is there and described."""
    read = {f"{page.name}.html": _Links(page.body) for page in pages}
    for name, links in read.items():
        for target in links.targets:
            if target.startswith(("https://", "http://", "mailto:")):
                continue
            file, _, place = target.partition("#")
            if file in REPORTS:
                continue
            if (file or name) not in read or (place and place not in read[file or name].places):
                raise DocsError(f"{name} links to {target}, which is not there")
        for source, alt in links.pictures:
            if not alt:
                raise DocsError(f"{name}: the picture {source} has no description")
            if not (HERE / source).is_file():
                raise DocsError(f"{name}: the picture {source} does not exist")


class _Links(HTMLParser):
    def __init__(self, body: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()
        self.pictures: list[tuple[str, str]] = []
        self.feed(body)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if "id" in given:
            self.places.add(given["id"])
        if tag == "a" and "href" in given:
            self.targets.append(given["href"])
        if tag == "img":
            self.pictures.append((given["src"], given.get("alt", "")))


def _set_formulas_aside(name: str, text: str) -> tuple[str, dict[str, str]]:
    """Replace every $formula$ outside code by a placeholder that Markdown does not change."""
    formulas: dict[str, str] = {}

    def keep(match: re.Match[str]) -> str:
        block, inline = match["block"], match["inline"]
        if block is None and inline is None:
            return match[0]  # code
        mark = f"FORMULA{len(formulas)}END"
        formulas[mark] = _mathml(name, block or inline, display="block" if block else "inline")
        return mark

    pattern = r"```.*?```|`[^`\n]*`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$"
    return re.sub(pattern, keep, text, flags=re.DOTALL), formulas


def _mathml(name: str, formula: str, *, display: str) -> str:
    try:
        return convert(html.unescape(formula.strip()), display=display)
    except Exception as error:
        raise DocsError(f"{name}: the formula {formula!r} cannot be read: {error}") from error


def _code_style() -> str:
    light, dark = (HtmlFormatter(style=style).get_style_defs(".codehilite") for style in ("default", "github-dark"))
    return (
        f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n.codehilite {{ background: none !important; }}\n"
    )


def main(*, out: Path = Path("site")) -> None:
    """Build the documentation into a folder.

    Args:
        out: the folder to write.
    """
    files = build(out)
    print(f"{len(files)} pages: open {out / 'index.html'}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except DocsError as error:
        sys.exit(f"error: {error}")
