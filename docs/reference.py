"""The reference, from docstrings: commands with their options, and the public names of the package."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from mixlab.cli import COMMANDS

MODULES = {
    "mixlab": "The public face",
    "mixlab.mixers.mixer": "The contract of mixers",
    "mixlab.backbones.backbone": "The contract of backbones",
    "mixlab.backbones.tokens": "Tokens and features",
    "mixlab.evaluation.target": "Networks to measure",
    "mixlab.evaluation.knn": "kNN accuracy",
    "mixlab.evaluation.probe": "Linear probes",
    "mixlab.evaluation.robustness": "Shifted sets",
    "mixlab.evaluation.shifts": "Changed images",
    "mixlab.analysis.viewed_images": "Images to look at",
    "mixlab.analysis.maps": "Activation maps",
    "mixlab.analysis.auc": "Maps scored against masks",
    "mixlab.analysis.rank": "Ranks of mixing matrices",
    "mixlab.analysis.pca": "Principal components",
    "mixlab.analysis.blocks": "Blocks of matrices, and definitions of rank",
    "mixlab.analysis.claims": "The ledger",
    "mixlab.data.shapes": "Drawn scenes",
    "mixlab.recipes": "Recipes",
    "mixlab.run.directory": "Run directories",
    "mixlab.report": "The report",
}


def reference_page() -> str:
    """The page as Markdown."""
    commands = [_command(name) for name in COMMANDS]
    modules = [_module(name, title) for name, title in MODULES.items()]
    return "\n\n".join(["# Reference", "## Commands", *commands, "## Python", *modules])


def _command(name: str) -> str:
    function = getattr(import_module(COMMANDS[name][0]), name)
    about, explained = _split(inspect.getdoc(function) or COMMANDS[name][1])
    hints = get_type_hints(function, include_extras=True)
    rows: list[tuple[str, str]] = []
    for parameter in inspect.signature(function).parameters.values():
        kind, *notes = _parts(hints[parameter.name])
        if is_dataclass(kind):
            rows += _group(kind)
            continue
        positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD  # all options come after a `*`
        meaning = explained.get(parameter.name) or _help(notes)
        rows.append(_option(parameter.name, parameter.default, meaning, positional=positional))
    rows.sort(key=lambda row: row[0].startswith("--"))  # positional ones first
    lines = [f"| `{flag}` | {rest} |" for flag, rest in rows]
    table = "\n".join(["| option | default | meaning |", "|---|---|---|", *lines])
    return f"### mixlab {name}\n\n{_prose(about)}\n\n{table}"


def _group(kind: type[Any], prefix: str = "") -> list[tuple[str, str]]:
    """The fields of a dataclass as options, explained by what is written beside or below them."""
    explained: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(base))
        body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
        for node, after in pairwise([*body, None]):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                beside = source.splitlines()[node.end_lineno - 1].partition("  # ")[2]  # type: ignore[operator]
                below = isinstance(after, ast.Expr) and ast.literal_eval(after.value)
                explained[node.target.id] = " ".join(str(below or beside).split())
    rows: list[tuple[str, str]] = []
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        own, *notes = _parts(hints[field.name])
        if is_dataclass(own):
            rows += _group(own, f"{prefix}{field.name}.")  # type: ignore[arg-type]
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        positional = any("Positional" in repr(note).title() for note in notes)
        meaning = explained[field.name] or _help(notes)
        rows.append(_option(f"{prefix}{field.name}", default, meaning, positional=positional))
    return rows


def _parts(hint: Any) -> tuple[Any, ...]:
    """A type, and what `Annotated` notes beside it."""
    return get_args(hint) if hasattr(hint, "__metadata__") else (hint,)


def _help(notes: list[Any]) -> str:
    return next((note.help for note in notes if getattr(note, "help", None)), "")


def _option(name: str, default: Any, meaning: str, *, positional: bool) -> tuple[str, str]:
    flag = name.upper() if positional else f"--{name.replace('_', '-')}"
    said = "required" if default is inspect.Parameter.empty else "" if default is None else f"`{_short(default)}`"
    return flag, f"{said} | {_cell(meaning)}"


def _module(name: str, title: str) -> str:
    module = import_module(name)
    names = getattr(module, "__all__", None) or [
        key for key, value in vars(module).items() if _is_own(value, name, key)
    ]
    parts = [_entry(key, getattr(module, key)) for key in names if not key.startswith("_")]
    return "\n\n".join([f"### {title}: `{name}`", _prose(inspect.getdoc(module) or ""), *filter(None, parts)])


def _is_own(value: Any, module: str, key: str) -> bool:
    public = not key.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
    return public and value.__module__ == module


def _entry(name: str, value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    lines = [f"#### `{name}`", _signature(name, value), _prose(_own_doc(value))]
    if inspect.isclass(value):
        lines += [
            f"- `{key}`: {_first_line(_own_doc(member))}"
            for key, member in vars(value).items()
            if not key.startswith("_") and _own_doc(member) and callable(getattr(value, key))
        ]
    head = "\n\n".join(filter(None, lines[:3]))
    return head + ("\n\n" + "\n".join(lines[3:]) if lines[3:] else "")


def _signature(name: str, value: Any) -> str:
    """How it is called; nothing for classes that are only inherited from."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return ""
    try:
        signature = str(inspect.signature(value, eval_str=True))
    except (NameError, TypeError):  # a name that is imported for type checkers alone
        signature = str(inspect.signature(value))
    if "**kwargs" in signature:
        return ""
    return f"```python\n{_wrapped(name + _readable(signature))}\n```"


