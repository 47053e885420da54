"""Mamba-2D (Mamba-ND, commit 4f70284) once more, slowly: plain loops in float64 over a state dict with its names.

Patches of 8 with positions; one Mamba branch for each layer, along rows, rows reversed, columns, columns reversed by
turns; each layer adds its branch to the norm of its input; after one of the layers, cells of 2 x 2 are merged.
"""

import math

import torch.nn.functional as F
from released_mambas import Draw, State, layer_norm, mamba_branch, walk
from torch import Tensor

KINDS = ("h", "h_flip", "v", "v_flip")


def mamba2d_state(*, dim: int, depth: int, side: int, merge_after: int) -> State:
    draw, inner = Draw(0), 2 * dim
    draw.linear("patch_embed.projection", dim, 3, 8, 8)
    draw("pos_embed", 1, side * side, dim)
    for layer in range(depth):
        mixer = f"layers.{layer}.mixer."
        draw.norm(f"layers.{layer}.norm", dim)
        draw.weight(mixer + "in_proj.weight", 2 * inner, dim)
        draw.weight(mixer + "out_proj.weight", dim, inner)
        draw.branch(mixer, "", inner, math.ceil(dim / 16), "A_log", "D")
    draw.norm(f"layers.{merge_after}.down_sample_layer.norm", 4 * dim)
    draw.weight(f"layers.{merge_after}.down_sample_layer.reduction.weight", dim, 4 * dim)
    draw.norm("ln1", dim)
    draw.norm("ln2", dim)
    return draw.state


def mamba2d_features(state: State, images: Tensor) -> Tensor:
    """What the released classifier reads (B, D)."""
    own = {key: value.double() for key, value in state.items()}
    images = F.pad(images.double(), (0, -images.shape[3] % 8, 0, -images.shape[2] % 8))
    maps = F.conv2d(images, own["patch_embed.projection.weight"], own["patch_embed.projection.bias"], stride=8)
    grid, table = (maps.shape[2], maps.shape[3]), own["pos_embed"]
    side = math.isqrt(table.shape[1])
    table = F.interpolate(table.mT.unflatten(-1, (side, side)), size=grid, mode="bicubic")
    x = (maps + table).flatten(2).mT
    depth = 1 + max(int(key.split(".")[1]) for key in own if key.startswith("layers."))
    for layer in range(depth):
        here = {key.removeprefix(f"layers.{layer}."): value for key, value in own.items()}
        x = layer_norm(x, here, "norm")
        order = walk(KINDS[layer % 4], grid)
        mixer = {key.removeprefix("mixer."): value for key, value in here.items()}
        y = mamba_branch(x[:, order] @ mixer["in_proj.weight"].T, mixer, "", "A_log", "D") @ mixer["out_proj.weight"].T
        x = x.clone()
        x[:, order] += y
        if "down_sample_layer.norm.weight" in here:
            x, grid = merged(x, here, grid)
    return layer_norm(layer_norm(x, own, "ln1", 1e-6).mean(1), own, "ln2", 1e-6)


def merged(x: Tensor, here: State, grid: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    maps = F.pad(x.mT.unflatten(-1, grid), (0, grid[1] % 2, 0, grid[0] % 2))
    half = (maps.shape[2] // 2, maps.shape[3] // 2)
    cells = F.unfold(maps, kernel_size=2, stride=2).mT  # of each channel its four cells, row by row
    cells = layer_norm(cells, here, "down_sample_layer.norm")
    return cells @ here["down_sample_layer.reduction.weight"].T, half
