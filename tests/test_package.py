"""What `import mixlab` gives, and what it leaves for later."""

import subprocess
import sys

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
