"""Collapse is named when it lasts, with what to try, and a healthy run hears nothing."""

import math

import pytest

from mixlab.training.dino import DinoConfig
from mixlab.training.views import PATIENCE

HEALTHY = {"teacher_entropy": 3.0, "batch_entropy": 5.0, "feature_spread": 0.6, "centre_drift": 0.001}
SICK = {
    "uniform targets": {"teacher_entropy": math.log(1024) - 0.01},
    "one output": {"batch_entropy": 0.01, "teacher_entropy": 0.01},
    "equal features": {"feature_spread": 0.001},
    "restless centre": {"centre_drift": 0.4},
}


@pytest.mark.parametrize("symptom", SICK)
def test_a_symptom_that_lasts_is_told_once_with_a_setting_to_try(symptom: str) -> None:
    watch = DinoConfig(num_prototypes=1024).watch()
    told = [watch.look(step, {**HEALTHY, **SICK[symptom]}) for step in range(3 * PATIENCE)]
    spoken = [text for texts in told for text in texts]
    assert len(spoken) == 1
    assert symptom in spoken[0] and "Try:" in spoken[0] and ("method." in spoken[0] or "optim." in spoken[0])
    assert told[PATIENCE - 1], "it should speak as soon as patience ends"


def test_a_symptom_that_comes_back_is_told_again() -> None:
    watch = DinoConfig(num_prototypes=1024).watch()
    sick = {**HEALTHY, **SICK["one output"]}
    rows = [sick] * PATIENCE + [HEALTHY] + [sick] * PATIENCE
    assert sum(len(watch.look(step, row)) for step, row in enumerate(rows)) == 2


def test_a_healthy_run_and_a_short_scare_hear_nothing() -> None:
    watch = DinoConfig(num_prototypes=1024).watch()
    rows = [HEALTHY, {**HEALTHY, **SICK["equal features"]}] * 20
    assert not any(watch.look(step, row) for step, row in enumerate(rows))
