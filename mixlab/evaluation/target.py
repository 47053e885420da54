"""The networks to measure: what TARGET on the command line names, loaded.

TARGET is a run (finished or stopped), a file that `mixlab export` wrote, a name of the zoo, `shipped/NAME` or
`timm/NAME`; `=LABEL` after it gives it another name in tables.
"""

import hashlib
import json
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import build_architecture, model_from_file
from mixlab.backbones.weights.reading import read_epoch, split_part
from mixlab.backbones.weights.saving import read_architecture
from mixlab.backbones.wrapped import as_backbone
from mixlab.backbones.zoo import SHIPPED, SHIPPED_TRAINING, create_model
from mixlab.choices import NO_TARGET
from mixlab.data.decode import SUFFIXES
from mixlab.errors import InputError, check_kind
from mixlab.evaluation.paper import pretrained_as_published, pretraining_epochs
from mixlab.plugins import check_plugins
from mixlab.run import UNTRAINED, RunDirectory, Subject, codec
from mixlab.run.directory import method_of
from mixlab.training.checkpoint import TENSORS, Checkpoints
from mixlab.training.distributed import choose_device, make_current
from mixlab.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Target:
    """A backbone in evaluation mode, with its label, training, seed and the origin of its weights."""

    label: str  # its name in tables
    backbone: Backbone
    training: str = UNTRAINED  # "dino", "supervised", ...; "trained" where only the weights are known
    seed: int | None = None  # of its training, or of its untrained weights
    weights: str | None = None  # where they come from; None: untrained
    probe_accuracy: float | None = None  # of the linear probes in its run, where there are any
    register_accuracies: tuple[float, ...] = ()  # linear probes on single registers, in their order
    published: bool = False  # pretrained as the networks of Dino-Mamba's tables: their figures may stand beside its own

    def __post_init__(self) -> None:
        check_kind(self.backbone, Backbone, "give a backbone: mixlab.wrap(module) makes one of any network")

    @cached_property
    def subject(self) -> Subject:
        """Its description in measurements."""
        return Subject(
            label=self.label,
            model=self.backbone.name,
            family=self.family,
            training=self.training,
            num_parameters=self.num_parameters,
            num_layers=self.backbone.num_layers,
            num_registers=self.num_registers,
            causal=self.backbone.is_causal,
            weights=network_digest(self.backbone),
            native_image=self.backbone.image,
            native_crop_share=self.backbone.crop_share,
            step=self.step,
        )

    @property
    def step(self) -> int | None:
        """Of the checkpoint that it was read from; None of all others."""
        found = TENSORS.fullmatch(Path(self.weights).name) if self.weights else None
        return None if found is None else int(found.group(1))

    @property
    def family(self) -> str:
        return self.backbone.family

    @property
    def num_parameters(self) -> int:
        return self.backbone.num_parameters

    @property
    def num_registers(self) -> int:
        return self.backbone.layout.num_registers

    def describe(self) -> dict[str, Any]:
        """The subject and its seed as JSON."""
        return asdict(self.subject) | {"seed": self.seed}


def as_target(given: Target | Backbone) -> Target:
    """A bare backbone, put into evaluation mode: as `load_target` gives it if it comes with mixlab, else under its own
    name, and how it was trained is not known."""
    if isinstance(given, Target):
        return given
    backbone = as_backbone(given).eval()
    if (name := _shipped_name(backbone)) is not None:
        return Target(label=name, backbone=backbone, training=SHIPPED_TRAINING, weights=name)
    return Target(label=backbone.name, backbone=backbone, training="")


def distinct_targets(given: Target | Backbone | Sequence[Target | Backbone]) -> list[Target]:
    """At least one network, with distinct labels; a single one needs no list."""
    given = [given] if isinstance(given, Target | nn.Module) else given
    check_kind(given, Iterable, "give a network, or a list of them")
    targets = [as_target(each) for each in given]
    labels = [target.label for target in targets]
    if not labels or len(set(labels)) < len(labels):
        raise InputError(
            f"networks need different labels, got {labels}; give mixlab.Target(label=NAME, backbone=model) for one in "
            "memory, mixlab.load_target('TARGET=LABEL') for any other"
        )
    return targets


