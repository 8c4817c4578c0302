# SPDX-License-Identifier: Apache-2.0
"""Between a differentiated program and torch's autograd: `loss.backward()` on the result of a jitted function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import map_proxies, proxies_in
from thunder.core.trace import Trace

__all__ = ["Differentiable"]


class Differentiable:
    """A forward and a backward program as one function that torch's autograd can differentiate."""

    def __init__(
        self, *, forward: Trace, backward: Trace, outputs: Sequence[TensorProxy], saved: Sequence[Proxy],
        wrt: Sequence[TensorProxy],
    ):  # fmt: skip
        self.forward = forward.python_callable()
        self.backward = backward.python_callable()
        output = forward.output[0]
        inputs = [p.name for p in forward.args]
        self.inputs = {name: i for i, name in enumerate(inputs)}
        # The tensors that go through autograd: each output once, without those that are inputs themselves.
        names = dict.fromkeys(p.name for p in proxies_in(output) if p.name not in self.inputs)
        self.position = {name: i for i, name in enumerate(names)}
        self.output = output
        self.taking = {p.name for p in outputs}
        self.cotangents = [p for p in outputs]
        self.saved_names = [p.name for p in saved]
        wanted = {p.name for p in wrt}
        self.wanted = [name in wanted for name in inputs]
        self.wrt_order = {p.name: i for i, p in enumerate(wrt)}
        self.gradient_of = [self.wrt_order.get(name) for name in inputs]
        self.function = _function_of(self)

    def __call__(self, *inputs: Any) -> Any:
        flat = self.function.apply(*inputs)
        position, given = self.position, self.inputs

        def value(p: Proxy) -> Any:
            i = position.get(p.name)
            return inputs[given[p.name]] if i is None else flat[i]

        return map_proxies(self.output, value)

    def flatten(self, output: Any) -> tuple[Any, ...]:
        """The real tensors of an output, in the order of `position`."""
        found: dict[str, Any] = {}
        _match(self.output, output, found)
        return tuple(found[name] for name in self.position)


def _match(pattern: Any, value: Any, found: dict[str, Any]) -> None:
    if isinstance(pattern, Proxy):
        found[pattern.name] = value
    elif isinstance(pattern, (tuple, list)):
        for p, v in zip(pattern, value):
            _match(p, v, found)
    elif isinstance(pattern, dict):
        for key, p in pattern.items():
            _match(p, value[key], found)


def _function_of(program: Differentiable) -> Any:
    taken = [name in program.taking for name in program.position]
    gradient_of = program.gradient_of
    order = [program.position.get(p.name) for p in program.cotangents]

    class ThunderFunction(torch.autograd.Function):
        """One differentiated program."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output, saved = program.forward(*inputs)
            flat = program.flatten(output)
            ctx.save_for_backward(*saved)
            rest = [t for t, takes in zip(flat, taken) if not takes and isinstance(t, torch.Tensor)]
            if rest:
                ctx.mark_non_differentiable(*rest)
            ctx.set_materialize_grads(True)
            return flat

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            cotangents = [grads[i] for i in order if i is not None]
            found = program.backward(*ctx.saved_tensors, *cotangents)
            return tuple(None if i is None else found[i] for i in gradient_of)

    return ThunderFunction
