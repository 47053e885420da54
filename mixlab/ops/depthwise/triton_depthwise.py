"""Depthwise convolution of tokens (B, L, C) as they lie, and the gradient of its windows; README.md has the reasons.

A program takes some channels, one to a thread, and walks over maps or parts of them. A row of a map is a tuple of
tensors of channels, one for each column: a number is loaded once, and all that is multiplied is in registers.
"""

# mypy: disallow-untyped-defs=False
# ruff: noqa: RUF005

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import in_rows

CHANNELS = 64  # of a program
CHANNELS_OF_THREAD = 1
WHOLE_TOKENS = 16  # of maps whose rows are unrolled: seconds of compiling for each size
WHOLE_COLS = 14  # rows so long are not cut
PART_COLS = 8  # about: of a part of longer rows
STRIP_ROWS = 8  # of a part of a map, at least, where there are few images
AHEAD = 2  # rows that are loaded before they are needed, of maps whose rows are unrolled
WINDOW_ROWS = 2  # that the gradient of the windows takes at a time, where rows are not unrolled
PROGRAMS = 1056  # at most: 8 on each of 132 multiprocessors
WINDOW_PROGRAMS = 1056  # the same for the gradient of the windows, which writes as many partial sums
REGISTERS: int | None = None  # of a thread, at most


