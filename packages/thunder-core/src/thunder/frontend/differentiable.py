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
from thunder.runtime.autograd.layout import NodeLayout
from thunder.runtime.autograd.node import Key
from thunder.runtime.autograd.program import AutogradProgram
from thunder.runtime.lock import collection_paused
from thunder.runtime.torch_private import any_autocast

__all__ = ["DifferentiableProgram", "backward_stages"]

# If all gradients together have fewer bytes, thunder does not check which of them autograd wants.
MIN_BYTES_TO_PRUNE = 1 << 16

# The minimum number of bytes of gradients in a stage. On a CPU, a stage uses its gradients again while they are in
# cache. On a GPU, a stage saves only memory, and costs the host the time of about ten launches.
MIN_STAGE_BYTES_CPU, MIN_STAGE_BYTES = 1 << 20, 1 << 28
MAX_STAGES = 8

Compile = Callable[[Trace], list[Trace]]


def _ignore(key: Key, traces: list[Trace]) -> None:
    pass


class DifferentiableProgram(AutogradProgram):
    """A compiled program that torch's autograd can differentiate.

    With `guarded`, guards ensure that all inputs in `wrt` require grad.
    """

    def __init__(self, split: Split, compile: Compile, *, remat: str = "auto", guarded: bool = True):
        self.split = split
        self.compile = compile
        self.remat = remat
        self.traces = [split.forward, *compile(split.forward)]
        self._log = current_log()
        self._backward_traces: dict[Key, list[Trace]] = {}
        # The check of which gradients are wanted takes time.
        worth = len(split.wrt) > 1 and sum(bytes_of(p) for p in split.wrt) >= MIN_BYTES_TO_PRUNE
        prunes = worth and split.takes_less_for_less()
        #: Called with the key and the traces of each backward program that is compiled.
        self.on_backward: Callable[[Key, list[Trace]], None] = _ignore
        program = self.traces[-1].python_callable(decorators=False)
        self.without_autocast = not guarded or any_autocast()  # otherwise the prologue guards that autocast is off
        if self.without_autocast:
            program = no_autocast(program)
        super().__init__(_layout_of(split, self.traces[-1], prunes=prunes, guarded=guarded), program)

    # -- traces -------------------------------------------------------------------------------------------------------
    @property
    def backward_traces(self) -> list[Trace]:
        """The traces of the backward program that ran last, or of the one for all gradients if none has run."""
        return self.ran.traces if isinstance(self.ran, DifferentiableProgram) else self.unrecorded_traces

    @property
    def unrecorded_traces(self) -> list[Trace]:
        """Like `backward_traces`, but only for backward programs that are not themselves differentiated."""
        key: Any = self.everything if self.ran is None or isinstance(self.ran, AutogradProgram) else self.ran
        self.backward_program(key)
        return self._backward_traces[key]

    @property
    def programs(self) -> list[Trace]:
        """The final traces of all compiled programs: the forward program and the backward programs."""
        recorded = [d.traces[-1] for d in self._recorded.values() if isinstance(d, DifferentiableProgram)]
        return [self.traces[-1], *[traces[-1] for traces in self._backward_traces.values()], *recorded]

    # -- backward -----------------------------------------------------------------------------------------------------
    def make_backward(self, key: Key) -> Callable[..., Any]:
        """Compile the backward program of a key."""
        with self._constraints_closed(), collection_paused(), self._log.active(), progress(self._log.program):
            start = perf_counter()
            trace = self._backward_trace(key)
            traces = [trace, *self.compile(trace)]
            program = traces[-1].python_callable(decorators=False)
            again = "another combination of " if self._backward_traces else ""
            self._backward_traces[key] = traces
            reason = f"{again}gradients arrived for the first time"
            record_program(self._log, reason, perf_counter() - start, traces, part="backward")
            self.on_backward(key, traces)
        return program

    def _backward_trace(self, key: Key) -> Trace:
        trace = self.split.backward(*key)
        stages = self.layout.stages
        if stages is not None and len(stages) > 1:
            trace.info["stages"] = stages
        return trace

    def make_native_backward(self, key: Key) -> Callable[..., Any]:
        """Compile the backward program of a key for torch's own operations."""
        with self._constraints_closed():
            return _natively(self._backward_trace(key))

    def make_recorded(self, key: Key) -> DifferentiableProgram | ThunderError:
        """Differentiate the backward program of a key, and compile it."""
        try:
            with self._constraints_closed(), self._log.active():
                return self._differentiated(key)
        except ThunderError as error:
            return error

    def make_native(self) -> Callable[..., Any]:
        """Compile the forward program for torch's own operations."""
        return _natively(self.split.source)

    def output_groups(self) -> dict[int, set[int]]:
        """Return groups of outputs that are differentiated together, and the saved values that each group reads."""
        return self.split.output_groups()

    def _constraints_closed(self) -> AbstractContextManager[None]:
        """Forbid new constraints on symbolic numbers, because the prologue that checks constraints already exists."""
        symbols = self.split.forward.info.get("symbols")
        return symbols.no_new_constraints() if symbols is not None and symbols.closed else nullcontext()

    def _differentiated(self, key: Key) -> DifferentiableProgram:
        trace = self.split.backward(*key, boxed=False)
        constant = {p.name for p in self.split.forward.output[1]}
        constant -= {p.name for p in self.split.wrt}
        constant -= {self.split.saved_as(p).name for p in self.split.outputs}
        wrt = [p for p in trace.args if isinstance(p, TensorProxy) and p.name not in constant]
        split = Split(trace, self.split.executors, wrt, remat=self.remat)
        return DifferentiableProgram(split, self.compile, remat=self.remat, guarded=False)


