"""Reads the tensors of one backbone from a file of any known format. Nothing in the file is ever executed."""

import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeGuard

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.serialization import MAGIC_NUMBER

from mixlab.backbones.weights.rows import rows_from_few_bits
from mixlab.errors import InputError, check_kind, few


class WeightsError(InputError):
    """A weights file that cannot be used: what was found, what was expected, and a way out."""


@dataclass(frozen=True)
class StoredWeights:
    """One model out of a file; the prefixes of its wrappers are gone."""

    path: Path
    entries: dict[str, Tensor]
    part: str | None  # its key, where the file holds several things
    set_aside: dict[str, Tensor]  # what stands beside the backbone, by its name in the file
    metadata: dict[str, str]


class Inert:
    """Stands in for the harmless objects beside the weights in training checkpoints; ignores its arguments."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


# DINO's checkpoints carry the parsed command line, and learning rates as NumPy scalars; mmengine's (Mamba-2D) the
# history of their losses as NumPy arrays.
INERT_GLOBALS = (
    "argparse.Namespace",
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    "mmengine.logging.history_buffer.HistoryBuffer",
    "builtins.getattr",  # by which it names its methods; a stand-in, as all of these: nothing is looked up
)
USUAL_PARTS = ("state_dict", "model")
# DistributedDataParallel, torch.compile, and networks of a backbone and a head
WRAPPERS = re.compile(r"(?:(?:module|_orig_mod|backbone)\.)*")


def split_part(path: str | Path) -> tuple[Path, str | None]:
    """FILE::PART as a file and one of the models in it; a path that exists may have `::` in its name."""
    check_kind(path, str | PathLike, "give the path of a file of weights")
    file, separator, part = str(path).rpartition("::")
    return (Path(file), part) if separator and not Path(path).exists() else (Path(path), None)


def read_weights(path: str | Path, *, checkpoint_key: str = "teacher") -> StoredWeights:
    """Read the tensors of one backbone. Among the models of a training checkpoint, FILE::PART chooses one; else it is
    `checkpoint_key`, or the usual one."""
    path, asked = split_part(path)
    payload, metadata = _read(path)
    part, state = _choose_part(payload, checkpoint_key, path) if asked is None else _asked_part(payload, asked, path)
    try:
        state = rows_from_few_bits(state)
    except ValueError as error:
        raise WeightsError(f"{path} is damaged: {error}; write it again") from error
    for key, entry in state.items():
        if entry.layout != torch.strided or entry.is_meta or entry.is_quantized:
            raise WeightsError(f"{key} in {path} is not a plain dense tensor; save it as one")
    entries, set_aside = _unwrap(state, path)
    return StoredWeights(path, entries, part, set_aside, metadata)


def read_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a safetensors file, without its tensors; {} for other kinds of file."""
    path = Path(path)
    if _kind(path) != "safetensors":
        return {}
    return _read_safetensors(path, tensors=False)[1]


def read_epoch(path: str | Path) -> int | None:
    """How many epochs a training checkpoint of DINO's kind has behind it; None for files that do not say."""
    payload, _ = _read(Path(path))
    epoch = payload.get("epoch") if isinstance(payload, Mapping) and "teacher" in payload else None
    return epoch if isinstance(epoch, int) else None


def _read(path: Path) -> tuple[object, dict[str, str]]:
    if _kind(path) == "safetensors":
        return _read_safetensors(path, tensors=True)
    return _read_torch(path), {}


def _kind(path: Path) -> str:
    """`safetensors` or `torch`, by the first bytes."""
    if path.is_dir():
        inside = sorted(path.glob("*.safetensors"))
        such = f", such as {inside[0]}" if inside else ""
        raise WeightsError(f"{path} is a folder; give the file in it{such}")
    if not path.exists():
        raise WeightsError(f"there is no file {path}; check the path")
    if not path.is_file():
        raise WeightsError(f"{path} is not a regular file; give a weights file")
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}") from error
    if not start:
        raise WeightsError(f"{path} is empty; it was probably cut off while being written or copied")
    if start[8:] == b"{":  # eight bytes of header length, then JSON
        return "safetensors"
    if start.startswith((b"PK\x03\x04", b"\x80")):  # a zip archive, or a bare pickle as torch wrote before 1.6
        return "torch"
    raise WeightsError(
        f"{path} begins with {start!r}, which is neither safetensors nor a torch checkpoint; give a file that "
        "mixlab.save_weights, safetensors or torch.save wrote"
    )


def _read_safetensors(path: Path, *, tensors: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys() if tensors}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise WeightsError(f"{path} is not whole safetensors ({error}); copy or download it again") from error


