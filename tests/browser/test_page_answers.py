"""The answer beside the click: rows of matrices, all patches in turn, a first visit, and a view to take along."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.browser.test_page import TWO, canvas, drag, label, pixels
from tests.browser.visiting import PATIENCE_MS, Browser, OpenPage, Page, expect, settle

SAVED_ROW = "article >> nth=0 >> canvas >> nth=0"
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


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1920, 1080)])
def test_image_answers_and_choices_are_in_view_together(open_page: OpenPage, width: int, height: int) -> None:
    page = open_page(f"{TWO}&model=gatedconv_tiny&map=register_cosine")
    page.locator("#tour-end").click()
    page.set_viewport_size({"width": width, "height": height})
    main = ("samples", "drop", "fit", "models", "map", "layer", "head", "part", "sense", "scale", "overlay")
    for part in ("stage", "play", "tools", "brush", "mask-sample", "mask-upload", "mask-clear", *main):
        is_in_view(page, f"#{part}")
    for model in ("vit_tiny", "dinomambareg_tiny", "gatedconv_tiny"):
        is_in_view(page, canvas(page, model, 1))
    page.locator(".card canvas").first.scroll_into_view_if_needed()
    page.mouse.wheel(0, 4000)
    for part in (*main, "cards"):  # the choices stay beside the maps
        is_in_view(page, f"#{part}", partly=part == "cards")


def test_on_a_phone_the_choices_are_beside_the_image_and_open_one_by_one(open_page: OpenPage) -> None:
    page = open_page(TWO, width=390)
    page.locator("#tour-end").click()
    page.set_viewport_size({"width": 390, "height": 844})
    names = page.locator(".controls summary")
    for part in ("#stage", "#play", "#tools", "#brush", "#mask-clear", canvas(page, "vit_tiny", 1)):
        is_in_view(page, part)
    for number in range(3):
        is_in_view(page, f".controls summary >> nth={number}")
    names.nth(2).click()
    for part in ("#stage", "#map", "#layer", "#scale"):
        is_in_view(page, part)
    page.locator("#overlay").scroll_into_view_if_needed()
    page.locator(".card").last.scroll_into_view_if_needed()
    is_in_view(page, "#stage")


def is_in_view(page: Page, selector: str, *, partly: bool = False) -> None:
    """Between the top and the foot of the window."""
    page.wait_for_function(
        """([node, partly]) => {
          const [box, foot] = [node.getBoundingClientRect(), document.querySelector(".foot").getBoundingClientRect()];
          return partly ? box.bottom > 0 && box.top < foot.top : box.top >= 0 && box.bottom <= foot.top + 1;
        }""",
        arg=[page.locator(selector).element_handle(), partly],
    )


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
    expect(captions.first).to_contain_text(re.compile(rf"^half of the weight on others within {far}\spatch"))
    expect(captions.nth(1)).to_contain_text("line: this patch")


def asked_row(page: Page, model: str, x: float, y: float) -> np.ndarray:
    """What the server says that a patch attends to: |weights| on the grid."""
    page.wait_for_function('() => location.hash.includes("image=")')  # the address follows the view
    found = page.evaluate(
        """async ([model, x, y]) => {
          const { ask, toArray } = await import("/static/server.js");
          const picture = new URLSearchParams(location.hash.slice(1)).get("image");
          const place = { picture, fit: "square", model, layer: 2, head: null, x, y };
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
    with opened_offline(browser, tmp_path / "mixlab.html") as other:
        assert_it_is_a_page_to_click_on(other, page)


@contextmanager
def opened_offline(browser: Browser, file: Path) -> Iterator[Page]:
    context = browser.new_context(offline=True)
    context.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert not errors


def assert_it_is_a_page_to_click_on(other: Page, page: Page) -> None:
    expect(other.locator("section.stage p")).to_contain_text("row 8, column 8")
    expect(other.locator("h2")).to_have_text(["vit_tiny", "dinomambareg_tiny"])
    shown = pixels(other, SAVED_ROW)
    assert_alike(shown, pixels(page, canvas(page, "vit_tiny", 1)))  # the same row, from shades
    other.locator("section.stage canvas").focus()
    other.keyboard.press("ArrowUp")
    expect(other.locator("section.stage p")).to_contain_text("row 7, column 8")
    assert (pixels(other, SAVED_ROW) != shown).any()
    other.get_by_role("button", name="Play").click()
    expect(other.locator("section.stage p")).to_contain_text("row 8, column")


def assert_alike(first: np.ndarray, second: np.ndarray, *, cells: int = 8) -> None:
    """In the middle of each cell."""
    middles = []
    for image in (first, second):
        places = (len(image) * (np.arange(cells) + 0.5) / cells).astype(int)
        middles.append(image[places][:, places].astype(int))
    assert np.abs(middles[0] - middles[1]).mean() < 3


@pytest.mark.parametrize("sense", ["row", "column"])
def test_a_saved_page_shows_the_column_the_logarithm_and_the_mask_of_the_screen(
    open_page: OpenPage, browser: Browser, tmp_path: Path, sense: str
) -> None:
    page = open_page(f"{TWO}&image=sample-2&x=0.4&y=0.6&sense={sense}&scale=log&overlay=0&mask=sample")
    expect(page.locator("#score-table tbody td strong")).to_have_count(3)
    with page.expect_download() as saved:
        page.locator("#export").click()
    saved.value.save_as(tmp_path / "mixlab.html")
    with opened_offline(browser, tmp_path / "mixlab.html") as other:
        for number, model in enumerate(("vit_tiny", "dinomambareg_tiny")):
            article, live = other.locator("article").nth(number), page.locator(".answer").nth(number)
            title = "What it attends to" if sense == "row" else "What attends to it"
            expect(article.locator("figcaption").first).to_have_text(title)
            ends = live.locator(".legend").first.locator("span").all_inner_texts()
            assert article.locator(".legend span").all_inner_texts() == ends
            expect(article).to_contain_text("log scale")
            auc = page.locator("#score-table tbody td strong").nth(number).inner_text()
            expect(article).to_contain_text(f"Binary-AUC of the map isolation against the mask: {auc}")
            tokens = re.search(r"(\d+) tokens", label(page, model, 3))
            assert tokens is not None
            for figure, place, cells in ((1, 0, 8), (3, 1, int(tokens[1]))):
                kept = pixels(other, f"article >> nth={number} >> figure >> nth={place} >> canvas >> nth=0")
                assert_alike(kept, pixels(page, canvas(page, model, figure)), cells=cells)
        assert_alike(pixels(other, "section.stage canvas"), pixels(page, "#stage"), cells=64)  # with its mask
