# SPDX-License-Identifier: Apache-2.0
"""A compiled program as a node of torch's autograd graph: `loss.backward()` on the result of a jitted function.

The forward program runs as one node or several nodes (`staged_backward.py`, `gradient_routing.py`). When gradients
arrive, the node looks up the backward program in `Programs`. Saved values that gradients flow through are hidden
outputs of the node, so that autograd connects them to the node if a backward program is itself differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from thunder.runtime.autograd.gradient_routing import GradientRouting, observes_gradient
from thunder.runtime.autograd.layout import NodeLayout
from thunder.runtime.autograd.saved_tensor_retention import SavedTensorRetention
from thunder.runtime.autograd.saved_tensors import load, save
from thunder.runtime.autograd.staged_backward import StagedBackward, StartBackward, as_node, view_returned_inputs
from thunder.runtime.torch_private import (
    clear_saved_tensors,
    executes,
    function_transform_active,
    in_data_parallel,
    is_batch_of_gradients,
)

__all__ = ["Key", "Programs", "autograd_function"]

Key = tuple[tuple[bool, ...], tuple[bool, ...]]  # which gradients arrive, and which are wanted


class Programs(Protocol):
    """The layout of a forward program, and its backward programs for each set of arriving and wanted gradients."""

    layout: NodeLayout
    stages: StagedBackward | None
    retention: SavedTensorRetention | None
    ran: Any  # the key of the backward program that ran last, or the result of `recorded_backward`

    def key(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Key:
        """Return the key of the backward program for the gradients that arrive and are wanted."""

    def backward_program(self, key: Key) -> Callable[..., Any]:
        """Return the function `(saved, *gradients) -> gradients` of a key. With stages, the function is a generator."""

    def native_backward(self, key: Key) -> Callable[..., Any]:
        """Return the backward program of a key by torch's own operations."""

    def recorded_backward(self, key: Key) -> Any:
        """Return the backward program as a differentiable function of `(*saved, *gradients)`, or an exception."""

    def natively(self, *inputs: Any) -> Any:
        """Compute the node's outputs with torch's own operations."""


class _NotDifferentiable(torch.autograd.Function):
    """The identity on gradients. Its backward raises the error that explains why they cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, error: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.error = error
        return tuple(g.view_as(g) for g in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ctx.error


def _raise_if_differentiated(found: Sequence[Any], error: Exception, sources: Sequence[Any]) -> list[Any]:
    """Return gradients that raise `error` if they are differentiated with respect to `sources`."""
    grads = [g for g in found if g is not None]
    wrapped = iter(
        _NotDifferentiable.apply(error, len(grads), *grads, *[x for x in sources if isinstance(x, torch.Tensor)])
    )
    return [None if g is None else next(wrapped) for g in found]


def _is_executed(node: Any) -> bool | None:
    """Check whether the current backward pass executes a node. Return None for a leaf passed to `autograd.grad`."""
    try:
        return node is not None and executes(node)
    except RuntimeError:
        return None


class _Executed:
    """Finds the edges for which the current backward pass wants a gradient.

    torch raises an exception for a leaf that is an input of `torch.autograd.grad`, which takes longer than launching a
    kernel. If torch raised for several edges, the next pass checks only one of these edges, in rotation, and all other
    edges. If the checked answers have not changed, the unchecked answers are reused. This may compute a gradient that
    is not wanted, but it never misses a wanted gradient.
    """

    def __init__(self) -> None:
        self._last: tuple[list[bool | None], list[int]] | None = None  # the answers, and the edges where torch raised
        self._turn = 0

    def __call__(self, edges: Sequence[Any]) -> list[bool]:
        if self._last is not None:
            answers, leaves = self._last
            self._turn += 1
            again = leaves[self._turn % len(leaves)]
            if all(
                a == _is_executed(node)
                for i, (a, (node, _)) in enumerate(zip(answers, edges))
                if a is not None or i == again
            ):
                return [a is not False for a in answers]
        answers = []
        for node, _ in edges:
            answers.append(_is_executed(node))
            if answers == [True] and type(node).__name__ == "AccumulateGrad":
                return [True] * len(edges)  # a call of `backward()`, which wants the gradients of all leaves
        leaves = [i for i, a in enumerate(answers) if a is None]
        self._last = (answers, leaves) if len(leaves) > 1 else None
        return [a is not False for a in answers]


def autograd_function(d: Programs, program: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that runs the forward program as one node or several nodes of torch's graph."""
    layout, forward, start_backward = d.layout, _forward(d, program), _start_backward(d)
    if d.stages is not None:
        apply = d.stages.nodes(forward, start_backward, d.natively)
    else:
        apply = as_node("ThunderFunction", forward, _backward(layout, start_backward), d.natively)
    return _routed(d, program, apply) if layout.result_dependencies else apply


