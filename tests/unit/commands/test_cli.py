"""The command line as a person or a script meets it."""

import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

import mixlab
from mixlab.cli import COMMANDS, GROUPS, main, sentence_of
from mixlab.errors import InputError
from mixlab.run.aside import written_aside


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


def test_version_and_help_of_a_command_are_found_where_people_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"mixlab {mixlab.__version__}\n"
    for words in (["help", "advise"], ["advise", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    first, second = capsys.readouterr().out.split("usage: ")[1:]
    assert first.split()[1] == second.split()[1] == "advise"


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert (command, stopped.value.code) == (command, 0)
        printed = capsys.readouterr().out
        assert "--json" in printed and "None}" not in printed  # of `int | None`, the INT
        assert not re.search(r"default:\s+(None|False)?\)", printed), "words say what happens"
        assert all(len(line) <= 80 or line.startswith("usage:") for line in printed.splitlines()), printed


def test_an_option_that_may_be_left_out_can_be_given_as_none() -> None:
    import tyro

    from mixlab.commands.help import registry

    def call(image: int | None = 3, fit: Literal["crop", "squash"] | None = None) -> tuple[int | None, str | None]:
        return image, fit

    found = {
        words: tyro.cli(call, args=words.split(), registry=registry)
        for words in ("", "--image None", "--image 5 --fit crop", "--fit None")
    }
    assert list(found.values()) == [(3, None), (None, None), (5, "crop"), (3, None)]
    for wrong in (["--image", "many"], ["--fit", "stretch"]):
        with pytest.raises(SystemExit):
            tyro.cli(call, args=wrong, registry=registry)


def test_models_counts_what_it_lists(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    assert main(["models", "dinovim_b*", "--json", str(file)]) == 0
    rows = {row["name"]: row for row in json.loads(file.read_text())["models"]}
    assert list(rows) == ["dinovim_base"]
    assert rows["dinovim_base"]["params_M"] == pytest.approx(88.97, abs=0.01)
    assert rows["dinovim_base"]["mixer"] == "mamba2"
    assert main(["models", "mamba2d", "--json", str(file)]) == 0  # a part of names
    names = [row["name"] for row in json.loads(file.read_text())["models"]]
    assert names and all("mamba2d" in name for name in names)


def test_models_takes_patterns_of_timm_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.json"

    def listed(pattern: str) -> list[str]:
        assert main(["models", pattern, "--json", str(file)]) == 0
        return [row["name"] for row in json.loads(file.read_text())["models"]]

    assert listed("timm/resnet1[04]t") == ["timm/resnet10t", "timm/resnet14t"]
    assert listed("timm/convnext_pico") == ["timm/convnext_pico"]  # a name, not a part of others
    assert listed("timm/convnext_p") == ["timm/convnext_pico", "timm/convnext_pico_ols"]  # a part of names
    assert listed("timm/vit_tiny_patch16_224.augreg_in21k") == ["timm/vit_tiny_patch16_224.augreg_in21k"]
    capsys.readouterr()
    assert listed("timm/swinv2_cr_tiny_[23]*") == ["timm/swinv2_cr_tiny_224"]
    note = "1 left out, which cannot be counted at 224 px: timm/swinv2_cr_tiny_384 (Input image height"
    assert note in capsys.readouterr().err


def test_sizes_are_read_as_people_write_them() -> None:
    from mixlab.commands.advise import parse_size

    sizes = {"224": (224, 224), "160x256": (160, 256), " 800X1280 ": (800, 1280), "800×1280": (800, 1280)}
    assert {text: parse_size(text) for text in sizes} == sizes


def test_json_on_stdout_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--image", "800x1280", "--width", "384", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["length"] == "long"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["modls"], 2, "unknown command 'modls'; did you mean models?"),
        (["xyzzy"], 2, "unknown command 'xyzzy'; mixlab knows demo, study"),
        (["models", "nothing*"], 1, "no model matches"),
        (["models", "shipped/vti"], 1, "did you mean shipped/vit?"),
        (["models", "timm/zzz*"], 1, "no model matches 'timm/zzz*'; `mixlab models 'timm/*'` lists all"),
        (["models", "timm/efficientnet_b00"], 1, "did you mean timm/efficientnet_b0"),
        (["models", "timm/swinv2_tiny_window8_256"], 1, "model (256)); it is made for 256 px"),
        (["rank", "shipped/vti"], 1, "did you mean shipped/vit?"),
        (["rank", "timm/efficientnet_b00"], 1, "did you mean timm/efficientnet_b0"),
        (["rank", "efficientnet_b0"], 1, "did you mean timm/efficientnet_b0?"),
        (["pretrain", "dino_vit_tiny65", "--data", "shapes", "--run", "x"], 1, "did you mean dino_vit_tiny64"),
        (["rank", "shipped/vit", "--data", "shaps"], 1, "did you mean shapes?"),
        (["auc", "shipped/vit", "--data", "shaps"], 1, "did you mean shapes?"),
        (["maps", "shipped/vit", "--map", "cosin"], 1, "did you mean cosine?"),
        (["maps", "shipped/vit", "--map", "nope"], 1, "choose one of cosine"),  # and not "did you mean norm?"
        (
            ["maps", "runs/nosuch"],
            1,
            "unknown model 'runs/nosuch'; there is no such run or file either; check the path",
        ),
        (
            ["maps", "docs/gallery/mixers.jpg"],
            1,
            "mixers.jpg is an image, not a network; give it as --data, or open it",
        ),
        (["speedrun", "nope", "--data", "shapes", "--run", "x"], 1, "'nope'; a name is METHOD_BACKBONE, such as dino"),
        (["knn", "vit_tiny", "--k", "0"], 1, "--k is 0; give at least 1"),
        (["advise", "--image", "big"], 1, "is not a size"),
        (["export", "dinovim_tinny", "--out", "x.safetensors"], 1, "dinovim_tiny"),
        (["export", "vit_tiny", "--out", "x", "--format", "onnx", "--image", "224px"], 1, "'224px' is not a size"),
        (["export", "vit_tiny", "--out", "x", "--format", "onnx", "--image", "0x64"], 1, "'0x64' is not a size"),
        (["export", "vit_tiny", "--out", "x.onnx", "--format", "safetensors"], 1, "name it x.safetensors"),
        (["export", "vit_tiny", "--out", "x.pt"], 1, "end it in .safetensors or .onnx, or give --format"),
        (["report", "runs", "--out", "x.pdf"], 1, "x.pdf is neither .html nor .md"),
        (["maps", "vit_tiny", "--num-images", "0"], 1, "--num-images is 0; give at least 1"),
        (["auc", "vit_tiny", "--image", "0"], 1, "--image is 0; give at least 1"),
        (["rank", "vit_tiny", "--json", "nowhere/x.json"], 1, "--json nowhere/x.json: nowhere is not a folder"),
        (["knn", "vit_tiny", "--json", "."], 1, "--json . is a folder; name a file in it"),
    ],
)
def test_failures_say_why_and_exit_with_the_documented_code(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_error_of_the_system_names_the_file_that_was_asked_for_and_no_number(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing, written_aside(tmp_path / "nowhere" / "page.html"):
        pass
    assert sentence_of(missing.value) == f"{tmp_path}/nowhere/page.html: No such file or directory"
    said = sentence_of(OSError(errno.EROFS, "Read-only file system", "page.html"))
    assert said == "page.html: Read-only file system; name another place, or change its permissions"


def test_users_errors_are_a_sentence_or_a_traceback_on_request_and_bugs_always_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["rank", "nosuch", "--data", "shapes:n=2"]
    assert main(wrong) == 1 and "error: unknown model 'nosuch'" in capsys.readouterr().err
    monkeypatch.setenv("MIXLAB_DEBUG", "1")
    with pytest.raises(InputError, match="unknown model 'nosuch'"):
        main(wrong)
    monkeypatch.delenv("MIXLAB_DEBUG")

    def broken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("mixlab.commands.options.SeveralTargets.load", broken)
    with pytest.raises(KeyError, match="ours"):
        main(["rank", "vit_tiny", "--data", "shapes:n=2"])


def test_help_typos_and_wrong_options_are_answered_without_torch() -> None:
    """One process for all of them: torch, timm and matplotlib take seconds to import."""
    script = """
import sys
from mixlab.cli import COMMANDS, main
from contextlib import suppress
main([]), main(["modls"])
main(["maps"]), main(["matrices"]), main(["knn", "vit_tiny", "--json", "/"])
for name in COMMANDS:
    for option in ("--help", "--no-such-option"):
        with suppress(SystemExit):
            main([name, option])
print(sorted({"torch", "timm", "torchvision", "matplotlib", "PIL"} & {*sys.modules}), file=sys.stderr)
print(len(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    *_, imported, number = done.stderr.splitlines()
    assert imported == "[]", done.stderr
    assert int(number) < 900  # modules: some 500, and each of the libraries that take seconds has hundreds


def test_a_wrong_option_exits_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["advise", "--imag", "224"])
    assert stopped.value.code == 2 and "--image" in "".join(capsys.readouterr())


def test_the_ending_of_a_file_says_its_format_and_an_option_its_size(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    import mixlab

    model = mixlab.create_model("vit_tiny", dim=64, depth=1, image=48)
    mixlab.save_weights(model, tmp_path / "small.safetensors")
    exports = ["export", str(tmp_path / "small.safetensors"), "--out", str(tmp_path / "small.onnx")]
    assert main([*exports, "--image", "48x64"]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    assert session.get_inputs()[0].shape[1:] == [3, 48, 64]


def test_a_size_that_patches_do_not_fill_is_refused_before_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    assert main(["export", "vit_tiny", "--out", str(tmp_path / "x.onnx"), "--image", "50"]) == 1
    assert "error: 50px is not a multiple of patch 16; try 48" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_exported_safetensors_come_back_as_the_same_model(tmp_path: Path) -> None:
    import torch

    from mixlab.backbones.weights import model_from_file

    assert main(["export", "dinovim_tiny", "--out", str(tmp_path / "m.safetensors")]) == 0
    model = model_from_file(tmp_path / "m.safetensors").eval()
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 256)
