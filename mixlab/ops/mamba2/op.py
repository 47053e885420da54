"""The inside of a Mamba-2 mixer, wherever the tensors are."""

from mixlab.ops.mamba2.reference import mamba2_inner

__all__ = ["mamba2_inner"]
