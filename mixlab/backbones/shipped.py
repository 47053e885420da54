"""Small networks with learnt weights that come with the package; mixlab/shipped/README.md says how they were made."""

from importlib.resources import as_file, files

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import model_from_file
from mixlab.errors import InputError

PREFIX = "shipped/"
NAMES = ("shipped/vit", "shipped/mambareg", "shipped/gatedconv")
TRAINING = "dino"


def load_shipped(name: str) -> Backbone:
    if name not in NAMES:
        raise InputError(f"no network {name!r} comes with mixlab; choose {', '.join(NAMES)}")
    with as_file(files("mixlab") / "shipped" / f"{name.removeprefix(PREFIX)}.safetensors") as path:
        return model_from_file(path)
