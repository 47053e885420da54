"""How the kernels cut a sequence, and what they can take. Knows no Triton: the dispatch asks before one is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mixlab.ops.backend import SHARED_BYTES, kernels_run

SIZES = (16, 32, 64, 128)  # of P and N: powers of two, and at least the 16 of a matrix instruction
DTYPES = (torch.float32, torch.bfloat16)
MAX_LENGTH = 65_536
PAIR_TAIL = 32  # tokens behind one tile that need no state between them
BLOCK = 16  # tokens of a triangle's blocks
TRIANGLE_SIZE = 64  # of P and N
TRIANGLE_LENGTHS = range(33, 209)
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
    def is_triangle(self) -> bool:
        """Whether it is all taken at once, in blocks, without states."""
        return self.tile == BLOCK

    @property
    def is_pair(self) -> bool:
        """Whether it is a tile and a short tail, which a program takes at once."""
        return self.num_full == 1 and 0 < self.tail <= PAIR_TAIL

    @property
    def num_states(self) -> int:
        """That are kept for the backward pass."""
        return 0 if self.is_pair or self.is_triangle else self.num_full

    @property
    def num_planes(self) -> int:
        """Of `triton_steps.make_steps`."""
        return 5 if self.is_triangle else 3

    @property
    def padded(self) -> int:
        return self.num_full * self.tile + self.tail


def tiling(tokens: Tensor, *, head_dim: int, state: int) -> Tiling:
    """How the kernels take tokens (B, L, ...) of these sizes on their GPU."""
    length = int(tokens.shape[1])  # also where the compiler would rather not know it
    if _triangle_takes(tokens, length, head_dim, state):
        return Tiling(BLOCK, -(-length // BLOCK), 0)
    return tiles_of(length, tokens.dtype)


def tiles_of(length: int, dtype: torch.dtype) -> Tiling:
    """Tiles of 64, the height of a Hopper matrix instruction. Half that in float32, for its registers, and where 32 +
    16 tokens are enough.
    """
    tile = 32 if dtype == torch.float32 or 32 < length <= 48 else 64
    num_full, rest = (0, length) if length <= tile else divmod(length, tile)
    return Tiling(tile, num_full, max(16, 1 << (rest - 1).bit_length()) if rest else 0)


_triangles = True


@contextmanager
def without_triangles() -> Iterator[None]:
    """Inside, tiles take what triangles would: to compare the two."""
    global _triangles
    kept, _triangles = _triangles, False
    try:
        yield
    finally:
        _triangles = kept


def _triangle_takes(tokens: Tensor, length: int, head_dim: int, state: int) -> bool:
    fits = tokens.dtype == torch.bfloat16 and head_dim == state == TRIANGLE_SIZE
    if not (_triangles and fits and tokens.is_cuda and length in TRIANGLE_LENGTHS):
        return False
    from mixlab.ops.ssd.cuda_triangle import triangles_run  # here: a machine without a GPU may have no Triton

    return triangles_run(tokens.device, -(-length // BLOCK))


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
