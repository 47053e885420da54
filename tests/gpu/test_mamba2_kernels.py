"""The fused inside of a Mamba-2 mixer, and the add and norm around it, on the GPU against float64."""

from functools import partial

import pytest
import torch
from torch import Tensor

import mixlab
from mixlab.backbones import block
from mixlab.ops.add_norm import op as add_norm_op
from mixlab.ops.add_norm import reference as add_norm_reference
from mixlab.ops.mamba2 import op as mamba2_op
from mixlab.ops.mamba2 import reference as mamba2_reference
from mixlab.ops.ssd import op as ssd_op
from tests.tolerances import TOLERANCES, relative_error

pytest.importorskip("triton")

from mixlab.ops.short_conv.cuda_short_conv import marches_run
from mixlab.ops.ssd.cuda_steps import steps_run
from mixlab.ops.ssd.cuda_triangle import convolved_triangles_run

NAMES = ("projected", "conv_weight", "conv_bias", "dt_bias", "A_log", "skip", "norm_weight", "out_weight")


def mixer_inputs(
    length: int,
    dtype: torch.dtype,
    *,
    directions: int = 2,
    batch: int | None = None,  # so many that the gradients are sums of many terms: few may cancel by chance
    heads: int = 12,  # enough for the norms over heads to be more than chance
    state: int = 32,
    width: int = 16,
) -> list[Tensor]:
    batch = max(2, 64 // length) if batch is None else batch
    generator = torch.Generator("cuda").manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    inner = heads * width
    channels = inner + 2 * state
    return [
        normal(batch, length, inner + channels + heads).to(dtype),
        normal(directions, channels, 4) / 2,
        normal(directions, channels) / 10,
        normal(directions, heads) - 3,
        normal(directions, heads),
        normal(directions, heads),
        1 + normal(directions, inner) / 10,
        normal(48, inner),
    ]


def outputs_and_gradients(inner, inputs: list[Tensor], dout: Tensor, *, width: int) -> dict[str, Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = inner(*leaves, head_dim=width, eps=1e-5)
    return dict(zip(("out", *NAMES), (out, *torch.autograd.grad(out, leaves, dout)), strict=True))


def check(inputs: list[Tensor], *, width: int = 16) -> None:
    dtype = inputs[0].dtype
    assert mamba2_op.runs_kernels(inputs[0], inputs[1], inputs[6], head_dim=width)
    generator = torch.Generator("cuda").manual_seed(1)
    dout = torch.randn(*inputs[0].shape[:2], inputs[7].shape[0], generator=generator, device="cuda").to(dtype)
    results = outputs_and_gradients(mamba2_op.mamba2, inputs, dout, width=width)
    exact = [t.double() for t in inputs]
    expected = outputs_and_gradients(mamba2_reference.mamba2, exact, dout.double(), width=width)
    heads, state = inputs[3].shape[1], (inputs[1].shape[1] - inputs[6].shape[1]) // 2
    parts = [heads * width, heads * width, state, state, heads]
    for name, result in results.items():
        pairs = [(result, expected[name])]
        if name == "projected":  # its parts come from different kernels
            pairs = list(zip(result.split(parts, -1), expected[name].split(parts, -1), strict=True))
        for part, (one, other) in enumerate(pairs):
            error = relative_error(one, other)
            assert error < TOLERANCES[dtype], f"{name}, part {part}, is off by {error:.1e}"


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [2, 18, 38, 65, 90, 198])
def test_the_kernels_give_the_reference_and_every_gradient(
    length: int, dtype: torch.dtype, directions: int, poisoned: None
) -> None:
    check(mixer_inputs(length, dtype, directions=directions))


@pytest.mark.parametrize("length", [38, 66, 198])
def test_the_released_base_size_agrees(length: int, poisoned: None) -> None:
    check(mixer_inputs(length, torch.bfloat16, heads=24, state=64, width=64), width=64)


def test_every_program_of_a_triangle_is_trusted() -> None:
    gpu = torch.device("cuda", 0)
    assert all(convolved_triangles_run(gpu, blocks) for blocks in range(3, 14))
    assert marches_run(gpu, 2, 1536, 64, 6448) and marches_run(gpu, 1, 384, 64, 1808)
    assert all(steps_run(gpu, length, directions, 24) for length in (33, 38, 198, 208) for directions in (1, 2))


@pytest.mark.parametrize("heads", [3, 7, 9, 11, 13, 16, 31, 48])  # norms over fewer are chance
@pytest.mark.parametrize(("length", "directions"), [(38, 1), (38, 2), (70, 2)])
def test_triangles_of_any_number_of_heads_agree(length: int, directions: int, heads: int, poisoned: None) -> None:
    inputs = mixer_inputs(length, torch.bfloat16, directions=directions, batch=16, heads=heads, state=64, width=64)
    check(inputs, width=64)


@pytest.mark.parametrize("width", [16, 64])  # in tiles, as a triangle
@pytest.mark.parametrize("length", [38, 66, 198])
def test_a_kept_scan_changes_no_bit(length: int, width: int, poisoned: None) -> None:
    inputs = mixer_inputs(length, torch.bfloat16, state=64, width=width)
    dout = torch.randn(*inputs[0].shape[:2], 48, device="cuda").bfloat16()
    expected = outputs_and_gradients(mamba2_op.mamba2, inputs, dout, width=width)
    results = outputs_and_gradients(partial(mamba2_op.mamba2, keep_scan=True), inputs, dout, width=width)
    for name, result in results.items():
        assert torch.equal(result, expected[name]), name


def test_a_network_that_keeps_its_scans_has_the_same_gradients_and_takes_more_memory() -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("dinovim_tiny", dim=128, depth=4, patch=8, image=64).cuda()
    images, found, peaks = torch.randn(8, 3, 64, 64, device="cuda"), [], []
    for enable in (False, True):
        model.set_keep_scans(enable)
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(images).square().sum()
        loss.backward()
        peaks.append(torch.cuda.max_memory_allocated())
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(again, kept) for again, kept in zip(*found, strict=True))
    assert peaks[1] > peaks[0]


