"""Which measurements repeat each other, which are compared, and what counts as learnt."""

from dataclasses import replace
from typing import Any

import pytest

from mixlab.analysis.comparisons import (
    Network,
    learnt_features,
    learnt_maps,
    over_seeds,
    pairs,
    preference,
    preferred,
    training_gains,
)
from mixlab.run import Measurement
from mixlab.statistics import Significance, difference
from tests.unit.analysis.records import measured


def seeds(metric: str, family: str, values: list[float], label: str = "net", **other: Any) -> list[Measurement]:
    return [
        measured(metric, family, value, seed=seed, label=f"{label}-s{seed}", **other)
        for seed, value in enumerate(values)
    ]


PROTOCOLS = [  # metric, a protocol, and another that is preferred to it
    ("probe_top1", {"label_share": 0.1}, {}),
    ("probe_top1", {"mode": "cached"}, {"mode": "augmented"}),
    ("probe_top1", {"heads": "heavy"}, {"heads": "light"}),
    ("probe_top1", {"num_train": 100}, {}),
    ("knn_top1", {"strategy": "mean", "blocks": 4}, {"strategy": "output", "blocks": 1}),
    ("knn_top1", {"k": 10}, {"k": 20}),
    ("knn_top1", {"label_share": 0.01, "label_seed": 1}, {}),
    ("knn_top1", {"fit": "squash"}, {"fit": "crop"}),
    ("miou", {"mode": "multi"}, {"mode": "single"}),
    ("miou", {"frozen": True}, {"frozen": False}),
    ("box_ap", {"head": "mask"}, {"head": "cascade"}),
    ("knn_top1", {"image": 32, "native_image": 64}, {"image": 64, "native_image": 64}),
    ("knn_top1", {"crop_share": 0.5}, {"crop_share": 0.875}),
    ("knn_top1", {"temperature": 0.01}, {"temperature": 0.07}),
    ("binary_auc", {"num_images": 10}, {}),
    ("binary_auc", {"fit": "crop", "crop_share": 0.875}, {"fit": "squash", "crop_share": 1.0}),
    ("off_diagonal_rank", {"chunk": 16}, {"chunk": 32}),
]


def test_two_architectures_may_differ_in_how_their_probes_pool_and_in_nothing_else_of_their_heads() -> None:
    ours = seeds("probe_top1", "attention", [0.5], heads="blocks 1 4, strategies cls mean")
    assert pairs(
        over_seeds(ours), over_seeds(seeds("probe_top1", "gated_conv", [0.6], heads="blocks 1 4, strategies mean"))
    )
    assert not pairs(
        over_seeds(ours), over_seeds(seeds("probe_top1", "gated_conv", [0.6], heads="blocks 4, strategies mean"))
    )
    assert not pairs(
        over_seeds(ours), over_seeds(seeds("probe_top1", "attention", [0.6], heads="blocks 1 4, strategies mean"))
    )


@pytest.mark.parametrize(("metric", "other", "first"), PROTOCOLS)
def test_another_protocol_is_no_further_seed_and_the_preferred_one_is_compared(
    metric: str, other: dict[str, Any], first: dict[str, Any]
) -> None:
    ours = [*seeds(metric, "attention", [0.5, 0.6], **other), *seeds(metric, "attention", [0.7, 0.8], **first)]
    theirs = [*seeds(metric, "mamba2", [0.3, 0.4], **first), *seeds(metric, "mamba2", [0.1, 0.2], **other)]
    assert [[m.value for m in group] for group in over_seeds(ours)] in (
        [[0.5, 0.6], [0.7, 0.8]], [[0.7, 0.8], [0.5, 0.6]]
    )  # fmt: skip
    ((a, b),) = pairs(over_seeds(ours), over_seeds(theirs))
    assert [m.value for m in (*a, *b)] == [0.7, 0.8, 0.3, 0.4]
    ((a, b),) = pairs(over_seeds(ours), over_seeds(theirs[2:]))
    assert [m.value for m in (*a, *b)] == [0.5, 0.6, 0.1, 0.2], "the one that both were measured with"
    assert pairs(over_seeds(ours[:2]), over_seeds(theirs[:2])) == [], "protocols must agree"
    assert [group[0].value for group in preferred(over_seeds(ours))] == [0.7]


