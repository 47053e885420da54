"""The documentation is true: it builds, its links lead somewhere, its commands parse and its Python runs."""

import ast
import builtins
import json
import re
import runpy
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import help_of, parse_command
from sphinx.errors import ExtensionError

from mixlab.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
conf = import_module("conf")

WRITTEN = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def blocks(file: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(file.read_text(encoding="utf-8")) if language in languages]


def command_lines(file: Path) -> list[str]:
    """Every call of mixlab in shell blocks, with continued lines joined; of torchrun, what comes after `--`."""
    joined = "\n".join(blocks(file, "", "sh", "console")).replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        line = re.sub(r"^torchrun .* -- +", "", line.strip().removeprefix("$ "))
        if line.startswith("mixlab "):
            found.append(line)
    return found


def parse(line: str) -> dict[str, Any]:
    """What a command line would call its command with; it is not called."""
    _, name, *arguments = shlex.split(line)
    while name == "--import":
        _, name, *arguments = arguments
    return parse_command(name, arguments)


def test_the_site_holds_every_page_and_fetches_nothing(site: Path) -> None:
    pages = [name for section in conf.SECTIONS.values() for name in section]
    assert sorted({"index", *pages}) == [file.stem for file in WRITTEN]
    for name in ("index", *pages):
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        sources = re.findall(r'(?:src|<link[^>]+href)="([^"#]*)"', page)
        assert all(not source.startswith(("http", "//")) for source in sources)
        assert all((site / source.partition("?")[0]).is_file() for source in sources if not source.startswith("data:"))
        shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", page, flags=re.DOTALL)
        assert "FORMULA" not in shown and "$" not in shown
    assert (site / "searchindex.js").is_file()


def test_formulas_become_mathml(site: Path) -> None:
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    source = (DOCS / "mathematics.md").read_text(encoding="utf-8")
    outside_code = re.sub(r"```.*?```|`[^`\n]*`", "", source, flags=re.DOTALL)
    assert page.count("<math") == len(re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", outside_code, flags=re.DOTALL)) > 30


def test_a_formula_that_cannot_be_read_and_a_picture_without_description_are_named() -> None:
    with pytest.raises(ExtensionError, match="page: the formula"):
        conf.read_page(None, "page", ["a $x^a^b$ b"])
    with pytest.raises(ExtensionError, match="page: <img .*has no description"):
        conf.set_formulas(None, "page", "", {"body": '<img src="a.png" alt="gallery/a.png">'}, None)


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_every_command_is_one_that_mixlab_knows(file: Path) -> None:
    for line in command_lines(file):
        try:
            parse(line)
        except SystemExit:
            pytest.fail(f"{file.name}: {line!r} is not understood")


@pytest.mark.parametrize("page", ["add_a_mixer", "add_a_method", "add_a_recipe", "add_an_optimizer"])
def test_a_page_about_plugins_has_a_command_that_takes_seconds(page: str) -> None:
    quick = "--set steps=8 --set batch=16 --set optim.warmup_steps=0"
    short = [" ".join(line.split()) for line in command_lines(DOCS / f"{page}.md") if "--set steps=" in line]
    assert len(short) == 1 and quick in short[0] and "--data shapes:n=64 " in short[0]


def test_the_commands_of_the_readme_are_ones_that_mixlab_knows() -> None:
    """`mixlab rank|maps TARGET    what they do` are two of them."""
    lines = [re.split(r" {3,}| #", line)[0] for line in command_lines(ROOT / "README.md")]
    assert len(lines) > 15
    for line in lines:
        _, names, *rest = shlex.split(line)
        for name in names.split("|"):
            if name != "bench":  # WHAT is one of a list
                parse_command(name, rest)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "mixlab" / "photographs" / "cat.jpg", "photo.jpg")
    [code] = blocks(ROOT / "README.md", "python")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    looked = names["mixing"].matrix() @ names["mixing"].values
    torch.testing.assert_close(names["mixing"].apply(), looked, rtol=1e-4, atol=1e-5)
    assert names["maps"].ndim == 3 and names["found"].measurements


@pytest.mark.parametrize(
    "file", [f for f in WRITTEN if f.stem.startswith(("add_", "any_"))], ids=lambda file: file.stem
)
def test_an_extension_is_explained_on_a_screen(file: Path) -> None:
    """With prose, and a check that it works."""
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 110


