"""ONNX files give the features of the model, at any batch and image size, without an operator of our own.

Two architectures, which cover both scans; `MIXLAB_TEST_ONNX=all` runs one of every kind of backbone, in minutes.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import mixlab
from mixlab.backbones.onnx_file import export_onnx
from mixlab.backbones.positions import resize_positions

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
SMALL: dict[str, Any] = {"dim": 32, "depth": 1, "image": 64}
STAGES: dict[str, Any] = {"dims": (16, 32), "depths": (1, 1), "image": 32}
MODELS: dict[str, dict[str, Any]] = {
    "dinovim_tiny": SMALL | {"dim": 64},
    "vim_tiny": SMALL,
    "vmamba_tiny": STAGES,
    "dinomambareg_tiny": SMALL | {"dim": 64},
    "mambareg_small": SMALL,
    "plainmamba_l1": SMALL,
    "localvim_tiny": SMALL,
    "localvim_tiny_midclstok": SMALL,
    "mamba2d_small": STAGES | {"dims": (16, 16), "image": 64},
    "vmamba_tiny_s1l8": STAGES,
    "localvmamba_tiny": STAGES,
    "efficientvmamba_tiny": STAGES | {"dims": (16, 32, 64), "depths": (1, 1, 1), "late_stages": 1},
    "vit_tiny": SMALL | {"dim": 64},
    "linearvit_tiny": SMALL | {"dim": 64},
    "gatedconv_tiny": SMALL,
    "mambaout_femto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
}
NAMES = list(MODELS) if os.environ.get("MIXLAB_TEST_ONNX") == "all" else list(MODELS)[:2]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_file_gives_the_features_of_the_model_at_any_batch_and_size(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mixlab.create_model(name, **MODELS[name]).eval()
    multiple = export_onnx(model, tmp_path / "model.onnx")
    windows = name.startswith("local")  # which pad a grid by its size
    assert multiple == (None if windows else model.layer_shapes()[-1].stride)
    file = onnx.load(tmp_path / "model.onnx")
    assert {node.domain for node in file.graph.node} == {""} and not file.functions
    found = {entry.key: json.loads(entry.value) for entry in file.metadata_props}
    assert (found["mean"], found["std"]) == (list(model.pixel_mean), list(model.pixel_std))
    assert (found["image"], found.get("multiple")) == (model.image, multiple)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    side, step = model.image, multiple or 0
    for batch, height, width in ((1, side, side), (2, side, side + step), (3, 2 * step or side, side + 3 * step)):
        images = torch.randn(batch, 3, height, width)
        [summary] = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(summary), model(images), rtol=0, atol=1e-4)


def test_a_model_of_one_size_is_written_for_it(tmp_path: Path) -> None:
    model = mixlab.create_model("timm/vit_tiny_patch16_224", depth=1, embed_dim=48, num_heads=1, img_size=64).eval()
    assert export_onnx(model, tmp_path / "model.onnx") is None
    shape = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_inputs()[0].shape
    assert shape[1:] == [3, 64, 64]


@pytest.mark.parametrize(("height", "width", "said"), [(48, 48, 48), (32, 48, [32, 48])])
def test_the_metadata_says_the_size_that_the_file_takes(height: int, width: int, said: Any, tmp_path: Path) -> None:
    model = mixlab.create_model("timm/vit_tiny_patch16_224", depth=1, embed_dim=48, num_heads=1).eval()
    assert export_onnx(model, tmp_path / "model.onnx", height=height, width=width) is None
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert session.get_inputs()[0].shape[2:] == [height, width]
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["image"]) == said and "multiple" not in about


@pytest.mark.parametrize("kind", ["dino", "exact"])
def test_positions_of_any_grid_are_those_of_a_known_one(kind: str) -> None:
    table = torch.randn(1, 49, 3)

    class Resized(torch.nn.Module):
        def forward(self, grid: torch.Tensor) -> torch.Tensor:
            return resize_positions(table, 7, (grid.shape[0], grid.shape[1]), kind)

    sides = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("columns", min=2, max=64)}
    traced = torch.export.export(Resized(), (torch.zeros(5, 9),), dynamic_shapes=(sides,)).module()
    for grid in ((7, 7), (7, 5), (3, 2), (14, 9), (37, 64)):
        torch.testing.assert_close(traced(torch.zeros(grid)), resize_positions(table, 7, grid, kind), rtol=0, atol=1e-5)
