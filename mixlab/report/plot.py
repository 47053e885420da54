"""A small chart: axes, lines, bands, dots and rules as inline SVG. Colours and text follow the page's theme.

Sizes are in units of the view box; a chart is drawn narrow, so that its text is readable on a phone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

NUM_COLOURS = 7
Colours = Mapping[str, int]  # of each label, by its number
DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 2", "10 4")
CHARACTER = 6.2  # average width of a character of the charts' text


@dataclass(frozen=True)
class Scale:
    """From values to a share of the axis; `log` in powers of ten."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    @classmethod
    def around(
        cls,
        values: Sequence[float],
        *,
        log: bool = False,
        integer: bool = False,
        start: float | None = None,
        margin: float = 0.05,
    ) -> "Scale":
        """One that holds all finite values; `start` fixes its lower end."""
        known = [value for value in values if math.isfinite(value) and (not log or value > 0)]
        if not known:
            return cls(1e-1 if log else 0.0, 1.0, log, integer)
        low, high = min(known), max(known)
        if log:
            return cls(10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)) * 1.0001, True)
        pad = margin * (high - low) or 0.5 * abs(high) or 0.5
        if integer:
            pad = 0.15 if high > low else 0.5
        return cls(low - pad if start is None else start, high + pad, False, integer)

    def share(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            return math.log10(value / self.low) / max(math.log10(self.high / self.low), 1e-9)
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int) -> list[float]:
        if self.log:
            first, last = round(math.log10(self.low)), math.floor(math.log10(self.high) + 1e-3)
            return [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first + 1) / most)))]
        span = (self.high - self.low) or 1.0
        size = 10.0 ** math.floor(math.log10(span / most))
        nice = next(size * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if span / (size * factor) <= most)
        step = float(max(1, math.ceil(nice))) if self.integer else nice
        places = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [step * place for place in places]

    def label(self, value: float) -> str:
        if self.log:
            power = round(math.log10(value))
            return f"{value:g}" if -3 <= power <= 3 else f"1e{power}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass
