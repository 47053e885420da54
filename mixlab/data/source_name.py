"""The small language of source names: `name:key=value,key=value`."""

from __future__ import annotations

import difflib
import re

from mixlab.errors import InputError


def parse_options(name: str, options: str, *, known: tuple[str, ...]) -> dict[str, str]:
    """Options of a source; `name` is what the person typed, for the error."""
    values: dict[str, str] = {}
    for part in filter(None, options.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            raise InputError(f"{name!r}: there is no option {key!r}; {hint}")
        if not value:
            raise InputError(f"{name!r}: option {key!r} needs a value, as in {key}=...")
        values[key] = value
    return values


def to_number(name: str, options: dict[str, str], key: str, default: int) -> int:
    """A whole number among the options."""
    value = options.get(key, str(default))
    if not value.isdecimal():
        raise InputError(f"{name!r}: {key}={value} is not a whole number; give for example {key}={default}")
    return int(value)


def to_numbers(name: str, text: str) -> frozenset[int]:
    """A set of whole numbers written as `1-76+90`."""
    numbers: set[int] = set()
    for part in text.split("+"):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not span:
            raise InputError(f"{name!r}: {part!r} is neither a number nor a range; write for example 1-76+90")
        numbers |= set(range(int(span[1]), int(span[2] or span[1]) + 1))
    return frozenset(numbers)
