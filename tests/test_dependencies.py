"""What the package imports is what pyproject.toml declares, and constraints.txt pins."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mixlab.errors import EXTRA_OF

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OPTIONAL = ("train", "report", "app", "detect", "onnx", "slurm")  # what `all` brings, and so `make`
INSTALLED_BY_MAKE = [
    *PROJECT["dependencies"],
    *(requirement for extra in (*OPTIONAL, "dev", "docs") for requirement in EXTRAS[extra]),
]
WITH_TORCH = {"triton"}  # torch brings it where there is one
DISTRIBUTIONS = packages_distributions()  # module: the names under which pip knows it
PEERS = {"fla", "mamba_ssm"}  # benchmarks measure them where somebody has installed them


def names_of(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def third_party(nodes: list[ast.AST]) -> set[str]:
    """Top-level names of others' packages that these statements import."""
    modules: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.append(node.module)
    return {module.split(".")[0] for module in modules} - {*sys.stdlib_module_names, "mixlab"} - WITH_TORCH - PEERS


WHERE = {  # parts that are imported with the extra they need; all other files import extras inside a function
    "report": ("report/", "analysis/figures/", "commands/maps.py"),
    "app": ("app/", "commands/app.py"),
    "onnx": ("ops/onnx_scan.py",),
    "transformers": ("backbones/transformers_models.py",),
    "train": ("analysis/binary_auc_metric.py", "bench/"),
}


def test_every_import_is_declared_and_extras_are_imported_where_they_belong() -> None:
    plain = names_of(PROJECT["dependencies"])
    declared = plain | names_of([requirement for extra in EXTRAS.values() for requirement in extra])
    for file in sorted((ROOT / "mixlab").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        at_the_top = third_party(list(tree.body))
        place = file.relative_to(ROOT / "mixlab").as_posix()
        allowed = plain.union(*(names_of(EXTRAS[extra]) for extra, parts in WHERE.items() if place.startswith(parts)))
        for module in third_party(list(ast.walk(tree))):
            name = canonicalize_name(DISTRIBUTIONS.get(module, [module])[0])
            needed = allowed if module in at_the_top else declared
            assert name in needed, f"{place} imports {module}; name {name} in pyproject.toml or import it later"


def test_every_optional_module_is_known_with_the_extra_that_brings_it() -> None:
    for module, extra in EXTRA_OF.items():
        name = canonicalize_name(DISTRIBUTIONS.get(module, [module])[0])
        assert name in names_of(EXTRAS[extra]), f"{module} is not part of mixlab[{extra}]"
    assert set(EXTRA_OF.values()) == {*OPTIONAL, "transformers", "wandb"}


def test_every_extra_that_a_sentence_names_exists() -> None:
    files = [*(ROOT / "mixlab").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    named = {extra for file in files for extra in re.findall(r"mixlab\[([a-z]+)\]", file.read_text(encoding="utf-8"))}
    assert named and named <= EXTRAS.keys()


def test_what_make_installs_is_pinned_to_a_version_that_is_allowed() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in lines), "only names and versions"
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    for requirement in map(Requirement, INSTALLED_BY_MAKE):
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not pinned in constraints.txt"
        assert version in requirement.specifier, f"{requirement} is pinned to {version}"
