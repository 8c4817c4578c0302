# SPDX-License-Identifier: Apache-2.0
"""Gradients that arrive before the backward program has ended.

A program that runs as one node of torch's graph gives all gradients when it is done: until then none can be added to
what has accumulated, sent to other processes or used by an optimizer, and all are in memory at once. So a large program
runs as a chain of nodes. The first begins its backward program, which is a generator and yields the gradients of some
inputs as soon as they are there (`execution/memory.py`); each further node goes on with it. Between two nodes torch
does with the gradients what it does with any.

Which inputs belong to a stage is decided when the forward program is compiled: gradients of what it reads last are
there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thunder.runtime.autocast import no_autocast
from thunder.runtime.torch_private import differentiated_otherwise, direct_apply, direct_backward

__all__ = ["Begin", "StagedBackward", "as_node", "none_of"]

# Begins a backward pass, from the first node's context and the gradients that arrive: what has been computed, or the
# program that computes it in stages.
Begin = Callable[[Any, Sequence[Any]], Any]


def as_node(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what applies a function of torch's autograd that has this forward and backward.

    Where torch asks for more than a backward, it is `otherwise`.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(name, (torch.autograd.Function,), members)
    direct_backward(function, backward)
    return direct_apply(function, otherwise)


def none_of(inputs: Sequence[Any], found: Any) -> Any:
    """Return a node's results, with views of those that are inputs: torch makes them itself of the inputs that it is
    shown.
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
    """The nodes of a program whose gradients come in stages, each a list of positions in `wrt`.

    `inputs` says which input of the program each of `wrt` is. What links a node to the next is an empty tensor. Its
    gradient brings the backward program along, so that torch keeps that for as long as the pass goes on, and each of
    several passes through one graph has its own.
    """

    def __init__(self, stages: Sequence[Sequence[int]], inputs: Sequence[int], device: torch.device):
        self.stages = stages
        self._inputs = [[inputs[i] for i in stage] for stage in stages]
        self._device = device

    def edges(self, ctx: Any) -> list[Any]:
        """Return where the gradient of each of `wrt` goes, as `next_functions` says it; `ctx` is of the first node."""
        found: dict[int, Any] = {}
        for stage in self.stages:
            edges = ctx.next_functions
            if len(edges) > len(stage):
                (ctx, _), *edges = edges
            found.update(zip(stage, edges))
        return [found[i] for i in sorted(found)]

    def together(self, steps: list[Any] | Iterator[list[Any]]) -> list[Any]:
        """Return all that a backward program gives, as if it gave it at once."""
        if isinstance(steps, list):
            return steps
        found = {i: x for stage in self.stages for i, x in zip(stage, _resume(steps))}
        return [found[i] for i in sorted(found)]

    def nodes(self, forward: Callable[..., Any], begin: Begin, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a program, whose function is `forward(ctx, *inputs)`, as a chain of nodes."""
        own, *further = self._inputs
        relays = [(self._relay(i == len(further)), positions) for i, positions in enumerate(further, start=1)][::-1]

        def run(ctx: Any, inputs: Any, *edges: Any) -> Any:
            return forward(ctx, *inputs)

        def backward(ctx: Any, *grads: Any) -> Any:
            found = begin(ctx, grads)
            if isinstance(found, (list, tuple)):  # computed at once
                found = iter([[found[i] for i in stage] for stage in self.stages])
            if not relays:
                return (None, *_taken(found))
            link = self._link()
            link.steps = found  # type: ignore[attr-defined]
            return (None, link, *_taken(found))

        first = as_node("ThunderFunction", run, backward, otherwise)

        def apply(*inputs: Any) -> Any:
            if differentiated_otherwise():
                return otherwise(*inputs)
            link: tuple[Any, ...] = ()
            for relay, positions in relays:
                link = (relay(*link, *[inputs[i] for i in positions]),)
            # The inputs go by in a tuple: this node's edges are to the next node and to the inputs of its own stage.
            return first(inputs, *link, *[inputs[i] for i in own])

        return apply

    def _link(self) -> torch.Tensor:
        return torch.empty(0, device=self._device, dtype=torch.float32)

    def _relay(self, last: bool) -> Callable[..., Any]:
        """Return the node of a later stage, whose result is nothing but a link."""

        def forward(ctx: Any, *edges: Any) -> torch.Tensor:
            return self._link()

        def backward(ctx: Any, link: Any) -> Any:
            return _taken(link.steps) if last else (link, *_taken(link.steps))

        return as_node("ThunderStage", forward, backward, forward)


def _taken(steps: Iterator[list[Any]]) -> tuple[Any, ...]:
    """Return the next stage's gradients; the program is left with none of them."""
    found = _resume(steps)
    taken = tuple(found)
    found.clear()
    return taken
