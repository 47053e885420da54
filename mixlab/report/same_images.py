"""Maps of the same images that stand in several results, since each network was looked at by a command of its own."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from mixlab.analysis.comparisons import grouped
from mixlab.analysis.figures.chart import Styles
from mixlab.report.findings import Record
from mixlab.report.pictures import said_of_maps, where_coloured
from mixlab.report.sections import place_of
from mixlab.run import base_label
from mixlab.run.arrays import from_arrays


@dataclass(frozen=True)
class JoinedMaps(Record):
    """Several results of `mixlab maps`, shown as one; links lead to the first."""

    joined: dict[str, NDArray[Any]] = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.joined


def join_maps(records: Iterable[Record], styles: Styles) -> list[Record]:
    """One record for those of the same images, layer and kind of map, with one seed of each network.

    A label that comes again may be another network: its record stays by itself.
    """
    found = []
    for alike in grouped(records, _shown_alike):
        parts: list[Record] = []
        labels: set[str] = set()
        for record in sorted(alike, key=lambda record: [place_of(label, styles) for label in _labels(record)]):
            own = {*_labels(record)}
            if own & labels:
                found.append(record)
            elif not own or {*map(base_label, own)} - {*map(base_label, labels)}:
                parts.append(record)
                labels |= own
        found.append(parts[0] if len(parts) == 1 else _joined(tuple(parts)))
    return found


def _labels(record: Record) -> list[str]:
    return [subject["label"] for subject in record.content["subjects"]]


def _shown_alike(record: Record) -> str:
    content = record.content
    if not from_arrays(record.arrays(), "images"):
        return record.file  # figures alone
    same = [content.get(name) for name in ("data", "image", "images", "layer")]
    same += [content.get("protocol", {}).get(name) for name in ("fit", "multiple")]
    return json.dumps([*same, content["pca"]["fit"], where_coloured(content), said_of_maps(content)])


def _joined(parts: tuple[Record, ...]) -> JoinedMaps:
    lead, contents = parts[0], [part.content for part in parts]
    content = lead.content | {
        "subjects": [subject for each in contents for subject in each["subjects"]],
        "maps": {label: kind for each in contents for label, kind in each["maps"].items()},
    }
    arrays = {name: array for part in reversed(parts) for name, array in part.arrays().items()}
    return JoinedMaps(lead.run, lead.name, lead.file, content, parts=parts, joined=arrays)
