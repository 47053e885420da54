"""Tiny run directories for the commands that look inside backbones."""

from pathlib import Path

import torch

import mixlab
from mixlab.run import RunDirectory


def make_run(
    folder: Path, name: str, *, training: str = "dino", seed: int = 0, depth: int = 2, **fields: object
) -> Path:
    """A run as training leaves it: config.json and exported weights of a tiny backbone."""
    torch.manual_seed(seed)
    size = {} if name.startswith("gatedconv") else {"head_dim": 16}
    model = mixlab.create_model(name, dim=64, depth=depth, image=64, patch=8, **size, **fields)
    run = RunDirectory.create(folder)
    run.write_config({"recipe": f"{training}_{name}", "seed": seed, "settings": {"method": {"kind": training}}})
    mixlab.save_weights(model, folder / "weights.safetensors")
    return folder
