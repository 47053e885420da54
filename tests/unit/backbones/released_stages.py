"""The released visual Mambas in stages, and PlainMamba: as `released_mambas.py`, from equations alone."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.unit.backbones.released_mambas import (
    Draw,
    N,
    State,
    batch_norm,
    gated,
    layer_norm,
    scan,
    silu,
    softplus,
    walk,
)

SKIPPING = [(0, 0, False), (1, 0, True), (0, 1, False), (1, 1, True)]  # first row and column, and whether down first
CROSS = ["h", "v", "h_flip", "v_flip"]


def staged_state(model: str, dims: list[int], depths: list[int], *, expand: int = 2) -> State:
    """`model`: vmamba (current form), vmamba0 (first form), localvmamba or efficientvmamba; one block at least."""
    draw, v2 = Draw(1), model == "vmamba"
    if v2:
        draw.linear("patch_embed.0", dims[0] // 2, 3, 3, 3)
        draw.norm("patch_embed.2", dims[0] // 2)
        draw.linear("patch_embed.5", dims[0], dims[0] // 2, 3, 3)
        draw.norm("patch_embed.7", dims[0])
    else:
        draw.linear("patch_embed.0", dims[0], 3, 4, 4)
        draw.norm("patch_embed.2", dims[0])
    for stage, (dim, depth) in enumerate(zip(dims, depths, strict=True)):
        inverted = model == "efficientvmamba" and stage >= 2
        for block in range(depth):
            if inverted:
                inverted_state(draw, f"layers.{stage}.{block + 1}.", dim)
            else:
                block_state(draw, model, f"layers.{stage}.blocks.{block}.", dim, expand)
        if stage + 1 < len(dims):
            down = f"layers.{stage}.{depth + 2}" if inverted else f"layers.{stage}.downsample"
            if v2:
                draw.linear(f"{down}.1", dims[stage + 1], dim, 3, 3)
                draw.norm(f"{down}.3", dims[stage + 1])
            else:
                draw.weight(f"{down}.reduction.weight", dims[stage + 1], 4 * dim)
                draw.norm(f"{down}.norm", 4 * dim)
    draw.norm("classifier.norm", dims[-1])
    draw.linear("classifier.head", 10, dims[-1])
    return draw.state


def block_state(draw: Draw, model: str, block: str, dim: int, expand: int) -> None:
    v2 = model == "vmamba"
    inner, rank, state = expand * dim, math.ceil(dim / 16), 1 if v2 else N
    op = block + "op."
    draw.norm(block + "norm", dim)
    draw.weight(op + "in_proj.weight", inner if v2 else 2 * inner, dim)
    draw.weight(op + "conv2d.weight", inner, 1, 3, 3)
    if not v2:
        draw(op + "conv2d.bias", inner, scale=0.2)
    draw(op + "x_proj_weight", 4, rank + 2 * state, inner, scale=inner**-0.5)
    draw(op + "dt_projs_weight", 4, inner, rank, scale=rank**-0.5)
    draw(op + "dt_projs_bias", 4, inner, shift=-2)
    draw(op + "A_logs", 4 * inner, state, scale=0.7, shift=0.5)
    draw(op + "Ds", 4 * inner)
    draw.norm(op + "out_norm", inner)
    draw.weight(op + "out_proj.weight", dim, inner)
    if v2:
        draw.norm(block + "norm2", dim)
        draw.linear(block + "mlp.fc1", 4 * dim, dim)
        draw.linear(block + "mlp.fc2", dim, 4 * dim)
    if model == "localvmamba":
        draw.gate(op + "multi_scan.attn", inner)
    if model == "efficientvmamba":
        draw.linear(block + "conv_branch.0", dim, 1, 3, 3)
        draw.norm(block + "conv_branch.1", dim, batch=True)
        draw.linear(block + "conv_branch.3", dim, dim, 1, 1)
        draw.gate(block + "se", dim)


def inverted_state(draw: Draw, block: str, dim: int) -> None:
    inner = 4 * dim
    draw.weight(block + "conv_pw.0.weight", inner, dim, 1, 1)
    draw.weight(block + "conv_dw.0.weight", inner, 1, 3, 3)
    draw.linear(block + "se.conv_reduce", inner // 8, inner, 1, 1)
    draw.linear(block + "se.conv_expand", inner, inner // 8, 1, 1)
    draw.weight(block + "conv_pw2.0.weight", dim, inner, 1, 1)
    for name, width in (("conv_pw.1", inner), ("conv_dw.1", inner), ("conv_pw2.1", dim)):
        draw.norm(block + name, width, batch=True)


def staged_features(model: str, state: State, images: Tensor, scans: list[list[str]] | None = None) -> Tensor:
    """What the released classifier reads (B, D)."""
    own = {key: value.double() for key, value in state.items()}
    x = images.double()
    if model == "vmamba":
        x = conv(x, own, "patch_embed.0", stride=2, padding=1)
        x = gelu(layer_norm(to_last(x), own, "patch_embed.2"))
        x = layer_norm(to_last(conv(to_first(x), own, "patch_embed.5", stride=2, padding=1)), own, "patch_embed.7")
    else:
        x = layer_norm(to_last(conv(x, own, "patch_embed.0", stride=4)), own, "patch_embed.2")
    index = 0  # (B, h, w, C) from here on
    for stage in range(4):
        for block in range(20):
            name = f"layers.{stage}.blocks.{block}."
            if f"layers.{stage}.{block + 1}.conv_pw.0.weight" in own:
                x = x + to_last(inverted(to_first(x), own, f"layers.{stage}.{block + 1}."))
            elif name + "norm.weight" in own:
                x = run_block(model, x, own, name, scans[index] if scans else CROSS)
                index += 1
            else:
                break
        down = next((key for key in own if key.startswith(f"layers.{stage}.") and key.endswith("reduction.weight")), "")
        if down:
            x = merge(x, own, down.removesuffix(".reduction.weight"))
        elif f"layers.{stage}.downsample.1.weight" in own:
            x = to_last(conv(to_first(x), own, f"layers.{stage}.downsample.1", stride=2, padding=1))
            x = layer_norm(x, own, f"layers.{stage}.downsample.3")
    return layer_norm(x, own, "classifier.norm").mean((1, 2))


def run_block(model: str, x: Tensor, own: State, block: str, kinds: list[str]) -> Tensor:
    normed = layer_norm(x, own, block + "norm")
    mixed = ss2d(model, normed, own, block + "op.", kinds)
    if model == "efficientvmamba":
        local = conv(to_first(normed), own, block + "conv_branch.0", padding=1, groups=x.shape[-1])
        local = to_last(conv(gelu(batch_norm(local, own, block + "conv_branch.1")), own, block + "conv_branch.3"))
        shape = x.shape
        return x + sum(gated(part.flatten(1, 2), own, block + "se").view(shape) for part in (mixed, local))
    x = x + mixed
    if block + "norm2.weight" in own:
        hidden = gelu(linear(layer_norm(x, own, block + "norm2"), own, block + "mlp.fc1"))
        x = x + linear(hidden, own, block + "mlp.fc2")
    return x


def ss2d(model: str, x: Tensor, own: State, op: str, kinds: list[str]) -> Tensor:
    inner = own[op + "out_norm.weight"].shape[0]
    x, z = (
        (x @ own[op + "in_proj.weight"].T).split(inner, -1)
        if model != "vmamba"
        else (x @ own[op + "in_proj.weight"].T, None)
    )
    x = silu(to_last(conv(to_first(x), own, op + "conv2d", padding=1, groups=inner)))
    batch, height, width, _ = x.shape
    total = torch.zeros_like(x)
    for k in range(4):
        if model == "efficientvmamba":
            row, column, down = SKIPPING[k]
            padded = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))[:, row::2, column::2]
            part = padded.transpose(1, 2) if down else padded
            y = select_and_scan(part.flatten(1, 2), own, op, k).view(part.shape)
            back = torch.zeros(batch, height + height % 2, width + width % 2, inner, dtype=x.dtype)
            back[:, row::2, column::2] = y.transpose(1, 2) if down else y
            total = total + back[:, :height, :width]
            continue
        cells = walk(kinds[k], (height, width))
        flat = torch.cat([x.flatten(1, 2), torch.zeros(batch, 1, inner, dtype=x.dtype)], 1)
        y = select_and_scan(flat[:, [height * width if cell is None else cell for cell in cells]], own, op, k)
        back = torch.zeros(batch, height * width, inner, dtype=x.dtype)
        for t, cell in enumerate(cells):
            if cell is not None:
                back[:, cell] = y[:, t]
        total = total + (gated(back, own, op + "multi_scan.attn") if model == "localvmamba" else back).view_as(total)
    y = layer_norm(total, own, op + "out_norm")
    return (y if z is None else y * silu(z)) @ own[op + "out_proj.weight"].T


def select_and_scan(x: Tensor, own: State, op: str, k: int) -> Tensor:
    inner = x.shape[-1]
    A_log, D = own[op + "A_logs"][k * inner : (k + 1) * inner], own[op + "Ds"][k * inner : (k + 1) * inner]
    rank, state = own[op + "dt_projs_weight"].shape[2], A_log.shape[1]
    low, B, C = (x @ own[op + "x_proj_weight"][k].T).split([rank, state, state], -1)
    step = softplus(low @ own[op + "dt_projs_weight"][k].T + own[op + "dt_projs_bias"][k])
    return scan(x, step, A_log, B, C, D)


def inverted(x: Tensor, own: State, block: str) -> Tensor:
    y = batch_norm(conv(x, own, block + "conv_pw.0"), own, block + "conv_pw.1").clamp(min=0)
    y = conv(y, own, block + "conv_dw.0", padding=1, groups=y.shape[1])
    y = batch_norm(y, own, block + "conv_dw.1").clamp(min=0)
    gate = conv(
        conv(y.mean((2, 3), keepdim=True), own, block + "se.conv_reduce").clamp(min=0), own, block + "se.conv_expand"
    )
    y = y / (1 + torch.exp(-gate))
    return batch_norm(conv(y, own, block + "conv_pw2.0"), own, block + "conv_pw2.1")


def merge(x: Tensor, own: State, down: str) -> Tensor:
    x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
    cells = [x[:, row::2, column::2] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))]
    return layer_norm(torch.cat(cells, -1), own, f"{down}.norm") @ own[f"{down}.reduction.weight"].T


def plain_state(*, dim: int, depth: int, side: int, stem_convs: int, local: bool) -> State:
    draw, inner, rank = Draw(2), 2 * dim, math.ceil(dim / 16)
    draw.weight("patch_embed.stem.0.weight", 64, 3, 7, 7)
    draw.norm("patch_embed.stem.1", 64, batch=True)
    for number in range(stem_convs):
        draw.weight(f"patch_embed.convs.{3 * number}.weight", 64, 64, 3, 3)
        draw.norm(f"patch_embed.convs.{3 * number + 1}", 64, batch=True)
    draw.linear("patch_embed.projection", dim, 64, 8, 8)
    draw("pos_embed", 1, side * side, dim)
    for layer in range(depth):
        mamba = f"layers.{layer}.mamba."
        draw.norm(f"layers.{layer}.norm", dim)
        draw.linear(mamba + "in_proj", 2 * inner, dim)
        draw.linear(mamba + "conv2d", inner, 1, 7, 7)
        draw.weight(mamba + "x_proj.weight", rank + 2 * N, inner)
        draw.weight(mamba + "dt_proj.weight", inner, rank)
        draw(mamba + "dt_proj.bias", inner, scale=0.5, shift=-1)
        draw(mamba + "A_log", inner, N, scale=0.7, shift=1)
        draw(mamba + "D", inner)
        draw(mamba + "direction_Bs", 5, N)
        draw.linear(mamba + "out_proj", dim, inner)
        if local and layer == 0:
            draw.weight("layers.0.dw.0.weight", dim, 1, 3, 3)
            draw.norm("layers.0.dw.1", dim, batch=True)
    draw.norm("ln1", dim)
    return draw.state


def plain_features(state: State, images: Tensor) -> Tensor:
    own = {key: value.double() for key, value in state.items()}
    x = batch_norm(conv(images.double(), own, "patch_embed.stem.0", stride=2, padding=3), own, "patch_embed.stem.1")
    x = x.clamp(min=0)
    for number in (0, 3):
        if f"patch_embed.convs.{number}.weight" in own:
            x = conv(x, own, f"patch_embed.convs.{number}", padding=1)
            x = batch_norm(x, own, f"patch_embed.convs.{number + 1}").clamp(min=0)
    x = F.pad(x, (0, -x.shape[3] % 8, 0, -x.shape[2] % 8))
    maps = conv(x, own, "patch_embed.projection", stride=8)
    height, width = maps.shape[2:]
    table, side = own["pos_embed"], math.isqrt(own["pos_embed"].shape[1])
    if (height, width) != (side, side):
        image = table.view(1, side, side, -1).permute(0, 3, 1, 2)
        table = F.interpolate(image, size=(height, width), mode="bicubic", align_corners=False).flatten(2).mT
    x = maps.flatten(2).mT + table
    for layer in range(1 + max(int(key.split(".")[1]) for key in own if key.startswith("layers."))):
        x = x + plain_mixer(layer_norm(x, own, f"layers.{layer}.norm"), own, f"layers.{layer}.mamba.", height, width)
        if f"layers.{layer}.dw.0.weight" in own:
            maps = conv(x.mT.unflatten(-1, (height, width)), own, f"layers.{layer}.dw.0", padding=1, groups=x.shape[-1])
            x = gelu(batch_norm(maps, own, f"layers.{layer}.dw.1")).flatten(2).mT
    return layer_norm(x, own, "ln1", eps=1e-6).mean(1)


def plain_mixer(x: Tensor, own: State, mamba: str, height: int, width: int) -> Tensor:
    u, z = linear(x, own, mamba + "in_proj").chunk(2, -1)
    u = conv(u.mT.unflatten(-1, (height, width)), own, mamba + "conv2d", padding=3, groups=u.shape[-1])
    u = silu(u.flatten(2).mT)
    rank = own[mamba + "dt_proj.weight"].shape[1]
    low, B, C = (u @ own[mamba + "x_proj.weight"].T).split([rank, N, N], -1)
    step = softplus(linear(low, own, mamba + "dt_proj") + own[mamba + "dt_proj.bias"])
    rows = [(r, c) for r in range(height) for c in (range(width) if r % 2 == 0 else reversed(range(width)))]
    columns = [(r, c) for c in range(width) for r in (range(height) if c % 2 == 0 else reversed(range(height)))]
    total = torch.zeros_like(u)
    for path in (rows, rows[::-1], columns, columns[::-1]):
        moves = [0]
        for (r0, c0), (r1, c1) in pairwise(path):
            moves.append({(0, 1): 1, (0, -1): 2, (-1, 0): 3, (1, 0): 4}[r1 - r0, c1 - c0])
        order = [r * width + c for r, c in path]
        y = scan(u[:, order], step, own[mamba + "A_log"], B + own[mamba + "direction_Bs"][moves], C, own[mamba + "D"])
        for t, cell in enumerate(order):
            total[:, cell] += y[:, t]
    return linear(total * silu(z), own, mamba + "out_proj")


def conv(x: Tensor, own: State, name: str, *, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
    bias = own.get(f"{name}.bias")
    return F.conv2d(x, own[f"{name}.weight"], bias, stride=stride, padding=padding, groups=groups)


def linear(x: Tensor, own: State, name: str) -> Tensor:
    return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def to_last(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1)


def to_first(maps: Tensor) -> Tensor:
    return maps.permute(0, 3, 1, 2)
