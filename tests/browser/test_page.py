"""The page as a visitor uses it: every control, and what it shows for it."""

import base64
import io
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from PIL import Image

from mixlab.analysis.maps import activation_map
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import seen_picture
from mixlab.choices import SHOWN_MAP
from tests.browser.visiting import OpenPage, Page, expect, settle
from tests.unit.app.live_page import request, serve, staged_laboratory, tiny_subjects
from tests.unit.app.test_app_server import png_header

TWO = "#model=vit_tiny&model=dinomambareg_tiny"


def canvas(page: Page, model: str, figure: int, place: int = 0) -> str:
    """A selector: figures are 0 map, 1 patch, 2 principal components, 3 matrix."""
    number = page.locator(".card h3").all_inner_texts().index(model)
    part, index = ((".card", 1), (".answer", 1), (".card", 2), (".answer", 2))[figure]
    return f"{part}:nth-child({number + 1}) figure:nth-child({index}) .frame canvas >> nth={place}"


def label(page: Page, model: str, figure: int) -> str:
    return page.locator(canvas(page, model, figure)).get_attribute("aria-label") or ""


def pixels(page: Page, selector: str) -> np.ndarray:
    """What a canvas shows, (height, width, 3)."""
    url = page.locator(selector).evaluate("(canvas) => canvas.toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))


def drag(page: Page, *points: tuple[float, float]) -> None:
    """Drag over the image; points are shares of its sides."""
    page.locator("#stage").scroll_into_view_if_needed()
    box = page.locator("#stage").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


def slide(page: Page, control: str, value: int) -> None:
    page.locator(control).fill(str(value))
    settle(page)


def test_the_colours_of_a_map_are_the_values_of_the_model(open_page: OpenPage, laboratory: Laboratory) -> None:
    page = open_page(f"{TWO}&x=0.02&y=0.02&overlay=0")
    page.wait_for_function("() => document.querySelectorAll('.card').length === 2")
    backbone = tiny_subjects()[0].backbone
    square = seen_picture(laboratory.samples[0].pixels, 64, "square")
    with torch.no_grad():
        images = backbone.preprocess(torch.from_numpy(square).permute(2, 0, 1))
        values = activation_map(backbone, images, SHOWN_MAP, 2)[0].numpy()
    shares = (values - values.min()) / (values.max() - values.min())
    expected = mpl.colormaps["viridis"](shares)[..., :3] * 255
    shown = pixels(page, canvas(page, "vit_tiny", 0))
    centres = shown[24::48, 24::48].astype(float)  # 8 x 8 cells on 384 pixels
    assert np.abs(centres - expected).max() < 6


def test_clicks_on_the_image_a_map_or_the_matrix_and_arrow_keys_choose_the_patch(open_page: OpenPage) -> None:
    page = open_page(TWO)
    drag(page, (0.9, 0.1))
    expect(page.locator("#patch-text")).to_have_text("Patch in row 1, column 8 of 8 × 8.")
    settle(page)
    before = pixels(page, canvas(page, "vit_tiny", 1))
    page.locator(canvas(page, "dinomambareg_tiny", 0)).click(position={"x": 10, "y": 200})
    expect(page.locator("#patch-text")).to_contain_text("column 1 of")
    settle(page)
    assert (pixels(page, canvas(page, "vit_tiny", 1)) != before).any()
    matrix = page.locator(canvas(page, "vit_tiny", 3))
    size = matrix.bounding_box()["width"]  # type: ignore[index]
    matrix.click(position={"x": 5, "y": size * (1 + 19.5) / 65})  # token 20 is patch 19, after the class token
    expect(page.locator("#patch-text")).to_have_text("Patch in row 3, column 4 of 8 × 8.")
    page.locator("#stage").focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)  # from row 3, column 4, over the edge and back
    expect(page.locator("#patch-text")).to_have_text("Patch in row 3, column 3 of 8 × 8.")
    expect(page.locator("#status")).to_have_text("Patch in row 3, column 3.")
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#patch-text")).to_contain_text("column 1 of")


