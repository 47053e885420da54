"""Tests marked `gpu` are skipped where there is no CUDA device."""

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

from mixlab.plugins import REGISTRIES

os.environ["MIXLAB_CACHE"] = tempfile.mkdtemp(prefix="mixlab-cache-")  # never the cache of whoever runs the tests


@pytest.fixture
def own_registries() -> Iterator[None]:
    """What a test registers is gone after it: other tests go over all that is registered."""
    before = {word: (dict(r.data), dict(r._origins), set(r._derived)) for word, r in REGISTRIES.items()}
    yield
    for word, registry in REGISTRIES.items():
        registry.data, registry._origins, registry._derived = before.get(word, ({}, {}, set()))


LONGEST_FIRST = ("unit/studies/", "unit/ops/", "browser/", "contracts/")  # so that no core waits for one at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(folder in item.nodeid for folder in LONGEST_FIRST))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
