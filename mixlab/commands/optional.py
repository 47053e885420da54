"""How options that may be left out are shown in help: `--image INT`, not `--image {None}|INT`."""

from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NONE = ["None"]  # may still be written out
registry = ConstructorRegistry()


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
