"""Lists of commands with what each needs, run and resumed together: the demo and the studies."""
