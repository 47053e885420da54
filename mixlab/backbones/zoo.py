"""The table of backbones, how to get one by name, and how to add one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatch
from importlib.resources import as_file, files
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar

import timm
from torch.nn import Module

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.isotropic import Isotropic, IsotropicConfig, config_from_json
from mixlab.backbones.staged import Staged, StagedConfig, staged_from_json
from mixlab.backbones.timm_backbone import TimmBackbone
from mixlab.backbones.timm_features import build_timm
from mixlab.backbones.timm_models import check_release, timm_names
from mixlab.backbones.tokens import TokenLayout
from mixlab.backbones.visual_mambas import VISUAL_MAMBAS
from mixlab.backbones.weights import load_weights, model_from_file
from mixlab.data.source_names import nearest_place
from mixlab.errors import InputError, check_kind, did_you_mean
from mixlab.mixers import MIXERS, AttentionConfig, GatedConvConfig, LinearAttentionConfig, Mamba2Config, MixerConfig
from mixlab.plugins import Registry, is_ours
from mixlab.run.codec import check_values, to_json

C = TypeVar("C", bound=IsotropicConfig | StagedConfig)
Builder = Callable[..., Backbone]
B = TypeVar("B", bound=Builder)
SIZES = ("tiny", "small", "base")
TRANSFORMER_WIDTHS = (192, 384, 768)  # ViT; 12 layers, MLP ratio 4
MAMBA_WIDTHS = (256, 512, 768)  # Dino-Mamba §5.1; 24 layers, no MLP
# Small networks with weights that come with the package; mixlab/shipped/README.md says how they were made.
SHIPPED = ("shipped/vit", "shipped/dinovim", "shipped/gatedconv", "shipped/linearvit", "shipped/mambareg")
SHIPPED_TRAINING = "dino"


@dataclass(frozen=True)
class ZooEntry:
    """One line of the table: who defined the architecture, and how to configure it."""

    source: str
    # A timm name stands for timm's own definition, a function or class for a backbone that it builds from its fields.
    config: IsotropicConfig | StagedConfig | str | Builder


def transformer(dim: int, mixer: MixerConfig) -> IsotropicConfig:
    """A ViT with this mixer: 12 layers, an MLP in each, a class token."""
    layout = TokenLayout(place="back" if mixer.is_causal else "front")
    return IsotropicConfig(dim=dim, depth=12, mixer=mixer, layout=layout, norm="layer", mlp_ratio=4.0)


def _mamba(dim: int, mixer: MixerConfig, layout: TokenLayout, position_image: int | None = None) -> IsotropicConfig:
    return IsotropicConfig(dim=dim, depth=24, mixer=mixer, layout=layout, norm="rms", position_image=position_image)


def _family(
    name: str, source: str, widths: tuple[int, ...], build: Callable[[int], IsotropicConfig]
) -> dict[str, ZooEntry]:
    return {f"{name}_{size}": ZooEntry(source, build(dim)) for size, dim in zip(SIZES, widths, strict=False)}


OWN: dict[str, ZooEntry] = {
    **_family("vit", "ViT", TRANSFORMER_WIDTHS, lambda d: transformer(d, AttentionConfig())),
    # MambaOut, Figure 3 (b), in its two sizes. The paper does not say how it reads them out: our choice is a class
    # token that comes last, which leaves all else as in a ViT.
    **_family("vit_causal", "MambaOut", TRANSFORMER_WIDTHS[:2], lambda d: transformer(d, AttentionConfig(causal=True))),
    **_family("linearvit", "Dino-Mamba", TRANSFORMER_WIDTHS, lambda d: transformer(d, LinearAttentionConfig())),
    **_family("dinovim", "Dino-Mamba", MAMBA_WIDTHS, lambda d: _mamba(d, Mamba2Config(), TokenLayout(place="middle"))),
    **_family(
        "dinomambareg",
        "Dino-Mamba",
        MAMBA_WIDTHS,
        lambda d: _mamba(d, Mamba2Config(), TokenLayout(place="spread", num_registers=12), position_image=112),
    ),
    **_family("gatedconv", "mixlab", MAMBA_WIDTHS, lambda d: _mamba(d, GatedConvConfig(), TokenLayout(place="none"))),
    **{name: ZooEntry(source, config) for name, (source, config) in VISUAL_MAMBAS.items()},
    **{
        f"mambaout_{size}": ZooEntry("MambaOut, timm", f"mambaout_{size}")
        for size in ("femto", "kobe", "tiny", "small", "base")
    },
}
ZOO: Registry[ZooEntry] = Registry("backbone", OWN)


def register_backbone(
    name: str, config: IsotropicConfig | StagedConfig | Builder | None = None, *, source: str = "plugin"
) -> Any:
    """Register a backbone by name, for commands, recipes and timm: call this with a config, or use it as a decorator.

    Decorate a subclass of `Backbone`, or a function that returns one, with arguments that JSON can hold:
    `create_model(name, **fields)` calls it. `source` is what `mixlab models` shows.
    """
    if not isinstance(name, str):
        raise InputError(f"register_backbone needs a name first: @mixlab.register_backbone({_own_name(name)!r})")
    if config is None:

        def register(builder: B) -> B:
            register_backbone(name, builder, source=source)
            return builder

        return register
    if not isinstance(config, IsotropicConfig | StagedConfig) and (isinstance(config, Module) or not callable(config)):
        raise InputError(
            f"{name} is registered with a {type(config).__name__}; give an IsotropicConfig, a StagedConfig, or the "
            "function or class that builds a Backbone"
        )
    _check_name(name)
    ZOO[name] = ZooEntry(source, config)
    return config


def register_family(
    name: str,
    build: Callable[[int], IsotropicConfig],
    *,
    widths: tuple[int, ...] = TRANSFORMER_WIDTHS,
    source: str = "plugin",
) -> None:
    """Register NAME_tiny, NAME_small and NAME_base: `build` makes the config of each width."""
    for size, dim in zip(SIZES, widths, strict=False):
        register_backbone(f"{name}_{size}", build(dim), source=source)


def _own_name(thing: Any) -> str:
    """What a class or function is called: a name to suggest."""
    return str(getattr(thing, "__name__", "my_model")).lower()


def _check_name(name: str) -> None:
    if "/" in name:
        raise InputError(f"{name!r} has a slash, which only names of timm/ and shipped/ may have; choose another name")
    if timm.is_model(name) and not is_ours(timm.model_entrypoint(name)):
        raise InputError(f"timm has a model {name!r} already, which this one would hide; choose another name")


def list_models(pattern: str = "*") -> list[str]:
    """Names of zoo models that match a shell pattern; patterns that begin with `timm/` list timm's models."""
    check_kind(pattern, str, "give a shell pattern, such as 'vit_*'")
    known = (f"timm/{name}" for name in timm_names()) if pattern.startswith("timm/") else ZOO
    return [name for name in known if fnmatch(name, pattern)]


