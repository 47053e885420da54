"""Write examples/dino_in_forty_lines.ipynb from own_loop.md: its text and its code, cut into cells at two blank lines
and before what is worth a look. `python docs/make_notebook.py`; a test compares the two."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parent / "own_loop.md"
NOTEBOOK = Path(__file__).parents[1] / "examples" / "dino_in_forty_lines.ipynb"
CUTS = re.compile(r"\n\n+(?=torch\.manual_seed|def |for |bank, )")  # where a cell ends and the next begins


def notebook() -> dict[str, object]:
    """The notebook as JSON, without outputs."""
    cells: list[dict[str, object]] = []
    for text, code in re.findall(r"(.*?)(?:^```python\n(.*?)^```\n|\Z)", PAGE.read_text(), flags=re.S | re.M):
        if text.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": _lines(_without_links(text))})
        cells += [
            {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": _lines(part)}
            for part in CUTS.split(code)
            if part.strip()
        ]
    numbered = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": numbered, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines(keepends=True)


def _without_links(text: str) -> str:
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


if __name__ == "__main__":
    NOTEBOOK.write_text(json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(NOTEBOOK)
