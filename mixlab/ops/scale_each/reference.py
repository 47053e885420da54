"""Every tensor times its own factor, in place."""

from collections.abc import Sequence

import torch
from torch import Tensor


def scale_each_(tensors: Sequence[Tensor], factors: Tensor) -> None:
    """tensors[i] *= factors[i]; torch has no kernel for factors on the device, so it launches one for each tensor."""
    torch._foreach_mul_(list(tensors), list(factors.unbind()))
