"""The speedrun: a recipe trained and scored, timed all in, and published as one row of a table."""
