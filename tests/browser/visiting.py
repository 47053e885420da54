"""Playwright for the tests of this folder; without it they are skipped, and say so."""

from collections.abc import Callable

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright  # noqa: E402

expect.set_options(timeout=15_000)
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


__all__ = ["Browser", "BrowserContext", "OpenPage", "Page", "expect", "settle", "sync_playwright"]
