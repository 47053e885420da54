"""docs/speedrun.md: its tables are made from the records beside it, docs/studies/speedrun/results/*.json.

`python -m mixlab.studies.speedrun.page` makes them again; the text around them is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mixlab.data.images import HELD_OUT_OF
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from mixlab.run.directory import file_name
from mixlab.run.files import write_atomically
from mixlab.statistics import difference, mean_interval, with_interval
from mixlab.studies.publishing import cleaned
from mixlab.studies.speedrun.record import check_record, command_of, listed, score_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE, RECORDS = "speedrun.md", Path("studies") / "speedrun"
NONE_YET = "No run published yet."
SAID_ONCE = ("seed", "on", "data")  # columns that a table need not have
Record = dict[str, Any]


def publish_record(record: Record, run: Path, docs: Path | None = None) -> Path:
    """Store a record without the places of its machine, and make the page again; the same network replaces itself."""
    docs = check_checkout(docs)
    page_text((docs / PAGE).read_text(encoding="utf-8"), read_records(docs))  # what fails leaves no record behind
    data = record["data"].removeprefix(HELD_OUT_OF)
    places = [(str(run.resolve()), run.name), (str(run), run.name), (str(Path.home()), "~")]
    places += [(place, Path(data).name) for place in (data, str(Path(data).resolve())) if "/" in place]
    kept = cleaned(record, sorted(places, key=lambda pair: -len(pair[0])))
    name = file_name(f"{record['recipe']}-{run.name}-s{record['seed']}")
    RunDirectory.create(docs / RECORDS).write(name, kept)
    return write_page(docs)


def check_checkout(docs: Path | None = None) -> Path:
    """The folder of the page; refused where there is none."""
    place = docs or DOCS
    if not (place / PAGE).is_file():
        raise InputError(f"--publish writes {PAGE}, and {place} has none; publish from a source checkout of mixlab")
    return place


def write_page(docs: Path | None = None) -> Path:
    """Put the tables of all stored records between the marks of the page."""
    place = check_checkout(docs) / PAGE
    text = page_text(place.read_text(encoding="utf-8"), read_records(place.parent))
    write_atomically(place, lambda file: file.write(text.encode()))
    return place


def read_records(docs: Path) -> list[Record]:
    """All that were published."""
    place = RunDirectory(docs / RECORDS)
    found = place.results()
    for name, record in found.items():
        check_record(record, place.file_of(name))
    return list(found.values())


def page_text(text: str, records: Sequence[Record]) -> str:
    """The text of the page with these tables."""
    tables = {
        "runs": runs_table([record for record in records if not record["held_out"]]),
        "held-out runs": held_out_table([record for record in records if record["held_out"]]),
    }
    for name, table in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if start not in text or end not in text:
            raise InputError(f"{PAGE} lacks the marks {start} and {end}, around its table; put them back")
        text = f"{text.partition(start)[0]}{start}\n{table}\n{end}{text.partition(end)[2]}"
    return text


def runs_table(records: Sequence[Record]) -> str:
    """A table for each data set and machine, that with most runs first, and the commands of all."""
    if not records:
        return NONE_YET
    alike: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        alike.setdefault((record["data"], record["num_train"], record["num_val"], _device(record)), []).append(record)
    tables = "\n\n".join(map(_runs_alike, sorted(alike.values(), key=len, reverse=True)))
    commands = "\n".join(sorted({command_of(record) for record in records}))
    return f"{tables}\n\n<details><summary>The commands</summary>\n\n```\n{commands}\n```\n\n</details>"


def _runs_alike(records: Sequence[Record]) -> str:
    """A row for each recipe and commit, the best first; every seed is shown."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in sorted(records, key=lambda each: each["seed"]):
        groups.setdefault((_named(record), record["data"], _device(record), _commit(record)), []).append(record)
    rows = []
    for (what, data, device, commit), group in groups.items():
        knn = [score_of(record, "knn_top1") for record in group]
        probes = [(record["probe_chosen_elsewhere"] or {}).get("top1") for record in group]
        rows.append(
            (
                -sum(m.value for m in knn) / len(knn),
                what,
                f"{knn[0]['num_parameters'] / 1e6:.1f} M",
                _mean([m.value for m in knn]),
                ", ".join(f"{record['seed']}: {100 * m.value:.1f}" for record, m in zip(group, knn, strict=True)),
                _mean([value for value in probes if value is not None]),
                *(_seconds(group, part) for part in ("training", "all_in")),
                f"{device} ({group[0]['timed_on']}-seconds)",
                f"{data}, n = {knn[0].n:,}",
                commit,
            )
        )
    columns = ("recipe", "parameters", "kNN-20, % over seeds", "each seed", "probe, %", "training, s", "all in, s")
    table = _table((*columns, "on", "data", "commit"), [row[1:] for row in sorted(rows)])
    return f"{table}\n\n{_minutes(records)}"


