"""Which measurements may be compared, and which are preferred: the one rule of the ledger, report and commands.

Measurements repeat each other if they differ in the seed alone: one network up to its weights, one protocol. Runs say
by their names that they are repetitions: NAME-s0, NAME-s1. Two networks are compared only by measurements of one
protocol; where both have several, by the most preferred of them (`preference`).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mixlab.run import UNTRAINED, Measurement
from mixlab.run.protocols import MapProtocol
from mixlab.statistics import Difference, Significance, difference, has_learnt, mean_over_seeds

Group = list[Measurement]  # of one network and protocol, one per seed
Pair = tuple[Group, Group]
Item = TypeVar("Item")

ACCURACIES = ("knn_top1", "probe_top1")  # of features: a network learnt if one of these says so
TASK = ("data", "val_data", "split", "change")  # a comparison on each, never one instead of another
FOLLOWING = ("source", "layer", "layers", "chunk", "map")  # may differ between two architectures
DEFAULT_MAPS = (None, "cosine", "pooled_cosine")  # the paper's, with or without a class token

# Where a network was measured by several protocols, the first value named here goes first, and the first choice on
# which two protocols differ decides. All labels go before few, all images before some.
PREFERRED: dict[str, Sequence[Any]] = {
    "limited": (None, False),
    "num_images": (None,),
    "num_train": (None,),
    "register": (None,),
    "blocks": (None, 1),  # the best head of a probe; nearest neighbours in the last layer
    "strategy": (None, "output"),
    "heads": ("light", "heavy", "grid"),  # Table 1 compares families by its light heads
    "mode": ("augmented", "single"),  # both papers train probes on crops, and test segmentation at one scale first
    "frozen": (None, False),
    "head": ("cascade", "mask"),  # Table 3; MambaOut's is "mask"
    "k": (20,),  # DINO's
    "map": DEFAULT_MAPS,
}


class Network(NamedTuple):
    """A network without its seed: everything but the weights."""

    name: str  # its label without the seed
    model: str
    family: str
    training: str
    num_parameters: int
    num_registers: int
    causal: bool

    @classmethod
    def of(cls, m: Measurement) -> "Network":
        return cls(*(getattr(m.subject, name) for name in cls._fields))

    @property
    def architecture(self) -> "Network":
        """The architecture: the same for any label and training."""
        return self._replace(name="", training="")

    def __str__(self) -> str:
        size = f"{self.num_parameters / 1e6:.2g} M" if self.num_parameters else ""
        kind = ", ".join(part for part in (size, self.training) if part)
        return f"{self.model} ({kind})" if kind else self.model


def over_seeds(measurements: Iterable[Measurement]) -> list[Group]:
    """Groups that repeat one thing. What was drawn several times for one network (few labels) is averaged first."""
    groups = grouped(measurements, lambda m: (m.metric, Network.of(m), _text(m.protocol.choices)))
    return sorted(_with_their_own_heads([_one_per_seed(group) for group in groups]), key=_order)


def preference(m: Measurement, papers: Mapping[str, Sequence[Any]] | None = None) -> tuple[Any, ...]:
    """Sorts protocols, the most preferred first; a paper's own choices go before all others."""
    wanted = {**(papers or {}), **{name: values for name, values in PREFERRED.items() if name not in (papers or {})}}
    places = [values.index(m[name]) if m[name] in values else len(values) for name, values in wanted.items()]
    own_source = "branch" if m["family"] == "mamba2" else "stream"  # what the published probe of its kind reads
    own_fit = "squash" if isinstance(m.protocol, MapProtocol) else "crop"  # as published
    few = -(m["label_share"] or 1.0)
    usual = {
        "image": m["native_image"],
        "fit": own_fit,
        "crop_share": own_crop_share(m),
        "temperature": 0.07,
        "source": own_source,
    }
    unusual = [None not in (m[name], value) and m[name] != value for name, value in usual.items()]
    return (few, *places, *unusual, -m.n, -(m["chunk"] or 0), -(m["image"] or 0), _text(m.protocol.choices))


def preferred(groups: Iterable[Group], *apart: str) -> list[Group]:
    """Of each network, metric and task the most preferred protocol; one for each value of the choices named `apart`."""
    kinds = grouped(groups, lambda group: (*_task(group[0]), *(group[0][name] for name in apart)))
    return [min(kind, key=lambda group: preference(group[0])) for kind in kinds]


