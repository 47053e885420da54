"""What the command line prints as one sentence. Every other exception is a bug of ours and keeps its traceback."""


class InputError(ValueError):
    """What was given cannot work: the message names the value, the rule and a way out."""


class WorkError(RuntimeError):
    """The work had to stop, and not because of a bug: the message says why and what to do."""


def check_counts(**counts: int | None) -> None:
    """Refuse numbers below one, by the names of their options."""
    for name, number in counts.items():
        if number is not None and number < 1:
            raise InputError(f"--{name.replace('_', '-')} is {number}; give at least 1")
