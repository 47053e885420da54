"""The networks behind the papers' tables, and how one is come by: trained by its recipe, or from released weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mixlab.backbones.visual_mambas import VISUAL_MAMBAS
from mixlab.backbones.zoo import ZOO, known_fields
from mixlab.choices import Scale
from mixlab.data.imagenet_labels import NUM_TRAIN
from mixlab.recipes import RECIPES, find_recipe
from mixlab.studies.reproduce.hours import HoursEstimate, estimate_hours
from mixlab.studies.steps import Step, sets
from mixlab.training.settings import override

Training = Literal["dino", "supervised", "dinov2"]
TINY_DIMS = {"tiny": 32, "small": 48, "base": 64, "large": 80, "giant": 96}
# Steps enough to run every line of code, and none to learn anything.
TINY_STEPS = ("steps=2", "batch=4", "optim.warmup_steps=0", "knn.every_epochs=0", "checkpoint.every_steps=100")
PARTS = {"dino": 4, "supervised": 8}  # passes that share a step, so that its batch fits one GPU of 139 GiB


@dataclass(frozen=True)
class Network:
    """A backbone as one of the papers trained it; `key` is the name of its run and its label in tables."""

    model: str  # a name of the zoo, or timm/NAME
    training: Training
    title: str  # as the papers call it
    settings: tuple[str, ...] = ()  # beyond its recipe
    timm_name: str = ""  # timm's name of the classifier whose weights were released
    crop_share: float | None = None  # of its published accuracy, where it is not the classifier's own here
    tiny: tuple[str, ...] = ()  # settings of its stand-in alone

    @property
    def key(self) -> str:
        return f"{self.model.removeprefix('timm/')}-{self.training}"

    @property
    def exists(self) -> bool:
        """Whether there is a backbone of its name."""
        return self.model.startswith("timm/") or self.model in ZOO

    @property
    def is_quoted(self) -> bool:
        """Whether the papers quote it, or take its released weights: its own recipe is not here."""
        return self.model.startswith("timm/") or (self.training == "supervised" and self.model in VISUAL_MAMBAS)

    @property
    def family(self) -> str:
        return "vit" if self.model.startswith("timm/vit") else self.model.partition("_")[0]

    @property
    def small(self) -> str:
        """The small recipes that stand in for its own: of its family, or of one that is built alike."""
        if f"supervised_{self.family}_tiny64" in RECIPES:
            return f"{self.family}_tiny64"
        fields = set() if self.model.startswith("timm/") else known_fields(self.model) or set()
        return "mambaout_femto64" if self.family == "mambaout" or "dims" in fields else "vit_tiny64" if fields else ""

    @property
    def size(self) -> str:
        """The first word of its name that is a size."""
        return next((word for word in self.model.split("_") if word in TINY_DIMS), "base")


@dataclass(frozen=True)
class ItemSetting:
    """Everything that decides the command lines of an item."""

    run: Path
    data: Mapping[str, str]  # the folder of each data set
    weights: Mapping[str, str] = field(default_factory=dict)  # files by key or model
    scale: Scale = "full"
    device: str = "auto"

    @property
    def is_tiny(self) -> bool:
        return self.scale == "tiny"

    @property
    def on(self) -> tuple[str, ...]:
        """The machine's part of a command line."""
        return () if self.device == "auto" else ("--device", self.device)

    def place(self, network: Network) -> Path:
        return self.run / network.key

    def file(self, network: Network) -> str | None:
        """The weights that were given for a network."""
        return self.weights.get(network.key) or self.weights.get(network.model)

    def recipe(self, network: Network) -> str | None:
        """The recipe that trains it as published; None where there is none.

        A quoted network that someone trains in its folder all the same, by another recipe, counts as any other.
        """
        method = "dino" if network.training == "dinov2" else network.training
        name = f"{method}_{network.small}" if self.is_tiny else f"{network.training}_{network.model}"
        if network.is_quoted and not self.is_tiny and not (self.place(network) / "config.json").is_file():
            return None
        return name if name in RECIPES else None

    def trains(self, network: Network) -> bool:
        return self.file(network) is None

    def lacks(self, network: Network) -> str | None:
        """Why a network cannot be had here, as a sentence; None where it can."""
        if not network.exists:
            return f"{network.title}: the zoo has no {network.model} yet"
        if self.file(network) is None and self.recipe(network) is None:
            advice = f"give its released weights: --weights {network.model}=FILE"
            if (other := f"supervised_{network.model}") in RECIPES:
                place = self.place(network)
                advice += f"; or train it by another (`mixlab train {other} --data IMAGENET --run {place}`)"
            return f"{network.title}: its own recipe is not here; {advice}"
        return None


def training_step(setting: ItemSetting, network: Network) -> tuple[Step, HoursEstimate | None]:
    """What brings a network into its run: training, or released weights in our form."""
    place, file = setting.place(network), setting.file(network)
    name, weights = f"train {network.key}", place / "weights.safetensors"
    if file is not None:
        arguments: tuple[str, ...] = ("export", network.model, "--weights", file, "--out", str(weights))
        return Step(name, f"{network.key}: released weights", "weights that were given", arguments, weights), None
    recipe = setting.recipe(network)
    assert recipe is not None, network
    method = "dino" if network.training != "supervised" else "supervised"
    changes = _tiny(network) if setting.is_tiny else network.settings
    parts = () if setting.is_tiny else (f"accumulate={PARTS[method]}",)
    step = Step(
        name,
        f"{network.key}: {'DINO' if method == 'dino' else 'training with labels'}",
        f"{network.title} by its recipe",
        (
            "pretrain" if method == "dino" else "train", recipe, "--data", setting.data["imagenet"],
            "--run", str(place), *sets(*changes),
        ),
        weights,
        here=(*sets(*parts), *setting.on),
        trains=place,
    )  # fmt: skip
    config = override(find_recipe(recipe), changes)
    hours = None if setting.is_tiny else estimate_hours(method, network.model, NUM_TRAIN * config.epochs)
    return step, hours


def training_of(setting: ItemSetting, network: Network) -> tuple[str, ...]:
    """How the label of released weights says their training; a run records its own."""
    return () if setting.trains(network) else (f"{network.key}={network.training}",)


def _tiny(network: Network) -> tuple[str, ...]:
    steps = TINY_STEPS if network.training == "supervised" else (*TINY_STEPS, "method.frozen_prototype_epochs=0")
    is_own = network.small == f"{network.family}_tiny64"
    if network.family == "mambaout" or (is_own and "dims" in (known_fields(network.model) or ())):
        return (*steps, *network.tiny)  # stages have widths of their own
    name = () if is_own else (f"model.name={network.model}",)
    if network.small == "mambaout_femto64":
        return (*name, "model.dims=[16,24,32,48]", "model.depths=[1,1,1,1]", *steps, *network.tiny)
    return (*name, f"model.dim={TINY_DIMS[network.size]}", "model.depth=4", *steps, *network.tiny)
