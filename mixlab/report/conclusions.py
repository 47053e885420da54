"""The first screen in words: sentences made from the table of models and the ledger, each with the result behind it.

None is written by hand, and none says more than its numbers: an order is that of the means, and what was learnt is what
differs significantly from an untrained twin.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mixlab.analysis.comparisons import Network, grouped, is_final_layer, over_seeds
from mixlab.choices import SHOWN_MAP
from mixlab.data.source_names import is_drawn
from mixlab.report.findings import Findings, Record
from mixlab.report.table import Cell, Column, Row, Table
from mixlab.run import UNTRAINED, Measurement
from mixlab.statistics import Significance, mean_over_seeds

NUM_SENTENCES = 3
ACCURACY_TITLES = ("linear probe", "kNN", "own classifier")
DENSE_TITLES = ("mIoU", "box AP", "mask AP")


class Part(NamedTuple):
    """A piece of a sentence; what a number was read from is a link."""

    text: str
    record: Record | None = None


Sentence = list[Part]


def conclusions(table: Table, findings: Findings, claims: Sequence[dict[str, Any]]) -> list[Sentence]:
    """The first three that can be said."""
    maps = [*_shown_maps(findings)] or _maps(table, findings)
    found = [*_learnt(table), *maps, *_ranks(table), *_accuracy(table), *_dense(table)]
    found += [*_ledger(claims), *_training(findings), *_exhibits(findings)]
    return found[:NUM_SENTENCES]


def _learnt(table: Table) -> Iterator[Sentence]:
    known = [row for row in table.rows if row.learnt is not None]
    if not known:
        return
    yes, no = ([row.label for row in known if row.learnt is learnt] for learnt in (True, False))
    networks = f"{len(known)} networks{'' if len(known) == len(table.rows) else ' with untrained twins'}"
    better = "significantly better than {} by kNN or linear probe"
    one, several = better.format("its untrained twin"), better.format("their untrained twins")
    if not no:
        start = (
            f"All {networks} have learnt: they are {several}" if len(known) > 1 else f"{yes[0]} has learnt: it is {one}"
        )
    elif not yes:
        who = f"None of the {networks} is" if len(known) > 1 else f"{no[0]} is not"
        start = f"{who} {one}: what follows is about architectures, not about training"
    else:
        start = f"{_listed(yes)} {'have' if len(yes) > 1 else 'has'} learnt ({several if len(yes) > 1 else one}); "
        start += f"{_listed(no)} {'have' if len(no) > 1 else 'has'} not"
    best = next((part for part in _best(table, ACCURACY_TITLES) if part), None)
    yield [Part(start + "."), *([Part(" "), *best] if best else [])]


def _accuracy(table: Table) -> Iterator[Sentence]:
    if all(row.learnt is None for row in table.rows):
        yield from _best(table, ACCURACY_TITLES)


def _best(table: Table, titles: Sequence[str]) -> Iterator[Sentence]:
    """The highest and the lowest of the first column that has any, of networks trained in the way that most were, all
    seeds counted.
    """
    for column in (column for title in titles for column in table.scores if column.title == title):
        rows = sorted(_rows(table, column), key=lambda pair: pair[1].value)
        if not rows:
            continue
        trainings = Counter[str]()
        for row, cell in rows:
            trainings[row.network.training] += cell.num_seeds
        usual = max(trainings, key=lambda training: trainings[training])
        ordered = [(row, cell) for row, cell in rows if row.network.training == usual]
        (_, lowest), (high, highest) = ordered[0], ordered[-1]
        name = f"{column.title[0].upper()}{column.title[1:]}" if column.title[1].islower() else column.title  # not kNN
        after = f" after {usual}" if len(trainings) > 1 else ""
        sizes = {row.image for row, _ in ordered} - {None}
        after += f", networks made for {sizes.pop()} px" if len(sizes) == 1 else ""
        parts = [Part(f"{name} on {_data(column.data)}{after}: ")]
        if len(ordered) == 1:
            yield [*parts, Part(_shown(highest, column), highest.record), Part(f" for {high.label}.")]
        elif _shown(highest, column) == _shown(lowest, column):
            yield [*parts, Part("all have "), Part(_shown(highest, column), highest.record), Part(".")]
        else:
            best, worst = (_sharing(ordered, column, _shown(cell, column)) for cell in (highest, lowest))
            be = "are" if len(best) > 1 else "is"
            parts += [Part(f"{_listed(best)} {be} highest with "), Part(_shown(highest, column), highest.record)]
            parts += [Part(f", {_listed(worst)} lowest with "), Part(_shown(lowest, column), lowest.record)]
            overlap = highest.low is not None and lowest.high is not None and highest.low <= lowest.high
            yield [*parts, Part("; their intervals overlap." if overlap else ".")]
        return


def _sharing(rows: Iterable[tuple[Row, Cell]], column: Column, shown: str) -> list[str]:
    """The networks whose score is shown so."""
    return [row.label for row, cell in rows if _shown(cell, column) == shown]


def _dense(table: Table) -> Iterator[Sentence]:
    yield from _best(table, DENSE_TITLES)


def _maps(table: Table, findings: Findings) -> Iterator[Sentence]:
    """The maps that score highest, beside the twin's and the centre prior, as far as these were measured with them."""
    column = next((column for column in table.scores if column.title.startswith("Binary-AUC")), None)
    rows = [] if column is None else _rows(table, column)
    if column is None or not rows:
        return
    row, cell = max(rows, key=lambda pair: pair[1].value)
    highest = " score highest" if len(rows) > 1 else ""
    parts = [
        Part(f"Maps of {row.label}{highest} on {_data(column.data)}: {column.title} "),
        Part(_shown(cell, column), cell.record),
    ]
    same = [gains for gains in table.gains if (gains.title, gains.data) == (column.title, column.data)]
    gain = next((gains.cells[row.network] for gains in same if row.network in gains.cells), None)
    twin, gap = None, Significance.UNKNOWN
    if gain is not None and gain.untrained:
        value = sum(m.value for m in gain.untrained) / len(gain.untrained)
        twin = Part(f"{value:.3f}", findings.record_of.get(gain.untrained[0].identity))
        gap = gain.difference.significance
    priors = [m for m in cell.record.measurements if m.metric == "centre_prior" and Network.of(m) == row.network]
    prior = next(filter(is_final_layer, priors), None)
    yield _with_baselines(parts, twin, gap, None if prior is None else Part(f"{prior.value:.3f}", cell.record))


