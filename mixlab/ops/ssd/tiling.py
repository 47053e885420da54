"""How the kernels cut a sequence, and what they can take. Knows no Triton: the dispatch asks before one is loaded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mixlab.ops.backend import SHARED_BYTES, kernels_run

SIZES = (16, 32, 64, 128)  # of P and N: powers of two, and at least the 16 of a matrix instruction
DTYPES = (torch.float32, torch.bfloat16)
MAX_LENGTH = 65_536
PAIR_TAIL = 32  # tokens behind one tile that need no state between them
MAX_BATCH = 65_535  # of a grid's last axes
WIDEST_SHARED_BYTES = 131_072  # float32 with 128 x 128 states, half of it in shared memory


@dataclass(frozen=True)
class Tiling:
    """`num_full` tiles of `tile` tokens, then one of `tail` (a power of two, or 0) with the rest of the sequence."""

    tile: int
    num_full: int
    tail: int

    @property
    def count(self) -> int:
        return self.num_full + (self.tail > 0)

    @property
    def is_pair(self) -> bool:
        """Whether it is a tile and a short tail, which a program takes at once."""
        return self.num_full == 1 and 0 < self.tail <= PAIR_TAIL

    @property
    def num_states(self) -> int:
        """That are kept for the backward pass."""
        return 0 if self.is_pair else self.num_full

    @property
    def padded(self) -> int:
        return self.num_full * self.tile + self.tail


def tiling(length: int, dtype: torch.dtype) -> Tiling:
    """Tiles of 64, the height of a Hopper matrix instruction. Half that in float32, for its registers, and where 32 +
    16 tokens are enough.
    """
    tile = 32 if dtype == torch.float32 or 32 < length <= 48 else 64
    num_full, rest = (0, length) if length <= tile else divmod(length, tile)
    return Tiling(tile, num_full, max(16, 1 << (rest - 1).bit_length()) if rest else 0)


def kernels_take(tokens: Tensor, *, head_dim: int, state: int) -> bool:
    """Whether there are kernels for tokens (B, L, ...) of these sizes and their GPU; the rest is for plain torch."""
    batch, length = tokens.shape[:2]
    return (
        tokens.dtype in DTYPES
        and head_dim in SIZES
        and state in SIZES
        and 1 <= batch <= MAX_BATCH
        and 1 <= length <= MAX_LENGTH
        and kernels_run(tokens, shared_bytes=shared_bytes(head_dim, state, tokens.dtype))
    )


def shared_bytes(head_dim: int, state: int, dtype: torch.dtype) -> int:
    """The shared memory that the hungriest kernel needs with one stage of loads, as tests/unit/ops compiles them."""
    widest = head_dim == state == SIZES[-1]
    return WIDEST_SHARED_BYTES if widest and dtype == torch.float32 else SHARED_BYTES
