"""Which models learnt nothing that would bear on a claim: what only they say is no verdict."""

from mixlab.analysis.differences import difference, own_difference
from mixlab.analysis.evidence import Evidence, Measurement, Trained, grouped, is_final_map, is_headline


def unlearnt_features(evidence: Evidence) -> set[Trained]:
    """Trained models whose features no accuracy tells apart from those of their untrained twins."""
    accuracies = evidence.select("knn_top1", "probe_top1", keep=is_headline)
    twins = [m for m in accuracies if m.training == "untrained"]
    better: dict[Trained, list[bool]] = {}
    for group in grouped(m for m in accuracies if m.training != "untrained"):
        twin = [t for t in twins if _same_network(t, group[0])]
        if twin:
            gain = difference(group, twin)
            better.setdefault(Trained.of(group[0]), []).append(gain.interval()[0] > 0)
    return {model for model, gains in better.items() if not any(gains)}


def unlearnt_maps(evidence: Evidence) -> set[Trained]:
    """Trained models whose maps do not surely score above those of their untrained twins."""
    gains = grouped(evidence.select("above_untrained", keep=is_final_map))
    return {Trained.of(group[0]) for group in gains if own_difference(group).interval()[0] <= 0}


def _same_network(a: Measurement, b: Measurement) -> bool:
    return (a.metric, a.data, a.model, a.num_parameters) == (b.metric, b.data, b.model, b.num_parameters)
