"""Who may import whom. The arrows of ARCHITECTURE.md, walked."""

import ast
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mixlab"
_CORE = {"ops", "mixers", "backbones"}
_FREE_PARTS = {"data", "run", "statistics"}
MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "mixers": {"ops"},
    "backbones": {"ops", "mixers"} | _FREE_PARTS,
    "data": set(),
    "run": set(),
    "statistics": set(),
    "training": _CORE | _FREE_PARTS,
    "evaluation": _CORE | _FREE_PARTS | {"training"},
    "analysis": _CORE | _FREE_PARTS | {"evaluation"},  # it never trains
    "report": _CORE | _FREE_PARTS | {"training", "evaluation", "analysis"},
    "app": _CORE | _FREE_PARTS | {"training", "evaluation", "analysis", "report"},
    "studies": _CORE | _FREE_PARTS | {"training", "evaluation", "analysis", "report", "recipes"},
}
FREE = {"choices", "console", "errors", "plugins", "signals"}  # for all to import; they import nothing else of ours
# These may import all; the parts above may not import them.
ANYTHING = {"__init__", "__main__", "bench", "cli", "commands", "recipes"}
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def imported_modules(file: Path) -> set[str]:
    package = ".".join(file.relative_to(PACKAGE.parent).parent.parts)
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            modules |= {f"{source}.{alias.name}" for alias in node.names}
    return modules


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def forbidden(part: str, modules: set[str]) -> set[str]:
    """Modules of ours that this part may not import; `mixlab` itself is one, since it imports the parts."""
    allowed = {part, *MAY_IMPORT[part], *FREE}
    return {
        module for module in modules if module.split(".")[0] == "mixlab" and not allowed & {*module.split(".")[1:2]}
    }


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for file in FILES:
        part = part_of(file)
        for module in forbidden(part, imported_modules(file)) if part in MAY_IMPORT else ():
            allowed = ", ".join(sorted(MAY_IMPORT[part])) or "nothing of ours"
            wrong.append(f"{part} may import {allowed}, but {file.relative_to(PACKAGE)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_arrows_forbid_what_is_not_named() -> None:
    allowed = {"mixlab.statistics.student", "mixlab.training.loop", "mixlab.data", "torch", "mixlab_peer.commands"}
    for target in ("mixlab", "mixlab.analysis.rank", *(f"mixlab.{part}" for part in ANYTHING)):
        assert forbidden("training", {target, *allowed}) == {target}


def test_every_file_is_in_a_part_that_has_its_arrows() -> None:
    assert {part_of(file) for file in FILES} <= {*MAY_IMPORT, *FREE, *ANYTHING}
    for name in FREE:
        ours = {
            module.split(".")[1] for module in imported_modules(PACKAGE / f"{name}.py") if module.startswith("mixlab.")
        }
        assert ours <= FREE


def test_no_file_is_named_for_nothing() -> None:
    for file in FILES:
        assert file.stem not in ("utils", "common", "helpers", "misc"), f"{file} should be named for what it owns"


def test_no_file_has_the_marks_of_an_unfinished_merge() -> None:
    root = PACKAGE.parent
    texts = [*FILES, *root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / "tests").rglob("*.py")]
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    wrong = [str(file) for file in texts if any(line.startswith(marks) for line in file.open(encoding="utf-8"))]
    assert not wrong, f"merge conflicts are left in {', '.join(wrong)}"


def test_only_backbones_know_which_class_a_backbone_is() -> None:
    classes = ("mixlab.backbones.isotropic.", "mixlab.backbones.timm_backbone.", "mixlab.backbones.classifier.")
    for file in FILES:
        if part_of(file) != "backbones":
            found = [module for module in imported_modules(file) if module.startswith(classes)]
            assert not found, f"{file.name} imports {found[0]}; what it asks of a backbone belongs to Backbone"


def test_only_the_ops_know_of_triton() -> None:
    for file in FILES:
        if any(module.split(".")[0] == "triton" for module in imported_modules(file)):
            known = part_of(file) in ("ops", "bench") or file.name == "triton_crops.py"  # data knows no ops
            assert known, f"{file.name} imports triton; kernels live in ops, those of crops in data"


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports them by their name alone."""
    names = [
        file.name for file in Path(__file__).parent.rglob("*.py") if file.name not in ("conftest.py", "__init__.py")
    ]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
