"""What must not run in half precision."""

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or float64 where it is: residual streams and boxes need more digits than bfloat16 has."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
