"""Where notes, tables and progress go: stderr, so that `--json -` leaves stdout to the JSON."""

from rich.console import Console

console = Console(stderr=True, markup=False, emoji=False)  # brackets and colons in paths and labels mean nothing to it