def test_parameters_in_bfloat16_get_gradients_in_bfloat16() -> None:
    inputs = [t.bfloat16() for t in mixer_inputs(38, torch.bfloat16)]
    check(inputs)
    dout = torch.randn(2, 38, 48, device="cuda").bfloat16()
    results = outputs_and_gradients(mamba2_op.mamba2, inputs, dout, width=16)
    assert {t.dtype for t in results.values()} == {torch.bfloat16}


def test_float32_stays_float32_under_autocast() -> None:
    inputs = mixer_inputs(38, torch.float32)
    dout = torch.randn(2, 38, 48, device="cuda")
    expected = outputs_and_gradients(mamba2_op.mamba2, inputs, dout, width=16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        results = outputs_and_gradients(mamba2_op.mamba2, inputs, dout, width=16)
    for name, result in results.items():
        assert torch.equal(result, expected[name]), name


@pytest.mark.parametrize("dim", [288, 352, 416])  # 9, 11 and 13 heads in each direction
def test_widths_with_odd_numbers_of_heads_train_as_on_the_cpu(dim: int) -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("dinovim_tiny", dim=dim, depth=1, patch=16, image=64)
    images = torch.randn(1, 3, 64, 64)
    model(images).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.cuda()(images.cuda()).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name in expected and expected[name].norm() > 1e-6:
            error = relative_error(parameter.grad.cpu(), expected[name].double())
            assert error < 2e-2, (
                f"{name} is off by {error:.1e}"
            )  # cuBLAS and the CPU differ too; wrong ones by 0.4 and more


def test_the_same_input_gives_the_same_bits() -> None:
    inputs = mixer_inputs(198, torch.bfloat16, batch=16, heads=24, state=64, width=64)
    dout = torch.randn(16, 198, 48, device="cuda").bfloat16()
    first, second = (outputs_and_gradients(mamba2_op.mamba2, inputs, dout, width=64) for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [48, 128, 768])
@pytest.mark.parametrize("centred", [False, True], ids=["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("scaled", [False, True], ids=["all images", "one of three"])
def test_add_and_norm_give_the_reference_and_every_gradient(
    scaled: bool, centred: bool, width: int, dtype: torch.dtype, poisoned: None
) -> None:
    branch = torch.randn(3, 5, width, device="cuda").to(dtype)
    stream, weight = torch.randn(3, 5, width, device="cuda"), torch.randn(width, device="cuda")
    bias = [torch.randn(width, device="cuda")] * centred
    leaves = [t.requires_grad_() for t in (branch, stream, weight, *bias)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    no_bias = [None] * (not centred)
    factors = torch.tensor([0.0, 1.25, 0.0], device="cuda") if scaled else None
    given = leaves[0] if factors is None else add_norm_op.Scaled(leaves[0], factors)
    results = add_norm_op.add_norm(given, *leaves[1:], *no_bias, eps=1e-5)
    expected = add_norm_reference.add_norm(*exact, *no_bias, factors, eps=1e-5)
    doutputs = [torch.randn_like(t) for t in results]
    gradients = torch.autograd.grad(results, leaves, doutputs)
    expected_gradients = torch.autograd.grad(expected, exact, [t.double() for t in doutputs])
    for result, reference in zip((*results, *gradients), (*expected, *expected_gradients), strict=True):
        assert relative_error(result, reference) < TOLERANCES[dtype]


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return mixlab.create_model("dinovim_tiny", dim=64, depth=2, patch=8, image=64).cuda().train()


def losses(num_steps: int) -> list[float]:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator("cuda").manual_seed(1)
    images = torch.randn(8, 3, 64, 64, generator=generator, device="cuda")
    targets = torch.randn(8, 64, generator=generator, device="cuda")
    history = []
    for _ in range(num_steps):
        loss = (model(images) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


def test_twenty_training_steps_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels = losses(20)
    for op in (ssd_op, mamba2_op, add_norm_op):
        monkeypatch.setattr(op, "runs_kernels", lambda *tensors, **options: False)
    plain = losses(20)
    assert plain[-1] < 0.9 * plain[0]
    assert with_kernels == pytest.approx(plain, rel=1e-3)


def test_a_model_compiles_without_a_graph_break_and_agrees() -> None:
    model = small_model()
    images = torch.randn(2, 3, 64, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        eager = model(images)
        compiled = torch.compile(model, fullgraph=True, dynamic=False)(images)
    assert relative_error(compiled, eager.double()) < TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("name", ["dinovim_tiny", "vit_tiny"])
def test_the_kernel_that_adds_a_branch_drops_it_as_stochastic_depth_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = mixlab.create_model(name, dim=128, depth=3, patch=8, image=64, drop_path=0.5).cuda().train()
    images, found = torch.randn(8, 3, 64, 64, device="cuda"), []
    cotangent = torch.randn(8, model.dim, device="cuda")  # the squares of what a norm gives sum up to the same
    for apart in (False, True):
        if apart:
            monkeypatch.setattr(block, "adds_in_kernel", lambda branch: False)
        torch.manual_seed(1)
        model.zero_grad()
        out = model(images)
        (out * cotangent).sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for multiplied, plain in zip(*found, strict=True):
        assert relative_error(multiplied, plain.double()) < 10 * TOLERANCES[torch.float32]
