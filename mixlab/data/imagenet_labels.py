"""Which class is which in ImageNet and in the sets made after it. The lists are timm's own; nothing is copied here."""

from __future__ import annotations

import json
import pkgutil
import re
from functools import cache

NUM_TRAIN, NUM_VAL = 1_281_167, 50_000  # images of ImageNet-1k
VAL_NAME = re.compile(r"ILSVRC2012_val_(\d{8})", re.IGNORECASE)


@cache
def imagenet_classes() -> tuple[str, ...]:
    """The 1,000 synsets in the order of every ImageNet classifier."""
    return tuple(_read("imagenet_synsets.txt").split())


@cache
def imagenet_a_classes() -> tuple[str, ...]:
    """The 200 synsets of ImageNet-A."""
    return tuple(_read("imagenet_a_synsets.txt").split())


@cache
def imagenet_r_classes() -> tuple[str, ...]:
    """The 200 synsets of ImageNet-R."""
    return tuple(_read("imagenet_r_synsets.txt").split())


@cache
def real_labels() -> tuple[frozenset[int], ...]:
    """ReaL: for each of the 50,000 validation images the class numbers that are right, possibly none."""
    return tuple(frozenset(labels) for labels in json.loads(_read("imagenet_real_labels.json")))


def val_number(file_name: str) -> int | None:
    """Which validation image a file is, from 0, by its name; None if the name does not say."""
    found = VAL_NAME.fullmatch(file_name.rsplit("/", 1)[-1].partition(".")[0])
    number = int(found[1]) - 1 if found else -1
    return number if 0 <= number < NUM_VAL else None


def _read(name: str) -> str:
    try:
        data = pkgutil.get_data("timm.data", f"_info/{name}")
    except OSError:
        data = None
    if data is None:
        raise FileNotFoundError(f"this timm lacks {name}; install timm 1.0.20 or newer")
    return data.decode()
