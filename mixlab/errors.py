"""What the command line prints as one sentence. Every other exception is a bug of ours and keeps its traceback."""

import errno
import re
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches
from types import UnionType

EXTRA_OF = {  # modules that only some commands need: pip install 'mixlab[EXTRA]'
    "faster_coco_eval": "detect",
    "fastapi": "app",
    "jinja2": "report",
    "markupsafe": "report",
    "matplotlib": "report",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "pydantic": "app",
    "starlette": "app",
    "submitit": "slurm",
    "tensorboard": "train",
    "torchmetrics": "train",
    "transformers": "transformers",
    "uvicorn": "app",
    "wandb": "wandb",
}


# What torch says of it: errors of the CPU's memory, of cuBLAS and of the driver are of no kind of their own.
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|bad_alloc|ALLOC_FAILED", re.IGNORECASE)


class InputError(ValueError):
    """The input cannot work: the message names the value, the rule and a way out."""


class MissingPartError(InputError):
    """A network lacks the part that is asked for: registers, a class token, a mixing matrix."""


class WorkError(RuntimeError):
    """The work had to stop, and not because of a bug: the message says why and what to do."""


class MissingExtraError(ImportError):
    """What is asked for needs a package that is not installed: the message names the extra that brings it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or of a GPU was not enough, as Python, NumPy, torch or the system say it."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = type(error).__name__ == "OutOfMemoryError" or _NO_MEMORY.search(str(error)) is not None
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and said)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Imports within that fail for want of an extra say which one to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        if module not in EXTRA_OF:
            raise
        raise MissingExtraError(f"this needs {module}; run pip install 'mixlab[{EXTRA_OF[module]}]'") from error


def check_counts(**counts: int | None) -> None:
    """Refuse numbers below one, by the names of their options."""
    for name, number in counts.items():
        if number is not None and number < 1:
            raise InputError(f"--{name.replace('_', '-')} is {number}; give at least 1")


def check_kind(given: object, kind: type | UnionType, way_out: str) -> None:
    """Refuse an argument of another kind, such as a network in place of a run; `way_out` says what to give."""
    if not isinstance(given, kind):
        raise InputError(f"got a {type(given).__name__}; {way_out}")


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str = "", prefix: str = "") -> str:
    """A question that names what was probably meant, behind a prefix; `otherwise` where nothing is near."""
    names = list(known)
    near = get_close_matches(word, names, n=3)
    likeness = [SequenceMatcher(None, word, name).ratio() for name in near]
    near = [name for name, ratio in zip(near, likeness, strict=True) if ratio > likeness[0] - 0.1]
    if not near and len(word) > 2:  # a part of a name
        near = [name for name in names if word.lower() in name.lower()][:3]
    return f"did you mean {' or '.join(prefix + name for name in near)}?" if near else otherwise


def few(names: Iterable[object], most: int = 5) -> str:
    """The first few of many names."""
    listed = [str(name) for name in names]
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest


def counted(things: int | Sized, one: str, several: str) -> str:
    """How many there are, with the words for one or for several."""
    number = things if isinstance(things, int) else len(things)
    return f"{number:,} {one if number == 1 else several}"


def short(value: object, most: int = 60) -> str:
    """A value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]} ..."
