"""What the analyses of the given runs found: each result names its own table, pictures and captions, and the page shows
it without knowing what was analysed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixlab.analysis.exhibit import figure_files
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from mixlab.run.directory import AGAIN


@dataclass(frozen=True)
class ShownExhibit:
    """One result of one run."""

    run: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: tuple[tuple[Path, str], ...]  # files and captions

    def to_json(self) -> dict[str, Any]:
        """The files are asked for by their place."""
        captions = [caption for _, caption in self.figures]
        shown = {"run": self.run, "title": self.title, "about": self.about, "columns": self.columns, "rows": self.rows}
        return shown | {"captions": captions}


def run_exhibits(runs: Mapping[str, RunDirectory]) -> list[ShownExhibit]:
    """Those of runs by label; one of another form is named with its file."""
    found = []
    for label, run in runs.items():
        for name, content in run.results().items():
            if shown := content.get("exhibit"):
                try:
                    found.append(_read(label, run, shown))
                except (KeyError, TypeError, AttributeError) as error:
                    raise InputError(
                        f"{run.file_of(name)}: its exhibit cannot be shown ({error!r}); {AGAIN}"
                    ) from error
    return found


def _read(label: str, run: RunDirectory, shown: Mapping[str, Any]) -> ShownExhibit:
    return ShownExhibit(
        run=label,
        title=str(shown["title"]),
        about=str(shown["about"]),
        columns=tuple(map(str, shown["columns"])),
        rows=tuple(tuple(_cell(cell) for cell in row) for row in shown["rows"]),
        figures=tuple(figure_files(run, shown["figures"])),
    )


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def media_type(file: Path) -> str:
    return "image/svg+xml" if file.suffix == ".svg" else "image/png"


def find_figure(exhibits: Sequence[ShownExhibit], number: int, figure: int) -> Path | None:
    """The file of a picture by its place; None where there is none."""
    known = 0 <= number < len(exhibits) and 0 <= figure < len(exhibits[number].figures)
    return exhibits[number].figures[figure][0] if known else None
