"""Each measured claim, both ways."""

from dataclasses import replace

from mixlab.analysis.claims import CLAIMS, Evidence
from mixlab.run import Measurement
from tests.unit.analysis.records import RANKED, measured, seeds, status, verdict


def test_orders_of_families_are_judged_pair_by_pair() -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    metrics = [
        (7, "binary_auc"), (14, "probe_top1"), (15, "miou"), (16, "box_ap"), (17, "robust_top1"), (17, "shifted_top1")
    ]  # fmt: skip
    for number, metric in metrics:
        assert status(number, *(seeds(metric, family, value) for family, value in order.items())) == "supported"
        reverse = zip(order, reversed(order.values()), strict=True)
        assert status(number, *(seeds(metric, family, value) for family, value in reverse)) == "contradicted"
        equal = [seeds(metric, family, 0.8) for family in order]
        assert status(number, *equal) == "not resolved at this scale"
        assert status(number, *equal[:2]) == "not measured"


def test_ranks_that_are_equal_contradict_a_strict_order() -> None:
    def ranks(linear: float, half: float = 0.0) -> list[Measurement]:
        values = {"attention": 256.0, "mamba2": 60.0, "linear_attention": linear}
        return [
            measured("off_diagonal_rank", f, v, low=v - half, high=v + half, definition="numerical", seed=seed)
            for f, v in values.items()
            for seed in range(3)
        ]

    assert status(6, *ranks(64.0)) == "contradicted"
    assert status(6, *ranks(60.0)) == "contradicted"
    assert status(6, *ranks(40.0)) == "supported"
    unsure = ranks(64.0, half=30)

    def bounds(value: float) -> list[Measurement]:
        return [replace(m, metric="off_diagonal_rank_bound", value=value, low=None, high=None) for m in unsure]

    assert status(6, *unsure, *bounds(64.0)) == "contradicted", "a scan of state 64 cannot have more"
    assert status(6, *unsure, *bounds(128.0)) == "not resolved at this scale"
    sizes = [
        measured("off_diagonal_rank", f, 9.0, definition="numerical", chunk=c)
        for f, c in zip(RANKED, (256, 64, 64), strict=True)
    ]
    assert status(6, *sizes) == "not measured"  # blocks of different sizes say nothing about each other


def test_full_blocks_decide_nothing_about_the_order_of_ranks() -> None:
    def full(chunks: tuple[int, int, int]) -> list[Measurement]:
        return [
            measured("off_diagonal_rank", f, float(c), low=c, high=c, definition="numerical", chunk=c, seed=seed)
            for f, c in zip(RANKED, chunks, strict=True)
            for seed in range(3)
        ]

    assert status(6, *full((50, 51, 50))) == status(6, *full((16, 16, 16))) == "not measured"
    partly = [replace(m, value=m.value / 2, low=m.low / 2, high=m.high / 2) for m in full((50, 51, 50)) if m.low]
    assert status(6, *partly) == "contradicted", "25.5 of 51 are as much as 25 of 50: no strict order"
    unsure = [replace(m, value=15.0, low=9.0, high=16.0) for m in full((16, 16, 16))]
    bounds = [replace(m, metric="off_diagonal_rank_bound", value=16.0, low=None, high=None) for m in unsure]
    assert status(6, *unsure, *bounds) == status(6, *unsure), "no block exceeds its own side, whatever the mixer"


def test_training_size_and_registers() -> None:
    dino, taught = (seeds("binary_auc", "attention", v, training=t) for v, t in ((0.8, "dino"), (0.7, "supervised")))
    assert status(8, dino, taught) == "supported"
    assert status(8, dino, seeds("binary_auc", "attention", 0.95, training="supervised")) == "contradicted"
    linear = [seeds("binary_auc", "linear_attention", v, training=t) for v, t in ((0.1, "dino"), (0.9, "supervised"))]
    assert status(8, dino, taught, *linear) == "supported", "the paper compares attention and scans"
    big = seeds("binary_auc", "attention", 0.85, num_parameters=22_000_000)
    assert status(9, dino, big) == "supported in part"
    v2 = [
        measured("binary_auc", "attention", v, training="dinov2", num_parameters=n) for v, n in ((0.6, 22), (0.7, 86))
    ]
    assert status(9, dino, big, *v2) == "contradicted"  # the paper says that DINOv2 falls with size
    falls = [replace(m, value=1.3 - m.value, low=1.29 - m.value, high=1.31 - m.value) for m in v2]
    assert status(9, dino, big, *falls) == "supported"
    assert status(11, v2[0]) == "not measured"


