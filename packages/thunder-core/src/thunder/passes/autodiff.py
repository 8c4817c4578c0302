# SPDX-License-Identifier: Apache-2.0
"""Reverse mode differentiation of traces.

Each operation's gradient rule calls the operation and describes how gradients flow from its result to its inputs. It
does so with `get_grad`, which reads the gradient of a value, and `put_grad`, which adds to it. The operations that a
rule records are split in two: those that compute its result (the forward part) and all others (the backward part). The
joint trace consists of the forward parts in order, followed by the backward parts in reverse order, in which sums
replace `get_grad` and `put_grad`. `passes/split.py` splits the joint trace into a forward and a backward program.

Networks repeat their layers. Calls that differ only in names are therefore differentiated once
(`passes/trace_templates.py`). For this, an operation's own rule must be a function of its arguments' metadata. External
rules run for each call.

The rule of an operation is the first one that exists of these:

- the `grad_transform` of the executor that claims the operation;
- the rule set by `register_grad`;
- the operation's own rule;
- the rules of the operations in its decomposition.

Contract: the input trace ends with a return. An operation without a rule must be marked NON_DIFFERENTIABLE, or
decompose into operations that have rules. The outputs, random numbers and writes of the program stay the same. Writes
to inputs come after all operations that read these inputs.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_inexact_dtype, to_torch_dtype
from thunder.core.errors import ThunderError, mark_as_of_extension, name_source
from thunder.core.executor import ExecutorLike
from thunder.core.langctx import set_langctx
from thunder.core.prims.autodiff import rule_of_vjp, zeros_of
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import SourceLine, count_registration, current_trace, state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in, renamed
from thunder.core.trace import Trace, construct
from thunder.passes.merged_casts import MERGED_CASTS, WideGradients, converted
from thunder.passes.remat import is_cheap
from thunder.passes.trace_templates import Names, Recorded, Unlike, Values, likeness

__all__ = ["GradRule", "JointTrace", "differentiate", "register_grad"]

GradRule = Callable[..., Any]

_registered: dict[Any, GradRule] = {}


def register_grad(sym_or_id: Symbol | Any, rule: GradRule) -> None:
    """Set the gradient rule of an operation, given by its symbol or id."""
    _registered[sym_or_id.id if isinstance(sym_or_id, Symbol) else sym_or_id] = rule
    count_registration()


def grad_rule(bsym: BoundSymbol, executors: Sequence[ExecutorLike] = ()) -> GradRule | None:
    """Return the gradient rule for a call, or None if the call is differentiated through its decomposition."""
    sym = bsym.sym
    registered = _registered.get(sym.id)
    # Finding the claiming executor takes time, and is only necessary if one of the executors has a rule.
    preferred = getattr(executors, "preferred", None)
    if preferred is not None:
        executors = preferred(bsym, differentiated=True) or executors
    named = getattr(executors, "named", True)  # same as `thunder.extend.are_named`, which is in a higher layer
    for executor in executors if _bringing(sym, executors) else ():
        if executor.is_fallback and registered is not None:
            break  # a registered rule takes precedence over the torch executor's
        rule = executor.grad_rule(bsym, named=named)
        if rule is not None:
            return rule
        if executor.takes(bsym, named=named):
            break  # this executor claims the operation and has no rule
    rule = registered or sym.grad_rule
    if rule is None and sym.vjp_rule is not None:
        rule = rule_of_vjp(sym, sym.vjp_rule)
    return rule


def _bringing(sym: Symbol, executors: Sequence[ExecutorLike]) -> list[ExecutorLike]:
    """Return the executors that have a gradient rule for an operation."""
    found = [(ex, ex.implmap.get(sym.id)) for ex in executors]
    return [ex for ex, brought in found if brought is not None and brought.grad_transform is not None]


def _has_its_own_rule(sym: Symbol, executors: Sequence[ExecutorLike]) -> bool:
    """Check whether the gradient rule of `sym` depends only on a call's arguments. External rules may have state."""
    return (
        sym.joint_rule is None
        and sym.id not in _registered
        and all(executor.is_fallback for executor in _bringing(sym, executors))
    )


