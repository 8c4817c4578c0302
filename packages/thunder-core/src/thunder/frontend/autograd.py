# SPDX-License-Identifier: Apache-2.0
"""Between a differentiated program and torch's autograd: `loss.backward()` on the result of a jitted function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core.errors import UnsupportedError
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import proxies_in
from thunder.core.trace import Trace
from thunder.executors.torchex.base import no_autocast

__all__ = ["Differentiable"]


class _OnlyOnce(torch.autograd.Function):
    """A gradient that says so when it is differentiated itself, instead of passing for a constant."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedError(
            "the gradient of a jitted function cannot be differentiated again through torch's autograd "
            "(create_graph=True): use thunder.core.transforms.grad twice, or call the function without thunder.jit"
        )


class Differentiable:
    """A forward and a backward program as one function that torch's autograd can differentiate.

    The forward returns `(output, saved)`. What goes through autograd is a flat tuple: each tensor of the output once,
    without those that are inputs themselves, which the caller gets back as they are.
    """

    def __init__(self, *, forward: Trace, backward: Trace, outputs: Sequence[TensorProxy], wrt: Sequence[TensorProxy]):
        output = forward.output[0]
        inputs = {p.name: i for i, p in enumerate(forward.args)}
        names = dict.fromkeys(p.name for p in proxies_in(output) if p.name not in inputs)
        position = {name: i for i, name in enumerate(names)}
        taking = {p.name for p in outputs}
        order = {p.name: i for i, p in enumerate(wrt)}
        self.function = _function_of(
            # torch runs both with grad mode off.
            no_autocast(forward.python_callable(decorators=False)),
            no_autocast(backward.python_callable(decorators=False)),
            flatten=_flattener(output, position),
            not_taking=[i for name, i in position.items() if name not in taking],
            cotangents=[position.get(p.name) for p in outputs],
            gradient_of=[order.get(name) for name in inputs],
        )
        self.build = _builder(output, position, inputs)

    def __call__(self, *inputs: Any) -> Any:
        return self.build(self.function.apply(*inputs), inputs)


def _expression(output: Any, write: Callable[[Proxy], str], constants: list[Any]) -> str:
    """Python that puts an output together, where `write` says how each of its values is read."""
    if isinstance(output, Proxy):
        return write(output)
    if isinstance(output, (tuple, list)):
        items = "".join(f"{_expression(x, write, constants)}, " for x in output)
        return f"({items})" if isinstance(output, tuple) else f"[{items}]"
    if isinstance(output, dict):
        items = ", ".join(f"{key!r}: {_expression(x, write, constants)}" for key, x in output.items())
        return f"{{{items}}}"
    constants.append(output)
    return f"c[{len(constants) - 1}]"


def _builder(output: Any, position: dict[str, int], inputs: dict[str, int]) -> Callable[[Any, Any], Any]:
    """The function of the flat tensors and the inputs that gives the user's output."""
    constants: list[Any] = []

    def write(p: Proxy) -> str:
        i = position.get(p.name)
        return f"x[{inputs[p.name]}]" if i is None else f"t[{i}]"

    return eval(f"lambda t, x: {_expression(output, write, constants)}", {"c": constants})  # type: ignore[no-any-return]


def _flattener(output: Any, position: dict[str, int]) -> Callable[[Any], tuple[Any, ...]]:
    """The function of the forward's output that gives its tensors in the order of `position`."""
    paths: dict[str, str] = {}

    def walk(x: Any, path: str) -> None:
        if isinstance(x, Proxy):
            paths.setdefault(x.name, path)
        elif isinstance(x, (tuple, list)):
            for i, item in enumerate(x):
                walk(item, f"{path}[{i}]")
        elif isinstance(x, dict):
            for key, item in x.items():
                walk(item, f"{path}[{key!r}]")

    walk(output, "o")
    return eval(f"lambda o: ({''.join(f'{paths[name]}, ' for name in position)})")  # type: ignore[no-any-return]


def _function_of(
    forward_program: Callable[..., Any],
    backward_program: Callable[..., Any],
    *,
    flatten: Callable[[Any], tuple[Any, ...]],
    not_taking: list[int],
    cotangents: list[int | None],
    gradient_of: list[int | None],
) -> Any:
    class ThunderFunction(torch.autograd.Function):
        """One differentiated program."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output, saved = forward_program(*inputs)
            flat = flatten(output)
            ctx.save_for_backward(*saved)
            if not_taking:
                ctx.mark_non_differentiable(*[flat[i] for i in not_taking])
            return flat

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            again = torch.is_grad_enabled()  # create_graph=True
            with torch.no_grad():
                found = backward_program(*ctx.saved_tensors, *[grads[i] for i in cotangents if i is not None])
            if again:
                found = [None if g is None else _OnlyOnce.apply(g, torch.ones((), requires_grad=True)) for g in found]
            return tuple([None if i is None else found[i] for i in gradient_of])

    return ThunderFunction
