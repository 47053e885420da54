"""One file per command: a typed function that prints for people and returns what `--json` writes."""
