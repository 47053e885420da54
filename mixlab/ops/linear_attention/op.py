"""Linear attention, wherever the tensors are."""

from mixlab.ops.linear_attention.reference import linear_attention, linear_attention_matrix

__all__ = ["linear_attention", "linear_attention_matrix"]
