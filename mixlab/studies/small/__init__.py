"""The study at 160 px: five families of mixers at about 5.5 and 22 million parameters."""
