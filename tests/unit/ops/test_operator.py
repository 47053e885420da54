"""The helper behind all operators, on one small enough to check by hand: y = scale · x ∘ w + bias, in plain torch."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from mixlab.ops.operator import Operator


def forward(x: Tensor, w: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    with torch.no_grad():  # autograd sees nothing of it, as it sees nothing of a kernel
        y = scale * x * w
        return (y if bias is None else y + bias), x.abs()


def backward(dy: Tensor, x: Tensor, w: Tensor, _: Tensor, has_bias: bool, scale: float) -> list[Tensor]:
    with torch.no_grad():
        both = torch.stack([dy * w * scale, dy * x * scale])  # slices of one tensor
        return [both[0], both[1].sum(0), *[dy.sum(0)] * has_bias]


SCALED = Operator(
    "test_scaled",
    forward=forward,
    fake=lambda x, w, bias, scale: (x.new_empty(x.shape), x.new_empty(x.shape)),
    backward=backward,
    fake_backward=lambda dy, x, w, _, has_bias, scale: [t.new_empty(t.shape) for t in (x, w, *[w] * has_bias)],
    keep=lambda x, w, bias, scale, y, size: ((x, w, size), (bias is not None, scale)),
)


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (3,), (3,))
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def registered(*given: Tensor | float | None) -> Tensor:
    return SCALED.registered(*given)[0]


@pytest.mark.parametrize("run", [SCALED, registered], ids=["eager", "registered"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_are_those_of_finite_differences(run, has_bias: bool) -> None:
    x, w, bias = inputs()
    if has_bias:
        assert torch.autograd.gradcheck(lambda *given: run(*given, 3.0), (x, w, bias))
    else:
        assert torch.autograd.gradcheck(lambda *given: run(*given, None, 3.0), (x, w))


def test_the_operator_passes_torchs_own_check_and_compiles_without_a_graph_break() -> None:
    x, w, bias = inputs()
    torch.library.opcheck(SCALED.registered, (x, w, bias, 3.0))
    torch.library.opcheck(SCALED.registered, (x, w, None, 3.0))
    compiled = torch.compile(lambda *given: 2 * SCALED(*given, 3.0), fullgraph=True, backend="aot_eager")
    y = compiled(x, w, bias)
    torch.testing.assert_close(y, 2 * (3.0 * x * w + bias))
    dw, dbias = torch.autograd.grad(y.sum(), (w, bias))
    torch.testing.assert_close(dw, 6.0 * x.sum(0))
    torch.testing.assert_close(dbias, torch.full_like(bias, 8.0))


@pytest.mark.parametrize("run", [SCALED, registered], ids=["eager", "registered"])
def test_a_second_derivative_is_refused_and_never_silently_partial(run) -> None:
    x, w, bias = inputs()
    y = run(x, w, bias, 3.0)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)  # 3 w: its gradient by w is 3, not nothing
    torch.testing.assert_close(dx.detach(), (3.0 * w).expand_as(x).detach())
    with pytest.raises(NotImplementedError, match="test_scaled has no second derivative"):
        (dx.sum() + w.square().sum()).backward()


def test_kernels_run_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Tensor] = []
    inside: list[bool] = []

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        entered.append(tensor)
        yield
        entered.clear()

    def run(x: Tensor) -> Tensor:
        inside.append(bool(entered))
        return x.clone()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)

    def forward(x: Tensor) -> Tensor:
        return run(x)

    def backward(dy: Tensor) -> list[Tensor]:
        return [run(dy)]

    copied = Operator(
        "test_copied",
        forward=forward,
        fake=lambda x: x.new_empty(x.shape),
        backward=backward,
        fake_backward=lambda dy: [dy.new_empty(dy.shape)],
        keep=lambda x, y: ((), ()),
    )
    for call in (copied, copied.registered):
        call(torch.randn(2, requires_grad=True)).sum().backward()
    assert inside == [True] * 4
