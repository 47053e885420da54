"""The scan on the GPU against the float64 recurrence: lengths, types, extremes, determinism, capture."""

import os

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mixlab.ops.ssd.chunked import ssd_chunked
from mixlab.ops.ssd.op import runs_kernels, ssd
from mixlab.ops.ssd.reference import ssd_recurrence
from mixlab.ops.ssd.tiling import BLOCK, SIZES, TRIANGLE_LENGTHS, without_triangles
from tests.tolerances import TOLERANCES, relative_error

NAMES = ("q", "k", "v", "dt", "A", "skip")
DTYPES = (torch.float32, torch.bfloat16)
EVERYTHING = bool(os.environ.get("MIXLAB_COMPILE_ALL"))


def scan_inputs(
    length: int,
    dtype: torch.dtype,
    *,
    batch: int = 2,
    heads: int = 8,
    groups: int = 2,
    state: int = 64,
    width: int = 64,
    seed: int = 0,
) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    q, k = (normal(batch, length, groups, state).to(dtype) / 2 for _ in range(2))
    dt = F.softplus(normal(batch, length, heads) - 2)
    return [q, k, normal(batch, length, heads, width).to(dtype), dt, -normal(heads).exp(), normal(heads)]


def outputs_and_gradients(scan, inputs: list[Tensor], dy: Tensor, num_reverse: int) -> dict[str, Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = scan(*leaves, num_reverse=num_reverse)
    return dict(zip(("y", *NAMES), (y, *torch.autograd.grad(y, leaves, dy)), strict=True))


def check(inputs: list[Tensor], num_reverse: int, *, oracle=ssd_recurrence, slack: float = 1.0) -> None:
    dtype = inputs[2].dtype
    assert runs_kernels(inputs[0], inputs[2])
    dy = torch.randn(inputs[2].shape, device="cuda").to(dtype)
    results = outputs_and_gradients(ssd, inputs, dy, num_reverse)
    expected = outputs_and_gradients(oracle, [t.double() for t in inputs], dy.double(), num_reverse)
    for name, result in results.items():
        if expected[name].abs().max() == 0:
            assert result.abs().max() == 0, name
        else:
            error = relative_error(result, expected[name])
            assert error < slack * TOLERANCES[dtype], f"{name} is off by {error:.1e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 16, 17, 32, 33, 48, 49, 63, 64, 65, 80, 81, 96, 97, 197, 198, 224, 225])
def test_the_kernels_give_the_recurrence_and_every_gradient(length: int, dtype: torch.dtype, poisoned: None) -> None:
    check(scan_inputs(length, dtype), 4)


def test_a_triangle_of_every_size_agrees_for_any_number_of_heads(poisoned: None) -> None:
    from mixlab.ops.ssd.cuda_triangle import triangles_run

    for blocks in range(TRIANGLE_LENGTHS[0] // BLOCK + 1, TRIANGLE_LENGTHS[-1] // BLOCK + 1):
        assert triangles_run(torch.device("cuda", 0), blocks)
        for length, groups, per_group in ((0, 1, 7), (-3, 3, 2), (-15, 2, 4 * blocks)):
            inputs = scan_inputs(
                blocks * BLOCK + length, torch.bfloat16, batch=3, heads=groups * per_group, groups=groups
            )
            check(inputs, groups // 2 * per_group, slack=2)  # of A there is a number per head: some cancel


@pytest.mark.parametrize("length", [33, 38, 48, 63, 64, 65, 96, 97, 198, 224])
def test_tiles_agree_where_triangles_would_run(length: int, poisoned: None) -> None:
    with without_triangles():
        check(scan_inputs(length, torch.bfloat16), 4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_sequences_agree_with_the_plain_scan_in_float64(dtype: torch.dtype, poisoned: None) -> None:
    check(scan_inputs(4098, dtype, batch=1), 4, oracle=ssd_chunked)


# Every size once in either place, and the widest; all pairs take minutes to compile.
SOME_SIZES = [(16, 128), (128, 16), (32, 64), (64, 32), (128, 128)]
ALL_SIZES = [(state, width) for state in SIZES for width in SIZES]


@pytest.mark.parametrize(("state", "width"), ALL_SIZES if EVERYTHING else SOME_SIZES)
def test_all_sizes_of_state_and_head_agree(state: int, width: int, poisoned: None) -> None:
    for batch in (1, 2, 3):
        for length in (38, 70, 127):
            inputs = scan_inputs(length, torch.bfloat16, batch=batch, state=state, width=width, heads=9, groups=1)
            check(inputs, 0, slack=3)


@pytest.mark.parametrize(("state", "width"), ALL_SIZES if EVERYTHING else [(16, 32), (32, 16)])
def test_all_sizes_of_state_and_head_agree_in_float32(state: int, width: int, poisoned: None) -> None:
    check(scan_inputs(70, torch.float32, state=state, width=width, heads=9, groups=1), 0, slack=3)


def memory_gib() -> float:
    return torch.cuda.get_device_properties(0).total_memory / 2**30


def test_offsets_may_outgrow_32_bits(poisoned: None) -> None:
    """520 heads of 65,536 tokens: more than 2³¹ numbers in v and in the states. Only two heads get a gradient."""
    if memory_gib() < 60:
        pytest.skip("needs 60 GiB")
    length, heads = 65_536, 520
    q, k, v, dt, A, skip = scan_inputs(length, torch.bfloat16, batch=1, heads=heads, groups=1)
    dy = torch.zeros_like(v)
    ends = [0, heads - 1]
    dy[:, :, ends] = torch.randn(1, length, 2, 64, device="cuda").bfloat16()
    results = outputs_and_gradients(ssd, [q, k, v, dt, A, skip], dy, 0)
    two = [q, k, v[:, :, ends], dt[:, :, ends], A[ends], skip[ends]]
    expected = outputs_and_gradients(ssd_chunked, [t.double() for t in two], dy[:, :, ends].double(), 0)
    for name, reference in expected.items():
        result = results[name]
        if name in ("y", "v", "dt"):
            result = result[:, :, ends]
        elif name in ("A", "skip"):
            result = result[ends]
        error = relative_error(result, reference)
        assert error < TOLERANCES[torch.bfloat16], f"{name} is off by {error:.1e}"


def test_decays_of_2_to_the_30_tokens_are_those_of_each_image_alone() -> None:
    from mixlab.ops.ssd.tiling import tiles_of
    from mixlab.ops.ssd.triton_steps import Flows, make_steps, steps_backward

    if memory_gib() < 80:
        pytest.skip("needs 80 GiB")
    batch, length, heads, state = 64, 65_536, 256, 16
    tiles = tiles_of(length, torch.bfloat16)
    dt, A = torch.rand(batch, length, heads, device="cuda"), -torch.rand(heads, device="cuda")
    flows = Flows(
        sent=torch.rand(batch, heads, length, 4, device="cuda"),
        read=torch.rand(2, batch, heads, length, device="cuda"),
        crossing=torch.rand(batch, tiles.count, heads, state, device="cuda"),
    )
    steps = make_steps(dt, A, tiles, num_reverse=0)
    ddt, _ = steps_backward(steps, flows, dt, A, tiles, num_reverse=0)
    last_flows = Flows(flows.sent[-1:].clone(), flows.read[:, -1:].clone(), flows.crossing[-1:].clone())
    alone = make_steps(dt[-1:].clone(), A, tiles, num_reverse=0)
    ddt_alone, _ = steps_backward(alone, last_flows, dt[-1:].clone(), A, tiles, num_reverse=0)
    assert torch.equal(steps[:, -1:], alone)
    assert torch.equal(ddt[-1:], ddt_alone)


@pytest.mark.parametrize("length", [5, 70])
def test_every_number_of_heads_agrees(length: int, poisoned: None) -> None:
    for heads in range(1, 49):
        inputs = scan_inputs(
            length, torch.float32, batch=1 + heads % 3, heads=heads, groups=1, state=16, width=16, seed=heads
        )
        check(inputs, heads if heads % 2 else 0, slack=10)  # the gradient of A is one number per head: some cancel


@pytest.mark.parametrize(("groups", "per_group"), [(2, 9), (3, 7), (3, 11), (5, 3), (2, 13)])
def test_odd_groups_agree(groups: int, per_group: int, poisoned: None) -> None:
    for batch in (1, 2, 3):
        inputs = scan_inputs(
            70, torch.float32, batch=batch, heads=groups * per_group, groups=groups, state=16, width=16
        )
        check(inputs, groups // 2 * per_group)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 260),
    batch=st.integers(1, 3),
    per_group=st.integers(4, 6),
    groups=st.integers(1, 3),
    reverse=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
)
def test_random_shapes_agree(
    length: int, batch: int, per_group: int, groups: int, reverse: int, dtype: torch.dtype
) -> None:
    heads = groups * per_group
    inputs = scan_inputs(length, dtype, batch=batch, heads=heads, groups=groups, state=16, width=16, seed=length)
    check(inputs, min(reverse, groups) * per_group)


@pytest.mark.parametrize("step", [1e-30, 1e-6, 50.0])
@pytest.mark.parametrize("decay", [-1e-4, -64.0])
@pytest.mark.parametrize("length", [70, 198])
def test_extreme_steps_and_decays_stay_finite(length: int, step: float, decay: float, poisoned: None) -> None:
    q, k, v, dt, A, skip = scan_inputs(length, torch.bfloat16)
    inputs = [q, k, v, torch.full_like(dt, step), torch.full_like(A, decay), skip]
    results = outputs_and_gradients(ssd, inputs, torch.randn_like(v), 4)
    expected = outputs_and_gradients(ssd_chunked, [t.double() for t in inputs], torch.zeros_like(v).double(), 4)
    for name, result in results.items():
        assert result.isfinite().all(), name
    assert relative_error(results["y"], expected["y"]) < TOLERANCES[torch.bfloat16]


def test_tiny_steps_keep_their_gradient() -> None:
    q, k, v, dt, A, skip = scan_inputs(100, torch.float32)
    check([q, k, v, dt * 1e-12, A, skip], 4)


def test_a_strong_decay_between_weak_ones_is_exact() -> None:
    for length in (60, 130):
        q, k, v, dt, A, skip = scan_inputs(length, torch.float32)
        dt[:, ::17] = 50.0
        check([q, k, v, dt, A, skip], 4)


def test_strided_inputs_are_read_in_place() -> None:
    q, k, v, dt, A, skip = scan_inputs(70, torch.bfloat16)
    packed = torch.cat([q.flatten(2), k.flatten(2), v.flatten(2)], dim=2)
    parts = packed.split([q[0, 0].numel(), k[0, 0].numel(), v[0, 0].numel()], dim=2)
    views = [part.unflatten(2, t.shape[2:]) for part, t in zip(parts, (q, k, v), strict=True)]
    transposed = v.transpose(2, 3).contiguous().transpose(2, 3)
    expected = ssd(q, k, v, dt, A, skip, num_reverse=4)
    assert torch.equal(ssd(*views, dt.mT.contiguous().mT, A, skip, num_reverse=4), expected)
    assert torch.equal(ssd(q, k, transposed, dt, A, skip, num_reverse=4), expected)


@pytest.mark.parametrize("length", [18, 38, 66, 198])
def test_the_same_input_gives_the_same_bits(length: int) -> None:
    inputs = scan_inputs(length, torch.bfloat16, batch=8, heads=48)
    dy = torch.randn_like(inputs[2])
    first, second = (outputs_and_gradients(ssd, inputs, dy, 24) for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_sizes_without_a_kernel_fall_back_to_plain_torch() -> None:
    inputs = scan_inputs(40, torch.float32, state=24, width=48)
    assert not runs_kernels(inputs[0], inputs[2])
    expected = ssd_recurrence(*[t.double() for t in inputs], num_reverse=4)
    assert relative_error(ssd(*inputs, num_reverse=4), expected) < TOLERANCES[torch.float32]


def test_the_scan_compiles_without_a_graph_break() -> None:
    inputs = scan_inputs(70, torch.bfloat16)
    dy = torch.randn_like(inputs[2])

    def doubled(*tensors: Tensor, num_reverse: int) -> Tensor:
        return 2 * ssd(*tensors, num_reverse=num_reverse)

    compiled = torch.compile(doubled, fullgraph=True, dynamic=False)
    results = outputs_and_gradients(compiled, inputs, dy, 4)
    expected = outputs_and_gradients(doubled, inputs, dy, 4)
    for name, result in results.items():
        assert torch.allclose(result, expected[name], rtol=1e-2, atol=1e-3), name


def test_the_operators_pass_torchs_own_check() -> None:
    from mixlab.ops.ssd import op

    inputs = [t.requires_grad_() for t in scan_inputs(40, torch.float32, state=16, width=16)]
    torch.library.opcheck(op._scan.registered, (*inputs, 4, True), test_utils=("test_schema", "test_faketensor"))


def test_a_second_derivative_is_refused() -> None:
    inputs = [t.requires_grad_() for t in scan_inputs(40, torch.float32, state=16, width=16)]
    (dv,) = torch.autograd.grad(ssd(*inputs, num_reverse=4).sum(), inputs[2], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        (dv.square().sum() + inputs[2].sum()).backward()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_kernels_run_on_the_gpu_of_their_tensors() -> None:
    inputs = scan_inputs(70, torch.bfloat16)
    dy = torch.randn_like(inputs[2])
    expected = outputs_and_gradients(ssd, inputs, dy, 4)
    with torch.cuda.device(0):
        results = outputs_and_gradients(ssd, [t.to("cuda:1") for t in inputs], dy.to("cuda:1"), 4)
    for name, result in results.items():
        assert torch.equal(result.to("cuda:0"), expected[name]), name


def test_a_captured_graph_replays_on_new_input() -> None:
    inputs = scan_inputs(198, torch.bfloat16)
    dy = torch.randn_like(inputs[2])
    outputs_and_gradients(ssd, inputs, dy, 4)  # compiles the kernels
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        outputs_and_gradients(ssd, inputs, dy, 4)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = outputs_and_gradients(ssd, inputs, dy, 4)
    for old, new in zip(inputs, scan_inputs(198, torch.bfloat16, seed=1), strict=True):
        old.copy_(new)
    graph.replay()
    for name, expected in outputs_and_gradients(ssd, inputs, dy, 4).items():
        assert torch.equal(captured[name], expected), name


def test_autocast_leaves_the_types_as_they_come() -> None:
    inputs = scan_inputs(40, torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(ssd(*inputs, num_reverse=4), ssd(*inputs, num_reverse=4).float())
        assert ssd(*inputs, num_reverse=4).dtype == torch.float32
        half = ssd(inputs[0], inputs[1], inputs[2].bfloat16(), *inputs[3:], num_reverse=4)
    assert half.dtype == torch.bfloat16