def preferred_runs(measurements: Iterable[Measurement], *apart: str) -> list[list[Group]]:
    """Of each network, metric and task by the most preferred protocol: for each seed all measurements, which differ in
    the choices named `apart` alone."""
    protocols = grouped(measurements, lambda m: (*_task(m), _text(_shared(m, apart))))
    kinds = grouped(protocols, lambda group: _task(group[0]))
    chosen = [min(kind, key=lambda group: preference(group[0])) for kind in kinds]
    return [grouped(group, lambda m: m.seed) for group in sorted(chosen, key=_order)]


def comparable(a: Measurement, b: Measurement, *apart: str) -> bool:
    """Whether the protocols agree in all but the choices named `apart`. Two architectures may also differ in what
    follows from them: what features the published probe reads, how it may pool them (there may be no class token),
    which head was best, which layer is the last, how tokens make up blocks; and each may see images by its own centre
    crop, as published accuracies do."""
    chunks = sorted((a["chunk"] or 1, b["chunk"] or 1))
    if Network.of(a).architecture != Network.of(b).architecture and chunks[1] <= 1.1 * chunks[0]:
        same_map = a["map"] == b["map"] or {a["map"], b["map"]} <= set(DEFAULT_MAPS)
        same_heads = len({str(m["heads"]).partition("strategies")[0] for m in (a, b)}) == 1
        apart = (*apart, *FOLLOWING) if same_map else apart
        apart = (*apart, "heads") if same_heads else apart
        own_crops = all(m["fit"] == "crop" and m["crop_share"] == own_crop_share(m) for m in (a, b))
        apart = (*apart, "crop_share") if own_crops else apart
    return a.metric == b.metric and _shared(a, apart) == _shared(b, apart)


def own_crop_share(m: Measurement) -> float:
    return m["native_crop_share"] or 0.875  # 224 of 256; older run directories hold networks of this share alone


def pairs(
    first: Iterable[Group],
    second: Sequence[Group],
    *apart: str,
    allowed: Callable[[Network, Network], bool] = lambda a, b: True,
    papers: Mapping[str, Sequence[Any]] | None = None,
) -> list[Pair]:
    """For each network of the first kind and each task: the allowed network of the second that is nearest in size, by
    the most preferred protocol that both were measured with."""
    found: dict[Any, list[Pair]] = {}
    for a in first:
        for b in second:
            if comparable(a[0], b[0], *apart) and allowed(Network.of(a[0]), Network.of(b[0])):
                found.setdefault(_task(a[0]), []).append((a, b))

    def rank(pair: Pair) -> tuple[Any, ...]:
        a, b = (group[0] for group in pair)
        return (size_ratio(Network.of(a), Network.of(b)), preference(a, papers), preference(b, papers))

    return [min(options, key=rank) for options in found.values()]


def size_ratio(a: Network, b: Network) -> float:
    small, large = sorted((max(a.num_parameters, 1), max(b.num_parameters, 1)))
    return large / small


class Gain(NamedTuple):
    """The gain of a trained network over its untrained twins, by one metric on one data set."""

    network: Network
    metric: str
    trained: Group
    untrained: Group
    difference: Difference

    def to_json(self) -> dict[str, Any]:
        about = {"model": self.network.model, "name": self.network.name, "training": self.network.training}
        gap = self.difference
        interval = {"value": gap.value, "low": gap.low, "high": gap.high, "n": gap.n}
        seeds = {"num_trained": len(self.trained), "num_untrained": len(self.untrained)}
        return {**about, "metric": self.metric, **interval, **seeds, "significance": str(gap.significance)}


def training_gains(measurements: Iterable[Measurement]) -> list[Gain]:
    """Of accuracies, the difference of the two groups; of Binary-AUC, that on the same images."""
    found = list(measurements)
    known = [m for m in found if m.metric in ACCURACIES and is_headline(m)]
    twins = [m for m in known if m.subject.training == UNTRAINED]
    gains = []
    for own in grouped((m for m in known if m.subject.training != UNTRAINED), Network.of):
        network = Network.of(own[0])
        for a, b in pairs(over_seeds(own), _twins_of(network, twins)):
            gains.append(Gain(network, a[0].metric, a, b, difference(a, b)))
    maps = [m for m in found if m.metric in ("above_untrained", "binary_auc", "untrained") and is_final_map(m)]
    groups = over_seeds(maps)
    for paired in preferred(group for group in groups if group[0].metric == "above_untrained"):
        trained, twin = (_same_but_metric(paired, groups, metric) for metric in ("binary_auc", "untrained"))
        gains.append(Gain(Network.of(paired[0]), "binary_auc", trained, twin, mean_over_seeds(paired)))
    return gains