def load_target(
    text: str | Path,
    *,
    weights: str | None = None,
    training: str | None = None,
    seed: int = 0,
    device: str | torch.device | None = "auto",
) -> Target:
    """Load the network that TARGET names.

    Runs and files have their own weights. A zoo model takes `weights`, or is untrained, with weights drawn from `seed`.
    `training` overrides how the run says it was trained.
    """
    name, label = split_target(text)[0], label_of(text)
    place, where = Path(name), choose_device(str(device) if device is not None else None)
    make_current(where)
    if weights and place.exists():
        kind = "run" if place.is_dir() else "file"
        raise InputError(f"{name} is a {kind} and has weights of its own; leave out --weights or name a model")
    known: dict[str, Any] = {}
    origin: str | None
    if place.is_dir():
        backbone, origin, known = _load_run(place)
    elif place.is_file() and place.suffix.lower() in SUFFIXES:
        raise InputError(f"{name} is an image, not a network; give it as --data, or open it with `mixlab look {name}`")
    elif place.is_file():
        backbone, origin = model_from_file(place), name
    elif name in SHIPPED and weights is None:
        backbone, origin, known = create_model(name), name, {"training": SHIPPED_TRAINING}
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # as an untrained twin is
            backbone, origin = create_model(name, weights=weights), weights
        file, part = split_part(weights or "")
        if training == "dino" and file.is_file() and part in (None, "teacher"):
            known["published"] = read_epoch(file) == pretraining_epochs(name)
    if origin is None and training not in (None, UNTRAINED):
        raise InputError(
            f"--training {training} is given for {name}, which has no weights and is untrained; add --weights FILE"
        )
    known["training"] = training or known.get("training") or (UNTRAINED if origin is None else "trained")
    if origin is None:
        known["seed"] = seed
        if name.startswith("timm/") and "." in name:
            _warn(f"{name} is untrained: its tag names released weights, but only --weights FILE loads them")
    return Target(label=label, backbone=backbone.eval().to(where), weights=origin, **known)


def load_targets(
    texts: Sequence[str],
    *,
    weights: Sequence[str] = (),
    training: Sequence[str] = (),
    seed: int = 0,
    device: str | torch.device | None = "auto",
) -> list[Target]:
    """Load several with distinct labels. `weights`: NAME=FILE for each name or label, or FILE for a single one;
    `training`: LABEL=KIND for each whose run does not record it."""
    if not texts:
        raise InputError(NO_TARGET)
    names = {text: split_target(text)[0] for text in texts}
    labels = [label_of(text) for text in texts]
    files = dict(_name_and_file(text, names.values(), labels) for text in weights)
    if len(set(labels)) < len(labels):
        raise InputError(f"two targets share a label among {', '.join(labels)}; write TARGET=LABEL to name them")
    kinds = dict(_label_and_kind(text) for text in training)
    if unknown := sorted(set(kinds) - set(labels)):
        raise InputError(f"--training names {', '.join(unknown)}, the labels are {', '.join(labels)}; write LABEL=KIND")
    return [
        load_target(
            text, weights=files.get(label, files.get(names[text])), training=kinds.get(label), seed=seed, device=device
        )
        for text, label in zip(texts, labels, strict=True)
    ]


def split_target(text: str | Path) -> tuple[str, str]:
    """TARGET=LABEL as what is named and its label, "" without one; a path that exists may have `=` in its name."""
    check_kind(
        text,
        str | Path,
        "networks are loaded by name: a run, a file or a model; one in memory is measured as it is, and "
        "mixlab.save_weights writes it to a file",
    )
    text = str(text)
    if "=" not in text or Path(text).exists():
        return text, ""
    name, _, label = text.rpartition("=")
    return name, label


def label_of(text: str | Path) -> str:
    """The label of a TARGET in tables: as given, else the name of the run or file, or the name of the model."""
    name, label = split_target(text)
    place = Path(name)
    return label or (place.name if place.is_dir() else place.stem if place.is_file() else name)


def network_digest(backbone: Backbone) -> str:
    """The same for the same architecture with the same weights."""
    try:
        plan: dict[str, Any] = backbone.architecture()
    except InputError:  # nothing can build it again, which does not keep anyone from measuring it
        plan = {"class": f"{type(backbone).__module__}.{type(backbone).__qualname__}"}
    architecture = json.dumps(plan, sort_keys=True)
    return hashlib.sha256(f"{architecture} {weights_checksum(backbone)}".encode()).hexdigest()[:16]


def _shipped_name(backbone: Backbone) -> str | None:
    """Which network of the package this is, by its weights: one that was trained further is none of them."""
    alike = [name for name in SHIPPED if _shipped_model(name) == backbone.name]
    digest = network_digest(backbone) if alike else ""
    return next((name for name in alike if _shipped_digest(name) == digest), None)


@cache
def _shipped_model(name: str) -> str:
    """The name of its architecture, read without its weights."""
    with as_file(files("mixlab") / f"{name}.safetensors") as path:
        return str(read_architecture(path)["name"])


@cache
def _shipped_digest(name: str) -> str:
    return network_digest(create_model(name))