def _shown_maps(findings: Findings) -> Iterator[Sentence]:
    """The same of the map that pictures show, on the images that most networks were scored on; seeds as one."""
    scored = [m for m in findings.measurements.values() if m["map"] == SHOWN_MAP and m["index"] is None]
    scored = [m for m in scored if is_final_layer(m) and m.subject.training != UNTRAINED]
    groups = over_seeds(scored)
    images = grouped((group for group in groups if group[0].metric == "binary_auc"), lambda group: _images(group[0]))
    if not images:
        return
    ranked = max(images, key=len)
    best = max(ranked, key=_mean)[0]
    same = [g for g in groups if (Network.of(g[0]), _images(g[0])) == (Network.of(best), _images(best))]
    found = {group[0].metric: group for group in same}
    shown = {
        name: Part(f"{_mean(group):.3f}", findings.record_of.get(group[0].identity)) for name, group in found.items()
    }
    highest = " score highest" if len(ranked) > 1 else ""
    num = len(found["binary_auc"])
    label = best.subject.label if num == 1 else f"{Network.of(best).name} ({num} seeds)"
    sizes = {group[0]["image"] for alike in images for group in alike if group[0]["data"] == best["data"]}
    size = f" at {best['image']} px" if len(sizes) > 1 else ""
    about = f"Maps of {label}{highest} on {_data(best['data'])}{size}: Binary-AUC of {SHOWN_MAP} "
    paired = found.get("above_untrained")
    gap = Significance.UNKNOWN if paired is None else mean_over_seeds(paired).significance
    yield _with_baselines([Part(about), shown["binary_auc"]], shown.get("untrained"), gap, shown.get("centre_prior"))


def _with_baselines(parts: Sentence, twin: Part | None, gap: Significance, prior: Part | None) -> Sentence:
    """A score beside those of its untrained twin and of the centre prior."""
    compared = {Significance.MORE: "significantly above", Significance.LESS: "significantly below"}
    if twin is not None:
        said = compared.get(gap, "not significantly different from")
        parts = [*parts, Part(f", {said} its untrained twin ("), twin, Part(")")]
    if prior is not None:
        parts = [*parts, Part("; a blob in the centre of the image scores "), prior]
    return [*parts, Part(".")]


