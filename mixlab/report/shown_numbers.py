"""Numbers as the tables of the page show them."""

from typing import Any

from mixlab.report.table import Cell
from mixlab.statistics import Quantity, with_interval


def shown(cell: Cell | Quantity, unit: str) -> dict[str, str]:
    """A number as the tables show it, and its interval; of unit ± with its sign."""
    scale, suffix = _unit(cell.value) if unit == "count" else (100.0, " %") if unit == "%" else (1.0, "")

    def show(value: float) -> str:
        value *= scale
        if unit == "±":
            return f"{value:+.3f}"
        return (
            f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if suffix or abs(value) >= 10 else f"{value:.3f}"
        )

    known = cell.low is not None and cell.high is not None
    return {
        "text": show(cell.value) + suffix,
        "interval": f"{show(cell.low)} to {show(cell.high)}" if known else "",  # type: ignore[arg-type]
    }


def _unit(value: float) -> tuple[float, str]:
    """The power of a thousand in which a large number is short."""
    for size, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return 1 / size, name
    return 1.0, ""


def signed(difference: Quantity, unit: str) -> str:
    """A difference with its interval."""
    form, scale = ("+.1f", 100.0) if unit == "%" else ("+.3f", 1.0)
    return with_interval(difference.value, difference.low, difference.high, form=form, unit=scale)


def show_number(value: Any) -> str:
    """A number of a table; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)
