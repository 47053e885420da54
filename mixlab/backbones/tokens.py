"""From an image to a sequence of tokens, and back to features by role."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from timm.layers import lecun_normal_, resample_patch_embed
from torch import Tensor, nn
from torch.fx import wrap  # what decides by sizes, which are unknown while torch.fx traces, is one step to it

from mixlab.backbones.positions import PositionResize, PositionTable, like
from mixlab.errors import InputError, check_kind
from mixlab.mixers import Grid
from mixlab.ops.linear import PatchConv

Place = Literal["none", "front", "middle", "back", "spread"]


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """Which extra tokens stand where among the patches, and which of them is the summary of the image.

    none    no extra token; the summary is the mean of the patches
    front   a class token, then `num_registers` registers, then the patches; the summary is the class token, or, with
            `class_token=False`, the mean of the patches
    middle  the class token in the middle of the patches is the summary (Vim). With `front_copy`, as in DinoVim, the
            same token stands in front as well, and only that copy has a position. Without it, the token itself has a
            position if `class_position` is set, as in the supervised Vim.
    back    the class token after all patches is the summary: the only one that sees them all where mixing is causal
    spread  `num_registers` registers, one after each of the first equal runs of patches (Mamba-Reg); the summary is
            their mean
    """

    place: Place = "front"
    num_registers: int = 0
    class_token: bool = True
    front_copy: bool = True
    class_position: bool = False

    def __post_init__(self) -> None:
        if self.place not in get_args(Place):
            raise InputError(f"unknown place {self.place!r} for tokens; choose one of {', '.join(get_args(Place))}")
        if self.place == "spread" and self.num_registers < 1:
            raise InputError(f'place="spread" needs registers to spread, got num_registers={self.num_registers}')
        if self.place in ("none", "middle", "back") and self.num_registers:
            raise InputError(
                f'place="{self.place}" has no registers, got num_registers={self.num_registers}; try place="spread"'
            )

    @property
    def num_learned(self) -> int:
        """Learned tokens; a copy in front is not learned apart."""
        alone = {"none": 0, "middle": 1, "back": 1, "spread": self.num_registers}
        return self.class_token + self.num_registers if self.place == "front" else alone[self.place]

    @property
    def num_extra(self) -> int:
        """Tokens beside the patches."""
        return self.num_learned + self.has_front_copy

    @property
    def has_front_copy(self) -> bool:
        """Whether a class token in the middle also stands in front."""
        return self.place == "middle" and self.front_copy

    @property
    def has_summary_token(self) -> bool:
        """Whether the summary is a class token or registers; without them it is the mean of the patches."""
        return bool(self.summary_rows(self.num_registers + 1))

    @property
    def num_positioned(self) -> int:
        """Extra tokens that have an entry in the position table, before those of the patches."""
        middle = self.front_copy or self.class_position
        return int({"front": self.class_token, "middle": middle, "back": True}.get(self.place, False))

    def positions(self, num_patches: int) -> list[int]:
        """Where the extra tokens stand in the sequence, in rising order."""
        match self.place:
            case "none":
                return []
            case "front":
                return list(range(self.num_learned))
            case "middle":
                front = int(self.front_copy)
                return [0, (num_patches + front) // 2][1 - front :]
            case "back":
                return [num_patches]
            case "spread":
                run = num_patches // (self.num_registers + 1)
                return [(run + 1) * (index + 1) - 1 for index in range(self.num_registers)]

    def insert(self, extra: Tensor, patches: Tensor) -> Tensor:
        """Put the extra tokens (B, E, D) among the patches (B, n, D)."""
        parts, start = [], 0
        for index, position in enumerate(self.positions(patches.shape[1])):
            parts += [patches[:, start : position - index], extra[:, index : index + 1]]
            start = position - index
        return torch.cat([*parts, patches[:, start:]], dim=1)

    def split(self, tokens: Tensor, grid: Grid) -> "Features":
        """Take the sequence (B, L, D) apart again."""
        check_length(tokens.shape[1], grid, self.num_extra)
        positions = self.positions(grid[0] * grid[1])
        extra = torch.stack([tokens[:, i] for i in positions], dim=1) if positions else tokens[:, :0]
        registers = {"front": extra[:, int(self.class_token) :], "spread": extra}.get(self.place, extra[:, :0])
        front = extra[:, 0] if self.has_front_copy else None
        return Features(self.summary(tokens), registers, self.patches(tokens).unflatten(1, grid), grid, front)

    def patches(self, tokens: Tensor) -> Tensor:
        """The patches (B, n, D) of a sequence (B, L, D)."""
        positions = self.positions(tokens.shape[1] - self.num_extra)
        runs = [tokens[:, left + 1 : right] for left, right in pairwise([-1, *positions, tokens.shape[1]])]
        return torch.cat(runs, dim=1) if positions else tokens

    def summary(self, tokens: Tensor) -> Tensor:
        """The summary (B, D) of a sequence (B, L, D)."""
        rows = self.summary_rows(tokens.shape[1] - self.num_extra)
        if rows:
            return torch.stack([tokens[:, row] for row in rows]).mean(0) if len(rows) > 1 else tokens[:, rows[0]]
        return tokens[:, self.num_extra :].mean(1)  # without a summary token, all extra tokens are in front

    def summary_rows(self, num_patches: int) -> list[int]:
        """The rows of a mixing matrix that feed the summary: one for a class token, one per register when spread."""
        positions = self.positions(num_patches)
        front = positions[: int(self.class_token)]
        return {"front": front, "middle": positions[-1:]}.get(self.place, positions)

    def patch_columns(self, num_patches: int) -> list[int]:
        """The places of the patches in the sequence."""
        taken = set(self.positions(num_patches))
        return [index for index in range(num_patches + len(taken)) if index not in taken]


@dataclass
class Features:
    """The tokens of images after some layer, by their roles."""

    summary: Tensor  # (B, D)
    registers: Tensor  # (B, R, D)
    patches: Tensor  # (B, h, w, D)
    grid: Grid
    front: Tensor | None = None  # (B, D): the copy in front of a class token in the middle

    @property
    def anchor(self) -> Tensor:
        """The summary in the width of a patch, (B, D), to compare patches with: the mean of registers side by side."""
        return self.summary if self.summary.shape[-1] == self.patches.shape[-1] else self.registers.mean(1)


class ConvStem(nn.Sequential):
    """Convolutions in front of the patches, at half the resolution (PlainMamba)."""

    width = 64

    def __init__(self, channels: int, num_convs: int) -> None:
        steps: list[nn.Module] = [nn.Conv2d(channels, self.width, kernel_size=7, stride=2, padding=3, bias=False)]
        steps += [nn.BatchNorm2d(self.width), nn.ReLU()]
        for _ in range(num_convs):
            steps += [nn.Conv2d(self.width, self.width, kernel_size=3, padding=1, bias=False)]
            steps += [nn.BatchNorm2d(self.width), nn.ReLU()]
        super().__init__(*steps)


class TokenEmbedding(nn.Module):
    """Cut images into patches, give each its position, and insert the extra tokens."""

    def __init__(
        self,
        *,
        dim: int,
        patch: int,
        stride: int,
        channels: int,
        position_side: int,
        layout: TokenLayout,
        stem_convs: int = 0,
        pads: bool = False,
        position_resize: PositionResize = "dino",
    ) -> None:
        super().__init__()
        self.patch, self.stride, self.channels, self.layout, self.pads = patch, stride, channels, layout, pads
        self.stem: nn.Module = ConvStem(channels, stem_convs) if stem_convs else nn.Identity()
        halved = 2 if stem_convs else 1
        self.project = PatchConv(
            ConvStem.width if stem_convs else channels, dim, kernel_size=patch // halved, stride=stride // halved
        )
        self.positions = PositionTable(dim, position_side, layout.num_positioned, position_resize)
        lecun_normal_(self.project.weight)
        assert self.project.bias is not None
        nn.init.zeros_(self.project.bias)
        self.tokens = self._learned("tokens", layout.num_learned, dim)
        num_own = layout.num_learned if layout.place == "spread" else 0  # spread registers have positions of their own
        self.token_positions = self._learned("token_positions", num_own, dim)

    def _learned(self, name: str, num: int, dim: int) -> Tensor:
        """A table (1, num, D); an empty one is not a parameter, since it would get no gradient."""
        table = torch.empty(1, num, dim)
        if not num:
            self.register_buffer(name, table)
            return table
        return nn.Parameter(nn.init.trunc_normal_(table, std=0.02))

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Images (B, C, H, W) -> tokens (B, L, D) and their grid."""
        patch, stride = (1, 1) if self.pads else (self.patch, self.stride)
        check_images(images, channels=self.channels, patch=patch, stride=stride)
        maps = self.stem(images)
        patches = self.project(pad_to_multiple(maps, self.project.stride[0]) if self.pads else maps)
        height, width = patches.shape[2:]
        front_positions, patch_positions = self.positions((height, width))
        patches = patches.flatten(2).mT + patch_positions
        extra = patches[:, :0]
        if self.layout.num_extra:
            extra = self._extra(front_positions).expand(images.shape[0], -1, -1).to(patches.dtype)
        return self.layout.insert(extra, patches), (height, width)

    @torch.no_grad()
    def resize(self, side: int, patch: int) -> None:
        """Bring the positions to another grid, and the projection to another patch."""
        if patch != self.patch and (self.stride != self.patch or not isinstance(self.stem, nn.Identity)):
            raise InputError(f"patch {self.patch} stays: patches that overlap or follow convolutions are not resampled")
        self.positions.resize(side)
        if patch != self.patch:
            weight, bias = cast("nn.Parameter", self.project.weight), self.project.bias
            self.project = PatchConv(self.channels, weight.shape[0], kernel_size=patch, stride=patch)
            self.project.weight = like(weight, resample_patch_embed(weight, [patch, patch]))
            self.project.bias = bias
            self.patch = self.stride = patch

    def _extra(self, front_positions: Tensor) -> Tensor:
        match self.layout.place:
            case "front":
                classes = front_positions.shape[1]
                return torch.cat([self.tokens[:, :classes] + front_positions, self.tokens[:, classes:]], dim=1)
            case "middle" if self.layout.front_copy:
                return torch.cat([self.tokens + front_positions, self.tokens], dim=1)
            case "middle" if self.layout.class_position:
                return self.tokens + front_positions
            case "back":
                return self.tokens + front_positions
            case "spread":
                return self.tokens + self.token_positions
            case _:
                return self.tokens


