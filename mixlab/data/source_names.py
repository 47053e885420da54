"""Names of sources as they are typed: ours, the options in them, and what was probably meant by a wrong one."""

from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from mixlab.errors import InputError, did_you_mean

from .decode import SUFFIXES

DRAWN = "shapes"
BUILT_IN = (DRAWN, "photo")
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def parse_options(name: str, options: str, *, known: tuple[str, ...]) -> dict[str, str]:
    """Options of a source; `name` is the full name, for the error."""
    values: dict[str, str] = {}
    for part in filter(None, options.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            hint = did_you_mean(key, known, otherwise=f"it has {', '.join(known) or 'none'}")
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


def is_built_in(name: str) -> bool:
    """Whether a source needs no files of the user's."""
    return name.partition(":")[0] in BUILT_IN


def is_drawn(name: str) -> bool:
    """Whether a source is the scenes that mixlab draws."""
    return name.partition(":")[0] == DRAWN


def nearest_place(name: str) -> str:
    """What was probably meant by data that cannot be opened: a name of ours, or a neighbour of what is missing."""
    place = Path(name).expanduser()
    _, _, rest = name.partition(":")
    if rest and Path(rest).expanduser().exists():  # voc:DIR where the format is detected
        return f"did you mean {rest}?"
    if place.suffix.lower() in TABLES and place.is_file():
        return "it is a table: docs/own_images.md, Labels in a table, shows how labels are read from it"
    if place.is_file():
        others = f"{place.suffix or 'its name'} is no known suffix; convert it to one of {' '.join(sorted(SUFFIXES))}"
        return f"shards are opened as wds:{name}" if place.suffix == ".tar" else others
    while not place.parent.is_dir():
        place = place.parent
    try:
        entries = islice(place.parent.iterdir(), 10_000)
        neighbours = [entry.name for entry in entries if entry.name != place.name]  # a link that leads nowhere
    except OSError:
        neighbours = []
    alike = [other for other in neighbours if get_close_matches(place.stem, [Path(other).stem])]  # whatever the suffix
    if place.name == name:
        return did_you_mean(name, [*BUILT_IN, *alike], otherwise="check the path")
    return did_you_mean(place.name, alike, otherwise="check the path", prefix=f"{place.parent}/".replace("//", "/"))