def _refuse_write(bsym: BoundSymbol) -> None:
    target = bsym.args[1].name
    raise ThunderError(
        f"the program writes a value that requires grad into its input {target}: gradients cannot flow back through "
        f"that write. Write under torch.no_grad(), write a detached value, or return the value instead{_at(bsym)}"
    )


def _stands_for(got: Proxy, want: Proxy) -> bool:
    """Check whether a rule's result may replace the operation's result. Only known sizes are compared."""
    if not isinstance(want, TensorProxy):
        return True
    return (
        isinstance(got, TensorProxy)
        and got.dtype is want.dtype
        and got.device is want.device
        and len(got.shape) == len(want.shape)
        and all(m == n for m, n in zip(got.shape, want.shape) if type(m) is type(n) is int)
    )


def _at(bsym: BoundSymbol) -> str:
    return f"\n  at {bsym.source}" if bsym.source else ""


class _Block:
    """The backward operations that one rule recorded, and their renaming if they are reused for another call."""

    __slots__ = ("asked", "backward", "fresh", "names", "source")

    def __init__(self, backward: list[BoundSymbol]):
        self.take(backward)
        self.names: dict[str, Any] = {}
        self.fresh: dict[str, str] | None = None
        self.source: SourceLine | None = None

    def take(self, backward: list[BoundSymbol]) -> None:
        """Replace the operations of this block by `backward`."""
        self.backward = backward
        self.asked = [op.args[0] for op in backward if op.sym is prims.get_grad]  # values whose gradients are read

    def again(self, names: dict[str, Any], fresh: dict[str, str], source: SourceLine | None) -> _Block:
        """Return a copy of this block for another call, with the call's names."""
        new = object.__new__(_Block)
        new.backward, new.asked, new.names, new.fresh, new.source = self.backward, self.asked, names, fresh, source
        return new


class _Differentiated(Recorded):
    """The recording of a call, which is reused for calls that differ only in names."""

    __slots__ = ("blocks", "call", "handed_on", "tracked")

    def __init__(
        self,
        call: BoundSymbol,
        forward: list[BoundSymbol],
        blocks: list[_Block],
        handed_on: dict[str, Any],
        values: Values,
        made: list[str],
        tracked: set[str],
    ):
        super().__init__(values, made, forward)
        self.call = call
        self.blocks = blocks
        self.handed_on = handed_on
        self.tracked = [name for name in (*self.names, *made) if name in tracked]
        if not values.place.keys() >= handed_on.keys():
            raise Unlike

    def inner(self) -> list[BoundSymbol]:
        forward = [op for op in self.operations if op is not self.call]
        return [*forward, *[op for block in self.blocks for op in block.backward]]


