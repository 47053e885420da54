"""Film a newcomer's five minutes: `mixlab demo > demo.txt 2>&1; python docs/make_gallery.py demo --log demo.txt`.

What the demo prints, its report, its figures, and the page after a click on an eye. Needs playwright.
"""

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

GALLERY = Path(__file__).parent / "gallery"
FIGURES = {
    "maps": "maps",
    "auc By model": "auc-model",
    "auc Mean ROC": "auc-roc",
    "auc By layer": "auc-layer",
    "matrices-vit": "matrices-vit",
    "matrices-dinovim": "matrices-dinovim",
    "matrices-gatedconv": "matrices-gatedconv",
    "Numerical rank": "rank-numerical",
    "Spectra": "rank-spectra",
    "Where the weight lies": "rank-distance",
    "Supervised: loss": "training-loss",
    "kNN while training": "training-knn",
}
EYE = (0.37, 0.38)  # of the cat, from the left and from the top
TERMINAL = """<body style="margin:0;background:#16191d"><pre style="margin:0;padding:14px 18px;width:81ch;
white-space:pre-wrap;
color:#d8dee6;font:13px/1.35 'DejaVu Sans Mono',monospace">$ mixlab demo\n{}</pre></body>"""


def main(demo: Annotated[Path, tyro.conf.Positional], *, log: Path, browser: Path | None = None) -> None:
    """Take the pictures.

    Args:
        demo: the folder of a demo.
        log: what the demo printed, at 80 columns.
        browser: a Chromium to use instead of playwright's own.
    """
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        show_terminal(chromium, log.read_text(encoding="utf-8"))
        show_report(chromium, demo / "report.html")
        with served(demo / "vit-tuned") as address:
            show_page(chromium, address)
        chromium.close()


def show_terminal(chromium: Browser, printed: str) -> None:
    page = chromium.new_page(device_scale_factor=1.25)
    kept = re.split(r"\n+real\t", printed.strip())[0]  # of `time`
    page.set_content(TERMINAL.format(html.escape(kept)))
    shoot(page, "pre", "demo-terminal.png")


def show_report(chromium: Browser, report: Path) -> None:
    page = chromium.new_page(viewport={"width": 1300, "height": 890})
    page.goto(report.resolve().as_uri())
    page.screenshot(path=GALLERY / "demo-report.jpg", type="jpeg", quality=62)
    page = chromium.new_page(viewport={"width": 1000, "height": 900}, device_scale_factor=1.5)
    page.goto(report.resolve().as_uri())
    for name, file in FIGURES.items():
        figure = page.locator(f'figure[data-figure="{name}"]').first
        # A picture outside the report needs the legend of its section; the gallery has the caption.
        figure.evaluate(
            """figure => {
              figure.querySelector('figcaption')?.remove();
              figure.querySelectorAll('h3, details').forEach(part => part.remove());
              const legend = figure.closest('section').querySelector('.legend');
              const isChart = figure.querySelector('svg.chart') && !figure.querySelector('.heads');
              if (legend && isChart) figure.prepend(legend.cloneNode(true));
              Object.assign(figure.style, {padding: '8px', margin: 0, alignSelf: 'start'});
              if (figure.querySelector('.pictures')) figure.style.width = 'fit-content';
            }"""
        )
        shoot(page, f'figure[data-figure="{name}"] >> nth=0', f"{file}.png")


def show_page(chromium: Browser, address: str) -> None:
    page = chromium.new_page(viewport={"width": 1300, "height": 900})
    page.goto(address)
    page.locator("#tour-end").click()
    image = page.locator("#stage canvas, canvas").first
    page.wait_for_function("() => document.getElementById('cards').getAttribute('aria-busy') === 'false'")
    box = image.bounding_box()
    assert box is not None
    image.click(position={"x": EYE[0] * box["width"], "y": EYE[1] * box["height"]})
    page.wait_for_timeout(3000)
    page.screenshot(path=GALLERY / "page.jpg", type="jpeg", quality=62)


def shoot(page: Page, selector: str, name: str) -> None:
    """One part of a page, with a palette: a third of the size, and no difference to the eye."""
    page.locator(selector).screenshot(path=GALLERY / name)
    with Image.open(GALLERY / name) as picture:
        picture.convert("RGB").quantize(128).save(GALLERY / name, optimize=True)


@contextmanager
def served(tuned: Path) -> Iterator[str]:
    """The page with the networks of the demo; its address."""
    networks = ["shipped/vit", "shipped/dinovim", "shipped/gatedconv", f"{tuned}=vit-tuned"]
    call = [sys.executable, "-m", "mixlab", "app", *networks, "--data", "photo:cat", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, "the page did not start"
        yield found[0]
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    tyro.cli(main)
