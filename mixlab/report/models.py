"""The table of models: one row per model, with its measurements, their protocols, and the gain by training.

A column holds measurements of one data set and one protocol alone, the one that most networks were measured with; what
was made for images of another size has columns of its own. Measurements by any other protocol stand in a table of their
own, each with what is different.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mixlab.analysis.comparisons import (
    DEFAULT_MAPS,
    Gain,
    Group,
    Network,
    comparable,
    grouped,
    is_final_layer,
    is_headline,
    kind_of_classifier,
    learnt_features,
    over_seeds,
    preference,
    training_gains,
)
from mixlab.analysis.figures import LineStyle, line_styles
from mixlab.evaluation.settings import LRS, SPEEDRUN_LRS
from mixlab.report.findings import Findings, Record
from mixlab.report.table import Cell, Column, GainColumn, Row, Table, in_order
from mixlab.report.trainings import shown_measurements
from mixlab.run import UNTRAINED, Measurement, base_label
from mixlab.run.protocols import METRICS
from mixlab.statistics import Estimate, mean_interval

GAINS = {"knn_top1": "kNN", "probe_top1": "linear probe", "binary_auc": "Binary-AUC"}
NOT_SHARED = ("source", "layer", "layers", "map", "change", "tokens")  # follow from the network, or stand in the title
NO_SCORES = ("images_per_s", "off_diagonal_rank")
OWN_SIZE = ("image", "short_side", "long_side", "settings")  # follow from the images that a network was made for
_IN_KEY = {"kind", "data", "val_data", "classifier", *OWN_SIZE, *NOT_SHARED}  # or above the table
PROBES = {LRS: "the paper's", SPEEDRUN_LRS: "the speedrun's"}  # by their learning rates
_OF_PROBES = {"mode", "heads", "epochs", "batch", "lrs", "weight_decays"}
ROBUSTNESS = ("robust_top1", "shifted_top1", "shift_top1")


def _of_definition(name: str) -> Callable[[Measurement], bool]:
    return lambda m: m["definition"] == name


def _any(_: Measurement) -> bool:
    return True


def _is_whole_map(m: Measurement) -> bool:
    """A score of any kind of map of the whole network."""
    return m["index"] is None and is_final_layer(m)


# Title, metric, unit, which of its measurements are of the whole network.
COLUMNS: tuple[tuple[str, str, str, Callable[[Measurement], bool]], ...] = (
    ("images/s", "images_per_s", "", _any),
    ("own classifier", "top1", "%", _any),
    ("kNN", "knn_top1", "%", _any),
    ("linear probe", "probe_top1", "%", is_headline),
    ("Binary-AUC", "binary_auc", "", _is_whole_map),
    ("mIoU", "miou", "%", _any),
    ("box AP", "box_ap", "%", _any),
    ("mask AP", "mask_ap", "%", _any),
    ("numerical rank", "off_diagonal_rank", "", _of_definition("numerical")),
    ("effective rank", "off_diagonal_rank", "", _of_definition("effective")),
)


def model_table(findings: Findings) -> Table:
    """Every network that some measurement names, family by family; an untrained twin only beside its network."""
    measurements = shown_measurements(findings)
    groups, gains = over_seeds(measurements), training_gains(measurements)
    networks = list(dict.fromkeys(Network.of(group[0]) for group in groups))
    twins = _twins(networks)
    seen = {m.identity for gain in gains for m in gain.untrained}
    groups = [g for g in groups if Network.of(g[0]) not in twins or not {m.identity for m in g} <= seen]
    maker = _ColumnMaker(findings)
    for title, metric, unit, keep in COLUMNS:
        own = [group for group in groups if group[0].metric == metric and keep(group[0])]
        kinds = grouped(own, lambda group: (_data(group[0]), group[0]["lrs"]))  # the papers' probe, and ours
        for alike in sorted(kinds, key=lambda kind: -len({Network.of(group[0]) for group in kind})):
            maker.add(title, unit, alike, own)
    columns, maker.columns = maker.columns, []
    for metric in ROBUSTNESS:
        own = [group for group in groups if group[0].metric == metric]
        several = len({group[0]["data"] for group in own}) > 1
        for data, change in dict.fromkeys((group[0]["data"], group[0]["change"]) for group in own):
            title = ", ".join(filter(None, (data if several or not change else None, change)))
            maker.add(title, "%", [g for g in own if (g[0]["data"], g[0]["change"]) == (data, change)])
    measured = {network for column in (*columns, *maker.columns) for network in column.cells}
    measured |= {network for column in maker.others for network in column.cells} - twins
    rows = _rows(in_order(networks), gains, measured, _own_sizes(groups, columns))
    columns[:0] = _sizes(rows, groups, findings, {n for c in columns if not c.is_score for n in c.cells})
    return Table(rows, columns, maker.columns, maker.others, _gain_columns(gains), _averaged_networks(measurements))


def _twins(networks: Iterable[Network]) -> set[Network]:
    """The untrained among them that are here beside the same network trained."""
    known = set(networks)
    trained = {(n.name, n.architecture) for n in known if n.training != UNTRAINED}
    return {n for n in known if n.training == UNTRAINED and (n.name, n.architecture) in trained}


def _rows(
    networks: Iterable[Network], gains: Iterable[Gain], measured: set[Network], images: Mapping[Network, int | None]
) -> list[Row]:
    learnt = learnt_features(gains)
    gaining = {gain.network for gain in gains}
    rows = [Row(network, learnt.get(network), image=images.get(network)) for network in networks]
    return [row for row in rows if row.network in gaining | measured]


def _own_sizes(groups: Iterable[Group], columns: Iterable[Column]) -> dict[Network, int | None]:
    """The size of images that each network was made for, where some column is measured at that of each."""
    if not any(column.is_own_size for column in columns):
        return {}
    return {Network.of(group[0]): group[0]["native_image"] for group in groups}


def _gain_columns(gains: Iterable[Gain]) -> list[GainColumn]:
    """One column for each metric and protocol: no difference stands beside the baseline of other images."""
    found: list[tuple[Measurement, GainColumn]] = []
    known = [gain for gain in gains if gain.trained and gain.metric in GAINS]
    for gain in sorted(known, key=lambda gain: [*GAINS].index(gain.metric)):
        lead = gain.trained[0]
        own = [column for other, column in found if _alike(lead, other) and gain.network not in column.cells]
        if not own:
            unit = "" if gain.metric == "binary_auc" else "%"
            own = [GainColumn(GAINS[gain.metric], unit, _data(lead), "", {})]
            found.append((lead, own[0]))
        own[0].cells[gain.network] = gain
    same = {title: [lead for lead, column in found if column.title == title] for title in GAINS.values()}
    return [replace(column, key=_key(lead, same[column.title])) for lead, column in found]


def _key(lead: Measurement, others: Iterable[Measurement]) -> str:
    """The data, the size of images, and every choice in which some other of that metric, not comparable, differs."""
    apart = [other for other in others if not _alike(other, lead)]
    differing = {name for other in apart for name in (*_different(other, lead), *_different(lead, other))}
    named = PROBES.get(lead["lrs"], "") if "lrs" in differing else ""
    shown = differing - _IN_KEY - (_OF_PROBES if named else set())
    choices = {name: value for name, value in lead.protocol.choices.items() if name in shown}
    image = f"{lead['image']} px" if lead["image"] else ""
    return ", ".join(filter(None, (named, _data(lead), image, words(choices, most_values=3))))


def _data(m: Measurement) -> str:
    return ", ".join(dict.fromkeys(filter(None, (m["data"], m["val_data"]))))


@dataclass
class _ColumnMaker:
    findings: Findings
    columns: list[Column] = field(default_factory=list)
    others: list[Column] = field(default_factory=list)

    def add(self, title: str, unit: str, groups: list[Group], beside: Sequence[Group] = ()) -> None:
        """The column of one metric, and one for each size of images that networks were made for; measurements by
        another protocol go to `others`. `beside`: all of that title, from which keys tell these apart."""
        twins = _twins(Network.of(group[0]) for group in groups)
        candidates = [group for group in groups if Network.of(group[0]) not in twins]
        lead = _lead(candidates)
        leads = _leads(lead, candidates)
        found = [(each, self._column(title, unit, each, beside or candidates)) for each in leads]
        own = [(each, replace(column, is_own_size=len(found) > 1)) for each, column in found]
        others: dict[str, Column] = {}
        for group in sorted(groups, key=lambda group: preference(group[0])):
            network, cell = Network.of(group[0]), _cell(group, self.findings)
            fitting = [column for each, column in own if _alike(group[0], each) and network not in column.cells]
            if network not in twins and fitting:
                fitting[0].cells[network] = cell
            else:
                different = _different(group[0], lead)
                different.pop("layer", None)  # the last one of each network
                protocol = words(different) or "the same protocol"
                others.setdefault(protocol, replace(own[0][1], protocol=protocol, cells={})).cells[network] = cell
        self.columns += [column for _, column in own]
        self.others += others.values()

    def _column(self, title: str, unit: str, lead: Measurement, beside: Iterable[Group]) -> Column:
        """Without its cells."""
        shared = {name: value for name, value in lead.protocol.choices.items() if name not in NOT_SHARED}
        is_score = lead.metric not in NO_SCORES
        key = _key(lead, [group[0] for group in beside if group[0].subject.training != UNTRAINED]) if is_score else ""
        title = title if lead["map"] in DEFAULT_MAPS else f"{title} by {lead['map']}"
        return Column(title, unit, words(shared), {}, _data(lead), key, is_score)


def style_rows(table: Table, findings: Findings) -> dict[str, LineStyle]:
    """The line style of every label on the page, of models and of trainings, seeds included."""
    families = {row.label: row.network.family for row in table.rows}
    families |= {m.subject.label: m.subject.family for m in findings.measurements.values() if m.subject.label}
    families |= {curve.label: "" for curve in findings.curves if base_label(curve.label) not in families}
    styles = line_styles(families)
    for row in table.rows:
        row.style = styles[row.label]
    return styles


def words(choices: Mapping[str, Any], *, most_values: int | None = None) -> str:
    """The choices of a protocol as text; of a list of more values, how many there are."""
    parts = []
    for name, value in choices.items():
        if name == "label_share":
            parts.append("all labels" if value == 1 else f"{100 * value:g} % of the labels")
        elif name == "classifier":
            parts.append(f"classifier {kind_of_classifier(str(value))}")
        elif name == "lrs" and value in PROBES:
            parts.append(f"{PROBES[value]} lrs {' '.join(map(str, value))}")
        elif most_values is not None and isinstance(value, tuple | list) and len(value) > most_values:
            parts.append(f"{len(value)} {name.replace('_', ' ')}")
        elif name != "kind" and value != "":
            shown = f"{value:g}" if isinstance(value, float) else value
            shown = " ".join(map(str, value)) if isinstance(value, tuple | list) else shown
            shown = "yes" if value is True else "no" if value is False else shown
            parts.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(parts)


def _lead(groups: list[Group]) -> Measurement:
    """A measurement of the protocol that most networks share; of several such, the most preferred. Of maps, the paper's
    before all others."""

    def order(group: Group) -> tuple[Any, ...]:
        sharing = {Network.of(other[0]) for other in groups if _alike(other[0], group[0])}
        return (group[0]["map"] not in DEFAULT_MAPS, -len(sharing), preference(group[0]))

    return min(groups, key=order)[0]


def _leads(lead: Measurement, groups: Iterable[Group]) -> list[Measurement]:
    """One for each size of images: of networks that were measured by the same protocol, but not at that of the lead."""
    leads = [lead]
    for group in sorted(groups, key=lambda group: preference(group[0])):
        own = [other[0] for other in groups if Network.of(other[0]) == Network.of(group[0])]
        known = any(_alike(m, each) for m in own for each in leads)
        if not known and comparable(group[0], lead, "tokens", *OWN_SIZE):
            leads.append(group[0])
    return leads


def _alike(a: Measurement, b: Measurement) -> bool:
    return comparable(a, b, "tokens")  # registers and class tokens add some


def _different(m: Measurement, lead: Measurement) -> dict[str, Any]:
    choices, usual = m.protocol.choices, lead.protocol.choices
    changed = {name: value for name, value in choices.items() if usual.get(name) != value}
    return changed | {name: "not given" for name in usual if name not in choices}


def _cell(group: Group, findings: Findings) -> Cell:
    lead, record = group[0], findings.record_of[group[0].identity]
    if len(group) == 1:
        return Cell(lead.value, lead.low, lead.high, record)
    mean = mean_of(group)
    return Cell(mean.value, mean.low, mean.high, record, len(group))


def mean_of(group: Group) -> Estimate:
    """Over seeds; its interval stays where the metric can be."""
    metric = METRICS[group[0].metric]
    return mean_interval([m.value for m in group], low=metric.lowest, high=metric.highest)


def _averaged_networks(measurements: Iterable[Measurement]) -> list[str]:
    """A sentence for each label and seed under which networks with different weights were measured alike."""
    weights: dict[Any, set[str | None]] = {}
    for m in measurements:
        key = (Network.of(m), m.seed, m.metric, words(m.protocol.choices))
        weights.setdefault(key, set()).add(m.subject.weights)
    most = {key[:2]: len(found) for key, found in weights.items() if len(found) > 1}
    return [
        f"{network.name}, seed {seed}: {count} networks with different weights have this label, and cells show their "
        "mean; give the runs different labels to see each."
        for (network, seed), count in most.items()
    ]


def _sizes(rows: list[Row], groups: list[Group], findings: Findings, measured: set[Network]) -> list[Column]:
    """Parameters, and multiply-accumulates of those whose cost was counted. Where ranks or speeds of some networks are
    `measured`, others of an architecture that has a row are left out: theirs would have nothing else."""
    records: dict[Network, Record] = {}
    for group in groups:
        records.setdefault(Network.of(group[0]), findings.record_of[group[0].identity])
    parameters: dict[Network, Cell] = {}
    macs: dict[Network, Cell] = {}
    for row in rows:
        number, known = row.network.num_parameters, {other.architecture for other in measured | set(parameters)}
        if number and (not measured or row.network in measured or row.network.architecture not in known):
            parameters[row.network] = Cell(number, None, None, records[row.network])
        for record in findings.of("cost"):
            about = record.content["subject"]
            # Whatever it was trained for: rows of dense tasks name another training than the run's record does.
            if (about.get("model"), base_label(about["label"])) == (row.network.model, row.network.name):
                macs.setdefault(row.network, Cell(record.content["macs"], None, None, record))
    found = (
        Column("parameters", "count", "", parameters, is_score=False),
        Column("MACs", "count", "of one image", macs, is_score=False),
    )
    return [column for column in found if column.cells]
