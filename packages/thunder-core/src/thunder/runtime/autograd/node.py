# SPDX-License-Identifier: Apache-2.0
"""Between a differentiated program and torch's autograd: `loss.backward()` on the result of a jitted function.

The forward program runs as one node of torch's graph. Its backward is a program for the gradients that arrive, compiled
when they first do. Where autograd records what backward does (`create_graph=True`) that program is differentiated too,
and runs as a node of the graph itself: so derivatives of any order come about.

The saved values through which gradients flow are outputs of the node, which nobody sees, so that autograd knows where
they come from when a backward program is differentiated with respect to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import torch

from thunder.core.devices import to_torch_device
from thunder.core.errors import ThunderError
from thunder.core.nbytes import bytes_of
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import OpTags, proxies_in
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.execution.memory import delete_last_used
from thunder.executors.torchex.base import no_autocast
from thunder.extend import get_always_executors
from thunder.passes.dce import dce
from thunder.passes.split import Split
from thunder.runtime.autograd.gradient_routing import GradientRouting, looked_at
from thunder.runtime.autograd.saved_tensor_retention import SavedTensorRetention
from thunder.runtime.autograd.staged_backward import Begin, StagedBackward, as_node, none_of, stages_of
from thunder.runtime.lock import collection_paused
from thunder.torch.private import (
    any_autocast,
    clear_saved_tensors,
    differentiated_otherwise,
    executes,
)

__all__ = ["DifferentiableProgram"]

# In bytes of what is differentiated by.
WORTH_ASKING = 1 << 16
# How many backward programs one forward program has before they are no longer made for what is wanted alone.
PROGRAMS = 16

Compile = Callable[[Trace], list[Trace]]
Key = tuple[tuple[bool, ...], tuple[bool, ...]]  # which gradients arrive, and which are wanted


class DifferentiableProgram:
    """A program that torch's autograd can differentiate.

    What goes through autograd is a flat tuple: each tensor of the output once, without those that are inputs
    themselves, which the caller gets back as they are, then saved values.
    """

    def __init__(self, split: Split, compile: Compile, *, remat: str = "auto", guarded: bool = True):
        self.split = split
        self.compile = compile
        self.remat = remat
        self.guarded = guarded  # whether each of `wrt` requires grad in every call
        self.traces = [split.forward, *compile(split.forward)]
        self._lock = threading.RLock()
        self._backward: dict[Key, Callable[..., Any]] = {}
        self._backward_traces: dict[Key, list[Trace]] = {}
        self._recorded: dict[Key, DifferentiableProgram | ThunderError] = {}
        self.ran: Key | DifferentiableProgram | None = None  # the backward program that ran last
        self._native: Callable[..., Any] | None = None
        self._lay_out(*self.traces[-1].output)
        # Asking which gradients are wanted takes time itself.
        worth = len(split.wrt) > 1 and sum(bytes_of(p) for p in split.wrt) >= WORTH_ASKING
        self.prunes = worth and split.takes_less_for_less()
        found = stages_of(split.forward, split.wrt) if guarded and self.prunes else [[*range(len(split.wrt))]]
        known = {p.name for p in split.wrt}
        # What no gradient flows to has no edge in torch's graph either, where hooks would be called with None.
        without = guarded and any(
            getattr(p, "requires_grad", False) and p.name not in known for p in self.traces[-1].args
        )
        staged = len(found) > 1 or without
        self.stages = StagedBackward(found, self.wanted, to_torch_device(split.wrt[0].device)) if staged else None
        reach = split.reach() if guarded and split.returned > 1 else []
        self.reach = reach if any(bits != reach[0] for bits in reach) else []
        self.apart = SavedTensorRetention(split, self.tensors) if guarded and split.returned > 1 else None
        program = self.traces[-1].python_callable(decorators=False)
        if not guarded or any_autocast():  # else the prologue has seen to it
            program = no_autocast(program)
        self.apply = _function_of(self, program)
        self.run = self.apply if self.plain else _then(self.apply, self.build)

    def _lay_out(self, output: Any, saved: Sequence[Proxy]) -> None:
        """Says where each value is among the inputs and outputs of the node."""
        split = self.split
        inputs = {p.name: i for i, p in enumerate(self.traces[-1].args)}
        names = {p.name: p for p in proxies_in(output) if p.name not in inputs}
        position = {name: i for i, name in enumerate(names)}
        slot = {p.name: i for i, p in enumerate(saved)}
        hidden = [slot[split.saved_as(p).name] for p in split.outputs[split.returned :]]
        self.single = len(position) + len(hidden) == 1
        # Whether the node's output is the user's.
        self.plain = not hidden and isinstance(output, Proxy) and output.name in position
        self.build = _builder(output, position, inputs, self.single)
        own = _views_of_their_own(self.traces[-1], {p.name for p in split.outputs[: split.returned]})
        self.plain = self.plain and not own
        self.flatten = _flattener(output, position, hidden, self.single, own)
        self._flatten_native = _flattener(output, position, hidden, self.single, set())
        # Those of them that are saved as well: autograd has to see that both are one.
        self.also_saved = [(slot[name], position[name]) for name in own if name in slot]
        # Saved are tensors and, where sizes are symbolic, numbers.
        self.count = len(position)
        self.tensors = [i for i, p in enumerate(saved) if isinstance(p, TensorProxy)]
        self.numbers = [i for i, p in enumerate(saved) if not isinstance(p, TensorProxy)]
        # Where among the node's outputs those are whose gradients a backward program takes, and those that have none.
        self.arriving = [position[p.name] for p in split.outputs[: split.returned]]
        tensors = [position[name] for name, p in names.items() if isinstance(p, TensorProxy)]  # the rest are numbers
        self.not_taking = [i for i in tensors if i not in self.arriving]
        self.arriving += range(len(position), len(position) + len(hidden))
        order = {p.name: i for i, p in enumerate(split.wrt)}
        self.gradient_of = [order.get(name) for name in inputs]
        self.wanted = [self.gradient_of.index(i) for i in range(len(split.wrt))]
        # Torch counts edges by tensors: numbers have none.
        edges = [i for i, p in enumerate(self.traces[-1].args) if isinstance(p, TensorProxy)]
        self.edges = [edges.index(i) for i in self.wanted]

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)

    def natively(self, *inputs: Any) -> Any:
        """What the node gives, by torch's own operations: for transforms of torch's that look into them."""
        if self._native is None:
            claimed = transform_for_execution(dce(self.split.source), get_always_executors())[-1]
            self._native = delete_last_used(claimed).python_callable(decorators=False)
        output = self._native(*inputs)
        return output if self.plain else self._flatten_native(output, _Nothing())

    # -- backward -----------------------------------------------------------------------------------------------------
    @property
    def backward_traces(self) -> list[Trace]:
        """The traces of the backward program that ran last, at first of the one for all gradients."""
        return self.ran.traces if isinstance(self.ran, DifferentiableProgram) else self.unrecorded_traces

    @property
    def unrecorded_traces(self) -> list[Trace]:
        """The same of the backward programs that are not differentiated themselves."""
        key = self.everything if self.ran is None or isinstance(self.ran, DifferentiableProgram) else self.ran
        self.backward_program(key)
        return self._backward_traces[key]

    @property
    def programs(self) -> list[Trace]:
        """What has been compiled: the forward program, and backward programs."""
        recorded = [d.traces[-1] for d in self._recorded.values() if isinstance(d, DifferentiableProgram)]
        return [self.traces[-1], *[traces[-1] for traces in self._backward_traces.values()], *recorded]

    @property
    def everything(self) -> Key:
        """The key of the backward program for gradients of all results, with respect to all inputs."""
        hidden = len(self.split.outputs) - self.split.returned
        return (True,) * self.split.returned + (False,) * hidden, (True,) * len(self.split.wrt)

    def key(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Key:
        """The key of the backward program to use for what arrives and is wanted; it may give more than that.

        Who asks for the gradients of many inputs one by one gets them all computed, rather than a program for each.
        """
        key = present, wanted
        few = key in self._backward or key in self._recorded or len(self._backward) + len(self._recorded) < PROGRAMS
        return key if few else (present, (True,) * len(wanted))

    def backward_program(self, key: Key) -> Callable[..., Any]:
        """The function `(saved, *gradients) -> gradients` for what arrives and is wanted; with stages, a generator."""
        found = self._backward.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._backward.get(key)
            if found is None:
                with self._settled(), collection_paused():
                    trace = self.split.backward(*key)
                    if self.stages is not None and len(self.stages.stages) > 1:
                        trace.info["stages"] = self.stages.stages
                    traces = self._backward_traces[key] = [trace, *self.compile(trace)]
                    found = self._backward[key] = no_autocast(traces[-1].python_callable(decorators=False))
        return found

    def _settled(self) -> AbstractContextManager[None]:
        """What is compiled after the prologue has been written may assume nothing new of symbolic numbers."""
        symbols = self.split.forward.info.get("symbols")
        return symbols.settled() if symbols is not None and symbols.closed else nullcontext()

    def recorded_backward(self, key: Key) -> DifferentiableProgram | ThunderError:
        """The backward program as one that is differentiated itself, or why it cannot be."""
        with self._lock:
            found = self._recorded.get(key)
            if found is None:
                try:
                    with self._settled():
                        found = self._differentiated(key)
                except ThunderError as error:
                    found = error
                self._recorded[key] = found
        return found

    def _differentiated(self, key: Key) -> DifferentiableProgram:
        trace = self.split.backward(*key, boxed=False)
        constant = {p.name for p in self.split.forward.output[1]}
        constant -= {p.name for p in self.split.wrt}
        constant -= {self.split.saved_as(p).name for p in self.split.outputs}
        wrt = [p for p in trace.args if isinstance(p, TensorProxy) and p.name not in constant]
        split = Split(trace, self.split.executors, wrt, remat=self.remat)
        return DifferentiableProgram(split, self.compile, remat=self.remat, guarded=False)


class _Nothing:
    """Stands for what is saved where nothing is."""

    def __getitem__(self, i: int) -> None:
        return None


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


def _then(apply: Callable[..., Any], build: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *inputs: build(apply(*inputs), inputs)


def _builder(output: Any, position: dict[str, int], inputs: dict[str, int], single: bool) -> Callable[[Any, Any], Any]:
    """The function of the node's outputs and the inputs that gives the user's output."""
    constants: list[Any] = []

    def write(p: Proxy) -> str:
        i = position.get(p.name)
        return f"x[{inputs[p.name]}]" if i is None else "t" if single else f"t[{i}]"

    return eval(f"lambda t, x: {_expression(output, write, constants)}", {"c": constants})  # type: ignore[no-any-return]


def _views_of_their_own(program: Trace, results: set[str]) -> set[str]:
    """Those of the results that are views of memory that nobody else gets hold of; saved is no other of it."""
    memory: dict[str, str] = {}  # whose memory a view lies in
    for op in program.bound_symbols:
        # What runs an operation may have marks of its own; below it stands the operation.
        if (OpTags.VIEW_OP in op.sym.tags or any(OpTags.VIEW_OP in p.sym.tags for p in op.subsymbols)) and op.arg_names:
            base = op.arg_names[0]
            memory.update(dict.fromkeys(op.out_names, memory.get(base, base)))
    seen = {p.name: memory.get(p.name, p.name) for p in (*proxies_in(program.output), *program.args)}
    holders = list(seen.values())
    return {name for name in results if name in memory and holders.count(memory[name]) == 1}


def _flattener(
    output: Any, position: dict[str, int], hidden: Sequence[int], single: bool, own: set[str]
) -> Callable[[Any, Any], Any]:
    """The function of the forward's output, and of what it saves, that gives the node's outputs.

    They are the tensors in the order of `position`, then the hidden ones; where there is one only, itself. Those of
    `own` are views of what only they need: for torch they are no views, so that the user may write to them.
    """
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
    items = [paths[name] + (".data" if name in own else "") for name in position]
    items += [f"s[{i}]" for i in hidden] if len(hidden) < 2 else ["*hidden(s)"]
    text = items[0] if single else f"({''.join(f'{item}, ' for item in items)})"
    return eval(f"lambda o, s: {text}", {"hidden": itemgetter(*hidden or (0,))})  # type: ignore[no-any-return]


# -- as a node --------------------------------------------------------------------------------------------------------
class _Refused(torch.autograd.Function):
    """A gradient that says why it cannot be differentiated, instead of passing for a constant."""

    @staticmethod
    def forward(ctx: Any, error: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.error = error
        return tuple(g.view_as(g) for g in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ctx.error


def _refusing(found: Sequence[Any], error: ThunderError, sources: Sequence[Any]) -> list[Any]:
    """Gradients that were computed of `sources`: who differentiates them with respect to these gets the error."""
    grads = [g for g in found if g is not None]
    wrapped = iter(_Refused.apply(error, len(grads), *grads, *[x for x in sources if isinstance(x, torch.Tensor)]))
    return [None if g is None else next(wrapped) for g in found]


def _asked(node: Any) -> bool | None:
    """Whether the backward pass that runs reaches a node; None for a leaf that `torch.autograd.grad` is asked for."""
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


def _function_of(d: DifferentiableProgram, program: Callable[..., Any]) -> Callable[..., Any]:
    """What runs the forward program as a node of torch's graph, or as several."""
    forward, begin = _forward(d, program), _begin(d)
    if d.stages is not None:
        apply = d.stages.nodes(forward, begin, d.natively)
    else:
        apply = as_node("ThunderFunction", forward, _backward(d, begin), d.natively)
    return _reaching(d, program, apply) if d.reach else apply