def test_a_papers_own_choices_go_first() -> None:
    mask, cascade = (measured("box_ap", "mamba2", 0.5, head=head) for head in ("mask", "cascade"))
    assert preference(cascade) < preference(mask)
    assert preference(mask, {"head": ("mask",)}) < preference(cascade, {"head": ("mask",)})


def test_runs_of_other_names_are_no_further_seeds() -> None:
    short, long = (seeds("knn_top1", "attention", [value, value], label) for value, label in ((0.4, "a"), (0.6, "b")))
    assert [[m.value for m in group] for group in over_seeds([*short, *long])] == [[0.4, 0.4], [0.6, 0.6]]


def test_what_was_drawn_again_for_one_network_is_averaged() -> None:
    draws = [
        measured("knn_top1", "attention", v, seed=0, label_share=0.1, label_seed=s) for s, v in ((0, 0.4), (1, 0.6))
    ]
    ((found,),) = over_seeds(draws)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.49, 0.51))


def test_the_interval_of_an_average_stays_within_what_a_share_can_be() -> None:
    draws = [measured("knn_top1", "attention", 0.0, low=0.0, high=0.3, label_seed=1, label_share=0.5)]
    draws += [measured("knn_top1", "attention", 0.1, low=0.02, high=0.4, label_seed=2, label_share=0.5)]
    ((mean,),) = over_seeds(draws)
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.05, 0.01, 0.35))


def test_a_probes_best_head_may_be_another_for_each_seed() -> None:
    heads = ("probe, 4 x cls, stream", "probe, 4 x mean, stream")
    ours = [measured("shifted_top1", "attention", 0.5, seed=seed, classifier=head) for seed, head in enumerate(heads)]
    assert [len(group) for group in over_seeds(ours)] == [2]
    twice = [*ours, measured("shifted_top1", "attention", 0.9, seed=0, classifier=heads[1])]
    assert sorted(len(group) for group in over_seeds(twice)) == [1, 2], "two probes of one network are not mixed"


def test_probes_of_another_training_are_another_protocol() -> None:
    long, short = (f"cached probe, {epochs} epochs" for epochs in (100, 50))
    ours = [measured("shifted_top1", "attention", 0.5, seed=seed, classifier=long) for seed in (0, 1)]
    other = measured("shifted_top1", "attention", 0.4, seed=2, classifier=short)
    assert sorted(len(group) for group in over_seeds([*ours, other])) == [1, 2]
    (rival,) = over_seeds([measured("shifted_top1", "mamba2", 0.4, classifier=short)])
    assert not pairs(over_seeds(ours), [rival])


def test_each_network_may_be_read_as_its_own_paper_reads_it() -> None:
    vit = over_seeds([measured("probe_top1", "attention", 0.8, source="stream")])
    vims = [measured("probe_top1", "mamba2", value, source=s) for s, value in (("stream", 0.6), ("branch", 0.7))]
    ((_, b),) = pairs(vit, over_seeds(vims))
    assert b[0].value == 0.7
    twin = measured("probe_top1", "mamba2", 0.1, source="stream", training="untrained")
    assert pairs(over_seeds(vims[1:]), over_seeds([twin])) == [], "but one architecture always in the same way"
    pooled = measured("binary_auc", "gated_conv", 0.5, map="pooled_cosine", layer=3)
    assert pairs(over_seeds([measured("binary_auc", "attention", 0.8, map="cosine", layer=5)]), over_seeds([pooled]))


def test_every_set_of_data_is_compared_and_the_nearest_in_size() -> None:
    ours = over_seeds([measured("probe_top1", "attention", 0.8, data=data) for data in ("a", "b", "c")])
    theirs = [
        measured("probe_top1", "mamba2", value, data=data, num_parameters=size)
        for data, size, value in (("a", 6_500_000, 0.6), ("a", 12_000_000, 0.5), ("b", 6_500_000, 0.4))
    ]
    assert [(a[0]["data"], b[0].value) for a, b in pairs(ours, over_seeds(theirs))] == [("a", 0.6), ("b", 0.4)]


