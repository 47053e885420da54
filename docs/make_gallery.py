"""Take the pictures of the gallery from a report: `python docs/make_gallery.py demo/report.html`. Needs playwright."""

from pathlib import Path
from typing import Annotated

import tyro
from PIL import Image
from playwright.sync_api import sync_playwright

FIGURES = {
    "maps": "maps",
    "auc By model": "auc-model",
    "auc Mean ROC": "auc-roc",
    "auc By layer": "auc-layer",
    "auc By register": "auc-register",
    "matrices-vit": "matrices-vit",
    "matrices-dinovim": "matrices-dinovim",
    "matrices-gatedconv": "matrices-gatedconv",
    "Numerical rank": "rank-numerical",
    "Spectra": "rank-spectra",
    "Where the weight lies": "rank-distance",
}


def main(report: Annotated[Path, tyro.conf.Positional], *, browser: Path | None = None) -> None:
    """Take the pictures.

    Args:
        report: the page of a demo.
        browser: a Chromium to use instead of playwright's own.
    """
    folder = Path(__file__).parent / "gallery"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1000, "height": 900}, device_scale_factor=1.5)
        page.goto(report.resolve().as_uri())
        matrices = page.locator(".matrices")
        matrices.evaluate(
            """grid => grid.querySelectorAll('figcaption').forEach(
                 caption => caption.replaceChildren(caption.querySelector('strong')))"""
        )
        matrices.screenshot(path=folder / "matrices.png")
        for name, file in FIGURES.items():
            figure = page.locator(f'figure[data-figure="{name}"]').first
            # A picture outside the report needs the legend of its section; the gallery has the caption.
            figure.evaluate(
                """figure => {
                  figure.querySelector('figcaption')?.remove();
                  figure.querySelectorAll('h3').forEach(title => title.remove());
                  const legend = figure.closest('section').querySelector('.legend');
                  const isChart = figure.querySelector('svg.chart') && !figure.querySelector('.heads');
                  if (legend && isChart) figure.prepend(legend.cloneNode(true));
                  Object.assign(figure.style, {padding: '8px', margin: 0});
                  if (figure.querySelector('.pictures')) figure.style.width = 'fit-content';
                }"""
            )
            figure.screenshot(path=folder / f"{file}.png")
        chromium.close()
    for file in folder.glob("*.png"):  # a palette: a third of the size, and no difference to the eye
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(224).save(file, optimize=True)


if __name__ == "__main__":
    tyro.cli(main)