def _backward(d: DifferentiableProgram, begin: Begin) -> Callable[..., Any]:
    items = "".join("None, " if i is None else f"found[{i}], " for i in d.gradient_of)
    whole = d.gradient_of == list(range(len(d.gradient_of)))
    for_inputs: Callable[[Any], Any] = tuple if whole else eval(f"lambda found: ({items})")

    def backward(ctx: Any, *grads: Any) -> Any:
        return for_inputs(begin(ctx, grads))

    return backward


def _forward(d: DifferentiableProgram, program: Callable[..., Any]) -> Callable[..., Any]:
    flatten, keep, staged = None if d.plain else d.flatten, _keeper(d), d.stages is not None

    def forward(ctx: Any, *inputs: Any) -> Any:
        output, saved = program(*inputs)
        flat = output if flatten is None else flatten(output, saved)
        return keep(ctx, none_of(inputs, flat) if staged else flat, saved)

    return forward


def _keeper(d: DifferentiableProgram) -> Callable[..., Any]:
    """What leaves saved values with a node; gives the node's results."""
    tensors, numbers, not_taking = d.tensors, d.numbers, d.not_taking
    also_saved, single = d.also_saved, d.single

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


def _saved_values(d: DifferentiableProgram, node: Any) -> list[Any]:
    # Torch lets nobody ask a second time, be it for nothing: what saves nothing can be passed as often as one likes.
    return _with_numbers(d, node, list(node.saved_tensors) if d.tensors else [])


