"""Code from outside: how it is loaded, what is refused, and what a run says where it is missing."""

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import timm
import torch
from PIL import Image

import mixlab
from mixlab.cli import main
from mixlab.data import labelled_splits
from mixlab.errors import InputError
from mixlab.mixers import MIXERS, AttentionConfig, MixerConfig
from mixlab.plugins import REGISTRIES, VARIABLE, load_plugin
from mixlab.recipes import RECIPES, find_recipe
from mixlab.training.config import MethodConfig, TrainConfig
from mixlab.training.supervised import SupervisedConfig, SupervisedRecipe

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
import mixlab
from mixlab.backbones.zoo import transformer
from mixlab.mixers import AttentionConfig
from mixlab.recipes import RECIPES

@mixlab.register_mixer
@dataclass(frozen=True, kw_only=True)
class Other(AttentionConfig):
    kind: ClassVar[str] = "other_attention"

mixlab.register_family("otherkin", lambda dim: transformer(dim, Other()))

@mixlab.register_recipe
def dino_otherkin_small():
    return RECIPES["dino_otherkin_tiny64"]()
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that nobody has imported."""
    file = tmp_path / "otherkin_plugin.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield file
    sys.modules.pop(file.stem, None)


def test_what_is_registered_late_is_known_everywhere(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "dino_otherkin_tiny64" not in RECIPES  # recipes and timm are imported before the plugin
    assert main(["--import", str(plugin), "models", "otherkin_t*"]) == 0
    assert "otherkin_tiny" in capsys.readouterr().out
    small = {"dim": 64, "depth": 1, "image": 32}
    assert timm.create_model("otherkin_tiny", num_classes=3, **small)(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    assert mixlab.create_model("otherkin_tiny", **small).family == "other_attention"
    sizes = [f"{task}_otherkin_{size}" for task in ("dino", "lejepa", "supervised", "segment", "detect")
             for size in ("tiny", "small", "base", "tiny64")]  # fmt: skip
    for name in sizes:
        assert find_recipe(name).model.name.startswith("otherkin_"), name
    assert find_recipe("dino_otherkin_mini").model.fields == find_recipe("dino_vit_mini").model.fields
    assert find_recipe("dino_otherkin_small").epochs == 18, "a recipe of one's own counts more than the one for all"


def test_a_module_in_the_current_folder_is_found_and_told_to_other_processes(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plugin.parent)
    assert main(["--import=otherkin_plugin", "--import", str(plugin), "--help"]) == 0
    assert "--import" in capsys.readouterr().out and "otherkin_tiny" in mixlab.list_models("otherkin*")
    assert mixlab.plugins.os.environ[VARIABLE].split(":") == ["otherkin_plugin", str(plugin)]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import no_such_thing", r"cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'.*py:1"),
        ("1 / 0", r"cannot be imported: ZeroDivisionError: division by zero \(.*otherkin_plugin.py:1\)"),
        (PLUGIN + PLUGIN, "registers the mixer 'other_attention', already registered by otherkin_plugin; choose"),
        (
            "import mixlab\nmixlab.register_backbone('vit_tiny', print)",
            "backbone 'vit_tiny', already registered by mixlab",
        ),
        ("import mixlab\nmixlab.register_backbone('resnet18', print)", "timm has a model 'resnet18'"),
        ("import mixlab\nmixlab.register_backbone('x', 3)", "x is registered with a int; give an IsotropicConfig"),
        ("import mixlab\nmixlab.register_mixer(dict)", "a subclass of MixerConfig; got dict"),
        ("import mixlab\nmixlab.register_recipe(3)", "a recipe is a function that returns a TrainConfig; got a int"),
        ("import mixlab\nmixlab.register_source('shapes')", "'shapes' is a source of mixlab's own"),
    ],
    ids=["missing", "error", "twice", "ours", "timm's", "config", "class", "recipe", "source"],
)
def test_a_plugin_that_fails_says_why_in_a_sentence(
    plugin: Path, code: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin.write_text(code)
    with pytest.raises(InputError, match=sentence):
        load_plugin(str(plugin))
    assert plugin.stem not in sys.modules
    assert main(["--import", str(plugin), "models"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "place", "said"),
    [
        ("raise ValueError('too\\n  few')", "prepare", "ValueError: too few"),
        ("x @ x", "prepare", "RuntimeError: "),  # in torch, called by the plugin
        ("{}['depth']", "build", "KeyError: 'depth'"),
    ],
)
def test_an_error_in_the_code_of_a_plugin_names_it_and_its_line(
    plugin: Path, line: str, place: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = {"prepare": "return super().prepare(x, grid)", "build": "return super().build(dim, depth)"} | {place: line}
    made = f"""
