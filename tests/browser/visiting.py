"""Playwright for the tests of this folder; without it they are skipped, and say so."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright  # noqa: E402

PATIENCE_MS = 120_000  # a busy machine draws slowly; only a page that never gets there waits so long
expect.set_options(timeout=PATIENCE_MS)
OpenPage = Callable[..., Page]


def settle(page: Page) -> None:
    """Wait until nothing is awaited, and every picture is there or says why not."""
    page.wait_for_function(
        """() => {
          if (document.getElementById("cards").getAttribute("aria-busy") !== "false") return false;
          const figures = [...document.querySelectorAll("#answers figure, #cards figure")];
          return figures.length > 0 && figures.every((figure) => !figure.classList.contains("busy")
            && (figure.classList.contains("empty") || figure.querySelector("figcaption").textContent));
        }"""
    )


def leave(page: Page) -> None:
    """Go away, as a visitor who was never here: the server may end, and the next visit is a first one."""
    page.evaluate("() => { if (location.protocol !== 'about:') { localStorage.clear(); sessionStorage.clear(); } }")
    page.goto("about:blank")


class Tab:
    """A page for all tests of a file, each as if it were the first: a new page is a new process, a second of work."""

    def __init__(self, browser: Browser) -> None:
        self._context = browser.new_context()
        self._context.set_default_timeout(PATIENCE_MS)
        self.page = self._context.new_page()
        self._listeners: list[tuple[str, Callable[..., Any]]] = []

    def prepare(self, *, width: int, height: int, theme: Literal["light", "dark"]) -> Page:
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(media="screen", color_scheme=theme)
        return self.page

    def listen(self, event: Any, listener: Callable[..., Any]) -> None:
        self.page.on(event, listener)
        self._listeners.append((event, listener))

    def leave(self) -> None:
        leave(self.page)
        self.page.mouse.move(0, 0)
        while self._listeners:
            self.page.remove_listener(*self._listeners.pop())
        self._context.clear_permissions()

    def close(self) -> None:
        self._context.close()


__all__ = [
    "PATIENCE_MS",
    "Browser",
    "BrowserContext",
    "OpenPage",
    "Page",
    "Tab",
    "expect",
    "leave",
    "settle",
    "sync_playwright",
]
