"""A matplotlib figure as an element of a page: text as text, the page's own colours, hints under the pointer.

matplotlib's own SVG would bring ids that clash, clip paths, and fonts and colours that ignore the page's theme.
"""

import base64
import io
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

# Okabe and Ito's hues, moved to a contrast of 3:1 on white: distinct with any colour vision.
PALETTE = ("#0072b2", "#cb4b16", "#00805f", "#a64d85", "#a87100", "#3f87b5", "#57606a")
TEXT, SOFT, LINE, GROUND = "#1b1f24", "#57606a", "#d0d7de", "#ffffff"
_VARIABLES = {colour: f"--c{number}" for number, colour in enumerate(PALETTE)}
_VARIABLES |= {TEXT: "--text", SOFT: "--soft", LINE: "--line", GROUND: "--ground"}
_HINT, _NEXT_HINT = "hint:", " ¦ "


def hint(artist: Artist, *texts: str) -> None:
    """What the page says under the pointer: one text for the whole artist, then one for each of its marks."""
    artist.set_gid(_HINT + _NEXT_HINT.join(texts))


def remove_hints(figure: Figure) -> None:
    """For a file, in which they would be ids."""
    for part in (figure, *figure.axes):  # not `findobj`, which makes every tick
        for artist in part.get_children():
            if (artist.get_gid() or "").startswith(_HINT):
                artist.set_gid(None)


def lay_out(figure: Figure, suffix: str, *, dpi: float = 72) -> None:
    """Give all parts of a figure their places, for good: `savefig` draws it twice, the first time for this alone."""
    canvas = {".svg": FigureCanvasSVG, ".png": FigureCanvasAgg}[suffix](figure)
    figure.set_dpi(canvas.fixed_dpi or dpi)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def inline_svg(figure: Figure, about: str) -> str:
    """A figure as an element of a page: without ids, clip paths or fonts of its own."""
    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "savefig.transparent": True}):
        lay_out(figure, ".svg")
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(re.sub(r'\sxmlns(:\w+)?="[^"]*"|xlink:', "", written.getvalue()))
    marks = {part.get("id"): part for part in root.iter("path") if part.get("id")}
    known = {"class": "chart", "role": "img", "aria-label": about} if about else {"class": "key", "aria-hidden": "true"}
    page = ElementTree.Element("svg", {"viewBox": root.get("viewBox", "")} | known)
    _copy_parts(root, page, marks)
    return ElementTree.tostring(page, encoding="unicode")


def _copy_parts(source: ElementTree.Element, target: ElementTree.Element, marks: Mapping[Any, Any]) -> None:
    """Drawn elements alone, groups opened unless they move or hint at something."""
    for part in source:
        if part.tag in ("g", "a"):
            _copy_group(part, target, marks)
        elif part.tag == "use":
            mark = marks[(part.get("href") or "").removeprefix("#")]
            place = {"d": mark.get("d"), "transform": f"translate({part.get('x')} {part.get('y')})"}
            copied = _add(target, "path", place | {"style": part.get("style") or mark.get("style")})
            copied.extend(child for child in part if child.tag == "title")
        elif part.tag in ("path", "text", "image") and _plain_style(part.get("style")) != "fill: none":
            copied = _add(target, part.tag, part.attrib)
            copied.text = part.text
            copied.extend(child for child in part if child.tag in ("title", "tspan"))


def _copy_group(group: ElementTree.Element, target: ElementTree.Element, marks: Mapping[Any, Any]) -> None:
    name, place = group.get("id", ""), group.get("transform")
    if name.startswith(_HINT):
        texts = name.removeprefix(_HINT).split(_NEXT_HINT)
        uses = [*group.iter("use")]
        if len(uses) == len(texts) - 1:
            for use, text in zip(uses, texts[1:], strict=True):
                ElementTree.SubElement(use, "title").text = text
        for shape in [part for part in group if part.tag == "path"] or [*group.iter("use")][:1]:
            ElementTree.SubElement(shape, "title").text = texts[0]
    if place is not None:
        target = ElementTree.SubElement(target, "g", {"transform": place})
    _copy_parts(group, target, marks)


def _add(target: ElementTree.Element, tag: str, attributes: Mapping[str, str | None]) -> ElementTree.Element:
    kept = {key: value for key, value in attributes.items() if value is not None and key not in ("id", "clip-path")}
    if "style" in kept:
        kept["style"] = _plain_style(kept["style"])
    if kept.get("transform", "").startswith("rotate(-0 "):
        del kept["transform"]
    if tag == "image":
        kept["href"] = _in_few_bytes(kept["href"])
    for key in ("d", "transform", "x", "y"):
        if key in kept and tag != "image":
            kept[key] = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), kept[key])
    if "d" in kept:
        kept["d"] = re.sub(r"\s+", " ", kept["d"]).strip()
    return ElementTree.SubElement(target, tag, kept)


def _in_few_bytes(source: str) -> str:
    """A picture in the colours of a map, 256 at most, with one byte per pixel."""
    start, _, code = source.partition(",")
    with Image.open(io.BytesIO(base64.b64decode(code))) as picture:
        small = io.BytesIO()
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG")
    return f"{start},{base64.b64encode(small.getvalue()).decode()}"


def _plain_style(style: str | None) -> str:
    """The page's font and colours instead of the figure's own."""
    parts = [part.strip() for part in (style or "").split(";")]
    kept = [
        part
        for part in parts
        if part and not part.startswith(("font-family", "font:", "stroke-linecap", "image-rendering"))
    ]
    size = re.search(r"font:[^;]*?([\d.]+)px", style or "")
    text = "; ".join([*kept, *([f"font-size: {size[1]}px"] if size else [])])
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text
