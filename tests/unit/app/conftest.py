"""One server for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest

from mixlab.app.laboratory import Laboratory
from tests.unit.app.live_page import serve, tiny_laboratory


@pytest.fixture(scope="module", autouse=True)
def one_thread_everywhere(one_thread: None) -> None:
    """In every file of this folder."""


@pytest.fixture(scope="session")
def laboratory() -> Laboratory:
    return tiny_laboratory()


@pytest.fixture(scope="session")
def address(laboratory: Laboratory) -> Iterator[str]:
    with serve(laboratory) as found:
        yield found
