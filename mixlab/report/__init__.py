"""Run directories -> one self-contained HTML page."""

from mixlab.errors import naming_extras

with naming_extras():
    from mixlab.report.page import check_page, first_sentences, write_report

__all__ = ["check_page", "first_sentences", "write_report"]
