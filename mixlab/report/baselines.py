"""Maps beside their baselines: how far Binary-AUC lies above a blob in the centre, and above the untrained twin."""

from mixlab.analysis.comparisons import DEFAULT_MAPS, Group, Network, grouped, is_final_layer, over_seeds, preference
from mixlab.choices import SCORED_FIT, SHOWN_MAP
from mixlab.report.findings import Findings
from mixlab.report.models import mean_of
from mixlab.report.table import Cell, Column
from mixlab.run import UNTRAINED, Measurement
from mixlab.statistics import Quantity, mean_over_seeds

TITLES = {"binary_auc": "Binary-AUC", "above_centre_prior": "minus centre", "above_untrained": "minus untrained"}


def baseline_columns(findings: Findings) -> list[list[Column]]:
    """For each set of images the columns of the paper's map, and of the one that pictures show."""
    found = [m for m in findings.measurements.values() if m.metric in TITLES and _is_shown(m)]
    groups = [group for group in over_seeds(found) if Network.of(group[0]).training != UNTRAINED]
    same = ("data", "image", "fit", "multiple", "num_images")
    tables = grouped(groups, lambda group: tuple(group[0][name] for name in same))
    tables.sort(key=lambda table: _images(table[0]))
    return [_columns(table, findings) for table in tables]


def _images(group: Group) -> tuple[str, int]:
    """Their name, and their size in pixels where it is known."""
    return str(group[0]["data"]), group[0]["image"] or 0


def _is_shown(m: Measurement) -> bool:
    return m["index"] is None and is_final_layer(m) and m["map"] in (*DEFAULT_MAPS, SHOWN_MAP)


def _columns(groups: list[Group], findings: Findings) -> list[Column]:
    columns = []
    data, image = _images(groups[0])
    fit = groups[0][0]["fit"]
    parts = (data, f"{image} px" if image else "", "" if fit in (None, SCORED_FIT) else f"fit {fit}")
    images = ", ".join(filter(None, parts))
    for is_shown in (False, True):
        own = [group for group in groups if (group[0]["map"] == SHOWN_MAP) == is_shown]
        own.sort(key=lambda group: preference(group[0]), reverse=True)  # of one network, the last is shown
        for metric, title in TITLES.items():
            cells = {Network.of(g[0]): _cell(g, findings) for g in own if g[0].metric == metric}
            key = SHOWN_MAP if is_shown else "the paper's map"
            unit = "" if metric == "binary_auc" else "±"
            if cells:
                columns.append(Column(title, unit, "", cells, images, key))
    return columns


def _cell(group: Group, findings: Findings) -> Cell:
    """Of seeds the mean; the interval of a difference is over seeds and images."""
    record = findings.record_of[group[0].identity]
    over = mean_of if group[0].metric == "binary_auc" else mean_over_seeds
    found: Quantity = group[0] if len(group) == 1 else over(group)
    return Cell(found.value, found.low, found.high, record, len(group))
