"""The scan on a CPU where no gradient is recorded: some images and chunks at a time, in buffers that stay in the cache.

The arithmetic is that of `chunked.py`: a matrix inside each chunk, a state between chunks. The last may be shorter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.ops.ssd.chunked import MIN_LOG_DECAY, MIN_LOG_FACTOR, chunk_length, records_gradients

BLOCK = 2**19  # weights that a thread works on at a time: 2 MiB
WIDEST = 120.0  # log decay of a chunk up to which its root, e^60, leaves room in float32 for what it multiplies


def takes(*tensors: Tensor) -> bool:
    """Whether these are plain tensors on a CPU, and nobody records what becomes of them."""
    return all(t.device.type == "cpu" for t in tensors) and not records_gradients(*tensors)


def ssd_in_place(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int, chunk: int | None = None
) -> Tensor:
    """The scan of `reference.ssd_recurrence`, same arguments; halves are computed in float32."""
    dtype, precise = v.dtype, torch.promote_types(v.dtype, torch.float32)
    q, k, v, dt, A, skip = (t.to(precise) for t in (q, k, v, dt, A, skip))
    out, groups, heads = torch.empty_like(v, memory_format=torch.contiguous_format), q.shape[2], v.shape[2]
    share = heads // groups
    with torch.autocast("cpu", enabled=False):
        for images, scan in block_scans(v, share, v.shape[3], q.shape[3], chunk):
            for group in range(groups):
                own = slice(group * share, (group + 1) * share)
                inputs = (q[images, :, group], k[images, :, group], v[images, :, own], dt[images, :, own])
                reverse = own.start >= heads - num_reverse
                scan(*inputs, A[own], skip[own], out=out[images, :, own], reverse=reverse)
    return out.to(dtype)


def block_scans(
    like: Tensor, heads: int, width: int, state: int, chunk: int | None = None
) -> Iterator[tuple[slice, "BlockScan"]]:
    """Some images of a batch (B, L, ...) at a time, and what scans them; the first block is the largest."""
    batch, length = like.shape[:2]
    chunk = chunk or chunk_length(length)
    most = max(1, torch.get_num_threads() * BLOCK // (heads * length * chunk))
    most = -(-batch // -(-batch // most)) if batch else 1  # blocks of one size: as many buffers again are not needed
    scan = None
    for start in range(0, batch, most):
        num = min(most, batch - start)
        if scan is None or num != scan.num_images:
            scan = BlockScan(num, length, heads, width, state, chunk, like)
        yield slice(start, start + num), scan


@dataclass
class Buffers:
    """For c chunks of T tokens in each of B images."""

    weights: Tensor  # (c, B, H, T, T)
    fed: Tensor  # dt v, by head: (c, B, H, T, P)
    inside: Tensor  # what tokens read of their own chunk: (c, B, H, T, P)
    left: Tensor  # what is left of dt v at the end of the chunk: (c, B, T, H, P)
    states: Tensor  # before the first chunk and behind each: (c + 1, B, N, H, P)
    read: Tensor  # what tokens read of them: (c, B, T, H, P)


class Piece(NamedTuple):
    """Chunks that follow each other, scanned in one step."""

    start: int  # token
    num_chunks: int
    chunk: int  # tokens

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.start + self.num_chunks * self.chunk)


class BlockScan:
    """The scan of some images and the heads of one group, again and again in the same buffers."""

    def __init__(self, num: int, length: int, heads: int, width: int, state: int, chunk: int, like: Tensor) -> None:
        self.num_images = num
        whole, rest = divmod(length, chunk)
        most = max(1, torch.get_num_threads() * BLOCK // (num * heads * chunk * chunk))
        self.pieces = [Piece(start * chunk, min(most, whole - start), chunk) for start in range(0, whole, most)]
        if rest:
            self.pieces.append(Piece(length - rest, 1, rest))
        self.buffers: dict[tuple[int, int], Buffers] = {}
        for c, T in {piece[1:] for piece in self.pieces}:
            by_head, by_token = (c, num, heads, T, width), (c, num, T, heads, width)
            shapes = ((c, num, heads, T, T), by_head, by_head, by_token, (c + 1, num, state, heads, width), by_token)
            self.buffers[c, T] = Buffers(*(like.new_empty(shape) for shape in shapes))

    def in_order(self, *, reverse: bool) -> list[Piece]:
        return self.pieces[::-1] if reverse else self.pieces

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, out: Tensor, reverse: bool
    ) -> None:
        """q, k (B, L, N), v (B, L, H, P), dt (B, L, H), A, skip (H,); the result goes into `out` (B, L, H, P)."""
        state = None
        for piece in self.in_order(reverse=reverse):
            inputs = [t[:, piece.tokens] for t in (q, k, v, dt)] + [A, skip]
            state = self.scan(piece, *inputs, state=state, out=out[:, piece.tokens], reverse=reverse)

    def scan(
        self, piece: Piece, q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *,
        state: Tensor | None, out: Tensor, reverse: bool,
    ) -> Tensor | None:  # fmt: skip
        """The tokens of one piece, from the state before it (none: the first in order) to that behind it (none: the
        last), which holds until the next piece is scanned."""
        q, k, v, dt, out = (t.unflatten(1, piece[1:]).transpose(0, 1) for t in (q, k, v, dt, out))  # (c, B, T, ...)
        goes_on = piece != self.in_order(reverse=reverse)[-1]
        buffers = self.buffers[piece[1:]]
        return _scan_piece(q, k, v, dt, out, A, skip, state, buffers, reverse=reverse, goes_on=goes_on)


@dataclass
class PieceTensors:
    """Of one piece: c chunks of T tokens."""

    q: Tensor  # (c, B, T, N)
    k: Tensor
    v: Tensor  # (c, B, T, H, P)
    dt: Tensor  # (c, B, H, T)
    so_far: Tensor  # log decay since the chunk was entered: (c, B, H, T)
    scores: Tensor  # (c, B, T, T)
    skip: Tensor  # (H,)
    out: Tensor  # (c, B, T, H, P)
    entries: Tensor  # the states with which chunks are entered: (c, B, N, H, P)
    exits: Tensor
    end: int  # the token of a chunk that comes last
    order: range  # of the chunks
    entered: slice  # those that begin with a state: all, or all but the first
    feeding: slice  # those whose state is read: all, or all but the last


def _scan_piece(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, out: Tensor, A: Tensor, skip: Tensor, state: Tensor | None,
    buffers: Buffers, *, reverse: bool, goes_on: bool,
) -> Tensor | None:  # fmt: skip
    """From the state with which the first chunk in scan order is entered to the one after the last, if the scan goes
    on. dt is (c, B, T, H), the rest as in `PieceTensors`."""
    dt = dt.mT
    so_far = (dt * A[:, None]).clamp_(min=MIN_LOG_DECAY)
    so_far = so_far.flip(-1).cumsum(-1).flip(-1) if reverse else so_far.cumsum(-1)
    scores = q @ k.mT
    scores = scores.triu_() if reverse else scores.tril_()
    end, behind, ahead = (0, slice(1, None), slice(-1)) if reverse else (-1, slice(-1), slice(1, None))
    entries, exits, order = buffers.states[behind], buffers.states[ahead], range(len(v))[:: -1 if reverse else 1]
    if state is not None:
        entries[order[0]].copy_(state)
    entered, feeding = ahead if state is None else slice(None), slice(None) if goes_on else behind
    piece = PieceTensors(q, k, v, dt, so_far, scores, skip, out, entries, exits, end, order, entered, feeding)
    scan = _by_factors if so_far.amin() > -WIDEST else _by_matrices
    scan(piece, buffers)
    return exits[order[-1]] if goes_on else None


def _by_factors(piece: PieceTensors, buffers: Buffers) -> None:
    """The decay between two tokens is the quotient of their factors, so one matrix, the scores, serves all heads.

    Factors are those since the middle of the chunk's decay, e^h: a state decays by e^h to there and by e^h to the end.
    """
    half = piece.so_far[..., piece.end, None] / 2
    factor = (piece.so_far - half).exp_()
    half = half.exp_().mT.unsqueeze(-1)  # (c, B, 1, H, 1)
    fed = torch.mul(piece.v, (piece.dt / factor).mT.unsqueeze(-1), out=buffers.left)
    read = buffers.read
    _product(piece.scores, fed.flatten(3), read.flatten(3))
    if len(fed[piece.feeding]):
        _product(piece.k[piece.feeding].mT, fed[piece.feeding].flatten(3), piece.exits[piece.feeding].flatten(3))
    entered, feeding = (range(len(fed))[chosen] for chosen in (piece.entered, piece.feeding))
    for chunk in piece.order:
        if chunk in entered:
            piece.entries[chunk].mul_(half[chunk])
        if chunk in feeding:
            after = piece.exits[chunk].add_(piece.entries[chunk]) if chunk in entered else piece.exits[chunk]
            after.mul_(half[chunk])
    if entered:
        states = piece.entries[piece.entered].flatten(3).flatten(0, 1)
        read[piece.entered].flatten(3).flatten(0, 1).baddbmm_(piece.q[piece.entered].flatten(0, 1), states)
    torch.mul(read, factor.mT.unsqueeze(-1), out=piece.out).addcmul_(piece.v, piece.skip[:, None])


def _by_matrices(piece: PieceTensors, buffers: Buffers) -> None:
    """For decays so strong that factors would leave the range of float32: a matrix for each head."""
    q, v, dt, so_far, out = piece.q, piece.v, piece.dt, piece.so_far, piece.out
    exits, entries = piece.exits, piece.entries
    weights = _decay_(torch.sub(so_far[..., :, None], so_far[..., None, :], out=buffers.weights))
    fed = torch.mul(v.transpose(2, 3), dt.unsqueeze(-1), out=buffers.fed)
    _product(weights.mul_(piece.scores.unsqueeze(2)).flatten(0, 1), fed.flatten(0, 1), buffers.inside.flatten(0, 1))
    torch.addcmul(buffers.inside.transpose(2, 3), v, piece.skip[:, None], out=out)
    if len(v[piece.feeding]):
        kept = _decay_(so_far[..., piece.end, None] - so_far).mul_(dt).mT.unsqueeze(-1)  # (c, B, T, H, 1)
        left = torch.mul(v[piece.feeding], kept[piece.feeding], out=buffers.left[piece.feeding])
        _product(piece.k[piece.feeding].mT, left.flatten(3), exits[piece.feeding].flatten(3))
    passed = _decay_(so_far).mT.unsqueeze(-1)  # of the state with which the chunk was entered: (c, B, T, H, 1)
    entered, feeding = (range(len(v))[chosen] for chosen in (piece.entered, piece.feeding))
    for chunk in piece.order:
        if chunk in entered and chunk in feeding:
            exits[chunk].addcmul_(entries[chunk], passed[chunk, :, piece.end, None])
    if entered:
        read = buffers.read[piece.entered]
        _product(q[piece.entered], entries[piece.entered].flatten(3), read.flatten(3))
        out[piece.entered].addcmul_(read, passed[piece.entered])


def _product(one: Tensor, other: Tensor, out: Tensor) -> None:
    """Of matrices (c, B, ...), into a contiguous `out`."""
    torch.bmm(one.flatten(0, 1), other.flatten(0, 1), out=out.flatten(0, 1))


def _decay_(log_decay: Tensor) -> Tensor:
    """The factor of a log decay, in its place; where the sign says that a token lies ahead, some finite number."""
    return log_decay.clamp_(MIN_LOG_FACTOR, 0.0).exp_()
