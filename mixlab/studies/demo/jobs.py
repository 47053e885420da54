"""The demo's own small jobs, for which there is no command: a twin, the matrices as pictures, sizes and speed."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mixlab.analysis.cost import count_macs, count_parameters
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import build_architecture, model_from_file, save_weights
from mixlab.data.mask_formats import parse_images_or_masks
from mixlab.evaluation.target import Target, load_targets
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import file_name

DECADES = 4  # matrices are drawn on a logarithmic scale of so many powers of ten
NUM_HEADS = 3
TIMED_BATCH, TIMED_SECONDS = 16, 0.6


def write_twin(run: str, out: str, seed: str) -> None:
    """The backbone of a run with fresh weights, as a run of its own."""
    folder = RunDirectory.create(out)
    folder.write_config({"seed": int(seed), "twin_of": Path(run).name})
    twin = model_from_file(Path(run) / "weights.safetensors").twin(int(seed))
    save_weights(twin, folder.path / "weights.safetensors")


def write_all_costs(*runs: str) -> None:
    for run in runs:
        write_costs(Path(run))


def write_costs(run: Path) -> dict[str, Any]:
    """Parameters, multiply-accumulates and images per second of a run's backbone, into results/cost.json."""
    (subject,) = load_targets([str(run)], device="cpu")
    backbone, size = subject.backbone, subject.backbone.image
    with torch.device("meta"):
        flat = build_architecture(backbone.architecture()).eval().requires_grad_(False)
    about = subject.describe()
    rates = sorted(_images_per_second(backbone, size))
    edge = max(0, int(len(rates) / 2 - 0.98 * len(rates) ** 0.5))  # the order statistics around 95 % of medians
    figures = {
        "num_parameters": count_parameters(backbone),
        "macs": count_macs(flat, size),
        "images_per_s": float(np.median(rates)),
    }
    record = about | {"metric": "images_per_s", "value": figures["images_per_s"], "n": len(rates)}
    result = {
        "kind": "cost",
        "subject": about,
        "image": size,
        "batch": TIMED_BATCH,
        "threads": torch.get_num_threads(),
        **figures,
        "measurements": [record | {"low": rates[edge], "high": rates[-1 - edge]}],
        "provenance": provenance(device="cpu"),
    }
    RunDirectory.open(run).write_result("cost", result)
    return result


def write_matrices(run: str, side: str, *targets: str) -> dict[str, Any]:
    """The last layer's matrices of one image, as grey levels, and how far running differs from looking."""
    image = int(side)
    seen = ViewedImages(parse_images_or_masks("shapes"), size=image, num_images=1).together()  # as `rank` sees it
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


@torch.no_grad()
def _images_per_second(backbone: Backbone, size: int) -> list[float]:
    """Rates of forward passes, as many as fit into the time; the first two only warm up."""
    images = torch.zeros(TIMED_BATCH, backbone.channels, size, size)
    rates: list[float] = []
    start = time.perf_counter()
    while len(rates) < 12 or (time.perf_counter() - start < TIMED_SECONDS and len(rates) < 100):
        before = time.perf_counter()
        backbone(images)
        rates.append(TIMED_BATCH / (time.perf_counter() - before))
    return rates[2:]
