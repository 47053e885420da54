"""One file per command: a typed function that prints a table and returns the content of `--json`."""
