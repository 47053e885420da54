"""The documentation is true: it builds, its links lead somewhere, its commands parse and its Python runs."""

import re
import runpy
import shlex
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line import help_of, parse_command

from mixlab.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
build = import_module("build")

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build.build(folder)
    return folder


def test_the_site_holds_every_page_and_fetches_nothing(site: Path) -> None:
    assert {file.stem for file in WRITTEN} | {"reference"} == set(build.PAGES)
    for name in build.PAGES:
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        sources = re.findall(r'(?:src|<link[^>]+href)="([^"]*)"', page)
        assert all(not source.startswith(("http", "//")) for source in sources)
        assert all((site / source).is_file() for source in sources if not source.startswith("data:"))
        assert "FORMULA" not in page and "$" not in re.sub(
            r"<pre>.*?</pre>|<code>.*?</code>", "", page, flags=re.DOTALL
        )
    assert "url(" not in (site / "style.css").read_text(encoding="utf-8")


def test_formulas_become_mathml(site: Path) -> None:
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    source = (DOCS / "mathematics.md").read_text(encoding="utf-8")
    outside_code = re.sub(r"```.*?```|`[^`\n]*`", "", source, flags=re.DOTALL)
    assert page.count("<math") == len(re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", outside_code, flags=re.DOTALL)) > 30


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<a href="nowhere.html">x</a>', "nowhere.html, which is not there"),
        ('<a href="#missing">x</a>', "#missing, which is not there"),
        ('<img src="gallery/no.png" alt="x">', "no.png does not exist"),
        ('<img src="gallery/no.png" alt="">', "has no description"),
    ],
)
def test_a_page_with_a_broken_part_is_not_built(body: str, complaint: str) -> None:
    with pytest.raises(build.DocsError, match=complaint):
        build.check_links([build.Page("index", "x", body)])


def test_a_formula_that_cannot_be_read_is_named() -> None:
    with pytest.raises(build.DocsError, match="page: the formula"):
        build.render("page", "a $x^a^b$ b")


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_every_command_is_one_that_mixlab_knows(file: Path) -> None:
    for line in command_lines(file):
        try:
            parse(line)
        except SystemExit:
            pytest.fail(f"{file.name}: {line!r} is not understood")


def test_the_documentation_calls_the_commands_it_is_about() -> None:
    called = {line.split()[1] for file in WRITTEN for line in command_lines(file)}
    assert {"demo", "pretrain", "train", "knn", "probe", "auc", "rank", "maps", "claims", "report"} <= called


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("file", [f for f in WRITTEN if blocks(f, "python")], ids=lambda file: file.stem)
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
        section = page.split(f">mixlab {name}</h3>")[1].split("<h3")[0]
        for option in help_of(name):
            row = re.search(rf"<tr>\s*<td><code>{re.escape(option)}</code>.*?</tr>", section, re.S | re.I)
            assert row, f"mixlab {name}: {option} is not in the reference"
            assert not row[0].rstrip().endswith("<td></td>\n</tr>"), f"mixlab {name}: {option} is not explained"


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.stem)
def test_every_example_runs_and_is_cut_into_cells(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# %% [markdown]\n# # ") and text.count("# %%\n") >= 3
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.count("\n") >= 4
