"""Where notes, tables and progress go: stderr, so that `--json -` leaves stdout to the JSON."""

from rich.console import Console

# Brackets, colons and numbers in paths and labels mean nothing to it.
console = Console(stderr=True, markup=False, emoji=False, highlight=False)
