"""Results that bring their own table and pictures, on the page of a real server."""

from pathlib import Path
from typing import TYPE_CHECKING

from mixlab.app.exhibits import run_exhibits
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import read_samples
from tests.browser.visiting import leave
from tests.unit.app.live_page import serve, tiny_subjects
from tests.unit.app.test_exhibits import make_run

if TYPE_CHECKING:
    from tests.browser.visiting import OpenPage


def test_a_result_of_an_unknown_kind_opens_with_its_picture(open_page: "OpenPage", tmp_path: Path) -> None:
    samples = read_samples(["shapes:size=64,n=1"], 1)
    laboratory = Laboratory(
        tiny_subjects()[:1], samples, cache_bytes=2**20, exhibits=run_exhibits({"mine": make_run(tmp_path)})
    )
    with serve(laboratory) as host:
        page = open_page(at=host, width=390)
        summary = page.locator("#exhibits summary")
        summary.wait_for()
        assert summary.inner_text() == "<b>Norms</b>: mine" and page.locator("#exhibits b").count() == 0
        summary.click()
        assert page.locator("#exhibits figcaption").inner_text() == "By layer."
        assert page.locator("#exhibits td").all_inner_texts() == ["vit", "0.25", "x", "–"]
        for width in (390, 1300):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        leave(page)
