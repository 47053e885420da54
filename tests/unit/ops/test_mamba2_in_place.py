"""A Mamba-2 mixer without gradients on a CPU: the same numbers as with them, and only where it may be used."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from mixlab.ops.add_norm.op import add_norm
from mixlab.ops.mamba2 import op, reference
from mixlab.ops.mamba2.in_place import takes_mixer
from mixlab.ops.ssd import in_place, pool
from mixlab.ops.ssd.in_place import takes
from mixlab.ops.ssd.op import ssd
from mixlab.ops.ssd.pool import Pool
from mixlab.ops.ssd.reference import ssd_recurrence


def inputs(batch: int, length: int, directions: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    heads, width, state = 3, 8, 5
    inner, channels = heads * width, heads * width + 2 * state
    shapes = [(channels, 4), (channels,), (heads,), (heads,), (heads,), (inner,)]
    x, in_weight = (
        torch.randn(*shape, 7, generator=generator) for shape in ((batch, length), (inner + channels + heads,))
    )
    stacked = [torch.randn(directions, *shape, generator=generator) / 2 for shape in shapes]
    return [t.to(dtype) for t in (x, in_weight / 7**0.5, *stacked, torch.randn(7, inner, generator=generator))]


def expected_of(x: Tensor, in_weight: Tensor, *parameters: Tensor) -> Tensor:
    recorded = (t.requires_grad_() for t in (F.linear(x, in_weight), *parameters))
    return reference.mamba2(*recorded, head_dim=8, eps=1e-5).detach()


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 65, 130, 198, 578])
@pytest.mark.parametrize("block", [1, 10**6], ids=["chunk by chunk", "some images"])
def test_it_gives_the_reference(directions: int, length: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "BLOCK", block)
    monkeypatch.setattr(op, "mamba2_in_place", seen := Seen(op.mamba2_in_place))
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        given = inputs(5, length, directions, dtype)
        expected = expected_of(*given)
        with torch.no_grad():
            found = op.mamba2_mixer(*given, head_dim=8, eps=1e-5)
        assert ((found - expected).norm() / expected.norm()).item() < tolerance
    assert seen.calls == 2


@pytest.mark.parametrize("length", [5, 40])
def test_pieces_may_be_shorter_than_the_convolution(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "BLOCK", 1)
    monkeypatch.setattr(in_place, "chunk_length", lambda length: 2)
    given = inputs(2, length, 2, torch.float64)
    expected = expected_of(*given)
    with torch.no_grad():
        torch.testing.assert_close(op.mamba2_mixer(*given, head_dim=8, eps=1e-5), expected, rtol=0, atol=1e-12)


class LargestTensor(TorchDispatchMode):
    """How many bytes the largest storage of any result has."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in (t for t in tree_leaves(result) if isinstance(t, Tensor)):
            self.num_bytes = max(self.num_bytes, tensor.untyped_storage().nbytes())
        return result


@torch.no_grad()
def test_no_tensor_of_a_long_input_is_wider_than_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "BLOCK", 1)
    monkeypatch.setattr(pool, "MOST", 0)
    monkeypatch.setattr(Pool, "kept", threading.local())
    x, *parameters = inputs(1, 2000, 2, torch.float32)
    with LargestTensor() as largest:
        op.mamba2_mixer(x, *parameters, head_dim=8, eps=1e-5)
    assert largest.num_bytes == 2000 * 7 * 4  # L D: the input projection of all tokens is nine times as wide


@pytest.mark.parametrize("most", [0, 10**5, 10**9])
def test_buffers_are_kept_from_call_to_call(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "kept", threading.local())
    monkeypatch.setattr(pool, "MOST", most)
    x, *parameters = inputs(3, 130, 2, torch.float32)
    outputs = []
    for guard in (torch.inference_mode(), torch.no_grad(), torch.no_grad()):
        with guard, LargestTensor() as largest:
            outputs.append(op.mamba2_mixer(x, *parameters, head_dim=8, eps=1e-5).clone())
    torch.testing.assert_close(outputs[1:], outputs[:1] * 2, rtol=0, atol=0)
    memory: Tensor = Pool.kept.memory
    assert len(memory) <= most
    assert (largest.num_bytes == max(len(memory), x.nbytes)) == (most == 10**9)  # views of what is kept, and the output


