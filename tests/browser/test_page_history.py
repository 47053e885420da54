"""The visitor's own images beside the samples, and the way back to what was shown before."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixlab.app.laboratory import Laboratory
from tests.browser.test_page import TWO, drag, pixels, slide
from tests.browser.visiting import OpenPage, Page, expect, leave, settle
from tests.unit.app.live_page import request, serve

OWN = "Image: your image"
GREEN, RED = (10, 200, 30), (220, 20, 20)


def upload(page: Page, folder: Path, colour: tuple[int, int, int], name: str = "mine.png") -> None:
    Image.new("RGB", (90, 60), colour).save(folder / name)
    page.set_input_files("#file", folder / name)
    expect(page.locator("#status")).to_have_text(f"{name}, 90 × 60 pixels.")
    expect(page.locator("#stage")).to_have_attribute("aria-label", OWN)
    settle(page)
    address_follows(page)


def address_follows(page: Page) -> None:
    """Of many changes at once, the address takes the last: wait for it."""
    page.wait_for_timeout(400)


def steps(page: Page) -> int:
    return int(page.evaluate("() => history.length"))


def go_back(page: Page) -> None:
    page.go_back()
    settle(page)


def shows(page: Page, colour: tuple[int, int, int]) -> None:
    page.wait_for_function(
        """(colour) => {
          const probe = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          probe.drawImage(document.getElementById("stage"), -40, -40);
          const shown = probe.getImageData(0, 0, 1, 1).data;
          return colour.every((value, channel) => Math.abs(value - shown[channel]) < 4);
        }""",
        arg=list(colour),
    )


def test_uploads_have_thumbnails_beside_the_samples_and_can_be_chosen_again(
    open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(TWO)
    inputs, pictures = page.locator("#samples input"), page.locator("#samples img")
    expect(inputs).to_have_count(4)
    upload(page, tmp_path, GREEN)
    upload(page, tmp_path, RED, name="other.png")
    upload(page, tmp_path, GREEN)  # the same image again
    expect(inputs).to_have_count(6)
    expect(inputs.nth(4)).to_be_checked()
    boxes = [pictures.nth(number).bounding_box() for number in (0, 4, 5)]
    assert len({(round(box["width"]), round(box["height"])) for box in boxes if box}) == 1, "like the others"
    assert pictures.nth(5).evaluate("(image) => image.naturalWidth") == 96
    assert page.locator("#samples label").nth(5).get_attribute("title") == "other.png"
    page.locator("#samples label").nth(1).click()
    expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 2")
    page.locator("#samples label").nth(5).click()
    expect(page.locator("#stage")).to_have_attribute("aria-label", OWN)
    shows(page, RED)
    expect(inputs.nth(5)).to_be_checked()


def test_back_returns_to_the_image_the_networks_and_the_view_of_before(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(f"{TWO}&image=sample-3")
    address_follows(page)
    begin = steps(page)
    for layer in (0, 1, 0, 1):
        slide(page, "#layer", layer)
        address_follows(page)
    drag(page, (0.1, 0.1), (0.9, 0.9))
    address_follows(page)
    assert steps(page) == begin, "sliders and patches are no steps"
    upload(page, tmp_path, GREEN)
    page.locator("#models input[value=dinovim_tiny]").check()
    expect(page.locator(".card")).to_have_count(3)
    address_follows(page)
    page.select_option("#scale", "log")
    address_follows(page)
    assert steps(page) == begin + 3
    go_back(page)
    expect(page.locator("#scale")).to_have_value("linear")
    expect(page.locator(".card")).to_have_count(3)
    go_back(page)
    expect(page.locator(".card")).to_have_count(2)
    expect(page.locator("#stage")).to_have_attribute("aria-label", OWN)
    go_back(page)
    expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 3")
    expect(page.locator("#samples input").nth(2)).to_be_checked()
    expect(page.locator("#layer-text")).to_have_text("1 (0 to 2)")  # the last that was shown of it
    expect(page.locator("#patch-text")).to_contain_text("column 8 of")
    page.go_forward()
    expect(page.locator("#stage")).to_have_attribute("aria-label", OWN)
    shows(page, GREEN)


def test_a_slider_just_before_a_step_is_part_of_what_back_returns_to(open_page: OpenPage) -> None:
    page = open_page(TWO)
    address_follows(page)
    page.evaluate(
        """() => {
          const layer = document.getElementById("layer");
          for (const value of [0, 1]) {
            layer.value = value;
            layer.dispatchEvent(new Event("input", { bubbles: true }));
          }
          document.querySelectorAll("#samples input")[1].click();
        }"""
    )
    expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 2")
    address_follows(page)
    go_back(page)
    expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 1")
    expect(page.locator("#layer-text")).to_have_text("1 (0 to 2)")


@pytest.mark.parametrize("way", ["back", "reload"])
def test_a_mask_too_detailed_for_a_link_is_there_again(open_page: OpenPage, tmp_path: Path, way: str) -> None:
    page = open_page(TWO)
    noise = np.random.default_rng(0).integers(0, 2, (128, 128), dtype=np.uint8)
    Image.fromarray(255 * noise).save(tmp_path / "mask.png")
    page.set_input_files("#mask-file", tmp_path / "mask.png")
    expect(page.locator("#sweep")).to_be_enabled()
    settle(page)
    address_follows(page)
    assert "mask=" not in page.url
    before = pixels(page, "#stage")
    if way == "back":
        page.locator("#samples label").nth(1).click()
        expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 2")
        expect(page.locator("#sweep")).to_be_disabled()
        address_follows(page)
        go_back(page)
        expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 1")
    else:
        page.reload()
        settle(page)
    expect(page.locator("#sweep")).to_be_enabled()
    np.testing.assert_array_equal(pixels(page, "#stage"), before)


def test_the_image_of_a_link_has_a_thumbnail_and_one_that_is_gone_is_not_returned_to(
    open_page: OpenPage, address: str
) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (50, 40), RED).save(buffer, format="PNG")
    own = request(address, "POST", "/api/pictures", buffer.getvalue()).body["id"]
    page = open_page(f"{TWO}&image={own}", refusals=("status of 404",))
    expect(page.locator("#samples input").nth(4)).to_be_checked()
    page.evaluate("(view) => (location.hash = view)", f"{TWO}&image=upload-gone")
    expect(page.locator("#banner")).to_contain_text("upload-gone")
    expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 1")
    address_follows(page)
    assert "upload-gone" not in page.url
    go_back(page)
    expect(page.locator("#stage")).to_have_attribute("aria-label", OWN)
    shows(page, RED)


def test_an_upload_that_the_server_has_forgotten_is_given_again_when_it_is_chosen(
    open_page: OpenPage, laboratory: Laboratory, tmp_path: Path
) -> None:
    with serve(laboratory, picture_bytes=20_000) as host:  # room for one
        page = open_page(TWO, at=host, refusals=("status of 404",))
        upload(page, tmp_path, GREEN)
        upload(page, tmp_path, RED, name="other.png")
        page.locator("#samples label").nth(4).click()
        shows(page, GREEN)
        settle(page)
        expect(page.locator("#banner")).to_be_hidden()
        leave(page)


def test_skipping_to_the_image_leaves_the_view_as_it_is(open_page: OpenPage) -> None:
    page = open_page(f"{TWO}&image=sample-2")
    page.locator("#skip").press("Enter")
    expect(page.locator("#stage")).to_be_focused()
    expect(page).to_have_url(re.compile("image=sample-2"))
    expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: sample 2")


def test_all_uploads_are_there_after_a_reload(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(TWO)
    samples = page.locator("#samples input").count()
    upload(page, tmp_path, GREEN, "green.png")
    upload(page, tmp_path, RED, "red.png")
    page.reload()
    settle(page)
    expect(page.locator("#samples input")).to_have_count(samples + 2)
    page.locator("#samples img").nth(samples).click()
    shows(page, GREEN)
