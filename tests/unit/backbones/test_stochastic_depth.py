"""Stochastic depth: who multiplies a branch by what was drawn."""

import pytest
import torch

import mixlab
from mixlab.backbones import block
from mixlab.ops.add_norm.op import whole


@pytest.mark.parametrize("name", ["dinovim_tiny", "vit_tiny", "plainmamba_l1"])  # the last with a convolution between
@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_whoever_adds_a_branch_multiplies_it_as_stochastic_depth_itself_does(
    name: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that is the kernel of the next norm."""
    torch.manual_seed(0)
    model = mixlab.create_model(name, depth=3, image=32, drop_path=0.5).train()
    model.set_grad_checkpointing(again)
    images, found = torch.randn(4, 3, 32, 32), []
    for in_kernel in (False, True):
        monkeypatch.setattr(block, "adds_in_kernel", lambda branch, taken=in_kernel: taken)
        torch.manual_seed(1)
        outputs = [model(images)]
        outputs += [features.patches for _, features in model.features(images, layers=3, source="branch")]
        model.zero_grad()
        sum(output.square().mean() for output in outputs).backward()
        found.append([*outputs, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 10
    for plain, multiplied in zip(*found, strict=True):
        torch.testing.assert_close(multiplied, plain)


@pytest.mark.parametrize("name", ["dinovim_tiny", "localvim_tiny", "plainmamba_l1"])
def test_a_traced_network_multiplies_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced on a CPU may run on a GPU."""
    torch.manual_seed(0)
    model = mixlab.create_model(name, depth=3, image=32, drop_path=0.5).train()
    traced = torch.fx.symbolic_trace(model)
    monkeypatch.setattr(block, "adds_in_kernel", lambda branch: True)
    images, outputs = torch.randn(4, 3, 32, 32), []
    for network in (model, traced):
        torch.manual_seed(1)
        outputs.append(network(images))
    assert torch.equal(*outputs)


def test_all_of_a_branch_may_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "adds_in_kernel", lambda branch: True)
    assert not whole(block.dropped(torch.ones(3, 2, 4), 1.0)).any()
