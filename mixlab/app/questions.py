"""What page and server send each other: models and maps to choose from, questions (all of them checked), and arrays as
bytes in base64; masks as runs of equal pixels, line by line.
"""

import base64
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mixlab.choices import SHOWN_FIT, Fit
from mixlab.errors import InputError

SIDE = 256  # pixels a side of every mask on the page, which is stretched over the picture
MAX_RUNS = 20_000
VALUES = (0, 1, 255)  # background, foreground, ignored


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """A model that visitors may choose, by its id and by nothing else."""

    id: str
    architecture: str
    family: str
    training: str
    num_layers: int
    num_registers: int
    num_heads: tuple[int, ...]  # of each layer; none without a matrix
    num_parameters: int
    image: int  # pixels on the side of a square, as the model takes it
    multiple: int | None  # of the sides of a picture in its own shape; None: it is shown squares only
    has_matrix: bool
    default_map: str
    maps: tuple[str, ...]  # those that this model has
    facts: tuple[str, ...] = ()  # what its run directory says of it


@dataclass(frozen=True)
class MapCard:
    """A kind of map: what it has several of, and what a model needs to have it."""

    id: str
    about: str
    parts: Literal["", "head", "register", "direction"]
    needs: str


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


class LookQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    is_long: ClassVar[bool] = False  # long work has a queue of its own, so that clicks never wait for it

    picture: str = Field(max_length=80)
    fit: Fit = SHOWN_FIT
    model: str = Field(max_length=200)
    layer: int = Field(ge=0, le=10_000)


class MapQuestion(LookQuestion):
    """An activation map with all its parts, (K, h, w)."""

    kind: Literal["map"]
    map: str = Field(default="default", max_length=40)


class PcaQuestion(LookQuestion):
    """Principal components of the patches."""

    kind: Literal["pca"]


class MatrixQuestion(LookQuestion):
    """|mixing matrix| of a head, or the mean over heads; of a model without one, how alike its features are."""

    kind: Literal["matrix"]
    head: int | None = Field(default=None, ge=0, le=100_000)


class RowQuestion(LookQuestion):
    """The weights with which the patch under a point reads all tokens (its row), or they read it (its column)."""

    kind: Literal["row"]
    head: int | None = Field(default=None, ge=0, le=100_000)
    x: float = Field(ge=0, le=1)
    y: float = Field(ge=0, le=1)
    sense: Literal["row", "column"] = "row"


class RowsQuestion(LookQuestion):
    """The rows (or columns) of all patches in shades, for a view that works without the server."""

    kind: Literal["rows"]
    head: int | None = Field(default=None, ge=0, le=100_000)
    sense: Literal["row", "column"] = "row"
    scale: Literal["linear", "log"] = "linear"


class MaskedQuestion(LookQuestion):
    map: str = Field(default="default", max_length=40)
    part: int | None = Field(default=None, ge=0, le=100_000)  # None: the mean over heads, registers or directions
    mask: MaskRuns


class ScoreQuestion(MaskedQuestion):
    """Binary-AUC and ROC of a map against a mask."""

    kind: Literal["score"]


class SweepQuestion(MaskedQuestion):
    """Binary-AUC of the map after every layer."""

    is_long: ClassVar[bool] = True
    kind: Literal["sweep"]


Question = MapQuestion | PcaQuestion | MatrixQuestion | RowQuestion | RowsQuestion | ScoreQuestion | SweepQuestion
AnyQuestion = Annotated[Question, Field(discriminator="kind")]