def _read_torch(path: Path) -> object:
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"  # as torch decides it
    if is_archive:
        _check_archive(path)
    elif _is_plain_pickle(path):
        raise WeightsError(
            f"{path} is a plain pickle, not a checkpoint; it was not run. Save the state dict alone, best as "
            "safetensors"
        )
    try:
        # An open file: given a path, torch goes by the name's ending.
        with path.open("rb") as file, torch.serialization.safe_globals([(Inert, name) for name in INERT_GLOBALS]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # broken and hostile bytes raise errors of every kind
        found = re.search(r"GLOBAL ([\w.]+)|unrecognized function ([^\n]+)", str(error))
        if found:
            raise WeightsError(
                f"{path} asks to load {found[1] or found[2]}, which is code and not weights; it was not run. Save the "
                "state dict alone, best as safetensors"
            ) from error
        reason = str(error).strip().partition("\n")[0].partition(". ")[0][:200]  # torch's advice follows
        raise WeightsError(
            f"{path} is not a whole torch checkpoint ({type(error).__name__}: {reason}); copy or download it again"
        ) from error


def _is_plain_pickle(path: Path) -> bool:
    """A whole pickle, by its opcodes alone, without the number that torch, before 1.6, put in front."""
    with path.open("rb") as file:
        start = file.read(64)
        if start[:1] != b"\x80" or MAGIC_NUMBER.to_bytes(10, "little") in start:
            return False
        file.seek(0)
        try:
            return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(file))
        except Exception:  # as many kinds as there are broken bytes
            return False


def _check_archive(path: Path) -> None:
    """torch.save neither compresses nor overlaps; an archive that does could unfold without end."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WeightsError(f"{path} is a broken zip archive ({error}); copy or download it again") from error
    total = sum(record.file_size for record in records)
    if any(record.compress_type != zipfile.ZIP_STORED for record in records) or total > path.stat().st_size:
        raise WeightsError(f"{path} is a compressed zip archive and not a torch checkpoint; unpack it first")


def _choose_part(payload: object, checkpoint_key: str, path: Path) -> tuple[str | None, dict[str, Tensor]]:
    if _is_state(payload):
        return None, dict(payload)
    if not isinstance(payload, Mapping):
        raise WeightsError(f"{path} holds a {type(payload).__name__}, not a state dict; save model.state_dict()")
    parts = _parts(payload)
    if checkpoint_key in parts:
        return checkpoint_key, dict(parts[checkpoint_key])
    if len(parts) == 1:
        return next((key, dict(state)) for key, state in parts.items())
    usual = next((key for key in USUAL_PARTS if key in parts), None)
    if usual and not parts.keys() & {"student", "teacher"}:
        alike = [key for key, state in parts.items() if key != usual and state.keys() == parts[usual].keys()]
        if alike:
            warnings.warn(
                f"{path} also holds {', '.join(alike)}; {usual} is loaded. {_choosing(path, alike[0])}", stacklevel=2
            )
        return usual, dict(parts[usual])
    if parts:
        raise WeightsError(
            f"{path} has no {checkpoint_key!r}, but {', '.join(parts)}. {_choosing(path, next(iter(parts)))}"
        )
    raise WeightsError(f"{path} holds no state dict, only {few(payload, 4)}; save model.state_dict()")


def _asked_part(payload: object, asked: str, path: Path) -> tuple[str, dict[str, Tensor]]:
    parts = _parts(payload) if isinstance(payload, Mapping) else {}
    if asked in parts:
        return asked, dict(parts[asked])
    if not parts:
        raise WeightsError(f"{path} holds one model and no parts; leave out ::{asked}")
    raise WeightsError(f"{path} has no part {asked!r}, but {', '.join(parts)}. {_choosing(path, next(iter(parts)))}")


def _parts(payload: Mapping[object, object]) -> dict[str, Mapping[str, Tensor]]:
    """The state dicts in a checkpoint, by name."""
    return {str(key): value for key, value in payload.items() if _is_state(value)}


def _choosing(path: Path, part: str) -> str:
    return f"Write {path}::{part} to choose {part}"


def _is_state(value: object) -> TypeGuard[Mapping[str, Tensor]]:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(key, str) and isinstance(entry, Tensor) for key, entry in value.items())
    )


def _unwrap(state: dict[str, Tensor], path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Take off the prefixes of wrappers; where a backbone stands beside a head, keep the backbone alone."""
    prefixes = {key: WRAPPERS.match(key)[0] for key in state}  # type: ignore[index]
    beside_head = any("backbone." in prefix for prefix in prefixes.values())
    kept = [key for key, prefix in prefixes.items() if "backbone." in prefix or not beside_head]
    entries = {key.removeprefix(prefixes[key]): state[key] for key in kept}
    if len(entries) < len(kept):
        raise WeightsError(f"{path} holds the same keys under several prefixes; save one model at a time")
    own = set(kept)
    return entries, {key: entry for key, entry in state.items() if key not in own}
