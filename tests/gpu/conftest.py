"""Everything here needs a CUDA device and is marked `gpu`."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """New buffers come filled with NaN: what a kernel forgets to write cannot pass."""
    empty = torch.empty

    def poisoned_empty(*args: object, **options: object) -> torch.Tensor:
        tensor = empty(*args, **options)  # type: ignore[call-overload]
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned_empty)
