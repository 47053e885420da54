"""What an item is: a table or a figure of a paper, the networks and data behind it, its commands and its figures."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mixlab.studies.reproduce.measures import Planned, training_steps
from mixlab.studies.reproduce.networks import ItemSetting, Network


class Reading(NamedTuple):
    """A number of ours, in the unit of the results; without an interval where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None


Read = Callable[[ItemSetting], Reading | None]  # None: not measured yet


@dataclass(frozen=True)
class PaperFigure:
    """One number of a paper, and how ours is read. A picture has no number, but may say which is higher."""

    row: str
    column: str
    paper: float | None
    read: Read
    network: Network | None = None  # whose it is
    unit: float = 100.0  # ours times this is in the paper's unit
    said: str = ""  # by a picture
    digits: int = 1


@dataclass(frozen=True)
class Item:
    """`work` gives the commands after the training of the networks that can be had."""

    name: str
    paper: str  # "Dino-Mamba" or "MambaOut"
    place: str
    title: str
    networks: tuple[Network, ...] = ()
    data: tuple[str, ...] = ()  # beside ImageNet-1k, on which networks are trained
    classifies: bool = False  # reads the classifiers of its networks: of released ones nothing else is needed
    work: Callable[[ItemSetting, Sequence[Network]], Iterator[Planned]] = lambda setting, networks: iter(())
    cells: tuple[PaperFigure, ...] = ()
    note: str = ""
    settings: Callable[[], list[tuple[str, Any, Any]]] | None = None  # name, ours, paper: a table of settings

    @property
    def is_drawing(self) -> bool:
        """A sketch of an idea, with nothing to measure."""
        return not self.networks and not self.cells and self.settings is None

    def wanted(self, only: Sequence[str] = ()) -> list[Network]:
        """All networks, or those that `only` names by model or key."""
        return [network for network in self.networks if not only or {network.model, network.key} & set(only)]

    def available(self, setting: ItemSetting, only: Sequence[str] = ()) -> list[Network]:
        """Those that can be had."""
        return [network for network in self.wanted(only) if setting.lacks(network) is None]

    def plan(self, setting: ItemSetting, only: Sequence[str] = ()) -> list[Planned]:
        """All commands: training first, each network once."""
        networks = self.available(setting, only)
        trained = [network for network in networks if setting.trains(network) or not self.classifies]
        return [*training_steps(setting, trained), *self.work(setting, networks)] if networks else []

    def needs(self, setting: ItemSetting, only: Sequence[str] = ()) -> list[str]:
        """The data sets that its commands read."""
        networks = self.available(setting, only) or self.networks
        if not networks:
            return []
        trained = any(setting.trains(network) and setting.recipe(network) is not None for network in networks)
        first = ["imagenet"] if trained else ["imagenet-val"] if self.classifies else []
        return [*first, *self.data]


def difference(reading: Reading, cell: PaperFigure) -> Reading | None:
    """Ours minus the paper's, in the paper's unit."""
    if cell.paper is None or math.isnan(reading.value):
        return None
    low, high = (None if end is None else cell.unit * end - cell.paper for end in (reading.low, reading.high))
    return Reading(cell.unit * reading.value - cell.paper, low, high, reading.n)