def test_sliders_go_over_layers_heads_and_registers(open_page: OpenPage) -> None:
    page = open_page("#model=vit_tiny&model=dinovim_tiny&model=dinomambareg_tiny&map=register_cosine")
    expect(page.locator("#layer-text")).to_have_text("4 (0 to 4)")
    slide(page, "#layer", 2)
    expect(page.locator(".answer header p").first).to_contain_text("layer 1 (0 to 2)")  # half the depth
    expect(page.locator(".answer header p").nth(1)).to_contain_text("layer 2 (0 to 4)")
    slide(page, "#head", 1)
    page.wait_for_function("() => document.body.textContent.includes('head 1 (0 to 1), 65 tokens')")
    slide(page, "#part", 2)
    assert "register 2 (0 to 3)" in label(page, "dinomambareg_tiny", 0)
    assert "This map needs registers" in label(page, "vit_tiny", 0)
    page.select_option("#map", "direction_rows")
    settle(page)
    slide(page, "#part", 1)
    assert "direction 1 (0 to 1)" in label(page, "dinovim_tiny", 0)
    expect(page.locator("#part-name")).to_have_text("Direction")


def test_heads_are_those_of_the_chosen_layer(open_page: OpenPage) -> None:
    with serve(staged_laboratory()) as own:
        page = open_page("#model=staged&from=0&head=3", at=own)
        expect(page.locator("#head-text")).to_have_text("3 (0 to 3)")
        assert "head 3 (0 to 3)" in label(page, "staged", 3)
        slide(page, "#layer", 0)
        expect(page.locator("#head-text")).to_have_text("1 (0 to 1)")
        assert "head 1 (0 to 1)" in label(page, "staged", 3)
        page = open_page("#model=staged&model=vit_tiny&from=0&head=3", at=own)
        assert "head 3 (0 to 3)" in label(page, "staged", 3)
        assert "head 1 (0 to 1)" in label(page, "vit_tiny", 3)  # its last
        page.goto("about:blank")


def test_every_kind_of_map_is_shown_or_explained(open_page: OpenPage, laboratory: Laboratory) -> None:
    page = open_page("#model=dinomambareg_tiny&model=gatedconv_tiny")
    cards = {card.id: card for card in laboratory.models}
    for name in [card.id for card in laboratory.maps]:
        page.select_option("#map", name)
        for model in ("dinomambareg_tiny", "gatedconv_tiny"):
            words = f"{name.replace('_', ' ')}" if name in cards[model].maps else "This map needs"
            expect(page.locator(canvas(page, model, 0))).to_have_attribute("aria-label", re.compile(re.escape(words)))


def test_row_or_column_scale_overlay_and_fit_change_the_pictures(open_page: OpenPage) -> None:
    page = open_page(TWO)
    for control, value in (("#sense", "column"), ("#scale", "log"), ("#fit", "squash")):
        before = pixels(page, canvas(page, "vit_tiny", 1))
        page.select_option(control, value)
        if control != "#fit":  # samples are square: nothing to see there
            settle(page)
            assert (pixels(page, canvas(page, "vit_tiny", 1)) != before).any(), control
    assert "What attends to it" in label(page, "vit_tiny", 1)
    before = pixels(page, canvas(page, "vit_tiny", 0))
    page.uncheck("#overlay")
    settle(page)
    assert (pixels(page, canvas(page, "vit_tiny", 0)) != before).any()
    expect(page).to_have_url(re.compile("fit=squash.*overlay=0"))


def test_one_to_four_models_can_be_chosen(open_page: OpenPage) -> None:
    page = open_page(TWO)
    boxes = page.locator("#models input")
    boxes.nth(2).uncheck()
    expect(page.locator(".answer h3")).to_have_text(["vit_tiny"])
    expect(boxes.nth(0)).to_be_disabled()  # the last one
    boxes.nth(2).check()
    boxes.nth(1).check()
    boxes.nth(3).check()
    expect(page.locator(".card")).to_have_count(4)
    expect(boxes.nth(4)).to_be_disabled()
    boxes.nth(0).uncheck()
    expect(page.locator(".card h3")).to_have_text(["dinovim_tiny", "dinomambareg_tiny", "gatedconv_tiny"])
    settle(page)


