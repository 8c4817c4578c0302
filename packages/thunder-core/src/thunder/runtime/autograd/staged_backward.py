# SPDX-License-Identifier: Apache-2.0
"""Staged backward: gradients are returned to autograd before the backward program has ended.

A program that runs as one node of torch's graph returns all gradients at its end. Before that, torch cannot accumulate
a gradient, send it to other processes or pass it to an optimizer, and all gradients are in memory together. A large
program therefore runs as a chain of nodes. The first node starts the backward program, which is a generator that yields
the gradients of some inputs as soon as they are computed (`passes/deletion.py`). Each further node resumes this
generator. Between two nodes torch accumulates the gradients.

The inputs of each stage are chosen when the forward program is compiled. Backward first computes the gradients of the
inputs that forward reads last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thunder.core.tracebacks import present
from thunder.runtime.autocast import no_autocast
from thunder.runtime.torch_private import direct_apply, direct_backward, function_transform_active

__all__ = ["StagedBackward", "StartBackward", "as_node", "view_returned_inputs"]

# A function that starts a backward pass. Its arguments are the context of the first node and the gradients that arrive.
# It returns the gradients, or a generator that computes them in stages.
StartBackward = Callable[[Any, Sequence[Any]], Any]


def as_node(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any], fallback: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the `apply` of a new `torch.autograd.Function` with this `forward` and `backward`.

    Under transforms of torch.func and in forward mode, the returned function calls `fallback`.
    """

    def presented(ctx: Any, *grads: Any) -> Any:
        try:
            return backward(ctx, *grads)
        except Exception as error:  # autograd passes it to the user's call of `backward()`
            present(error)
            raise

    members = {"forward": staticmethod(forward), "backward": staticmethod(presented)}
    function: Any = type(name, (torch.autograd.Function,), members)
    direct_backward(function, presented)
    return direct_apply(function, fallback)


def view_returned_inputs(inputs: Sequence[Any], found: Any) -> Any:
    """Replace results of a node that are inputs by views of these inputs.

    torch does this only for inputs that it sees. Here the inputs are passed to the node in a tuple.
    """
    given = {*map(id, inputs)}
    if isinstance(found, torch.Tensor):
        return found.view_as(found) if id(found) in given else found
    if given.isdisjoint(map(id, found)):
        return found
    return tuple([x.view_as(x) if id(x) in given and isinstance(x, torch.Tensor) else x for x in found])


def _next(steps: Iterator[list[Any]]) -> list[Any]:
    try:
        return next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


_resume = no_autocast(_next)


class StagedBackward:
    """The nodes of a program whose gradients are computed in stages. Each stage is a list of indices into `wrt`.

    `inputs` contains, for each item of `wrt`, its index among the program's inputs. An empty tensor, the link, connects
    each node to the next. The gradient of the link carries the backward generator. torch thus keeps the generator alive
    during a backward pass, and several passes through one graph have separate generators.
    """

    def __init__(self, stages: Sequence[Sequence[int]], inputs: Sequence[int], device: torch.device):
        self.stages = stages
        self._inputs = [[inputs[i] for i in stage] for stage in stages]
        self._device = device

    def edges(self, ctx: Any) -> list[Any]:
        """Return the edge for the gradient of each item of `wrt`, as in `next_functions`. `ctx` is the first node."""
        found: dict[int, Any] = {}
        for stage in self.stages:
            edges = ctx.next_functions
            if len(edges) > len(stage):
                (ctx, _), *edges = edges
            found.update(zip(stage, edges))
        return [found[i] for i in sorted(found)]

    def together(self, steps: list[Any] | Iterator[list[Any]]) -> list[Any]:
        """Run a backward program to its end and return all gradients."""
        if isinstance(steps, list):
            return steps
        found = {i: x for stage in self.stages for i, x in zip(stage, _resume(steps))}
        return [found[i] for i in sorted(found)]

    def nodes(
        self, forward: Callable[..., Any], start_backward: StartBackward, fallback: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function that runs a program, `forward(ctx, *inputs)`, as a chain of nodes."""
        own, *further = self._inputs
        relays = [(self._relay(i == len(further)), positions) for i, positions in enumerate(further, start=1)][::-1]

        def run(ctx: Any, inputs: Any, *edges: Any) -> Any:
            return forward(ctx, *inputs)

        def backward(ctx: Any, *grads: Any) -> Any:
            found = start_backward(ctx, grads)
            if isinstance(found, (list, tuple)):  # computed in one step
                found = iter([[found[i] for i in stage] for stage in self.stages])
            if not relays:
                return (None, *_next_stage(found))
            link = self._link()
            link.steps = found  # type: ignore[attr-defined]
            return (None, link, *_next_stage(found))

        first = as_node("ThunderFunction", run, backward, fallback)

        def apply(*inputs: Any) -> Any:
            if function_transform_active():
                return fallback(*inputs)
            link: tuple[Any, ...] = ()
            for relay, positions in relays:
                link = (relay(*link, *[inputs[i] for i in positions]),)
            # autograd does not see inputs in a tuple: this node has edges only to the next node and to its own stage.
            return first(inputs, *link, *[inputs[i] for i in own])

        return apply

    def _link(self) -> torch.Tensor:
        return torch.empty(0, device=self._device, dtype=torch.float32)

    def _relay(self, last: bool) -> Callable[..., Any]:
        """Return the node of a later stage, whose only result is a link."""

        def forward(ctx: Any, *edges: Any) -> torch.Tensor:
            return self._link()

        def backward(ctx: Any, link: Any) -> Any:
            return _next_stage(link.steps) if last else (link, *_next_stage(link.steps))

        return as_node("ThunderStage", forward, backward, forward)


def _next_stage(steps: Iterator[list[Any]]) -> tuple[Any, ...]:
    """Return the gradients of the next stage, and clear the generator's list, so that torch can free the gradients."""
    found = _resume(steps)
    taken = tuple(found)
    found.clear()
    return taken
