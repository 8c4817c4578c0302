# SPDX-License-Identifier: Apache-2.0
"""A compiled program as a node of torch's autograd graph: `loss.backward()` on the result of a jitted function.

The forward program runs as one node, or as several (`staged_backward.py`, `gradient_routing.py`). Which backward
program runs is asked of the `Programs` when gradients arrive. The saved values through which gradients flow are hidden
outputs of the node, so that autograd knows where they come from when a backward program is itself differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from thunder.runtime.autograd.gradient_routing import GradientRouting, looked_at
from thunder.runtime.autograd.saved_tensor_retention import SavedTensorRetention
from thunder.runtime.autograd.staged_backward import Begin, StagedBackward, as_node, none_of
from thunder.runtime.torch_private import clear_saved_tensors, differentiated_otherwise, executes

__all__ = ["Key", "NodeLayout", "Programs", "autograd_function"]

Key = tuple[tuple[bool, ...], tuple[bool, ...]]  # which gradients arrive, and which are wanted


@dataclass(frozen=True)
class NodeLayout:
    """Where values stand among the inputs, the outputs and the saved values of a node.

    The outputs are the user's tensors, each once (`count` of them, of which gradients of `returned` can arrive), then
    saved values that gradients flow through, which the user never sees.
    """

    single: bool  # whether there is one output, which then is no tuple
    plain: bool  # whether the node's output is the user's
    build: Callable[[Any, Any], Any]  # (outputs, inputs) -> what the user gets
    flatten: Callable[[Any, Any], Any]  # (the program's output, saved values) -> outputs
    count: int
    returned: int
    tensors: list[int]  # which of the saved values are tensors
    numbers: list[int]  # and which are numbers, where sizes are symbolic
    also_saved: list[tuple[int, int]]  # saved values that are outputs too: autograd has to see that both are one
    arriving: list[int]  # the outputs whose gradients a backward program takes
    not_taking: list[int]  # the outputs that have no gradient
    gradient_of: list[int | None]  # for each input its position among the gradients
    wanted: list[int]  # for each gradient the input that it is of
    edges: list[int]  # the same, counting inputs that are tensors
    guarded: bool  # whether each of `wanted` requires grad in every call
    prunes: bool  # whether autograd is asked which gradients are wanted
    reach: list[int]  # for each gradient the results that depend on its input, as bits; empty where all do
    stages: StagedBackward | None
    retention: SavedTensorRetention | None


class Programs(Protocol):
    """The forward program's layout, and its backward programs by what arrives and is wanted."""

    layout: NodeLayout
    ran: Any  # the key of the backward program that ran last, or what `recorded_backward` gave

    def key(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Key:
        """Return the key of the backward program for what arrives and is wanted."""

    def backward_program(self, key: Key) -> Callable[..., Any]:
        """Return the function `(saved, *gradients) -> gradients` of a key; with stages, it is a generator."""

    def recorded_backward(self, key: Key) -> Any:
        """Return the backward program as a differentiable function of `(*saved, *gradients)`, or an exception."""

    def natively(self, *inputs: Any) -> Any:
        """Compute the node's outputs by torch's own operations."""


class _Refused(torch.autograd.Function):
    """A gradient that says why it cannot be differentiated, instead of passing for a constant."""

    @staticmethod
    def forward(ctx: Any, error: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.error = error
        return tuple(g.view_as(g) for g in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ctx.error


def _refusing(found: Sequence[Any], error: Exception, sources: Sequence[Any]) -> list[Any]:
    """Return gradients that were computed of `sources`: who differentiates them with respect to these gets the
    error.
    """
    grads = [g for g in found if g is not None]
    wrapped = iter(_Refused.apply(error, len(grads), *grads, *[x for x in sources if isinstance(x, torch.Tensor)]))
    return [None if g is None else next(wrapped) for g in found]


def _asked(node: Any) -> bool | None:
    """Check whether the backward pass that runs reaches a node; None for a leaf that `torch.autograd.grad` is asked
    for.
    """
    try:
        return node is not None and executes(node)
    except RuntimeError:
        return None


class _Executed:
    """Which of the inputs that edges lead to the backward pass that runs takes a gradient for.

    Of a leaf that is asked for torch says so by raising, which takes longer than launching a kernel. So where it did
    for several, the next pass asks about one of them, in turns, and about what was not wanted: if nothing is other than
    it was, all is taken to be so. That may be a gradient more than is wanted, never one less.
    """

    def __init__(self) -> None:
        self._last: tuple[list[bool | None], list[int]] | None = None  # the answers, and where torch raised
        self._turn = 0

    def __call__(self, edges: Sequence[Any]) -> list[bool]:
        if self._last is not None:
            answers, leaves = self._last
            self._turn += 1
            again = leaves[self._turn % len(leaves)]
            if all(
                a == _asked(node) for i, (a, (node, _)) in enumerate(zip(answers, edges)) if a is not None or i == again
            ):
                return [a is not False for a in answers]
        answers = []
        for node, _ in edges:
            answers.append(_asked(node))
            if answers == [True] and type(node).__name__ == "AccumulateGrad":
                return [True] * len(edges)  # it was not torch.autograd.grad: all leaves are reached
        leaves = [i for i, a in enumerate(answers) if a is None]
        self._last = (answers, leaves) if len(leaves) > 1 else None
        return [a is not False for a in answers]


def autograd_function(d: Programs, program: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs the forward program as a node of torch's graph, or as several."""
    layout, forward, begin = d.layout, _forward(d.layout, program), _begin(d)
    if layout.stages is not None:
        apply = layout.stages.nodes(forward, begin, d.natively)
    else:
        apply = as_node("ThunderFunction", forward, _backward(layout, begin), d.natively)
    return _routed(d, program, apply) if layout.reach else apply


def _backward(layout: NodeLayout, begin: Begin) -> Callable[..., Any]:
    items = "".join("None, " if i is None else f"found[{i}], " for i in layout.gradient_of)
    whole = layout.gradient_of == list(range(len(layout.gradient_of)))
    for_inputs: Callable[[Any], Any] = tuple if whole else eval(f"lambda found: ({items})")

    def backward(ctx: Any, *grads: Any) -> Any:
        return for_inputs(begin(ctx, grads))

    return backward


def _forward(layout: NodeLayout, program: Callable[..., Any]) -> Callable[..., Any]:
    flatten, keep, staged = None if layout.plain else layout.flatten, _keeper(layout), layout.stages is not None

    def forward(ctx: Any, *inputs: Any) -> Any:
        output, saved = program(*inputs)
        flat = output if flatten is None else flatten(output, saved)
        return keep(ctx, none_of(inputs, flat) if staged else flat, saved)

    return forward


def _keeper(layout: NodeLayout) -> Callable[..., Any]:
    """Return the function that leaves saved values with a node, and gives the node's results."""
    tensors, numbers, not_taking = layout.tensors, layout.numbers, layout.not_taking
    also_saved, single = layout.also_saved, layout.single

    def keep(ctx: Any, flat: Any, saved: Any) -> Any:
        if also_saved:
            saved = list(saved)
            for i, at in also_saved:
                saved[i] = flat if single else flat[at]
        if numbers:
            ctx.numbers = [saved[i] for i in numbers]
            saved = [saved[i] for i in tensors]
        if tensors:
            ctx.to_save = tuple(saved)
        ctx.materialize_grads = False
        if not_taking:
            ctx.mark_non_differentiable(*[flat if single else flat[i] for i in not_taking])
        return flat

    return keep


def _saved_values(layout: NodeLayout, node: Any) -> list[Any]:
    # torch lets nobody ask a second time, be it for nothing: what saves nothing can be passed as often as one likes.
    return _with_numbers(layout, node, list(node.saved_tensors) if layout.tensors else [])


def _with_numbers(layout: NodeLayout, node: Any, saved: list[Any]) -> list[Any]:
    if layout.numbers:
        for i, number in zip(layout.numbers, node.numbers):
            saved.insert(i, number)
    return saved


def _take_saved(layout: NodeLayout, node: Any, arriving: int | None) -> list[Any]:
    """Return what a node has saved, for the gradients that arrive: freed as the program goes, unless used again."""
    if arriving is not None:
        assert layout.retention is not None
        return _with_numbers(layout, node, layout.retention.take(node, arriving))
    saved = _saved_values(layout, node)
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
        found = _all_stages(d.layout, d.backward_program(key)(_saved_values(d.layout, node), *given))
    return _refusing(found, program, sources)


def _all_stages(layout: NodeLayout, found: Any) -> Any:
    """Return what a backward program gives, all at once."""
    return found if layout.stages is None else layout.stages.together(found)


def _begin(d: Programs, *, asks: bool = True) -> Begin:
    """Return what computes the gradients of a backward pass; without `asks` all of them, whatever is wanted."""
    layout = d.layout
    arriving, wanted, stages, retention = layout.arriving, layout.wanted, layout.stages, layout.retention
    everything, executed = (True,) * len(wanted), _Executed()
    asks = asks and (layout.prunes or not layout.guarded)
    # What arrived and was wanted last, and what that came to.
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

    def begin(ctx: Any, grads: Sequence[Any]) -> Any:
        nonlocal known
        asked = tuple([grads[i] is not None for i in arriving]), wants_of(ctx) if asks else everything
        given = [grads[i] for i in arriving if grads[i] is not None]
        if torch.is_grad_enabled():  # create_graph=True
            return _recorded(d, ctx, d.key(*asked), given)
        last = known
        if last is None or last[0] != asked:
            key = d.key(*asked)
            last = known = asked, key, d.backward_program(key), retention.arriving(key[0]) if retention else None
        _, d.ran, program, outputs = last
        return program(_take_saved(layout, ctx, outputs), *given)

    return begin


# -- as several nodes -------------------------------------------------------------------------------------------------
def _routed(d: Programs, program: Callable[..., Any], apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return `apply`, but with the edges that eager has in calls where somebody would see the difference."""
    layout = d.layout
    ways = GradientRouting(layout.reach, layout.wanted, layout.arriving[: layout.returned], _run_of(d))
    keep, flatten, count, begin = _keeper(layout), layout.flatten, layout.count, _begin(d, asks=False)
    for_inputs = _backward(layout, lambda ctx, grads: _all_stages(layout, begin(ctx, grads)))

    def forward(ctx: Any, shown: list[Any], *inputs: Any) -> Any:
        output, saved = program(*inputs)
        flat = none_of(inputs, flatten(output, saved))
        shown += [ctx, flat[:count]]
        # What the caller gets belongs to other nodes; what is saved of it, to this one.
        own = {id(x): x.detach() for x in flat[:count] if isinstance(x, torch.Tensor)}
        return keep(ctx, tuple([own.get(id(x), x) for x in flat]), [own.get(id(x), x) for x in saved])

    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *for_inputs(ctx, *grads)

    node = as_node("ThunderFunction", forward, backward, d.natively)

    def run(*inputs: Any) -> Any:
        if not any(looked_at(inputs[i]) for i in ways.partial) or not torch.is_grad_enabled():
            return apply(*inputs)
        if differentiated_otherwise():
            return d.natively(*inputs)
        shown: list[Any] = []
        made = node(shown, *inputs)
        return ways.link(shown[0], made, shown[1], inputs)

    return run


def _run_of(d: Programs) -> Any:
    """Return what runs a backward program for some inputs, with what another node has saved."""
    layout = d.layout
    hidden = (False,) * (len(layout.arriving) - layout.returned)

    def run(node: Any, gradients: Sequence[Any], wanted: Sequence[bool], last: bool) -> Any:
        key = d.key((*[g is not None for g in gradients], *hidden), tuple(wanted))
        given = [g for g in gradients if g is not None]
        if torch.is_grad_enabled():
            return _recorded(d, node, key, given)
        program, d.ran = d.backward_program(key), key
        if last and not executes(node):  # which it is where gradients are differentiated
            saved = _take_saved(layout, node, layout.retention.arriving(key[0]) if layout.retention else None)
        else:
            saved = _saved_values(layout, node)
        return _all_stages(layout, program(saved, *given))

    return run
