"""A chart, drawn once by matplotlib: as a file with title and legend, or inside a page in the page's own colours."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from mixlab.analysis.figures.page_svg import LINE, PALETTE, SOFT, TEXT, hint, inline_svg, lay_out, remove_hints
from mixlab.run import base_label
from mixlab.run.disk import naming_file

FAMILY_NAMES = {
    "attention": "softmax attention",
    "linear_attention": "linear attention",
    "mamba2": "Mamba-2 scan",
    "mamba1": "Mamba-1 scan",
    "gated_conv": "gated convolution",
}
_FAMILY_HUES = {"attention": 0, "mamba2": 1, "linear_attention": 2, "gated_conv": 4, "mamba1": 3}
_OTHER_HUES = (3, 5, 6, 0, 1, 2, 4)
_DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3), (4, 2), (1, 2), (10, 4))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class LineStyle:
    """Of the first seven, every hue has dashes and a mark of its own; beyond, hues repeat with others."""

    number: int

    @property
    def hue(self) -> int:
        return self.number % len(PALETTE)

    @property
    def colour(self) -> str:
        return PALETTE[self.hue]

    @property
    def dashes(self) -> str | tuple[int, tuple[int, ...]]:
        pattern = _DASHES[self._variant % len(_DASHES)]
        return (0, pattern) if pattern else "-"

    @property
    def marker(self) -> str:
        return _MARKERS[self._variant % len(_MARKERS)]

    @property
    def _variant(self) -> int:
        return self.number + self.number // len(PALETTE)


OTHER = LineStyle(6)
Styles = Mapping[str, LineStyle]


def line_styles(families: Mapping[str, str]) -> dict[str, LineStyle]:
    """One style per label, from the family of each: the first of a family has the family's hue, vit-large that of vit
    or vit-tiny with other dashes, and the seeds of one model the same.
    """
    names = {base_label(label): family for label, family in families.items()}
    leads: dict[str, str] = {}  # whose hue a name has: vit's, or that of the first with its family and first word
    first: dict[tuple[str, str], str] = {}
    for name, family in names.items():
        shorter = min((other for other in names if name.startswith(f"{other}-")), key=len, default=name)
        leads[name] = first.setdefault((family, shorter.partition("-")[0]), shorter)
    of_name: dict[str, int] = {}
    for name in dict.fromkeys(leads.values()):
        rounds = (hue + len(PALETTE) * number for number in count() for hue in _OTHER_HUES)
        free, own = next(style for style in rounds if style not in of_name.values()), _FAMILY_HUES.get(names[name])
        of_name[name] = own if own is not None and own not in of_name.values() else free
    for name, lead in leads.items():
        if name not in of_name:
            rounds = (of_name[lead] + len(PALETTE) * number for number in count(1))
            of_name[name] = next(style for style in rounds if style not in of_name.values())
    return {label: LineStyle(of_name[base_label(label)]) for label in (*names, *families)}


def untrained_style(style: LineStyle) -> LineStyle:
    """Of an untrained twin: the hue of its network, with other dashes."""
    return LineStyle(style.number + len(PALETTE))


INK = "#fefefe"  # on pictures: white whatever the theme
UNIT = 72  # of a page's chart, an inch
_DPI = 150  # of a file of pixels
_MOST_COLUMNS = 3  # of panels in a file
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": TEXT,
    "text.parse_math": False,  # a label may hold dollars
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


@dataclass(frozen=True)
class Chart:
    """`about` is the alternative text; `draw` fills the given axes."""

    title: str
    about: str
    draw: Callable[[Axes], None]
    width: float = 5.0  # inches
    height: float = 3.5
    has_legend: bool = True

    def svg(self, scale: float = 1.0) -> str:
        """For a page: text as text, colours by the page's CSS variables, values as hints under the pointer.

        At a smaller scale, text is larger beside what is drawn.
        """
        sized = replace(self, width=scale * self.width, height=scale * self.height)
        return inline_svg(_figure([sized], named=False), f"{self.title}. {self.about}")


def save_charts(charts: Sequence[Chart], path: Path) -> Path:
    """Charts side by side in one file, with their titles and one legend; the suffix chooses the format."""
    return save_figure(_figure(charts, named=True), path)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure; no date goes into the file, and text becomes outlines, readable without any font."""
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context(STYLE), naming_file(path):
        remove_hints(figure)
        box: Bbox | str = "tight"
        if path.suffix in (".png", ".svg"):
            lay_out(figure, path.suffix, dpi=_DPI)
            box = figure.get_tightbbox().padded(mpl.rcParams["savefig.pad_inches"])
        figure.savefig(path, metadata=metadata, dpi=_DPI, bbox_inches=box)
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


def plot_line(
    ax: Axes, xs: Sequence[float], ys: Sequence[float], style: LineStyle, label: str, *, marks: bool = True
) -> None:
    """A line with a mark and a hint per point where there are few; NaN leaves a gap."""
    (line,) = ax.plot(xs, ys, color=style.colour, linestyle=style.dashes, label=label)
    hint(line, label)
    if marks and len(xs) <= 30:
        line.set_marker(style.marker)
        known = [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y)]
        hint(line, label, *(f"{label}: {y:.3g} at {x:g}" for x, y in known))


def log_axis(ax: Axes, name: str) -> None:
    """Ticks at powers of ten, five at most; over few of them also at 3, or 2 and 5 times those."""
    axis = ax.xaxis if name == "x" else ax.yaxis
    getattr(ax, f"set_{name}scale")("log")
    low, high = axis.get_view_interval()
    factors = (1, 2, 5) if high < 50 * low else (1, 3) if high < 1000 * low else (1,)
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
