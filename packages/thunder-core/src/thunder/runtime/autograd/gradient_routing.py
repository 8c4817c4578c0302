# SPDX-License-Identifier: Apache-2.0
"""Gradient routing: the edges of eager's autograd graph for inputs that only some results of a program depend on.

A single node of torch's graph has edges to all its inputs, and a backward pass follows all of them. Suppose that no
result that depends on an input is differentiated. The gradient of this input is None, but torch still calls its hooks,
and passes zeros to the operations that computed it. The graph of eager mode has no edge to this input.

If such an input has hooks or a `grad_fn`, the program therefore runs as several nodes with eager's edges: one node for
each result, and one node for each group of inputs that the same results depend on. These nodes only route gradients.
The program's own node keeps the saved values, and the nodes of groups read them from it. A pass with
`create_graph=True` goes through the program's own node, where hooks may still receive None.

In most passes, the gradients of all results arrive before the node of any group runs. One backward program then
computes the gradients of all groups. Otherwise each group runs a backward program for the gradients that arrived at it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from thunder.runtime.autograd.staged_backward import as_node
from thunder.runtime.torch_private import backward_pass, executes

__all__ = ["GradientRouting", "observes_gradient"]

# A function that runs a backward program on the saved values of a node: (node, gradients of results, which items of
# `wrt` are wanted, whether saved values may be freed) -> the gradients of `wrt`, with None for unwanted gradients.
Run = Callable[[Any, Sequence[Any], Sequence[bool], bool], Sequence[Any]]


def observes_gradient(x: torch.Tensor) -> bool:
    """Check whether hooks of an input, or the operation that computed it, would observe a gradient of None."""
    return x.grad_fn is not None or bool(x._backward_hooks) or bool(x._post_accumulate_grad_hooks)


class _Call:
    """The state that the nodes of one call share."""

    def __init__(self) -> None:
        self.program: Any = None  # the node that has the saved values
        self.program_edge: Any = None  # keeps that node alive: in torch 2.11 its Python object does not
        self.results: list[weakref.ref[Any] | None] = []  # the nodes of results
        self.groups: list[weakref.ref[Any]] = []
        self.lock = threading.RLock()
        self.start_backward(-1)

    def start_backward(self, task: int) -> None:
        """Reset the state for another backward pass of torch, with the id `task`."""
        self.task = task
        self.arrived: dict[int, torch.Tensor] = {}  # by result
        self.found: dict[int, list[Any]] = {}  # by group


def _runs(node: weakref.ref[Any] | None) -> bool:
    """Check whether the current backward pass executes a node."""
    there = None if node is None else node()
    return there is not None and executes(there)


class GradientRouting:
    """The routing nodes of a program in which some results do not depend on some inputs.

    For each item of `wrt`, `dependencies` contains the results that depend on it, as bits, and `inputs` contains its
    index among the program's inputs. `results` contains the index of each result among the outputs of `forward`.
    """

    def __init__(self, dependencies: Sequence[int], inputs: Sequence[int], results: Sequence[int], run: Run):
        sets = sorted(set(dependencies))
        self._wrt = [[i for i, r in enumerate(dependencies) if r == bits] for bits in sets]
        self._inputs = [[inputs[i] for i in wrt] for wrt in self._wrt]
        self._dependents = [[j for j in range(len(results)) if bits >> j & 1] for bits in sets]
        self._results = results
        self._count = len(dependencies)
        self._run = run
        self._result_node = as_node("ThunderFunction", _result, _result_backward, _result)
        self._group_node = as_node("ThunderInputs", _group, _group_backward(self), _group)
        whole = (1 << len(results)) - 1
        self.partial = [inputs[i] for i, r in enumerate(dependencies) if r != whole]  # inputs that may need routing

    def link(self, program: Any, made: Any, found: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Connect the program's results `found` to its inputs by routing nodes, and return the connected results.

        `program` is the node that has the saved values, and `made` contains its outputs.
        """
        call = _Call()
        call.program = program
        outputs = made if isinstance(made, tuple) else (made,)
        call.program_edge = get_gradient_edge(
            next(x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad)
        )
        values = [found[i] for i in self._results]
        links: list[list[Any]] = [[] for _ in values]
        for k, dependents in enumerate(self._dependents):
            made = self._group_node((call, k, [values[j] for j in dependents]), *[inputs[i] for i in self._inputs[k]])
            for j, x in zip(dependents, made):
                links[j].append(x)
            call.groups.append(weakref.ref(made[0].grad_fn))
        out = list(found)
        for j, i in enumerate(self._results):
            if links[j]:
                out[i] = self._result_node((call, j, values[j]), *links[j])
            call.results.append(weakref.ref(out[i].grad_fn) if links[j] else None)
        return tuple(out)

    def gradients(self, call: _Call, k: int, own: dict[int, torch.Tensor]) -> list[Any]:
        """Return the gradients of the inputs of group `k`. `own` maps results to gradients that arrived at it."""
        together = not torch.is_grad_enabled() and call.task == backward_pass()
        if together and k in call.found:
            return call.found.pop(k)
        together = together and all(j in call.arrived for j, node in enumerate(call.results) if _runs(node))
        arrived = call.arrived if together else own
        groups = [k, *[i for i, node in enumerate(call.groups) if together and i != k and _runs(node)]]
        wanted = [False] * self._count
        for i in groups:
            for at in self._wrt[i]:
                wanted[at] = True
        found = self._run(call.program, [arrived.get(j) for j in range(len(self._results))], wanted, together)
        if together:
            call.arrived = {}
            call.found = {i: [found[at] for at in self._wrt[i]] for i in groups[1:]}
        return [found[at] for at in self._wrt[k]]

    def given(self, k: int, gradients: Sequence[Any]) -> dict[int, torch.Tensor]:
        """Map the results of a group to the gradients that have arrived for them."""
        return {j: g for j, g in zip(self._dependents[k], gradients) if g is not None}


# -- nodes of results -------------------------------------------------------------------------------------------------
def _result(ctx: Any, given: tuple[_Call, int, torch.Tensor], *links: torch.Tensor) -> torch.Tensor:
    ctx.call, ctx.which, value = given
    ctx.count = len(links)
    ctx.materialize_grads = False
    return value


def _result_backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    call = ctx.call
    if gradient is not None and not torch.is_grad_enabled():
        with call.lock:
            if call.task != backward_pass():
                call.start_backward(backward_pass())
            call.arrived[ctx.which] = gradient
    return None, *[gradient] * ctx.count


# -- nodes of groups of inputs ----------------------------------------------------------------------------------------
def _group(ctx: Any, given: tuple[_Call, int, list[torch.Tensor]], *inputs: torch.Tensor) -> tuple[Any, ...]:
    ctx.call, ctx.which, values = given
    ctx.count = len(inputs)
    ctx.materialize_grads = False
    return tuple([x.detach() for x in values])  # so that torch knows shape and dtype of the gradients


def _group_backward(routing: GradientRouting) -> Callable[..., Any]:
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        own = routing.given(ctx.which, gradients)
        if not own:
            return (None,) * (1 + ctx.count)
        with ctx.call.lock:
            return None, *routing.gradients(ctx.call, ctx.which, own)

    return backward
