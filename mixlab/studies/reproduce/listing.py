"""All items, found by name; and one described without any data at hand."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from mixlab.errors import InputError, did_you_mean
from mixlab.studies.reproduce import dino_mamba, mambaout
from mixlab.studies.reproduce.data_sets import DATA_SETS
from mixlab.studies.reproduce.items import Item
from mixlab.studies.reproduce.measures import Planned
from mixlab.studies.reproduce.networks import ItemSetting

ITEMS: dict[str, Item] = {item.name: item for item in (*dino_mamba.ITEMS, *mambaout.ITEMS)}
ON_PAPER = ItemSetting(run=Path("RUN"), data={name: f"DATA/{data.place}" for name, data in DATA_SETS.items()})


def find_items(names: Sequence[str]) -> list[Item]:
    """Items by name or shell pattern, in the order of the papers."""
    for name in names:
        if not any(fnmatch(item, name) for item in ITEMS):
            hint = f"{did_you_mean(name, ITEMS)} `mixlab reproduce` lists all".lstrip()
            raise InputError(f"there is no item {name!r}; {hint}")
    return [item for item in ITEMS.values() if any(fnmatch(item.name, name) for name in names)]


def hours_of(plan: Sequence[Planned]) -> tuple[float, float]:
    """GPU-hours of training, which other items share, and of what comes after."""
    training = sum(one.hours.hours for one in plan if one.hours and one.step.name.startswith("train "))
    return training, sum(one.hours.hours for one in plan if one.hours) - training


def show_hours(hours: float) -> str:
    """Two digits: an estimate is no better."""
    if hours < 0.05:
        return "-" if hours == 0 else "< 0.1"
    return f"{hours:.1f}" if hours < 9.95 else f"{float(f'{hours:.2g}'):,.0f}"


def missing_networks(item: Item) -> list[str]:
    return [said for network in item.networks if (said := ON_PAPER.lacks(network)) is not None]
