"""Studies: lists of commands with dependencies, run in parallel and resumable; the demo and the miniature study."""