def create_model(
    name: str, *, weights: str | Path | None = None, checkpoint_key: str = "teacher", **fields: Any
) -> Backbone:
    """A backbone by its name, with any field of its config replaced: `create_model("dinovim_tiny", dim=64, depth=3)`.

    `weights` is a file of `save_weights`, or a released checkpoint that `load_weights` knows; FILE::PART or
    `checkpoint_key` chooses among its models. `shipped/NAME` has its own weights.
    """
    check_kind(name, str, "give the name of a model, such as 'vit_tiny'; mixlab.list_models() knows all")
    if name.startswith("shipped/"):
        if weights is not None or fields:
            raise InputError(f"{name} comes with its weights and its shape; leave out weights and fields")
        if name not in SHIPPED:
            hint = did_you_mean(name, SHIPPED, otherwise=f"choose {', '.join(SHIPPED)}")
            raise InputError(f"no network {name!r} comes with mixlab; {hint}")
        with as_file(files("mixlab") / f"{name}.safetensors") as path:
            return model_from_file(path)
    if name.startswith("timm/"):
        model: Backbone = build_timm(name.removeprefix("timm/"), fields)
    else:
        entry = ZOO.get(name)
        if entry is None:
            raise InputError(f"unknown model {name!r}; {_nearest(name)}")
        if isinstance(entry.config, str):
            model = TimmBackbone(entry.config, fields, name=name)
        elif isinstance(entry.config, IsotropicConfig | StagedConfig):
            model = build(replace_fields(entry.config, fields), name)
        else:
            model = build_registered(name, fields)
    if weights is not None:
        if isinstance(model, TimmBackbone):
            check_release(name, model.timm_name, weights)
        load_weights(model, weights, checkpoint_key=checkpoint_key)
    return model


def build(config: IsotropicConfig | StagedConfig, name: str) -> Isotropic | Staged:
    """A backbone of ours from its config."""
    return Staged(config, name=name) if isinstance(config, StagedConfig) else Isotropic(config, name=name)


