"""Run directories -> one self-contained HTML page."""

from mixlab.report.page import write_report

__all__ = ["write_report"]