def _own_doc(value: Any) -> str:
    """A docstring that someone wrote; not the one that a dataclass is given, nor one inherited."""
    doc = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    return "" if doc.startswith(f"{getattr(value, '__name__', '')}(") else doc


def _split(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring as its text and the meanings of its arguments."""
    about, _, listed = doc.partition("\nArgs:\n")
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", listed + "\n", flags=re.DOTALL | re.MULTILINE)
    return about, {name: re.sub(r"\s+", " ", text).strip() for name, text in found}


def _prose(text: str) -> str:
    """Docstrings are plain text: keep what looks like a table or an example as it stands."""
    blocks = []
    for block in re.split(r"\n{2,}", html_safe(text.strip())):
        laid_out = ">>>" in block or re.search(r"\S {3,}\S", block)
        blocks.append(f"```text\n{_unsafe(block)}\n```" if laid_out else block)
    return "\n\n".join(blocks)


def html_safe(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("$", "&#36;").replace("*", "\\*").replace("_", "\\_")


def _unsafe(text: str) -> str:
    text = text.replace("\\_", "_").replace("\\*", "*").replace("&#36;", "$")
    return text.replace("&lt;", "<").replace("&amp;", "&")


def _cell(text: str) -> str:
    return html_safe(text).replace("|", "\\|")


def _first_line(doc: str) -> str:
    return html_safe(doc.splitlines()[0]) if doc else ""


def _short(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "none"
    text = str(value)
    return text if len(text) < 40 else type(value).__name__


def _readable(signature: str) -> str:
    signature = re.sub(r"<class '([\w.]+)'>", r"\1", signature)
    signature = re.sub(r"\b(?:torch|pathlib|collections\.abc|typing|numpy)\.(?=[A-Z])", "", signature)
    return re.sub(r"\bmixlab(?:\.\w+)*\.(?=[A-Z])", "", signature)


def _wrapped(signature: str) -> str:
    """A long signature over several lines, broken at commas outside brackets."""
    if len(signature) <= 100:
        return signature
    depth, parts, start = 0, [], signature.index("(") + 1
    head, last = signature[:start], start
    for place in range(start, len(signature)):
        depth += (signature[place] in "([{") - (signature[place] in ")]}")
        if depth < 0:
            parts.append(signature[last:place])
            return head + "\n" + ",\n".join(f"    {part.strip()}" for part in parts) + "\n" + signature[place:]
        if signature[place] == "," and depth == 0:
            parts.append(signature[last:place])
            last = place + 1
    return signature
