"""Weights into a backbone: recognised by their contents, all or nothing; and backbones built from what files say."""

import json
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mixlab.backbones.backbone import Architecture, Backbone
from mixlab.backbones.isotropic import Isotropic, IsotropicConfig, config_from_json
from mixlab.backbones.positions import PositionTable, resize_positions
from mixlab.backbones.staged import Staged, staged_from_json
from mixlab.backbones.timm_backbone import WEIGHT_SOURCES, TimmBackbone
from mixlab.backbones.timm_features import build_timm
from mixlab.backbones.weights.formats import MIXLAB, Format, describe, recognise, sizes_of, to_our_names
from mixlab.backbones.weights.reading import StoredWeights, WeightsError, read_weights
from mixlab.backbones.wrapped import WrappedBackbone
from mixlab.errors import InputError, check_kind, few
from mixlab.plugins import Used
from mixlab.run.codec import differences, to_json

METADATA_KEY = "mixlab"  # of a file of ours: its architecture
PLUGINS_KEY = "mixlab_plugins"  # likewise: the plugins without which it cannot be built


@dataclass(frozen=True)
class LoadReport:
    """What a weights file holds, and what was loaded from it."""

    path: Path
    format: str
    part: str | None  # such as "teacher", where the file holds several things
    num_loaded: int  # tensors of the model that were set
    resized: tuple[str, ...]
    ignored: tuple[str, ...]  # keys of heads and of everything else beside the backbone
    not_finite: tuple[str, ...]  # loaded as they are, with a warning
    differences: tuple[str, ...]  # fields that the file's architecture sets otherwise than the model's

    def __str__(self) -> str:
        lines = [f"{self.num_loaded} tensors from {self.path}: {self.format}{f', {self.part}' if self.part else ''}"]
        for title in ("resized", "ignored", "not_finite", "differences"):
            names = getattr(self, title)
            lines += [f"{title.replace('_', ' ')}: {few(names, 4)}"] if names else []
        return "\n".join(lines)


@dataclass
class Candidate:
    """What a file offers a model, under the model's names."""

    entries: dict[str, Tensor]
    title: str
    ignored: list[str]
    resized: list[str]
    sizes: dict[str, int | tuple[int, ...]]


def load_weights(model: Backbone, path: str | Path, *, checkpoint_key: str = "teacher") -> LoadReport:
    """Load a file of `save_weights`, a released checkpoint of a zoo model or of DINO's ViT, or timm's weights.

    FILE::PART or `checkpoint_key` chooses among the models of a training checkpoint. Position tables are resized to the
    model's. Weights that are not finite are loaded with a warning. On any error the model is left as it was.
    """
    check_kind(model, Backbone, "give a backbone: mixlab.wrap(module) makes one of any network")
    return load_stored(model, read_weights(path, checkpoint_key=checkpoint_key))


def load_stored(model: Backbone, stored: StoredWeights) -> LoadReport:
    """Load what was already read."""
    architecture = architecture_in(stored.metadata, stored.path)
    match model:
        case TimmBackbone():
            candidate = _for_timm(model, stored)
        case Isotropic() | Staged():
            candidate = _for_ours(model, stored)
        case WrappedBackbone():
            is_ours = architecture is not None
            entries = {key if is_ours else f"network.{key}": entry for key, entry in stored.entries.items()}
            candidate = Candidate(entries, MIXLAB.title if is_ours else "the wrapped module's own", [], [], {})
        case _:
            candidate = Candidate(dict(stored.entries), MIXLAB.title, [], [], {})
    unlike = _different_fields(architecture, model.architecture()) if architecture else []
    _settle_counts(model, candidate)
    _check_fit(model, stored, candidate, unlike)
    entries = {key: candidate.entries[key].to(own.dtype) for key, own in model.state_dict().items()}
    not_finite = [key for key, entry in entries.items() if not entry.isfinite().all()]
    if not_finite:
        warnings.warn(f"{stored.path} has values that are not finite in {few(not_finite, 4)}", stacklevel=3)
    model.load_state_dict(entries)
    return LoadReport(
        path=stored.path,
        format=candidate.title,
        part=stored.part,
        num_loaded=len(entries),
        resized=tuple(candidate.resized),
        ignored=(*stored.set_aside, *candidate.ignored),
        not_finite=tuple(not_finite),
        differences=tuple(unlike),
    )


