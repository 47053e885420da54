"""A real Chromium on the real page. Without a browser these tests are skipped, and say so."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest

from mixlab.app.laboratory import Laboratory
from tests.unit.app.live_page import serve, tiny_laboratory

if TYPE_CHECKING:  # fixtures import it when used: without playwright this file must still load
    from tests.browser.visiting import Browser, OpenPage, Page, Tab

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the first is the smallest
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


OPENED: list["Browser"] = []  # one for all files of this folder
CLOSING = ExitStack()


@pytest.fixture(scope="module")
def browser(one_thread: None) -> "Browser":
    from tests.browser.visiting import sync_playwright

    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH: install one to test the page")
    if not OPENED:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        playwright = CLOSING.enter_context(sync_playwright())
        OPENED.append(playwright.chromium.launch(executable_path=CHROMIUM, args=options))
        CLOSING.callback(lambda: OPENED.pop().close())
    return OPENED[0]


@pytest.hookimpl(trylast=True)  # after fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Other tests have event loops of their own, and playwright allows none beside it."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        CLOSING.close()


@pytest.fixture(scope="module")
def shared_tab(browser: "Browser") -> Iterator["Tab"]:
    from tests.browser.visiting import Tab

    made = Tab(browser)
    yield made
    made.close()


@pytest.fixture
def tab(shared_tab: "Tab") -> Iterator["Tab"]:
    yield shared_tab
    shared_tab.leave()


@pytest.fixture(scope="session")
def laboratory() -> Laboratory:
    return tiny_laboratory()


@pytest.fixture(scope="session")
def address(laboratory: Laboratory) -> Iterator[str]:
    with serve(laboratory) as found:
        yield found


@pytest.fixture
def open_page(browser: "Browser", tab: "Tab", address: str) -> Iterator["OpenPage"]:
    """Open the page at a view; another visitor's, where a test has opened one. Afterwards: no script errors, nothing
    asked of anyone but the server.

    `refusals` are what a test provokes, as the browser logs it: each is an error in its console.
    """
    from tests.browser.visiting import Tab, settle

    tabs: list[Tab] = []
    errors: list[str] = []
    outside: list[str] = []
    provoked: list[str] = []

    def open_at(
        view: str = "",
        *,
        at: str | None = None,
        refusals: tuple[str, ...] = (),
        width: int = 1280,
        theme: Literal["light", "dark"] = "light",
    ) -> "Page":
        provoked.extend(refusals)
        host = at or address
        tabs.append(Tab(browser) if tabs else tab)
        page = tabs[-1].prepare(width=width, height=900, theme=theme)
        listen = tabs[-1].listen
        listen("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
        listen("pageerror", lambda error: errors.append(f"uncaught: {error}"))
        listen("request", lambda asked: _is_outside(asked.url, host) and outside.append(asked.url))
        page.goto(f"http://{host}/{view}")
        settle(page)
        return page

    yield open_at
    for other in tabs[1:]:
        other.close()
    unexpected = [text for text in errors if not any(words in text for words in provoked)]
    assert not unexpected, unexpected
    assert not outside, outside


def _is_outside(url: str, host: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != host
