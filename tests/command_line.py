"""Commands as people call them."""

import contextlib
import inspect
import io
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from typing import Any

import tyro

from mixlab.cli import find_command, main


def command(name: str) -> Callable[..., dict[str, Any]]:
    """A command as a function of its arguments, which its own parser reads: `num_val=3` is `--num-val 3`."""
    return partial(_run, find_command(name))


def _run(function: Callable[..., dict[str, Any]], *positional: Any, **options: Any) -> dict[str, Any]:
    arguments = [str(part) for given in positional for part in (given if isinstance(given, list | tuple) else [given])]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments.append(option if value else option.replace("--", "--no-", 1))
        elif name == "set":
            arguments += [part for setting in value for part in (option, setting)]
        elif value is not None:
            arguments += [option, *map(str, value if isinstance(value, list | tuple) else [value])]
    return tyro.cli(function, args=arguments)


def parse_command(name: str, arguments: list[str]) -> dict[str, Any]:
    """What a command would be called with, option by option; it is not called."""
    function = find_command(name)

    @wraps(function)
    def note(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)

    found: dict[str, Any] = tyro.cli(note, args=arguments)
    found |= found.pop("options", {})  # those of an analysis
    groups = {name: vars(value) if is_dataclass(value) else {name: value} for name, value in found.items()}
    return {option: value for group in groups.values() for option, value in group.items()}


def help_of(name: str) -> dict[str, str]:
    """The options of a command and their help, as `--help` prints them."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([name, "--help"])
    found: dict[str, str] = {}
    name = ""
    for line in printed.getvalue().splitlines():
        words = line.strip("│ ").split()
        if re.match(r"[│ ] --\w", line):  # in a box or without; help that names another option is indented
            name = words[0].rstrip(",")
        if name:
            found[name] = " ".join([found.get(name, ""), *words]).strip()
    return found