def test_a_file_that_a_page_imports_is_on_it_as_a_whole() -> None:
    """The block that follows its name: nothing in it is defined by a block before."""
    seen = set()
    for file in WRITTEN:
        text = file.read_text(encoding="utf-8")
        for name in {*re.findall(r"--import (\w+\.py)", text)} & {*re.findall(r"`(\w+\.py)`", text)}:
            tree = ast.parse(FENCE.findall(text[text.index(f"`{name}`") :])[0][1])
            nodes = [*ast.walk(tree)]
            bound = {alias.asname or alias.name for node in nodes for alias in getattr(node, "names", [])}
            bound |= {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
            bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
            named = [node for node in nodes if isinstance(node, ast.Name)]
            bound |= {node.id for node in named if not isinstance(node.ctx, ast.Load)}
            missing = {node.id for node in named} - bound - {*dir(builtins)}
            assert not missing, f"{file.name}: {name} uses {missing}, which it does not import"
            seen.add(name)
    assert {"frames.py", "my_resnet.py", "patch_convs.py", "pool.py", "vicreg.py"} <= seen


def test_the_documentation_calls_the_commands_it_is_about() -> None:
    called = {line.split()[1] for file in WRITTEN for line in command_lines(file)}
    assert {"demo", "pretrain", "train", "knn", "probe", "auc", "rank", "maps", "claims", "report"} <= called


# The page on one's own loop runs as a notebook, below.
RUN = [file for file in WRITTEN if blocks(file, "python") and file.stem != "own_loop"]


@pytest.mark.parametrize("file", RUN, ids=lambda file: file.stem)
def test_every_python_block_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(file, "python"))
    assert "assert " in code, "the blocks of this page say nothing that could be wrong"
    script = tmp_path / f"{file.stem}_blocks.py"
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script))


def test_the_reference_explains_every_command_and_option(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        section = page.split(f"<h3>mixlab {name}<")[1].split("<h3")[0]
        cells = [re.findall(r"<td>(.*?)</td>", row, re.S) for row in re.findall(r"<tr.*?</tr>", section, re.S)]
        rows = {words(row[0]).split()[0].lower(): row for row in cells if row}
        for option in help_of(name):
            assert option.lower() in rows, f"mixlab {name}: {option} is not in the reference"
            assert words(rows[option.lower()][-1]), f"mixlab {name}: {option} is not explained"


def words(cell: str) -> str:
    return re.sub(r"<[^>]+>", "", cell).strip()


SCRIPTS = [file for file in sorted((ROOT / "examples").glob("*.py")) if not file.with_suffix(".ipynb").exists()]


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
def test_every_example_runs_and_is_cut_into_cells(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# %% [markdown]\n# # ") and text.count("# %%\n") >= 3
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.count("\n") >= 4


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("name", import_module("make_notebook").RUN)
def test_a_notebook_has_the_cells_of_its_script_and_the_outputs_that_they_have_now(name: str) -> None:
    """Its numbers and pictures may differ with the versions of others; not what it prints and draws."""
    make_notebook = import_module("make_notebook")
    cells = make_notebook.script_cells(ROOT / "examples" / f"{name}.py")
    stored = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = [[(cell["cell_type"], cell["source"]) for cell in found] for found in (cells, stored)]
    assert sources[0] == sources[1], "run python docs/make_notebook.py"
    assert "".join(cells[0]["source"]).startswith("# ") and cells[1]["source"][0].startswith("%pip install")
    make_notebook.run_cells(cells)

    def shown(found: list[dict[str, Any]]) -> list[Any]:
        outputs = [output for cell in found for output in cell.get("outputs", [])]
        return [(output["output_type"], len(output.get("text", [])), [*output.get("data", {})]) for output in outputs]

    assert shown(cells) == shown(stored) and any(kind == "display_data" for kind, _, _ in shown(stored))


def test_the_notebook_runs_cell_by_cell_and_is_the_page_on_ones_own_loop() -> None:
    stored = json.loads((ROOT / "examples" / "dino_in_forty_lines.ipynb").read_text(encoding="utf-8"))
    assert stored == import_module("make_notebook").notebook(), "run python docs/make_notebook.py"
    cells = ["".join(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), names)
    assert len(cells) >= 5 and names["accuracy"] >= 0
    lines = [line for line in "\n".join(blocks(DOCS / "own_loop.md", "python")[:1]).splitlines() if line.strip()]
    assert len(lines) <= 40  # as it says
