"""The laboratory of a page: its models from the command line, its samples, and what runs say of their models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import read_samples
from mixlab.backbones import shipped
from mixlab.backbones.zoo import create_model
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.target import Target, label_of, load_targets, split_target
from mixlab.run import RunDirectory
from mixlab.training.distributed import choose_device

DATA = ("photo", "shapes:size=256,n=7")
# Shown where no target is given, at one size: what comes with the package, and an untrained one of the other kinds.
SMALL_IMAGE = 128
STACK = {"dim": 128, "patch": 8, "head_dim": 32, "image": SMALL_IMAGE}
UNTRAINED_MODELS: dict[str, dict[str, Any]] = {
    "linearvit_tiny": {**STACK, "depth": 6},
    "dinovim_tiny": {**STACK, "depth": 12, "state": 32},
}


def build_laboratory(
    targets: Sequence[str],
    *,
    weights: Sequence[str] = (),
    data: Sequence[str] = DATA,
    num_samples: int = 8,
    image: int | None = None,
    device: str | None = "auto",
    cache_mb: int = 512,
    seed: int = 0,
) -> Laboratory:
    """The models and samples of a page."""
    check_counts(num_samples=num_samples, cache_mb=cache_mb, image=image)
    files = dict(_name_and_file(text) for text in weights)
    if targets or files:
        subjects = load_targets(targets, weights=files, seed=seed, device=device)
    else:
        subjects = _small_targets(device, seed)
    places = {label_of(text): Path(split_target(text)[0]) for text in targets}
    facts = {label: run_facts(RunDirectory(place)) for label, place in places.items() if place.is_dir()}
    image = image if image or targets else SMALL_IMAGE
    samples = read_samples(data, num_samples)
    return Laboratory(subjects, samples, cache_bytes=cache_mb * 2**20, facts=facts, image=image)


def _small_targets(device: str | None, seed: int) -> list[Target]:
    where = choose_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained = [
            Target(label=name, backbone=create_model(name, **settings).eval().to(where))
            for name, settings in UNTRAINED_MODELS.items()
        ]
    return [*load_targets(shipped.NAMES, device=device), *untrained]


def _name_and_file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise InputError(f"--weights {text!r} must be NAME=FILE, such as dinovim_tiny=checkpoint.pth")
    return name, file


SHOWN_METRICS = {"knn_top1": "kNN", "probe_top1": "linear probe"}


def run_facts(run: RunDirectory) -> tuple[str, ...]:
    """Its data, then its best accuracy by each known metric with all labels, in per cent."""
    config = run.read_config() if (run.path / "config.json").is_file() else {}
    facts = [f"data {config['data']}"] if isinstance(config.get("data"), str) else []
    measured = [m for m in run.measurements() if m["label_share"] == 1 and m["register"] is None]
    for metric, name in SHOWN_METRICS.items():
        values = [m.value for m in measured if m.metric == metric]
        if values:
            facts.append(f"{name} {100 * max(values):.1f} %")
    return tuple(facts)
