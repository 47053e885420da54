"""Sources of one's own by a name on the command line: `--data NAME:REST`."""

from collections.abc import Callable
from typing import Any, TypeVar

from mixlab.errors import InputError
from mixlab.plugins import Registry

from .given import as_source
from .source import Source

Opener = Callable[[str, str], Any]  # of what stands behind NAME: and of a split; None where it has no such split
F = TypeVar("F", bound=Opener)
SOURCES: Registry[Opener] = Registry("source", {})
TAKEN = ("shapes", "photo", "wds", "heldout", "masks", "imagenet-s", "voc", "pets", "coco", "ade", "dataset")


def register_source(name: str) -> Callable[[F], F]:
    """Make `--data NAME:REST` open with a function: a decorator of `open(rest, split)`, which returns a `Source`, or a
    data set of torch's or of Hugging Face's.

    `rest` is the text behind the colon, `split` "train" or "val". Where there is no validation set of its own, the
    function returns None for "val": every fifth sample is then held out where one is needed.
    """
    if name in TAKEN:
        raise InputError(f"{name!r} is a source of mixlab's own; choose another name")

    def register(function: F) -> F:
        SOURCES[name] = function
        return function

    return register


def open_registered(data: str, split: str) -> Source[Any] | None:
    """The samples of a split of `NAME:REST`, or of the only split it has; None where no such name is registered."""
    name, _, rest = data.partition(":")
    if name not in SOURCES:
        return None
    found = SOURCES[name](rest, split)
    if found is None and split == "val":
        return open_registered(data, "train")
    if found is None or isinstance(found, str):
        raise InputError(f"the function registered for {name!r} gives {found!r}; return a Source or a data set")
    source = as_source(found)
    source.is_own_split = split == "val"
    return source
