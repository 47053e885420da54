"""The weights that a run had before its training went on. What was measured of them is of no network that it still has,
so it is neither averaged with newer results under the same label nor shown beside them.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from mixlab.run.measurement import Measurement
from mixlab.run.protocols import DenseProtocol, SpeedProtocol

Weights = tuple[str, str | None]  # the label of a network, and the digest of its weights
Result = tuple[dict[str, Any], list[Measurement]]  # the content of a file, and its measurements


def weights_of(m: Measurement) -> Weights | None:
    """None of a speed, which is the same for any weights."""
    return None if isinstance(m.protocol, SpeedProtocol) else (m.subject.label, m.subject.weights)


def find_earlier_weights(results: Iterable[Result], method: Callable[[], str | None]) -> set[Weights]:
    """All but the weights that were measured last, where several weights of one network have one label and seed.

    Of the network that a run directory trained, these are its stages: `method` says how it was trained, None where it
    was not; it is asked if needed. Of others, only weights that were read from a checkpoint, at some step, are stages.
    """
    dates: dict[tuple[Any, ...], dict[Weights, str]] = {}
    stages: set[Weights] = set()
    for content, measured in results:
        origin = content.get("provenance")
        date = str(origin.get("date") or "") if isinstance(origin, dict) else ""
        for m in measured:
            weights, is_dense = weights_of(m), isinstance(m.protocol, DenseProtocol)  # of a backbone's own training
            if weights is not None and m.subject.weights is not None:
                about = m.subject
                own = dates.setdefault((about.label, about.model, m.seed, about.training, is_dense), {})
                own[weights] = max(date, own.pop(weights, ""))  # of equal dates, the file that was read last counts
                if about.step is not None:
                    stages.add(weights)
    several = {key: own for key, own in dates.items() if len(own) > 1}
    kind = method() if several else None
    found: set[Weights] = set()
    for (*_, training, is_dense), own in several.items():
        *earlier, _ = sorted(own, key=lambda weights: own[weights])
        trained_here = kind is not None and (is_dense or training == kind)
        found.update(earlier if trained_here else stages.intersection(earlier))
    return found


def networks_in(content: dict[str, Any], measured: Iterable[Measurement]) -> set[Weights]:
    """The networks of a result: those of its measurements, or else those that it describes."""
    if found := {weights_of(m) for m in measured}:
        return {weights for weights in found if weights is not None}
    several = [part for name in ("subjects", "models") if isinstance(part := content.get(name), list)]
    described = [about for about in chain([content.get("subject")], *several) if isinstance(about, dict)]
    return {(str(about.get("label")), str(about.get("weights"))) for about in described}