def pad_to_multiple(maps: Tensor, side: int) -> Tensor:
    """Zeros at the right and at the bottom of (B, C, H, W), so that squares of this side cover it."""
    height, width = maps.shape[2:]
    return F.pad(maps, (0, -width % side, 0, -height % side))


@wrap
def check_length(num_tokens: int, grid: Grid, num_extra: int) -> None:
    if num_tokens - grid[0] * grid[1] != num_extra:
        found = num_tokens - grid[0] * grid[1]
        raise InputError(f"{found} tokens beside the {grid[0]} x {grid[1]} patches, expected {num_extra}")


@wrap
def check_images(images: Tensor, *, channels: int, patch: int, stride: int | None = None) -> None:
    check_kind(images, Tensor, "give a batch of images, such as mixlab.preprocess(model, FILE)")
    if images.ndim != 4:
        raise InputError(f"images must be (B, {channels}, H, W), got {tuple(images.shape)}")
    batch, found, height, width = images.shape
    if found != channels:
        raise InputError(
            f"images have {found} channels, this backbone takes {channels}; convert them or set channels={found}"
        )
    if batch == 0:
        raise InputError("the batch is empty; give at least one image")
    if not images.is_floating_point():
        raise InputError(f"images are {images.dtype}; scale them to floats and normalise them first")
    for size in (height, width):
        check_side(size, patch=patch, stride=stride or patch)


def check_side(size: int, *, patch: int, stride: int) -> None:
    """Patches must cover an image without a rest."""
    if size >= patch and (size - patch) % stride == 0:
        return
    near = max((size - patch) // stride * stride, 0) + patch
    if stride == patch:
        raise InputError(f"{size}px is not a multiple of patch {patch}; try {near}")
    raise InputError(f"{size}px is not covered by patches of {patch} in steps of {stride}; try {near}")