def _for_ours(model: Backbone, stored: StoredWeights) -> Candidate:
    known = recognise(stored.entries)
    if known is None and 2 * len(stored.entries.keys() & model.state_dict().keys()) > len(stored.entries):
        known = MIXLAB  # without the tensors that mark it: what is missing is named below
    if known is None:
        raise WeightsError(
            f"{stored.path} holds {few(stored.entries, 4)}, which no known format has; {model.name} takes files of "
            "mixlab.save_weights, and checkpoints of Dino-Mamba, DINO's and timm's ViT, Vim, Mamba-Reg, PlainMamba, "
            "Mamba-2D, LocalMamba, VMamba and EfficientVMamba as released"
        )
    entries, heads = to_our_names(stored.entries, known)
    candidate = Candidate(entries, known.title, heads, [], sizes_of(entries))
    if not known.is_ours:
        _check_kind(model, stored, known)
    for name, part in model.named_modules():
        if isinstance(part, PositionTable):
            side = _resize_positions(candidate, part, f"{name}.table", stored.path)
            if isinstance(model, Isotropic) and not known.is_ours and side == _side_of_overlap(model.config):
                warnings.warn(
                    f"{stored.path} has {side} x {side} positions, of patches that overlap by half (Vim's + models); "
                    f"{model.name} cuts {part.side} x {part.side}; "
                    f"use vim_tiny_stride8 or vim_small_stride8, or set stride={model.config.patch // 2}",
                    stacklevel=4,
                )
    if isinstance(model, Isotropic):
        _drop_rotary(candidate, model)
    for name, parameter in model.state_dict().items():
        if not parameter.numel():
            candidate.entries.setdefault(name, parameter)  # released formats do not name what is empty
    return candidate


def _check_kind(model: Backbone, stored: StoredWeights, known: Format) -> None:
    """Refuse released weights of another kind of model, before their names are compared one by one."""
    if isinstance(model, Isotropic):
        config = model.config
        fits = (known.mixer, known.place, known.stem) == (config.mixer.kind, config.layout.place, None)
        ours = describe(config.mixer.kind, config.layout.place, None)
    else:
        assert isinstance(model, Staged)
        fits = (known.mixer, known.stem) == (model.config.mixer.kind, model.config.stem)
        ours = describe(model.config.mixer.kind, None, model.config.stem)
    if not fits:
        raise WeightsError(
            f"{stored.path} holds {known.title} weights, trained with {known.described}; {model.name} has {ours}. "
            "Choose the model that they belong to"
        )


def _drop_rotary(candidate: Candidate, model: Isotropic) -> None:
    """Angles are not learnt: a model for another grid keeps its own."""
    for name in ("rotary.cos", "rotary.sin"):
        own, given = model.state_dict().get(name), candidate.entries.get(name)
        if own is not None and given is not None and given.shape != own.shape and given.shape[1:] == own.shape[1:]:
            candidate.entries[name] = own
            candidate.ignored.append(name)


def _side_of_overlap(config: IsotropicConfig) -> int | None:
    """The side of the grid if patches that now lie side by side overlapped by half."""
    return (
        (config.image - config.patch) // (config.patch // 2) + 1 if config.stride is None and config.patch > 1 else None
    )


def _resize_positions(candidate: Candidate, positions: PositionTable, name: str, path: Path) -> int | None:
    """Bring a table (1, E + n², D) to the side of the model's; `E` entries of extra tokens stay as they are.

    Returns the n of the file where it differs.
    """
    table, wanted = candidate.entries.get(name), positions.table.shape
    if table is None or table.ndim != 3 or table.shape[1] == wanted[1] or table.shape[::2] != wanted[::2]:
        return None
    extra, num_patches = positions.num_extra, table.shape[1] - positions.num_extra
    side = math.isqrt(max(num_patches, 0))
    if not side or side * side != num_patches:
        raise WeightsError(
            f"{path} has a position table of {table.shape[1]} entries; {extra} for extra tokens leave {num_patches}, "
            f"which is not a square of patches. Resize it to {positions.side} x {positions.side} yourself"
        )
    front, patches = table.float().tensor_split([extra], dim=1)
    resized = resize_positions(patches, side, (positions.side, positions.side), positions.resize_kind)
    candidate.entries[name] = front.new_empty(wanted)
    candidate.entries[name][:, :extra], candidate.entries[name][:, extra:] = front, resized
    candidate.resized.append(f"{name}: {side} x {side} to {positions.side} x {positions.side}")
    return side


