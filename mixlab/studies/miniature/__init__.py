"""The study `miniature`: its parts as steps, its own jobs, and how it is run and published."""
