"""Sphinx: `make docs` builds the documentation into build/site. A warning, such as a broken link, is an error."""

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "mixlab"
extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["studies"]
myst_heading_anchors = 4
highlight_language = "text"  # of blocks that name none: commands
html_theme = "furo"
html_title = "mixlab"
html_static_path = ["docs.css"]
html_css_files = ["docs.css"]
html_show_copyright = html_show_sphinx = html_copy_source = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#6cb6ff", "color-brand-content": "#6cb6ff"},
}
copybutton_prompt_text = "$ "

SECTIONS = {
    "First steps": ["tutorial", "own_images", "own_timm_model", "gallery"],
    "How to": ["segment", "detect", "export", "reproduce_one", "scaling", "reliability"],
    "The papers": [
        "reproduce",
        "choices",
        "dense_tasks",
        "table1",
        "miniature",
        "speedrun",
        "long_sequences",
        "mambas",
    ],
    "Your own parts": [
        "any_model",
        "any_data",
        "own_loop",
        "add_a_mixer",
        "add_a_backbone",
        "add_a_method",
        "add_a_recipe",
        "add_an_optimizer",
        "add_a_map",
        "add_an_analysis",
        "plugins",
    ],
    "Background": ["mathematics", "reference"],
}
FORMULA = r"```.*?```|`[^`\n]*`|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$"
_formulas: dict[str, list[str]] = {}


def read_page(_: Sphinx, name: str, source: list[str]) -> None:
    """The reference comes from docstrings; formulas outside code are set aside, so that Markdown leaves them alone."""
    if name == "reference":
        from reference import reference_page

        source[0] = reference_page()
    if name == "index":  # the sidebar; beside the text, so that the page reads well elsewhere
        for caption, pages in SECTIONS.items():
            listed = "\n".join(pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
    found = _formulas[name] = []

    def keep(match: re.Match[str]) -> str:
        block, inline = match["block"], match["inline"]
        if block is None and inline is None:
            return match[0]  # code
        found.append(to_mathml(name, block or inline, display="block" if block else "inline"))
        return f"FORMULA{len(found) - 1}END"

    source[0] = re.sub(FORMULA, keep, source[0], flags=re.DOTALL)


def set_formulas(_: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Formulas as MathML, which browsers draw by themselves; pictures must say what they show."""
    body = context.get("body", "")
    for number, formula in enumerate(_formulas.get(name, [])):
        mark = f"FORMULA{number}END"
        body = body.replace(f"<p>{mark}</p>", formula).replace(mark, formula)
    for picture in re.findall(r"<img [^>]*>", body):
        alt = re.search(r'alt="([^"]*)"', picture)
        if not alt or not alt[1] or "/" in alt[1]:  # where none is given, Sphinx names the file
            raise ExtensionError(f"{name}: {picture} has no description")
    context["body"] = body


def keep_options_whole(_: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Lines may be broken anywhere but in the middle of an option."""
    option = r"--?[a-z][\w.-]*"

    def spare(block: re.Match[str]) -> str:
        return re.sub(rf"(?<=[\s\[]){option}", r'<span class="whole">\g<0></span>', block[0])

    body = re.sub(r'<div class="highlight-text .*?</pre>', spare, context.get("body", ""), flags=re.DOTALL)
    context["body"] = re.sub(rf'<span class="pre">(?={option}<)', '<span class="pre whole">', body)


def to_mathml(name: str, formula: str, *, display: str) -> str:
    try:
        return convert(html.unescape(formula.strip()), display=display)
    except Exception as error:
        raise ExtensionError(f"{name}: the formula {formula!r} cannot be read: {error}") from error


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read_page)
    app.connect("html-page-context", set_formulas)
    app.connect("html-page-context", keep_options_whole)
    return {"parallel_read_safe": False}
