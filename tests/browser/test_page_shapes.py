"""Wide and tall photographs in their own shape: clicks, marks, rows, masks, and what is taken along."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mixlab
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import read_samples
from mixlab.evaluation.target import Target
from tests.browser.test_late_answers import held
from tests.browser.test_page import TWO, canvas, drag, pixels, slide
from tests.browser.test_page_masks import mask_of
from tests.browser.visiting import OpenPage, Page, expect, settle
from tests.unit.app.live_page import serve, tiny_subjects

SIZES = {"wide": (144, 90), "tall": (90, 144)}
GRIDS = {"wide": (6, 10), "tall": (10, 6)}  # 80 x 48 pixels in patches of 8


def photograph(shape: str) -> Image.Image:
    width, height = SIZES[shape]
    noise = np.random.default_rng(0).integers(256, size=(9, 9, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


def visit(open_page: OpenPage, tmp_path: Path, shape: str, *, width: int = 1366, at: str | None = None) -> Page:
    page = open_page(f"{TWO}&overlay=0", width=width, at=at)
    photograph(shape).save(tmp_path / f"{shape}.png")
    page.set_input_files("#file", tmp_path / f"{shape}.png")
    expect(page.locator("#status")).to_contain_text(f"{shape}.png, ")
    settle(page)
    return page


@pytest.mark.parametrize("shape", SIZES)
def test_a_click_marks_its_patch_and_shows_what_that_patch_reads(
    open_page: OpenPage, tmp_path: Path, shape: str
) -> None:
    page, (high, wide), (row, column) = visit(open_page, tmp_path, shape), GRIDS[shape], (4, 1)
    box = page.locator("#stage").bounding_box()
    assert box is not None
    assert box["width"] / box["height"] == pytest.approx(SIZES[shape][0] / SIZES[shape][1], rel=0.02)
    place = {"x": (column + 0.5) / wide * box["width"], "y": (row + 0.5) / high * box["height"]}
    page.locator("#stage").click(position=place)
    expect(page.locator("#patch-text")).to_have_text(f"Patch in row {row + 1}, column {column + 1} of {high} × {wide}.")
    settle(page)
    shown = pixels(page, "#stage")
    assert max(shown.shape) == 768
    assert shown[round(row / high * len(shown)), round((column + 0.5) / wide * shown.shape[1])].min() > 240  # its frame
    view = mixlab.ViewedImages(str(tmp_path / f"{shape}.png"), size=64, fit="whole", multiple=8)
    backbone = tiny_subjects()[0].backbone
    with torch.no_grad():
        *_, (_, mixing) = backbone.mixings(backbone.preprocess(view.together().images))
        read = mixing.matrix()[0].mean(0)[1 + row * wide + column, 1:].reshape(high, wide)
    drawn = pixels(page, canvas(page, "vit_tiny", 1))
    down, across = (((np.arange(n) + 0.5) * drawn.shape[axis] / n).astype(int) for axis, n in enumerate((high, wide)))
    cells = drawn[down][:, across, 1].astype(float)
    others = np.ones((high, wide), bool)
    others[row, column] = False  # its own weight is not on the scale, and is framed
    order, found = read.numpy()[others].argsort(), cells[others]
    assert np.corrcoef(found[order], np.arange(len(order)))[0, 1] > 0.9  # viridis: the brighter, the greener


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize(("width", "height"), [(1366, 768), (390, 844)])
def test_photographs_of_any_shape_fit_where_squares_fit(
    open_page: OpenPage, tmp_path: Path, shape: str, width: int, height: int
) -> None:
    page = visit(open_page, tmp_path, shape, width=width)
    page.set_viewport_size({"width": width, "height": height})
    bottom = page.evaluate("() => document.getElementById('mask-clear').getBoundingClientRect().bottom")
    assert bottom < height - 41  # the line at the foot
    for one in ("#stage", canvas(page, "vit_tiny", 1), canvas(page, "vit_tiny", 0)):
        wide, high = page.locator(one).evaluate("(node) => [node.clientWidth, node.clientHeight]")
        room = page.locator(one).evaluate("(node) => node.parentElement.clientWidth")
        assert wide / high == pytest.approx(SIZES[shape][0] / SIZES[shape][1], rel=0.03)
        assert max(wide, high) <= room + 1


@pytest.mark.parametrize("shape", SIZES)
def test_a_mask_is_round_on_the_image_and_comes_back_when_the_fit_changes(
    open_page: OpenPage, tmp_path: Path, shape: str
) -> None:
    page = visit(open_page, tmp_path, shape)
    page.get_by_text("Draw", exact=True).click()
    slide(page, "#brush", 40)
    drag(page, (0.5, 0.5))
    settle(page)
    before = mask_of(page)
    rows, columns = np.nonzero(before == 1)
    across, down = (np.ptp(places) * side for places, side in zip((columns, rows), SIZES[shape], strict=True))
    assert across == pytest.approx(down, rel=0.04)
    expect(page.locator("#sweep")).to_be_enabled()  # it is scored
    for fit in ("square", "whole"):
        page.select_option("#fit", fit)
        page.wait_for_function("(fit) => location.hash.includes(`fit=${fit}`)", arg=fit)
        settle(page)
    np.testing.assert_array_equal(mask_of(page), before)
    page.reload()
    settle(page)
    np.testing.assert_array_equal(mask_of(page), before)
    assert page.locator("#fit").input_value() == "whole"


def test_the_saved_page_and_picture_keep_the_shape(open_page: OpenPage, tmp_path: Path) -> None:
    page = visit(open_page, tmp_path, "wide")
    page.locator(canvas(page, "vit_tiny", 0)).click(position={"x": 5, "y": 5})
    settle(page)
    for button, name in (("#export", "page.html"), ("#download", "figure.png")):
        with page.expect_download() as saved:
            page.locator(button).click()
        saved.value.save_as(tmp_path / name)
    with Image.open(tmp_path / "figure.png") as figure:
        assert figure.width > 3 * 320 and figure.height < 110 + 5 * (320 + 90)  # pictures are less high than squares
    page.goto((tmp_path / "page.html").as_uri())
    expect(page.get_by_text("Patch in row 1, column 1 of 6 × 10.")).to_be_visible()
    stage = page.locator(".stage canvas")
    box = stage.bounding_box()
    assert box is not None and box["width"] / box["height"] == pytest.approx(1.6, rel=0.02)
    stage.click(position={"x": 0.95 * box["width"], "y": 0.95 * box["height"]})
    expect(page.get_by_text("Patch in row 6, column 10 of 6 × 10.")).to_be_visible()


@pytest.fixture(scope="module")
def with_square_only() -> Iterator[str]:
    mixer = mixlab.create_model("timm/mixer_s16_224", img_size=64).eval()
    targets = [*tiny_subjects()[:3], Target(label="mixer", backbone=mixer)]
    with serve(Laboratory(targets, read_samples(["shapes:size=128,n=1"], 1), cache_bytes=2**26)) as found:
        yield found


def test_beside_a_network_that_takes_squares_all_are_shown_the_square_and_the_page_says_so(
    open_page: OpenPage, tmp_path: Path, with_square_only: str
) -> None:
    page = visit(open_page, tmp_path, "wide", at=with_square_only)
    page.get_by_text("Draw", exact=True).click()
    drag(page, (0.3, 0.5), (0.6, 0.5))
    settle(page)
    before, box = mask_of(page), page.locator("#models input[value=mixer]")
    box.check()
    expect(page.locator("#fit-about")).to_have_text("mixer is shown squares only.")
    expect(page.locator("#fit")).to_have_value("square")
    expect(page.locator("#fit option[value=whole]")).to_be_disabled()
    settle(page)
    assert pixels(page, "#stage").shape == (768, 768, 3)
    box.uncheck()
    expect(page.locator("#fit")).to_have_value("whole")
    expect(page.locator("#fit-about")).to_be_hidden()
    settle(page)
    np.testing.assert_array_equal(mask_of(page), before)
    page = open_page("#model=mixer", at=with_square_only)
    expect(page.locator("#fit")).to_have_value("square")
    page.goto("about:blank")


def test_a_link_of_before_whole_images_shows_the_square_that_it_meant(open_page: OpenPage) -> None:
    page = open_page(f"{TWO}&x=0.3&y=0.7")
    expect(page.locator("#fit")).to_have_value("square")


def test_a_click_on_a_new_picture_before_its_answers_lands_where_it_was(open_page: OpenPage, tmp_path: Path) -> None:
    page = visit(open_page, tmp_path, "wide")
    photograph("tall").save(tmp_path / "tall.png")
    with held(page, lambda request: "/api/questions" in request) as requests:
        page.set_input_files("#file", tmp_path / "tall.png")
        requests.wait()
        page.wait_for_function("() => { const it = document.getElementById('stage'); return it.height > it.width; }")
        box = page.locator("#stage").bounding_box()
        assert box is not None
        page.locator("#stage").click(position={"x": 1.5 / 6 * box["width"], "y": 8.5 / 10 * box["height"]})
        requests.release()
    expect(page.locator("#patch-text")).to_have_text("Patch in row 9, column 2 of 10 × 6.")
    expect(page.locator("#status")).to_have_text("Patch in row 9, column 2.")


def test_a_mask_outside_the_crop_is_told_and_kept(open_page: OpenPage, tmp_path: Path) -> None:
    page = visit(open_page, tmp_path, "wide")
    page.get_by_text("Draw", exact=True).click()
    slide(page, "#brush", 5)
    drag(page, (0.06, 0.5))
    settle(page)
    before = mask_of(page)
    assert (before == 1).any()
    page.select_option("#fit", "square")
    expect(page.locator("#status")).to_have_text(
        "The mask lies outside this crop. It is kept: the whole image shows it."
    )
    page.select_option("#fit", "whole")
    page.wait_for_function("() => location.hash.includes('fit=whole')")
    settle(page)
    np.testing.assert_array_equal(mask_of(page), before)