class JointTrace:
    """A program and its derivative, before they become one trace.

    `trace` contains the forward operations. `backward(cotangents)` records the backward operations into the current
    trace. With `into`, the forward operations are recorded into that trace instead of a new one. With `path`, gradients
    flow only through operations with one of these results; other operations stay as they are.
    """

    def __init__(
        self,
        source: Trace,
        wrt: Sequence[TensorProxy],
        executors: Sequence[ExecutorLike] = (),
        *,
        into: Trace | None = None,
        path: Container[str] | None = None,
    ):
        self.executors = executors
        self.trace = source.derive() if into is None else into
        self.env: dict[str, Any] = {}  # value of the source trace -> value in `trace`
        self.tracked: set[str] = {p.name for p in wrt}  # the values that depend on `wrt`
        self.blocks: list[_Block] = []
        self.output: Any = None
        self._known: dict[Any, _Differentiated] = {}
        self._sums: dict[Any, tuple[Recorded, Any]] = {}
        self._merged_casts: dict[str, Any] = source.info.get(MERGED_CASTS, {})
        self._rules: dict[Symbol, GradRule | None] = {}
        self._own: dict[Symbol, bool] = {}
        with tracectx(self.trace), set_langctx("torch"):
            for bsym in source.bound_symbols:
                if path is None or any(name in path for name in bsym.out_names):
                    self._forward(bsym, self._once)
                else:
                    self.trace.record(bsym.substitute(self.env) if self.env else bsym)

    # -- forward ------------------------------------------------------------------------------------------------------
    def _forward(self, bsym: BoundSymbol, differentiate: Callable[[BoundSymbol], None]) -> None:
        if self.env:
            bsym = bsym.substitute(self.env)
        sym = bsym.sym
        if sym is prims.python_return:
            self.output = bsym.args[0]
        elif OpTags.UNPACK_OP in sym.tags or not self._depends(bsym) or not sym.differentiable:
            if sym is prims.copy_ and bsym.args[0].name in self.tracked:
                _refuse_write(bsym)
            self.trace.record(bsym)
        else:
            differentiate(bsym)

    def _once(self, bsym: BoundSymbol) -> None:
        """Differentiate a call. Reuse an earlier recording if that call differs only in names."""
        values = Values()
        key = None
        with contextlib.suppress(Unlike):
            key = self._likeness(bsym, values)
        if key is None:
            self._differentiate(bsym)
            return
        known = self._known.get(key)
        if known is not None:
            self._again(known, bsym, values)
            return
        names, first, env = Names(self.trace), len(self.blocks), len(self.env)
        with self.trace.scope() as forward:
            self._differentiate(bsym)
        for op in forward:
            self.trace.record(op)
        with contextlib.suppress(Unlike):
            handed_on = {name: self.env[name] for name in islice(reversed(self.env), len(self.env) - env)}
            self._known[key] = _Differentiated(
                bsym, forward, self.blocks[first:], handed_on, values, names.made(), self.tracked
            )

    def _likeness(self, bsym: BoundSymbol, values: Values) -> Any:
        """Return a key of everything that determines a call's derivative (including its decomposition, if used)."""
        sym = bsym.sym
        own = self._own.get(sym)
        if own is None:
            own = self._own[sym] = _has_its_own_rule(sym, self.executors)
        if not own:
            raise Unlike
        parts: Any = None
        if self._rule(bsym) is None:
            parts = tuple([self._likeness(part, values) for part in bsym.subsymbols])
        tracked = self.tracked
        return (
            sym,
            parts,
            tuple([likeness(x, values, tracked) for x in bsym.args]),
            likeness(bsym.kwargs, values, tracked) if bsym.kwargs else None,
            likeness(bsym.output, values, tracked),
        )

    def _again(self, known: _Differentiated, bsym: BoundSymbol, values: Values) -> None:
        """Record the operations of an equal call again, under new names."""
        names, fresh = known.renamed(values, self.trace)
        for op in known.operations:
            self.trace.record(bsym if op is known.call else op.substitute(names, fresh, bsym.source))
        self.blocks += [block.again(names, fresh, bsym.source) for block in known.blocks]
        for old, new in known.handed_on.items():
            self.env[names[old].name] = map_proxies(new, lambda p: renamed(p, names, fresh))
        self.tracked.update([names[n].name if n in names else fresh[n] for n in known.tracked])

    def _rule(self, bsym: BoundSymbol) -> GradRule | None:
        """Return the gradient rule for a call. The rule depends on the symbol alone, unless an executor provides it."""
        sym = bsym.sym
        if sym not in self._rules:
            rule = grad_rule(bsym, self.executors)
            if _bringing(sym, self.executors):
                return rule
            self._rules[sym] = rule
        return self._rules[sym]

    def _differentiate(self, bsym: BoundSymbol) -> None:
        sym = bsym.sym
        if sym.joint_rule is not None:
            forward, backward = sym.joint_rule(bsym, self)
            for op in forward:
                self.trace.record(op)
            self.blocks.append(_Block(backward))
            return
        rule = self._rule(bsym)
        if rule is not None:
            self._apply(rule, bsym)
        elif bsym.subsymbols:
            self._through_decomposition(bsym)
        elif bsym.out_names:
            owner = sym.executor
            raise ThunderError(
                f"{sym.name} has no gradient rule. Register one with thunder.core.transforms.register_grad, or exclude "
                f"its arguments from the gradient with .detach(){_at(bsym)}"
                + ("" if owner is None else f"\n  it is an operator of the executor {owner.name!r}")
            )

    def _through_decomposition(self, bsym: BoundSymbol) -> None:
        """Differentiate an operation by the rules of the operations in its decomposition.

        The forward program keeps the operation whole if backward needs only its inputs, its outputs and values that are
        cheap to recompute from them. Otherwise the operations of its decomposition replace it.
        """
        first, known = len(self.blocks), len(self.env)
        with self.trace.scope() as parts:
            for sub in bsym.subsymbols:
                self._forward(sub, self._differentiate)
        again = None if len(self.env) != known else _recomputed(self.blocks[first:], bsym, parts)
        if again is None:
            for part in parts:
                self.trace.record(part)
            return
        self.trace.record(bsym)
        if again:
            self.blocks.append(_Block(self._as_new(again, self.blocks[first:])))

    def _as_new(self, again: list[BoundSymbol], blocks: list[_Block]) -> list[BoundSymbol]:
        """Return the operations that backward recomputes, with new names for their results.

        The names must be new because a program that was differentiated before may already contain these values.
        """
        made = [p for op in again for p in op.flat_outs if isinstance(p, TensorProxy) and p.name in op.out_names]
        names = {p.name: TensorProxy(like=p, name=self.trace.make_name("t")) for p in made}
        self.tracked.update(new.name for old, new in names.items() if old in self.tracked)
        for block in blocks:
            block.take([op.substitute(names) for op in block.backward])
        return [op.substitute(names) for op in again]

    def _depends(self, bsym: BoundSymbol) -> bool:
        args = bsym.args[:1] if bsym.sym is prims.assign_value else bsym.flat_args  # no gradient reaches the value
        return any(p.name in self.tracked and isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype) for p in args)

    def _apply(self, rule: GradRule, bsym: BoundSymbol) -> None:
        backward = getattr(rule, "backward", None)
        source, state.source = state.source, bsym.source
        outer, state.differentiated = state.differentiated, self.tracked
        try:
            with self.trace.scope() as recorded:
                if backward is not None:
                    backward(bsym.output, *bsym.args, **bsym.kwargs)
                else:
                    result = rule(*bsym.args, **bsym.kwargs)
        except Exception as error:
            name_source(error, f"{self._whose(rule, bsym)}{_at(bsym)}", self._owner(rule, bsym))
            raise
        finally:
            state.source, state.differentiated = source, outer
        if backward is not None:
            self.trace.record(bsym)
            result, names = bsym.output, {}
            forward, rest = _split(recorded, set())
        else:
            names = self._rename(bsym, result, recorded, rule)
            if names:
                recorded = [op.substitute(names) for op in recorded]
            results = {p.name for p in proxies_in(map_proxies(result, lambda p: names.get(p.name, p)))}
            forward, rest = _split(recorded, results)
        for op in forward:
            self.trace.record(op)
        self.tracked.update(
            p.name for p in proxies_in(bsym.output) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)
        )
        self.blocks.append(_Block(rest))

    def _whose(self, rule: GradRule, bsym: BoundSymbol) -> str:
        """Return the description of a rule for error messages."""
        executor = self._owner(rule, bsym)
        if executor is not None:
            return f"the gradient rule of the executor {executor.name!r} for {bsym.sym.name}"
        return f"the gradient rule of {bsym.sym.name}"

    def _owner(self, rule: GradRule, bsym: BoundSymbol) -> ExecutorLike | None:
        """Return the executor that registered a rule, or None if the rule belongs to the operation."""
        for executor in _bringing(bsym.sym, self.executors):
            if executor.implmap[bsym.sym.id].grad_transform is rule and not executor.is_fallback:
                return executor
        return None

    def _rename(self, bsym: BoundSymbol, result: Any, recorded: list[BoundSymbol], rule: GradRule) -> dict[str, Any]:
        """Rename the values of the rule's result to the names of the output that they replace."""
        old, new = proxies_in(bsym.output), proxies_in(result)
        if len(old) != len(new):
            raise _of_rule(
                f"{self._whose(rule, bsym)} returned {len(new)} values instead of {len(old)}: it must return the same "
                f"values as the operation{_at(bsym)}"
            )
        made = {name for op in recorded for name in op.out_names}
        names: dict[str, Any] = {}
        for want, got in zip(old, new):
            if want.name == got.name:
                continue
            if not _stands_for(got, want):
                raise _of_rule(
                    f"{self._whose(rule, bsym)} returned a {got.type_string()}, but the operation returns a "
                    f"{want.type_string()}{_at(bsym)}"
                )
            if got.name in made and got.name not in names:
                names[got.name] = want
            else:  # the result is an input: its gradients flow into that input
                self.env[want.name] = names.get(got.name, got)
                self.tracked.add(self.env[want.name].name)
        return names

    # -- backward -----------------------------------------------------------------------------------------------------
    def backward(self, cotangents: dict[str, TensorProxy], wrt: Sequence[TensorProxy]) -> list[TensorProxy | None]:
        """Record the backward program into the current trace and return the gradients of `wrt`.

        A gradient is None if none flows. `cotangents` maps names of outputs to their gradients.
        """
        grads: dict[str, Any] = dict(cotangents)
        names = [self.env.get(p.name, p).name for p in wrt]
        found: dict[str, Any] = dict.fromkeys(names)  # gradients by name of a value; complete when they are read
        with set_langctx("torch"):
            for block in reversed(self.blocks):
                self._replay(block, grads, found)
            gradients = [grads.get(name, found[name]) for name in names]
            return [g if g is None else converted(g, p.dtype) for g, p in zip(gradients, wrt)]

    def _replay(self, block: _Block, grads: dict[str, Any], wanted: dict[str, Any]) -> None:
        env, fresh, source = dict(block.names), block.fresh, block.source
        asked = [renamed(a, env, fresh).name for a in block.asked]
        if asked and grads.keys().isdisjoint(asked):
            return  # no gradient arrives at this operation
        trace: Trace = current_trace()
        put: list[tuple[str, Any]] = []
        wide = WideGradients(trace, env, fresh)
        for op in block.backward:
            if op.sym is prims.get_grad:
                a = renamed(op.args[0], env, fresh)
                found = grads.get(a.name)
                env[op.output.name] = found if found is not None else zeros_of(a)
                wide.note(op.output, env[op.output.name])
            elif op.sym is prims.put_grad:
                name = renamed(op.args[0], env, fresh).name
                if name in self.tracked:
                    put.append((name, renamed(op.args[1], env, fresh)))
            elif not wide.replay(op):
                trace.record(op.substitute(env, fresh, source) if env else op)
        # A rule may return its input. So remove the gradient of the result before adding gradients of inputs.
        for name in asked:
            used = grads.pop(name, None)
            if name in wanted:
                wanted[name] = used
        for name, grad in put:
            before = grads.get(name)
            if before is not None:
                dtype = self._merged_casts.get(name)
                grad = self._sum(converted(before, dtype), converted(grad, dtype), trace)
            grads[name] = grad

    def _sum(self, a: Any, b: Any, trace: Trace) -> Any:
        """Return the sum of two gradients of the same value."""
        values = Values()
        key = None
        with contextlib.suppress(Unlike):
            key = likeness((a, b), values, set())
        if key is None:
            return a + b
        known = self._sums.get(key)
        if known is None:
            names = Names(trace)
            with trace.scope() as operations:
                result = a + b
            for op in operations:
                trace.record(op)
            with contextlib.suppress(Unlike):
                self._sums[key] = Recorded(values, names.made(), operations), result
            return result
        recorded, result = known
        env, fresh = recorded.renamed(values, trace)
        for op in recorded.operations:
            trace.record(op.substitute(env, fresh))
        return renamed(result, env, fresh)


