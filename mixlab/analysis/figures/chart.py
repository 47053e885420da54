"""A chart, drawn once by matplotlib: as a file with title and legend, or inside a page in the page's own colours."""

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

from mixlab.analysis.figures.line_styles import PALETTE, LineStyle

TEXT, SOFT, LINE, GROUND = "#1b1f24", "#57606a", "#d0d7de", "#ffffff"
INK = "#fefefe"  # on pictures: white whatever the theme
UNIT = 72  # of a page's chart, an inch
_MOST_COLUMNS = 3  # of panels in a file
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": TEXT,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlecolor": TEXT,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.03,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.major.pad": 5,
    "ytick.major.pad": 5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 6.5,
    "lines.scale_dashes": False,
    "image.cmap": "viridis",
    "svg.hashsalt": "mixlab",  # the same figure gives the same file
}
_VARIABLES = {colour: f"--c{number}" for number, colour in enumerate(PALETTE)}
_VARIABLES |= {TEXT: "--text", SOFT: "--soft", LINE: "--line", GROUND: "--ground"}
_HINT, _NEXT_HINT = "hint:", " ¦ "


@dataclass(frozen=True)
class Chart:
    """`about` says what it shows to readers who cannot see it; `draw` fills the axes that it is given."""

    title: str
    about: str
    draw: Callable[[Axes], None]
    width: float = 5.0  # inches
    height: float = 3.5
    has_legend: bool = True

    def svg(self) -> str:
        """For a page: text as text, colours by the page's CSS variables, values as hints under the pointer."""
        return inline_svg(_figure([self], named=False), f"{self.title}. {self.about}")


def save_charts(charts: Sequence[Chart], path: Path) -> Path:
    """Charts side by side in one file, with their titles and one legend; the suffix chooses the format."""
    return save_figure(_figure(charts, named=True), path)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure; no date goes into the file, and text becomes outlines, readable without any font."""
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context(STYLE):
        for artist in figure.findobj(lambda part: (part.get_gid() or "").startswith(_HINT)):
            artist.set_gid(None)
        figure.savefig(path, metadata=metadata, dpi=150, bbox_inches="tight")
    return path


def _figure(charts: Sequence[Chart], *, named: bool) -> Figure:
    with mpl.rc_context(STYLE):
        num_columns = min(len(charts), _MOST_COLUMNS)
        num_rows = -(-len(charts) // num_columns)
        size = (num_columns * max(c.width for c in charts), num_rows * max(c.height for c in charts))
        figure = Figure(figsize=size)
        figure.set_layout_engine("constrained", w_pad=1 / UNIT, h_pad=1 / UNIT)
        panels = [*figure.subplots(num_rows, num_columns, squeeze=False).flat]
        for ax in panels[len(charts) :]:
            ax.set_axis_off()
        for chart, ax in zip(charts, panels, strict=False):
            chart.draw(ax)
            for part in ax.get_children():
                part.set_clip_on(False)  # axes hold all that is drawn
            for axis in (ax.xaxis, ax.yaxis):
                if isinstance(axis.get_major_locator(), AutoLocator):
                    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
            if named:
                ax.set_title(chart.title)
        if named and any(chart.has_legend for chart in charts):
            _add_legend(figure, panels, most_columns=max(1, int(size[0] // 1.5)))
    return figure


def _add_legend(figure: Figure, panels: Sequence[Axes], *, most_columns: int) -> None:
    """Every label once, below the panels."""
    found: dict[str, Artist] = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        columns = min(len(found), most_columns)
        figure.legend([*found.values()], [*found], loc="outside lower center", ncols=columns)


def hint(artist: Artist, *texts: str) -> None:
    """What the page says under the pointer: one text for the whole artist, or one for each of its marks."""
    artist.set_gid(_HINT + _NEXT_HINT.join(texts))


def plot_line(
    ax: Axes, xs: Sequence[float], ys: Sequence[float], style: LineStyle, label: str, *, marks: bool = True
) -> None:
    """A line with a mark and a hint per point where there are few; NaN leaves a gap."""
    (line,) = ax.plot(xs, ys, color=style.colour, linestyle=style.dashes, label=label)
    hint(line, label)
    if marks and len(xs) <= 30:
        line.set_marker(style.marker)
        known = [(x, y) for x, y in zip(xs, ys, strict=True) if y == y]
        hint(line, label, *(f"{label}: {y:.3g} at {x:g}" for x, y in known))


def log_axis(ax: Axes, name: str) -> None:
    """Ticks at powers of ten, five at most; over few of them also at 2 and 5 times those."""
    axis = ax.xaxis if name == "x" else ax.yaxis
    getattr(ax, f"set_{name}scale")("log")
    low, high = axis.get_view_interval()
    factors = (1, 2, 5) if high < 50 * low else (1,)
    places = [factor * 10.0**power for power in range(-30, 31) for factor in factors]
    places = [place for place in places if low <= 1.0001 * place and place <= 1.0001 * high]
    axis.set_major_locator(FixedLocator(places[:: max(1, -(-len(places) // 5))]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _in_few_digits(value)))


def _in_few_digits(value: float) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


@lru_cache(maxsize=64)
def legend_key(style: LineStyle) -> str:
    """A line and its mark, as small as text."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(34 / UNIT, 12 / UNIT))
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set_axis_off()
        ax.set(xlim=(0, 34), ylim=(0, 12))
        ax.plot([1, 17, 33], [6, 6, 6], color=style.colour, linestyle=style.dashes, clip_on=False)
        ax.plot([17], [6], color=style.colour, marker=style.marker, clip_on=False)
    return inline_svg(figure, "")


def inline_svg(figure: Figure, about: str) -> str:
    """A figure as an element of a page: without ids, clip paths or fonts of its own."""
    written = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.fonttype": "none", "savefig.transparent": True}):
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
        drawn = next(iter(group.iter("path")), None)
        for shape in [shape for shape in group if shape.tag in ("path", "image")] or [drawn]:
            if shape is not None:
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
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
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
