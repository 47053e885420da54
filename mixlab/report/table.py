"""What a table of models is made of: rows of networks, columns of measurements, and the tables that both make up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mixlab.analysis.comparisons import Gain, Network, grouped
from mixlab.analysis.figures import FAMILY_NAMES, OTHER, LineStyle
from mixlab.report.findings import Record


@dataclass(frozen=True)
class Cell:
    """A value as tables show it: one measurement, or the mean of several seeds with the interval over them."""

    value: float
    low: float | None
    high: float | None
    record: Record
    num_seeds: int = 1


@dataclass(frozen=True)
class Column:
    title: str
    unit: str  # "%", "count" or none
    protocol: str  # of a column of another protocol: in what it differs from the first
    cells: dict[Network, Cell]
    data: str = ""
    key: str = ""  # the data, and the choices that make it another column than others of its title
    is_score: bool = True  # not a size, a speed or a rank
    is_own_size: bool = False  # beside a column of another size of images, that of other networks


@dataclass(frozen=True)
class GainColumn:
    """Gains by one metric on one data set, by one protocol."""

    title: str
    unit: str
    data: str
    key: str
    cells: dict[Network, Gain]


@dataclass
class Row:
    network: Network
    learnt: bool | None  # None: no twin was measured
    style: LineStyle = OTHER
    image: int | None = None  # px, for which it was made; None where that makes no difference here

    @property
    def label(self) -> str:
        return self.network.name or self.network.model

    @property
    def mixer(self) -> str:
        return FAMILY_NAMES.get(self.network.family, self.network.family)


AnyColumn = Column | GainColumn


@dataclass(frozen=True)
class Part:
    """Some rows, and the columns that they have a cell in."""

    rows: list[Row]
    columns: list[AnyColumn]
    image: int | None = None  # px, for which these networks were made, where other parts have others


@dataclass(frozen=True)
class Table:
    rows: list[Row]
    columns: list[Column]
    robustness: list[Column]
    others: list[Column]
    gains: list[GainColumn]
    notes: list[str]

    @property
    def scores(self) -> list[Column]:
        return [column for column in self.columns if column.is_score]

    @property
    def sizes(self) -> list[Column]:
        return [column for column in self.columns if not column.is_score]

    def num_seeds(self, row: Row, columns: Sequence[Column] = ()) -> int:
        """The seeds of a row in these columns; where none of them is measured, in any."""
        measured = [column for column in columns if row.network in column.cells and column.unit != "count"]
        own = measured or [column for column in self.columns if row.network in column.cells]
        return max((column.cells[row.network].num_seeds for column in own), default=1)

    def rows_of(self, columns: Sequence[AnyColumn]) -> list[Row]:
        """The rows that have a cell in one of these columns; untrained twins after all others."""
        networks = dict.fromkeys(network for column in columns for network in column.cells)
        rows = [row for row in self.rows if row.network in networks]
        twins = set(networks) - {row.network for row in rows}
        return rows + [Row(network, None) for network in in_order(twins)]

    def parts(self, columns: Sequence[AnyColumn]) -> list[Part]:
        """The columns in tables: of networks made for images of one size, and of those that share a column."""
        rows = self.rows_of(columns)
        found = [part for own in grouped(rows, lambda row: row.image) for part in _connected(own, columns)]
        several = len({part.rows[0].image for part in found}) > 1
        found.sort(key=lambda part: columns.index(part.columns[0]))
        found.sort(key=lambda part: [row.image for row in rows].index(part.rows[0].image))
        return [replace(part, image=part.rows[0].image if several else None) for part in found]

    def labels(self, *, learnt: bool) -> str:
        """The models that learnt something, or those that did not."""
        known = [row for row in self.rows if row.learnt is not None]
        found = [row.label for row in known if row.learnt is learnt]
        return f"all {len(known)} networks" if len(found) == len(known) > 3 else ", ".join(found)


def _connected(rows: Sequence[Row], columns: Sequence[AnyColumn]) -> list[Part]:
    """Rows that have a column in common, together, each with its columns."""
    parts: list[Part] = []
    for row in rows:
        own = [column for column in columns if row.network in column.cells]
        joined = [part for part in parts if any(column in part.columns for column in own)]
        parts = [part for part in parts if part not in joined]
        every = [column for column in columns if column in own or any(column in part.columns for part in joined)]
        parts.append(Part([*(each for part in joined for each in part.rows), row], every))
    return parts


def in_order(networks: Iterable[Network]) -> list[Network]:
    """Family by family, each by name."""
    order = list(FAMILY_NAMES)
    return sorted(networks, key=lambda n: (order.index(n.family) if n.family in order else len(order), n))
