"""config.json of a training run: everything needed to repeat it, and the check that a run resumes as it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mixlab.errors import InputError
from mixlab.run import RunDirectory, provenance
from mixlab.run.codec import differences, from_json, to_json
from mixlab.training.config import MethodConfig, TrainConfig

# What may differ when a run resumes: none of it changes the weights by more than rounding.
MAY_CHANGE = ("data.workers", "data.resident", "data.skip_limit", "activation_checkpointing", "sharding",
              "checkpoint.", "log.", "knn.", "method.score_")  # fmt: skip


def agree(folder: RunDirectory, *, data: str, config: TrainConfig) -> dict[str, Any]:
    """The config.json of the run in the directory, {} if there is none; an error where it is another run.

    A run that failed before it left a checkpoint may be started again with other settings: then the directory is new.
    """
    if not (folder.path / "config.json").is_file():
        return {}
    stored = folder.read_config()
    if "settings" not in stored:
        raise InputError(f"{folder.path} holds something else than a training run; choose another --run directory")
    found = differences(_with_new_defaults(stored["settings"], config), to_json(config))
    changed = {key: pair for key, pair in found.items() if not key.startswith(MAY_CHANGE)}
    moved = not same_data(stored["data"], data)
    if (moved or changed) and not has_begun(folder):
        return {}
    if moved:
        raise InputError(
            f"{folder.path} was started on {stored['data']!r}, not {data!r}; "
            "give that --data, or another --run directory"
        )
    if changed:
        listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
        raise InputError(
            f"{folder.path} was started with other settings ({listed}); "
            "give the same ones to resume, or another --run directory"
        )
    return stored


def _with_new_defaults(stored: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """Stored settings, with the defaults of settings that are newer than the run; another method's as they are."""
    method = type(config.method)
    if stored["method"].get("kind") != method.kind:
        return stored
    return to_json(from_json(TrainConfig, stored, kinds={MethodConfig: {method.kind: method}}, where="settings"))


def has_begun(folder: RunDirectory) -> bool:
    """Whether the run has left a checkpoint, weights or a result."""
    left = ("weights.safetensors", "results/training.json")
    has_checkpoint = any((folder.path / "checkpoints").glob("step-*.json"))
    return has_checkpoint or any((folder.path / file).is_file() for file in left)


def same_data(before: str, now: str) -> bool:
    """Whether two names of data mean the same, however a path in them was typed."""
    return before == now or _resolved(before) == _resolved(now)


def _resolved(data: str) -> str:
    """With an absolute path. Formats (`wds:`, `ade:`) before a path and options after it stay."""
    head, colon, rest = data.partition(":")
    if head in ("shapes", "photo"):
        return data
    if not colon or Path(data).expanduser().exists():
        return str(Path(data).expanduser().resolve())
    place, colon, options = rest.partition(":")
    return f"{head}:{Path(place).expanduser().resolve()}{colon}{options}"


def write(
    folder: RunDirectory,
    stored: dict[str, Any],
    *,
    what: dict[str, Any],
    seed: int,
    device: str,
    world_size: int,
    step: int,
) -> None:
    """Write config.json; every start of the run adds to its `sessions`."""
    origin = provenance(seed=seed, device=device)
    session = {**origin, "world_size": world_size, "from_step": step}
    first = {key: stored.get(key, value) for key, value in origin.items()}
    folder.write_config({**first, **what, "sessions": [*stored.get("sessions", []), session]})
