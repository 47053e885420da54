"""What an analysis found, as it is shown everywhere: the result itself names its title, its table, its pictures and
their captions. The command prints it, the run directory keeps it, and the report and the page show it without knowing
what was analysed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mixlab.errors import InputError
from mixlab.run import Measurement, RunDirectory
from mixlab.run.directory import file_name

Cell = str | int | float | None


@dataclass(frozen=True)
class Picture:
    """Drawn on request only, so that numbers need no matplotlib. A figure becomes a PNG, charts become one SVG."""

    name: str  # of its file
    caption: str  # what is seen, in a sentence or two
    draw: Callable[[], Any]  # -> matplotlib's Figure, a Chart or several

    def save(self, folder: Path, name: str) -> Path:
        from mixlab.analysis.figures import Chart, save_charts, save_figure

        drawn = self.draw()
        if isinstance(drawn, Chart | list | tuple):
            return save_charts([drawn] if isinstance(drawn, Chart) else drawn, folder / f"{name}.svg")
        return save_figure(drawn, folder / f"{name}.png")


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """The result of an analysis."""

    title: str
    about: str = ""  # what was measured and how to read it, in a sentence or two
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Cell]] = ()
    pictures: Sequence[Picture] = ()
    measurements: Sequence[Measurement] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)  # whatever else belongs into the result's JSON

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(f"a row of {self.title!r} has {len(row)} cells, its columns are {self.columns}")
        names = [file_name(picture.name) for picture in self.pictures]
        if len(set(names)) < len(names):
            raise InputError(f"two pictures of {self.title!r} share a name among {', '.join(names)}")

    def to_json(self) -> dict[str, Any]:
        """Without pictures: `figures` lists the files they were saved to, each with its caption."""
        shown = {"title": self.title, "about": self.about, "columns": [*self.columns], "figures": []}
        return {
            **self.content,
            "exhibit": shown | {"rows": [[*row] for row in self.rows]},
            "measurements": [m.to_json() for m in self.measurements],
        }

    def save_pictures(self, folder: Path, name: str) -> list[dict[str, str]]:
        """Draw all of them as NAME.png, or NAME_PICTURE.png where there are several; their entries of `figures`."""
        alone = len(self.pictures) == 1
        return [
            {
                "file": picture.save(folder, name if alone else f"{name}_{file_name(picture.name)}").name,
                "caption": picture.caption,
            }
            for picture in self.pictures
        ]


def figure_files(run: RunDirectory, figures: Iterable[Mapping[str, str]]) -> list[tuple[Path, str]]:
    """The pictures of a stored exhibit that are there, with their captions; no result may name a file elsewhere."""
    folder = run.path / "figures"
    places = [(folder / figure["file"], figure["caption"]) for figure in figures]
    return [
        (place, caption)
        for place, caption in places
        if place.parent == folder and place.suffix in (".png", ".svg") and place.is_file()
    ]
