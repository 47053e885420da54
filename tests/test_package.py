"""What `import mixlab` gives, and what it leaves for later."""

import subprocess
import sys

import pytest

import mixlab

START = """
import sys
import timm
import mixlab
late = {"scipy", "torchmetrics", "matplotlib", "sklearn"} & sys.modules.keys()
assert not late, late
assert "BinaryAUC" in dir(mixlab) and "dinovim_tiny" in timm.list_models()
from mixlab import BinaryAUC
assert mixlab.BinaryAUC is BinaryAUC and "torchmetrics" in sys.modules
"""


def test_the_zoo_is_registered_at_once_and_torchmetrics_waits_for_binary_auc() -> None:
    subprocess.run([sys.executable, "-c", START], check=True, timeout=250)


def test_every_public_name_is_there_and_no_other() -> None:
    assert all(getattr(mixlab, name) is not None for name in mixlab.__all__)
    assert {*mixlab.__all__} <= {*dir(mixlab)}
    with pytest.raises(AttributeError, match="module 'mixlab' has no attribute 'BinaryACU'"):
        mixlab.BinaryACU
