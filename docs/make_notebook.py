"""Write the notebooks of examples/: `python docs/make_notebook.py`. A test compares them with their sources.

dino_in_forty_lines is own_loop.md: its text and its code, cut into cells at two blank lines and before what is worth a
look. The others are scripts of the same name in cells (`# %%`), which are run here, so that GitHub shows their outputs.
"""

import ast
import base64
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "own_loop.md"
EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "dino_in_forty_lines.ipynb"
RUN = ("look_inside_a_model", "score_my_masks", "pretrain_on_my_folder", "add_a_mixer")
CUTS = re.compile(r"\n\n+(?=torch\.manual_seed|def |for |bank, )")  # where a cell ends and the next begins
Cell = dict[str, Any]


def notebook() -> dict[str, object]:
    """The page on one's own loop as a notebook, without outputs."""
    cells: list[Cell] = []
    for text, code in re.findall(r"(.*?)(?:^```python\n(.*?)^```\n|\Z)", PAGE.read_text(), flags=re.S | re.M):
        if text.strip():
            cells.append(_text(_without_links(text)))
        cells += [_code(part) for part in CUTS.split(code) if part.strip()]
    return _notebook(cells)


def script_cells(file: Path) -> list[Cell]:
    """The cells of a script. What only a notebook understands is a comment in a script: `# %pip ...`."""
    found: list[Cell] = []
    for part in re.split(r"^# %%", file.read_text(encoding="utf-8"), flags=re.M)[1:]:
        kind, _, body = part.partition("\n")
        if kind.strip() == "[markdown]":
            found.append(_text(re.sub(r"^# ?", "", body, flags=re.M)))
        else:
            found.append(_code(re.sub(r"^# (?=%pip )", "", body, flags=re.M)))
    return found


def run_cells(cells: list[Cell]) -> None:
    """Run the code in order and keep what it prints, and the figure that a cell ends with."""
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in cells:
        code = "".join(cell["source"])
        if cell["cell_type"] != "code" or code.startswith("%"):
            continue
        count += 1
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and _is_name(tree.body[-1]) else None
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(tree, f"cell {count}", "exec"), names)
        cell["execution_count"], cell["outputs"] = count, _outputs(printed.getvalue(), last and names, last)


def _is_name(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Name)


def _outputs(printed: str, names: dict[str, Any] | None, last: ast.Expr | None) -> list[Cell]:
    found: list[Cell] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(printed)})
    if names is not None and last is not None and isinstance(last.value, ast.Name):
        data = {"image/png": _png(names[last.value.id]), "text/plain": ["<Figure>"]}
        found.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return found


def _png(figure: Any) -> str:
    from matplotlib import pyplot
    from PIL import Image

    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=80)
    pyplot.close(figure)
    with Image.open(drawn) as picture:  # a palette: a third of the size
        picture.convert("RGB").quantize(128).save(packed, format="png", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def _notebook(cells: list[Cell]) -> dict[str, object]:
    numbered = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _text(text: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(text)}


def _code(text: str) -> Cell:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": _lines(text)}


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines(keepends=True)


def _without_links(text: str) -> str:
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def _write(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(file.name)


if __name__ == "__main__":
    _write(NOTEBOOK, notebook())
    for name in RUN:
        made = script_cells(EXAMPLES / f"{name}.py")
        run_cells(made)
        _write(EXAMPLES / f"{name}.ipynb", _notebook(made))
