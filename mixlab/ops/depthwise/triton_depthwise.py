"""Depthwise convolution of tokens (B, L, C) on small maps, and the gradient of its windows; README.md has the reasons.

A program takes some channels, one to a thread, and one map after the other. A row of a map is a tuple of tensors of
channels, one for each column: a number is loaded once, and all that is multiplied is in registers.
"""

# mypy: disallow-untyped-defs=False
# ruff: noqa: RUF005

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import in_rows
from mixlab.ops.triton_sums import add_up

CHANNELS = 64  # of a program
WHOLE_TOKENS = 16  # of maps whose rows are unrolled; larger ones would compile for half a minute
AHEAD = 2  # rows that are loaded before they are needed, of maps whose rows are unrolled
WINDOW_ROWS = 2  # that the gradient of the windows takes at a time, where rows are not unrolled
PROGRAMS = 1056  # at most: 8 on each of 132 multiprocessors


@triton.jit
def _float(x):
    """In float32. By bits, since LLVM would keep bfloat16 in pairs and split them again for every product."""
    if x.dtype == tl.bfloat16:
        x = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _load_row(x_ptr, row, c, C: tl.constexpr, X_L: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Channels at the columns of a row; zero above and below the map."""
    inside = c < tl.where((row >= 0) & (row < ROWS), C, 0)
    x_ptr += row * (COLS * X_L)
    numbers = ()
    for x in tl.static_range(COLS):
        numbers = numbers + (_float(tl.load(x_ptr + x * X_L, mask=inside, other=0.0)),)
    return numbers


@triton.jit
def _store_row(out_ptr, sums, row, c, C: tl.constexpr, COLS: tl.constexpr):
    out_ptr += row * (COLS * C)
    for x in tl.static_range(COLS):
        tl.store(out_ptr + x * C, sums[x].to(out_ptr.dtype.element_ty), mask=c < C)


@triton.jit
def _moved_down(rows, following, KH: tl.constexpr):
    moved = ()
    for i in tl.static_range(1, KH):
        moved = moved + (rows[i],)
    return moved + (following,)


@triton.jit
def _convolved(
    rows, taps, zero, FIRST: tl.constexpr, NUM_ROWS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    COLS: tl.constexpr, FLIPPED: tl.constexpr,
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
                    if (x + j >= KW // 2) and (x + j < KW // 2 + COLS):
                        weight = taps[KH * KW - 1 - i * KW - j if FLIPPED else i * KW + j]
                        added = added + (tl.fma(weight, rows[FIRST + i][x + j - KW // 2], sums[x]),)
                    else:
                        added = added + (sums[x],)
                sums = added
    return sums


@triton.jit
def _with_products(
    sums, rows, douts, FIRST: tl.constexpr, NUM_ROWS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """What a row of outputs adds to the gradient of each tap."""
    added = ()
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            total = sums[i * KW + j]
            if (FIRST + i >= 0) and (FIRST + i < NUM_ROWS):
                for x in tl.static_range(COLS):
                    if (x + j >= KW // 2) and (x + j < KW // 2 + COLS):
                        total = tl.fma(douts[x], rows[FIRST + i][x + j - KW // 2], total)
            added = added + (total,)
    return added


@triton.jit(do_not_specialize=["num_maps", "top"])
def _depthwise_kernel(
    x_ptr, taps_ptr, out_ptr, num_maps, top,
    C: tl.constexpr, X_L: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    UNROLLED: tl.constexpr, CHANNELS: tl.constexpr, AHEAD: tl.constexpr, FLIPPED: tl.constexpr,
):  # fmt: skip
    """x (B, L, C) with X_L numbers from token to token, taps (KH KW, C) in float32 -> (B, L, C).

    Output rows one after the other. UNROLLED, products with what lies outside are left out. Else KH rows move down the
    map from its `top`, row 0, and what lies outside is zero. Were `top` a constant, so were the rows above it, and
    Triton 3.6 takes registers that shift along from one constant for that constant.
    """
    LEAD: tl.constexpr = KH // 2 + AHEAD  # rows that are loaded before the first output row begins
    BLOCKS: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    c = tl.program_id(0) % BLOCKS * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0) // BLOCKS
    zero = tl.zeros((CHANNELS,), tl.float32)
    taps = ()
    for tap in tl.static_range(KH * KW):
        taps = taps + (tl.load(taps_ptr + tap * C + c, mask=c < C, other=0.0),)
    for further in range(0, num_maps - first, tl.num_programs(0) // BLOCKS):
        token = (first + further).to(tl.int64) * (ROWS * COLS)
        map_ptr, out_map_ptr = x_ptr + token * X_L + c, out_ptr + token * C + c
        rows = ()
        if UNROLLED:
            for r in tl.static_range(LEAD):
                if r < ROWS:
                    rows = rows + (_load_row(map_ptr, r, c, C, X_L, ROWS, COLS),)
            for r in tl.static_range(ROWS):
                if r + LEAD < ROWS:
                    rows = rows + (_load_row(map_ptr, r + LEAD, c, C, X_L, ROWS, COLS),)
                sums = _convolved(rows, taps, zero, r - KH // 2, ROWS, KH, KW, COLS, FLIPPED)
                _store_row(out_map_ptr, sums, r, c, C, COLS)
        else:
            for i in tl.static_range(KH):
                rows = rows + (_load_row(map_ptr, top + i - KH // 2 - 1, c, C, X_L, ROWS, COLS),)
            following = _load_row(map_ptr, top + KH // 2, c, C, X_L, ROWS, COLS)
            for y in range(ROWS):
                rows = _moved_down(rows, following, KH)
                following = _load_row(map_ptr, y + KH // 2 + 1, c, C, X_L, ROWS, COLS)
                sums = _convolved(rows, taps, zero, 0, KH, KH, KW, COLS, FLIPPED)
                _store_row(out_map_ptr, sums, y, c, C, COLS)


@triton.jit(do_not_specialize=["num_maps"])
def _windows_kernel(
    x_ptr, dout_ptr, partial_ptr, num_maps,
    C: tl.constexpr, X_L: tl.constexpr, DOUT_L: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, UNROLLED: tl.constexpr, CHANNELS: tl.constexpr, AHEAD: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Gradient of the windows from the program's maps: its part of (programs, KH KW, C).

    Walks as forward does, but if not UNROLLED it takes STEP rows of outputs at a time and loads all rows that they see:
    rows that move down in a loop beside so many sums are held several times by LLVM, and spilt.
    """
    LEAD: tl.constexpr = KH // 2 + AHEAD
    BLOCKS: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    c = tl.program_id(0) % BLOCKS * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0) // BLOCKS
    sums = ()
    for _tap in tl.static_range(KH * KW):
        sums = sums + (tl.zeros((CHANNELS,), tl.float32),)
    for further in range(0, num_maps - first, tl.num_programs(0) // BLOCKS):
        token = (first + further).to(tl.int64) * (ROWS * COLS)
        map_ptr, dmap_ptr = x_ptr + token * X_L + c, dout_ptr + token * DOUT_L + c
        if UNROLLED:
            rows = ()
            dfollowing = _load_row(dmap_ptr, 0, c, C, DOUT_L, ROWS, COLS)
            for r in tl.static_range(LEAD):
                if r < ROWS:
                    rows = rows + (_load_row(map_ptr, r, c, C, X_L, ROWS, COLS),)
            for r in tl.static_range(ROWS):
                if r + LEAD < ROWS:
                    rows = rows + (_load_row(map_ptr, r + LEAD, c, C, X_L, ROWS, COLS),)
                douts = dfollowing
                if r + 1 < ROWS:
                    dfollowing = _load_row(dmap_ptr, r + 1, c, C, DOUT_L, ROWS, COLS)
                sums = _with_products(sums, rows, douts, r - KH // 2, ROWS, KH, KW, COLS)
        else:
            for y in range(0, ROWS, STEP):
                rows = ()
                for r in tl.static_range(STEP + 2 * (KH // 2)):
                    rows = rows + (_load_row(map_ptr, y + r - KH // 2, c, C, X_L, ROWS, COLS),)
                for r in tl.static_range(STEP):
                    douts = _load_row(dmap_ptr, y + r, c, C, DOUT_L, ROWS, COLS)
                    sums = _with_products(sums, rows, douts, r, r + KH, KH, KW, COLS)
    partial_ptr += tl.program_id(0) // BLOCKS * (KH * KW * C) + c
    for tap in tl.static_range(KH * KW):
        tl.store(partial_ptr + tap * C, sums[tap], mask=c < C)


class Walk(NamedTuple):
    """How maps are divided among programs."""

    num_programs: int  # for each block of channels
    num_blocks: int
    options: dict[str, int]  # of both kernels


def walk_over(tokens: Tensor, height: int, width: int, window: tuple[int, int]) -> Walk:
    batch, _, channels = tokens.shape
    block = min(CHANNELS, triton.next_power_of_2(channels))
    num_blocks = -(-channels // block)
    options = {
        "C": channels, "X_L": tokens.stride(1), "KH": window[0], "KW": window[1], "ROWS": height, "COLS": width,
        "UNROLLED": height == 1 or height * width <= WHOLE_TOKENS, "CHANNELS": block, "AHEAD": AHEAD,
        "num_warps": max(1, block // 32),
    }  # fmt: skip
    return Walk(max(1, min(batch, PROGRAMS // num_blocks)), num_blocks, options)


def depthwise_forward(tokens: Tensor, taps: Tensor, height: int, width: int, window: tuple[int, int]) -> Tensor:
    """tokens (B, L, C) and taps (kh kw, C) -> (B, L, C)."""
    return _convolve(tokens, taps, height, width, window, flipped=False)


def depthwise_backward(
    dout: Tensor, tokens: Tensor, taps: Tensor, height: int, width: int, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Gradients of the tokens, and of the windows in float32 (kh kw, C), whose parts are added in a fixed order."""
    dout, tokens = in_rows(dout), in_rows(tokens)
    walk = walk_over(tokens, height, width, window)
    partial = torch.empty(walk.num_programs, *taps.shape, dtype=torch.float32, device=tokens.device)
    _windows_kernel[(walk.num_programs * walk.num_blocks,)](
        tokens, dout, partial, len(tokens), DOUT_L=dout.stride(1), STEP=WINDOW_ROWS, **walk.options
    )
    return _convolve(dout, taps, height, width, window, flipped=True), add_up(partial)


def _convolve(
    tokens: Tensor, taps: Tensor, height: int, width: int, window: tuple[int, int], *, flipped: bool
) -> Tensor:
    tokens = in_rows(tokens)
    walk = walk_over(tokens, height, width, window)
    out = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    _depthwise_kernel[(walk.num_programs * walk.num_blocks,)](
        tokens, taps, out, len(tokens), 0, FLIPPED=flipped, **walk.options
    )
    return out