def _for_timm(model: TimmBackbone, stored: StoredWeights) -> Candidate:
    """timm knows what its own models were called before: its filters rename and resize."""
    is_ours = all(key.startswith("model.") for key in stored.entries)
    given = {key.removeprefix("model."): entry for key, entry in stored.entries.items()} if is_ours else stored.entries
    expected, roots = model.model.state_dict(), _classifier_roots(model.model)
    convert = getattr(sys.modules[type(model.model).__module__], "checkpoint_filter_fn", None)
    if is_ours and {key: entry.shape for key, entry in given.items()} == {k: e.shape for k, e in expected.items()}:
        convert = None  # Swin's would take names without a classifier for those of old files
    try:
        entries = convert(dict(given), model.model) if convert else dict(given)
    except Exception as error:  # each filter fails in its own way on what it does not know
        raise WeightsError(
            f"{stored.path} holds {few(given, 4)}, which timm cannot convert to {model.timm_name} ({error}); choose "
            "the model that these weights belong to"
        ) from error
    ignored = [key for key in entries if key not in expected and key.split(".")[0] in roots]
    untouched = {id(entry) for entry in given.values()}  # renamed at most
    resized = [
        f"{key}: {tuple(given[key].shape)} to {tuple(entry.shape)}"
        for key, entry in entries.items()
        if key in given and id(entry) not in untouched and given[key].shape != entry.shape
    ]
    kept = {f"model.{key}": entry for key, entry in entries.items() if key not in ignored}
    title = "timm" if entries.keys() <= given.keys() else "released names that timm converts"
    return Candidate(kept, MIXLAB.title if is_ours else title, ignored, resized, {})


def _classifier_roots(model: nn.Module) -> set[str]:
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    names = config.get("classifier") or ()
    return {name.split(".")[0] for name in ([names] if isinstance(names, str) else names)}


def _settle_counts(model: Backbone, candidate: Candidate) -> None:
    """How many batches a norm has seen is no weight: early files lack it, and some averages hold it as a float."""
    for key, own in model.state_dict().items():
        if key.endswith("num_batches_tracked"):
            candidate.entries[key] = candidate.entries.get(key, own).to(own.dtype)


def _check_fit(model: Backbone, stored: StoredWeights, candidate: Candidate, unlike: list[str]) -> None:
    """Same names, shapes and kinds of dtype; or an error that lists the differences."""
    expected, entries = model.state_dict(), candidate.entries
    missing = [key for key in expected if key not in entries]
    unknown = [key for key in entries if key not in expected]
    shared = [key for key in expected if key in entries]
    shapes = [
        f"{key} is {tuple(entries[key].shape)}, expected {tuple(expected[key].shape)}"
        for key in shared
        if entries[key].shape != expected[key].shape
    ]
    kinds = [
        f"{key} is {entries[key].dtype}, expected {expected[key].dtype}"
        for key in shared
        if entries[key].is_floating_point() != expected[key].is_floating_point()
    ]
    faults = {"missing": missing, "unknown": unknown, "of another shape": shapes, "of another kind": kinds}
    found = [f"{len(names)} {fault} ({few(names, 4)})" for fault, names in faults.items() if names]
    wrong_kind = [text for text in unlike if text.startswith(("mixer.kind", "layout.place"))]
    if not found and not wrong_kind:
        return
    part = f", {stored.part}" if stored.part else ""
    raise WeightsError(
        f"{stored.path} ({candidate.title}{part}{_in_words(candidate.sizes)}) does not fit {model.name}"
        f"{_in_words(sizes_of(expected))}: {'; '.join(found + wrong_kind)}.{_way_out(model, stored, candidate)}"
    )


