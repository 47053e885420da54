"""Settings of a run in its config.json: what may differ when it resumes, and what older versions meant."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mixlab.data.images import HELD_OUT_OF
from mixlab.data.source_names import is_built_in
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from mixlab.run.codec import differences, from_json, to_json
from mixlab.training.config import MethodConfig, TrainConfig

# What may differ when a run resumes: none of it changes the weights by more than rounding.
MAY_CHANGE = ("data.workers", "data.resident", "data.skip_limit", "activation_checkpointing", "keep_scans",
              "sharding", "graph", "checkpoint.", "log.", "knn.", "method.score_")  # fmt: skip
# What may also differ once the loss was not finite: from the last good checkpoint on, noted in config.json.
CURES = ("optim.lr", "optim.clip", "precision")
MOST_LISTED = 5  # changed settings in a message
LENGTH = {"epochs", "steps"}
LEFT = ("weights.safetensors", "results/training.json")  # by a run at its end


def check_settings(
    folder: RunDirectory, *, data: str, config: TrainConfig, copy: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The config.json of the run in the directory, {} if there is none; an error where it is another run.

    A run that failed before it left a checkpoint may be started again with other settings: then the directory is new.
    `copy` is what a checkpoint has of a config.json that is gone.
    """
    place = folder.path / "config.json"
    if not place.is_file() and copy is None:
        if not has_begun(folder):
            return {}
        raise InputError(
            f"{folder.path} holds a run without its {place.name}, so its settings are unknown; "
            "restore that file, or choose another --run directory"
        )
    stored = folder.read_config() if place.is_file() else copy or {}
    if "settings" not in stored:
        raise InputError(f"{folder.path} holds something other than a training run; choose another --run directory")
    settings, known_data = stored["settings"], stored.get("data")
    if "method" not in settings or known_data is None:
        raise InputError(
            f"{place} lacks settings.method or data; remove {place.name}, and resume: the newest checkpoint has a copy"
        )
    found = differences(_with_new_defaults(settings, config), to_json(config))
    changed = {key: pair for key, pair in found.items() if not key.startswith((*MAY_CHANGE, *config.method.unused))}
    moved = not same_data(known_data, data)
    if (moved or changed) and not has_begun(folder):
        return {}
    if moved:
        raise InputError(
            f"{folder.path} was started on {known_data!r}, not {data!r}; give that --data, or another --run directory"
        )
    if changed and not (stored.get("failed") and set(changed) <= set(CURES)):
        several = [f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items()]
        rest = [f"{len(several) - MOST_LISTED} more"] if len(several) > MOST_LISTED else []
        listed = "; ".join([*several[:MOST_LISTED], *rest])
        longer = " (the length shapes the learning rate, so a longer run is another one)" if LENGTH & {*changed} else ""
        raise InputError(
            f"{folder.path} was started with other settings ({listed}); give the same ones, or {place} as the recipe, "
            f"to resume; or another --run directory{longer}"
        )
    return stored


def note_changes(stored: dict[str, Any], settings: dict[str, Any], *, step: int) -> list[dict[str, Any]]:
    """The changes of settings in the course of a run, and those of this start, each with its first step."""
    known = stored.get("changes")
    changes = [
        {**change, "step": min(change.get("step", step), step)}  # the run may have gone back before one
        for change in (known if isinstance(known, list) else [])
        if isinstance(change, dict)
    ]
    found = differences(stored.get("settings", {}), settings) if stored else {}
    changed = {key: list(pair) for key, pair in found.items() if key in CURES}
    return [*changes, {"step": step, "settings": changed}] if changed else changes


def _with_new_defaults(stored: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """Stored settings, with the defaults of settings that are newer than the run; another method's as they are."""
    method = type(config.method)
    if stored["method"].get("kind") != method.kind:
        return stored
    stored = as_recorded(stored, method)
    return to_json(from_json(TrainConfig, stored, kinds={MethodConfig: {method.kind: method}}, where="settings"))


def as_recorded(stored: Mapping[str, Any], method: type[MethodConfig]) -> dict[str, Any]:
    """Stored settings of a run of this method, with what it did before some of them were settings."""
    return {**stored, "method": {**method.earlier, **stored["method"]}}


def is_older(stored: Mapping[str, Any], config: TrainConfig) -> bool:
    """Whether settings were stored before the newest of this method, or the recipe's learning rate or optimiser,
    existed."""
    before, optim, method = stored.get("method"), stored.get("optim"), type(config.method)
    if not isinstance(before, Mapping) or before.get("kind") != method.kind:
        return False
    if isinstance(optim, Mapping):
        if (optim.get("decay"), config.optim.decay) == ("cosine", "cosine_by_epoch"):
            return True  # the supervised recipes had DINO's cosine once
        if "name" not in optim and config.optim.name != "adamw":
            return True  # all had AdamW
    return not method.earlier.keys() <= {*before}


def has_begun(folder: RunDirectory) -> bool:
    """Whether the run has left a checkpoint, weights or a result."""
    has_checkpoint = any((folder.path / "checkpoints").glob("step-*.json"))
    return has_checkpoint or any((folder.path / file).is_file() for file in LEFT)


def is_over(folder: RunDirectory) -> bool:
    """Whether the run was trained to the end, and its checkpoints were removed since."""
    has_checkpoint = any((folder.path / "checkpoints").glob("step-*.json"))
    return not has_checkpoint and all((folder.path / file).is_file() for file in LEFT)


def same_data(before: str, now: str) -> bool:
    """Whether two names of data mean the same, however a path in them was typed."""
    return before == now or _resolved(before) == _resolved(now)


def first_change(before: Sequence[str], now: Sequence[str]) -> str:
    """The first of the classes that are not as they were, in words, by its place from 1."""
    pairs = enumerate(zip_longest(before, now), start=1)
    place, named = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    old, new = ("missing" if name is None else repr(name) for name in named)
    return f"class {place} was {old}, is {new}"


def folder_was_moved(before: str, now: str) -> bool:
    """Whether a folder of images may be one that is no longer where it was: the old name leads nowhere."""
    if before.startswith(HELD_OUT_OF) and now.startswith(HELD_OUT_OF):
        return folder_was_moved(before.removeprefix(HELD_OUT_OF), now.removeprefix(HELD_OUT_OF))
    return ":" not in before and not Path(before).expanduser().exists() and Path(now).expanduser().is_dir()


def _resolved(data: str) -> str:
    """With an absolute path. Formats (`wds:`, `ade:`) before a path and options after it stay."""
    if is_built_in(data):
        return data
    if data.startswith(HELD_OUT_OF):
        return HELD_OUT_OF + _resolved(data.removeprefix(HELD_OUT_OF))
    head, colon, rest = data.partition(":")
    if not colon or Path(data).expanduser().exists():
        return str(Path(data).expanduser().resolve())
    place, colon, options = rest.partition(":")
    return f"{head}:{Path(place).expanduser().resolve()}{colon}{options}"
