"""One server for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest
import torch

from mixlab.app.laboratory import Laboratory
from tests.unit.app.live_page import serve, tiny_laboratory


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Until these tests are over: others compare their bits with those of processes that have all threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def laboratory() -> Laboratory:
    return tiny_laboratory()


@pytest.fixture(scope="session")
def address(laboratory: Laboratory) -> Iterator[str]:
    with serve(laboratory) as found:
        yield found