def test_two_pools_at_a_time_share_no_memory() -> None:
    like = torch.zeros(1)
    with Pool() as one, Pool() as other:
        (mine,), (its,) = one.buffers(like, [(100,)]), other.buffers(like, [(100,)])
        mine.zero_()
        its.fill_(1)
        assert not mine.any()


@torch.no_grad()
def test_threads_do_not_disturb_each_other() -> None:
    given = [inputs(2, length, 2, torch.float32) for length in (66, 198)]
    expected = [op.mamba2_mixer(*each, head_dim=8, eps=1e-5) for each in given]

    def mixed(place: int) -> list[Tensor]:
        with torch.no_grad():
            return [op.mamba2_mixer(*given[place], head_dim=8, eps=1e-5) for _ in range(20)]

    with ThreadPoolExecutor(2) as threads:
        for found, alone in zip(threads.map(mixed, range(2)), expected, strict=True):
            torch.testing.assert_close(torch.stack(found), alone.expand(20, -1, -1, -1), rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_all_products_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms do the same arithmetic, and a FLOP counter knows the operations of both."""
    counts = []
    for widest in (0.0, 600.0):
        monkeypatch.setattr(in_place, "WIDEST", widest)
        with FlopCounterMode(display=False) as counter:
            op.mamba2_mixer(*inputs(2, 198, 2, torch.float64), head_dim=8, eps=1e-5)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@torch.no_grad()
def test_the_norm_between_mixers_writes_its_input_once_more() -> None:
    branch, stream, weight = torch.randn(2, 9, 8), torch.randn(2, 9, 8), torch.rand(8)
    with Storages() as seen:
        total, normed = add_norm(branch, stream, weight, None, eps=1e-5)
    assert [num_bytes for num_bytes in seen.sizes.values() if num_bytes >= stream.nbytes] == [stream.nbytes] * 2
    expected = F.rms_norm(total.double(), (8,), weight.double(), 1e-5)
    torch.testing.assert_close(normed.double(), expected, rtol=1e-6, atol=1e-6)


class Storages(TorchDispatchMode):
    """Bytes of every storage that a result has."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.results: list[Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in (t for t in tree_leaves(result) if isinstance(t, Tensor)):
            self.results.append(tensor)
            self.sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return result


class Seen:
    def __init__(self, function: object) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: object, **options: object) -> object:
        self.calls += 1
        return self.function(*args, **options)  # type: ignore[operator]


def test_it_is_for_plain_tensors_of_one_precision_that_nobody_records() -> None:
    plain, half = torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)
    assert takes_mixer(plain, plain) and takes_mixer(plain.double()) and takes(plain, half)
    assert not takes_mixer(plain, half) and not takes_mixer(half) and not takes(plain.to("meta"))
    assert not takes(plain, torch.zeros(2, requires_grad=True))
    with torch.no_grad():
        assert takes(plain, torch.zeros(2, requires_grad=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not takes_mixer(plain) and takes(plain)
    seen: list[bool] = []
    torch.func.vmap(lambda row: (seen.append(takes(row)), row)[1])(torch.zeros(2, 3))
    assert seen == [False]


@torch.no_grad()
def test_halves_and_autocast_do_not_round_inside_the_scan() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 100, 2, 8, generator=generator).bfloat16() for _ in range(3))
    steps = [torch.rand(2, 100, 2, generator=generator), -torch.ones(2), torch.ones(2)]
    expected = ssd_recurrence(*(t.double() for t in (q, k, v, *steps)), num_reverse=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ssd(q, k, v, *steps, num_reverse=1)
        same = ssd(q.float(), k.float(), v.float(), *steps, num_reverse=1)
    assert found.dtype == torch.bfloat16 and ((found - expected).norm() / expected.norm()).item() < 3e-3
    assert ((same - expected).norm() / expected.norm()).item() < 1e-6


@torch.no_grad()
def test_maps_over_images_and_inference_mode_give_the_same() -> None:
    x, *rest = inputs(3, 70, 2, torch.float64)

    def mixed(images: Tensor) -> Tensor:
        return op.mamba2_mixer(images, *rest, head_dim=8, eps=1e-5)

    expected = mixed(x)
    each = torch.func.vmap(lambda image: mixed(image[None])[0])(x)
    torch.testing.assert_close(each, expected)
    with torch.inference_mode():
        torch.testing.assert_close(mixed(x), expected, rtol=0, atol=0)
