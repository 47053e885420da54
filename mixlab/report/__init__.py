"""Run directories -> one self-contained HTML page. No torch here."""

from mixlab.report.page import write_report
from mixlab.report.records import find_runs

__all__ = ["find_runs", "write_report"]