def test_small_must_score_above_every_other_size_and_then_bigger_is_not_better() -> None:
    def sizes(*values: float) -> list[Measurement]:
        counts = (10_000_000, 40_000_000, 88_000_000)
        return [
            m for v, n in zip(values, counts, strict=False) for m in seeds("binary_auc", "mamba2", v, num_parameters=n)
        ]

    assert status(31, sizes(0.6, 0.8, 0.7)) == "supported"
    assert status(31, sizes(0.6, 0.7, 0.8)) == "contradicted"
    assert status(31, sizes(0.6, 0.8)) == "not measured", "two sizes have none between"


def test_heads_of_two_kinds_are_compared_by_their_means() -> None:
    def heads(family: str, *values: float) -> list[Measurement]:
        place = {"map": "mixing_rows", "layer": 3}
        return [m for i, v in enumerate(values) for m in seeds("binary_auc", family, v, index=i, **place)]

    softmax = heads("attention", 0.6, 0.9)
    assert status(26, softmax, heads("linear_attention", 0.8, 0.5)) == "supported"
    assert status(26, softmax, heads("linear_attention", 0.8, 0.9)) == "contradicted"
    assert status(26, softmax) == "not measured"


def test_what_rank_n_leaves_of_softmax_decides_whether_it_is_of_low_rank() -> None:
    def left(value: float, rank: int = 64, part: str = "off_diagonal") -> list[Measurement]:
        return [
            measured("low_rank_residual", "attention", value, low=value, high=value, rank=rank, part=part, seed=seed)
            for seed in range(3)
        ]

    assert status(25, left(0.001)) == "supported in part", "whole matrices were not measured"
    assert status(25, left(0.001), left(0.002, part="whole")) == "supported"
    assert status(25, left(0.001), left(0.2, part="whole")) == "contradicted"
    found = verdict(25, left(0.001), left(0.3, rank=1))
    assert found.status == "supported in part" and "rank 1 leaves 30.00% of off-diagonal" in found.measured
    assert status(25, left(0.3)[0]) == "not resolved at this scale", "one run"
    small = [replace(m, protocol=replace(m.protocol, chunk=64)) for m in left(0.0)]
    assert status(25, small) == "not measured", "of 64 tokens rank 64 leaves nothing"
    assert status(25, [replace(m, subject=replace(m.subject, family="mamba2")) for m in left(0.3)]) == "not measured"


def test_heads_are_judged_network_by_network_and_some_must_be_lazy() -> None:
    def gap(value: float, **other: object) -> Measurement:
        return measured("best_head_over_worst", "attention", value, layer=3, **other)

    def head(value: float, index: int) -> Measurement:
        return measured("binary_auc_raw", "attention", value, map="mixing_rows", layer=3, index=index)

    gaps = [gap(value, seed=seed) for seed, value in enumerate((0.1, 0.2, 0.6))]
    assert status(10, *gaps) == "supported in part", "however much networks differ in it"
    assert status(10, gaps[0]) == "supported in part", "it is about these very weights"
    assert status(10, *gaps, head(0.5, 0), head(0.8, 1)) == "supported"
    assert status(10, gap(0.005), head(0.5, 0)) == "not resolved at this scale"
    scan = measured("best_head_over_worst", "mamba2", -0.5)
    assert status(10, *gaps, scan, head(0.5, 0)) == "supported", "the paper's heads are those of attention"
    twins = [replace(head(value, index), metric="untrained") for index, value in enumerate((0.6, 0.7))]
    scores = [replace(head(value, index), metric="binary_auc") for index, value in enumerate((0.5, 0.9))]
    claim = next(claim for claim in CLAIMS if claim.number == 10)
    text = claim.check(Evidence([*gaps, *twins, *scores])).measured
    assert text.endswith("best minus worst on the same images 0.400, in untrained twins 0.100")


