"""The answer beside the click: rows of matrices, all patches in turn, a first visit, and a view to take along."""

import re
from pathlib import Path

import numpy as np

from tests.browser.test_page import TWO, canvas, drag, pixels
from tests.browser.visiting import PATIENCE_MS, Browser, OpenPage, Page, expect, settle

PATCH = "Patch in row {}, column {} of 8 × 8."


def test_image_and_answers_are_in_view_together_and_on_a_phone_the_buttons_are_a_menu(open_page: OpenPage) -> None:
    page = open_page(TWO, width=390, theme="dark")
    page.locator("#tour-end").click()
    assert_buttons_are_a_menu_for_fingers_and_keys(page)
    for width in (390, 1300):
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator("#tour-start")).to_be_visible(visible=width > 640)  # the bar has its new height
        page.evaluate("() => scrollTo(0, 0)")
        if width == 390:  # the image stays in view over the last answer
            page.locator(".answer").last.scroll_into_view_if_needed()
        for selector in ("#stage", canvas(page, "dinomambareg_tiny", 1)):
            box = page.locator(selector).bounding_box()
            assert box is not None
            assert box["y"] >= -1
            assert box["y"] + box["height"] <= 901


def assert_buttons_are_a_menu_for_fingers_and_keys(page: Page) -> None:
    menu, tour = page.locator("#menu summary"), page.locator("#tour-start")
    assert page.locator(".bar").bounding_box()["height"] < 60  # type: ignore[index]
    expect(tour).to_be_hidden()
    menu.press("Enter")
    expect(tour).to_be_visible()
    page.keyboard.press("Escape")
    expect(tour).to_be_hidden()
    menu.click()
    tour.click()
    expect(page.locator("#tour-step")).to_have_text("1 of 4")
    expect(tour).to_be_hidden()
    menu.click()
    page.locator("#stage").click()
    expect(tour).to_be_hidden()
    page.locator("#tour-end").click()
    page.set_viewport_size({"width": 1300, "height": 900})
    expect(tour).to_be_visible()
    expect(menu).to_be_hidden()


def test_a_row_is_shown_while_the_pointer_is_there_and_says_how_far_its_weight_lies(open_page: OpenPage) -> None:
    page = open_page(f"{TWO}&x=0.9&y=0.9")
    chosen = PATCH.format(8, 8)
    expect(page.locator("#patch-text")).to_have_text(chosen)
    matrix = page.locator(canvas(page, "vit_tiny", 3))
    size = matrix.bounding_box()["width"]  # type: ignore[index]
    matrix.hover(position={"x": 5, "y": size * (1 + 19.5) / 65})  # token 20 is patch 19, after the class token
    expect(page.locator("#patch-text")).to_have_text(PATCH.format(3, 4))
    page.locator("h1").hover()
    expect(page.locator("#patch-text")).to_have_text(chosen)
    settle(page)
    assert_weight_lies_as_the_server_counts_it(page)


def assert_weight_lies_as_the_server_counts_it(page: Page) -> None:
    weights, own = asked_row(page, "vit_tiny", 0.9, 0.9), (7, 7)
    distance = np.hypot(*(np.indices(weights.shape) - np.reshape(own, (2, 1, 1)))).ravel()
    order = np.argsort(distance, kind="stable")[1:]  # without itself
    total = np.cumsum(weights.ravel()[order])
    far = round(distance[order][np.searchsorted(total, total[-1] / 2)])
    captions = page.locator(".answer figcaption")
    expect(captions.first).to_contain_text(re.compile(rf"^half of the weight within {far}\spatch"))
    expect(captions.nth(1)).to_contain_text("line: this patch")


def asked_row(page: Page, model: str, x: float, y: float) -> np.ndarray:
    """What the server says that a patch attends to: |weights| on the grid."""
    page.wait_for_function('() => location.hash.includes("image=")')  # the address follows the view
    found = page.evaluate(
        """async ([model, x, y]) => {
          const { ask, toArray } = await import("/static/server.js");
          const picture = new URLSearchParams(location.hash.slice(1)).get("image");
          const place = { picture, fit: "crop", model, layer: 2, head: null, x, y };
          const { answer } = await ask({ kind: "row", ...place, sense: "row" });
          const { shape, values } = toArray(answer.values);
          return [shape, [...values]];
        }""",
        [model, x, y],
    )
    shape, values = found
    return np.abs(np.array(values).reshape(shape))


def test_all_patches_are_played_until_somebody_stops_it(open_page: OpenPage) -> None:
    page = open_page(f"{TWO}&x=0.9&y=0.05")
    page.locator("#play").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#play")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#patch-text")).to_have_text(re.compile("row 2"))
    page.keyboard.press("Escape")
    expect(page.locator("#play")).to_have_attribute("aria-pressed", "false")
    settle(page)
    stopped = page.locator("#patch-text").inner_text()
    page.wait_for_timeout(300)
    assert page.locator("#patch-text").inner_text() == stopped


def test_a_first_visit_is_led_through_four_steps_once(open_page: OpenPage) -> None:
    page = open_page(TWO)
    step = page.locator("#tour-step")
    expect(step).to_have_text("1 of 4")
    drag(page, (0.3, 0.3))  # does what the step asks for
    expect(step).to_have_text("2 of 4")
    page.keyboard.press("Tab")
    page.locator("#tour-next").press("Enter")
    page.locator(canvas(page, "vit_tiny", 3)).hover()
    expect(step).to_have_text("4 of 4")
    page.locator("#tour-next").click()
    expect(page.locator("#tour")).to_be_hidden()
    page.reload()
    settle(page)
    expect(page.locator("#tour")).to_be_hidden()
    page.locator("#tour-start").click()
    expect(step).to_have_text("1 of 4")


def test_a_view_is_saved_as_one_page_that_needs_no_server(
    open_page: OpenPage, browser: Browser, tmp_path: Path
) -> None:
    page = open_page(f"{TWO}&x=0.9&y=0.9")
    with page.expect_download() as saved:
        page.locator("#export").click()
    assert saved.value.suggested_filename == "mixlab.html"
    saved.value.save_as(tmp_path / "mixlab.html")
    context = browser.new_context(offline=True)
    context.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    other = context.new_page()
    other.on("pageerror", lambda error: errors.append(str(error)))
    other.on("console", lambda message: message.type == "error" and errors.append(message.text))
    other.goto((tmp_path / "mixlab.html").as_uri())
    expect(other.locator("section.stage p")).to_contain_text("row 8, column 8")
    expect(other.locator("h2")).to_have_text(["vit_tiny", "dinomambareg_tiny"])
    shown = pixels(other, "article >> nth=0 >> canvas >> nth=0")
    live = pixels(page, canvas(page, "vit_tiny", 1))
    cells = [image[:: len(image) // 16][1::2][:, :: len(image) // 16][:, 1::2].astype(int) for image in (shown, live)]
    assert np.abs(cells[0] - cells[1]).mean() < 8  # the same row, from shades
    other.locator("section.stage canvas").focus()
    other.keyboard.press("ArrowUp")
    expect(other.locator("section.stage p")).to_contain_text("row 7, column 8")
    assert (pixels(other, "article >> nth=0 >> canvas >> nth=0") != shown).any()
    other.get_by_role("button", name="Play").click()
    expect(other.locator("section.stage p")).to_contain_text("row 8, column")
    context.close()
    assert not errors