def _in_words(sizes: dict[str, int | tuple[int, ...]]) -> str:
    return "".join(f", {name} {size}" for name, size in sizes.items() if size)


def _way_out(model: Backbone, stored: StoredWeights, candidate: Candidate) -> str:
    if architecture_in(stored.metadata, stored.path):
        return f" The file says what it is: mixlab.model_from_file({str(stored.path)!r})"
    own = sizes_of(model.state_dict())
    changes = {name: size for name, size in candidate.sizes.items() if size and size != own.get(name)}
    if "depths" in own:
        changes.pop("depth", None)  # of all stages together: no field of its own
    if not changes:
        other = ", or another part of the file, FILE::PART" if stored.part else ""
        return f" Choose the model that these weights belong to{other}"
    fields = ", ".join(f"{name}={size}" for name, size in changes.items())
    return f" Choose the model of that size, or set its fields: create_model({model.name!r}, {fields})"


def build_architecture(architecture: Mapping[str, Any]) -> Backbone:
    """A fresh backbone from the `architecture()` of another."""
    match dict(architecture):
        case {"name": str(name), "config": {"dims": _} as config, **rest} if not rest:
            return Staged(staged_from_json(config), name=name)
        case {"name": str(name), "config": dict(config), **rest} if not rest:
            return Isotropic(config_from_json(config), name=name)
        case {"name": str(name), "timm_name": str(timm_name), "fields": dict(fields), **rest} if not rest:
            if sent := [key for key in WEIGHT_SOURCES if key in fields]:
                raise InputError(f"field {sent[0]} names a source of weights, which an architecture may not contain")
            return build_timm(timm_name, {key: _tuples(value) for key, value in fields.items()}, name=name)
        case {"registered": str(name), "fields": dict(fields), **rest} if not rest:
            from mixlab.backbones.zoo import build_registered  # which loads weights

            return build_registered(name, fields)
        case {"name": str(name), "wrapped": {"class": str(wrapped)}}:
            raise InputError(
                f"{name} was wrapped from a {wrapped}, and nothing says how to build that again; register a function "
                "that builds and wraps it with mixlab.register_backbone(NAME), and use mixlab.create_model(NAME)"
            )
        case other:
            raise InputError(
                "an architecture has name and config, or name, timm_name and fields, or registered and fields; got "
                f"{', '.join(map(str, other))}"
            )


def parts_of(architecture: Mapping[str, Any]) -> list[Used]:
    """What an architecture is made of, by tables and names: its own where it is registered, and its mixers'."""
    config = architecture.get("config") or {}
    mixers = [config.get(part) for part in ("mixer", "late_mixer")]
    kinds = [("mixer", str(mixer["kind"])) for mixer in mixers if isinstance(mixer, Mapping) and "kind" in mixer]
    registered = architecture.get("registered")
    return [*kinds, *([("backbone", str(registered))] if registered is not None else [])]


def architecture_in(metadata: Mapping[str, str], path: Path) -> Architecture | None:
    """The architecture that `save_weights` left in a file, if it wrote the file."""
    if METADATA_KEY not in metadata:
        return None
    try:
        architecture = json.loads(metadata[METADATA_KEY])
    except ValueError as error:
        raise WeightsError(f"{path} has an architecture that is not JSON ({error}); save the weights again") from error
    name = architecture.get("name", architecture.get("registered")) if isinstance(architecture, dict) else None
    if not isinstance(name, str):
        raise WeightsError(f"{path} has an architecture without a name; save the weights again")
    return architecture


def _different_fields(theirs: Architecture, ours: Architecture) -> list[str]:
    """Fields that two architectures set differently; names do not count."""
    found, expected = (_with_defaults(each.get("config") or {}) or each.get("fields") or {} for each in (theirs, ours))
    return [f"{key} is {one!r}, expected {other!r}" for key, (one, other) in differences(found, expected).items()]


def _with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config with every field that we know: a file may be older than some of them."""
    try:
        return to_json(staged_from_json(config) if "dims" in config else config_from_json(config)) if config else {}
    except InputError:
        return config


def _tuples(value: Any) -> Any:
    """JSON has lists where timm expects tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
