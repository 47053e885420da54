"""The crop kernels on a CPU, by Triton's interpreter, which is chosen when Triton is first imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("interpreted_crops.py")


def test_the_kernels_make_the_crops_that_plain_torch_makes() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"18 to 10", "9 to 17"}
    assert max(found.values()) < 1e-4, found  # of normalised pixels, which go from -2 to 2.6