def build_registered(name: str, fields: Mapping[str, Any]) -> Backbone:
    """A backbone that a registered function or class builds; it remembers how, so that it can be built again."""
    entry = ZOO.get(name)
    if entry is None or isinstance(entry.config, str | IsotropicConfig | StagedConfig):
        raise InputError(f"no function or class is registered that builds {name!r}; load the plugin that has it")
    check_fields(name, fields)
    model = entry.config(**fields)
    if not isinstance(model, Backbone):
        raise InputError(
            f"{name} is registered with {entry.config.__name__}, which gives a {type(model).__name__}; return a "
            "mixlab.Backbone, such as mixlab.wrap(module, ...)"
        )
    model.name, model.registered = name, (name, dict(fields))
    return model


def known_fields(name: str) -> set[str] | None:
    """The fields that `create_model(name, ...)` can replace; None where others decide, and for unknown names."""
    entry = ZOO.get(name)
    if entry is None or isinstance(entry.config, str):
        return None
    return (
        set(_owners(entry.config)) if isinstance(entry.config, IsotropicConfig | StagedConfig) else _parameters(entry)
    )


def fields_of_small(name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that make a small backbone of this one: those of `wanted` that it has, and what must fit them."""
    config, known = _own_config(name), known_fields(name) or set()
    if isinstance(config, StagedConfig):
        sizes = {"dims": [24 * 2**stage for stage in range(len(config.dims))], "depths": [1] * len(config.depths)}
        return {key: value for key, value in {**wanted, **sizes}.items() if key in known}
    kept = {key: value for key, value in wanted.items() if key in known}
    has_positions = isinstance(config, IsotropicConfig) and config.position_image is not None
    return {**kept, "position_image": wanted["image"]} if has_positions else kept


def check_fields(name: str, changes: Mapping[str, Any]) -> None:
    """Refuse fields that the backbone lacks, or values of the wrong type, before anything is built."""
    config = _own_config(name)
    if config is None:
        known = known_fields(name)
        for key in changes if known is not None else ():
            _owner(key, dict.fromkeys(known or ()))
        return
    owners, plan = _owners(config), to_json(config)
    for key, value in changes.items():
        part = _owner(key, owners)
        (plan if part is None else plan[part])[key] = value
    (staged_from_json if isinstance(config, StagedConfig) else config_from_json)(plan, where="model")


def replace_fields(config: C, changes: dict[str, Any]) -> C:
    """Replace fields of a config, or of its mixer and layout where only they have one of that name; of wrong types,
    `InputError`."""
    owners = _owners(config)
    direct: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        part = _owner(key, owners)
        (direct if part is None else nested.setdefault(part, {}))[key] = value
    direct = check_values(type(config), direct, {MixerConfig: MIXERS})
    for part, inner in nested.items():
        owner = direct.get(part, getattr(config, part))
        direct[part] = replace(owner, **check_values(type(owner), inner))
    return replace(config, **direct)


def _own_config(name: str) -> IsotropicConfig | StagedConfig | None:
    entry = ZOO.get(name)
    return entry.config if entry is not None and isinstance(entry.config, IsotropicConfig | StagedConfig) else None


def _parameters(entry: ZooEntry) -> set[str] | None:
    """What the function or class of an entry takes; None where it takes anything."""
    given = signature(entry.config).parameters.values()  # type: ignore[arg-type]
    return None if any(p.kind is Parameter.VAR_KEYWORD for p in given) else {p.name for p in given}


def _owner(key: str, owners: dict[str, str | None]) -> str | None:
    if key not in owners:
        hint = did_you_mean(key, owners, otherwise=f"fields are {', '.join(sorted(owners)) or 'none'}")
        raise InputError(f"unknown field {key!r}; {hint}")
    return owners[key]


def _owners(config: IsotropicConfig | StagedConfig) -> dict[str, str | None]:
    """Each field, with the part of the config that has it: the mixer, the layout, or None for the config itself."""
    own = [field.name for field in fields(config)]
    parts = [name for name in own if is_dataclass(getattr(config, name))]
    nested = {field.name: part for part in parts for field in fields(getattr(config, part))}
    return {**nested, **dict.fromkeys(own)}


def _nearest(name: str) -> str:
    if timm.is_model(name):
        return f"did you mean timm/{name}? `mixlab models` lists all"
    theirs = (f"timm/{model}" for model in timm.list_models() if model not in ZOO)  # timm lists ours beside its own
    near = did_you_mean(name, [*ZOO, *SHIPPED, *theirs])
    if not near and "/" in name:
        return f"there is no such run or file either; {nearest_place(name)}"
    return f"{near} `mixlab models` lists all".lstrip()