def _backward(layout: NodeLayout, start_backward: StartBackward) -> Callable[..., Any]:
    items = "".join("None, " if i is None else f"found[{i}], " for i in layout.gradient_of)
    whole = layout.gradient_of == list(range(len(layout.gradient_of)))
    for_inputs: Callable[[Any], Any] = tuple if whole else eval(f"lambda found: ({items})")

    def backward(ctx: Any, *grads: Any) -> Any:
        return for_inputs(start_backward(ctx, grads))

    return backward


def _forward(d: Programs, program: Callable[..., Any]) -> Callable[..., Any]:
    flatten = None if d.layout.plain else d.layout.flattener()
    keep, staged = _keeper(d.layout), d.stages is not None

    def forward(ctx: Any, *inputs: Any) -> Any:
        output, saved = program(*inputs)
        flat = output if flatten is None else flatten(output, saved)
        return keep(ctx, view_returned_inputs(inputs, flat) if staged else flat, saved)

    return forward


def _keeper(layout: NodeLayout) -> Callable[..., Any]:
    """Return the function that saves values on a node and returns the node's outputs."""
    tensors, numbers, non_differentiable = layout.tensors, layout.numbers, layout.non_differentiable
    saved_outputs, single = layout.saved_outputs, layout.single

    def keep(ctx: Any, flat: Any, saved: Any) -> Any:
        if saved_outputs:
            saved = list(saved)
            for i, at in saved_outputs:
                saved[i] = flat if single else flat[at]
        if numbers:
            ctx.numbers = [saved[i] for i in numbers]
            saved = [saved[i] for i in tensors]
        if tensors:
            save(ctx, saved)
        ctx.materialize_grads = False
        if non_differentiable:
            ctx.mark_non_differentiable(*[flat if single else flat[i] for i in non_differentiable])
        return flat

    return keep


def _saved_values(layout: NodeLayout, node: Any) -> list[Any]:
    # A second read of `saved_tensors` raises even if nothing is saved, but a node without saved tensors may run again.
    return _with_numbers(layout, node, load(node) if layout.tensors else [])


def _with_numbers(layout: NodeLayout, node: Any, saved: list[Any]) -> list[Any]:
    if layout.numbers:
        for i, number in zip(layout.numbers, node.numbers):
            saved.insert(i, number)
    return saved


def _take_saved(d: Programs, node: Any, arriving: int | None) -> list[Any]:
    """Return the saved values of a node and drop its references, so that the program can free values not retained."""
    if arriving is not None:
        assert d.retention is not None
        return _with_numbers(d.layout, node, d.retention.take(node, arriving))
    saved = _saved_values(d.layout, node)
    clear_saved_tensors(node)
    return saved


def _recorded(d: Programs, node: Any, key: Key, given: Any) -> Any:
    """Compute the gradients of a backward pass that autograd records (`create_graph=True`)."""
    program = d.recorded_backward(key)
    if not isinstance(program, Exception):
        d.ran = program
        return program(*_saved_values(d.layout, node), *given)
    sources = [*_saved_values(d.layout, node), *given]
    with torch.no_grad():
        found = _all_stages(d, d.backward_program(key)(_saved_values(d.layout, node), *given))
    return _raise_if_differentiated(found, program, sources)


def _batched(d: Programs, node: Any, key: Key, given: Any) -> Any:
    """Compute a batch of gradients. Kernels of executors cannot read it, but torch's own operations do."""
    return d.native_backward(key)(_saved_values(d.layout, node), *given)


def _all_stages(d: Programs, found: Any) -> Any:
    """Return all gradients of a backward program, which may be staged."""
    return found if d.stages is None else d.stages.together(found)


