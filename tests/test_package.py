"""What `import mixlab` gives and leaves for later; and the package as others get it: a wheel, torch.hub.

MIXLAB_PACKAGE=all also installs the wheel with all extras into an empty environment and runs the demo there.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

import mixlab

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves folders where it works."""
    pytest.importorskip("setuptools", minversion="77")
    place = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "mixlab", place / "mixlab", ignore=shutil.ignore_patterns("__pycache__"))
    command = ["wheel", ".", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist"]
    subprocess.run([sys.executable, "-m", "pip", *command], cwd=place, check=True)
    (built,) = (place / "dist").iterdir()
    return built


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("mixlab/")}
    files = [file for file in (ROOT / "mixlab").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert inside == {file.relative_to(ROOT).as_posix() for file in files}


INSTALLED = """
import sys
import mixlab
assert not {"torch", "timm", "torchvision"} & set(sys.modules), "import mixlab imports what it does not need"
import importlib.util
assert importlib.util.find_spec("timm") is not None  # whoever only asks for timm does not use the hook up
from mixlab.errors import EXTRA_OF
missing = set()
class Wrapped:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in missing else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Wrapped, list(sys.meta_path))  # as tools that watch imports do
import timm
assert timm.is_model("dinovim_tiny") and timm.get_pretrained_cfg("vit_tiny") is not None
assert mixlab.create_model is sys.modules["mixlab.backbones.zoo"].create_model
from pathlib import Path
assert Path(mixlab.__file__).is_relative_to(sys.argv[1]), mixlab.__file__
late = {"scipy", *EXTRA_OF} & sys.modules.keys()
assert not late, late
assert "BinaryAUC" in dir(mixlab) and "dinovim_tiny" in timm.list_models()
from mixlab.cli import main

def run(*arguments, code=0):
    assert main(arguments) == code, arguments

missing |= EXTRA_OF.keys()  # as if none were installed
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
missing.clear()
from mixlab.app import create_app  # its pages are files
run("models", "shipped/*")
run("auc", "shipped/vit", "--data", "shapes:n=2", "--no-twins", "--map", "cosine", "--run", "run")
run("report", "run", "--no-measure", "--out", "page.html")
"""


def test_the_wheel_works_away_from_the_repository_imports_late_and_registers_with_timm_without_and_with_extras(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:  # a pure wheel, so this is what pip does
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-P", "-c", INSTALLED, str(site)]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    for module, extra in (("matplotlib", "report"), ("fastapi", "app"), ("onnx", "onnx")):
        assert re.search(rf"error: this needs {module}\w*; run pip install 'mixlab\[{extra}\]'", told)
    assert "shipped/vit" in done.stdout and (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.skipif(
    os.environ.get("MIXLAB_PACKAGE") != "all", reason="minutes of installing; MIXLAB_PACKAGE=all runs it"
)
@pytest.mark.timeout(1800)
def test_the_wheel_with_all_extras_runs_the_demo_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    if (free := shutil.disk_usage(tmp_path).free) < 12e9:
        pytest.skip(f"all extras take 7 GB, and some more while they are installed; {tmp_path} has {free / 1e9:.0f} GB")
    with TemporaryDirectory(dir=tmp_path) as place:  # gigabytes
        venv.create(place, with_pip=True)
        bin_folder = Path(place, "bin")
        install = ["install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[all]"]
        subprocess.run([str(bin_folder / "python"), "-m", "pip", *install], cwd=tmp_path, check=True)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([str(bin_folder / "mixlab"), "demo", "--quick"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "demo-quick" / "report.html").is_file()


def test_torch_hub_loads_any_backbone_and_the_networks_that_come_with_it() -> None:
    hub = {"repo_or_dir": str(ROOT), "source": "local"}
    small = torch.hub.load(**hub, model="vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    assert small(torch.zeros(1, 3, 32, 32)).shape == (1, 32)
    shipped, same = torch.hub.load(**hub, model="shipped_vit"), mixlab.create_model("shipped/vit").eval()
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(shipped(images), same(images), rtol=0, atol=0)
    with pytest.raises(mixlab.InputError, match="vit_tiny has no weights of its own"):
        torch.hub.load(**hub, model="vit_tiny", pretrained=True)
