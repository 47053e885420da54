"""The report and the documentation in a real browser: both themes, a desk, a phone and paper."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "report"))
from example_run import make_example  # noqa: E402

from mixlab.report import write_report  # noqa: E402

if TYPE_CHECKING:
    from tests.browser.visiting import Tab

SCREENS = {"desk": (1300, 900), "tablet": (820, 1100), "phone": (390, 844)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "lab"
    make_example(folder)
    return write_report([folder], folder / "report.html")


class Visit:
    """A page in one theme on one screen, with everything that it asked for or complained about."""

    def __init__(self, tab: "Tab", file: Path, *, theme: str, screen: str) -> None:
        self.tab = tab
        self.complaints: list[str] = []
        self.requests: list[str] = []
        tab.listen("console", lambda message: self.complaints.append(message.text))
        tab.listen("pageerror", lambda error: self.complaints.append(str(error)))
        tab.listen("request", lambda request: self.requests.append(request.url))
        self.look(theme=theme, screen=screen)
        self.page.goto(file.as_uri())

    def look(self, *, theme: str, screen: str) -> None:
        width, height = SCREENS[screen]
        self.page = self.tab.prepare(width=width, height=height, theme=theme)

    def assert_sound(self) -> None:
        assert not self.complaints
        assert all(url.startswith(("file:", "data:")) for url in self.requests)
        width = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0, f"the page is {width} px wider than the screen"
        broken = self.page.evaluate("[...document.images].filter(i => !i.naturalWidth || !i.alt).map(i => i.outerHTML)")
        assert not broken, "a picture is empty or has no description"


@pytest.mark.parametrize("screen", SCREENS)
def test_the_report_is_sound_in_both_themes_on_every_screen(tab: "Tab", report: Path, screen: str) -> None:
    visit = Visit(tab, report, theme="light", screen=screen)
    for theme in ("light", "dark"):
        visit.look(theme=theme, screen=screen)
        visit.assert_sound()
        # No part of a chart is cut off: text stays inside the page.
        outside = visit.page.evaluate(
            """[...document.querySelectorAll('svg text, figcaption, td, th, h2, p')].filter(part => {
                 const box = part.getBoundingClientRect();
                 return box.width > 0 && (box.left < -1 || box.right > innerWidth + 1) && !part.closest('.scroll');
               }).map(part => part.textContent)"""
        )
        assert not outside
        cut = visit.page.evaluate(
            """[...document.querySelectorAll('table, .scroll, .pictures')].filter(
                 part => part.parentElement.clientWidth && part.scrollWidth > part.parentElement.clientWidth + 1
               ).map(part => part.className)"""
        )
        assert not cut, "a table or a row of pictures is cut off"


@pytest.mark.parametrize("screen", ["desk", "phone"])
def test_the_first_screen_holds_the_answer(tab: "Tab", report: Path, screen: str) -> None:
    visit = Visit(tab, report, theme="light", screen=screen)
    tops = {
        part: visit.page.locator(part).first.bounding_box()["y"] for part in (".conclusions", ".verdicts", ".through")
    }
    assert max(tops.values()) < SCREENS[screen][1], tops
    pictures = [image.bounding_box() for image in visit.page.locator(".through .looks img").all()]
    assert all(box["width"] >= 100 for box in pictures) and len(pictures) == 2 * 4
    if screen == "desk":  # what a patch reads, and the matrices, side by side above the fold
        bottoms = sorted(box["y"] + box["height"] for box in pictures)
        assert bottoms[0] == bottoms[1] and bottoms[3] < 900


def lightness(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, as WCAG has it."""
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_and_text_stand_out_from_the_ground(tab: "Tab", report: Path, theme: str) -> None:
    visit = Visit(tab, report, theme=theme, screen="desk")
    style = "(selector, key) => getComputedStyle(document.querySelector(selector))[key]"
    ground = lightness(visit.page.evaluate(f"({style})('body', 'backgroundColor')"))
    assert (ground < 0.1) == (theme == "dark")

    def contrast(colour: str) -> float:
        low, high = sorted((lightness(colour), ground))
        return (high + 0.05) / (low + 0.05)

    assert contrast(visit.page.evaluate(f"({style})('svg.chart text', 'fill')")) >= 7
    names = [f"--c{index}" for index in range(7)] + ["--soft", "--good", "--bad", "--open", "--link"]
    for name in names:
        colour = visit.page.evaluate(
            """name => { const probe = document.body.appendChild(document.createElement('i'));
               probe.style.color = `var(${name})`; return getComputedStyle(probe).color; }""",
            name,
        )
        wanted = 3.0 if name.startswith("--c") else 4.5  # WCAG: graphics, text
        assert contrast(colour) >= wanted, f"{name} is too pale on the {theme} ground"


def test_a_number_leads_to_its_record_and_opens_it(tab: "Tab", report: Path) -> None:
    visit = Visit(tab, report, theme="light", screen="desk")
    link = visit.page.locator("#models td a", has_text="50.0 %").first
    record = link.get_attribute("href").removeprefix("#")
    assert not visit.page.locator(f"#{record}").is_visible()
    link.click()
    visit.page.locator(f"#{record}").wait_for(state="visible")  # the browser unfolds it after the click
    assert '"num_classes": 10' in visit.page.locator(f"#{record}").inner_text()


def test_on_paper_the_report_is_black_on_white_and_leaves_out_the_records(tab: "Tab", report: Path) -> None:
    visit = Visit(tab, report, theme="dark", screen="desk")
    visit.page.emulate_media(media="print", color_scheme="dark")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not visit.page.locator("#records").is_visible() and visit.page.locator("#models").is_visible()
    visit.page.set_viewport_size({"width": 700, "height": 1000})  # the text of an A4 page
    wide = visit.page.evaluate("[...document.querySelectorAll('table')].filter(t => t.offsetWidth > 700).length")
    assert wide == 0, "a table is cut off on paper"
    assert visit.page.pdf(format="A4").startswith(b"%PDF")


def test_the_documentation_is_sound_in_both_themes(tab: "Tab", site: Path) -> None:
    files = [file for file in sorted(site.glob("*.html")) if file.stem not in ("genindex", "search")]  # Sphinx's own
    visit = Visit(tab, files[0], theme="light", screen="phone")
    for number, file in enumerate(files):
        visit.look(theme="light", screen="phone")  # the narrower
        visit.page.goto(file.as_uri())
        visit.assert_sound()
        assert visit.page.locator("h1").count() == 1
        if number % 3 == 0:
            visit.look(theme="dark", screen="desk")
            visit.assert_sound()
