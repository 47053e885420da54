"""What dense tasks share around the training loop: the starting point of a training, and trained runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import model_from_file
from mixlab.backbones.weights.reading import read_weights
from mixlab.backbones.zoo import SHIPPED, SHIPPED_TRAINING
from mixlab.data.given import AnyData, Data, as_data
from mixlab.data.source import Source
from mixlab.data.source_names import is_drawn
from mixlab.errors import InputError
from mixlab.evaluation.dense_recipe import DenseConfig, DenseRecipe
from mixlab.evaluation.methods import train_config
from mixlab.evaluation.target import Target, as_target, load_target, restore_stopped
from mixlab.run import UNTRAINED, RunDirectory
from mixlab.run.codec import to_json
from mixlab.run.directory import method_of
from mixlab.training.config import ModelConfig, TrainConfig
from mixlab.training.distributed import World, join_world
from mixlab.training.loop import Trainer, train
from mixlab.training.settings import override
from mixlab.training.stored_settings import MAY_CHANGE, first_change, same_data

STARTS_FROM = "starts_from"  # in config.json: what is known of the backbone that training started from
R = TypeVar("R")
# Settings that a protocol names by fields of its own, or that say which network it is.
_NAMED = ("seed", "model.", "steps", "precision", "method.frozen", "method.head")
# These make no difference to a score here, but were in the digests of older runs, with these values.
_ONCE_COUNTED = {"data.size": 256, "graph": False}


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """The backbone that training starts from, and how it was trained before, as far as its files say."""

    model: ModelConfig
    training: str
    backbone: Backbone | None = None  # given where `model` alone cannot build it


@dataclass(frozen=True, kw_only=True)
class DensePlan:
    """A dense task before it is trained."""

    config: TrainConfig
    data: Data
    start: StartingPoint
    training: str | None = None  # how the backbone was trained before, where the caller knows better
    name: str = ""  # of the recipe, for the record
    settings: tuple[str, ...] = ()  # given by hand; they are part of `config`

    def begun(self, stored: Mapping[str, Any]) -> TrainConfig:
        """The config, for a directory whose config.json holds `stored`: a run keeps what it began with."""
        method = self.config.method
        if not isinstance(method, DenseConfig) or method_of(stored) != method.kind:
            return self.config
        return override(replace(self.config, method=method.as_begun(stored["settings"]["method"])), self.settings)

    def train(self, run: str | Path, *, device: str | None = "auto", then: Callable[[DenseRun], R]) -> R:
        """Train in the directory, or resume there; returns what `then` returns, on every rank."""
        stored = RunDirectory(run).read_config_if_any()
        config, known = self.begun(stored), stored.get(STARTS_FROM, {}).get("training")  # told when the run began
        training = self.training or known or self.start.training
        given = deepcopy(self.start.backbone)
        found: list[R] = []

        def finish(trainer: Trainer) -> None:
            assert isinstance(trainer.recipe, DenseRecipe)
            found.append(
                then(
                    DenseRun(
                        label=trainer.folder.path.name,
                        recipe=trainer.recipe,
                        classes=tuple(trainer.source.classes),
                        config=config,
                        data=self.data,
                        training=training,
                        world=trainer.world,
                        changes=trainer.record.changes,
                    )
                )
            )

        train(
            config,
            data=self.data,
            run=run,
            device=device,
            name=self.name,
            then=finish,
            backbone=None if given is None else given.train(),
            notes={STARTS_FROM: {"training": training, "given": given is not None}},
        )
        return found[0]


@dataclass(frozen=True, kw_only=True)
class DenseRun:
    """A network that was trained for a dense task, and the processes that evaluate it."""

    label: str
    recipe: DenseRecipe
    classes: tuple[str, ...]  # that it was trained for, in the order of its answers
    config: TrainConfig
    data: Data  # that it was trained on
    training: str  # of its backbone, before
    world: World
    changes: Sequence[dict[str, Any]] = ()  # of settings while it was trained
    checkpoint: Path | None = None  # that it was read from, if it is not finished

    @property
    def method(self) -> Any:
        return self.config.method

    def target(self) -> Target:
        return Target(
            label=self.label,
            backbone=self.recipe.backbone,
            training=self.training,
            seed=self.config.seed,
            weights=str(self.checkpoint) if self.checkpoint else self.config.model.weights,
        )

    def protocol(self, data: Data, num_images: int | None) -> dict[str, Any]:
        """The fields of a protocol that all dense tasks have."""
        return {
            "data": str(self.data),
            "val_data": None if same_data(str(self.data), str(data)) else str(data),
            "split": "val",
            "num_images": num_images,
            "precision": self.config.precision,
            "frozen": self.method.frozen,
            "initial_weights": self.config.model.weights,
            "steps": self.config.steps,
            "settings": settings_digest(self.config, self.changes),
        }

    def check_classes(self, source: Source[Any], data: Data) -> None:
        """Refuse data with other classes, or with the same in another order: its numbers would mean something else."""
        if len(source.classes) != len(self.classes):
            raise InputError(
                f"'{data}' has {len(source.classes)} classes, this network was trained for {len(self.classes)}; "
                "evaluate it on data with the same classes"
            )
        if tuple(source.classes) != self.classes:
            raise InputError(
                f"'{data}' has other classes than this network was trained for, or another order "
                f"({first_change(self.classes, source.classes)}); evaluate it on data with the same classes, with the "
                "names and the order of its config.json"
            )


def plan_dense(
    target: str | Target | Backbone | None,
    *,
    data: AnyData,
    method: type[DenseConfig],
    small: Callable[[ModelConfig], TrainConfig],
    published: Callable[[ModelConfig], TrainConfig],
    recipe: TrainConfig | None = None,
    settings: Sequence[str] = (),
    frozen: bool = False,
    weights: str | None = None,
    training: str | None = None,
    num_val: int | None = None,
    name: str = "",
) -> DensePlan:
    """Plan a training: the recipe with `target` as its backbone, changed by `settings`.

    Without a recipe, the `small` one is used for drawn shapes and the `published` one for other data. Without a target,
    the recipe's own model is used. `num_val` also limits the scores during training.
    """
    given = as_data(data)
    if target is None:
        if recipe is None:
            raise InputError("neither a target nor a recipe was given; name a backbone to train, or a recipe")
        start = _named_model(replace(recipe.model, weights=weights))
        config = replace(recipe, model=start.model)
    else:
        start = starting_point(target, weights=weights)
        config = _with_model(recipe, start) if recipe else (small if is_drawn(str(given)) else published)(start.model)
    if not isinstance(config.method, method):
        raise InputError(
            f"{name or 'this'} is a {config.method.kind} recipe, not one for `mixlab {method.kind}`; "
            f"name one that begins with {method.kind}_, or a backbone"
        )
    config = override(config, [*settings, *(["method.frozen=true"] if frozen else [])])
    if start.backbone is not None and config.model != start.model:
        raise InputError(
            f"{name or 'the target'} brings its own architecture; leave out settings of the model (model.*), "
            "or name a model"
        )
    assert isinstance(config.method, method)
    if num_val is not None and num_val < config.method.score_images:
        config = override(config, [f"method.score_images={num_val}"])
    if recipe is None:  # the name is that of the target
        name = f"{method.kind}, the small one for shapes" if is_drawn(str(given)) else f"{method.kind}, the papers'"
    return DensePlan(config=config, data=given, start=start, training=training, name=name, settings=tuple(settings))


def starting_point(target: str | Target | Backbone, *, weights: str | None = None) -> StartingPoint:
    """What TARGET names (see `mixlab.evaluation.target`) as the start of a training."""
    if not isinstance(target, str):
        given = as_target(target)
        model = ModelConfig(name=given.backbone.name, weights=given.weights)
        return StartingPoint(model=model, training=given.training, backbone=given.backbone)
    place = Path(target)
    if not place.exists():
        return _named_model(ModelConfig(name=target, weights=weights))
    stored = RunDirectory(place).read_config_if_any() if place.is_dir() else {}
    exported = place / "weights.safetensors"
    if weights is None and "settings" in stored and exported.is_file() and not stored.get(STARTS_FROM, {}).get("given"):
        model = replace(train_config(stored["settings"]).model, weights=target)
        return StartingPoint(model=model, training=_training_beside(exported) or "trained")
    known = _training_beside(place) if place.is_file() else None
    found = load_target(target, weights=weights, training=known, device="cpu")  # which also says what is wrong
    return starting_point(replace(found, weights=target))


@contextmanager
def trained_run(
    run: str | Path, *, method: type[DenseConfig], training: str | None = None, device: str | None = "auto"
) -> Iterator[DenseRun]:
    """The network of a run of a dense task, finished or stopped, among the processes that evaluate it."""
    folder = RunDirectory.open(run)
    stored = folder.read_config_if_any()
    if method_of(stored) != method.kind:
        raise InputError(f"{run} is not a run of `mixlab {method.kind}`; train one first, without --evaluate-only")
    if missing := [name for name in ("data", "classes") if name not in stored]:
        raise InputError(f"{folder.path / 'config.json'} has no field {missing[0]}; restore it, or train the run again")
    config = train_config(stored["settings"])
    known = stored.get(STARTS_FROM, {}).get("training") or _named_model(config.model).training
    with join_world(device) as world:
        recipe, checkpoint = _restore(folder, stored, config)
        recipe.network.to(world.device)
        yield DenseRun(
            label=folder.path.name,
            recipe=recipe,
            classes=tuple(stored["classes"]),
            config=config,
            data=stored["data"],
            training=training or known,
            world=world,
            changes=stored.get("changes", ()),
            checkpoint=checkpoint,
        )


def settings_digest(config: TrainConfig, changes: Sequence[dict[str, Any]] = ()) -> str:
    """The same for runs whose settings differ in nothing that can change a score, but for what a protocol names."""
    flat = _flat(to_json(config))
    newer = {"optim.name": "adamw"} | {f"method.{name}": before for name, before in config.method.earlier.items()}
    for name, before in newer.items():  # the digest of a run stays when there are new settings
        if flat[name] == before:
            del flat[name]
    kept = {key: value for key, value in flat.items() if not key.startswith((*MAY_CHANGE, *_NAMED))}
    kept |= {name: flat[name] or before for name, before in _ONCE_COUNTED.items()}
    kept |= {"changes": list(changes)} if changes else {}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def _restore(folder: RunDirectory, stored: dict[str, Any], config: TrainConfig) -> tuple[DenseRecipe, Path | None]:
    exported = folder.path / "weights.safetensors"
    if not exported.is_file():
        recipe, checkpoint = restore_stopped(folder, stored)
        assert isinstance(recipe, DenseRecipe)
        return recipe, checkpoint
    num_classes = len(stored["classes"])
    recipe = config.method.build(model_from_file(exported), num_classes=num_classes, total_steps=1, steps_per_epoch=1)
    assert isinstance(recipe, DenseRecipe)
    head = folder.path / f"{recipe.head_name}.safetensors"
    if not head.is_file():
        raise FileNotFoundError(f"{folder.path} has no {head.name}; run the same command again to finish it")
    recipe.load_head(read_weights(head).entries)
    return recipe, None


def _named_model(model: ModelConfig) -> StartingPoint:
    """A model by its name, with weights from a file or a run, or without."""
    if model.weights is None:
        return StartingPoint(model=model, training=SHIPPED_TRAINING if model.name in SHIPPED else UNTRAINED)
    return StartingPoint(model=model, training=_training_beside(Path(model.weights)) or "trained")


def _with_model(recipe: TrainConfig, start: StartingPoint) -> TrainConfig:
    """The recipe for another model. Fields that it sets for a model of the same name stay, below the model's own."""
    model = start.model
    kept = recipe.model.fields if recipe.model.name == model.name and start.backbone is None else {}
    return replace(recipe, model=replace(model, fields={**kept, **model.fields}))


def _training_beside(weights: Path) -> str | None:
    """How the run was trained that weights lie in: a run, or a file in one."""
    return method_of(RunDirectory(weights if weights.is_dir() else weights.parent).read_config_if_any())


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
