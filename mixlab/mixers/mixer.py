"""The one idea: a token mixer is a linear map over tokens that you can run or look at, and both are the same map."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mixlab.errors import InputError

ALL = slice(None)
Grid = tuple[int, int]


class Mixing(ABC):
    """A linear map over tokens, made from one input. Contract: apply() == matrix() @ values, values and gradients."""

    values: Tensor  # (B, H, L, P): what is mixed

    @abstractmethod
    def matrix(self, heads: slice = ALL) -> Tensor:
        """The explicit map (B, h, L, L) of the chosen heads, O(L²): to look at."""

    @abstractmethod
    def apply(self) -> Tensor:
        """The mixed values (B, H, L, P), fast: to run."""

    def rows(self, tokens: Sequence[int]) -> Tensor:
        """Rows of the matrices of all heads (B, H, n, L), with one matrix in memory at a time."""
        wanted = list(tokens)
        return torch.cat([self.matrix(slice(h, h + 1))[:, :, wanted] for h in range(self.num_heads)], dim=1)

    def sides(self, head: int) -> tuple[bool, bool]:
        """Whether a head sees earlier tokens (the matrix below its diagonal) and later ones (above)."""
        return True, True

    def rank_bound(self, rows: range, columns: range) -> int:
        """What theory says of the rank of one block of any head's matrix: at most its shorter side, and less where the
        mixing is made of thin factors. `mixlab rank` checks every block that it measures against it."""
        return min(len(rows), len(columns))

    @property
    def num_heads(self) -> int:
        return self.values.shape[1]

    @property
    def num_padding(self) -> int:
        """Tokens at the end that only pad a grid to whole windows."""
        return 0


class TokenMixer(nn.Module, ABC):
    """A module around one mixing: everything before and after it is token-wise."""

    # Parameters that hold one vector per direction or scan, and decay no more than vectors do; parts may have them too.
    stacked: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def prepare(self, x: Tensor, grid: Grid) -> tuple[Mixing, Tensor | None]:
        """Project tokens (B, L, D) and split them into heads; the second part bypasses the mixing (gates)."""

    @abstractmethod
    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        """Mixed values (B, H, L, P) back to tokens (B, L, D)."""

    def no_weight_decay(self) -> set[str]:
        """Names of its parameters that weight decay spares: vectors, and those that are `stacked`."""
        vectors = {name for name, value in self.named_parameters() if value.ndim < 2}
        parts = self.named_modules()
        return vectors | {f"{prefix}.{name}".lstrip(".") for prefix, part in parts for name in stacked_in(part)}

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        mixing, bypass = self.prepare(x, grid)
        return self.merge(mixing.apply(), bypass)


def stacked_in(part: nn.Module) -> tuple[str, ...]:
    """What a mixer, or a part of one, says of its own parameters."""
    return tuple(getattr(type(part), "stacked", ()))


@dataclass(frozen=True, kw_only=True)
class MixerConfig(ABC):
    """The configuration of a mixer; `kind` is its name in files and on the command line."""

    kind: ClassVar[str]
    family: ClassVar[str] = ""  # the kind under which results are compared and drawn, where it is not its own
    has_own_norm: ClassVar[bool] = False  # whether it normalises its input itself: no norm stands before it

    @property
    def is_causal(self) -> bool:
        """Whether tokens see only those before them."""
        return False

    @abstractmethod
    def build(self, dim: int, depth: int) -> TokenMixer:
        """A fresh mixer for tokens of width `dim` in a stack of `depth` layers."""

    @abstractmethod
    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        """Multiply-accumulates of the mixing itself (not its projections) for one image, as run."""


def check_sizes(mixer: MixerConfig) -> None:
    """Refuse widths, states and windows below 1, of mixers that have them."""
    for name in ("head_dim", "expand", "state", "conv", "kernel"):
        if (size := getattr(mixer, name, 1)) < 1:
            raise InputError(f"{name} must be at least 1, got {size}")


@torch.no_grad()
def check_mixer(mixer: TokenMixer, dim: int, num_extra: int) -> None:
    """Refuse a mixer whose parts have wrong shapes, and warn of a matrix that is not what runs, by two small images.

    What cannot run here, such as a kernel of a GPU, is left to the first batch.
    """
    name, x = type(mixer).__name__, torch.linspace(-1, 1, 2 * (6 + num_extra) * dim).reshape(2, -1, dim).sin()
    was_training = mixer.training
    try:
        given: Any = mixer.eval().prepare(x, (2, 3))
        pair = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if pair is not given or not isinstance(pair[0], Mixing):
            raise InputError(f"{name}.prepare gives a {type(given).__name__}; return a Mixing and a Tensor or None")
        mixing, bypass = pair
        mixed = mixing.apply()
        _check_shape(f"{type(mixing).__name__}.apply()", mixed, tuple(mixing.values.shape))
        _check_shape(f"{name}.merge", mixer.merge(mixed, bypass), tuple(x.shape))
        matrix = mixing.matrix()
        _check_shape(f"{type(mixing).__name__}.matrix()", matrix, (*mixing.values.shape[:3], mixing.values.shape[2]))
        differs = float((matrix @ mixing.values - mixed).abs().max() / mixed.abs().max().clamp(min=1e-6))
    except InputError:
        raise
    except Exception:
        return
    finally:
        mixer.train(was_training)
    if differs > 0.01:
        warnings.warn(
            f"{type(mixing).__name__}: apply() and matrix() @ values differ by {differs:.0%}; the matrices shown are "
            "not what runs",
            stacklevel=2,
        )


def _check_shape(what: str, given: object, shape: tuple[int, ...]) -> None:
    if not isinstance(given, Tensor):
        raise InputError(f"{what} gives a {type(given).__name__}; return a tensor {shape}")
    if tuple(given.shape) != shape:
        raise InputError(f"{what} gives {tuple(given.shape)} where {shape} is needed")


def overlap(rows: range, columns: range) -> bool:
    """Whether a block touches the diagonal, where a triangle keeps full rank."""
    return rows.start < columns.stop and columns.start < rows.stop


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, L, H P) -> (B, H, L, P)."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, L, P) -> (B, L, H P)."""
    return x.transpose(1, 2).flatten(2)


def num_heads_of(width: int, head_dim: int) -> int:
    if width % head_dim:
        below = width // head_dim * head_dim
        raise InputError(f"width {width} is not a multiple of head_dim {head_dim}; try width {below or head_dim}")
    return width // head_dim


def causal_mask(length: int, device: torch.device) -> Tensor:
    """True where token i may see token j: (L, L)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()
