"""How arrays travel between page and server: bytes in base64; masks as runs of equal pixels, line by line."""

import base64
from itertools import chain
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from mixlab.errors import InputError

SIDE = 256  # pixels a side of every mask on the page
MAX_RUNS = 20_000
VALUES = (0, 1, 255)  # background, foreground, ignored


def encode_runs(mask: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """A mask (SIDE, SIDE) as (value, length) pairs."""
    flat = mask.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=flat[0] ^ 1))
    lengths = np.diff(starts, append=flat.size)
    return list(zip(flat[starts].tolist(), lengths.tolist(), strict=True))


def decode_runs(runs: list[tuple[int, int]]) -> NDArray[np.uint8]:
    """Pairs that `check_runs` accepts, as a mask (SIDE, SIDE)."""
    values, lengths = np.fromiter(chain.from_iterable(runs), dtype=np.int64).reshape(-1, 2).T
    return np.repeat(values.astype(np.uint8), lengths).reshape(SIDE, SIDE)


def check_runs(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    for value, length in runs:
        if value not in VALUES:
            raise InputError(f"a mask holds {value}; its values are 0 (background), 1 (foreground) and 255 (ignored)")
        if not 1 <= length <= SIDE * SIDE:
            raise InputError(f"a run of {length} pixels; runs have 1 to {SIDE * SIDE}")
    total = sum(length for _, length in runs)
    if total != SIDE * SIDE:
        raise InputError(f"the runs of the mask cover {total} pixels, not {SIDE} x {SIDE} = {SIDE * SIDE}")
    return runs


MaskRuns = Annotated[list[tuple[int, int]], Field(min_length=1, max_length=MAX_RUNS), AfterValidator(check_runs)]


def to_json(value: Any) -> Any:
    """Replace numpy arrays in an answer by {"shape", "type", "data"}: uint8 stays, all else becomes float32."""
    if isinstance(value, np.ndarray):
        kind = "uint8" if value.dtype == np.uint8 else "float32"
        data = np.ascontiguousarray(value, dtype="<f4" if kind == "float32" else "u1")
        return {"shape": list(value.shape), "type": kind, "data": base64.b64encode(data.tobytes()).decode()}
    if isinstance(value, dict):
        return {key: to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    return value
