"""Which classifier a target has: the one that it was trained or released with, else a probe."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

import torch

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights.formats import recognise
from mixlab.backbones.weights.reading import WeightsError, read_weights
from mixlab.backbones.weights.saving import model_from_file
from mixlab.choices import OUTPUT
from mixlab.data.imagenet_labels import imagenet_classes
from mixlab.errors import InputError, check_kind
from mixlab.evaluation.classifier import (
    PROBE,
    RELEASED_WITH,
    NamedClassifier,
    ProbedBackbone,
    probe_classifier,
    timm_classifier,
    trained_classifier,
)
from mixlab.evaluation.features import HeadInput
from mixlab.evaluation.machine import CentreView
from mixlab.evaluation.probe_head import ProbeHead, load_head
from mixlab.evaluation.target import Target, as_target, load_target, network_digest, split_target
from mixlab.run import RunDirectory
from mixlab.run.files import read_json
from mixlab.training.distributed import choose_device

TRAINED_HEAD = "classifier.safetensors"  # of a run of `mixlab train`


def own_probe(run: Path, of: Backbone | None = None) -> Path | None:
    """The best head of a run's own probe: one with all labels before few, augmented before cached, one of more epochs
    before one of fewer, the first of equals. With `of`, only probes of that network.

    Probes under other names than "probe" (and probe_2, ..., with other settings) are asked for by their file.
    """
    network = network_digest(of) if of is not None else None

    def fits(file: Path) -> bool:
        settings = file.with_name("settings.json")
        named = re.fullmatch(r"probe(_\d+)?", file.parents[1].name) is not None
        return named and (network is None or (settings.is_file() and read_json(settings).get("network") == network))

    def order(file: Path) -> tuple[float, bool, int, int, str]:
        about = read_json(file.with_suffix(".json")) if file.with_suffix(".json").is_file() else {}
        name, labels, epochs = file.parents[1].name, about.get("label_share", 1.0), about.get("epochs", 0)
        return -labels, about.get("mode") != "augmented", -epochs, len(name), name

    return min(filter(fits, run.glob("probe*/*/best_head.safetensors")), key=order, default=None)


def load_classifier(
    text: str | Path | Target | Backbone,
    *,
    head: str | Path | None = None,
    weights: str | None = None,
    training: str | None = None,
    image: int | None = None,
    crop_share: float | None = None,
    device: str | torch.device | None = "auto",
    results: Path | None = None,
) -> NamedClassifier:
    """The classifier in the file `head`, a probe's or the classifier.safetensors of a run. Without it, the one that the
    TARGET was trained with, that its released weights include, or timm's own; else the run's own probe, or, of a TARGET
    that is no run, its probe in the directory `results`. In place of a TARGET, it takes a network in memory and the
    file `head`."""

    def headed(target: Target, file: Path) -> NamedClassifier:
        backbone = target.backbone
        if is_trained_head(file):
            return _of_run(target, file, view=CentreView(image or backbone.image, crop_share or backbone.crop_share))
        probe = load_head(file, backbone)
        size = image or int(probe.about.get("image", backbone.image))
        share = crop_share or float(probe.about.get("crop_share", backbone.crop_share))
        return probe_classifier(target, probe, view=CentreView(size, share))

    check_kind(head, str | PathLike | None, "give head as the path of a file")
    if not isinstance(text, str | Path):
        target = as_target(text)
        if head is None:
            raise InputError(f"{target.label} has no classifier: give head=FILE, {PROBE}")
        return headed(target, Path(head))
    name, label = split_target(text)

    def from_timm(model: str) -> NamedClassifier:
        found = timm_classifier(
            model, weights=weights, image=image, crop_share=crop_share, label=label or None, training=training
        )
        return found.to(choose_device(str(device) if device is not None else None))

    if name.startswith("timm/") and head is None:
        return from_timm(name.removeprefix("timm/"))
    target, place = load_target(text, weights=weights, training=training, device=device), Path(name)
    if head is not None:
        return headed(target, Path(head))
    if is_trained_head(place / TRAINED_HEAD):
        return headed(target, place / TRAINED_HEAD)
    probe = own_probe(place) if place.is_dir() else own_probe(results, of=target.backbone) if results else None
    if weights is not None and (released := _classifier_in(weights, target.backbone)) is not None:
        view = CentreView(image or target.backbone.image, crop_share or target.backbone.crop_share)
        network = ProbedBackbone(target.backbone, released, image=view.size)
        return NamedClassifier(network, released.classes, view, target.subject, kind=RELEASED_WITH, seed=target.seed)
    if weights is not None and (model := target.backbone.architecture().get("timm_name")):
        try:
            return from_timm(str(model))
        except WeightsError:  # of a backbone alone
            if probe is None:
                raise
    if probe is not None:
        return headed(target, probe)
    raise InputError(
        f"{text} has no classifier: give --head FILE, probe it first (`mixlab probe {text}`), or name timm/MODEL"
    )


def is_trained_head(file: Path) -> bool:
    """Whether it is the classifier of a run of `mixlab train`; that run's config.json names the classes."""
    return file.name == TRAINED_HEAD and file.is_file() and (file.parent / "config.json").is_file()


def _of_run(target: Target, file: Path, *, view: CentreView) -> NamedClassifier:
    """The classifier of a run, for its own network alone."""
    if network_digest(model_from_file(file.parent)) != network_digest(target.backbone):
        raise InputError(f"{file} was trained with the network of {file.parent}, not {target.label}; score that run")
    classes = RunDirectory.open(file.parent).read_config().get("classes", [])
    return trained_classifier(target, file, classes=classes, view=view)


def _classifier_in(path: str, backbone: Backbone) -> ProbeHead | None:
    """The linear classifier of ImageNet's 1,000 classes in released weights; it reads what the backbone returns.

    None where there is none. That of Dino-Mamba's checkpoints was never trained.
    """
    stored = read_weights(path)
    known = recognise(stored.entries)
    if known is None or known.mixer == "mamba2":
        return None
    entries = {**stored.set_aside, **stored.entries}  # PlainMamba's files have it beside the backbone
    for name, weight in entries.items():
        bias = entries.get(f"{name.removesuffix('weight')}bias")
        if name.startswith(known.heads or ("head.",)) and weight.ndim == 2 and bias is not None and len(bias) == 1000:
            return ProbeHead(weight, bias, HeadInput(1, OUTPUT), "stream", imagenet_classes())
    return None