@triton.jit
def _float(x):
    """In float32. By bits, since LLVM would keep bfloat16 in pairs and split them again for every product."""
    if x.dtype == tl.bfloat16:
        x = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _load_row(
    x_ptr, row, left, c, H, W, C: tl.constexpr, X_L: tl.constexpr, COLS: tl.constexpr,
    ROLLED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Channels at COLS columns of a row; zero outside the map."""
    x_ptr += (row * W + left) * X_L
    numbers = ()
    for x in tl.static_range(COLS):
        inside = c < C
        if WIDE:
            within = (row >= 0) & (row < H) & (left + x >= 0) & (left + x < W)
            inside = c < tl.where(within, C, 0)
        elif ROLLED:
            inside = c < tl.where((row >= 0) & (row < H), C, 0)
        numbers = numbers + (_float(tl.load(x_ptr + x * X_L, mask=inside, other=0.0)),)
    return numbers


@triton.jit
def _store_row(out_ptr, sums, row, left, c, W, C: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    out_ptr += (row * W + left) * C
    for x in tl.static_range(COLS):
        inside = c < C
        if WIDE:
            inside = c < tl.where(left + x < W, C, 0)
        tl.store(out_ptr + x * C, sums[x].to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _moved_down(rows, following, KH: tl.constexpr):
    moved = ()
    for i in tl.static_range(1, KH):
        moved = moved + (rows[i],)
    return moved + (following,)


@triton.jit
def _convolved(
    rows, taps, zero, FIRST: tl.constexpr, NUM_ROWS: tl.constexpr, PAD_W: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, COLS: tl.constexpr, FLIPPED: tl.constexpr,
):  # fmt: skip
    """A row of outputs; the first row of the window lies on rows[FIRST]. What lies beyond rows and columns is zero."""
    sums = ()
    for _x in tl.static_range(COLS):
        sums = sums + (zero,)
    for i in tl.static_range(KH):
        if (FIRST + i >= 0) and (FIRST + i < NUM_ROWS):
            for j in tl.static_range(KW):
                added = ()
                for x in tl.static_range(COLS):
                    if (x + j + PAD_W >= KW // 2) and (x + j < KW // 2 + COLS + PAD_W):
                        weight = taps[KH * KW - 1 - i * KW - j if FLIPPED else i * KW + j]
                        number = rows[FIRST + i][x + j + PAD_W - KW // 2]
                        added = added + (tl.fma(weight, number, sums[x]),)
                    else:
                        added = added + (sums[x],)
                sums = added
    return sums


@triton.jit
def _with_products(
    sums, rows, douts, FIRST: tl.constexpr, NUM_ROWS: tl.constexpr, PAD_W: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """What a row of outputs adds to the gradient of each tap."""
    added = ()
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            total = sums[i * KW + j]
            if (FIRST + i >= 0) and (FIRST + i < NUM_ROWS):
                for x in tl.static_range(COLS):
                    if (x + j + PAD_W >= KW // 2) and (x + j < KW // 2 + COLS + PAD_W):
                        total = tl.fma(douts[x], rows[FIRST + i][x + j + PAD_W - KW // 2], total)
            added = added + (total,)
    return added


@triton.jit
def _part_of(item, H, W, num_strips, strip_rows, COLS: tl.constexpr, ROLLED: tl.constexpr, WIDE: tl.constexpr):
    """The first token of the item's image, its rows and its first column."""
    left = 0
    begin = 0
    end = H
    if WIDE:
        num_right = (W + COLS - 1) // COLS
        left = item % num_right * COLS
        item = item // num_right
    if ROLLED:
        begin = item % num_strips * strip_rows
        end = tl.minimum(begin + strip_rows, H)
        item = item // num_strips
    return item.to(tl.int64) * (H * W), begin, end, left


@triton.jit(do_not_specialize=["num_items", "H", "W", "num_strips", "strip_rows"])
def _depthwise_kernel(
    x_ptr, taps_ptr, out_ptr, num_items, H, W, num_strips, strip_rows,
    C: tl.constexpr, X_L: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    ROLLED: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr, AHEAD: tl.constexpr, FLIPPED: tl.constexpr,
):  # fmt: skip
    """x (B, L, C) with X_L numbers from token to token, taps (KH KW, C) in float32 -> (B, L, C).

    Output rows one after the other. Of a small map, all ROWS rows are unrolled, and products with what lies outside are
    left out. Else (ROLLED) KH rows move down the map, and what lies outside is zero.
    """
    PAD_W: tl.constexpr = KW // 2 if WIDE else 0
    SEEN: tl.constexpr = COLS + 2 * PAD_W  # columns
    LEAD: tl.constexpr = KH // 2 + AHEAD  # rows that are loaded before the first output row begins
    BLOCKS: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    height = H if ROLLED else ROWS
    width = W if WIDE else COLS
    c = tl.program_id(0) % BLOCKS * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0) // BLOCKS
    zero = tl.zeros((CHANNELS,), tl.float32)
    taps = ()
    for tap in tl.static_range(KH * KW):
        taps = taps + (tl.load(taps_ptr + tap * C + c, mask=c < C, other=0.0),)
    for further in range(0, num_items - first, tl.num_programs(0) // BLOCKS):
        token, begin, end, left = _part_of(first + further, height, width, num_strips, strip_rows, COLS, ROLLED, WIDE)
        map_ptr, out_map_ptr = x_ptr + token * X_L + c, out_ptr + token * C + c
        rows = ()
        if ROLLED:
            for i in tl.static_range(KH):
                row = begin + i - KH // 2 - 1
                loaded = _load_row(map_ptr, row, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
                rows = rows + (loaded,)
            row = begin + KH // 2
            following = _load_row(map_ptr, row, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
            for y in range(begin, end):
                rows = _moved_down(rows, following, KH)
                row = y + KH // 2 + 1
                following = _load_row(map_ptr, row, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
                sums = _convolved(rows, taps, zero, 0, KH, PAD_W, KH, KW, COLS, FLIPPED)
                _store_row(out_map_ptr, sums, y, left, c, width, C, COLS, WIDE)
        else:
            for r in tl.static_range(LEAD):
                if r < ROWS:
                    loaded = _load_row(map_ptr, r, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
                    rows = rows + (loaded,)
            for r in tl.static_range(ROWS):
                if r + LEAD < ROWS:
                    loaded = _load_row(map_ptr, r + LEAD, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
                    rows = rows + (loaded,)
                sums = _convolved(rows, taps, zero, r - KH // 2, ROWS, PAD_W, KH, KW, COLS, FLIPPED)
                _store_row(out_map_ptr, sums, r, left, c, width, C, COLS, WIDE)


@triton.jit(do_not_specialize=["num_items", "H", "W", "num_strips", "strip_rows"])
def _windows_kernel(
    x_ptr, dout_ptr, partial_ptr, num_items, H, W, num_strips, strip_rows,
    C: tl.constexpr, X_L: tl.constexpr, DOUT_L: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, ROLLED: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Gradient of the windows from the program's maps: its part of (programs, KH KW, C).

    Walks as forward does, but if ROLLED it takes ROWS rows of outputs at a time and loads all rows that they see: rows
    that move down in a loop beside so many sums are held several times by LLVM, and spilt.
    """
    PAD_W: tl.constexpr = KW // 2 if WIDE else 0
    SEEN: tl.constexpr = COLS + 2 * PAD_W
    LEAD: tl.constexpr = KH // 2 + AHEAD
    BLOCKS: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    height = H if ROLLED else ROWS
    width = W if WIDE else COLS
    c = tl.program_id(0) % BLOCKS * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0) // BLOCKS
    sums = ()
    for _tap in tl.static_range(KH * KW):
        sums = sums + (tl.zeros((CHANNELS,), tl.float32),)
    for further in range(0, num_items - first, tl.num_programs(0) // BLOCKS):
        token, begin, end, left = _part_of(first + further, height, width, num_strips, strip_rows, COLS, ROLLED, WIDE)
        map_ptr, dmap_ptr = x_ptr + token * X_L + c, dout_ptr + token * DOUT_L + c
        if ROLLED:
            for y in range(begin, end, ROWS):
                rows = ()
                for r in tl.static_range(ROWS + 2 * (KH // 2)):
                    row = y + r - KH // 2
                    loaded = _load_row(map_ptr, row, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
                    rows = rows + (loaded,)
                for r in tl.static_range(ROWS):
                    douts = _load_row(dmap_ptr, y + r, left, c, end, width, C, DOUT_L, COLS, ROLLED, WIDE)
                    sums = _with_products(sums, rows, douts, r, r + KH, PAD_W, KH, KW, COLS)
        else:
            rows = ()
            dfollowing = _load_row(dmap_ptr, begin, left, c, height, width, C, DOUT_L, COLS, ROLLED, WIDE)
            for r in tl.static_range(LEAD):
                if r < ROWS:
                    loaded = _load_row(map_ptr, r, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
                    rows = rows + (loaded,)
            for r in tl.static_range(ROWS):
                if r + LEAD < ROWS:
                    loaded = _load_row(map_ptr, r + LEAD, left - PAD_W, c, height, width, C, X_L, SEEN, ROLLED, WIDE)
                    rows = rows + (loaded,)
                douts = dfollowing
                if r + 1 < ROWS:
                    dfollowing = _load_row(dmap_ptr, r + 1, left, c, height, width, C, DOUT_L, COLS, ROLLED, WIDE)
                sums = _with_products(sums, rows, douts, r - KH // 2, ROWS, PAD_W, KH, KW, COLS)
    partial_ptr += tl.program_id(0) // BLOCKS * (KH * KW * C) + c
    for tap in tl.static_range(KH * KW):
        tl.store(partial_ptr + tap * C, sums[tap], mask=c < C)


class Walk(NamedTuple):
    """How maps are divided among programs."""

    num_items: int  # parts of all maps
    num_strips: int  # of a map, one below the other
    strip_rows: int
    num_cols: int  # of a part
    rolled: bool
    num_blocks: int  # of channels
    channels: int  # of a block
    num_warps: int

    def num_programs(self, most: int) -> int:
        """For each block of channels."""
        return max(1, min(self.num_items, most // self.num_blocks))


def walk_over(batch: int, channels: int, height: int, width: int, window_height: int) -> Walk:
    longest = PART_COLS if window_height > 1 else 2 * PART_COLS
    cols = width if width <= WHOLE_COLS else even_share(width, longest)
    rolled = height > 1 and height * cols > WHOLE_TOKENS
    block = min(CHANNELS, triton.next_power_of_2(channels))
    num_blocks, num_parts = -(-channels // block), batch * -(-width // cols)
    wanted = PROGRAMS // (num_blocks * num_parts) if rolled else 1
    rows = even_share(height, max(STRIP_ROWS, -(-height // max(1, wanted)))) if rolled else height
    num_strips = -(-height // rows)
    warps = max(1, block // (32 * CHANNELS_OF_THREAD))
    return Walk(num_parts * num_strips, num_strips, rows, cols, rolled, num_blocks, block, warps)


def even_share(length: int, most: int) -> int:
    """Of the fewest parts that are no longer than `most`, all of one length but the last."""
    return -(-length // -(-length // most))


def depthwise_forward(tokens: Tensor, taps: Tensor, height: int, width: int, window: tuple[int, int]) -> Tensor:
    """tokens (B, L, C) and taps (kh kw, C) -> (B, L, C)."""
    return _convolve(tokens, taps, height, width, window, flipped=False)


def depthwise_backward(
    dout: Tensor, tokens: Tensor, taps: Tensor, height: int, width: int, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Gradients of the tokens, and of the windows in float32 (kh kw, C), whose parts are added in a fixed order."""
    dout, tokens = in_rows(dout), in_rows(tokens)
    batch, _, channels = tokens.shape
    walk = walk_over(batch, channels, height, width, window[0])
    num_programs = walk.num_programs(WINDOW_PROGRAMS)
    partial = torch.empty(num_programs, *taps.shape, dtype=torch.float32, device=tokens.device)
    _windows_kernel[(num_programs * walk.num_blocks,)](
        tokens, dout, partial, walk.num_items, height, width, walk.num_strips, walk.strip_rows,
        C=channels, X_L=tokens.stride(1), DOUT_L=dout.stride(1), KH=window[0], KW=window[1],
        ROWS=WINDOW_ROWS if walk.rolled else height, COLS=walk.num_cols, ROLLED=walk.rolled, WIDE=walk.num_cols < width,
        CHANNELS=walk.channels, AHEAD=AHEAD, num_warps=walk.num_warps, maxnreg=REGISTERS,
    )  # fmt: skip
    return _convolve(dout, taps, height, width, window, flipped=True), partial.sum(0)


def _convolve(
    tokens: Tensor, taps: Tensor, height: int, width: int, window: tuple[int, int], *, flipped: bool
) -> Tensor:
    tokens = in_rows(tokens)
    batch, _, channels = tokens.shape
    walk = walk_over(batch, channels, height, width, window[0])
    out = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    _depthwise_kernel[(walk.num_programs(PROGRAMS) * walk.num_blocks,)](
        tokens, taps, out, walk.num_items, height, width, walk.num_strips, walk.strip_rows,
        C=channels, X_L=tokens.stride(1), KH=window[0], KW=window[1],
        ROWS=0 if walk.rolled else height, COLS=walk.num_cols, ROLLED=walk.rolled, WIDE=walk.num_cols < width,
        CHANNELS=walk.channels, AHEAD=AHEAD, FLIPPED=flipped, num_warps=walk.num_warps, maxnreg=REGISTERS,
    )  # fmt: skip
    return out
