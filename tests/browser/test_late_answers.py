"""Answers, presses and links that come late: the page shows what was chosen last, whatever arrives after it."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.browser.slow_server import slow_laboratory
from tests.browser.test_page import TWO, drag
from tests.browser.visiting import OpenPage, Page, expect, leave, settle
from tests.unit.app.live_page import serve

EVERYTHING = "**/*"


class Held:
    """Requests that wait on their way to the server."""

    def __init__(self, page: Page) -> None:
        self.page, self.routes, self.is_over = page, [], False

    def wait(self) -> None:
        while not self.routes:
            self.page.wait_for_timeout(10)  # meanwhile, playwright hears of requests

    def release(self) -> None:
        """All of them, and those to come."""
        self.is_over = True
        with self.page.expect_response(self.routes[-1].request.url):
            while self.routes:
                self.routes.pop(0).continue_()
        settle(self.page)


@contextmanager
def held(page: Page, is_held: Callable[[str], bool]) -> Iterator[Held]:
    """Those whose method, address and body are to wait."""
    found = Held(page)

    def look(route: Any) -> None:
        asked = route.request
        kept = not found.is_over and is_held(f"{asked.method} {asked.url} {asked.post_data}")
        found.routes.append(route) if kept else route.continue_()

    page.route(EVERYTHING, look)
    yield found
    page.unroute(EVERYTHING)


def choose_sample(page: Page, number: int) -> None:
    page.locator("#samples label").nth(number - 1).click()
    expect(page.locator("#stage")).to_have_attribute("aria-label", f"Image: sample {number}")


@pytest.mark.parametrize("whose", ["the sample's", "a file"])
def test_a_mask_that_arrives_after_another_image_was_chosen_is_left_out(
    open_page: OpenPage, tmp_path: Path, whose: str
) -> None:
    page = open_page(TWO)
    Image.new("L", (128, 128), 255).save(tmp_path / "mask.png")
    with held(page, lambda request: "/mask?" in request) as requests:
        if whose == "a file":
            page.set_input_files("#mask-file", tmp_path / "mask.png")
        else:
            page.locator("#mask-sample").click()
        requests.wait()
        choose_sample(page, 3)
        requests.release()
    expect(page.locator("#sweep")).to_be_disabled()  # there is no mask
    assert "ask" not in page.locator("#status").inner_text()


def test_a_mask_of_a_sample_follows_the_fit_that_was_chosen_last(open_page: OpenPage) -> None:
    page = open_page(f"{TWO}&mask=sample")
    with held(page, lambda request: "/mask?" in request) as requests:
        page.select_option("#fit", "squash")
        requests.wait()
        with page.expect_request("**/mask?fit=whole"):
            page.select_option("#fit", "whole")
        requests.release()
    expect(page.locator("#sweep")).to_be_enabled()
    expect(page).to_have_url(re.compile("^((?!fit=).)*mask=sample$"))


def test_a_mask_that_was_cleared_while_it_was_packed_is_in_no_link(open_page: OpenPage) -> None:
    page = open_page(TWO)
    page.evaluate(
        """() => {
          const read = Response.prototype.arrayBuffer;
          const packed = new Promise((resolve) => (window.letGo = resolve));
          Response.prototype.arrayBuffer = function () { return packed.then(() => read.call(this)); };
        }"""
    )
    page.get_by_text("Draw", exact=True).click()
    drag(page, (0.3, 0.3), (0.6, 0.5))
    page.locator("#mask-clear").click()
    page.evaluate("() => window.letGo()")
    page.evaluate("() => new Response('').arrayBuffer()")  # and what was packed before it
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#share").click()
    expect(page.locator("#status")).to_have_text("Link copied.")
    assert "mask=" not in page.url


def test_news_of_a_lost_image_that_nobody_looks_at_any_more_is_left_out(open_page: OpenPage) -> None:
    page = open_page(TWO, refusals=("status of 404",))
    with held(page, lambda request: "upload-gone" in request) as requests:
        page.evaluate("(view) => (location.hash = view)", f"{TWO}&image=upload-gone")
        requests.wait()
        choose_sample(page, 3)
        requests.release()
    expect(page.locator("#samples input").nth(2)).to_be_checked()
    expect(page.locator("#banner")).to_be_hidden()


def test_a_file_that_arrives_after_a_later_choice_is_not_shown(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(TWO)
    Image.new("RGB", (32, 32), (10, 200, 30)).save(tmp_path / "green.png")
    with held(page, lambda request: request.startswith("POST") and "/api/pictures" in request) as requests:
        page.set_input_files("#file", tmp_path / "green.png")
        requests.wait()
        choose_sample(page, 2)
        requests.release()
    expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 2")
    expect(page.locator("#samples input").nth(1)).to_be_checked()


def test_a_press_of_cancel_counts_however_long_it_takes(open_page: OpenPage) -> None:
    with serve(slow_laboratory()) as address:
        page = open_page("#model=vit_tiny&model=dinovim_tiny&from=0&layer=4", at=address)
        page.locator("#layer").fill("0")
        panel = page.locator(".card").first.locator("figure").nth(1)
        panel.get_by_role("button", name="Cancel").hover()
        page.mouse.down()
        for _ in range(4):  # two models, and the first of them may be of before
            with page.expect_response("**/api/questions/*"):
                pass
        page.mouse.up()
        expect(panel.locator(".note")).to_contain_text("Cancelled.")
        leave(page)


def test_a_map_that_a_model_lacks_is_not_waited_for(open_page: OpenPage) -> None:
    page = open_page("#model=gatedconv_tiny")
    slow = {"status": 202, "content_type": "application/json",
            "body": json.dumps({"id": "slow", "state": "working", "share": 0.5, "note": "thinking"})}  # fmt: skip
    with held(page, lambda request: '"map":"norm"' in request or request.endswith("/questions/slow None")) as requests:
        page.select_option("#map", "norm")
        panel = page.locator(".card figure").first
        for _ in range(2):
            requests.wait()
            requests.routes.pop().fulfill(**slow)
        expect(panel.locator(".note")).to_contain_text("thinking")
        page.select_option("#map", "register_cosine")
        expect(panel.locator(".note")).to_have_text("This map needs registers.")
        requests.is_over = True
        settle(page)
        expect(panel.locator(".note")).to_have_text("This map needs registers.")


def test_a_question_that_waits_for_a_place_keeps_the_page_busy(open_page: OpenPage) -> None:
    page = open_page("#model=vit_tiny", refusals=("status of 503",))
    page.evaluate(
        """() => {
          const cards = document.getElementById("cards");
          window.seen = [];
          new MutationObserver(() => window.seen.at(-1) === cards.ariaBusy || window.seen.push(cards.ariaBusy))
            .observe(cards, { attributes: true, attributeFilter: ["aria-busy"] });
        }"""
    )
    full = {"status": 503, "content_type": "application/json", "body": '{"error": {"message": "full"}}'}
    with held(page, lambda request: '"kind":"row"' in request) as requests:
        page.select_option("#sense", "column")
        requests.wait()
        with page.expect_response(lambda response: response.status == 503):
            requests.routes.pop().fulfill(**full)
        requests.wait()  # it asks again
        assert page.evaluate("() => window.seen") == ["true"]
        requests.release()
    expect(page.locator("#answers figure h4 span").first).to_have_text("What attends to it")


def test_patches_are_played_once_after_a_stop_and_a_start_within_a_frame(open_page: OpenPage) -> None:
    page = open_page(TWO)
    moves = page.evaluate(
        """async () => {
          const { Player } = await import("/static/player.js");
          const button = document.getElementById("play");
          button.replaceWith(button.cloneNode(true)); // without the page's own player
          const frames = [];
          const later = window.setTimeout;
          let moves = 0;
          window.setTimeout = (run) => frames.push(run);
          new Player({ next: () => moves++, isReady: () => true });
          for (let press = 0; press < 3; press++) document.getElementById("play").click(); // on, off, on
          frames.splice(0).forEach((run) => run());
          window.setTimeout = later;
          await new Promise((resolve) => later(resolve));
          return moves;
        }"""
    )
    assert moves == 2 + 1  # of two starts, and of the one that goes on


def test_a_saved_view_is_that_of_the_click(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(TWO)
    with held(page, lambda request: '"kind":"rows"' in request) as requests, page.expect_download() as saved:
        page.locator("#export").click()
        requests.wait()
        page.locator("#layer").fill("0")
        requests.release()
    saved.value.save_as(tmp_path / "mixlab.html")
    text = (tmp_path / "mixlab.html").read_text(encoding="utf-8").replace("\xa0", " ")
    assert text.count("layer 2 (0 to 2)") == 2 and "layer 0 (0 to 2)" not in text


def test_a_link_that_is_followed_is_not_replaced_by_the_view_of_before(open_page: OpenPage) -> None:
    page = open_page(TWO)
    page.evaluate(  # the browser tells of the link after the click
        """(view) => {
          location.hash = view;
          document.getElementById("share").click();
        }""",
        f"{TWO}&from=0&layer=1",
    )
    expect(page.locator("#layer-text")).to_have_text("1 (0 to 2)")


def test_the_address_follows_a_change_at_once(open_page: OpenPage) -> None:
    page = open_page(TWO)
    page.evaluate(
        """() => {
          const keep = history.replaceState;
          window.keptAt = performance.now();
          history.replaceState = function (...state) { window.keptAt = performance.now(); keep.apply(this, state); };
        }"""
    )
    page.wait_for_function("() => performance.now() - window.keptAt > 400")  # of many changes, the address takes few
    address = page.evaluate(
        """async () => {
          const layer = document.getElementById("layer");
          layer.value = 1;
          layer.dispatchEvent(new Event("input", { bubbles: true }));
          await new Promise((resolve) => setTimeout(resolve));
          return location.hash;
        }"""
    )
    assert "layer=1" in address