def weights_checksum(module: nn.Module) -> str:
    """The same for the same names and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load_run(place: Path) -> tuple[Backbone, str, dict[str, Any]]:
    """Its backbone, where its weights are, and what its config and its results say."""
    run, exported = RunDirectory(place), place / "weights.safetensors"
    config = run.read_config_if_any()
    if not config and (found := Checkpoints(place / "checkpoints", keep=1).newest(_warn)):  # it was deleted
        config = found.state.get("config", {})
    if exported.is_file():
        backbone, origin = model_from_file(exported), exported
    else:
        backbone, origin = _load_stopped(run if config else RunDirectory.open(place), config)
    probes = [measurement for measurement in run.measurements() if measurement.metric == "probe_top1"]
    by_register = {found["register"]: found.value for found in probes if found["register"] is not None}
    known = {
        "training": method_of(config),
        "seed": config.get("seed") if isinstance(config.get("seed"), int) else None,
        "probe_accuracy": max((found.value for found in probes if found["register"] is None), default=None),
        "register_accuracies": tuple(by_register[index] for index in sorted(by_register)),
        "published": exported.is_file() and pretrained_as_published(backbone.name, config),
    }
    return backbone, str(origin), known


def _load_stopped(run: RunDirectory, config: dict[str, Any]) -> tuple[Backbone, Path]:
    """The backbone of the newest checkpoint, as the recipe would export it (for DINO the teacher), and its file."""
    recipe, file = restore_stopped(run, config)
    trained = recipe.exported()
    backbone = build_architecture(trained.architecture())  # the recipe's may drop paths and refuse gradients
    backbone.load_state_dict(trained.state_dict())
    return backbone, file


def restore_stopped(run: RunDirectory, config: dict[str, Any]) -> tuple[Recipe, Path]:
    """The recipe of a stopped run, restored from its newest checkpoint, and that file."""
    from mixlab.evaluation.methods import METHODS, train_config  # all of them, dense tasks too: slow to import

    found = Checkpoints(run.path / "checkpoints", keep=1).newest(_warn)
    if found is None and not config:
        raise FileNotFoundError(
            f"{run.path} holds no network, neither weights.safetensors nor checkpoints; name a run that trained one"
        )
    if found is None and run.file_of("training").is_file():
        raise FileNotFoundError(
            f"{run.path} is trained, but its weights.safetensors is gone; copy that file from where it was trained, or "
            "train it again in another directory"
        )
    if found is None and (run.path / "model.safetensors").is_file():
        raise InputError(
            f"{run.path} is an export for transformers; name its run, or a .safetensors file from `mixlab export`"
        )
    if found is None:
        raise FileNotFoundError(
            f"{run.path} has no exported weights (weights.safetensors); run the same command again to finish it"
        )
    check_plugins(config.get("plugins"), run.path)
    if (method := method_of(config)) not in METHODS:
        raise InputError(
            f"{run.path} is not finished, and its method {method!r} is not known here; load the plugin that registers "
            "it: mixlab --import MODULE ..."
        )
    file, given = run.path / "config.json", {}
    for name, kind in _FIELDS_TO_REBUILD.items():
        if name not in config:
            raise InputError(
                f"{file} has no field {name}, without which its network cannot be built again; remove the file: the "
                "newest checkpoint has a copy"
            )
        given[name] = codec.check(kind, config[name], f"{file}: {name}")
    try:
        with torch.random.fork_rng(devices=[]):
            recipe = train_config(config["settings"]).method.build(
                build_architecture(given["architecture"]),
                num_classes=len(given["classes"]),
                total_steps=given["total_steps"],
                steps_per_epoch=given["steps_per_epoch"],
            )
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise InputError(f"{file} describes a network that cannot be built: {error}; correct it") from error
    stored = {name: tensor for name, tensor in found.tensors() if not name.startswith("optimizer/")}
    for prefix, module in recipe.modules().items():
        module.load_state_dict(
            {name.removeprefix(f"{prefix}/"): value for name, value in stored.items() if name.startswith(f"{prefix}/")}
        )
    _warn(f"{run.path} is not finished: these are the weights of step {found.step} of {config['total_steps']}")
    return recipe, found.tensor_file


_FIELDS_TO_REBUILD = {"architecture": dict, "classes": list, "total_steps": int, "steps_per_epoch": int}


def _name_and_file(text: str, names: Collection[str], labels: Collection[str]) -> tuple[str, str]:
    """NAME=FILE, with the name or the label of a target; FILE alone where there is one target."""
    name, equals, file = text.partition("=")
    if name in {*names, *labels} and file:
        return name, file
    if len(labels) == 1 and (not equals or split_part(text)[0].exists()):
        return next(iter(labels)), text
    if not equals:
        first = next(iter(names))
        raise InputError(f"--weights {text} must say for which target: NAME=FILE, such as {first}={text}")
    listed = ", ".join(dict.fromkeys([*names, *labels]))
    raise InputError(f"--weights {text} names {name}, which is not among the targets; name one of {listed}")


def _label_and_kind(text: str) -> tuple[str, str]:
    label, equals, kind = text.rpartition("=")
    if not (label and equals and kind):
        raise InputError(f"--training {text!r} must be LABEL=KIND, such as my_run=dino or my_run=supervised")
    return label, kind


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
