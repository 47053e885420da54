"""Weights of ours and of the released models: reading, recognising, loading, saving."""

from mixlab.backbones.weights.loading import LoadReport, build_architecture, load_weights
from mixlab.backbones.weights.reading import WeightsError
from mixlab.backbones.weights.saving import model_from_file, read_architecture, save_weights

__all__ = [
    "LoadReport",
    "WeightsError",
    "build_architecture",
    "load_weights",
    "model_from_file",
    "read_architecture",
    "save_weights",
]
