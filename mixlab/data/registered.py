"""Sources of one's own by a name on the command line: `--data NAME:REST`."""

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

from mixlab.errors import InputError
from mixlab.plugins import Registry, in_words

from .given import as_source, check_kind
from .source import Source, part_of

Opener = Callable[[str, str], Any]  # of what stands behind NAME: and of a split; None where it has no such split
F = TypeVar("F", bound=Opener)
SOURCES: Registry[Opener] = Registry("source", {})
TAKEN = ("shapes", "photo", "wds", "heldout", "masks", "imagenet-s", "voc", "pets", "coco", "ade", "dataset")


def register_source(name: str) -> Callable[[F], F]:
    """Register a function that opens `--data NAME:REST`; a decorator of `open(rest, split)`, which returns a `Source`,
    or a data set of torch or Hugging Face.

    `rest` is the text behind the colon, `split` "train" or "val". Without a validation set, the function returns None
    for "val": every fifth sample is then held out if one is needed.
    """
    if not isinstance(name, str):
        raise InputError('register_source needs a name first: @mixlab.register_source("my_format")')
    if name in TAKEN:
        raise InputError(f"{name!r} is a source of mixlab's own; choose another name")

    def register(function: F) -> F:
        try:
            signature(function).bind("", "train")
        except TypeError as error:
            called = getattr(function, "__name__", repr(function))
            raise InputError(
                f"the source {name!r} opens with {called}, which cannot be called as {called}(rest, split): {error}; "
                "register a function of the text behind the colon and of the split"
            ) from error
        SOURCES[name] = function
        return function

    return register


def open_registered(data: str, split: str) -> Source[Any] | None:
    """The samples of a split of `NAME:REST`, or of the only split it has; None where no such name is registered."""
    if not is_registered(data):
        return None
    own = _opened(data, "val") if split == "val" else None
    source = own or _train(data)
    source.is_own_split = own is not None
    return source


def open_registered_with(data: str, split: str, kind: type[Any], what: str) -> Source[Any]:
    """The same of samples of one kind; without a validation set every fifth is held out."""
    source = _opened(data, "val")
    if source is None:
        source = part_of(_train(data), split, name=data)
    elif split == "train":
        source = _train(data)
    check_kind(source, kind, name=data, what=what)
    return source


def is_registered(data: str) -> bool:
    return data.partition(":")[0] in SOURCES


def _train(data: str) -> Source[Any]:
    found = _opened(data, "train")
    if found is None:
        name = data.partition(":")[0]
        raise InputError(f"the function registered for {name!r} gives None; return a Source or a data set")
    return found


def _opened(data: str, split: str) -> Source[Any] | None:
    name, _, rest = data.partition(":")
    try:
        found = SOURCES[name](rest, split)
    except InputError:
        raise
    except Exception as error:  # whatever the plugin's own code raises
        raise InputError(
            f"the source {name!r} of the plugin {SOURCES.origin(name)} cannot open {rest!r}: {in_words(error)}"
        ) from error
    if isinstance(found, str):
        raise InputError(f"the function registered for {name!r} gives {found!r}; return a Source or a data set")
    return None if found is None else as_source(found)
