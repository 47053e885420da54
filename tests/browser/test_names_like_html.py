"""Runs, images and labels that are called like HTML are shown as text and do nothing: on the page and in the report."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from mixlab.app.laboratory import build_laboratory
from mixlab.backbones.weights import save_weights
from mixlab.backbones.zoo import create_model
from mixlab.report import write_report
from mixlab.run import RunDirectory
from tests.browser.visiting import expect, leave, settle
from tests.unit.app.live_page import serve

sys.path.append(str(Path(__file__).parents[1] / "unit" / "report"))
from example_run import make_example

if TYPE_CHECKING:
    from tests.browser.visiting import OpenPage, Page, Tab

NASTY = "'\"><b class=injected>x<img src=x onerror=window.hit=1><svg onload=window.hit=1>&amp;${hit}{{7*7}}"
CLOSING = f"</title></pre></style></script><script>window.hit=1</script>{NASTY}"
FOUND = """() => ({
  hit: window.hit, injected: document.querySelectorAll('.injected').length,
  handlers: [...document.querySelectorAll('*')].filter((part) =>
    [...part.attributes].some((attribute) => /^on/i.test(attribute.name))).length,
  scripts: [...document.scripts].filter((script) => !script.src).length,
  links: [...document.querySelectorAll('[src],[href]')].filter((part) =>
    /^\\s*javascript:/i.test(part.getAttribute('src') ?? part.getAttribute('href'))).length,
})"""
SHOWN = """() => [...document.querySelectorAll('*')].map((part) =>
  [part.textContent, part.ariaLabel, part.alt, part.title].join()).join()"""
NOTHING = {"hit": None, "injected": 0, "handlers": 0, "scripts": 0, "links": 0}


def assert_nothing_happened(page: "Page") -> None:
    assert page.evaluate(FOUND) == NOTHING


def test_a_run_and_an_image_called_like_html_do_nothing_on_the_page(open_page: "OpenPage", tmp_path: Path) -> None:
    run, images = RunDirectory.create(tmp_path / NASTY), tmp_path / "photos"
    images.mkdir()
    save_weights(
        create_model("vit_tiny", dim=32, depth=2, head_dim=16, patch=8, image=32), run.path / "weights.safetensors"
    )
    run.write_config({"data": CLOSING, "seed": 0, "settings": {"method": {"kind": CLOSING}}})
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(
        images / f"{NASTY}.png"
    )
    with serve(build_laboratory([str(run.path)], data=[str(images)], num_samples=1, device="cpu")) as address:
        page = open_page(at=address)
        settle(page)
        expect(page.locator(".card h3")).to_have_text(NASTY)
        expect(page.locator(".answer header p")).to_contain_text(CLOSING)
        assert f"{NASTY}.png" in page.evaluate(SHOWN)
        page.set_input_files("#file", images / f"{NASTY}.png")
        expect(page.locator("#status")).to_contain_text(NASTY)
        settle(page)
        assert_nothing_happened(page)
        leave(page)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / NASTY
    make_example(folder, labels=(CLOSING, f"vim{NASTY}"))
    for file in sorted((folder / "results").glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        content |= {"note": CLOSING, CLOSING: [CLOSING]}
        for key in ("data", "image_names"):
            if key in content:
                content[key] = CLOSING
        if isinstance(content.get("images"), list):
            content["images"] = [CLOSING for _ in content["images"]]
        if "provenance" in content:
            content["provenance"] |= {"command": f"mixlab auc {CLOSING}", "commit": CLOSING}
            content["provenance"]["machine"] = {"device": CLOSING, "processor": CLOSING}
        for claim in content.get("claims", []):
            claim |= {"measured": CLOSING, "statement": CLOSING, "status": CLOSING, "scale": CLOSING}
        file.write_text(json.dumps(content), encoding="utf-8")
    return write_report([folder], folder.parent / "report.html")


@pytest.fixture
def report_page(tab: "Tab", report: Path) -> Iterator["Page"]:
    complaints: list[str] = []
    tab.listen("console", lambda message: complaints.append(message.text))
    tab.listen("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
    tab.page.goto(report.as_uri())
    yield tab.page
    assert not complaints


def test_runs_labels_and_images_called_like_html_do_nothing_in_the_report(report_page: "Page") -> None:
    assert NASTY in report_page.title()
    text = report_page.evaluate("() => document.body.textContent")
    assert text.count(CLOSING) > 10, "names are shown as they are"
    assert report_page.locator('img[alt*="injected"]').count() > 0, "names of images describe them"
    for details in report_page.locator("details > summary").all():
        details.click()
    assert_nothing_happened(report_page)
