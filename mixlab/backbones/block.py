"""One layer: add, normalise, mix between tokens; then, in transformers, add, normalise, and an MLP on each token."""

from typing import Literal

import torch
import torch.nn.functional as F
from timm.layers import DropPath, drop_path
from torch import Tensor, nn
from torch.fx import wrap
from torch.utils.checkpoint import checkpoint

from mixlab.mixers import Grid, MixerConfig, Mixing, TokenMixer
from mixlab.ops.add_norm.op import Branch, Scaled, add_norm, adds_in_kernel, whole
from mixlab.ops.linear import Linear

for leaf in ("add_norm", "dropped", "whole"):
    wrap(leaf)
NormKind = Literal["rms", "layer"]


def undecayed(module: nn.Module) -> set[str]:
    """Names of the parameters that weight decay spares: vectors, and what each mixer says of its own."""
    vectors = {name for name, value in module.named_parameters() if value.ndim < 2}
    mixers = ((prefix, part) for prefix, part in module.named_modules() if isinstance(part, TokenMixer))
    return vectors | {f"{prefix}.{name}" for prefix, mixer in mixers for name in mixer.no_weight_decay()}


class AddNorm(nn.Module):
    """Add a branch to the stream and normalise the sum. Adding late lets one kernel do both."""

    def __init__(self, dim: int, kind: NormKind, eps: float | None = None) -> None:
        super().__init__()
        self.eps = eps or {"rms": 1e-5, "layer": 1e-6}[kind]
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if kind == "layer" else None

    def forward(self, branch: Branch, stream: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, D) twice -> the new stream, and its norm in the dtype of the branch."""
        return add_norm(branch, stream, self.weight, self.bias, eps=self.eps)

    def normalise(self, tokens: Tensor) -> Tensor:
        """The norm alone."""
        return self(torch.zeros_like(tokens), tokens)[1]


class Add(nn.Module):
    """In place of an `AddNorm` that was pruned, or whose norm is not wanted: the sum as it is."""

    def forward(self, branch: Branch, stream: Tensor) -> tuple[Tensor, Tensor]:
        total = whole(branch) + stream
        return total, total

    def normalise(self, tokens: Tensor) -> Tensor:
        return tokens


def dropped(branch: Tensor, rate: float) -> Branch:
    """Stochastic depth in training: without the branch in a share of the images, and more of it in the others."""
    if not adds_in_kernel(branch):
        return drop_path(branch, rate, training=True)
    factors = torch.empty(len(branch), dtype=torch.float32, device=branch.device).bernoulli_(1 - rate)
    return Scaled(branch, factors.div_(1 - rate) if rate < 1 else factors)


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = Linear(dim, hidden)
        self.down = Linear(hidden, dim)
        for linear in (self.up, self.down):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class LocalConv(nn.Module):
    """GELU(BatchNorm(3 x 3 depthwise convolution)) of the whole stream, with no way around it (PlainMamba-L1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim, bias=False)
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, branch: Branch, stream: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        branch = whole(branch)
        maps = (branch + stream).mT.unflatten(-1, grid)
        stream = F.gelu(self.norm(self.conv(maps))).flatten(2).mT.to(stream.dtype)
        return torch.zeros_like(branch), stream


class Layer(nn.Module):
    """The state between layers is (branch, stream); the residual stream proper is their sum.

    In training on a GPU, a branch that stochastic depth drops in some images is `Scaled`: the next norm multiplies it.
    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        mixer: MixerConfig,
        norm: NormKind,
        norm_eps: float | None = None,
        mlp_ratio: float,
        drop_path: float,
        local_conv: bool = False,
    ) -> None:
        super().__init__()
        self.norm = AddNorm(dim, norm, norm_eps)
        self.mixer = mixer.build(dim, depth)
        self.mlp_norm = AddNorm(dim, norm, norm_eps) if mlp_ratio else None
        self.mlp = MLP(dim, round(dim * mlp_ratio)) if mlp_ratio else None
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.local_conv = LocalConv(dim) if local_conv else None
        self.grad_checkpointing = False

    def forward(self, branch: Branch, stream: Tensor, grid: Grid) -> tuple[Branch, Tensor]:
        if self.grad_checkpointing:
            return checkpoint(self.step, branch, stream, grid, use_reentrant=False)
        return self.step(branch, stream, grid)

    def step(self, branch: Branch, stream: Tensor, grid: Grid) -> tuple[Branch, Tensor]:
        return self.feed(*self.mix(branch, stream, grid), grid)

    def mix(self, branch: Branch, stream: Tensor, grid: Grid) -> tuple[Branch, Tensor]:
        stream, normed = self.norm(branch, stream)
        return self._dropped(self.mixer(normed, grid)), stream

    def feed(self, branch: Branch, stream: Tensor, grid: Grid) -> tuple[Branch, Tensor]:
        if self.mlp is not None and self.mlp_norm is not None:
            stream, normed = self.mlp_norm(branch, stream)
            branch = self._dropped(self.mlp(normed))
        return (branch, stream) if self.local_conv is None else self.local_conv(branch, stream, grid)

    def _dropped(self, branch: Tensor) -> Branch:
        if isinstance(self.drop_path, DropPath) and self.training:
            return dropped(branch, self.drop_path.drop_prob)
        return self.drop_path(branch)  # of another kind, or none

    def mixing(self, branch: Branch, stream: Tensor, grid: Grid) -> Mixing:
        """The mixing that this layer makes from its input."""
        return self.mixer.prepare(self.norm(branch, stream)[1], grid)[0]