class Plot:
    """A chart to draw on; `svg()` closes it. `about` is what a reader who cannot see it is told."""

    x: Scale
    y: Scale
    xlabel: str
    ylabel: str
    title: str
    about: str
    width: int = 360
    height: int = 250
    rows: Sequence[str] = ()  # names on the y axis instead of numbers, from the top
    square: bool = False
    parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = self.rows or [self.y.label(tick) for tick in self.y.ticks(5)]
        self.left = 12 + CHARACTER * max(map(len, names)) + (0 if self.rows else 16)
        self.right, self.top, self.bottom = 12.0, 12.0, 40.0
        if self.square:
            self.height = round(self.width - self.left - self.right + self.top + self.bottom)

    def px(self, value: float) -> float:
        return round(self.left + self.x.share(value) * (self.width - self.left - self.right), 1)

    def py(self, value: float) -> float:
        share = self.y.share(value)
        share = share if self.rows else 1 - share
        return round(self.top + share * (self.height - self.top - self.bottom), 1)

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: int, *, name: str, dots: bool = True) -> None:
        """A line with a mark per point where there are few; gaps where a value is not finite."""
        runs: list[list[str]] = [[]]
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                runs[-1].append(f"{self.px(x)},{self.py(y)}")
            elif runs[-1]:
                runs.append([])
        dash = dashes(colour)
        for run in filter(None, runs):
            self.parts.append(
                f'<polyline class="line s{colour % NUM_COLOURS}" stroke-dasharray="{dash}" points="{" ".join(run)}">'
                f"<title>{escape(name)}</title></polyline>"
            )
        if dots and len(xs) <= 30:
            for x, y in zip(xs, ys, strict=True):
                if math.isfinite(y):
                    self.dot(x, y, colour, name=f"{name}: {y:.3g} at {x:g}")

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], colour: int) -> None:
        there = [(x, a, b) for x, a, b in zip(xs, lows, highs, strict=True) if math.isfinite(a) and math.isfinite(b)]
        points = [f"{self.px(x)},{self.py(b)}" for x, _, b in there]
        points += [f"{self.px(x)},{self.py(a)}" for x, a, _ in reversed(there)]
        self.parts.append(f'<polygon class="band f{colour % NUM_COLOURS}" points="{" ".join(points)}"/>')

    def dot(self, x: float, y: float, colour: int, *, name: str, hollow: bool = False) -> None:
        self.parts.append(mark(self.px(x), self.py(y), colour, name=name, hollow=hollow))

    def segment(self, low: float, high: float, y: float, colour: int) -> None:
        """A horizontal interval."""
        place = self.py(y)
        self.parts.append(
            f'<line class="line s{colour % NUM_COLOURS}" x1="{self.px(low)}" x2="{self.px(high)}" '
            f'y1="{place}" y2="{place}"/>'
        )

    def tick(self, x: float, y: float, *, name: str) -> None:
        place = self.py(y)
        self.parts.append(
            f'<line class="prior" x1="{self.px(x)}" x2="{self.px(x)}" y1="{place - 8}" y2="{place + 8}">'
            f"<title>{escape(name)}</title></line>"
        )

    def rule(self, *, x: float | None = None, y: float | None = None, colour: int | None = None) -> None:
        """A thin line across the chart: dotted in a colour, or plain."""
        kind = "rule" if colour is None else f"rule dotted s{colour % NUM_COLOURS}"
        x1, x2 = (self.left, self.width - self.right) if x is None else (self.px(x), self.px(x))
        y1, y2 = (self.py(y), self.py(y)) if y is not None else (self.top, self.height - self.bottom)
        self.parts.append(f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>')

    def svg(self) -> Markup:
        bottom, right = self.height - self.bottom, self.width - self.right
        axes = [f'<line class="axis" x1="{self.left:.1f}" x2="{right:.1f}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>']
        for tick in self.x.ticks(6):
            place = self.px(tick)
            axes.append(f'<line class="grid" x1="{place}" x2="{place}" y1="{self.top}" y2="{bottom:.1f}"/>')
            axes.append(f'<text x="{place}" y="{bottom + 14:.1f}" text-anchor="middle">{self.x.label(tick)}</text>')
        if self.rows:
            for index, name in enumerate(self.rows):
                axes.append(_text(self.left - 6, self.py(index) + 4, name, "end"))
        else:
            for tick in self.y.ticks(5):
                place = self.py(tick)
                axes.append(f'<line class="grid" x1="{self.left:.1f}" x2="{right:.1f}" y1="{place}" y2="{place}"/>')
                axes.append(_text(self.left - 5, place + 4, self.y.label(tick), "end"))
            middle = (self.top + bottom) / 2
            axes.append(
                f'<text class="name" transform="translate(11 {middle:.1f}) rotate(-90)" text-anchor="middle">'
                f"{escape(self.ylabel)}</text>"
            )
        axes.append(_text((self.left + right) / 2, self.height - 8, self.xlabel, "middle", "name"))
        return figure_svg(self.width, self.height, [*axes, *self.parts], title=self.title, about=self.about)


def dashes(colour: int) -> str:
    """Each colour has its own; beyond the last, colours come again with others."""
    return DASHES[(colour + colour // NUM_COLOURS) % len(DASHES)]


def figure_svg(width: float, height: float, parts: Sequence[str], *, title: str, about: str) -> Markup:
    """An SVG element that says what it shows."""
    return Markup(  # every text in it was escaped
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(f"{title}. {about}")}">{"".join(parts)}</svg>'
    )


def mark(x: float, y: float, colour: int, *, name: str, hollow: bool = False, size: float = 4) -> str:
    """A dot; its shape, too, tells the colours apart."""
    kind = f"{'hollow s' if hollow else 'full s'}{colour % NUM_COLOURS} f{colour % NUM_COLOURS}"
    title = f"<title>{escape(name)}</title>"
    r = size
    corners = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -1.3 * r), (1.2 * r, r), (-1.2 * r, r)],
        3: [(0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)],
        4: [(0, 1.3 * r), (1.2 * r, -r), (-1.2 * r, -r)],
        5: [(-1.3 * r, -r / 2), (1.3 * r, -r / 2), (1.3 * r, r / 2), (-1.3 * r, r / 2)],
    }.get(colour % NUM_COLOURS)
    if corners is None:
        return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{r:g}">{title}</circle>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="{kind}" points="{points}">{title}</polygon>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
