"""The demo's own small jobs, for which there is no command: a twin, the matrices as pictures, sizes and speed."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixlab.analysis.cost import measure_cost
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.backbones.weights import model_from_file, save_weights
from mixlab.evaluation.target import Target, load_target, load_targets
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import file_name

DECADES = 4  # matrices are drawn on a logarithmic scale of so many powers of ten
NUM_HEADS = 3


def write_twin(run: str, out: str, seed: str) -> None:
    """The backbone of a run with fresh weights, as a run of its own."""
    folder = RunDirectory.create(out)
    folder.write_config({"seed": int(seed), "twin_of": Path(run).name})
    twin = model_from_file(Path(run) / "weights.safetensors").twin(int(seed))
    save_weights(twin, folder.path / "weights.safetensors")


def write_all_costs(*runs: str) -> None:
    for run in runs:
        write_costs(Path(run))


def write_costs(run: Path) -> None:
    """Parameters, multiply-accumulates and images per second of a run's backbone, into results/cost.json."""
    result = measure_cost(load_target(str(run), device="cpu"))
    RunDirectory.open(run).write_result("cost", result | {"provenance": provenance(device="cpu")})


def write_matrices(run: str, side: str, *targets: str) -> dict[str, Any]:
    """The last layer's matrices of one image, as grey levels, and how far running differs from looking."""
    image = int(side)
    seen = ViewedImages("shapes", size=image, num_images=1).together()  # as `rank` sees it
    found: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[np.uint8]] = {}
    for subject in load_targets(targets, device="cpu"):
        about, levels = _look(subject, seen.images)
        found.append(about)
        arrays[file_name(subject.label)] = levels
    result = {
        "kind": "matrices",
        "image": image,
        "images": seen.names,
        "decades": DECADES,
        "models": found,
        "provenance": provenance(),
    }
    RunDirectory.create(run).write_result("matrices", result, arrays)
    return result


@torch.no_grad()
def _look(subject: Target, pixels: torch.Tensor) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    backbone = subject.backbone
    [(layer, mixing)] = backbone.mixings(backbone.preprocess(pixels), layers=[-1])
    ran = mixing.apply()
    heads = np.unique(np.linspace(0, mixing.num_heads - 1, NUM_HEADS).round().astype(int))
    error, levels = 0.0, []
    for head in heads.tolist():
        matrix = mixing.matrix(slice(head, head + 1))[0, 0]  # (L, L)
        looked = matrix @ mixing.values[0, head]
        error = max(error, ((ran[0, head] - looked).norm() / looked.norm()).item())
        strength = matrix.abs().double()
        shown = (strength / strength.max()).clamp(min=10.0**-DECADES).log10() / DECADES + 1
        levels.append((255 * shown).round().byte().numpy())
    about = subject.describe() | {
        "layer": layer,
        "heads": heads.tolist(),
        "num_heads": mixing.num_heads,
        "num_tokens": levels[0].shape[0],
        "run_and_look_differ_by": error,
    }
    return about, np.stack(levels)
