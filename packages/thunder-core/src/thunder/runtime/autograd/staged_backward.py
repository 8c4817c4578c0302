# SPDX-License-Identifier: Apache-2.0
"""Staged backward: gradients are returned to autograd before the backward program has ended.

A program that runs as one node of torch's graph returns all gradients at its end: until then none can be accumulated,
sent to other processes or used by an optimizer, and all are in memory at once. So a large program runs as a chain of
nodes. The first starts the backward program, a generator that yields gradients of some inputs as soon as they are
computed (`execution/memory.py`); each further node resumes it. Between two nodes torch accumulates the gradients.

The inputs of each stage are chosen when the forward program is compiled: gradients of the inputs that it reads last
are computed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thunder.runtime.autocast import no_autocast
from thunder.runtime.torch_private import direct_apply, direct_backward, function_transform_active

__all__ = ["StagedBackward", "StartBackward", "as_node", "view_returned_inputs"]

# Starts a backward pass, from the first node's context and the gradients that arrive. Returns the gradients, or the
# generator that computes them in stages.
StartBackward = Callable[[Any, Sequence[Any]], Any]


def as_node(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any], fallback: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the `apply` of a `torch.autograd.Function` with this forward and backward.

    Under torch.func's transforms and in forward mode it calls `fallback`.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(name, (torch.autograd.Function,), members)
    direct_backward(function, backward)
    return direct_apply(function, fallback)


def view_returned_inputs(inputs: Sequence[Any], found: Any) -> Any:
    """Return a node's results, with those that are inputs replaced by views.

    torch does so itself for tensors that it sees as inputs; here they are passed to the node in a tuple.
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
    """The nodes of a program whose gradients are computed in stages, each a list of indices into `wrt`.

    `inputs` has the index of each of `wrt` among the program's inputs. An empty tensor links each node to the next. Its
    gradient carries the backward generator, so that torch keeps it alive during the pass, and each of several passes
    through one graph has its own.
    """

    def __init__(self, stages: Sequence[Sequence[int]], inputs: Sequence[int], device: torch.device):
        self.stages = stages
        self._inputs = [[inputs[i] for i in stage] for stage in stages]
        self._device = device

    def edges(self, ctx: Any) -> list[Any]:
        """Return the edge for the gradient of each of `wrt`, as in `next_functions`; `ctx` is the first node."""
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
            if isinstance(found, (list, tuple)):  # computed at once
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
            # In a tuple autograd does not see the inputs: this node's edges are to the next node and its own stage.
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
    """Return the next stage's gradients, and clear the generator's list of them, so that torch can free them."""
    found = _resume(steps)
    taken = tuple(found)
    found.clear()
    return taken