def _with_numbers(d: DifferentiableProgram, node: Any, saved: list[Any]) -> list[Any]:
    if d.numbers:
        for i, number in zip(d.numbers, node.numbers):
            saved.insert(i, number)
    return saved


def _taken(d: DifferentiableProgram, node: Any, arriving: int | None) -> list[Any]:
    """What a node has saved, for the gradients that arrive: freed as the program goes, unless it is used again."""
    if arriving is not None:
        assert d.apart is not None
        return _with_numbers(d, node, d.apart.take(node, arriving))
    saved = _saved_values(d, node)
    clear_saved_tensors(node)
    return saved


def _recorded(d: DifferentiableProgram, node: Any, key: Key, given: Any) -> Any:
    """The gradients of a backward pass that autograd records (`create_graph=True`)."""
    program = d.recorded_backward(key)
    if isinstance(program, DifferentiableProgram):
        d.ran = program
        return program(*_saved_values(d, node), *given)
    sources = [*_saved_values(d, node), *given]
    with torch.no_grad():
        found = _together(d, d.backward_program(key)(_saved_values(d, node), *given))
    return _refusing(found, program, sources)


def _together(d: DifferentiableProgram, found: Any) -> Any:
    """What a backward program gives, all at once."""
    return found if d.stages is None else d.stages.together(found)


