"""Where our figures are: readers of the result files that the commands of an item leave."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from mixlab.analysis.cost import count_macs, count_with_classifier, on_meta
from mixlab.analysis.score_differences import ScoreDifference
from mixlab.backbones.zoo import ZOO
from mixlab.run.directory import file_name
from mixlab.run.files import read_json
from mixlab.studies.reproduce.items import Read, Reading
from mixlab.studies.reproduce.measures import dense_place
from mixlab.studies.reproduce.networks import ItemSetting, Network


def probe_best(network: Network, name: str) -> Read:
    """The best head, as the papers choose it: on the validation images themselves."""
    return partial(_probe_best, network, name)


def _probe_best(network: Network, name: str, setting: ItemSetting) -> Reading | None:
    found = _result(setting.place(network), name)
    return None if found is None else _accuracy(found["modes"]["augmented"]["best"])


def probe_head(network: Network, name: str, blocks: int, strategy: str, lr: float, weight_decay: float) -> Read:
    return partial(_probe_head, network, name, (blocks, strategy, lr, weight_decay))


def _probe_head(network: Network, name: str, wanted: tuple[Any, ...], setting: ItemSetting) -> Reading | None:
    found = _result(setting.place(network), name)
    rows = [] if found is None else found["modes"]["augmented"]["heads"]
    own = [row for row in rows if (row["blocks"], row["strategy"], row["lr"], row["weight_decay"]) == wanted]
    return _accuracy(own[0]) if own else None


def shifted(network: Network, data: str) -> Read:
    return partial(_shifted, network, data)


def _shifted(network: Network, data: str, setting: ItemSetting) -> Reading | None:
    found = _result(setting.place(network), f"robust_{file_name(network.key)}")
    row = None if found is None else found["sets"].get(data)
    return None if row is None or row["top1"] is None else _accuracy(row)


def top1(network: Network) -> Read:
    """Of the classifier that was trained, or of the released one."""
    return partial(_top1, network)


def _top1(network: Network, setting: ItemSetting) -> Reading | None:
    found = _result(setting.place(network), "accuracy")
    return _shifted(network, "val", setting) if found is None else _accuracy(found["score"])


def segmentation(network: Network, metric: str, mode: str = "single") -> Read:
    return partial(_segmentation, network, metric, mode)


def _segmentation(network: Network, metric: str, mode: str, setting: ItemSetting) -> Reading | None:
    name = "segmentation" if mode == "single" else f"segmentation_{mode}"
    found = _result(dense_place(setting, network, "ade20k"), name)
    if found is None or found[metric] is None:
        return None
    low, high = (found.get("miou_interval") or (None, None)) if metric == "miou" else (None, None)
    return Reading(found[metric], low, high, found["n"])


def detection(network: Network, kind: str, metric: str) -> Read:
    return partial(_detection, network, kind, metric)


def _detection(network: Network, kind: str, metric: str, setting: ItemSetting) -> Reading | None:
    found = _result(dense_place(setting, network, "coco"), "detection")
    if found is None or found[kind][metric] is None:
        return None
    name = {"boxes": "box_ap", "masks": "mask_ap"}[kind]
    measured = [one for one in found.get("measurements", ()) if one["metric"] == name and metric == "AP"]
    low, high = (measured[0].get("low"), measured[0].get("high")) if measured else (None, None)
    return Reading(found[kind][metric], low, high, found["n"])


def score(item: str, study: str, network: Network) -> Read:
    """A network's Binary-AUC, of the last row where it has several."""
    return partial(_score, item, study, network)


def _score(item: str, study: str, network: Network, setting: ItemSetting) -> Reading | None:
    found = _result(setting.run / item, f"auc_{study}")
    rows = [] if found is None else [row for row in found["rows"] if row["label"] == network.key]
    return _estimate(rows[-1]["auc"]) if rows else None


def score_gap(item: str, study: str, first: str, second: str) -> Read:
    """By how much one label scores above another on the same images, by the map of each."""
    return partial(_score_gap, item, study, first, second)


def _score_gap(item: str, study: str, first: str, second: str, setting: ItemSetting) -> Reading | None:
    found = _result(setting.run / item, f"auc_{study}")
    for record in [] if found is None else found["comparisons"]:
        one, gap = ScoreDifference.from_json(record), _estimate(record["difference"])
        if (one.first, one.second) == (first, second):
            return gap
        if (one.first, one.second) == (second, first) and gap:
            low, high = (None if end is None else -end for end in (gap.high, gap.low))
            return Reading(-gap.value, low, high, gap.n)
    return None


def correlation(item: str, study: str, label: str) -> Read:
    return partial(_correlation, item, study, label)


def _correlation(item: str, study: str, label: str, setting: ItemSetting) -> Reading | None:
    found = _result(setting.run / item, f"auc_{study}")
    one = None if found is None else found["correlations"].get(label)
    if one is None or one["spearman"] is None:
        return None
    return Reading(one["spearman"], one["low"], one["high"], one["n"])


def block_rank(item: str, network: Network, kind: str, what: str = "numerical") -> Read:
    return partial(_block_rank, item, network, kind, what)


def _block_rank(item: str, network: Network, kind: str, what: str, setting: ItemSetting) -> Reading | None:
    found = _result(setting.run / item, f"rank_{file_name(network.key)}")
    if found is None:
        return None
    part = found["overall"][kind]
    value = part["bound"]["max"] if what == "bound" else part[what]["mean"]
    return None if value is None else Reading(float(value), n=part["num_blocks"])


def num_parameters(network: Network, *, always: bool = False) -> Read:
    """With the classifier for 1,000 classes; counted, not measured. `always`: also before the network is in the run."""
    return partial(_counted, network, _parameters, always)


def backbone_parameters(network: Network) -> Read:
    """Without a classifier."""
    return partial(_counted, network, lambda name: on_meta(name).num_parameters, False)


def num_macs(network: Network, *, always: bool = False) -> Read:
    return partial(_counted, network, _macs, always)


def _counted(network: Network, count: Callable[[str], int], always: bool, setting: ItemSetting) -> Reading | None:
    known = network.model in ZOO and (always or setting.place(network).is_dir())
    return Reading(float(count(network.model))) if known else None


@cache
def _macs(name: str) -> int:
    return count_macs(on_meta(name), 224)


@cache
def _parameters(name: str) -> int:
    return count_with_classifier(on_meta(name))


def _result(place: Path, name: str) -> dict[str, Any] | None:
    file = place / "results" / f"{name}.json"
    return read_json(file) if file.is_file() else None


def _accuracy(row: dict[str, Any]) -> Reading:
    return Reading(row["top1"], row["low"], row["high"], row["n"])


def _estimate(found: dict[str, Any]) -> Reading | None:
    if found["mean"] is None:
        return None
    return Reading(found["mean"], found["low"], found["high"], found["n"])
