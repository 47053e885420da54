"""A mask stays where it is on the image, whatever a fit shows of it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import seen_mask
from tests.browser.test_late_answers import held
from tests.browser.test_page import TWO, drag, slide
from tests.browser.visiting import OpenPage, Page, expect, settle

MASK = """async () => {
  const { Mask } = await import("/static/mask.js");
  const mask = new Mask(256);
  await mask.setText(new URLSearchParams(location.hash.slice(1)).get("mask"));
  return [...mask.values];
}"""
WIDTH, HEIGHT = 90 / 144, 1  # what the middle square shows of an image of 144 x 90 pixels


def mask_of(page: Page) -> NDArray[np.uint8]:
    """What the link has."""
    page.wait_for_timeout(400)  # the address follows
    return np.array(page.evaluate(MASK), dtype=np.uint8).reshape(256, 256)


def bounds(mask: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Left, top, right and bottom of the foreground, as shares of the sides."""
    rows, columns = np.nonzero(mask == 1)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 256


def choose_fit(page: Page, fit: str) -> None:
    page.select_option("#fit", fit)
    page.wait_for_function(
        "(isSquash) => location.hash.includes('fit=squash') === isSquash && location.hash.includes('mask=')",
        arg=fit == "squash",
    )
    settle(page)


def draw(page: Page, *points: tuple[float, float]) -> None:
    page.get_by_text("Draw", exact=True).click()
    slide(page, "#brush", 20)
    drag(page, *points)
    settle(page)


@pytest.fixture
def wide(open_page: OpenPage, tmp_path: Path) -> Page:
    """The page with a wide image, of which the middle square is seen."""
    page = open_page(f"{TWO}&fit=square")
    Image.new("RGB", (144, 90), (30, 30, 30)).save(tmp_path / "wide.png")
    page.set_input_files("#file", tmp_path / "wide.png")
    expect(page.locator("#status")).to_have_text("wide.png, 144 × 90 pixels.")
    settle(page)
    return page


def test_a_mask_stays_on_the_image_when_the_fit_changes_and_comes_back_as_it_was(wide: Page) -> None:
    draw(wide, (0.2, 0.3), (0.5, 0.4), (0.6, 0.8))
    before = mask_of(wide)
    choose_fit(wide, "squash")
    part = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    np.testing.assert_allclose(bounds(mask_of(wide)), (1 - part) / 2 + part * bounds(before), atol=2 / 256)
    expect(wide.locator("#sweep")).to_be_enabled()  # it is scored
    choose_fit(wide, "square")
    np.testing.assert_array_equal(mask_of(wide), before)


def test_a_mask_comes_back_after_all_fits_as_it_was_and_the_patch_stays_on_the_photograph(wide: Page) -> None:
    wide.select_option("#fit", "squash")
    settle(wide)
    draw(wide, (0.05, 0.5), (0.9, 0.6))
    wide.get_by_text("Pick patch", exact=True).click()
    wide.locator("#stage").click(position={"x": 100, "y": 100})
    settle(wide)
    patch = wide.locator("#patch-text").inner_text()
    seen = []
    for _ in range(3):
        for fit in ("crop", "square", "squash"):
            wide.select_option("#fit", fit)
            settle(wide)
        seen.append(mask_of(wide))
        assert wide.locator("#patch-text").inner_text() == patch
    np.testing.assert_array_equal(seen[1], seen[0])
    np.testing.assert_array_equal(seen[2], seen[0])


def test_a_file_without_foreground_is_named(wide: Page, tmp_path: Path) -> None:
    Image.new("L", (144, 90)).save(tmp_path / "empty.png")
    wide.set_input_files("#mask-file", tmp_path / "empty.png")
    expect(wide.locator("#banner")).to_contain_text("empty.png has no foreground")


def test_what_a_crop_does_not_show_is_said_and_kept(wide: Page) -> None:
    choose = wide.locator("#fit")
    choose.select_option("squash")
    draw(wide, (0.05, 0.5), (0.5, 0.5))
    whole = mask_of(wide)
    choose_fit(wide, "square")
    expect(wide.locator("#status")).to_contain_text("Part of the mask lies outside this crop. It is kept")
    seen = bounds(mask_of(wide))
    assert seen[0] == 0 and seen[2] == pytest.approx(0.5 + 0.1 / WIDTH, abs=2 / 256)
    wide.get_by_text("Erase", exact=True).click()
    drag(wide, (0.6, 0.2), (0.6, 0.8))
    settle(wide)
    choose_fit(wide, "squash")
    again = mask_of(wide)
    assert (again[:, : int(256 * (1 - WIDTH) / 2)] == whole[:, : int(256 * (1 - WIDTH) / 2)]).all()
    assert (again <= whole).all() and (again != whole).any()


def test_back_returns_to_the_fit_and_the_mask_of_before(wide: Page) -> None:
    draw(wide, (0.3, 0.5), (0.6, 0.5))
    before = mask_of(wide)
    choose_fit(wide, "squash")
    wide.locator("#mask-clear").click()
    wide.wait_for_timeout(400)
    wide.go_back()
    expect(wide.locator("#fit")).to_have_value("square")
    settle(wide)
    np.testing.assert_array_equal(mask_of(wide), before)


def test_the_rest_of_a_samples_mask_is_there_after_it_was_drawn_on(open_page: OpenPage, laboratory: Laboratory) -> None:
    page = open_page(f"{TWO}&image=sample-2&mask=sample&fit=crop")
    draw(page, (0.5, 0.5))
    choose_fit(page, "squash")
    stored = laboratory.samples[1].mask
    assert stored is not None
    expected, found = seen_mask(stored, 256, "squash"), mask_of(page)
    margin = 256 // 16 - 1  # outside of the crop
    for edge in (np.s_[:margin], np.s_[-margin:], np.s_[:, :margin], np.s_[:, -margin:]):
        np.testing.assert_array_equal(found[edge], expected[edge])
    assert (found != expected).mean() < 0.05


def test_a_mask_of_a_file_is_one_of_the_whole_image(wide: Page, tmp_path: Path) -> None:
    Image.fromarray(np.repeat(np.uint8([[255, 0]]), 72, axis=1).repeat(90, axis=0)).save(tmp_path / "mask.png")
    wide.set_input_files("#mask-file", tmp_path / "mask.png")
    expect(wide.locator("#sweep")).to_be_enabled()
    choose_fit(wide, "squash")
    assert bounds(mask_of(wide)) == pytest.approx([0, 0, 0.5, 1], abs=1 / 256)


def test_a_fit_that_was_chosen_while_another_was_on_its_way_counts(wide: Page) -> None:
    draw(wide, (0.3, 0.5), (0.6, 0.5))
    before = mask_of(wide)
    with held(wide, lambda request: "/fits" in request) as requests:
        wide.select_option("#fit", "squash")
        requests.wait()
        wide.evaluate("() => (document.getElementById('fit').value = 'square')")
        wide.locator("#fit").dispatch_event("input")
        requests.release()
    expect(wide.locator("#fit")).to_have_value("square")
    np.testing.assert_array_equal(mask_of(wide), before)
