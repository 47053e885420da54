"""What the package imports is what pyproject.toml declares, and constraints.txt pins."""

import ast
import os
import re
import subprocess
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


WITHOUT_EXTRAS = """
import sys
from mixlab.errors import EXTRA_OF

from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in EXTRA_OF else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from mixlab.cli import main

def run(*arguments, code=0):
    assert main(arguments) == code, arguments

settings = ("steps=1", "batch=4", "model.depth=1", "method.num_prototypes=64", "optim.warmup_steps=0")
small = ("--device", "cpu", *(part for one in settings for part in ("--set", one)))
run("models", "vit_tiny")
run("advise", "--image", "224")
run("pretrain", "dino_vit_tiny64", "--data", "shapes:n=8", "--run", "run", *small)
run("knn", "run", "--data", "shapes:n=8", "--device", "cpu", "--workers", "0", "--k", "1")
run("rank", "run", "--chunk", "16", "--num-images", "1", "--device", "cpu")
run("auc", "run", "--data", "shapes:n=2", "--no-twins", "--device", "cpu")
run("claims", "run")
run("export", "run", "--out", "run.safetensors")
for arguments in (("maps", "run"), ("report", "run"), ("app", "run"), ("export", "run", "--out", "run.onnx")):
    run(*arguments, code=1)
"""


def test_the_core_works_without_extras_and_says_which_one_is_missing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    for module, extra in (("matplotlib", "report"), ("fastapi", "app"), ("onnx", "onnx")):
        assert re.search(rf"error: this needs {module}\w*; run pip install 'mixlab\[{extra}\]'", told)


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
