"""A backbone to a file and back: the file contains the architecture."""

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from mixlab.backbones.backbone import Architecture, Backbone
from mixlab.backbones.meta import without_storage
from mixlab.backbones.weights.formats import sizes_of
from mixlab.backbones.weights.loading import (
    METADATA_KEY,
    PLUGINS_KEY,
    architecture_in,
    build_architecture,
    load_stored,
    parts_of,
)
from mixlab.backbones.weights.reading import StoredWeights, WeightsError, read_metadata, read_weights
from mixlab.backbones.weights.rows import Bits, is_scale, rows_in_few_bits
from mixlab.backbones.weights.writing import num_bytes_of, write_safetensors
from mixlab.errors import InputError, check_kind, few
from mixlab.plugins import check_plugins, needed_plugins
from mixlab.run.aside import written_aside
from mixlab.run.disk import naming_file


def save_weights(
    model: Backbone,
    path: str | Path,
    *,
    extra_metadata: Mapping[str, str] | None = None,
    half: bool = False,
    bits: Bits | None = None,
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> None:
    """Write safetensors with the architecture in the metadata, as `save_tensors` does.

    `bits` per matrix entry, 32 by default: 16 (the same as `half`) for half the size and features that differ in the
    fourth digit, or 8 or 6, with a scale for each row (`rows.py`). `gather` puts sharded tensors together, in
    `file_order`.
    """
    bits = bits or (16 if half else 32)
    if bits not in get_args(Bits):
        raise WeightsError(f"weights cannot be stored in {bits} bits; choose one of {get_args(Bits)}")
    check_kind(path, str | PathLike, "give the path of a file")
    path = Path(path)
    if path.is_dir():
        raise WeightsError(f"{path} is a folder; give a file, such as {path / 'model.safetensors'}")
    if not isinstance(model, Backbone):
        raise WeightsError(f"a {type(model).__name__} is no backbone; of a classifier of ours, give its .backbone")
    architecture = check_can_be_rebuilt(model)
    metadata = {"format": "pt", METADATA_KEY: json.dumps(architecture)}
    if plugins := needed_plugins(parts_of(architecture)):
        metadata[PLUGINS_KEY] = json.dumps(plugins)
    for key, value in (extra_metadata or {}).items():
        if key in metadata or not isinstance(value, str):
            raise WeightsError(f"metadata {key}={value!r} is not allowed: text only, and not {' or '.join(metadata)}")
        metadata[key] = value
    tensors = model.state_dict()
    if bits == 8 or bits == 6:
        tensors = rows_in_few_bits(tensors, bits)
    if bits < 32:
        tensors = {key: value if is_scale(key) else _in_16_bits(key, value) for key, value in tensors.items()}
    save_tensors(tensors, path, metadata=metadata, gather=gather)


def shrink_file(path: Path, *, bits: Bits) -> None:
    """Write a file of ours again with fewer bits; what its metadata says beside the architecture stays."""
    own = ("format", METADATA_KEY, PLUGINS_KEY)
    said = {name: text for name, text in read_metadata(path).items() if name not in own}
    save_weights(model_from_file(path), path, bits=bits, extra_metadata=said)


def check_can_be_rebuilt(model: Backbone) -> Architecture:
    """The architecture of a backbone, where it gives the same tensors again; else an error that says why not."""
    try:
        architecture = model.architecture()
        with without_storage():
            again = build_architecture(json.loads(json.dumps(architecture))).state_dict()
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise WeightsError(f"{model.name} could not be loaded again: {error}") from error
    found = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    expected = {name: tuple(value.shape) for name, value in again.items()}
    if unlike := sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name)):
        raise WeightsError(
            f"{model.name} could not be loaded again: it was changed after it was built, its architecture does not "
            f"give {few(unlike, 4)} as they are; change its fields instead (mixlab.create_model), or register what "
            "builds it (mixlab.register_backbone)"
        )
    return architecture


def save_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    *,
    metadata: dict[str, str],
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> None:
    """Write safetensors atomically, with the permissions of the umask; the same tensors give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming_file(path, num_bytes_of(tensors)), written_aside(path) as aside:
        write_safetensors(aside, file_order(tensors), metadata=metadata, gather=gather)


def file_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in the order of a file: the widest numbers first, so that all are aligned."""
    return dict(sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0])))


def read_architecture(path: str | Path) -> Architecture:
    """The architecture in a file of `save_weights`: {"name", "config"}, or {"name", "timm_name", "fields"}."""
    architecture = architecture_in(read_metadata(path), Path(path))
    if architecture is None:
        raise WeightsError(
            f"{path} does not say which model it belongs to; name one: create_model(name, weights={str(path)!r})"
        )
    return architecture


def model_from_file(path: str | Path) -> Backbone:
    """Load the model that `save_weights` wrote, architecture and weights; for a run, its exported file."""
    check_kind(path, str | PathLike, "give the path of a file of mixlab.save_weights, or of a run")
    exported = Path(path) / "weights.safetensors"
    path = exported if exported.is_file() else path
    architecture = read_architecture(path)
    check_plugins(_plugins_in(path), path)
    stored = read_weights(path)
    try:
        _check_plan(architecture, stored)
        model = build_architecture(architecture)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise WeightsError(f"{path} describes a model that cannot be built: {error}") from error
    load_stored(model, stored)
    return model


def _plugins_in(path: str | Path) -> object:
    """The plugins that a file says it needs."""
    try:
        return json.loads(read_metadata(path).get(PLUGINS_KEY, "[]"))
    except ValueError:
        return []  # what is missing is then named without its plugin


def _in_16_bits(key: str, tensor: Tensor) -> Tensor:
    """Matrices alone: vectors are few, and some of them, such as a scan's decay, are steep."""
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    small = tensor.half()
    if not torch.isfinite(small).all():
        raise WeightsError(f"{key} reaches {tensor.abs().max():.3g}, beyond 16 bits; store the weights as they are")
    return small


def _check_plan(architecture: Architecture, stored: StoredWeights) -> None:
    """Compare shapes before memory is taken: a file cannot make us build more than it holds."""
    config = architecture.get("config", {})
    if not isinstance(config, dict):
        raise InputError(f"its config is {str(config)[:40]!r}, not an object with fields")
    depth = sizes_of(stored.entries)["depth"]
    planned_depth = _total(config["depths"]) if "depths" in config else config.get("depth")
    if config and planned_depth != depth:
        raise InputError(f"its config has depth {planned_depth!r}, its tensors are those of {depth} layers")
    with without_storage():
        planned = build_architecture(architecture).state_dict()
    for key, tensor in planned.items():
        if key not in stored.entries or stored.entries[key].shape != tensor.shape:
            raise InputError(f"its config wants {key} of shape {tuple(tensor.shape)}, which is not among its tensors")


def _total(depths: object) -> object:
    """The blocks of all stages; what is no list of numbers stays, to be named in the error."""
    return sum(depths) if isinstance(depths, list) and all(isinstance(depth, int) for depth in depths) else depths
