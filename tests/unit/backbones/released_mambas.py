"""The released visual Mambas once more, slowly: plain loops in float64 over state dicts with the released names.

Written from the description of the models, sharing nothing with mixlab, to hold mixlab's fast paths against.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
N = 16


class Draw:
    """Random tensors from one seed, under released names."""

    def __init__(self, seed: int) -> None:
        self.generator, self.state = torch.Generator().manual_seed(seed), State()

    def __call__(self, name: str, *shape: int, scale: float = 1.0, shift: float = 0.0) -> None:
        self.state[name] = torch.randn(*shape, generator=self.generator) * scale + shift

    def weight(self, name: str, *shape: int) -> None:
        self(name, *shape, scale=math.prod(shape[1:]) ** -0.5)

    def linear(self, name: str, *shape: int) -> None:
        self.weight(f"{name}.weight", *shape)
        self(f"{name}.bias", shape[0], scale=0.2)

    def norm(self, name: str, dim: int, *, bias: bool = True, batch: bool = False) -> None:
        self(f"{name}.weight", dim, scale=0.2, shift=1)
        if bias:
            self(f"{name}.bias", dim, scale=0.2)
        if batch:
            self(f"{name}.running_mean", dim, scale=0.2)
            self.state[f"{name}.running_var"] = torch.rand(dim, generator=self.generator) + 0.5
            self.state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def gate(self, name: str, dim: int) -> None:
        self.norm(f"{name}.norm", dim)
        self.linear(f"{name}.global_reduce", dim // 8, dim)
        self.linear(f"{name}.channel_select", dim, dim // 8)

    def branch(self, mixer: str, end: str, inner: int, rank: int, A: str, D: str) -> None:
        self.linear(f"{mixer}conv1d{end}", inner, 1, 4)
        self.weight(f"{mixer}x_proj{end}.weight", rank + 2 * N, inner)
        self.weight(f"{mixer}dt_proj{end}.weight", inner, rank)
        self(f"{mixer}dt_proj{end}.bias", inner, shift=-2)
        self(mixer + A, inner, N, scale=0.7, shift=1)
        self(mixer + D, inner)


def isotropic_state(model: str, *, dim: int, depth: int, side: int, registers: int = 12, neck: int = 2) -> State:
    """`model`: vim, mambareg, localvim or localvim_cls."""
    draw, inner, rank = Draw(0), 2 * dim, math.ceil(dim / 16)
    draw.linear("patch_embed.proj", dim, 3, 16, 16)
    draw("pos_embed", 1, side * side + (model in ("vim", "localvim_cls")), dim)
    if model != "localvim":
        draw("cls_token", 1, registers if model == "mambareg" else 1, dim)
    if model == "mambareg":
        draw("pos_embed_cls", 1, registers, dim)
        draw.weight("neck.weight", dim // neck, dim)
        draw.norm("norm_neck", registers * dim // neck, bias=False)
    if model == "localvim":
        draw.state["rope.freqs_cos"], draw.state["rope.freqs_sin"] = rope_tables(dim, side)
    for layer in range(depth):
        mixer = f"layers.{layer}.mixer."
        draw.norm(f"layers.{layer}.norm", dim, bias=False)
        draw.weight(mixer + "in_proj.weight", 2 * inner, dim)
        draw.weight(mixer + "out_proj.weight", dim, inner)
        if model.startswith("local"):
            for number in range(4):
                draw.branch(mixer, f"_{number}", inner, rank, f"A_log_{number}", f"D_{number}")
            draw.gate(mixer + "attn", inner)
        else:
            draw.branch(mixer, "", inner, rank, "A_log", "D")
            draw.branch(mixer, "_b", inner, rank, "A_b_log", "D_b")
    draw.norm("norm_f", dim, bias=False)
    draw.linear("head", 10, dim)
    return draw.state


def rope_tables(dim: int, side: int) -> tuple[Tensor, Tensor]:
    angles = torch.zeros(side, side, dim)
    for row in range(side):
        for column in range(side):
            for pair in range(dim // 4):
                for half, place in ((0, row), (dim // 2, column)):
                    turn = place * 14 / side * 10_000 ** (-4 * pair / dim)
                    angles[row, column, half + 2 * pair : half + 2 * pair + 2] = turn
    return angles.cos().view(-1, dim), angles.sin().view(-1, dim)


def isotropic_features(model: str, state: State, images: Tensor, scans: list[list[str]] | None = None) -> Tensor:
    """What the released classifier reads (B, D)."""
    state = {key: value.double() for key, value in state.items()}
    if model == "localvim":
        images = F.pad(images, (0, -images.shape[3] % 16, 0, -images.shape[2] % 16))
    maps = F.conv2d(images.double(), state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=16)
    grid, x = (maps.shape[2], maps.shape[3]), maps.flatten(2).mT
    count = x.shape[1]
    places: list[int] = []
    if model == "mambareg":
        extra, x = state["cls_token"] + state["pos_embed_cls"], x + state["pos_embed"]
        run = count // (extra.shape[1] + 1)
        parts = []
        for number in range(extra.shape[1]):
            token = extra[:, number : number + 1].expand(len(x), -1, -1)
            parts += [x[:, number * run : (number + 1) * run], token]
            places.append((number + 1) * run + number)
        x = torch.cat([*parts, x[:, extra.shape[1] * run :]], 1)
    elif model == "localvim":
        x = x + state["pos_embed"]
    else:
        places = [count // 2]
        x = torch.cat([x[:, : count // 2], state["cls_token"].expand(len(x), -1, -1), x[:, count // 2 :]], 1)
        x = x + state["pos_embed"]
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("layers."))
    for layer in range(depth):
        if model == "localvim":
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
            x = x * state["rope.freqs_cos"] + turned * state["rope.freqs_sin"]
        own = {key.split(".", 3)[3]: value for key, value in state.items() if key.startswith(f"layers.{layer}.mixer.")}
        xz = rms(x, state[f"layers.{layer}.norm.weight"]) @ own["in_proj.weight"].T
        if scans is None:
            mixed = mamba_branch(xz, own, "", "A_log", "D")
            mixed = (mixed + mamba_branch(xz.flip(1), own, "_b", "A_b_log", "D_b").flip(1)) / 2
        else:
            mixed = local_branches(xz, own, scans[layer], grid, places)
        x = x + mixed @ own["out_proj.weight"].T
    x = rms(x, state["norm_f.weight"])
    if model == "localvim":
        return x.mean(1)
    if model == "mambareg":
        return rms((x[:, places] @ state["neck.weight"].T).flatten(1), state["norm_neck.weight"])
    return x[:, places[0]]


def mamba_branch(xz: Tensor, own: State, end: str, A: str, D: str) -> Tensor:
    """One Mamba-1 branch on a sequence (B, L, 2E), with its gate."""
    x, z = xz.chunk(2, -1)
    taps, convolved = own[f"conv1d{end}.weight"][:, 0], torch.zeros_like(x)
    for t in range(x.shape[1]):
        for back in range(min(4, t + 1)):
            convolved[:, t] += taps[:, 3 - back] * x[:, t - back]
    x = silu(convolved + own[f"conv1d{end}.bias"])
    numbers, rank = x @ own[f"x_proj{end}.weight"].T, own[f"dt_proj{end}.weight"].shape[1]
    step = softplus(numbers[..., :rank] @ own[f"dt_proj{end}.weight"].T + own[f"dt_proj{end}.bias"])
    y = scan(x, step, own[A], numbers[..., rank : rank + N], numbers[..., rank + N :], own[D])
    return y * silu(z)


def local_branches(xz: Tensor, own: State, kinds: list[str], grid: tuple[int, int], places: list[int]) -> Tensor:
    total = torch.zeros(xz.shape[0], xz.shape[1], xz.shape[2] // 2, dtype=xz.dtype)
    patches = [index for index in range(xz.shape[1]) if index not in places]
    for number, kind in enumerate(kinds):
        cells = walk(kind, grid)
        padded = torch.cat([xz[:, patches], torch.zeros_like(xz[:, :1])], 1)  # the last row pads
        sequence = padded[:, [len(patches) if cell is None else cell for cell in cells]]
        for place in places:
            sequence = torch.cat([sequence[:, :place], xz[:, place : place + 1], sequence[:, place:]], 1)
        y = mamba_branch(sequence, own, f"_{number}", f"A_log_{number}", f"D_{number}")
        back = torch.zeros_like(total)
        for place in places:
            back[:, place] = y[:, place]
            y = torch.cat([y[:, :place], y[:, place + 1 :]], 1)
        for t, cell in enumerate(cells):
            if cell is not None:
                back[:, patches[cell]] = y[:, t]
        total += gated(back, own, "attn")
    return total


def walk(kind: str, grid: tuple[int, int]) -> list[int | None]:
    """The cells of a grid in the order of a scan; None for those that only pad it."""
    height, width = grid
    if kind.endswith("_flip"):
        return walk(kind.removesuffix("_flip"), grid)[::-1]
    if kind == "h":
        places = [(row, column) for row in range(height) for column in range(width)]
    elif kind == "v":
        places = [(row, column) for column in range(width) for row in range(height)]
    else:
        side = int(kind[1:])
        places = [
            (top + row, left + column)
            for top in range(0, height, side)
            for left in range(0, width, side)
            for row in range(side)
            for column in range(side)
        ]
    return [row * width + column if row < height and column < width else None for row, column in places]


def scan(u: Tensor, step: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """u, step (B, L, E); A_log (E, N); B, C (B, L, N); D (E)."""
    state, outputs = torch.zeros(u.shape[0], u.shape[2], A_log.shape[1], dtype=u.dtype), []
    for t in range(u.shape[1]):
        state = torch.exp(-step[:, t, :, None] * A_log.exp()) * state
        state = state + (step[:, t] * u[:, t])[..., None] * B[:, t, None]
        outputs.append((state * C[:, t, None]).sum(-1) + D * u[:, t])
    return torch.stack(outputs, 1)


def gated(tokens: Tensor, own: State, name: str) -> Tensor:
    mean = layer_norm(tokens, own, f"{name}.norm").mean(1, keepdim=True)
    hidden = mean @ own[f"{name}.global_reduce.weight"].T + own[f"{name}.global_reduce.bias"]
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    gate = hidden @ own[f"{name}.channel_select.weight"].T + own[f"{name}.channel_select.bias"]
    return tokens / (1 + torch.exp(-gate))


def layer_norm(x: Tensor, own: State, name: str, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps) * own[f"{name}.weight"]
        + own[f"{name}.bias"]
    )


def batch_norm(maps: Tensor, own: State, name: str) -> Tensor:
    mean, var, weight, bias = (own[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    scale = weight / torch.sqrt(var + 1e-5)
    return maps * scale[:, None, None] + (bias - mean * scale)[:, None, None]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(x.clamp(max=20))).where(x <= 20, x)
