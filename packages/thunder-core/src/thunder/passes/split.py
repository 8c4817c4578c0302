# SPDX-License-Identifier: Apache-2.0
"""Split a differentiated program into a forward program, which saves values, and backward programs, which read them.

Each set of cotangents has its own backward program, which is created when it is first needed. It computes nothing for
outputs without a cotangent, or for gradients that are not needed. The saved values are chosen once for all gradients
(`passes/remat.py`). Backward recomputes all other values directly before their first use.

A saved value is an additional output of the forward program. So a backward program can itself be differentiated: its
gradient with respect to the saved values continues through the forward program. This gives derivatives of any order.

Contract: the forward program computes the same outputs, draws the same random numbers and makes the same writes as the
original program. It ends with `return (output, saved)`. A backward program is called with `(saved, *gradients)`, and
returns a list with a gradient or None for each value of `wrt`. It empties the list `saved`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import UnsupportedError
from thunder.core.executor import ExecutorLike
from thunder.core.groups import KEPT
from thunder.core.prims.structure import Saved
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, proxies_in
from thunder.core.trace import Trace, construct
from thunder.passes.autodiff import JointTrace, differentiable_outputs, writes
from thunder.passes.dce import dce, has_effect
from thunder.passes.remat import choose_saved, gathers_again, small_parts

__all__ = ["Split", "leading_to", "producers_of"]


class Split:
    """A differentiated program: one forward program, and a backward program for each set of cotangents and gradients.

    `outputs` are the values for which a backward program accepts cotangents. The first `returned` ones are outputs of
    the program; the others are saved values that depend on `wrt`. `wrt` is reduced to values that gradients flow to.
    """

    def __init__(
        self, trace: Trace, executors: Sequence[ExecutorLike], wrt: Sequence[TensorProxy], *, remat: str = "auto"
    ):
        self.source = trace
        self.wrt = list(wrt)
        self.executors = executors
        self._every: JointTrace | None = None
        # The constraints on symbolic sizes that were known before differentiation.
        self.constraints = [*trace.info["symbols"].constraints] if "symbols" in trace.info else []
        with construct(trace, "Forward") as forward:
            joint = self._joint = JointTrace(trace, wrt, executors)
            # An input that the program returns belongs to the caller. Its gradient does not pass through here.
            given = {p.name for p in trace.args}
            outputs = [p for p in differentiable_outputs(joint.output, joint.tracked) if p.name not in given]
            self.outputs: list[TensorProxy] = outputs
            self.returned = len(outputs)
            self.saved: list[Proxy] = []
            self._producers = producers_of(joint.trace.bound_symbols)
            # This backward program shows which values backward reads. It is also the one that is used in most cases.
            self._whole = self._record(joint, [True] * len(outputs), None)
            self._leave_out_what_nothing_flows_to()
            read = _inputs_of(self._whole[0])
            if "symbols" in trace.info:
                read = list({p.name: p for p in [*read, *_numbers_in(self._whole[0].bound_symbols)]}.values())
            results = [p for p in proxies_in(joint.output) if isinstance(p, TensorProxy)]
            backward, kept = self._whole[0].bound_symbols, trace.info.get(KEPT)
            keep = None if kept is None else kept.choose
            self.saved = choose_saved(read, self._producers, executors, remat, results, backward, keep)
            self._copies = _copies_before_writes(joint.trace, self.saved)
            if remat != "none":
                parts = small_parts(self.saved, self._producers, results)
                self._copies.update(_copies_by_fusers(joint.trace, parts, executors))
            self._find_outputs(given)
            forward.names = set(joint.trace.names)
            forward.bound_symbols[:] = joint.trace.bound_symbols
            with tracectx(forward):
                prims.python_return((joint.output, Saved(self.saved_as(p) for p in self.saved)))
        self.forward = forward

    def _leave_out_what_nothing_flows_to(self) -> None:
        trace, _ = self._whole
        flows = [g is not None for g in trace.output]
        if all(flows) or not any(flows):  # a result to which no gradient flows still requires grad
            return
        self.wrt = [p for p, flow in zip(self.wrt, flows) if flow]
        trace.output = [g for g in trace.output if g is not None]

    def _find_outputs(self, given: set[str]) -> None:
        """Add to `outputs` the saved values through which second derivatives flow."""
        known = {p.name for p in self.outputs} | (given - set(self._copies))
        dependent = _dependent(self._joint.trace.bound_symbols, {p.name for p in self.wrt}) - known
        for p in self.saved:
            if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype) and p.name in dependent:
                self.outputs.append(p)

    # -- backward -----------------------------------------------------------------------------------------------------
    def backward(self, present: Sequence[bool], wanted: Sequence[bool] | None = None, *, boxed: bool = True) -> Trace:
        """Return the backward program for the present cotangents and the wanted gradients.

        `present` has a flag for each of `outputs`, and `wanted` for each of `wrt`. If `boxed`, the program receives the
        saved values in one list, which it empties; otherwise as separate arguments.
        """
        joint = self._joint
        if any(there and p.name not in joint.tracked for p, there in zip(self.outputs, present)):
            joint = self._through_everything()
        with construct(Trace("backward"), "Backward") as out:
            everything = joint is self._joint and all(wanted or ()) and not any(present[self.returned :])
            if everything and all(present[: self.returned]):
                trace, cotangents = self._whole
            else:
                trace, cotangents = self._record(joint, present, wanted)
            available = {p.name for p in self.saved} | {p.name for p in cotangents}
            producers = self._producers if joint is self._joint else producers_of(joint.trace.bound_symbols)
            body = _with_what_is_missing(trace, available, producers)
            if self._copies:
                body = [op.substitute(self._copies) for op in body]
            out.names, out._counters = trace.names, trace._counters
            saved = [self.saved_as(p) for p in self.saved]
            out.args = [*saved, *cotangents]
            out.info["forward"], out.info["wrt"] = self.source, tuple(self.wrt)
            if "symbols" in self.source.info:  # symbolic sizes are shared with the source
                out.info["symbols"] = self.source.info["symbols"]
            out.bound_symbols[:] = [*[_input(p) for p in out.args], *body]
            if boxed:
                holder = out.add_name("saved")
                out.signature = ", ".join([holder, *[p.name for p in cotangents]])
                out.bound_symbols.insert(0, BoundSymbol(prims.unpack_saved, (holder,), {}, tuple(saved)))
        return out

    def takes_less_for_less(self) -> bool:
        """Check whether dropping the gradients of part of `wrt` saves operations."""
        trace, _ = self._whole
        needed: dict[str, int] = {}  # value -> bits of the gradients that need it
        for i, g in enumerate(trace.output):
            if isinstance(g, Proxy):
                needed[g.name] = needed.get(g.name, 0) | 1 << i
        everything = functools.reduce(operator.or_, needed.values(), 0)
        for op in reversed(trace.bound_symbols):
            some = functools.reduce(operator.or_, [needed.get(name, 0) for name in op.out_names], 0)
            if some not in (0, everything) and OpTags.VIEW_OP not in op.sym.tags:
                return True
            for name in op.arg_names:
                needed[name] = needed.get(name, 0) | some
        return False

    def reach(self) -> list[int]:
        """Return for each value of `wrt` the returned outputs that depend on it, as bits."""
        of, _ = self._results_of()
        return [of.get(g.name, 0) if isinstance(g, Proxy) else 0 for g in self._whole[0].output]

    def output_groups(self) -> dict[int, set[int]]:
        """Return groups of outputs that are differentiated together, and the saved values that each group reads.

        A group is a number with one bit per output; a saved value is an index into `saved`.
        Two groups may share backward operations only if these read no value of the forward program.
        """
        of, operations = self._results_of()
        groups = [1 << j for j in range(self.returned)]
        for op, bits in operations:
            if bits & (bits - 1) and any(name not in of for name in op.arg_names):
                together = functools.reduce(operator.or_, [g for g in groups if g & bits])
                groups = [g for g in groups if not g & bits] + [together]
        made = {name: op for op in self._whole[0].bound_symbols for name in op.out_names}
        slot = {p.name: i for i, p in enumerate(self.saved)}
        found: dict[int, set[int]] = {}
        for group in groups:
            read: set[int] = set()
            seen = set(of)
            stack = [name for op, bits in operations if bits & group for name in op.arg_names]
            while stack:
                name = stack.pop()
                if name in seen:
                    continue
                seen.add(name)
                if name in slot:
                    read.add(slot[name])
                else:  # backward computes or recomputes it
                    stack += (made[name] if name in made else self._producers[name][1]).arg_names
            further = range(self.returned, len(self.outputs))
            found[group | sum(1 << j for j in further if slot[self.outputs[j].name] in read)] = read
        return found

    def _results_of(self) -> tuple[dict[str, int], list[tuple[BoundSymbol, int]]]:
        """Return, as bits, the outputs whose cotangents each backward value depends on, and operations with bits."""
        trace, cotangents = self._whole
        of = {p.name: 1 << j for j, p in enumerate(cotangents)}
        operations = []
        for op in trace.bound_symbols:
            bits = functools.reduce(operator.or_, [of.get(name, 0) for name in op.arg_names], 0)
            if bits:
                of.update((name, of.get(name, 0) | bits) for name in op.out_names)
                operations.append((op, bits))
        return of, operations

    def saved_as(self, p: Proxy) -> Proxy:
        """Return the value that is saved for `p`, which backward reads: `p` itself or a copy."""
        return self._copies.get(p.name, p)  # type: ignore[no-any-return]

    def _record(
        self, joint: JointTrace, present: Sequence[bool], wanted: Sequence[bool] | None
    ) -> tuple[Trace, list[TensorProxy]]:
        """Return a backward program that reads values of the forward program, with its cotangents."""
        trace = Trace("backward")
        trace.names, trace._counters = set(joint.trace.names), dict(joint.trace._counters)
        cotangents: dict[str, TensorProxy] = {}
        with tracectx(trace):
            for p, there in zip(self.outputs, present):
                if there:
                    name = trace.add_name(f"grad_{p.name}")
                    cotangents[p.name] = TensorProxy(like=p, name=name, requires_grad=False)
            gradients = joint.backward(dict(cotangents), self.wrt)
            if wanted is not None:
                gradients = [g if want else None for g, want in zip(gradients, wanted)]
            prims.python_return(gradients)
        trace.args = list(cotangents.values())
        return dce(trace), list(cotangents.values())

    def _through_everything(self) -> JointTrace:
        """Differentiate the forward program itself.

        An operation's gradient rule may compute additional values in forward and save them. Second derivatives flow
        through these values too.
        """
        if self._every is None:
            program = self._joint.trace.derive()
            program.args = self.forward.args
            program.names, program._counters = set(self._joint.trace.names), dict(self._joint.trace._counters)
            operations = [op for op in self._joint.trace.bound_symbols if not writes(op)]
            program.bound_symbols[:] = operations
            self._every = JointTrace(program, self.wrt, self.executors)
        return self._every


def _input(p: Proxy) -> BoundSymbol:
    return BoundSymbol(prims.unpack_trivial, (p,), {}, p)


def producers_of(program: Sequence[BoundSymbol]) -> dict[str, tuple[int, BoundSymbol]]:
    """Return the producer of each value: the operation that computes it, with its position."""
    found: dict[str, tuple[int, BoundSymbol]] = {}
    for i, op in enumerate(program):
        if OpTags.UNPACK_OP not in op.sym.tags:
            for name in op.out_names:
                found[name] = (i, op)
    return found


def _dependent(program: Sequence[BoundSymbol], wrt: set[str]) -> set[str]:
    """Return the values that depend differentiably on `wrt`."""
    found = set(wrt)
    for op in program:
        if op.sym.differentiable and not found.isdisjoint(op.arg_names):
            found.update(op.out_names)
    return found


def _inputs_of(trace: Trace) -> list[Proxy]:
    """Return the values that a program reads but does not compute, in the order of their first use."""
    made: set[str] = {p.name for p in trace.args}
    found: dict[str, Proxy] = {}
    for op in trace.bound_symbols:
        for p in op.flat_args:
            if p.name not in made:
                found.setdefault(p.name, p)
        made.update(op.out_names)
    return [p for name, p in found.items()]


def _numbers_in(program: Sequence[BoundSymbol]) -> list[Proxy]:
    """Return the symbolic numbers that operations or their executors read, including those in shapes.

    Numbers that the program computes from the shapes of recomputed values are excluded.
    """
    found: dict[str, Proxy] = {}
    made: set[str] = set()
    stack = list(program)
    while stack:
        op = stack.pop()
        stack += op.subsymbols
        made.update(op.out_names)
        for p in (*op.flat_args, *op.flat_outs):
            leaves = proxies_in(p.shape) if isinstance(p, TensorProxy) else [p]
            found.update((leaf.name, leaf) for leaf in leaves if isinstance(leaf, NumberProxy))
    return [p for name, p in found.items() if name not in made]


def _with_what_is_missing(
    trace: Trace, available: set[str], producers: dict[str, tuple[int, BoundSymbol]]
) -> list[BoundSymbol]:
    """Return the program with the recomputed forward operations, each inserted before its first use."""
    out: list[BoundSymbol] = []
    known = set(available)
    for op in trace.bound_symbols:
        missing = [name for name in op.arg_names if name not in known]
        if missing:
            for again in leading_to(missing, known, producers):
                # An operation with several results (e.g. chunk) may run again for one of them while another is saved.
                twice = {p.name: p.replace_name(trace.make_name()) for p in again.flat_outs if p.name in known}
                out.append(again.substitute(twice) if twice else again)
                known.update(again.out_names)
        out.append(op)
        known.update(op.out_names)
    return out


def leading_to(names: list[str], known: set[str], producers: dict[str, tuple[int, BoundSymbol]]) -> list[BoundSymbol]:
    """Return the operations that compute the values `names` from available values, in order."""
    found: dict[int, BoundSymbol] = {}
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in known or name not in producers:
            if name not in known:
                raise _lost(name)
            continue
        i, op = producers[name]
        if i in found:
            continue
        if has_effect(op) and not gathers_again(op):
            raise _lost(name, op)
        found[i] = op
        stack += op.arg_names
    return [found[i] for i in sorted(found)]


def _lost(name: str, op: BoundSymbol | None = None) -> UnsupportedError:
    what = f"the result of {op.sym.name}" if op is not None else f"the input {name}"
    at = f"\n  at {op.source}" if op is not None and op.source else ""
    return UnsupportedError(
        f"the gradient cannot be differentiated again: that needs {what}, which the forward program does not save. "
        f"Apply thunder's grad to the function twice, or call the function without thunder.jit{at}"
    )


def _copies_before_writes(forward: Trace, saved: list[Proxy]) -> dict[str, Any]:
    """Return copies of the saved values in memory that the forward program overwrites at its end.

    The copies are inserted into the forward program, before the writes.
    """
    program = forward.bound_symbols
    first_write = next((i for i, op in enumerate(program) if writes(op)), None)
    if first_write is None:
        return {}
    memory = {name for op in program[first_write:] if writes(op) for name in op.arg_names[1:]}
    for op in program[:first_write]:
        if OpTags.VIEW_OP in op.sym.tags and op.arg_names and op.arg_names[0] in memory:
            memory.update(op.out_names)
    copies: dict[str, Any] = {}
    for p in saved:
        if p.name in memory and isinstance(p, TensorProxy):
            op = _copy(forward, p)
            copies[p.name] = op.output
            program.insert(first_write, op)
    return copies


def _copies_by_fusers(
    forward: Trace, parts: Sequence[TensorProxy], executors: Sequence[ExecutorLike]
) -> dict[str, Any]:
    """Return copies to save instead of the views `parts`, if a fuser can make them. Insert each copy after its view."""
    copies: dict[str, Any] = {}
    for p in parts:
        op = _copy(forward, p)
        if any(ex.can_fuse(op) for ex in executors if hasattr(ex, "can_fuse")):
            place = next(i for i, made in enumerate(forward.bound_symbols) if p.name in made.out_names)
            forward.bound_symbols.insert(place + 1, op)
            copies[p.name] = op.output
    return copies


def _copy(forward: Trace, p: TensorProxy) -> BoundSymbol:
    """Return a copy of a value, with a name that no backward program has used."""
    copy = TensorProxy(like=p, name=forward.add_name(f"copy_of_{p.name}"))
    return BoundSymbol(prims.clone, (p,), {}, copy)