def test_middle_registers_must_beat_both_ends() -> None:
    first, last = (seeds(f"middle_registers_over_{end}", "mamba2", 0.1) for end in ("first", "last"))
    follows = seeds("register_auc_follows_probe", "mamba2", 0.9)
    assert status(12, first, last, follows) == "supported"
    assert status(12, first, last) == "supported in part"
    assert status(12, first, last, seeds("register_auc_follows_probe", "mamba2", -0.5)) == "contradicted"
    none = seeds("middle_registers_over_last", "mamba2", 0.0)
    assert status(12, first, none, follows) == "not resolved at this scale"
    twin = replace(first[0], metric="untrained_middle_over_first", value=0.08)
    assert "untrained middle over first: +0.080" in verdict(12, first, last, twin).measured
    assert status(34, seeds("middle_token_over_front", "mamba2", 0.1)) == "supported"


def test_layers() -> None:
    def layers(values: list[float]) -> list[Measurement]:
        return [m for i, v in enumerate(values) for m in seeds("binary_auc_raw", "attention", v, layer=i)]

    assert status(13, layers([0.4, 0.5, 0.6, 0.7])) == "supported"
    assert status(13, layers([0.6, 0.62, 0.64, 0.7])) == "contradicted"
    assert status(13, layers([0.4, 0.5])) == "not measured"
    assert status(13, layers([0.4, 0.5, 0.6, 0.7])[::3]) == "not resolved at this scale", "one run"


def test_probes_causality_and_the_gated_cnn() -> None:
    seen, causal = seeds("knn_top1", "attention", 0.8), seeds("knn_top1", "attention", 0.7, causal=True)
    assert status(21, seen, causal) == "supported"
    assert status(21, seen) == "not measured"
    own = [seeds("top1", "attention", value, causal=hidden) for value, hidden in ((0.7, False), (0.8, True))]
    assert status(21, seen, causal, *own) == "contradicted", "the classifier's own accuracy is what the paper measured"
    conv, scan = (seeds("top1", f, v, training="supervised") for f, v in (("gated_conv", 0.8), ("mamba2", 0.7)))
    assert status(22, conv, scan) == "supported"
    pooled, with_token = (
        seeds("top1", "attention", v, num_parameters=n) for v, n in ((0.8, 6_000_000), (0.1, 6_100_000))
    )
    assert status(21, pooled, with_token, seeds("top1", "attention", 0.7, causal=True)) == "supported", "of one size"


def test_dense_tasks_are_decided_by_the_best_visual_mambas_alone() -> None:
    conv, plain = (seeds("miou", f, v) for f, v in (("gated_conv", 0.5), ("mamba2", 0.6)))
    beside = verdict(23, conv, plain)
    assert beside.status == "not measured" and "of other visual Mambas, miou, dinovim_tiny" in beside.measured
    for value, expected in ((0.6, "supported"), (0.4, "contradicted")):
        assert status(23, conv, plain, seeds("miou", "mamba2", value, model="vmamba_tiny")) == expected