def _recomputed(blocks: list[_Block], bsym: BoundSymbol, parts: list[BoundSymbol]) -> list[BoundSymbol] | None:
    """Return the operations that backward recomputes if `bsym` is kept whole, or None if that would not be cheap."""
    given = {*bsym.arg_names, *bsym.out_names}
    needed: set[str] = set()
    for block in blocks:
        made: set[str] = set()
        for op in block.backward:
            if OpTags.GRAD_OP in op.sym.tags:
                needed.update(p.name for p in op.flat_args[1:] if p.name not in made)
            else:
                needed.update(name for name in op.arg_names if name not in made)
            made.update(op.out_names)
    needed -= given
    again: list[BoundSymbol] = []
    for op in reversed(parts):
        if not any(name in needed for name in op.out_names):
            continue
        if not is_cheap(op) or not given.isdisjoint(op.out_names):  # an op that also computes a result would run twice
            return None
        needed.update(name for name in op.arg_names if name not in given)
        again.append(op)
    return again[::-1]


def _split(recorded: list[BoundSymbol], results: set[str]) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    """Split a rule's operations into those that compute its results and those for backward.

    Operations with effects belong to the forward part, except those that read gradients (e.g. checks of their sizes).
    """
    if not results and not any(op.has_effect for op in recorded):
        return [], recorded
    needed = set(results)
    gradients: set[str] = set()
    for op in recorded:
        if op.sym is prims.get_grad or not gradients.isdisjoint(op.arg_names):
            gradients.update(op.out_names)
    forward: list[BoundSymbol] = []
    backward: list[BoundSymbol] = []
    for op in reversed(recorded):
        is_grad = OpTags.GRAD_OP in op.sym.tags
        has_effect = op.has_effect and gradients.isdisjoint(op.arg_names)
        if not is_grad and (has_effect or not needed.isdisjoint(op.out_names)):
            needed.update(op.arg_names)
            forward.append(op)
        else:
            backward.append(op)
    return forward[::-1], backward[::-1]


