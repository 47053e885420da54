"""The released Dino-Mamba models once more, slowly: plain loops in float64 over state dicts with the released names.

Written from the description of the models, sharing nothing with mixlab, to hold mixlab's fast paths against.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
HEAD_DIM, STATE, WIDTH = 64, 64, 4  # P, N, and the taps of the convolution


def random_state(model: str, *, dim: int, depth: int, side: int, seed: int = 0) -> State:
    """A state dict of released form, `model` being vim or mambareg, with every entry random."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale + shift

    inner = 2 * dim
    heads, channels = inner // HEAD_DIM, inner + 2 * STATE
    num_tokens = {"vim": 1, "mambareg": 12}[model]
    state = {
        "cls_token": draw(1, num_tokens, dim),
        "pos_embed": draw(1, side * side + (model == "vim"), dim),
        "patch_embed.proj.weight": draw(dim, 3, 16, 16, scale=0.05),
        "patch_embed.proj.bias": draw(dim),
        "norm_f.weight": draw(dim, scale=0.2, shift=1),
    }
    if model == "mambareg":
        state["pos_embed_cls"] = draw(1, num_tokens, dim)
    else:
        state |= {"head.weight": draw(10, dim), "head.bias": draw(10)}
    for layer in range(depth):
        mixer = f"layers.{layer}.mixer."
        state |= {
            f"layers.{layer}.norm.weight": draw(dim, scale=0.2, shift=1),
            mixer + "in_proj.weight": draw(2 * inner + 2 * STATE + heads, dim, scale=dim**-0.5),
            mixer + "out_proj.weight": draw(dim, inner, scale=inner**-0.5),
        }
        for conv, dt, suffix in (("conv1d", "dt_bias", ""), ("conv1d_b", "dt_b_bias", "_b")):
            state |= {
                f"{mixer}{conv}.weight": draw(channels, 1, WIDTH, scale=0.5),
                f"{mixer}{conv}.bias": draw(channels, scale=0.2),
                mixer + dt: draw(heads, shift=-3),
                f"{mixer}A_log{suffix}": draw(heads, scale=0.7, shift=1),
                f"{mixer}D{suffix}": draw(heads),
                f"{mixer}norm{suffix}.weight": draw(inner, scale=0.2, shift=1),
            }
    return state


def save_checkpoint(path: Path, *, student: State, teacher: State) -> None:
    """A training checkpoint as the released script leaves it: wrapped models, command line, NumPy learning rates."""
    projection = {"head.mlp.0.weight": torch.ones(4, 4), "head.last_layer.weight_g": torch.ones(4, 1)}
    wrapped_teacher = {f"backbone.{key}": value for key, value in teacher.items()} | projection
    wrapped_student = {f"module.backbone.{key}": value for key, value in student.items()}
    wrapped_student |= {f"module.{key}": value for key, value in projection.items()}
    group = {"lr": np.float64(5e-4), "weight_decay": np.linspace(0.04, 0.4, 3)[1], "betas": (0.9, 0.999), "params": [0]}
    checkpoint = {
        "student": wrapped_student,
        "teacher": wrapped_teacher,
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [group]},
        "epoch": 100,
        "args": argparse.Namespace(arch="vim_tiny", patch_size=16, global_crops_scale=(0.4, 1.0), use_fp16=True),
        "dino_loss": {"center": torch.zeros(1, 8)},
    }
    torch.save(checkpoint, path)


def released_features(state: State, images: Tensor, *, last: int) -> tuple[Tensor, list[Tensor]]:
    """The model's feature (B, D), and the probe's: one (B, D) for each of the last layers."""
    state = {key: value.double() for key, value in state.items()}
    tokens, read = _tokens(state, images.double())
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("layers."))
    hidden, residual, branches = tokens, torch.zeros_like(tokens), []
    for layer in range(depth):
        residual = residual + hidden
        normed = _rms_norm(residual, state[f"layers.{layer}.norm.weight"])
        hidden = _mixer(state, f"layers.{layer}.mixer.", normed)
        branches.append(_rms_norm(hidden, state["norm_f.weight"])[:, read].mean(1))
    final = _rms_norm(residual + hidden, state["norm_f.weight"])
    return final[:, read].mean(1), branches[-last:]


