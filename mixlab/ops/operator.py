"""A differentiable operator from a forward and a backward function on kernels, the same for all operations.

torch.compile needs an operator registered with torch, whose dispatch takes 0.1 ms per call: more than some of the
kernels. So compiled calls take that one, and eager calls a plain `autograd.Function` around the same functions.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef

Kept = tuple[Sequence[Tensor], Sequence[Any]]
_kept_whole = False


@contextmanager
def operators_kept_whole() -> Iterator[None]:
    """Inside, scans that are traced stay one operator each, wherever they would run: for who translates them."""
    global _kept_whole
    _kept_whole = True
    try:
        yield
    finally:
        _kept_whole = False


def kept_whole() -> bool:
    return _kept_whole


class Operator:
    """`forward` and `backward`, registered as `mixlab::NAME` and `mixlab::NAME_backward`.

    forward(*inputs) gives a tensor, or a tuple: `num_results` results, then what only the backward pass reads.
    keep(*inputs, *outputs) gives what the backward pass needs: the tensors, and everything else.
    backward(*dresults, *tensors, *others) gives the gradients of all tensors among the inputs but those at the places
    `constant`, in their shapes and dtypes; where there are several results, the gradient of one may be None.
    fake and fake_backward take the same arguments and give empty tensors of the same shapes, strides and dtypes.
    """

    def __init__(
        self,
        name: str,
        *,
        forward: Callable[..., Tensor | tuple[Tensor, ...]],
        fake: Callable[..., Tensor | tuple[Tensor, ...]],
        backward: Callable[..., list[Tensor]],
        fake_backward: Callable[..., list[Tensor]],
        keep: Callable[..., Kept],
        num_results: int = 1,
        constant: Collection[int] = (),
    ) -> None:
        self.num_results = num_results
        forward, backward = on_their_device(forward), on_their_device(backward)
        self.registered = _register(name, forward, fake)
        registered_backward = _register(f"{name}_backward", _owning(backward), fake_backward)

        def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            tensors, ctx.others = keep(*inputs, *outputs)
            ctx.save_for_backward(*tensors)
            ctx.mark_non_differentiable(*outputs[num_results:])
            ctx.set_materialize_grads(False)
            ctx.has_gradient = [isinstance(given, Tensor) and i not in constant for i, given in enumerate(inputs)]

        def differentiate(ctx: Any, run: Callable[..., list[Tensor]], dresults: tuple[Any, ...]) -> tuple[Any, ...]:
            dresults = dresults[:num_results]
            if all(dresult is None for dresult in dresults):
                return (None,) * len(ctx.has_gradient)
            gradients = iter(run(*dresults, *ctx.saved_tensors, *ctx.others))
            return tuple(next(gradients) if has_gradient else None for has_gradient in ctx.has_gradient)

        def refuse(ctx: Any, *_: Any) -> None:
            raise NotImplementedError(
                f"mixlab::{name} has no second derivative on its kernels; "
                "take it on the CPU or in float64, where plain torch runs"
            )

        registered_backward.register_autograd(refuse)
        self.registered.register_autograd(
            lambda ctx, *dresults: differentiate(ctx, registered_backward, dresults), setup_context=save
        )

        class Eager(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                output = forward(*inputs)
                save(ctx, inputs, output)
                return output

            @staticmethod
            def backward(ctx: Any, *dresults: Any) -> Any:
                # Where the gradient itself is to be differentiated, the registered operator refuses. A plain call would
                # return what autograd saw of it, which is not the launches.
                return differentiate(ctx, registered_backward if torch.is_grad_enabled() else backward, dresults)

        self.eager = Eager

    def __call__(self, *inputs: Any) -> Any:
        """The result, or a tuple of the results if there are several. The first input is a tensor."""
        compiled = torch.compiler.is_compiling() or type(inputs[0]) is not Tensor
        output = self.registered(*inputs) if compiled else self.eager.apply(*inputs)
        if isinstance(output, Tensor):
            return output
        return output[0] if self.num_results == 1 else output[: self.num_results]


def on_their_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, its kernels launched on the GPU of its tensors, whichever is the current one."""

    @wraps(function)
    def guarded(*args: Any) -> Any:
        with torch.cuda.device_of(next(arg for arg in args if isinstance(arg, Tensor))):
            return function(*args)

    return guarded


def _register(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> CustomOpDef:
    operator = torch.library.custom_op(f"mixlab::{name}", function, mutates_args=())
    operator.register_fake(fake)
    return operator


def _owning(backward: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Copies gradients that are slices of one tensor, which torch forbids a registered operator to return."""

    @wraps(backward)
    def owned(*args: Any) -> list[Tensor]:
        return [
            gradient.clone(memory_format=torch.contiguous_format)
            if gradient.untyped_storage().nbytes() > gradient.nbytes
            else gradient
            for gradient in backward(*args)
        ]

    return owned
