# SPDX-License-Identifier: Apache-2.0
"""Differentiated programs: a forward program, and backward programs that are compiled when gradients first arrive.

The forward program runs as a node of torch's graph (`runtime/autograd/node.py`). Each combination of arriving and
wanted gradients has a separate backward program. With `create_graph=True`, the backward program is differentiated too
and runs as another node, so derivatives of any order work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

from thunder.core.devices import to_torch_device
from thunder.core.errors import ThunderError
from thunder.core.events import current_log
from thunder.core.nbytes import bytes_of
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import OpTags, proxies_in
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors
from thunder.frontend.progress import progress
from thunder.frontend.record import record_program
from thunder.passes.dce import dce
from thunder.passes.deletion import delete_last_used
from thunder.passes.split import Split
from thunder.runtime.autocast import no_autocast
from thunder.runtime.autograd.node import Key, NodeLayout, autograd_function
from thunder.runtime.autograd.results import FlatItem, Slot, builder, flattener
from thunder.runtime.autograd.saved_tensor_retention import SavedTensorRetention
from thunder.runtime.autograd.staged_backward import StagedBackward
from thunder.runtime.lock import collection_paused, program_lock
from thunder.runtime.torch_private import any_autocast

__all__ = ["DifferentiableProgram", "backward_stages"]

# If all gradients together have fewer bytes, thunder does not check which of them autograd wants.
MIN_BYTES_TO_PRUNE = 1 << 16
# The maximum number of backward programs of one forward program.
MAX_BACKWARD_PROGRAMS = 16

# The minimum number of bytes of gradients in a stage. On a CPU, a stage uses its gradients again while they are in
# cache. On a GPU, a stage saves only memory, and costs the host the time of about ten launches.
MIN_STAGE_BYTES_CPU, MIN_STAGE_BYTES = 1 << 20, 1 << 28
MAX_STAGES = 8

Compile = Callable[[Trace], list[Trace]]


def _ignore(key: Key, traces: list[Trace]) -> None:
    pass


class DifferentiableProgram:
    """A program that torch's autograd can differentiate.

    Its node returns a flat tuple: each tensor of the output once, then saved values. Inputs in the output are not in
    this tuple, because the caller gets them back unchanged. With `guarded`, guards ensure that all inputs in `wrt`
    require grad.
    """

    def __init__(self, split: Split, compile: Compile, *, remat: str = "auto", guarded: bool = True):
        self.split = split
        self.compile = compile
        self.remat = remat
        self.traces = [split.forward, *compile(split.forward)]
        self._lock = program_lock()
        self._log = current_log()
        self._backward: dict[Key, Callable[..., Any]] = {}
        self._backward_traces: dict[Key, list[Trace]] = {}
        self._recorded: dict[Key, DifferentiableProgram | ThunderError] = {}
        self.ran: Key | DifferentiableProgram | None = None  # the backward program that ran last
        self._native: Callable[..., Any] | None = None
        #: Called with the key and the traces of each backward program that is compiled.
        self.on_backward: Callable[[Key, list[Trace]], None] = _ignore
        # The check of which gradients are wanted takes time.
        worth = len(split.wrt) > 1 and sum(bytes_of(p) for p in split.wrt) >= MIN_BYTES_TO_PRUNE
        prunes = worth and split.takes_less_for_less()
        layout, self._flatten_native = _layout_of(split, self.traces[-1], prunes=prunes, guarded=guarded)
        self.layout = layout
        program = self.traces[-1].python_callable(decorators=False)
        self.without_autocast = not guarded or any_autocast()  # otherwise the prologue guards that autocast is off
        if self.without_autocast:
            program = no_autocast(program)
        apply = autograd_function(self, program)
        self.run = apply if layout.plain else _then(apply, layout.build)

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)

    def natively(self, *inputs: Any) -> Any:
        """Compute the node's outputs with torch's own operations, for torch.func's transforms and forward mode."""
        if self._native is None:
            claimed = transform_for_execution(dce(self.split.source), get_always_executors())[-1]
            self._native = delete_last_used(claimed).python_callable(decorators=False)
        output = self._native(*inputs)
        return output if self.layout.plain else self._flatten_native(output, _NothingSaved())

    # -- backward -----------------------------------------------------------------------------------------------------
    @property
    def backward_traces(self) -> list[Trace]:
        """The traces of the backward program that ran last, or of the one for all gradients if none has run."""
        return self.ran.traces if isinstance(self.ran, DifferentiableProgram) else self.unrecorded_traces

    @property
    def unrecorded_traces(self) -> list[Trace]:
        """Like `backward_traces`, but only for backward programs that are not themselves differentiated."""
        key = self.everything if self.ran is None or isinstance(self.ran, DifferentiableProgram) else self.ran
        self.backward_program(key)
        return self._backward_traces[key]

    @property
    def programs(self) -> list[Trace]:
        """The final traces of all compiled programs: the forward program and the backward programs."""
        recorded = [d.traces[-1] for d in self._recorded.values() if isinstance(d, DifferentiableProgram)]
        return [self.traces[-1], *[traces[-1] for traces in self._backward_traces.values()], *recorded]

    @property
    def everything(self) -> Key:
        """The key of the backward program for gradients of all results, with respect to all inputs."""
        hidden = len(self.split.outputs) - self.split.returned
        return (True,) * self.split.returned + (False,) * hidden, (True,) * len(self.split.wrt)

    def key(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Key:
        """Return the key of the backward program for the gradients that arrive and are wanted.

        The program may compute more gradients, which limits the number of programs if user code computes the gradients
        of many inputs one by one.
        """
        key = present, wanted
        known = key in self._backward or key in self._recorded
        few = known or len(self._backward) + len(self._recorded) < MAX_BACKWARD_PROGRAMS
        return key if few else (present, (True,) * len(wanted))

    def backward_program(self, key: Key) -> Callable[..., Any]:
        """Return the function `(saved, *gradients) -> gradients` of a key. With stages, the function is a generator."""
        found = self._backward.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._backward.get(key)
            if found is None:
                with self._constraints_closed(), collection_paused(), self._log.active(), progress(self._log.program):
                    start = perf_counter()
                    trace = self.split.backward(*key)
                    stages = self.layout.stages
                    if stages is not None and len(stages.stages) > 1:
                        trace.info["stages"] = stages.stages
                    traces = self._backward_traces[key] = [trace, *self.compile(trace)]
                    found = self._backward[key] = no_autocast(traces[-1].python_callable(decorators=False))
                    again = "another combination of " if len(self._backward) > 1 else ""
                    reason = f"{again}gradients arrived for the first time"
                    record_program(self._log, reason, perf_counter() - start, traces, part="backward")
                    self.on_backward(key, traces)
        return found

    def _constraints_closed(self) -> AbstractContextManager[None]:
        """Forbid new constraints on symbolic numbers, because the prologue that checks constraints already exists."""
        symbols = self.split.forward.info.get("symbols")
        return symbols.no_new_constraints() if symbols is not None and symbols.closed else nullcontext()

    def recorded_backward(self, key: Key) -> DifferentiableProgram | ThunderError:
        """Return the backward program as a differentiable program, or the error if it cannot be differentiated."""
        with self._lock:
            found = self._recorded.get(key)
            if found is None:
                try:
                    with self._constraints_closed(), self._log.active():
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


# -- positions of values among the node's inputs and outputs ----------------------------------------------------------
def _layout_of(split: Split, program: Trace, *, prunes: bool, guarded: bool) -> tuple[NodeLayout, Callable[..., Any]]:
    """Return the node's layout, and the function that flattens the output of `natively`."""
    output, saved = split.forward.output
    # The compiled program returns values at the same positions, but transforms and executors may have renamed them.
    compiled = _compiled_names(split.forward, program)
    inputs = {p.name: i for i, p in enumerate(program.args)}
    names = {p.name: p for p in proxies_in(output) if p.name not in inputs}
    position = {name: i for i, name in enumerate(names)}
    slot = {p.name: i for i, p in enumerate(saved)}
    hidden = [slot[split.saved_as(p).name] for p in split.outputs[split.returned :]]
    single = len(position) + len(hidden) == 1
    own = _unshared_views(program, {p.name: compiled[p.name] for p in split.outputs[: split.returned]})
    # The positions of the node's outputs whose gradients are inputs of a backward program.
    arriving = [position[p.name] for p in split.outputs[: split.returned]]
    of_tensors = [position[name] for name, p in names.items() if isinstance(p, TensorProxy)]
    order = {p.name: i for i, p in enumerate(split.wrt)}
    gradient_of = [order.get(name) for name in inputs]
    wanted = [gradient_of.index(i) for i in range(len(split.wrt))]
    # Only tensors have edges in torch's graph.
    edges = [i for i, p in enumerate(program.args) if isinstance(p, TensorProxy)]
    tensors = [i for i, p in enumerate(saved) if isinstance(p, TensorProxy)]
    several = guarded and split.returned > 1
    dependencies = split.reach() if several else []
    template, items = _template(output, position, inputs), _flat_items(output, position, own)
    layout = NodeLayout(
        single=single,
        plain=not hidden and isinstance(output, Proxy) and output.name in position and not own,
        build=builder(template, single),
        flatten=flattener(items, hidden, single),
        template=template,
        items=items,
        hidden=hidden,
        count=len(position),
        returned=split.returned,
        tensors=tensors,
        numbers=[i for i, p in enumerate(saved) if not isinstance(p, TensorProxy)],
        saved_outputs=[(slot[name], position[name]) for name in own if name in slot],
        arriving=[*arriving, *range(len(position), len(position) + len(hidden))],
        non_differentiable=[i for i in of_tensors if i not in arriving],
        gradient_of=gradient_of,
        wanted=wanted,
        edges=[edges.index(i) for i in wanted],
        guarded=guarded,
        prunes=prunes,
        result_dependencies=dependencies if any(bits != dependencies[0] for bits in dependencies) else [],
        stages=_stages(split, program, wanted, prunes) if guarded else None,
        retention=SavedTensorRetention(split.returned, split.output_groups, tensors) if several else None,
    )
    return layout, flattener(_flat_items(output, position, set()), hidden, single)


def _stages(split: Split, program: Trace, wanted: Sequence[int], prunes: bool) -> StagedBackward | None:
    """Return the chain of nodes for a staged backward, or None if one node is enough."""
    found = backward_stages(split.forward, split.wrt) if prunes else [[*range(len(split.wrt))]]
    known = {p.name for p in split.wrt}
    # Inputs without a gradient must have no edge in torch's graph: torch would call their hooks with None.
    without_edge = any(getattr(p, "requires_grad", False) and p.name not in known for p in program.args)
    if len(found) < 2 and not without_edge:
        return None
    return StagedBackward(found, wanted, to_torch_device(split.wrt[0].device))


def backward_stages(program: Trace, wrt: Sequence[TensorProxy]) -> list[list[int]]:
    """Return for each stage the indices into `wrt` of the inputs whose gradients it computes."""
    first: dict[str, int] = {}
    for i, op in enumerate(program.bound_symbols):
        for name in op.arg_names:
            first.setdefault(name, i)
    sizes = [bytes_of(p) for p in wrt]
    smallest = MIN_STAGE_BYTES_CPU if all(p.device.type == "cpu" for p in wrt) else MIN_STAGE_BYTES
    enough = max(smallest, sum(sizes) // MAX_STAGES)
    stages: list[list[int]] = [[]]
    for i in sorted(range(len(wrt)), key=lambda i: -first.get(wrt[i].name, -1)):
        if sum(sizes[j] for j in stages[-1]) >= enough:
            stages.append([])
        stages[-1].append(i)
    return [sorted(stage) for stage in stages]


class _NothingSaved:
    """The saved values of a program that saves nothing. Each item is None."""

    def __getitem__(self, i: int) -> None:
        return None


def _then(apply: Callable[..., Any], build: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *inputs: build(apply(*inputs), inputs)


def _template(output: Any, position: dict[str, int], inputs: dict[str, int]) -> Any:
    """Return the user's output with slots for the node's outputs and the inputs in it."""
    if isinstance(output, Proxy):
        i = position.get(output.name)
        return Slot("x", inputs[output.name]) if i is None else Slot("t", i)
    if isinstance(output, dict):
        return {key: _template(x, position, inputs) for key, x in output.items()}
    if isinstance(output, (tuple, list)):
        items = [_template(x, position, inputs) for x in output]
        return tuple(items) if isinstance(output, tuple) else items
    return output


def _compiled_names(forward: Trace, program: Trace) -> dict[str, str]:
    """Map the names of values that `forward` returns to the names of values that the compiled `program` returns.

    Transforms that run after differentiation may change values, but not the number and order of outputs, because
    gradients are passed by position.
    """
    before, after = forward.output, program.output
    if isinstance(after, tuple) and len(after) == 2 and len(after[1]) == len(before[1]):
        (old, structure), (new, other) = tree_flatten(before[0]), tree_flatten(after[0])
        names: dict[str, str] = {}
        given = {p.name for p in forward.args}
        if structure == other and all(
            not isinstance(p, Proxy)
            or (isinstance(q, Proxy) and names.setdefault(p.name, q.name) == q.name and (p.name not in given or p is q))
            for p, q in zip(old, new)
        ):
            return names
    raise ThunderError(
        f"a transform made the forward program return {after!r:.200} instead of {before!r:.200}. After differentiation "
        "a transform may change the values that a program returns, but it must keep their number, their order, and "
        "which of them are identical or inputs. Make other changes in transform_computation, which runs before "
        "differentiation"
    )


def _unshared_views(program: Trace, results: dict[str, str]) -> set[str]:
    """Return the results that are views, and whose memory no other output, input or saved value aliases.

    `results` maps names of results before compilation to names in `program`.
    """
    memory: dict[str, str] = {}  # the base of each view
    for op in program.bound_symbols:
        # An executor's operator may have other tags. The operation that it implements is its subsymbol.
        if (OpTags.VIEW_OP in op.sym.tags or any(OpTags.VIEW_OP in p.sym.tags for p in op.subsymbols)) and op.arg_names:
            base = op.arg_names[0]
            memory.update(dict.fromkeys(op.out_names, memory.get(base, base)))
    seen = {p.name: memory.get(p.name, p.name) for p in (*proxies_in(program.output), *program.args)}
    holders = list(seen.values())
    return {name for name, now in results.items() if now in memory and holders.count(memory[now]) == 1}


def _flat_items(output: Any, position: dict[str, int], own: set[str]) -> list[FlatItem]:
    """Return the node's outputs in the order of `position`. The names in `own` are unshared views."""
    paths: dict[str, tuple[Any, ...]] = {}

    def walk(x: Any, path: tuple[Any, ...]) -> None:
        if isinstance(x, Proxy):
            paths.setdefault(x.name, path)
        elif isinstance(x, (tuple, list, dict)):
            for key, item in x.items() if isinstance(x, dict) else enumerate(x):
                walk(item, (*path, key))

    walk(output, ())
    return [FlatItem(paths[name], name in own) for name in position]
