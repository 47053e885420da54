"""Attention heard from timm's models is the map that they run."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import mixlab

# rotary positions and registers; rotary with sub-norms; relative position bias; bias from a small network
HEARD = ["vit_small_patch16_dinov3", "eva02_tiny_patch14_224", "beit_base_patch16_224", "vit_srelpos_small_patch16_224"]


class Outputs(TorchFunctionMode):
    """What torch's attention gave, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[torch.Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.given.append(out)
        return out


@pytest.mark.parametrize("name", HEARD)
@torch.no_grad()
def test_matrix_times_values_is_what_each_layer_computed(name: str) -> None:
    torch.manual_seed(0)
    model = mixlab.create_model(f"timm/{name}").eval()
    for parameter in model.parameters():  # biases start at zero: make them matter
        parameter.add_(0.05 * torch.randn_like(parameter))
    images = torch.randn(1, 3, 224, 224)
    with Outputs() as outputs:
        model(images)
    found = list(model.mixings(images))
    assert [layer for layer, _ in found] == list(range(model.num_layers))
    for (_, mixing), given in zip(found, outputs.given, strict=True):
        torch.testing.assert_close(mixing.matrix() @ mixing.values, given, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mixing.matrix(slice(1, 2)), mixing.matrix()[:, 1:2])


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "pvt_v2_b0", "resnet18"])
def test_models_that_do_not_attend_over_all_tokens_say_so(name: str) -> None:
    model = mixlab.create_model(f"timm/{name}").eval()
    with pytest.raises(ValueError, match="no softmax attention over all tokens"):
        next(iter(model.mixings(torch.randn(1, 3, 224, 224))))


def test_class_token_and_registers_of_models_beside_plain_vits_are_told_apart() -> None:
    model = mixlab.create_model("timm/vit_small_patch16_dinov3").eval()
    ((_, features),) = model.features(torch.randn(1, 3, 64, 96))
    assert features.summary.shape == (1, 384)
    assert features.registers.shape == (1, 4, 384)
    assert features.grid == (4, 6)


@pytest.mark.parametrize(("name", "size", "dim"), [("inception_next_atto", 64, 320), ("hiera_tiny_224", 224, 768)])
def test_models_with_odd_heads_or_norms_give_pooled_features(name: str, size: int, dim: int) -> None:
    model = mixlab.create_model(f"timm/{name}").eval()
    assert model(torch.randn(1, 3, size, size)).shape == (1, dim)
    ((_, features),) = model.features(torch.randn(1, 3, size, size))
    assert features.summary.shape == (1, dim)
