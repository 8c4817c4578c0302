# SPDX-License-Identifier: Apache-2.0
"""Inputs that only some of a program's results hang on, where somebody looks at their gradients.

A node of torch's graph has edges to all its inputs, and torch goes along all of them. Where nobody differentiates the
results that an input hangs on, its gradient is None, and its hooks are called all the same; operations that it was made
by, which expect a tensor, get zeros. In eager there is no way there. So where such an input has hooks, or was made of
other tensors, a program runs as nodes with the edges that eager has: one for each result, and one for each group of
inputs that hang on the same results. They only find the way. What is saved stays with the program's own node, from
which the groups read it; that node is passed where a gradient is differentiated, and there hooks may still see None.

In most passes all results' gradients are there before any group's turn comes. Then one backward program gives those of
all groups; else each group has its own run, with what arrived for it.
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

__all__ = ["GradientRouting", "looked_at"]

# Runs a backward program with what a node has saved: (node, gradients of results, which of `wrt` are wanted, whether
# saved values may go) -> the gradients of all of `wrt`, None for others.
Run = Callable[[Any, Sequence[Any], Sequence[bool], bool], Sequence[Any]]


def looked_at(x: torch.Tensor) -> bool:
    """Check whether somebody sees that an input's gradient is None, or makes something of it."""
    return x.grad_fn is not None or bool(x._backward_hooks) or bool(x._post_accumulate_grad_hooks)


class _Call:
    """What the nodes of one call have in common."""

    def __init__(self) -> None:
        self.program: Any = None  # the node that holds what is saved
        self.keeps: Any = None  # that node, which its Python object does not do in torch 2.11
        self.results: list[weakref.ref[Any] | None] = []  # the nodes of results
        self.groups: list[weakref.ref[Any]] = []
        self.lock = threading.RLock()
        self.begin(-1)

    def begin(self, task: int) -> None:
        """A backward pass of torch's begins."""
        self.task = task
        self.arrived: dict[int, torch.Tensor] = {}  # by result
        self.found: dict[int, list[Any]] = {}  # by group


def _runs(node: weakref.ref[Any] | None) -> bool:
    """Check whether the pass reaches a node."""
    there = None if node is None else node()
    return there is not None and executes(there)


class GradientRouting:
    """The nodes for programs of which not all results hang on all inputs.

    `reach` says for each of `wrt`, as bits, which results hang on it; `inputs` which input of the program it is,
    `results` where those results are among what `forward` hands out.
    """

    def __init__(self, reach: Sequence[int], inputs: Sequence[int], results: Sequence[int], run: Run):
        sets = sorted(set(reach))
        self._wrt = [[i for i, r in enumerate(reach) if r == bits] for bits in sets]
        self._inputs = [[inputs[i] for i in wrt] for wrt in self._wrt]
        self._hanging = [[j for j in range(len(results)) if bits >> j & 1] for bits in sets]
        self._results = results
        self._count = len(reach)
        self._run = run
        self._result_node = as_node("ThunderFunction", _result, _result_backward, _result)
        self._group_node = as_node("ThunderInputs", _group, _group_backward(self), _group)
        whole = (1 << len(results)) - 1
        self.partial = [inputs[i] for i, r in enumerate(reach) if r != whole]  # which inputs need looking after

    def link(self, program: Any, made: Any, found: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what a program found, with ways back to its inputs; `program` is the node that has saved, and has
        `made`.
        """
        call = _Call()
        call.program = program
        outputs = made if isinstance(made, tuple) else (made,)
        call.keeps = get_gradient_edge(next(x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad))
        values = [found[i] for i in self._results]
        links: list[list[Any]] = [[] for _ in values]
        for k, hanging in enumerate(self._hanging):
            made = self._group_node((call, k, [values[j] for j in hanging]), *[inputs[i] for i in self._inputs[k]])
            for j, x in zip(hanging, made):
                links[j].append(x)
            call.groups.append(weakref.ref(made[0].grad_fn))
        out = list(found)
        for j, i in enumerate(self._results):
            if links[j]:
                out[i] = self._result_node((call, j, values[j]), *links[j])
            call.results.append(weakref.ref(out[i].grad_fn) if links[j] else None)
        return tuple(out)

    def gradients(self, call: _Call, k: int, own: dict[int, torch.Tensor]) -> list[Any]:
        """Return those of a group of inputs, for the gradients of results that have arrived at it."""
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
        """Return which results the gradients that arrive at a group are of."""
        return {j: g for j, g in zip(self._hanging[k], gradients) if g is not None}


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
                call.begin(backward_pass())
            call.arrived[ctx.which] = gradient
    return None, *[gradient] * ctx.count


# -- nodes of groups of inputs ----------------------------------------------------------------------------------------
def _group(ctx: Any, given: tuple[_Call, int, list[torch.Tensor]], *inputs: torch.Tensor) -> tuple[Any, ...]:
    ctx.call, ctx.which, values = given
    ctx.count = len(inputs)
    ctx.materialize_grads = False
    return tuple([x.detach() for x in values])  # for torch to know what gradients look like


def _group_backward(reaches: GradientRouting) -> Callable[..., Any]:
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        own = reaches.given(ctx.which, gradients)
        if not own:
            return (None,) * (1 + ctx.count)
        with ctx.call.lock:
            return None, *reaches.gradients(ctx.call, ctx.which, own)

    return backward
