"""Photographs that come with the package, all in the public domain (mixlab/photographs/README.md)."""

from importlib.resources import files
from pathlib import Path

from mixlab.errors import InputError, did_you_mean

FOLDER = Path(str(files("mixlab"))) / "photographs"
PORTRAIT = "grace_hopper"


def photograph_place(name: str) -> Path | None:
    """The file of `photo` or `photo:NAME`, the folder of `photo:all`; None for any other name."""
    head, colon, which = name.partition(":")
    if head != "photo":
        return None
    if which == "all":
        return FOLDER
    known = sorted(file.stem for file in FOLDER.glob("*.jpg"))
    chosen = which if colon else PORTRAIT
    if chosen not in known:
        hint = did_you_mean(chosen, known, otherwise=f"choose {', '.join(known)}")
        raise InputError(f"no photograph {chosen!r} comes with mixlab; {hint}, or photo:all")
    return FOLDER / f"{chosen}.jpg"
