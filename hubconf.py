"""`torch.hub.load("mixlab/mixlab", NAME)`: every backbone of the zoo, and the trained networks that come with it.

torch.hub runs this file and the repository that it is in: load it from where you trust it.
"""

from typing import Any

import mixlab
from mixlab.backbones.zoo import SHIPPED

dependencies = ["torch", "torchvision", "timm", "safetensors", "huggingface_hub", "numpy", "PIL", "tyro", "rich"]


def backbone(name: str, **fields: Any) -> mixlab.Backbone:
    """Any backbone by its name, `timm/NAME` and `shipped/NAME` included, as `mixlab.create_model` gives it."""
    return mixlab.create_model(name, **fields).eval()


def _entry(name: str) -> Any:
    def entry(pretrained: bool = False, **fields: Any) -> mixlab.Backbone:
        if pretrained:
            raise mixlab.InputError(f"{name} has no weights of its own; give weights=FILE, or load shipped_vit")
        return backbone(name, **fields)

    entry.__doc__ = f"The backbone {name}, untrained, or with weights=FILE; any field of its config as an argument."
    return entry


def _shipped(name: str) -> Any:
    def entry(pretrained: bool = True) -> mixlab.Backbone:
        if not pretrained:
            raise mixlab.InputError(f"{name} comes with its weights; for an untrained one, create_model(...).twin(0)")
        return backbone(name)

    entry.__doc__ = f"{name}: a small network with the weights that come with mixlab."
    return entry


globals().update({name: _entry(name) for name in mixlab.list_models()})
globals().update({name.replace("/", "_"): _shipped(name) for name in SHIPPED})
