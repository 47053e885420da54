"""Matrices as pictures: what is strong is bright, whatever the scale, and the command draws them for any mixer."""

import inspect
import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mixlab
from mixlab.analysis.matrices import LEAST_DECADES, MOST_DECADES, grey_levels, matrices_of, reading_of
from mixlab.analysis.rank import block_grid, measure_ranks
from mixlab.analysis.registry import ANALYSES
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.cli import main
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.report import write_report

SMALL = {"dim": 32, "depth": 2, "patch": 8, "image": 32}


def test_the_scale_follows_the_matrix_and_does_not_make_differences_up() -> None:
    flat = torch.full((9, 9), 0.11) + 1e-4 * torch.rand(9, 9)
    levels, decades = grey_levels(flat)
    assert decades == LEAST_DECADES and levels.min() > 250, "nearly equal entries look equal"
    spread = torch.logspace(0, -1.5, 100).reshape(10, 10)
    levels, decades = grey_levels(spread)
    assert decades == pytest.approx(1.5, abs=0.1) and levels[0, 0] == 255 and levels[-1, -1] < 5
    assert (np.diff(levels.ravel().astype(int)) <= 0).all(), "stronger is never darker"
    scan = torch.tril(torch.logspace(0, -12, 100).reshape(10, 10))
    levels, decades = grey_levels(scan)
    assert decades <= MOST_DECADES and not levels[np.triu_indices(10, 1)].any(), "what is not read is black"
    for strange in (torch.zeros(3, 3), torch.full((3, 3), float("inf"))):
        assert not grey_levels(strange)[0].any()


@pytest.mark.parametrize("name", ["vit_tiny", "dinovim_tiny", "gatedconv_tiny", "linearvit_tiny"])
def test_running_and_looking_agree_for_every_mixer(name: str) -> None:
    heads = {} if name == "gatedconv_tiny" else {"head_dim": 16}
    target = Target(label=name, backbone=mixlab.create_model(name, **SMALL, **heads).eval())
    pixels = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    about, found = matrices_of(target, pixels, layer=0)
    assert about["run_and_look_differ_by"] < 1e-5 and about["layer"] == 0
    assert found.levels.shape == (len(about["heads"]), about["num_tokens"], about["num_tokens"])
    images = ViewedImages([pixels[0]], size=32, fit="square")
    measured = measure_ranks(target, images, layers=[0])
    assert about["chunk"] == measured.protocol.chunk
    for head, ranks in zip(about["heads"], found.ranks, strict=True):
        expected = block_grid(measured.arrays["blocks"], 0, head)
        assert ranks == pytest.approx(expected, rel=1e-4, nan_ok=True)
    with pytest.raises(InputError, match=f"{name} has no head 999 in layer 1; choose 0 to "):
        matrices_of(target, pixels, heads=(999,))


@pytest.mark.parametrize("name", ["vit_tiny", "dinovim_tiny", "gatedconv_tiny", "vmamba_tiny"])
def test_a_patch_reads_with_the_mean_weight_of_all_heads(name: str) -> None:
    small = {"dims": (8, 8, 8, 8), "depths": (1, 1, 1, 1)} if name == "vmamba_tiny" else SMALL
    heads = {"head_dim": 16} if name in ("vit_tiny", "dinovim_tiny") else {}
    backbone = mixlab.create_model(name, **(small | heads | {"image": 32})).eval()
    pixels = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    reading, cell = reading_of(Target(label=name, backbone=backbone), pixels, layer=0, patch=(0.3, 1.0))
    with torch.no_grad():
        [(_, mixing)] = backbone.mixings(backbone.preprocess(pixels), layers=[0])
        tokens = backbone.layout.patch_columns(reading.size)
        row = mixing.matrix()[0].abs().mean(0)[tokens[cell[0] * reading.shape[1] + cell[1]]]
    assert cell == [int(0.3 * reading.shape[0]), reading.shape[1] - 1]
    np.testing.assert_allclose(reading.ravel(), row[tokens], rtol=1e-4, atol=1e-7)


def test_a_photograph_among_the_targets_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo, run = tmp_path / "my photo.jpg", tmp_path / "run"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 60, 3), dtype=np.uint8)).save(photo)
    options = ["--image", "32", "--run", str(run), "--device", "cpu"]
    assert main(["matrices", "shipped/vit", str(photo), "shipped/gatedconv", *options, "--layer", "0"]) == 0
    content = json.loads((run / "results" / "matrices.json").read_text())
    assert content["images"] == ["my photo.jpg"] and [m["layer"] for m in content["models"]] == [0, 0]
    (figure,) = content["exhibit"]["figures"]
    with Image.open(run / "figures" / figure["file"]) as drawn:
        colours = len(drawn.convert("RGB").getcolors(maxcolors=10**6) or [])
    assert colours > 500, "the picture is blank"
    page = write_report([run], tmp_path / "page.html").read_text()
    assert 'aria-label="Mixing matrix of shipped/vit, head 0' in page
    assert [m["patch"] for m in content["models"]] == [[1, 2], [1, 2]]  # of 3 x 5, in the shape of the photograph
    capsys.readouterr()
    assert main(["matrices", "shipped/vit", str(photo), *options, "--patch", "2", "0"]) == 1
    assert "--patch 2 0 lies outside of the image" in " ".join(capsys.readouterr().err.split())
    assert main(["matrices", "shipped/vit", str(photo), "--data", "shapes", *options]) == 1
    assert "give one source of images; --data takes a folder" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["matrices", "norms"])
def test_a_command_that_is_declared_without_torch_has_the_options_of_its_analysis(name: str) -> None:
    import_module(f"mixlab.analysis.{name}")
    analysis, command = ANALYSES[name], getattr(import_module(f"mixlab.commands.{name}"), name)
    declared = inspect.signature(command, eval_str=True).parameters.values()
    assert [part for part in declared if part.kind is part.KEYWORD_ONLY] == analysis.options
    assert inspect.getdoc(command) == inspect.getdoc(analysis.function)


def test_a_matrix_of_nan_is_not_said_to_agree() -> None:
    model = mixlab.create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16).eval()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="the matrix of vit holds NaN or infinity"):
        matrices_of(Target(label="vit", backbone=model), torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