def _start_backward(d: Programs, *, prune: bool = True) -> StartBackward:
    """Return the function that starts a backward pass. Without `prune`, the pass computes all gradients."""
    layout = d.layout
    arriving, wanted, stages, retention = layout.arriving, layout.wanted, d.stages, d.retention
    everything, executed = (True,) * len(wanted), _Executed()
    prune = prune and (layout.prunes or not layout.guarded)
    # For the last pass: the gradients that arrived and were wanted, the key, the program and the outputs.
    known: tuple[Key, Key, Callable[..., Any], int | None] | None = None

    def wants_of(ctx: Any) -> tuple[bool, ...]:
        if not layout.prunes:
            wants = [True] * len(wanted)
        elif stages is not None:
            wants = executed(stages.edges(ctx))
        else:
            edges = ctx.next_functions
            wants = executed([edges[i] for i in layout.edges])
        if not layout.guarded:
            needs = ctx.needs_input_grad
            wants = [want and needs[i] for want, i in zip(wants, wanted)]
        return tuple(wants)

    def start_backward(ctx: Any, grads: Sequence[Any]) -> Any:
        nonlocal known
        asked = tuple([grads[i] is not None for i in arriving]), wants_of(ctx) if prune else everything
        given = [grads[i] for i in arriving if grads[i] is not None]
        if any(map(is_batch_of_gradients, given)):
            return _batched(d, ctx, d.key(*asked), given)
        if torch.is_grad_enabled():  # create_graph=True
            return _recorded(d, ctx, d.key(*asked), given)
        last = known
        if last is None or last[0] != asked:
            key = d.key(*asked)
            last = known = asked, key, d.backward_program(key), retention.arriving(key[0]) if retention else None
        _, d.ran, program, outputs = last
        return program(_take_saved(d, ctx, outputs), *given)

    return start_backward


# -- as several nodes -------------------------------------------------------------------------------------------------
def _routed(d: Programs, program: Callable[..., Any], apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return `apply` with gradient routing for the calls in which user code can observe the difference."""
    layout = d.layout
    routing = GradientRouting(
        layout.result_dependencies, layout.wanted, layout.arriving[: layout.returned], _backward_runner(d)
    )
    keep, flatten, count, start_backward = (
        _keeper(layout),
        layout.flattener(),
        layout.count,
        _start_backward(d, prune=False),
    )
    for_inputs = _backward(layout, lambda ctx, grads: _all_stages(d, start_backward(ctx, grads)))

    def forward(ctx: Any, shown: list[Any], *inputs: Any) -> Any:
        output, saved = program(*inputs)
        flat = view_returned_inputs(inputs, flatten(output, saved))
        shown += [ctx, flat[:count]]
        # The caller's tensors become outputs of routing nodes. Detached copies of them are the outputs of this node.
        own = {id(x): x.detach() for x in flat[:count] if isinstance(x, torch.Tensor)}
        return keep(ctx, tuple([own.get(id(x), x) for x in flat]), [own.get(id(x), x) for x in saved])

    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *for_inputs(ctx, *grads)

    node = as_node("ThunderFunction", forward, backward, d.natively)

    def run(*inputs: Any) -> Any:
        # The hooks of DistributedDataParallel on gradients of parameters are in C++, where nobody sees them.
        observed = layout.observed or in_data_parallel() or any(observes_gradient(inputs[i]) for i in routing.partial)
        if not observed or not torch.is_grad_enabled():
            return apply(*inputs)
        if function_transform_active():
            return d.natively(*inputs)
        shown: list[Any] = []
        made = node(shown, *inputs)
        return routing.link(shown[0], made, shown[1], inputs)

    return run


def _backward_runner(d: Programs) -> Any:
    """Return the function that runs a backward program for some inputs, on the saved values of the program's node."""
    layout = d.layout
    hidden = (False,) * (len(layout.arriving) - layout.returned)

    def run(node: Any, gradients: Sequence[Any], wanted: Sequence[bool], last: bool) -> Any:
        key = d.key((*[g is not None for g in gradients], *hidden), tuple(wanted))
        given = [g for g in gradients if g is not None]
        if any(map(is_batch_of_gradients, given)):
            return _all_stages(d, _batched(d, node, key, given))
        if torch.is_grad_enabled():
            return _recorded(d, node, key, given)
        program, d.ran = d.backward_program(key), key
        if last and not executes(node):  # a pass through the node itself still needs its saved values
            saved = _take_saved(d, node, d.retention.arriving(key[0]) if d.retention else None)
        else:
            saved = _saved_values(layout, node)
        return _all_stages(d, program(saved, *given))

    return run
