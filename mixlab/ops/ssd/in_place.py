"""The scan on a CPU where no gradient is recorded: some images and chunks at a time, in buffers that stay in the cache.

The arithmetic is that of `chunked.py`: a matrix inside each chunk, a state between chunks. The last may be shorter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.ssd.chunked import MIN_LOG_DECAY, MIN_LOG_FACTOR, chunk_length, records_gradients
from mixlab.ops.ssd.pool import Pool

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
    share, chunk = heads // groups, chunk or chunk_length(v.shape[1])
    skip = skip.unsqueeze(1).repeat(1, v.shape[3])
    with torch.autocast("cpu", enabled=False):
        for group in range(groups):
            own = slice(group * share, (group + 1) * share)
            reverse = own.start >= heads - num_reverse
            steps = make_steps(dt[:, :, own], A[own], chunk, reverse=reverse)
            for images, scan in block_scans(v, share, v.shape[3], q.shape[3], chunk):
                inputs = (q[images, :, group], k[images, :, group], v[images, :, own])
                scan(*inputs, steps, skip[own], images=images, out=out[images, :, own], reverse=reverse)
    return out.to(dtype)


@dataclass
class Steps:
    """Of all images, in C chunks of T tokens; the last chunk is filled up with steps of zero."""

    dt: Tensor  # (C, B, T, H)
    so_far: Tensor  # log decay since the chunk was entered: (C, B, T, H)
    factor: Tensor  # decay since the middle of the chunk's: (C, B, T, H)
    feed: Tensor  # dt over the factor: (C, B, T, H)
    half: Tensor  # what is left of a state in the middle, and of that at the end: (C, B, 1, H)
    wide: list[list[bool]]  # whether factors leave the range of float32: (C, B)


def make_steps(dt: Tensor, A: Tensor, chunk: int, *, reverse: bool) -> Steps:
    """From dt (B, L, H) and A (H,)."""
    dt = F.pad(dt, (0, 0, 0, -dt.shape[1] % chunk)).unflatten(1, (-1, chunk)).transpose(0, 1)
    so_far = (dt * A).clamp_(min=MIN_LOG_DECAY)
    so_far = so_far.flip(2).cumsum(2).flip(2) if reverse else so_far.cumsum(2)
    half = (so_far[:, :, :1] if reverse else so_far[:, :, -1:]) / 2
    factor = (so_far - half).exp_()
    fits = half.amin((2, 3)) > -WIDEST / 2
    return Steps(dt, so_far, factor, dt / factor, half.exp_(), fits.logical_not_().tolist())


class Piece(NamedTuple):
    """Chunks that follow each other, scanned in one step."""

    start: int  # token
    num_chunks: int
    chunk: int  # tokens

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.start + self.num_chunks * self.chunk)

    def cut(self, tokens: Tensor) -> Tensor:
        """Its tokens (B, c T, ...) as chunks (c, B, T, ...)."""
        return tokens.unflatten(1, self[1:]).transpose(0, 1)


def block_scans(
    like: Tensor, heads: int, width: int, state: int, chunk: int, *, kept: tuple[int, ...] = (), used: int = 0
) -> Iterator[tuple[slice, "BlockScan"]]:
    """Some images of a batch (B, L, ...) at a time, and what scans them; the first block is the largest."""
    batch, length = like.shape[:2]
    most = max(1, torch.get_num_threads() * BLOCK // (heads * length * chunk))
    most = -(-batch // -(-batch // most)) if batch else 1  # blocks of one size: as many buffers again are not needed
    scan = None
    with Pool() as pool:
        for start in range(0, batch, most):
            num = min(most, batch - start)
            if scan is None or num != scan.num_images:
                scan = BlockScan(num, length, heads, width, state, chunk, like, pool, kept=kept, used=used)
            yield slice(start, start + num), scan


class Buffers(NamedTuple):
    """For c chunks of T tokens in each of B images."""

    fed: Tensor  # what tokens feed to others: (c, B, T, H, P)
    read: Tensor  # what they read: (c, B, T, H, P)
    states: Tensor  # before the first chunk and behind each: (c + 1, B, N, H, P)
    weights: Tensor  # (c, B, H, T, T)
    fed_by_head: Tensor  # dt v: (c, B, H, T, P)
    inside: Tensor  # what tokens read of their own chunk: (c, B, H, T, P)
    used: Tensor  # for who scans: (B, c T, ...)


class BlockScan:
    """The scan of some images and the heads of one group, again and again in the same buffers.

    Who scans may have more of them: for each piece, as wide as `kept` says, and one for all, as wide as `used`.
    """

    def __init__(
        self, num: int, length: int, heads: int, width: int, state: int, chunk: int, like: Tensor, pool: Pool, *,
        kept: tuple[int, ...], used: int,
    ) -> None:  # fmt: skip
        self.num_images, self.chunk = num, chunk
        whole, rest = divmod(length, chunk)
        most = max(1, torch.get_num_threads() * BLOCK // (num * heads * chunk * chunk))
        self.pieces = [Piece(start * chunk, min(most, whole - start), chunk) for start in range(0, whole, most)]
        if rest:
            self.pieces.append(Piece(length - rest, 1, rest))
        sizes = list({piece[1:] for piece in self.pieces})
        shapes: list[tuple[int, ...]] = []
        for c, T in sizes:
            by_token, by_head = (c, num, T, heads, width), (c, num, heads, T, width)
            shapes += [by_token, by_token, (c + 1, num, state, heads, width)]
            shapes += [(c, num, heads, T, T), by_head, by_head, (num, c * T, used)]
        shapes += [(num, piece.num_chunks * piece.chunk, each) for piece in self.pieces for each in kept]
        buffers = iter(pool.buffers(like, shapes))
        self.buffers = {size: Buffers(*islice(buffers, len(Buffers._fields))) for size in sizes}
        self.kept = {piece: tuple(islice(buffers, len(kept))) for piece in self.pieces}

    def in_order(self, *, reverse: bool) -> list[Piece]:
        return self.pieces[::-1] if reverse else self.pieces

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, steps: Steps, skip: Tensor, *, images: slice, out: Tensor, reverse: bool
    ) -> None:
        """q, k (B, L, N) and v (B, L, H, P) of these images, skip (H, P); the result goes into `out` (B, L, H, P)."""
        state = None
        for piece in self.in_order(reverse=reverse):
            here = (slice(None), piece.tokens)
            y, state = self.scan(
                piece, q[here], k[here], v[here], steps, skip, images=images, state=state, reverse=reverse
            )
            piece.cut(out[here]).copy_(y)

    def scan(
        self, piece: Piece, q: Tensor, k: Tensor, v: Tensor, steps: Steps, skip: Tensor, *,
        images: slice, state: Tensor | None, reverse: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The tokens of one piece, from the state before it (none: the first in order): what they read, as chunks, and
        the state behind it (none: the last). Both hold until the next piece is scanned."""
        buffers, (q, k) = self.buffers[piece[1:]], (piece.cut(t).contiguous() for t in (q, k))
        goes_on = piece != self.in_order(reverse=reverse)[-1]
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT)
        behind, ahead = (slice(1, None), slice(-1)) if reverse else (slice(-1), slice(1, None))
        tensors = PieceTensors(
            q, k, piece.cut(v), scores.triu_() if reverse else scores.tril_(), skip, state, buffers,
            entries=buffers.states[behind],
            exits=buffers.states[ahead],
            order=range(piece.num_chunks)[:: -1 if reverse else 1],
            entered=ahead if state is None else slice(None),
            feeding=slice(None) if goes_on else behind,
        )  # fmt: skip
        first = piece.start // self.chunk
        chunks = slice(first, first + piece.num_chunks)
        here = (chunks, images, slice(piece.chunk))
        if any(any(row[images]) for row in steps.wide[chunks]):
            _by_matrices(tensors, steps.dt[here].mT, steps.so_far[here].mT, end=0 if reverse else -1)
        else:
            _by_factors(tensors, *(t[here].unsqueeze(-1) for t in (steps.feed, steps.factor, steps.half)))
        return buffers.read, tensors.exits[tensors.order[-1]] if goes_on else None