def learnt_features(gains: Iterable[Gain]) -> dict[Network, bool]:
    """Whether each network learnt anything, by any accuracy; networks without a twin are left out."""
    known = grouped((gain for gain in gains if gain.metric in ACCURACIES), lambda gain: gain.network)
    return {group[0].network: bool(has_learnt(gain.difference for gain in group)) for group in known}


def learnt_maps(gains: Iterable[Gain]) -> dict[Network, bool]:
    """Whether the maps of each network score significantly above its twin's, on every data set."""
    known = grouped((gain for gain in gains if gain.metric == "binary_auc"), lambda gain: gain.network)
    return {g[0].network: all(gain.difference.significance is Significance.MORE for gain in g) for g in known}


def is_headline(m: Measurement) -> bool:
    """A network's own accuracy, not a cell of an ablation or a probe on one register."""
    return m.metric != "probe_top1" or (m["blocks"] is None and m["register"] is None)


def is_default_map(m: Measurement) -> bool:
    """A score of the paper's map of a whole network, not of a head, a register or another kind of map."""
    return m["index"] is None and m["map"] in DEFAULT_MAPS


def is_final_map(m: Measurement) -> bool:
    """Such a score after the last layer."""
    return is_default_map(m) and is_final_layer(m)


def is_final_layer(m: Measurement) -> bool:
    return m["layer"] is None or m["layer"] == (m["num_layers"] or 0) - 1


def averaged(group: Sequence[Measurement]) -> Measurement:
    """The mean of several on the same images: the ends of its interval are those of theirs on average."""
    num = len(group)
    lows, highs = ([end for m in group if (end := getattr(m, name)) is not None] for name in ("low", "high"))
    ends = (sum(lows) / num, sum(highs) / num) if len(lows) == len(highs) == num else (None, None)
    scores = [m.by_image for m in group if m.by_image is not None]
    paired = len(scores) == num and len({len(each) for each in scores}) == 1
    return replace(
        group[0],
        value=sum(m.value for m in group) / num,
        low=ends[0],
        high=ends[1],
        by_image=np.mean(scores, axis=0) if paired else None,
    )


def _twins_of(network: Network, untrained: Sequence[Measurement]) -> list[Group]:
    """Untrained networks of that architecture; those of the same name alone, where there are any."""
    same = [m for m in untrained if Network.of(m).architecture == network.architecture]
    named = [m for m in same if m.subject.name == network.name] or same
    return [_one_per_seed(group) for group in grouped(named, lambda m: (m.metric, _text(m.protocol.choices)))]


def _same_but_metric(group: Group, groups: Iterable[Group], metric: str) -> Group:
    lead = group[0]
    same = [g for g in groups if g[0].metric == metric and g[0].protocol.choices == lead.protocol.choices]
    return next((g for g in same if Network.of(g[0]) == Network.of(lead)), [])


def _one_per_seed(group: Sequence[Measurement]) -> Group:
    return [same[0] if len(same) == 1 else averaged(same) for same in grouped(group, lambda m: m.seed)]


def _with_their_own_heads(groups: Iterable[Group]) -> list[Group]:
    """A probe's best head may be another for another seed: still one protocol, unless a seed was measured twice."""
    merged: list[Group] = []
    for kin in grouped(groups, lambda group: (group[0].metric, Network.of(group[0]), _text(_shared(group[0], ())))):
        seeds = [m.seed for group in kin for m in group]
        merged += [sum(kin, Group())] if len(set(seeds)) == len(seeds) else kin
    return merged


def _shared(m: Measurement, apart: Sequence[str]) -> dict[str, Any]:
    """The choices of a protocol but some; of a classifier its kind."""
    shared = {name: value for name, value in m.protocol.choices.items() if name not in apart}
    if "classifier" in shared:
        shared["classifier"] = kind_of_classifier(str(shared["classifier"]))
    return shared


def kind_of_classifier(text: str) -> str:
    """How it was trained, "cached probe, 100 epochs" or "its own", without the best head of a probe, "4 x cls, branch",
    which some run directories name as well."""
    return re.sub(r", \d+ x .*", "", text)


def _task(m: Measurement) -> tuple[Any, ...]:
    """Older run directories name no split; it was "val", as it is in all others."""
    return (Network.of(m), m.metric, *(m[name] or ("val" if name == "split" else None) for name in TASK))


def _order(group: Group) -> str:
    m = group[0]
    return str((m.metric, m["data"], m["training"], m["family"], m["model"], m["num_parameters"], m["layer"] or 0))


def _text(choices: Mapping[str, Any]) -> str:
    return json.dumps(choices, sort_keys=True)


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> list[list[Item]]:
    """Items with equal keys together, in the order in which they come."""
    found: dict[Any, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())
