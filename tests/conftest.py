"""Tests marked `gpu` are skipped where there is no CUDA device."""

import gc
import io
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from mixlab.analysis.claims import Evidence, draw_up
from mixlab.plugins import REGISTRIES
from tests import fork_server, head_start


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    """What a test registers is gone after it: other tests go over all that is registered."""
    before = {word: (dict(registry.data), dict(registry._origins)) for word, registry in REGISTRIES.items()}
    yield
    for word, registry in REGISTRIES.items():
        data, origins = before.get(word, ({}, {}))
        ours = {name: thing for name, thing in registry.items() if name not in registry._origins}  # imported meanwhile
        registry.data, registry._origins = {**ours, **data}, origins


@pytest.fixture(scope="session", autouse=True)
def forked_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Before the first test, and where what they print is captured."""
    os.environ["MIXLAB_CACHE"] = str(tmp_path_factory.mktemp("cache"))  # never that of whoever runs the tests
    fork_server.start()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Until the tests of a file are over: others compare their bits with those of processes that have all threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


for name in ("CI", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR"):
    os.environ.pop(name, None)  # what is printed depends on them: tests that say nothing of them mean none


SEED = 4711  # not 0, with which commands draw: a network is not its own untrained twin


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before its fixtures: what a test draws does not depend on those that its process ran before, by chance."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  for whoever uses it
    torch.manual_seed(SEED)


def pytest_sessionstart(session: pytest.Session) -> None:
    head_start.begin(session.config)


gc.disable()  # until all is imported: there is no garbage yet to look for


def pytest_collection_finish() -> None:
    gc.freeze()  # nor will there be any among modules and tests
    gc.set_threshold(20_000)  # most of what tests leave behind is freed without it
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """What most processes of a whole run need is computed before the forks: the ledger's theorems take seconds."""
    if session.config.pluginmanager.has_plugin("tests.forked_workers") and len(session.items) > 1000:
        torch.set_num_threads(1)  # no threads before a fork
        list(draw_up(Evidence()))


LONGEST_FIRST = ("unit/studies/", "unit/ops/", "browser/", "contracts/")  # so that no core waits for one at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(folder in item.nodeid for folder in LONGEST_FIRST))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built once for all processes; a warning is an error."""
    from filelock import FileLock
    from sphinx.application import Sphinx

    shared = tmp_path_factory.getbasetemp()
    out, docs, complaints = shared / "site", Path(__file__).parents[1] / "docs", io.StringIO()
    with FileLock(shared / "site.lock"):
        if not out.is_dir():
            Sphinx(docs, docs, out, shared / "doctrees", "html", status=None, warning=complaints).build()
            assert not complaints.getvalue()
    return out