@dataclass
class PieceTensors:
    """Of one piece: c chunks of T tokens."""

    q: Tensor  # (c, B, T, N)
    k: Tensor
    v: Tensor  # (c, B, T, H, P)
    scores: Tensor  # (c B, T, T)
    skip: Tensor  # (H, P)
    state: Tensor | None  # before the first chunk: (B, N, H, P)
    buffers: Buffers
    entries: Tensor  # the states with which chunks are entered: (c, B, N, H, P)
    exits: Tensor
    order: range  # of the chunks
    entered: slice  # those that begin with a state: all, or all but the first
    feeding: slice  # those whose state is read: all, or all but the last


def _by_factors(piece: PieceTensors, feed: Tensor, factor: Tensor, half: Tensor) -> None:
    """The decay between two tokens is the quotient of their factors, so one matrix, the scores, serves all heads.

    Factors are those since the middle of the chunk's decay, e^h: a state decays by e^h to there and by e^h to the end.
    Entries are states as they are in the middle of their chunks.
    """
    if piece.state is not None:
        torch.mul(piece.state, half[piece.order[0]], out=piece.entries[piece.order[0]])
    fed, read = torch.mul(piece.v, feed, out=piece.buffers.fed), piece.buffers.read
    torch.bmm(piece.scores, _matrices(fed), out=_matrices(read))
    if len(fed[piece.feeding]):
        k = piece.k[piece.feeding].flatten(0, 1)
        torch.bmm(k.mT, _matrices(fed[piece.feeding]), out=_matrices(piece.exits[piece.feeding]))
    chunks = range(len(fed))
    entered, feeding = chunks[piece.entered], chunks[piece.feeding]
    for place, chunk in enumerate(piece.order):
        if chunk in feeding:
            after = piece.exits[chunk].add_(piece.entries[chunk]) if chunk in entered else piece.exits[chunk]
            after.mul_(half[chunk])
            if place + 1 < len(chunks):
                after.mul_(half[piece.order[place + 1]])
    if entered:
        rows = _matrices(read[piece.entered])
        states = _matrices(piece.entries[piece.entered])
        torch.baddbmm(rows, piece.q[piece.entered].flatten(0, 1), states, out=rows)
    read.mul_(factor).addcmul_(piece.v, piece.skip)