def test_a_network_stays_at_its_layer_when_a_deeper_one_goes_and_comes_back(open_page: OpenPage) -> None:
    page = open_page(TWO)
    deeper = page.locator("#models input[value=dinovim_tiny]")
    for layer, alone in ((4, 2), (2, 1), (0, 0)):
        slide(page, "#layer", layer)
        deeper.uncheck()
        expect(page.locator("#layer-text")).to_have_text(f"{alone} (0 to 2)")
        deeper.check()
        expect(page.locator("#layer-text")).to_have_text(f"{layer} (0 to 4)")
    settle(page)


def test_a_mask_drawn_is_scored_as_it_is_drawn_and_erased_again(open_page: OpenPage) -> None:
    page = open_page(TWO)
    cell = page.locator("#score-table tbody tr td strong").first
    expect(page.locator("#sweep")).to_be_disabled()
    page.get_by_text("Draw", exact=True).click()
    drag(page, (0.5, 0.5))  # one dab on the corner of four patches
    expect(page.locator("#score-hint")).to_contain_text("at least half of no patch")
    page.locator("#mask-clear").click()
    slide(page, "#brush", 20)
    drag(page, (0.2, 0.2), (0.4, 0.2), (0.4, 0.4))
    page.wait_for_function("() => location.hash.includes('mask=')")
    settle(page)
    first = cell.inner_text()
    assert 0.5 <= float(first) <= 1
    expect(page.locator("#roc svg")).to_have_attribute("aria-label", re.compile(re.escape(first)))
    drag(page, (0.8, 0.6), (0.8, 0.9))
    expect(cell).not_to_have_text(first)
    page.get_by_text("Erase", exact=True).click()
    drag(page, (0.8, 0.5), (0.8, 1.0))
    expect(cell).to_have_text(first)
    page.locator("#mask-clear").click()
    expect(page.locator("#score-table tbody")).not_to_contain_text("0.")
    expect(page).not_to_have_url(re.compile("mask="))


def test_a_mask_can_be_drawn_with_the_keyboard(open_page: OpenPage, address: str) -> None:
    page = open_page(f"{TWO}&x=0.05&y=0.05")
    page.locator("#tools input[value=draw]").focus()
    page.keyboard.press("Space")
    page.locator("#stage").focus()
    for key in ("Enter", "ArrowRight", "Enter", "ArrowDown", "Space"):
        page.keyboard.press(key)
    mask = np.zeros((256, 256), dtype=int)
    mask[:32, :64] = mask[32:64, 32:64] = 1
    runs = [[int(mask.flat[0]), 0]]
    for value in mask.flatten().tolist():
        if value != runs[-1][0]:
            runs.append([value, 0])
        runs[-1][1] += 1
    asked = {"kind": "score", "picture": "sample-1", "model": "vit_tiny", "map": SHOWN_MAP, "layer": 2, "mask": runs}
    expected = request(address, "POST", "/api/questions", asked).body["answer"]["auc"]
    expect(page.locator("#score-table tbody tr td strong").first).to_have_text(f"{expected:.3f}")


def test_the_sample_has_its_mask_and_every_layer_can_be_scored(open_page: OpenPage) -> None:
    page = open_page("#model=vit_tiny&model=dinovim_tiny&image=sample-2")
    assert not page.locator("#scores").evaluate("(node) => node.open")
    page.locator("#mask-sample").click()
    expect(page.locator("#roc svg")).to_be_visible()  # the panel opens with a mask
    expect(page.locator("#score-table tbody tr")).to_have_count(3)  # and the blob in the centre
    page.locator("#sweep").click()
    expect(page.locator("#layers circle")).to_have_count(3 + 5)
    settle(page)  # the scores of this layer are asked for beside those of all
    last = page.locator("#score-table tbody tr td strong").first.inner_text()
    said = page.locator("#layers svg").get_attribute("aria-label") or ""
    assert said.split("vit_tiny: ")[1].split(";")[0].split(", ")[-1] == f"{float(last):.2f}"
    slide(page, "#layer", 0)
    expect(page.locator("#layers circle")).to_have_count(3 + 5)  # the curve is about all layers, whichever is shown
    page.select_option("#map", "norm")
    expect(page.locator("#layers circle")).to_have_count(0)  # and about this map only