def _images(m: Measurement) -> tuple[Any, ...]:
    """What was scored, and how it was seen."""
    return tuple(m[name] for name in ("data", "image", "fit", "multiple", "num_images"))


def _ranks(table: Table) -> Iterator[Sentence]:
    column = next((column for column in table.sizes if column.title == "numerical rank"), None)
    rows = [] if column is None else _rows(table, column)
    if column is None or len({row.network.family for row, _ in rows}) < 2:
        return
    ordered = sorted(rows, key=lambda pair: pair[1].value)
    (low, lowest), (high, highest) = ordered[0], ordered[-1]
    side, other = (_side_of_blocks(*each) for each in (ordered[0], ordered[-1]))
    alike = f"{lowest.value:.0f}" == f"{highest.value:.0f}" or round(lowest.value) == side  # of full rank
    if alike or (side and other and lowest.value / side >= highest.value / other):  # a token more or less in a block
        return
    more, less = (_with_article(row.mixer) or row.label for row in (high, low))
    yield [
        Part(f"{_capital(more)} can pass more information between distant patches than {less}: "),
        Part("the off-diagonal blocks of its matrices have rank "),
        Part(f"{highest.value:.0f}", highest.record),
        Part(" against "),
        Part(f"{lowest.value:.0f}", lowest.record),
        Part("."),
    ]


def _side_of_blocks(row: Row, cell: Cell) -> int | None:
    """Of those that a rank is of."""
    ranks = (m for m in cell.record.measurements if m.metric == "off_diagonal_rank" and Network.of(m) == row.network)
    return next((m["chunk"] for m in ranks), None)


def _ledger(claims: Sequence[dict[str, Any]]) -> Iterator[Sentence]:
    for ledger in claims:
        said = ", ".join(f"{count} {name}" for name, count in ledger["counts"].items())
        yield [Part(f"Of {len(ledger['claims'])} claims of the papers: {said}.")]


def _training(findings: Findings) -> Iterator[Sentence]:
    for curve in findings.curves:
        steps, losses = curve.points("loss")
        if len(losses) > 1:
            data = f" on {curve.config['data']}" if curve.config.get("data") else ""
            change = f"the loss went from {losses[0]:.3g} to {losses[-1]:.3g} in {steps[-1]:,.0f} steps"
            yield [Part(f"{curve.label}{data}: {change}.")]


def _exhibits(findings: Findings) -> Iterator[Sentence]:
    """The first row of each, by the names of its columns; what matrices look like is no sentence."""
    for record in (record for record in findings.records if record.kind != "matrices"):
        about = record.content.get("exhibit") or {"rows": []}
        for row in about["rows"][:1]:
            cells = [f"{name} {cell}" for name, cell in zip(about["columns"][1:], row[1:], strict=False)][:3]
            yield [Part(f"{about['title']}, {row[0] if row else ''}: "), Part(", ".join(cells), record), Part(".")]


def _mean(group: Sequence[Measurement]) -> float:
    return sum(m.value for m in group) / len(group)


def _rows(table: Table, column: Column) -> list[tuple[Row, Cell]]:
    rows: dict[Network, Row] = {row.network: row for row in table.rows}
    return [(rows[network], cell) for network, cell in column.cells.items() if network in rows]


def _shown(cell: Cell, column: Column) -> str:
    return f"{100 * cell.value:.1f} %" if column.unit == "%" else f"{cell.value:.3f}"


def _data(name: str) -> str:
    """Drawn scenes by what they are: shapes:n=512 says nothing to a stranger."""
    if not is_drawn(name):
        return name
    rest = name.partition(":")[2]
    return f"{rest[2:]} drawn scenes" if rest[:2] == "n=" and rest[2:].isdigit() else f"drawn scenes ({name})"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _with_article(mixer: str) -> str:
    return f"a {mixer}" if mixer.endswith(("scan", "convolution")) else mixer


def _listed(names: Sequence[str]) -> str:
    few = [*names[:4], f"{len(names) - 4} more"] if len(names) > 5 else [*names]
    return few[0] if len(few) == 1 else f"{', '.join(few[:-1])} and {few[-1]}"