def _by_matrices(piece: PieceTensors, dt: Tensor, so_far: Tensor, *, end: int) -> None:
    """For decays so strong that factors would leave the range of float32: a matrix for each head. dt and the log decay
    since the chunk was entered are (c, B, H, T); its token `end` comes last."""
    v, exits, entries, buffers = piece.v, piece.exits, piece.entries, piece.buffers
    if piece.state is not None:
        entries[piece.order[0]].copy_(piece.state)
    weights = _decay_(torch.sub(so_far[..., :, None], so_far[..., None, :], out=buffers.weights)).flatten(0, 1)
    fed = torch.mul(v.transpose(2, 3), dt.unsqueeze(-1), out=buffers.fed_by_head)
    weights.mul_(piece.scores.unsqueeze(1))
    torch.bmm(weights.flatten(0, 1), fed.flatten(0, 2), out=buffers.inside.flatten(0, 2))
    read = torch.addcmul(buffers.inside.transpose(2, 3), v, piece.skip, out=buffers.read)
    if len(v[piece.feeding]):
        kept = _decay_(so_far[..., end, None] - so_far).mul_(dt).mT.unsqueeze(-1)  # (c, B, T, H, 1)
        left = torch.mul(v[piece.feeding], kept[piece.feeding], out=buffers.fed[piece.feeding])
        torch.bmm(piece.k[piece.feeding].flatten(0, 1).mT, _matrices(left), out=_matrices(exits[piece.feeding]))
    passed = _decay_(so_far.clone()).mT.unsqueeze(-1)  # of the state with which the chunk was entered: (c, B, T, H, 1)
    entered, feeding = (range(len(v))[chosen] for chosen in (piece.entered, piece.feeding))
    for chunk in piece.order:
        if chunk in entered and chunk in feeding:
            exits[chunk].addcmul_(entries[chunk], passed[chunk, :, end, None])
    if entered:
        from_states = buffers.fed[piece.entered]
        states = _matrices(entries[piece.entered])
        torch.bmm(piece.q[piece.entered].flatten(0, 1), states, out=_matrices(from_states))
        read[piece.entered].addcmul_(from_states, passed[piece.entered])


def _matrices(t: Tensor) -> Tensor:
    """(c, B, rows, H, P), contiguous -> (c B, rows, H P)."""
    return t.view(-1, t.shape[2], t.shape[3] * t.shape[4])


def _decay_(log_decay: Tensor) -> Tensor:
    """The factor of a log decay, in its place; where the sign says that a token lies ahead, some finite number."""
    return log_decay.clamp_(MIN_LOG_FACTOR, 0.0).exp_()
