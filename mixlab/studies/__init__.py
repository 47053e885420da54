"""Studies: lists of commands with dependencies, run in parallel and resumable."""