from mixlab.mixers.attention import Attention

class Mixer(Attention):
    def prepare(self, x, grid):
        {code["prepare"]}

@mixlab.register_mixer
@dataclass(frozen=True, kw_only=True)
class Failing(AttentionConfig):
    kind: ClassVar[str] = "failing"

    def build(self, dim, depth):
        {code["build"] if place == "build" else "return Mixer(self, dim)"}

mixlab.register_family("failing", lambda dim: transformer(dim, Failing()))
"""
    plugin.write_text(PLUGIN.partition("@mixlab")[0] + made)
    call = ["--import", str(plugin), "rank", "failing_tiny", "--data", "shapes:n=1", "--image", "32", "--device", "cpu"]
    call += ["--run", str(plugin.parent / "look"), "--chunk", "2"]
    assert main(call) == 1
    told = " ".join(capsys.readouterr().err.split())
    number = plugin.read_text().splitlines().index(f"        {line}") + 1
    assert (
        f"error: the plugin otherkin_plugin failed in {'Mixer' if place == 'prepare' else 'Failing'}.{place}," in told
    )
    assert f"otherkin_plugin.py:{number}: {said}" in told and "Traceback" not in told
    monkeypatch.setenv("MIXLAB_DEBUG", "1")
    with pytest.raises((ValueError, RuntimeError, KeyError)):
        main(call)


def test_names_that_lead_nowhere_say_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, sentence in (
        (["--import"], "--import needs the name of a module, or a file"),
        (["--import", "no_such_plugin"], "there is no module 'no_such_plugin' on Python's path or in"),
        (["--import", str(tmp_path / "gone.py")], "there is no file"),
    ):
        assert main([*given, *([] if len(given) == 1 else ["models"])]) == 1
        assert sentence in " ".join(capsys.readouterr().err.split())
    assert main(["models", "--import", "pool.py"]) == 2
    assert "--import must come before the command: mixlab --import PLUGIN models" in capsys.readouterr().err


def test_classes_that_lack_something_are_told_what() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Half(MixerConfig):
        kind: ClassVar[str] = "half"

    @dataclass(frozen=True, kw_only=True)
    class Demanding(AttentionConfig):
        kind: ClassVar[str] = "demanding"
        size: int

    class Plain(AttentionConfig):
        kind = "plain"

    class NoTitle(MethodConfig):
        pass

    for given, sentence in (
        (Half, "Half lacks build, mixing_macs, which every mixer defines"),
        (Demanding, r"missing 1 required keyword-only argument: 'size'; give every field a default"),
        (Plain, "Plain is not a dataclass; put @dataclass"),
        (AttentionConfig(), "registered as its class"),
    ):
        with pytest.raises(InputError, match=sentence):
            mixlab.register_mixer(given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="NoTitle lacks build, image, which every method defines"):
        mixlab.register_method(NoTitle)
    assert not {"half", "demanding", "plain"} & set(MIXERS)


def test_a_run_names_its_plugins_and_says_where_one_is_missing(
    plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, settings = tmp_path / "run", ["steps=2", "batch=4", "model.depth=1", "knn.every_epochs=0", "model.dim=32"]
    command = ["pretrain", "dino_otherkin_tiny64", "--data", "shapes:n=4", "--run", str(run), "--device", "cpu"]
    command += [part for one in [*settings, "optim.warmup_epochs=0"] for part in ("--set", one)]
    before = {word: (dict(r.data), dict(r._origins)) for word, r in REGISTRIES.items()}
    assert main(["--import", str(plugin), *command]) == 0
    (needed,) = json.loads((run / "config.json").read_text())["plugins"]
    assert needed["module"] == "otherkin_plugin" and needed["file"] == str(plugin)
    assert needed["adds"] == {
        "recipe": ["dino_otherkin_tiny64"], "backbone": ["otherkin_tiny"], "mixer": ["other_attention"],
    }  # fmt: skip

    for word, (entries, origins) in before.items():  # as in a process that has not imported it
        REGISTRIES[word].data, REGISTRIES[word]._origins = entries, origins
    del sys.modules[plugin.stem]
    sentence = "needs the plugin otherkin_plugin (mixer other_attention), which is not loaded; write `mixlab --import"
    with pytest.raises(InputError) as error:
        mixlab.model_from_file(run / "weights.safetensors")
    assert f"{sentence} {plugin}" in str(error.value)
    assert main(command) == 1 and main(["knn", str(run), "--data", "shapes:n=20"]) == 1
    (run / "weights.safetensors").unlink()
    assert main(["knn", str(run), "--data", "shapes:n=20"]) == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("which is not loaded; write `mixlab --import") == 3
    assert plugin.stem not in sys.modules, "a file is never a reason to import code"
    record = {"measurements": [{"metric": "petals", "value": 5.0}], "plugins": [needed]}
    (run / "results" / "petals.json").write_text(json.dumps(record))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0  # it needs no code of the plugin
    assert sum("its measurements are left out" in str(one.message) for one in told) == 1
    assert main(["--import", str(plugin), *command]) == 0


def test_damaged_records_of_plugins_are_ignored() -> None:
    for record in (None, 3, [3], [{}], [{"adds": 3}], [{"adds": {"mixer": 3}}], {"adds": []}):
        assert mixlab.plugins.missing_plugins(record) == ""
    assert "x" in mixlab.plugins.missing_plugins([{"module": "x", "adds": {"moon": ["full"]}}])


def test_train_runs_a_supervised_method_from_outside(tmp_path: Path) -> None:
    """`mixlab train` scores its classifier, and whatever needs a classifier finds it."""

    @mixlab.register_method
    @dataclass(frozen=True, kw_only=True)
    class BinaryConfig(SupervisedConfig):
        kind: ClassVar[str] = "binary"
        title: ClassVar[str] = "training by binary cross-entropy"

        def build(self, backbone: mixlab.Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int):
            return BinaryRecipe(self, backbone, num_classes=num_classes)

    class BinaryRecipe(SupervisedRecipe):
        def loss(self, inputs):
            images, targets = inputs
            return torch.nn.functional.binary_cross_entropy_with_logits(self.run(images), targets), {}

    @mixlab.register_recipe("binary_vit_tiny64")
    def recipe() -> TrainConfig:
        known = RECIPES["supervised_vit_tiny64"]()
        return replace(known, method=BinaryConfig(size=32))

    run, settings = tmp_path / "run", ["steps=2", "batch=8", "model.depth=1", "model.dim=32", "optim.warmup_steps=0"]
    command = ["train", "binary_vit_tiny64", "--data", "shapes:n=16,size=32", "--run", str(run), "--device", "cpu"]
    assert main([*command, *(part for one in settings for part in ("--set", one))]) == 0
    assert main(["pretrain", *command[1:]]) == 1, "the command is the method's own"
    result = json.loads((run / "results" / "accuracy.json").read_text())
    assert result["measurements"][0]["subject"]["training"] == "binary"
    assert mixlab.load_classifier(str(run), device="cpu").subject.training == "binary"


def test_a_source_by_its_name_is_split_where_it_has_no_validation_set() -> None:
    @mixlab.register_source("grey")
    def grey(rest: str, split: str) -> object:
        pictures = [(Image.new("RGB", (8, 8), (step * 9,) * 3), step % 2) for step in range(int(rest))]
        return {"train": pictures, "val": None}[split]

    @mixlab.register_source("two_sets")
    def two_sets(rest: str, split: str) -> object:
        return grey({"train": "20", "val": "6"}[split], "train")

    @mixlab.register_source("nothing")
    def nothing(rest: str, split: str) -> object:
        return None

    cut, own = (labelled_splits(name) for name in ("grey:20", "two_sets:"))
    assert (len(cut.train), len(cut.val)) == (16, 4) and (len(own.train), len(own.val)) == (20, 6)
    with pytest.raises(InputError, match="registered for 'nothing' gives None; return a Source or a data set"):
        labelled_splits("nothing:")


def test_at_the_start_others_are_loaded_and_a_broken_one_is_a_warning(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `import mixlab` does: entry points of installed packages, then MIXLAB_IMPORT."""
    package = plugin.parent / "broken_garden-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-garden\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[mixlab.plugins]\nbroken = broken_garden\n")
    (plugin.parent / "broken_garden.py").write_text("import mixlab\nmixlab.register_mixer(dict)\n")
    monkeypatch.syspath_prepend(str(plugin.parent))
    monkeypatch.setenv(VARIABLE, f"no_such_plugin:{plugin}")
    with pytest.warns(UserWarning) as warned:
        mixlab.plugins.load_at_start()
    first, second = (text for warning in warned if "the plugin" in (text := str(warning.message)))  # not timm's
    assert "the plugin broken_garden of the package broken-garden is left out: InputError: a mixer is" in first
    assert "MIXLAB_IMPORT: the plugin no_such_plugin: there is no module" in second
    assert "otherkin_tiny" in mixlab.list_models()