def _tokens(state: State, images: Tensor) -> tuple[Tensor, list[int]]:
    """The sequence, and the places of the tokens that the feature is read from."""
    weight, bias = state["patch_embed.proj.weight"], state["patch_embed.proj.bias"]
    rows, columns = images.shape[2] // 16, images.shape[3] // 16
    patches = []
    for row in range(rows):
        for column in range(columns):
            window = images[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            patches.append(torch.einsum("bcij,dcij->bd", window, weight) + bias)
    if "pos_embed_cls" in state:
        table = _resized(state["pos_embed"], rows, columns)
        patches = [patch + table[index] for index, patch in enumerate(patches)]
        run = len(patches) // 13
        sequence, read = [], []
        for register in range(12):
            sequence += patches[run * register : run * register + run]
            read.append(len(sequence))
            token = state["cls_token"][0, register] + state["pos_embed_cls"][0, register]
            sequence.append(token.expand(images.shape[0], -1))
        sequence += patches[12 * run :]
        return torch.stack(sequence, dim=1), read
    token = state["cls_token"][0, 0].expand(images.shape[0], -1)
    table = _resized(state["pos_embed"][:, 1:], rows, columns)
    sequence = [token + state["pos_embed"][0, 0]]
    sequence += [patch + table[index] for index, patch in enumerate(patches)]
    middle = (len(patches) + 1) // 2
    sequence.insert(middle, token)
    return torch.stack(sequence, dim=1), [middle]


def _resized(table: Tensor, rows: int, columns: int) -> Tensor:
    """(1, n², D) -> (rows columns, D)."""
    side = round(table.shape[1] ** 0.5)
    if (rows, columns) == (side, side):
        return table[0]
    square = table.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((rows + 0.1) / side, (columns + 0.1) / side)
    resized = F.interpolate(square, scale_factor=scale, mode="bicubic")
    return resized[0].permute(1, 2, 0).reshape(rows * columns, -1)


def _mixer(state: State, prefix: str, tokens: Tensor) -> Tensor:
    projected = tokens @ state[prefix + "in_proj.weight"].T
    forward = _one_way(state, prefix, projected, conv="conv1d", dt_bias="dt_bias", suffix="")
    backward = _one_way(state, prefix, projected.flip(1), conv="conv1d_b", dt_bias="dt_b_bias", suffix="_b")
    return (forward + backward.flip(1)) / 2 @ state[prefix + "out_proj.weight"].T


def _one_way(state: State, prefix: str, projected: Tensor, *, conv: str, dt_bias: str, suffix: str) -> Tensor:
    """From the left: convolve, scan token by token, gate, normalise."""
    decay_rate = state[f"{prefix}A_log{suffix}"].exp()
    heads = len(decay_rate)
    inner = heads * HEAD_DIM
    gate, xbc, dt = projected.split([inner, inner + 2 * STATE, heads], dim=-1)
    taps, bias = state[f"{prefix}{conv}.weight"][:, 0], state[f"{prefix}{conv}.bias"]
    padded = F.pad(xbc, (0, 0, WIDTH - 1, 0))
    batch, length = xbc.shape[:2]
    convolved = bias + sum(padded[:, tap : tap + length] * taps[:, tap] for tap in range(WIDTH))
    x, b, c = F.silu(convolved).split([inner, STATE, STATE], dim=-1)
    x = x.reshape(batch, length, heads, HEAD_DIM)
    dt = F.softplus(dt + state[prefix + dt_bias])  # (B, L, H)
    memory = x.new_zeros(batch, heads, HEAD_DIM, STATE)
    outputs = []
    for t in range(length):
        memory = memory * torch.exp(-dt[:, t] * decay_rate)[..., None, None]
        memory = memory + torch.einsum("bh,bhp,bn->bhpn", dt[:, t], x[:, t], b[:, t])
        outputs.append(torch.einsum("bhpn,bn->bhp", memory, c[:, t]) + state[f"{prefix}D{suffix}"][:, None] * x[:, t])
    y = torch.stack(outputs, dim=1).reshape(batch, length, inner)
    return _rms_norm(y * F.silu(gate), state[f"{prefix}norm{suffix}.weight"])


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