def _begin(d: DifferentiableProgram, *, asks: bool = True) -> Begin:
    """What finds the gradients of a backward pass; without `asks` all that there are, whatever is wanted."""
    arriving, wanted, stages = d.arriving, d.wanted, d.stages
    everything, executed = (True,) * len(wanted), _Executed()
    asks = asks and (d.prunes or not d.guarded)
    # What arrived and was wanted last, and what that came to.
    known: tuple[Key, Key, Callable[..., Any], int | None] | None = None

    def wants_of(ctx: Any) -> tuple[bool, ...]:
        if not d.prunes:
            wants = [True] * len(wanted)
        elif stages is not None:
            wants = executed(stages.edges(ctx))
        else:
            edges = ctx.next_functions
            wants = executed([edges[i] for i in d.edges])
        if not d.guarded:
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
            last = known = asked, key, d.backward_program(key), d.apart.arriving(key[0]) if d.apart else None
        _, d.ran, program, outputs = last
        return program(_taken(d, ctx, outputs), *given)

    return begin


# -- as several nodes -------------------------------------------------------------------------------------------------
def _reaching(d: DifferentiableProgram, program: Callable[..., Any], apply: Callable[..., Any]) -> Callable[..., Any]:
    """`apply`, but with the edges that eager has in calls where somebody would see the difference."""
    ways = GradientRouting(d.reach, d.wanted, d.arriving[: d.split.returned], _run_of(d))
    keep, flatten, count, begin = _keeper(d), d.flatten, d.count, _begin(d, asks=False)
    for_inputs = _backward(d, lambda ctx, grads: _together(d, begin(ctx, grads)))

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


def _run_of(d: DifferentiableProgram) -> Any:
    """What runs a backward program for some inputs, with what another node has saved."""
    hidden = (False,) * (len(d.split.outputs) - d.split.returned)

    def run(node: Any, gradients: Sequence[Any], wanted: Sequence[bool], last: bool) -> Any:
        key = d.key((*[g is not None for g in gradients], *hidden), tuple(wanted))
        given = [g for g in gradients if g is not None]
        if torch.is_grad_enabled():
            return _recorded(d, node, key, given)
        program, d.ran = d.backward_program(key), key
        if last and not executes(node):  # which it is where gradients are differentiated
            saved = _taken(d, node, d.apart.arriving(key[0]) if d.apart else None)
        else:
            saved = _saved_values(d, node)
        return _together(d, program(saved, *given))

    return run
