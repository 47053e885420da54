"""Linear layers as GPUs like them: the same numbers as torch's, sooner. On a CPU they are torch's own."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

ROW = 8  # numbers: matrix kernels for 16 bits want rows of 16 bytes, and are three times slower without


class Linear(nn.Linear):
    """torch's, with `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class PatchConv(nn.Conv2d):
    """torch's; with strides as large as its kernel, `project_patches`."""

    def forward(self, images: Tensor) -> Tensor:
        if self.kernel_size != self.stride:
            return super().forward(images)
        return project_patches(images, self.weight, self.bias)


@wrap  # one step to torch.fx, which knows no devices while it traces
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear. In training on a GPU the gradient of the bias is a product with ones, not a sum over tokens."""
    if bias is None or not x.is_cuda or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    if not torch.is_autocast_enabled("cuda"):
        return SummedByProduct.apply(x, weight, bias)
    dtype = torch.get_autocast_dtype("cuda")
    return SummedByProduct.apply(x.to(dtype), weight.to(dtype), bias.to(dtype))


class SummedByProduct(torch.autograd.Function):
    """Tokens (..., D), weight (O, D) and bias (O,) -> (..., O), all of one dtype."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        x_wanted, weight_wanted, bias_wanted = ctx.needs_input_grad
        rows = dy.reshape(-1, dy.shape[-1])
        return (
            dy @ weight if x_wanted else None,
            rows.mT @ x.reshape(-1, x.shape[-1]) if weight_wanted else None,
            rows.mT @ rows.new_ones(len(rows)) if bias_wanted else None,
        )


def linear_in_rows(x: Tensor, weight: Tensor) -> Tensor:
    """F.linear without a bias. On a GPU zeros fill the features up to a multiple of eight; readers skip them."""
    missing = -len(weight) % ROW if x.is_cuda else 0
    return F.linear(x, F.pad(weight, (0, 0, 0, missing)) if missing else weight)


@wrap
def project_patches(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Images (B, C, H, W) and the weight (D, C, p, p) of a convolution with strides of p -> maps (B, D, H / p, W / p).

    On a GPU this is one matrix product: cuDNN takes float32 units for so few channels.
    """
    patch = weight.shape[-1]
    if not images.is_cuda or torch.compiler.is_compiling():
        return F.conv2d(images, weight, bias, stride=patch)
    tokens = linear(patches_as_rows(images, patch), weight.flatten(1), bias)
    return tokens.permute(0, 3, 1, 2)


def patches_as_rows(images: Tensor, patch: int) -> Tensor:
    """Images (B, C, H, W) -> the numbers of each patch (B, h, w, C p p); a rim that is too small is left out."""
    height, width = (side // patch for side in images.shape[2:])
    images = images[..., : height * patch, : width * patch]
    return images.unflatten(3, (width, patch)).unflatten(2, (height, patch)).permute(0, 2, 4, 1, 3, 5).flatten(3)