def differentiable_outputs(output: Any, tracked: set[str]) -> list[TensorProxy]:
    """Return the outputs that gradients can flow into, without duplicates."""
    found = {p.name: p for p in proxies_in(output) if isinstance(p, TensorProxy)}
    return [p for name, p in found.items() if name in tracked and is_inexact_dtype(p.dtype)]


def differentiate(trace: Trace, executors: Sequence[ExecutorLike] = ()) -> Trace:
    """Return a program that computes the gradients of the outputs of `trace`: one for each floating point input.

    The cotangents of all outputs are ones. `requires_grad` of the inputs is ignored.
    """
    wrt = [p for p in trace.args if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)]
    with construct(trace, "Grad transform") as out:
        joint = JointTrace(trace, wrt, executors)
        out.names, out._counters = joint.trace.names, joint.trace._counters
        # Writes to inputs come last, because backward operations read the values from before the writes.
        program = joint.trace.bound_symbols
        first_write = next((i for i, op in enumerate(program) if writes(op)), len(program))
        out.bound_symbols[:] = program[:first_write]
        with tracectx(out), set_langctx("torch"):
            # After its result, the program returns values for its epilogue. These are not differentiated.
            keeps = "effects" in trace.info
            result = joint.output[0] if keeps else joint.output
            # The cotangent of a value is the number of times that it is returned.
            times = Counter(p.name for p in proxies_in(result))
            cotangents = {p.name: _full_like(p, times[p.name]) for p in differentiable_outputs(result, joint.tracked)}
            if not cotangents:
                raise ThunderError(
                    "grad: no output depends on a floating point input of the function, so there is nothing to "
                    "differentiate"
                )
            grads = joint.backward(cotangents, wrt)
            found: Any = [g if g is not None else zeros_of(p) for g, p in zip(grads, wrt)]
            out.bound_symbols += program[first_write:]
            if keeps:
                found = (found, *joint.output[1:])
            prims.python_return(found)
    return out


def _full_like(p: TensorProxy, value: float) -> Any:
    return ltorch.full(p.shape, float(value), device=to_torch_device(p.device), dtype=to_torch_dtype(p.dtype))


def writes(op: BoundSymbol) -> bool:
    """Check whether an operation, or one in its decomposition, writes to one of its inputs."""
    return op.has_effect and (OpTags.IN_PLACE_OP in op.sym.tags or any(writes(sub) for sub in op.subsymbols))


def _of_rule(message: str) -> ThunderError:
    """Return the error for a gradient rule that is wrong, which running eagerly would hide."""
    error = ThunderError(message)
    mark_as_of_extension(error)
    return error
