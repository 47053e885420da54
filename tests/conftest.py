"""Tests marked `gpu` are skipped where there is no CUDA device."""

import os
import tempfile

import pytest
import torch

os.environ["MIXLAB_CACHE"] = tempfile.mkdtemp(prefix="mixlab-cache-")  # never the cache of whoever runs the tests


LONGEST_FIRST = ("unit/studies/", "unit/ops/", "browser/", "contracts/")  # so that no core waits for one at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(folder in item.nodeid for folder in LONGEST_FIRST))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
