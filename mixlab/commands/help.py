"""How tyro shows a command in help: `--image INT`, not `--image {None}|INT`; no "(default: None)"; lines that fit."""

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from mixlab.console import put, takes_colour
from mixlab.plugins import REGISTRIES
from mixlab.run.disk import in_units

NONE = ["None"]  # may still be written out
WIDEST = 100  # columns of a sentence
registry = ConstructorRegistry()


def run_parsed(function: Callable[..., Any], name: str, arguments: Sequence[str]) -> None:
    """Call the function of a command with what these arguments say, or print its help and exit."""
    said = inspect.getdoc(function) or ""
    is_help = bool({"-h", "--help"} & {*arguments})
    if is_help:
        width = min(shutil.get_terminal_size().columns, WIDEST)
        parts = said.partition("\nArgs:\n")[0].strip().split("\n\n")
        put("\n\n".join(textwrap.fill(part, width) for part in parts) + "\n")
        arguments = ["--help"]  # tyro leaves out of the help what was given
    tyro._experimental_options["ansi_codes"] = takes_colour(sys.stdout if is_help else sys.stderr)

    def command(**given: Any) -> Any:
        for options in given.values():
            if hasattr(options, "check"):
                options.check()
        return function(**given)

    hints = get_type_hints(function, include_extras=True)
    parameters = [
        part.replace(annotation=Annotated[hints[part.name], DEFAULT]) if part.name in hints else part
        for part in inspect.signature(function).parameters.values()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parameters}
    command.__doc__ = with_plugins(re.sub(r"\n {8,}", " ", said))  # an option's lines are one sentence
    with suppress(BrokenPipeError) if is_help else nullcontext():  # `| head`
        tyro.cli(command, prog=f"mixlab {name}", description="", args=arguments, registry=registry)


SMALLER = {  # what memory depends on, by the option that a command has for it
    "image": "smaller images (--image)",
    "batch": "smaller batches (--batch)",
    "set": "smaller batches (--set batch=N) or more passes for each (--set accumulate=N)",
    "num_images": "fewer images (--num-images)",
    "workers": "fewer processes that read data (--workers)",
}


def what_to_make_smaller(error: BaseException, function: Callable[..., Any] | None) -> str:
    """A sentence in place of what torch and others say where memory is not enough."""
    names: set[str] = set()
    for name, hint in get_type_hints(function).items() if function else ():
        names |= {part.name for part in fields(hint)} if is_dataclass(hint) else {name}
    ways = [way for name, way in SMALLER.items() if name in names] or ["a smaller task"]
    asked = re.search(r"allocate ([\d.]+) (\w+)", str(error))
    wanted = ""
    if asked:
        wanted = f": {in_units(int(asked[1])) if asked[2] == 'bytes' else ' '.join(asked.groups())} more were needed"
    return f"memory is not enough{wanted}; use {', '.join(ways)}, or a machine with more memory"


def with_plugins(said: str) -> str:
    """The words of a command, with the maps that plugins registered behind those of its option `map`."""
    table = REGISTRIES.get("map")  # not imported: no plugin has registered any
    own = [name for name in table or () if table is not None and table.origin(name) is not None]
    return re.sub(r"^( *map: .*)\.$", rf"\1; of plugins: {', '.join(own)}.", said, flags=re.MULTILINE) if own else said


def plain_default(value: str) -> str:
    """What help says after the words of an option: nothing where it is off, or where the words say what happens."""
    return "" if value in ("", "None", "False") else f"(default: {'on' if value == 'True' else value})"


DEFAULT = tyro.conf.arg(help_behavior_hint=plain_default)


@registry.struct_rule
def group_rule(about: StructTypeInfo) -> StructConstructorSpec | None:
    """Fields of a group of options, as options of a function."""
    if not is_dataclass(about.type) or about.type in _asking:
        return None
    _asking.append(about.type)
    try:
        spec = ConstructorRegistry.get_struct_spec(about)
    finally:
        _asking.pop()
    if not isinstance(spec, StructConstructorSpec):
        return None
    return replace(spec, fields=tuple(map(_plain_field, spec.fields)))


def _plain_field(field: StructFieldSpec) -> StructFieldSpec:
    said = field.helptext

    def one_line() -> str | None:
        text = said() if callable(said) else said
        return text and " ".join(text.split())

    kind: Any = Annotated[field.type, DEFAULT]
    return replace(field, type=kind, helptext=one_line)


_asking: list[Any] = []  # groups about which tyro is asked what it would do without this rule


@registry.primitive_rule
def optional_rule(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`T | None` is read and shown as T; other unions are left to tyro."""
    kinds = get_args(about.type)
    others = [kind for kind in kinds if kind is not NoneType]
    if get_origin(about.type) not in (Union, UnionType) or len(kinds) != 2 or len(others) != 1:
        return None
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(others[0], about.markers))
    if not isinstance(spec, PrimitiveConstructorSpec) or spec.nargs != 1:
        return None
    return replace(
        spec,
        instance_from_str=lambda words: None if words == NONE else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: NONE if value is None else spec.str_from_instance(value),
        choices=None if spec.choices is None else (*spec.choices, *NONE),
    )
