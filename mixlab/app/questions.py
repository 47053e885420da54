"""What a visitor can ask of one model and one picture: all that comes from outside, and all of it checked."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from mixlab.app.encoding import MaskRuns


class LookQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    is_long: ClassVar[bool] = False  # long work has a queue of its own, so that clicks never wait for it

    picture: str = Field(max_length=80)
    fit: Literal["crop", "squash"] = "crop"
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
    """|mixing matrix| of a head, or the mean over heads."""

    kind: Literal["matrix"]
    head: int | None = Field(default=None, ge=0, le=100_000)


class RowQuestion(LookQuestion):
    """Whom the patch under a point listens to (its row), or who listens to it (its column)."""

    kind: Literal["row"]
    head: int | None = Field(default=None, ge=0, le=100_000)
    x: float = Field(ge=0, le=1)
    y: float = Field(ge=0, le=1)
    sense: Literal["row", "column"] = "row"


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


Question = MapQuestion | PcaQuestion | MatrixQuestion | RowQuestion | ScoreQuestion | SweepQuestion
AnyQuestion = Annotated[Question, Field(discriminator="kind")]