def _minutes(records: Sequence[Record]) -> str:
    """What all of them cost."""
    seconds = sum(record["seconds"]["all_in"] for record in records)
    shared = sum(record["seconds"]["all_in"] for record in records if record.get("shares_gpu", False))
    minutes = f"{seconds / 60:,.0f} minute{'s' * (round(seconds / 60) != 1)}"
    text = f"All runs together: {minutes} all in"
    if shared:
        text += f", {shared / 60:,.0f} of them in runs known to have shared the GPU, each counted in full"
    return f"{text}."


def held_out_table(records: Sequence[Record]) -> str:
    """A row for each setting that was tried, below the run without its last change: that change, and its effect.

    Runs of another length start a tree of their own, unless length is the one change.
    """
    if not records:
        return NONE_YET
    below: dict[int | None, list[Record]] = {}  # the id of a base, and the runs with more changes
    for record in sorted(records, key=_place):
        base = _base(record, records)
        below.setdefault(None if base is None else id(base), []).append(record)

    def rows_below(base: Record | None, depth: int) -> Iterator[tuple[Any, ...]]:
        for record in below.get(None if base is None else id(base), []):
            name = _named(record) if base is None else "↳ " * depth + listed(_beyond(record, base))
            gap = "" if base is None else _gap(record, base)
            knn = score_of(record, "knn_top1")
            score = with_interval(knn.value, knn.low, knn.high, form=".1f", unit=100)
            yield name, record["seed"], score, gap, _device(record), _commit(record)
            yield from rows_below(record, depth + 1)

    columns = ("setting", "seed", "kNN-20, %", "difference, points", "on", "commit")
    return f"{_table(columns, [*rows_below(None, 0)])}\n\n{_minutes(records)}"


def _place(record: Record) -> tuple[Any, ...]:
    """Longer runs first, then those with fewer changes."""
    changed = record["changed"]
    return record["recipe"], -record["images_seen"], len(changed), sorted(map(str, changed.items())), record["seed"]


def _base(record: Record, records: Iterable[Record]) -> Record | None:
    """The run of the same recipe, seed and data with the most of its changes, but not all, after as many images."""

    def is_base(other: Record) -> bool:
        same = all(other[key] == record[key] for key in ("recipe", "seed", "data"))
        beyond = _beyond(record, other)
        comparable = other["images_seen"] == record["images_seen"] or beyond.keys() == {"steps"}
        return same and comparable and bool(beyond) and not _beyond(other, record)

    return max(filter(is_base, records), key=lambda other: len(other["changed"]), default=None)


def _beyond(record: Record, base: Record) -> dict[str, Any]:
    """Changes that the other run does not have."""
    had = base["changed"]
    return {name: value for name, value in record["changed"].items() if name not in had or had[name] != value}


def _gap(record: Record, base: Record) -> str:
    """The difference in points, image by image."""
    found = difference([score_of(record, "knn_top1")], [score_of(base, "knn_top1")])
    return with_interval(found.value, found.low, found.high, form="+.1f", unit=100)


def _named(record: Record) -> str:
    return ", ".join(filter(None, (f"`{record['recipe']}`", listed(record["changed"]))))


def _commit(record: Record) -> str:
    """As git shortens it, where MIXLAB_COMMIT gave all of it."""
    commit = str(record["provenance"]["commit"])
    return commit[:8] if len(commit) == 40 else commit


def _device(record: Record) -> str:
    machine = record["provenance"]["machine"]
    return str(machine["processor"] if record["timed_on"] == "CPU" else machine["device"])


def _seconds(records: Sequence[Record], part: str) -> str:
    """Their mean; in brackets where others ran beside them."""
    text = f"{sum(record['seconds'][part] for record in records) / len(records):,.0f}"
    return f"({text})" if any(record.get("shares_gpu", False) for record in records) else text


def _mean(values: list[float]) -> str:
    """With its interval over seeds; of one seed alone there is none."""
    if not values:
        return ""
    found = mean_interval(values)
    ends = "" if found.low is None or found.high is None else f" ± {100 * (found.high - found.value):.1f}"
    return f"{100 * found.value:.1f}{ends}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Of the columns `SAID_ONCE`, what all rows share is a sentence above the table."""
    shared = [i for i, name in enumerate(columns) if name in SAID_ONCE and len({row[i] for row in rows}) == 1]
    said = "; ".join(f"{columns[i]} {rows[0][i]}" for i in shared)
    lines = [
        [cell for i, cell in enumerate(line) if i not in shared] for line in (columns, ["---"] * len(columns), *rows)
    ]
    table = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    return f"All rows: {said}.\n\n{table}" if said else table


if __name__ == "__main__":
    print(write_page())
