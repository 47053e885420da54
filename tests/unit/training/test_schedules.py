"""Schedules against the plain tables that DINO builds before training."""

import math

import numpy as np
import pytest

from mixlab.training.optim import cosine, learning_rate, linear_by_epoch


def dino_table(base: float, final: float, epochs: int, per_epoch: int, warmup_epochs: int = 0) -> np.ndarray:
    """One value per step: a ramp, then half a cosine over what is left."""
    ramp = np.linspace(0, base, warmup_epochs * per_epoch)
    rest = np.arange(epochs * per_epoch - len(ramp))
    return np.concatenate([ramp, final + 0.5 * (base - final) * (1 + np.cos(np.pi * rest / len(rest)))])


@pytest.mark.parametrize(("epochs", "per_epoch", "warmup"), [(10, 7, 3), (5, 1, 2), (4, 9, 0), (3, 5, 1)])
def test_the_learning_rate_follows_the_table_of_dino_at_every_step(epochs: int, per_epoch: int, warmup: int) -> None:
    table = dino_table(2e-3, 1e-6, epochs, per_epoch, warmup)
    ours = [
        learning_rate(step, peak=2e-3, end=1e-6, warmup=warmup * per_epoch, total=epochs * per_epoch)
        for step in range(epochs * per_epoch)
    ]
    np.testing.assert_allclose(ours, table, rtol=1e-12, atol=1e-15)


def test_momentum_and_weight_decay_follow_a_cosine_without_warm_up() -> None:
    table = dino_table(0.996, 1.0, 6, 11)
    np.testing.assert_allclose([cosine(s, start=0.996, end=1.0, total=66) for s in range(66)], table, rtol=1e-12)


def test_the_teacher_temperature_rises_in_equal_steps_and_then_stays() -> None:
    table = np.concatenate([np.linspace(0.04, 0.07, 30), np.full(20, 0.07)])
    np.testing.assert_allclose([linear_by_epoch(e, start=0.04, end=0.07, epochs=30) for e in range(50)], table)


def test_no_warm_up_means_the_final_temperature_from_the_start() -> None:
    assert linear_by_epoch(0, start=0.04, end=0.07, epochs=0) == 0.07


def test_a_cosine_ends_where_it_should_and_stays_there() -> None:
    assert cosine(100, start=1.0, end=0.25, total=100) == pytest.approx(0.25)
    assert cosine(500, start=1.0, end=0.25, total=100) == pytest.approx(0.25)
    assert math.isclose(cosine(50, start=1.0, end=0.0, total=100), 0.5)


def test_poly_falls_in_a_straight_line_after_the_warm_up() -> None:
    rates = [learning_rate(s, peak=6e-5, end=0.0, start=6e-11, warmup=15, total=115, decay="poly") for s in range(116)]
    np.testing.assert_allclose(rates[:15], np.linspace(6e-11, 6e-5, 15))
    np.testing.assert_allclose(rates[15:], np.linspace(6e-5, 0.0, 101), atol=1e-18)


def test_drops_leave_a_tenth_each() -> None:
    rates = [learning_rate(s, peak=1e-4, end=0.0, warmup=2, total=12, decay="drops", drops=(8, 11)) for s in range(12)]
    np.testing.assert_allclose(rates, [0, *[1e-4] * 7, *[1e-5] * 3, 1e-6])


def test_an_unknown_decay_is_refused() -> None:
    with pytest.raises(ValueError, match="choose cosine, poly or drops"):
        learning_rate(5, peak=1.0, end=0.0, warmup=0, total=9, decay="stairs")


def test_a_warm_up_of_one_step_has_the_full_rate_and_not_none() -> None:
    rates = [learning_rate(s, peak=2.0, end=0.0, warmup=1, total=9, decay="drops", drops=()) for s in range(3)]
    assert rates == [2.0] * 3