# ---------------------------------------------------------------- what was learnt


def test_gains_are_differences_to_twins_of_the_same_protocol() -> None:
    trained, other = seeds("knn_top1", "attention", [0.6, 0.7], k=20), seeds("knn_top1", "attention", [0.9, 0.9], k=10)
    twins = seeds("knn_top1", "attention", [0.2, 0.3], k=20, training="untrained")
    (gain,) = training_gains([*trained, *other, *twins])
    assert (gain.trained, gain.untrained) == (trained, twins)
    assert gain.difference == difference(trained, twins) and gain.network == Network.of(trained[0])


def test_a_twin_of_another_name_is_one_if_there_is_no_other() -> None:
    trained = seeds("knn_top1", "attention", [0.6, 0.7], "vit-long")
    twins = seeds("knn_top1", "attention", [0.2, 0.3], "vit", training="untrained")
    named = seeds("knn_top1", "attention", [0.1, 0.1], "vit-long", training="untrained")
    assert training_gains([*trained, *twins])[0].untrained == twins
    assert training_gains([*trained, *twins, *named])[0].untrained == named
    causal = seeds("knn_top1", "attention", [0.2, 0.3], causal=True, training="untrained")
    assert training_gains([*trained, *causal]) == [], "another architecture is no twin"


def test_a_network_learnt_if_neighbours_or_probes_say_so() -> None:
    twins = [measured(metric, "attention", 0.3, training="untrained") for metric in ("knn_top1", "probe_top1")]
    knn, probe = (measured(metric, "attention", value) for metric, value in (("knn_top1", 0.3), ("probe_top1", 0.6)))
    network = Network.of(knn)
    assert learnt_features(training_gains([knn, probe, *twins])) == {network: True}
    assert learnt_features(training_gains([knn, *twins])) == {network: False}
    assert learnt_features(training_gains([knn, probe])) == {}, "without a twin nobody knows"
    cell = replace(probe, protocol=replace(probe.protocol, blocks=4, strategy="cls"))  # type: ignore[call-arg]
    assert learnt_features(training_gains([knn, cell, *twins])) == {network: False}


def test_maps_learnt_if_they_score_above_the_twins_on_the_same_images() -> None:
    scores, twins, gains = (
        seeds(metric, "attention", values, map="cosine", layer=5, num_layers=6)
        for metric, values in (("binary_auc", [0.7, 0.8]), ("untrained", [0.5, 0.6]), ("above_untrained", [0.2, 0.2]))
    )
    early = seeds("above_untrained", "attention", [-0.2, -0.2], map="cosine", layer=2, num_layers=6)
    (gain,) = training_gains([*scores, *twins, *gains, *early])
    assert (gain.metric, gain.trained, gain.untrained) == ("binary_auc", scores, twins)
    assert gain.difference.significance is Significance.MORE and gain.difference.value == pytest.approx(0.2)
    assert learnt_maps([gain]) == {Network.of(scores[0]): True}
    assert learnt_features([gain]) == {}


def test_networks_are_compared_each_by_its_own_centre_crop_and_by_no_other() -> None:
    def accuracy(family: str, share: float, native: float | None) -> list[Measurement]:
        about = {"fit": "crop", "crop_share": share, "native_crop_share": native, "training": "supervised"}
        return seeds("top1", family, [0.7, 0.72], **about)

    mamba = over_seeds(accuracy("mamba2", 0.875, None))
    own, other = (over_seeds(accuracy("gated_conv", share, 1.0)) for share in (1.0, 0.875))
    assert pairs(own, mamba) and pairs(other, mamba), "its own crop, or the same as the other's"
    assert pairs(over_seeds([m for g in (*own, *other) for m in g]), mamba)[0][0] == own[0], "its own is preferred"
    assert not pairs(over_seeds(accuracy("gated_conv", 0.5, 1.0)), mamba)
