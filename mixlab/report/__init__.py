"""Run directories -> one self-contained HTML page."""

from mixlab.errors import naming_extras

with naming_extras():
    from mixlab.report.page import write_report

__all__ = ["write_report"]
