"""Who may import whom. The arrows of ARCHITECTURE.md, walked."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mixlab"
MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "mixers": {"ops"},
    "backbones": {"ops", "mixers"},
    "data": set(),
    "run": set(),
    "training": {"ops", "mixers", "backbones", "data", "run"},
    "evaluation": {"ops", "mixers", "backbones", "data", "run", "training"},
    "analysis": {"ops", "mixers", "backbones", "data", "run"},
    "report": {"run"},
    "app": {"run", "report"},
}
TORCHLESS = ("run", "report", "app")
FILES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(file: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0]


@pytest.mark.parametrize(
    "file", [f for f in FILES if part_of(f) in MAY_IMPORT], ids=lambda f: str(f.relative_to(PACKAGE))
)
def test_imports_follow_the_arrows(file: Path) -> None:
    part = part_of(file)
    for module in imported_modules(file):
        top, _, rest = module.partition(".")
        imported = rest.split(".")[0]
        if top == "mixlab" and imported in MAY_IMPORT and imported != part:
            allowed = ", ".join(sorted(MAY_IMPORT[part])) or "nothing of ours"
            assert imported in MAY_IMPORT[part], f"{part} may import {allowed}, but {file.name} imports {module}"
        if part in TORCHLESS:
            assert top != "torch", f"{part} reads files and must work without torch, but {file.name} imports it"


def test_no_file_is_named_for_nothing() -> None:
    for file in FILES:
        assert file.stem not in ("utils", "common", "helpers", "misc"), f"{file} should be named for what it owns"


def test_only_the_ops_know_of_triton() -> None:
    for file in FILES:
        if any(module.split(".")[0] == "triton" for module in imported_modules(file)):
            known = part_of(file) in ("ops", "bench") or file.name == "triton_crops.py"  # data knows no ops
            assert known, f"{file.name} imports triton; kernels live in ops, those of crops in data"
