"""Shapes on a GPU that is not there: what torch.compile and torch.export look at before anything runs."""

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from mixlab.mixers.mamba2 import Mamba2, Mamba2Config
from mixlab.ops.ssd.op import ssd
from mixlab.ops.view_entropy.op import view_entropy

pytest.importorskip("triton")
LENGTHS = [20, 38, 198, 300]  # in a tile, as triangles, in tiles


def mixer_in_half_precision() -> Mamba2:
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return Mamba2(Mamba2Config(), dim=64, depth=1)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_mixer_has_its_shape_whatever_is_kept(length: int, keep: bool) -> None:
    with FakeTensorMode():
        mixer = mixer_in_half_precision()
        mixer.keep_scan = keep
        assert mixer(torch.empty(2, length, 64, device="cuda", dtype=torch.bfloat16), (1, length)).shape[1] == length


@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_that_the_compiler_leaves_open_stays_so(length: int) -> None:
    shapes = ShapeEnv()
    symbol = shapes.create_symbol(length, source=ConstantSource("L"), dynamic_dim=DimDynamic.DYNAMIC)
    tokens = shapes.create_symintnode(symbol, hint=length)
    with FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True):
        mixer = mixer_in_half_precision()
        out = mixer(torch.empty(2, tokens, 64, device="cuda", dtype=torch.bfloat16), (1, length))
        assert out.shape[1].node.expr == symbol and len(shapes.guards) < 10


@pytest.mark.parametrize("length", LENGTHS)
def test_a_scan_alone_has_its_shape(length: int) -> None:
    with FakeTensorMode():
        q, v = (torch.empty(2, length, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (1, 2))
        dt, A, skip = (torch.empty(*shape, 2, device="cuda") for shape in ((2, length), (), ()))
        assert ssd(q, q, v, dt, A, skip).shape == v.shape


def test_the_loss_of_views_is_a_scalar() -> None:
    with FakeTensorMode():
        student = torch.empty(4, 2, 64, device="cuda", dtype=torch.bfloat16)
        assert view_entropy(student, torch.empty(2, 2, 64, device="cuda"), temperature=0.1).shape == ()