def test_an_upload_is_shown_with_its_own_mask_and_an_image_can_be_dropped_on_the_page(
    open_page: OpenPage, tmp_path: Path
) -> None:
    picture, mask = np.zeros((90, 144, 3), dtype=np.uint8), np.zeros((90, 144), dtype=np.uint8)
    picture[:, 72:] = (250, 20, 20)
    mask[:, 72:] = 255
    Image.fromarray(picture).save(tmp_path / "half.png")
    Image.fromarray(mask).save(tmp_path / "mask.png")
    page = open_page(TWO)
    page.set_input_files("#file", tmp_path / "half.png")
    expect(page.locator("#status")).to_have_text("half.png, 144 × 90 pixels.")
    expect(page.locator("#mask-sample")).to_be_disabled()
    settle(page)
    shown = pixels(page, "#stage")
    assert shown.shape == (480, 768, 3)
    np.testing.assert_allclose(shown[400, 700], (250, 20, 20), atol=3)
    np.testing.assert_allclose(shown[400, 60], (0, 0, 0), atol=3)
    page.set_input_files("#mask-file", tmp_path / "mask.png")
    expect(page.locator("#status")).to_have_text("Mask from mask.png.")
    expect(page.locator("#score-table tbody tr").last).to_contain_text("0.500")  # the blob is the same on both sides
    expect(page).to_have_url(re.compile("image=upload-"))
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (10, 200, 30)).save(buffer, format="PNG")
    page.evaluate(
        """(bytes) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
          const details = { dataTransfer: transfer, bubbles: true, cancelable: true };
          for (const kind of ["dragenter", "dragover", "drop"]) {
            document.body.dispatchEvent(new DragEvent(kind, details));
          }
        }""",
        list(buffer.getvalue()),
    )
    expect(page.locator("#status")).to_have_text("dropped.png, 32 × 32 pixels.")
    assert page.locator("body.dragging").count() == 0


def test_files_that_are_no_good_are_refused_in_words_and_the_page_goes_on(open_page: OpenPage, tmp_path: Path) -> None:
    noise = io.BytesIO()
    Image.effect_noise((200, 200), 90).save(noise, format="PNG")
    files = {
        "cannot be decoded": noise.getvalue()[:9000],
        "100 million pixels": png_header(10_000, 10_000),
        "not an image": b"hello",
        "21 MB": bytes(21 * 2**20),
    }
    page = open_page(TWO, refusals=("status of 422",))
    for number, (words, content) in enumerate(files.items()):
        file = tmp_path / f"{number}.png"
        file.write_bytes(content)
        page.set_input_files("#file", file)
        expect(page.locator("#banner")).to_contain_text(words)
        page.locator("#samples label").nth(number % 2 + 1).click()
        expect(page.locator("#stage")).to_have_attribute("aria-label", f"Image: sample {number % 2 + 2}")
        settle(page)
    Image.new("L", (64, 20)).save(tmp_path / "mask.png")
    page.set_input_files("#mask-file", tmp_path / "mask.png")
    expect(page.locator("#banner")).to_contain_text("another shape")


def test_a_link_is_the_view_mask_and_all(open_page: OpenPage) -> None:
    page = open_page("#model=vit_tiny&model=gatedconv_tiny&image=sample-3&map=norm&layer=2&head=1&x=0.1&y=0.9")
    expect(page.locator("#layer-text")).to_have_text("1 (0 to 2)")  # links without `from` count from 1, as they did
    page.get_by_text("Draw", exact=True).click()
    drag(page, (0.3, 0.3), (0.6, 0.5))
    expect(page.locator("#score-table tbody tr")).to_have_count(3)
    page.wait_for_function("() => location.hash.includes('mask=')")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#share").click()
    expect(page.locator("#status")).to_have_text("Link copied.")
    link = page.evaluate("() => navigator.clipboard.readText()")
    assert link == page.url and "from=0&" in link and "layer=1&head=0" in link
    settle(page)
    other = open_page(link[link.index("#") :])
    for selector in ("#score-table", "#patch-text", "#layer-text", "#head-text", "#answers", "#cards"):
        expect(other.locator(selector)).to_have_text(page.locator(selector).inner_text(), use_inner_text=True)
    np.testing.assert_array_equal(pixels(other, "#stage"), pixels(page, "#stage"))


