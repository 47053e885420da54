"""Pictures side by side are read from files that the analysis wrote."""

from mixlab.analysis.rank_summary import TABLE_COLUMNS
from mixlab.report.looks import BLOCK_COLUMNS


def test_the_table_of_blocks_is_read_in_the_order_in_which_it_is_written() -> None:
    assert BLOCK_COLUMNS == TABLE_COLUMNS
