"""What a speedrun leaves in its run directory: results/speedrun.json, from which its row can be made again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from mixlab.data.images import HELD_OUT_OF
from mixlab.errors import InputError
from mixlab.evaluation.methods import train_config
from mixlab.evaluation.settings import SPEEDRUN_LRS, ProbeSettings
from mixlab.recipes import RECIPES, find_recipe
from mixlab.report.forms import check_form
from mixlab.run import Measurement, RunDirectory, measurements_of, provenance
from mixlab.run.codec import differences, to_json
from mixlab.run.directory import AGAIN
from mixlab.studies.elapsed import elapsed
from mixlab.studies.steps import sets
from mixlab.training.settings import override
from mixlab.training.stored_settings import MAY_CHANGE

NAME = "speedrun"
SECONDS = "seconds.json"  # of training and of scoring, in the run directory
K = 20  # neighbours
# On features of plain images, which is fast: each of 1 to 4 last blocks and five strategies, three rates.
PROBE = ProbeSettings(mode="cached", lrs=SPEEDRUN_LRS, weight_decays=(0.0,), batch=256, epochs=50)
CURVE = ("step", "loss", "lr", "images_per_s", "knn_accuracy")


def make_record(run: RunDirectory, *, device: str) -> dict[str, Any]:
    """Of a run that was trained and scored: what was trained on what, its scores, and the seconds that it took."""
    config = run.read_config()
    data, settings = config["data"].rstrip("/"), config["settings"]
    own = [m for m in run.measurements() if m["data"] == data and m["num_images"] is None and m["num_train"] is None]
    knn = next(m for m in own if m.metric == "knn_top1" and m["k"] == K)
    probe = next(m for m in own if m.metric == "probe_top1" and m["blocks"] is None)  # the best head of all
    elsewhere = run.results()["probe"]["modes"]["cached"]["chosen_elsewhere"]
    seconds = elapsed(run.path / SECONDS)
    return {
        "kind": NAME,
        "recipe": config["recipe"],
        "changed": changed_settings(config["recipe"], settings),
        "method": settings["method"]["kind"],
        "data": data,
        "held_out": data.startswith(HELD_OUT_OF),
        "num_train": config["num_images"],
        "num_val": knn.n,
        "seed": config["seed"],
        "steps": config["total_steps"],
        "images_seen": config["total_steps"] * settings["batch"],
        "seconds": seconds | {"all_in": round(sum(seconds.values()), 2)},
        "shares_gpu": any(each["machine"].get("shares_gpu", False) for each in config["sessions"]),
        "timed_on": "GPU" if device.startswith("cuda") else "CPU",
        "sessions": [{key: each.get(key) for key in ("commit", "date", "from_step")} for each in config["sessions"]],
        "probe_chosen_elsewhere": elsewhere,
        "measurements": [knn.to_json(), probe.to_json()],
        "curve": [{name: row[name] for name in CURVE if name in row} for row in run.thinned_metrics()],
        "provenance": provenance(seed=config["seed"], device=device),
    }


def read_record(run: Path) -> dict[str, Any]:
    """The record of a finished speedrun; `changed` is what differs from its recipe as that is today."""
    directory = RunDirectory.open(run)
    found = directory.results().get(NAME)
    if found is None:
        raise InputError(
            f"{run} is not a finished speedrun: it has no results/{NAME}.json, which is written once it is trained and "
            "scored; run the same command again without --publish to finish it"
        )
    check_record(found, directory.file_of(NAME))
    config = directory.read_config_if_any()
    if config.get("recipe") not in RECIPES:
        return found
    return found | {"changed": changed_settings(config["recipe"], to_json(train_config(config["settings"])))}


def check_record(record: dict[str, Any], file: Path) -> None:
    """Refuse a damaged one."""
    for kind in (NAME, f"{NAME} row"):
        check_form(record, kind, str(file))
    if lacking := {"knn_top1", "probe_top1"} - {m.metric for m in measurements_of(record, file)}:
        raise InputError(f"{file} lacks {' and '.join(sorted(lacking))}; {AGAIN}")


def check_same(
    record: dict[str, Any],
    run: Path,
    *,
    recipe: str,
    seed: int | None = None,
    settings: tuple[str, ...] = (),
    data: str | None = None,
) -> None:
    """Refuse to show one run as the answer to another question; what is not given may be any. Of data, the name alone
    counts: a run may have come from another machine."""
    asked: dict[str, Any] = {"recipe": recipe}
    if seed is not None:
        asked["seed"] = seed
    if settings:
        asked["changed"] = changed_settings(recipe, to_json(override(find_recipe(recipe), settings)))
    if data is not None:
        asked["data"] = _name(data)
    was = record | {"data": _name(record["data"])}
    found = differences({name: was[name] for name in asked}, asked)
    if other := [f"{name.removeprefix('changed.')} was {old}, is {new}" for name, (old, new) in found.items()]:
        raise InputError(f"{run} holds another speedrun ({'; '.join(other)}); give another --run, or the same settings")


def check_publishable(record: dict[str, Any], run: Path) -> None:
    """Refuse a record of which nobody could say which code made it."""
    commits = {str(each.get("commit") or "") for each in [*record["sessions"], record["provenance"]]}
    if "" in commits:
        raise InputError(
            f"{run} does not say which commit made it, since it ran outside of a source checkout; run it in one, or "
            "set MIXLAB_COMMIT to the commit of the copy before it starts"
        )
    if dirty := sorted(commit for commit in commits if commit.endswith("-dirty")):
        raise InputError(
            f"{run} was made by a changed source tree ({', '.join(dirty)}), which nobody can check out; commit the "
            "changes and run it again in another --run"
        )
    if len(commits) > 1:
        raise InputError(
            f"{run} was made by several commits ({', '.join(sorted(commits))}); run it again by one, in another --run"
        )


def score_of(record: dict[str, Any], metric: str) -> Measurement:
    """One of its two scores."""
    return next(m for m in measurements_of(record, NAME) if m.metric == metric)


def command_of(record: dict[str, Any]) -> str:
    """The command line that repeats it."""
    changed = sets(*(f"{name}={_text(name, value)}" for name, value in record["changed"].items()))
    data = Path(record["data"].removeprefix(HELD_OUT_OF)).name
    flags = ["--held-out"] if record["held_out"] else []
    seed = str(record["seed"])
    return shlex.join(
        ["mixlab", NAME, record["recipe"], "--data", data, *flags, "--run", "RUN", "--seed", seed, *changed]
    )


def changed_settings(recipe: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that differ from those of the recipe and change what is trained."""
    found = differences(to_json(find_recipe(recipe)), settings)
    ignored = ("seed", "precision", *MAY_CHANGE)
    return {name.replace(".fields.", "."): new for name, (_, new) in found.items() if not name.startswith(ignored)}


def listed(changed: dict[str, Any]) -> str:
    """Settings as text for a page."""
    return ", ".join(f"`{name}={value}`" for name, value in sorted(changed.items()))


def _name(data: str) -> str:
    """A source without the folders above it."""
    held_out = HELD_OUT_OF if data.startswith(HELD_OUT_OF) else ""
    return held_out + Path(data.removeprefix(HELD_OUT_OF)).name


def _text(name: str, value: Any) -> str:
    """A setting's value as `--set` takes it: fields of a model in JSON, since no type says what they are."""
    if isinstance(value, list) and not name.startswith("model."):
        return ",".join(_text(name, part) for part in value)
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
