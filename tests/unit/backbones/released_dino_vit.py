"""DINO's ViT once more, slowly: plain float64 over a state dict with the released names, none of it mixlab's."""

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
HEAD_DIM = 64


def random_vit_state(*, dim: int, depth: int, side: int, patch: int, seed: int = 0) -> State:
    """A backbone-only state dict as DINO publishes them, with every entry random."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale + shift

    def linear(name: str, outputs: int, inputs: int) -> State:
        return {f"{name}.weight": draw(outputs, inputs, scale=inputs**-0.5), f"{name}.bias": draw(outputs, scale=0.1)}

    def norm(name: str) -> State:
        return {f"{name}.weight": draw(dim, scale=0.2, shift=1), f"{name}.bias": draw(dim, scale=0.2)}

    state = {
        "cls_token": draw(1, 1, dim),
        "pos_embed": draw(1, 1 + side * side, dim),
        "patch_embed.proj.weight": draw(dim, 3, patch, patch, scale=0.05),
        "patch_embed.proj.bias": draw(dim),
        **norm("norm"),
    }
    for block in (f"blocks.{index}." for index in range(depth)):
        state |= norm(block + "norm1") | norm(block + "norm2")
        state |= linear(block + "attn.qkv", 3 * dim, dim) | linear(block + "attn.proj", dim, dim)
        state |= linear(block + "mlp.fc1", 4 * dim, dim) | linear(block + "mlp.fc2", dim, 4 * dim)
    return state


def released_vit_features(state: State, images: Tensor, *, last: int) -> list[Tensor]:
    """All tokens (B, L, D) after each of the last blocks and the final norm; the class token stands first."""
    state = {key: value.double() for key, value in state.items()}
    patch = state["patch_embed.proj.weight"].shape[-1]
    maps = F.conv2d(images.double(), state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=patch)
    rows, columns = maps.shape[2:]
    side = round((state["pos_embed"].shape[1] - 1) ** 0.5)
    table = state["pos_embed"][:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if (rows, columns) != (side, side):
        scale = ((rows + 0.1) / side, (columns + 0.1) / side)
        table = F.interpolate(table, scale_factor=scale, mode="bicubic")
    patches = (maps + table).flatten(2).transpose(1, 2)
    front = (state["cls_token"] + state["pos_embed"][:, :1]).expand(len(images), -1, -1)
    tokens = torch.cat([front, patches], dim=1)
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    outputs = []
    for index in range(depth):
        block = f"blocks.{index}."
        tokens = tokens + _attention(state, block + "attn.", _norm(state, block + "norm1", tokens))
        hidden = _linear(state, block + "mlp.fc1", _norm(state, block + "norm2", tokens))
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        tokens = tokens + _linear(state, block + "mlp.fc2", hidden)
        outputs.append(_norm(state, "norm", tokens))
    return outputs[-last:]


def _attention(state: State, prefix: str, tokens: Tensor) -> Tensor:
    dim = tokens.shape[-1]
    q, k, v = _linear(state, prefix + "qkv", tokens).split(dim, dim=-1)
    heads = []
    for start in range(0, dim, HEAD_DIM):
        head = slice(start, start + HEAD_DIM)
        scores = q[..., head] @ k[..., head].transpose(1, 2) / HEAD_DIM**0.5
        heads.append(scores.softmax(-1) @ v[..., head])
    return _linear(state, prefix + "proj", torch.cat(heads, dim=-1))


def _linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def _norm(state: State, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-6)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]
