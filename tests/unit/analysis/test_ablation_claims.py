"""Claims about Tables 5 and 6: one network, one thing varied at a time."""

from dataclasses import replace
from typing import Any

from mixlab.run import Measurement
from tests.unit.analysis.records import ORDERED, measured, seeds, status, verdict


def cells(values: dict[tuple[int, str], float], **other: Any) -> list[Measurement]:
    return [m for (b, s), v in values.items() for m in seeds("probe_top1", "mamba2", v, blocks=b, strategy=s, **other)]


def test_four_blocks_and_the_class_token_probe_best() -> None:
    table = {(1, "cls"): 0.6, (4, "cls"): 0.8, (4, "mean"): 0.7, (4, "max"): 0.65}
    assert status(18, cells(table)) == "supported"
    del table[4, "max"]
    part = verdict(18, cells(table))
    assert part.status == "supported in part" and part.measured.endswith("not measured: cls of 4 above max of 4")
    assert status(18, cells(table | {(4, "mean"): 0.9})) == "contradicted"
    twins = cells({(4, "cls"): 0.1, (4, "mean"): 0.9}, training="untrained")
    assert status(18, cells(table), twins) == "supported in part"


def test_cells_of_one_network_are_compared_seed_by_seed() -> None:
    """Seeds differ by far more than the two cells do, but each by the same."""
    table = {(1, "cls"): 0.60, (4, "cls"): 0.65}
    wide = [
        measured("probe_top1", "mamba2", v + 0.1 * seed, blocks=b, strategy=s, seed=seed)
        for (b, s), v in table.items()
        for seed in range(3)
    ]
    assert status(18, *wide) == "supported in part", "unpaired, the interval of three seeds is +- 0.23"


def test_whole_orders_of_the_tables() -> None:
    blocks = {(number, "cls"): 0.5 + 0.1 * number for number in (1, 2, 3, 4)}
    assert status(27, cells(blocks)) == "supported"
    assert status(27, cells(blocks | {(2, "cls"): 0.55})) == "contradicted"
    assert status(27, cells({key: v for key, v in blocks.items() if key[0] in (1, 4)})) == "not measured"
    table = {(4, s): 0.9 - 0.1 * place for place, s in enumerate(("cls", "cls+mean", "cls+max", "mean", "max"))}
    assert status(28, cells(table)) == "supported"
    assert status(28, cells(table | {(4, "cls+mean"): 0.95})) == "contradicted"


def test_learning_rates_and_weight_decays_have_an_order_each() -> None:
    def grid(rates: dict[tuple[float, float], float]) -> list[Measurement]:
        place = {"blocks": 4, "strategy": "cls", "heads": "one"}
        return [
            m
            for (lr, wd), v in rates.items()
            for m in seeds("probe_top1", "mamba2", v, lrs=(lr,), weight_decays=(wd,), **place)
        ]

    decays = {(1e-3, 1e-3): 0.8, (1e-3, 0.0): 0.75, (1e-3, 5e-3): 0.7, (1e-3, 1e-2): 0.65}
    rates = {(2e-3, 1e-3): 0.85, (5e-4, 1e-3): 0.75, (2.5e-4, 1e-3): 0.7}
    assert status(29, grid(decays | rates)) == "supported"
    assert status(29, grid(decays)) == "supported in part"
    assert status(29, grid(decays | rates | {(2e-3, 1e-3): 0.6})) == "contradicted"
    four = grid({(1e-3, 0.0): 0.7})
    one = [replace(m, protocol=replace(m.protocol, blocks=1), value=m.value - 0.2, low=None, high=None) for m in four]
    best = cells({(4, "cls"): 0.7, (1, "cls"): 0.8})
    assert status(18, four, one, best) == "supported in part", "at the paper's rates, not by the best of all"
    assert status(18, best) == "contradicted"
    own = {family: seeds("probe_top1", family, v, blocks=4, strategy="cls") for family, v in ORDERED.items()}
    assert status(14, *own.values(), grid({(1e-3, 0.0): 0.1})) == "supported", "a cell of a grid is no network's own"


def test_cells_of_an_ablation_are_not_taken_for_a_models_accuracy() -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    best = [seeds("probe_top1", family, value) for family, value in order.items()]
    few = [seeds("probe_top1", "attention", 0.1, blocks=1, strategy=s) for s in ("cls", "mean")]
    registers = [seeds("probe_top1", "mamba2", 0.1, register=r) for r in range(3)]
    assert status(14, *best, *few, *registers) == "supported"
    table = [seeds("probe_top1", f, 1 - v, blocks=4, strategy="cls") for f, v in order.items()]
    assert status(14, *best, *table) == "contradicted", "the paper's own cell decides where there is one"
    heavier = seeds("probe_top1", "mamba2", 0.99, num_registers=12, model="dinomambareg_tiny")
    assert status(14, *best, heavier) == "supported", "its order is of models without registers"


def test_untrained_models_decide_nothing_about_maps() -> None:
    names = ("attention", "mamba2", "linear_attention")
    untrained = [
        measured("binary_auc", f, v, training="untrained") for f, v in zip(names, (0.9, 0.8, 0.7), strict=True)
    ]
    assert status(7, *untrained) == "not measured"
    assert status(10, measured("best_head_over_worst", "attention", 0.2, training="untrained")) == "not measured"


def test_a_network_without_the_papers_heads_still_counts_by_its_best() -> None:
    plain = {"heads": "one", "lrs": (1e-3,), "weight_decays": (0.0,)}
    table = {(1, "cls"): 0.6, (4, "cls"): 0.8, (4, "mean"): 0.7, (4, "max"): 0.65}
    of_the_grid = cells(table, num_parameters=20_000_000, **plain)
    assert status(18, of_the_grid) == "supported"
    found = verdict(18, of_the_grid, cells(table | {(4, "mean"): 0.9}))
    assert found.status == "contradicted"
    assert "(20 M, dino) x3: cls of 4 blocks minus cls of 1 at lr 0.001, weight decay 0: +0.200" in found.measured
