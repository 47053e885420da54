"""The kernels on a CPU: Triton's interpreter against float64. It multiplies no bfloat16; that is for tests/gpu.

The interpreter is chosen when Triton is first imported, so the cases run in a program of their own, all in one.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
PROGRAM = Path(__file__).with_name("interpreted_kernels.py")
CASES = [
    "scan of one token",
    "scan of two tokens",
    "scan of one tile, not full",
    "scan of one full tile",
    "scan of a tile and a token",
    "scan of 63 tokens",
    "scan of two full tiles",
    "scan of 65 tokens",
    "scan of 130 tokens",
    "scan with a group per head",
    "scan with heads of 128",
    "scan of nine heads",
    "scan of eleven reverse heads",
    "scan of thirteen heads over two tiles",
    "scan of two groups of nine heads",
    "mixer both ways, short",
    "mixer one way",
    "mixer both ways, many tiles",
    "mixer with a convolution in two segments",
    "linear attention of one token",
    "linear attention of a tile and a token",
    "linear attention of 70 tokens",
    "linear attention in three spans",
    "linear attention in two spans, one short",
    "operators of the mixer",
    "add and RMSNorm",
    "add and LayerNorm",
]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernels_give_the_reference_and_every_gradient(report: dict[str, Any], case: str) -> None:
    outcome = report["cases"][case]
    assert isinstance(outcome, dict), outcome
    assert outcome
    for name, error in outcome.items():
        assert error < report["tolerance"], f"{case}: {name} is off by {error:.1e}"


def test_every_interpreted_case_is_looked_at(report: dict[str, Any]) -> None:
    assert set(report["cases"]) == set(CASES)


def test_heads_divide_evenly_among_programs_whatever_their_number() -> None:
    from mixlab.ops.ssd.triton_backward import MIN_PROGRAMS, heads_per_program

    for heads in range(1, 49):
        for tiles in range(1, MIN_PROGRAMS + 2):
            share = heads_per_program(heads, tiles)
            assert heads % share == 0, f"{heads} heads with {tiles} tiles: {share} per program"
