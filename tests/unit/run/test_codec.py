"""Dataclasses survive JSON, and what they do not know is refused with its place and its rule."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from mixlab.run.codec import check, differences, from_json, to_json


class Shape:
    kind: ClassVar[str]


@dataclass(frozen=True)
class Circle(Shape):
    kind: ClassVar[str] = "circle"
    radius: float = 1.0


@dataclass(frozen=True)
class Box(Shape):
    kind: ClassVar[str] = "box"
    sides: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Paint:
    colour: Literal["red", "blue"] = "red"


@dataclass(frozen=True)
class Drawing:
    shape: Shape
    paint: Paint | None = None
    points: tuple[float, ...] = ()
    size: int | None = None
    label: str | int = ""
    extra: dict[str, Any] = field(default_factory=dict)


KINDS = {Shape: {"circle": Circle, "box": Box}}


@pytest.mark.parametrize(
    "drawing",
    [
        Drawing(Circle(2.5)),
        Drawing(Box((3, 4)), Paint("blue"), (0.5, 1.0, 2.0), 7, "a", {"deep": [1, {"x": None}]}),
        Drawing(Circle(), label=3),
    ],
)
def test_a_dataclass_comes_back_as_it_was(drawing: Drawing) -> None:
    assert from_json(Drawing, json.loads(json.dumps(to_json(drawing))), kinds=KINDS) == drawing


def test_fields_that_are_left_out_have_their_defaults_and_whole_numbers_become_floats() -> None:
    found = from_json(Drawing, {"shape": {"kind": "circle", "radius": 2}, "points": [1, 2]}, kinds=KINDS)
    assert found == Drawing(Circle(2.0), points=(1.0, 2.0))
    assert type(found.points[0]) is float


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shape": {"kind": "star"}}, "config.shape.kind is 'star'; choose one of circle, box"),
        ({"shape": {"kind": "box", "side": [1, 2]}}, "config.shape has no field 'side'; did you mean sides?"),
        ({"shape": {"kind": "box", "sides": [1, 2, 3]}}, "config.shape.sides is [1, 2, 3]; expected 2 values"),
        ({"shape": {"kind": "box", "sides": [1, 2.5]}}, "config.shape.sides is [1, 2.5]; expected 2 values (int, int)"),
        ({"shape": "circle"}, "config.shape must be an object with fields, got 'circle'"),
        ({"paint": {"colour": "green"}}, "config.paint.colour is 'green'; expected one of red, blue"),
        ({"points": 3}, "config.points is 3; expected a list of float"),
        ({"size": True}, "config.size is True; expected int or None"),
        ({"label": 1.5}, "config.label is 1.5; expected str or int"),
        ({"extra": []}, "config.extra is []; expected dict"),
    ],
)
def test_wrong_values_are_named_with_their_rule(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        from_json(Drawing, {"shape": {"kind": "circle"}, **changes}, kinds=KINDS)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="config lacks shape; give a value"):
        from_json(Drawing, {}, kinds=KINDS)


def test_a_tuple_of_the_wrong_length_is_refused_as_a_list_is() -> None:
    with pytest.raises(ValueError, match="expected 2 values"):
        check(tuple[int, int], (1, 2, 3), "sides")


def test_differences_name_what_was_set_otherwise_with_both_values() -> None:
    before, after = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "e": 4}
    assert differences(before, after) == {"a.c": (2, 5), "d": (3, None), "e": (None, 4)}
