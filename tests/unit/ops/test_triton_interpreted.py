"""The kernels on a CPU: Triton's interpreter against float64. It multiplies no bfloat16; that is for tests/gpu.

The interpreter is chosen when Triton is first imported, so the cases run in a program of their own, all in one.
"""

import importlib.util
import json

import pytest

from tests import head_start

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def test_interpreted_kernels_give_the_reference_every_gradient_and_the_crops_of_plain_torch(
    pytestconfig: pytest.Config,
) -> None:
    report = json.loads(head_start.outcome(pytestconfig).splitlines()[-1])
    assert len(report["cases"]) > 20
    for case, errors in report["cases"].items():
        assert isinstance(errors, dict), f"{case}: {errors}"
        assert errors, case
        for name, error in errors.items():
            assert error < report["tolerance"], f"{case}: {name} is off by {error:.1e}"
    assert len(report["crops"]) == 2
    assert max(report["crops"]) < 1e-4  # of normalised pixels, which go from -2 to 2.6


def test_heads_divide_evenly_among_programs_whatever_their_number() -> None:
    from mixlab.ops.ssd.triton_launch import MIN_PROGRAMS, heads_per_program

    for heads in range(1, 49):
        for tiles in (*range(1, 65), *range(65, MIN_PROGRAMS + 50, 13)):
            share = heads_per_program(heads, tiles)
            assert heads % share == 0, f"{heads} heads with {tiles} tiles: {share} per program"
