"""What a finished run leaves for others: the backbone, a classifier if there is one, and a summary."""

from __future__ import annotations

from pathlib import Path

from mixlab.backbones.weights import build_architecture, save_weights
from mixlab.backbones.weights.saving import save_tensors
from mixlab.training.distributed import whole
from mixlab.training.recipe import Recipe


def export_weights(recipe: Recipe, folder: Path, *, is_first: bool, metadata: dict[str, str]) -> None:
    """RUN/weights.safetensors, and RUN/classifier.safetensors or as the recipe's head is called.

    Every rank takes part, the first one writes.
    """
    backbone = recipe.exported()
    tensors = {name: whole(value) for name, value in backbone.state_dict().items()}
    head = {name: whole(value).detach().cpu().contiguous() for name, value in recipe.exported_head().items()}
    if not is_first:
        return
    fresh = build_architecture(backbone.architecture())  # the trained one may be sharded, compiled or wrapped
    fresh.to(next(iter(tensors.values())).dtype)
    fresh.load_state_dict(tensors)
    save_weights(fresh, folder / "weights.safetensors", extra_metadata=metadata)
    if head:
        save_tensors(head, folder / f"{recipe.head_name}.safetensors", metadata=metadata)