def test_dino_maps_are_held_against_the_supervised_mambas_of_the_paper() -> None:
    dino = seeds("binary_auc", "mamba2", 0.8, num_parameters=10_000_000)
    vim = seeds("binary_auc", "mamba1", 0.7, training="supervised", num_parameters=7_000_000)
    found = verdict(8, dino, vim)
    assert found.status == "supported" and "dinovim_tiny (10 M, dino) x3 minus vim_tiny (7 M" in found.measured
    better = seeds("binary_auc", "mamba1", 0.9, training="supervised", num_parameters=7_000_000)
    same = seeds("binary_auc", "mamba2", 0.7, training="supervised", num_parameters=10_000_000)
    assert status(8, dino, same) == "supported"
    assert status(8, dino, same, better) == "contradicted", "both pairs count"
    registers = [
        seeds("binary_auc", family, v, model=model, training=training, num_registers=12)
        for family, v, model, training in (
            ("mamba2", 0.8, "dinomambareg_base", "dino"), ("mamba1", 0.7, "mambareg_base", "supervised"))
    ]  # fmt: skip
    assert status(8, *registers) == "supported"
    for other in ({"model": "vim_base"}, {"num_parameters": 90_000_000}):
        strange = seeds("binary_auc", "mamba1", 0.9, training="supervised", **other)
        assert status(8, dino, strange) == "not measured", "another size is no pair"


def test_mambaout_and_its_rivals_decide_where_they_were_measured() -> None:
    def top1(family: str, value: float, **other: object) -> list[Measurement]:
        return seeds("top1", family, value, training="supervised", **other)

    standing_in = top1("gated_conv", 0.8), top1("mamba2", 0.7)
    assert status(22, *standing_in) == "supported"
    own = top1("gated_conv", 0.6, model="mambaout_femto", native_crop_share=1.0, crop_share=1.0, fit="crop")
    vim = top1("mamba1", 0.7, native_crop_share=0.875, crop_share=0.875, fit="crop")
    assert status(22, *standing_in, own, vim) == "contradicted", "each by its own centre crop"
    released = [replace(m, subject=replace(m.subject, model="timm/mambaout_femto")) for m in own]
    assert status(22, *standing_in, released[0], vim[0]) == "not resolved at this scale", "one run of each"

    dense = seeds("miou", "gated_conv", 0.5), seeds("miou", "mamba1", 0.6, model="vmamba_tiny")
    assert status(23, *dense) == "supported"
    assert status(23, *dense, seeds("miou", "gated_conv", 0.7, model="mambaout_tiny")) == "contradicted"
    assert status(23, *dense[:1], seeds("miou", "mamba1", 0.6)) == "not measured", "Vim is not the state of the art"


def test_registers_probe_better_where_heads_are_heavy() -> None:
    registers = {"model": "dinomambareg_tiny", "num_registers": 12}
    for gain, expected in ((0.1, "supported"), (-0.1, "contradicted")):
        heavy = [
            seeds("probe_top1", "mamba2", 0.7, heads="heavy"),
            seeds("probe_top1", "mamba2", 0.7 + gain, heads="heavy", **registers),
        ]
        light = [
            seeds("probe_top1", "mamba2", 0.7, heads="light"),
            seeds("probe_top1", "mamba2", 0.7 - gain, heads="light", **registers),
        ]
        assert status(30, *heavy, *light) == expected


def test_sizes_are_compared_within_one_protocol_and_another_study_takes_nothing_away() -> None:
    def sizes(image: int, **scores: float) -> list[Measurement]:
        named = {"narrow": 300_000, "tiny": 1_000_000, "small": 5_000_000, "base": 20_000_000}
        return [
            m
            for name, value in scores.items()
            for m in seeds("binary_auc", "attention", value, num_parameters=named[name], image=image, model=name)
        ]

    one, other = sizes(112, narrow=0.6, tiny=0.7), sizes(160, small=0.7, base=0.8)
    assert status(9, one) == status(9, one, other) == "supported in part", "DINOv2 is missing"
    assert status(9, one, sizes(160, small=0.8, base=0.7)) == "contradicted"


def test_comparisons_of_one_name_say_their_data() -> None:
    found = [
        seeds("binary_auc", family, value, data=data)
        for data in ("masks", "voc")
        for family, value in {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}.items()
    ]
    said = verdict(7, *found).measured
    assert said.count(" on masks: +0.100") == said.count(" on voc: +0.100") == 2
    assert " on masks" not in verdict(7, *found[:3]).measured