def test_a_link_that_makes_no_sense_still_opens_a_page(open_page: OpenPage) -> None:
    page = open_page(
        "#model=nobody&image=upload-gone&map=dream&layer=-3&head=x&x=7&mask=%25&fit=no", refusals=("status of 404",)
    )
    expect(page.locator("#banner")).not_to_be_empty()
    expect(page.locator("#samples input").first).to_be_checked()
    settle(page)
    expect(page.locator(".card")).to_have_count(3)


def test_pictures_can_be_downloaded_one_by_one_and_together(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(TWO)
    with page.expect_download() as one:
        page.get_by_label("Download: Activation map, vit_tiny").click()
    assert one.value.suggested_filename == "vit-tiny-activation-map.png"
    one.value.save_as(tmp_path / "one.png")
    shown = pixels(page, canvas(page, "vit_tiny", 0))
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "one.png").convert("RGB")), shown)
    with page.expect_download() as whole:
        page.locator("#download").click()
    whole.value.save_as(tmp_path / "whole.png")
    figure = np.asarray(Image.open(tmp_path / "whole.png").convert("RGB"))
    assert figure.shape[1] > 900
    assert len({bytes(colour) for colour in figure[::9, ::9].reshape(-1, 3)}) > 200


def test_both_themes_are_readable_and_remembered(open_page: OpenPage) -> None:
    page = open_page(TWO, theme="dark")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(13, 17, 23)"
    page.select_option("#theme", "light")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.reload()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_nothing_is_cut_off_at_any_width(open_page: OpenPage) -> None:
    models = "#model=vit_tiny&model=dinovim_tiny&model=dinomambareg_tiny&model=gatedconv_tiny"
    page = open_page(f"{models}&mask=sample", width=390)
    for width in (390, 768, 1300):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(  # canvases take their new size in the next frame
            """(width) => document.documentElement.scrollWidth <= width
              && [...document.querySelectorAll("canvas, .card h3, .answer h3, button")]
                .map((node) => node.getBoundingClientRect())
                .filter((box) => box.width)
                .every((box) => box.left >= -0.5 && box.right <= width + 0.5)""",
            arg=width,
        )


def test_everything_that_can_be_used_has_a_name(open_page: OpenPage) -> None:
    page = open_page(TWO)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, canvas, img, svg, progress")].filter((node) => {
          if (node.getAttribute("aria-hidden") || node.closest("[hidden]")) return false;
          const label = node.getAttribute("aria-label") ?? node.alt ?? "";
          const around = node.labels?.[0]?.textContent.trim() || node.labels?.[0]?.querySelector("img")?.alt || "";
          return !(label || around || node.textContent.trim()) && node.getAttribute("alt") === null;
        }).map((node) => node.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []


def test_two_visitors_at_once_see_their_own_views(open_page: OpenPage) -> None:
    first = open_page("#model=vit_tiny&model=dinovim_tiny&image=sample-1&from=0&layer=0")
    second = open_page("#model=vit_tiny&model=dinovim_tiny&image=sample-4&from=0&layer=4")
    for layers in ((3, 1), (0, 4)):
        for page, layer in zip((first, second), layers, strict=True):
            slide(page, "#layer", layer)
            expect(page).to_have_url(re.compile(f"layer={layer}$"))  # what a reload shows
    expect(first.locator(".answer header p").nth(1)).to_contain_text("layer 0 (0 to 4)")
    expect(second.locator(".answer header p").nth(1)).to_contain_text("layer 4 (0 to 4)")
    settle(second)
    shown = [pixels(second, canvas(second, "dinovim_tiny", figure)) for figure in range(4)]
    first.goto("about:blank")
    second.reload()  # with nobody else there
    settle(second)
    for figure in range(4):
        np.testing.assert_array_equal(shown[figure], pixels(second, canvas(second, "dinovim_tiny", figure)))
