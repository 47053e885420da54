"""Weights of ours and of the released models: reading, recognising, loading, saving."""

from mixlab.backbones.weights.loading import LoadReport, build_architecture, load_weights, parts_of
from mixlab.backbones.weights.reading import WeightsError
from mixlab.backbones.weights.saving import (
    check_can_be_rebuilt,
    model_from_file,
    read_architecture,
    save_weights,
    shrink_file,
)

__all__ = [
    "LoadReport",
    "WeightsError",
    "build_architecture",
    "check_can_be_rebuilt",
    "load_weights",
    "model_from_file",
    "parts_of",
    "read_architecture",
    "save_weights",
    "shrink_file",
]