def _natively(trace: Trace) -> Callable[..., Any]:
    claimed = transform_for_execution(dce(trace), get_always_executors())[-1]
    return delete_last_used(claimed).python_callable(decorators=False)


# -- positions of values among the node's inputs and outputs ----------------------------------------------------------
def _layout_of(split: Split, program: Trace, *, prunes: bool, guarded: bool) -> NodeLayout:
    """Return the node's layout."""
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
    wanted = [inputs[p.name] for p in split.wrt]
    # Only tensors have edges in torch's graph.
    edges = {i: n for n, i in enumerate(i for i, p in enumerate(program.args) if isinstance(p, TensorProxy))}
    tensors = [i for i, p in enumerate(saved) if isinstance(p, TensorProxy)]
    several = guarded and split.returned > 1
    dependencies = split.reach() if several else []
    built, constants = _built(output, position, inputs, single)
    return NodeLayout(
        single=single,
        plain=not hidden and isinstance(output, Proxy) and output.name in position and not own,
        built=built,
        constants=constants,
        flat=_flat(output, position, hidden, single, own),
        flat_natively=_flat(output, position, hidden, single, set()),
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
        edges=[edges[i] for i in wanted],
        guarded=guarded,
        prunes=prunes,
        result_dependencies=dependencies if any(bits != dependencies[0] for bits in dependencies) else [],
        observed=any(op.sym.name == "prepare_reducer" for op in split.forward.bound_symbols),
        stages=_stages(split, program, prunes) if guarded else None,
        device=to_torch_device(split.wrt[0].device),
        retains=several,
    )


def _stages(split: Split, program: Trace, prunes: bool) -> list[list[int]] | None:
    """Return the gradients that each stage of a staged backward computes, or None if one node is enough."""
    found = backward_stages(split.forward, split.wrt) if prunes else [[*range(len(split.wrt))]]
    known = {p.name for p in split.wrt}
    # Inputs without a gradient must have no edge in torch's graph: torch would call their hooks with None.
    without_edge = any(getattr(p, "requires_grad", False) and p.name not in known for p in program.args)
    if len(found) < 2 and not without_edge:
        return None
    return found


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
    size = 0
    for i in sorted(range(len(wrt)), key=lambda i: -first.get(wrt[i].name, -1)):
        if size >= enough:
            stages.append([])
            size = 0
        stages[-1].append(i)
        size += sizes[i]
    return [sorted(stage) for stage in stages]


def _expression(output: Any, write: Callable[[Proxy], str], constants: list[Any]) -> str:
    """Return the Python expression that rebuilds an output. `write` returns the expression of a value."""
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


def _built(output: Any, position: dict[str, int], inputs: dict[str, int], single: bool) -> tuple[str, list[Any]]:
    """Return the expression of the user's output, from the node's outputs and the inputs, and its constants."""
    constants: list[Any] = []

    def write(p: Proxy) -> str:
        i = position.get(p.name)
        return f"x[{inputs[p.name]}]" if i is None else "t" if single else f"t[{i}]"

    return _expression(output, write, constants), constants


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
        parts = () if op.sym.is_fusion else op.subsymbols
        if (OpTags.VIEW_OP in op.sym.tags or any(OpTags.VIEW_OP in p.sym.tags for p in parts)) and op.arg_names:
            base = op.arg_names[0]
            memory.update(dict.fromkeys(op.out_names, memory.get(base, base)))
    seen = {p.name: memory.get(p.name, p.name) for p in (*proxies_in(program.output), *program.args)}
    holders = list(seen.values())
    return {name for name, now in results.items() if now in memory and holders.count(memory[now]) == 1}


def _flat(output: Any, position: dict[str, int], hidden: Sequence[int], single: bool, own: set[str]) -> str:
    """Return the expression of the node's outputs, from the forward's output and saved values.

    The outputs are the tensors in the order of `position`, then the hidden ones. A single output is not in a tuple. The
    names in `own` are unshared views, which are detached from their base, so that user code may write to them.
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
    return items[0] if single else f"({''.join(f'{item}, ' for item in items)})"
