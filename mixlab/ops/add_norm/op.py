"""Add and normalise, wherever the tensors are."""

from mixlab.ops.add_norm.reference import add_rms_norm

__all__ = ["add_rms_norm"]
