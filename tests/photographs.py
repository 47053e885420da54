"""Real photographs, for tests that cannot do with drawn ones: MIXLAB_TEST_PHOTOS, or shared/data beside the checkout.

The folder holds `masks`, `voc`, `semantic`, `ade20k_sample`, `coco`, `imagenette_112px.tar` and `weights` (of timm).
"""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[2] / "shared" / "data"
PHOTOGRAPHS = Path(os.environ.get("MIXLAB_TEST_PHOTOS", BESIDE))

needs_photographs = pytest.mark.skipif(
    not PHOTOGRAPHS.is_dir(), reason=f"needs photographs: MIXLAB_TEST_PHOTOS, or {BESIDE}"
)
