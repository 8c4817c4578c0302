# SPDX-License-Identifier: Apache-2.0
"""Claiming: the first executor in the list that accepts an operation runs it.

The walk is top down. An executor claims a whole operation, or all operations that it decomposes into, before the next
executor is considered. If no executor claims an operation in this way, its subsymbols replace it and are claimed one by
one. Operations that a fusion executor can fuse stay unclaimed until that executor's pass over the whole trace has run.
Operations that it does not fuse are claimed afterwards.

Contract: the input contains no get_grad and put_grad. Values keep their names, shapes, dtypes and devices. Operations
keep their order, and each operation of the result is executable. An operation without a decomposition that no executor
claims raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thunder.core.errors import check, mark_as_of_extension, name_source
from thunder.core.events import current_log
from thunder.core.langctx import set_langctx
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import flat_items
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, Symbol, proxies_in
from thunder.core.trace import Trace, construct
from thunder.extend import Executor, FusionExecutor, Implementation, are_named
from thunder.passes.postponing import postponed_past_decisions

__all__ = ["Choice", "choose", "claim", "is_structural", "supports", "transform_for_execution"]


def is_structural(bsym: BoundSymbol) -> bool:
    """Check whether an operation belongs to the trace's frame (inputs, del, return) and runs as printed."""
    return bsym.sym.is_structural


def transform_for_execution(trace: Trace, executors: Sequence[Executor]) -> list[Trace]:
    """Return the traces of the passes from `trace` to a trace that `executors` can run."""
    fusers = [ex for ex in executors if isinstance(ex, FusionExecutor)]
    traces = [claim(postponed_past_decisions(trace) if fusers else trace, executors)]
    for fuser in fusers:
        traces.append(_fused_by(fuser, traces[-1]))
    if fusers:
        traces.append(claim(traces[-1], executors, name="Claim what was not fused", fusing=False))
    return traces


def _fused_by(fuser: FusionExecutor, trace: Trace) -> Trace:
    """Run the pass of a fusion executor over a trace. Errors name the executor."""
    what = f"the fusion_pass of the executor {fuser.name!r}"
    try:
        made = fuser.fusion_pass(trace)
    except Exception as error:
        name_source(error, what, fuser)
        raise
    check(isinstance(made, Trace), lambda: f"{what} returned {made!r} instead of a trace")
    return made


def claim(
    trace: Trace, executors: Sequence[Executor], name: str = "Transform for execution", *, fusing: bool = True
) -> Trace:
    """Return the trace with each operation replaced by the operator of the executor that claims it.

    With `fusing`, operations that fusion executors can fuse stay unclaimed. Otherwise the fusion executors' operators
    replace them.
    """
    with construct(trace, name) as out:
        claimer = _Claimer(out, executors, fusing)
        for bsym in trace.bound_symbols:
            claimer.whole = bsym
            claimer.take(bsym)
    return out


class _Claimer:
    """The state of one walk: the new trace, and the replacements of values."""

    def __init__(self, out: Trace, executors: Sequence[Executor], fusing: bool):
        self.out = out
        self.executors = executors
        self.fusing = fusing
        self.replaced: dict[str, Any] = {}
        # The choices that do not depend on an operation's arguments.
        self.unconditional: dict[Symbol, tuple[Executor, Implementation] | None] = {}
        self.whole: BoundSymbol | None = None  # the operation of the trace that is being claimed, for error messages

    def take(self, bsym: BoundSymbol, excluded: frozenset[tuple[str, Any]] = frozenset()) -> None:
        """Record the operations that run `bsym`.

        `excluded` are (executor, operation) pairs whose transform is already running.
        """
        if self.replaced:
            bsym = bsym.substitute(self.replaced)
        sym = bsym.sym
        if sym.is_structural or sym.is_fusion:
            self.out.record(bsym)
            return
        if not bsym.out_names and not sym.must_stay and not bsym.subsymbols:
            return  # the operation only returns inputs
        if sym not in self.unconditional:
            self.unconditional[sym] = self.unconditional_choice(sym)
        unconditional = self.unconditional[sym] if not excluded else None
        if unconditional is not None:
            self.execute(bsym, *unconditional, excluded)
            return
        choice = choose(bsym, self.executors, excluded, fusing=self.fusing)
        if choice.fused:
            self.out.record(bsym)
            return
        if choice.executor is not None and choice.implementation is not None:
            self.execute(bsym, choice.executor, choice.implementation, excluded)
            return
        if not bsym.subsymbols and bsym.out_names:
            error = RuntimeError(self.unclaimed(bsym))
            mark_as_of_extension(error)  # eager mode has no better way to run an operator without an implementation
            raise error
        if sym.is_kernel and bsym.subsymbols:
            self.note_missing_kernel(bsym, choice.rejections)
        for sub in bsym.subsymbols:
            self.take(sub, excluded)

    def note_missing_kernel(self, bsym: BoundSymbol, rejections: dict[str, str]) -> None:
        """Record why the executors that have a kernel for `bsym` do not run it."""
        having = [ex.name for ex in self.executors if bsym.sym.id in ex.implmap]
        why = "; ".join(f"{name}: {rejections[name]}" for name in having if name in rejections)
        reason = why or "none of the executors has one"
        current_log().add("kernel", f"{bsym.sym.name} ({reason})", where=bsym.source)

    def unconditional_choice(self, sym: Symbol) -> tuple[Executor, Implementation] | None:
        """Return the executor that claims every call of an operation: the first executor, if it accepts all calls."""
        preferred = getattr(self.executors, "preferred", None)
        if preferred is not None and preferred.concerns(sym):
            return None
        for executor in ordered(sym, self.executors):
            if self.fusing and isinstance(executor, FusionExecutor):
                return None
            implementation = executor.unconditional(sym)
            if implementation is not None:
                return executor, implementation
            if not executor.ignores(sym):
                return None
        return None

    def unclaimed(self, bsym: BoundSymbol) -> str:
        """Return the error message for `bsym`, which no executor claims, and for the operation that contains it."""
        whole = self.whole or bsym
        text = f"Could not find executor for bound symbol {whole}"
        if bsym.sym is not whole.sym:
            text += f"\nbecause no executor takes its part\n  {str(bsym).splitlines()[0]}"
        asked = ", ".join(ex.name for ex in self.executors) or "none"
        text += f"\n  executors asked: {asked}"
        owner = bsym.sym.executor
        if owner is not None and owner not in self.executors:
            text += f"; it is an operator of {owner.name}, which must be one of the executors"
        return text + _at(bsym)

    def execute(
        self,
        bsym: BoundSymbol,
        executor: Executor,
        implementation: Implementation,
        excluded: frozenset[tuple[str, Any]],
    ) -> None:
        """Record `bsym` as the executor runs it."""
        if implementation.op is bsym.sym:
            self.out.record(bsym)
            return
        if implementation.op is not None:
            args, kwargs = executor.arguments(bsym)
            self.out.record(bsym.run_by(implementation.op, args, kwargs))
            return
        assert implementation.execution_transform is not None
        with tracectx(self.out), self.out.scope() as operations, set_langctx("torch"):
            try:
                result = implementation.execution_transform(*bsym.args, **bsym.kwargs)
            except Exception as error:
                name_source(error, f"{_transform_of(executor, bsym)}{_at(bsym)}", executor)
                raise
        names = self.match(bsym, executor, result, operations)
        inner = excluded | {(executor.name, bsym.sym.id)}
        for op in operations:
            op = op.substitute(names) if names else op
            op.source = op.source or bsym.source
            self.take(op, inner)

    def match(
        self, bsym: BoundSymbol, executor: Executor, result: Any, operations: list[BoundSymbol]
    ) -> dict[str, Any]:
        """Return a renaming: the values of the transform's result get the names of `bsym`'s output."""
        old, new = proxies_in(bsym.output), flat_items(result)
        wanted = flat_items(bsym.output)
        check(
            len(wanted) == len(new),
            lambda: (
                f"{_transform_of(executor, bsym)} returned {len(new)} values instead of {len(wanted)}:\n"
                f"{bsym}{_at(bsym)}"
            ),
        )
        made = {name for op in operations for name in op.out_names}
        names: dict[str, Any] = {}
        for want, got in zip(wanted, new):
            if not isinstance(want, Proxy):
                continue
            _check_metadata(bsym, executor, want, got)
            if want.name == got.name:
                continue
            if got.name in made and got.name not in names:
                names[got.name] = want
            else:
                # The result is an input, or one value for two outputs. Later operations read that value instead.
                self.replaced[want.name] = names.get(got.name, got)
        assert old is not None
        return names


class Choice(NamedTuple):
    """The executor that claims an operation, and the reasons why earlier executors rejected the operation.

    Without an implementation, the executor fuses the operation (`fused`) or runs all its parts. None: no executor
    claims it.
    """

    executor: Executor | None
    implementation: Implementation | None
    fused: bool
    rejections: dict[str, str]


def choose(
    bsym: BoundSymbol,
    executors: Sequence[Executor],
    excluded: frozenset[tuple[str, Any]] = frozenset(),
    *,
    fusing: bool = True,
) -> Choice:
    """Choose the executor of an operation. `excluded` are (executor, operation) pairs to skip."""
    rejections: dict[str, str] = {}
    if not excluded:
        executors = _measured(bsym, executors, fusing)
    named = are_named(executors)
    for executor in ordered(bsym.sym, executors):
        if (executor.name, bsym.sym.id) in excluded or (not named and executor.ignores(bsym.sym)):
            continue
        if fusing and isinstance(executor, FusionExecutor):
            reason = executor.fuse_rejection(bsym)
            if reason is None:
                return Choice(executor, None, True, rejections)
            rejections[executor.name] = reason
        reason = executor.rejection(bsym, named=named)
        if reason is None:
            return Choice(executor, executor.implementation(bsym), False, rejections)
        if _can_run_parts(executor, bsym, excluded, named):
            return Choice(executor, None, False, rejections)
        rejections.setdefault(executor.name, reason)
    return Choice(None, None, False, rejections)


def _measured(bsym: BoundSymbol, executors: Sequence[Executor], fusing: bool) -> Sequence[Executor]:
    """Return the executors to which measurements offer a call; all executors if measurements do not decide."""
    preferred = getattr(executors, "preferred", None)
    found: Sequence[Executor] | None = None if preferred is None else preferred(bsym)
    if found is None or (not fusing and isinstance(found[0], FusionExecutor)):  # it was offered to the fuser already
        return executors
    return found


def supports(executor: Executor, bsym: BoundSymbol) -> bool:
    """Check whether an executor can run a call in any way, also where others are expected to be faster."""
    if isinstance(executor, FusionExecutor) and executor.fuse_rejection(bsym) is None:
        return True
    return executor.can_execute(bsym) or _can_run_parts(executor, bsym, frozenset(), True)


def ordered(sym: Symbol, executors: Sequence[Executor]) -> Sequence[Executor]:
    """Return the executors in order of their priority for this operation."""
    id = sym.id
    for executor in executors:
        found = executor.implmap.get(id)
        if found is not None and found.priority is not None:
            return sorted(executors, key=lambda ex: -_priority(ex, id))
    return executors


def _priority(executor: Executor, id: Any) -> int:
    found = executor.implmap.get(id)
    return executor.priority if found is None or found.priority is None else found.priority


def _can_run_parts(executor: Executor, bsym: BoundSymbol, excluded: frozenset[tuple[str, Any]], named: bool) -> bool:
    """Check whether the executor runs everything that the operation decomposes into, at some level."""

    def takes(part: BoundSymbol) -> bool:
        if not part.out_names and not part.sym.must_stay and not part.subsymbols:
            return True  # the operation only returns inputs
        if (executor.name, part.sym.id) not in excluded and executor.can_execute(part, named=named):
            return True
        return _can_run_parts(executor, part, excluded, named)

    return bool(bsym.subsymbols) and all(takes(part) for part in bsym.subsymbols)


def _check_metadata(bsym: BoundSymbol, executor: Executor, want: Proxy, got: Any) -> None:
    if isinstance(want, TensorProxy):
        same = isinstance(got, TensorProxy) and (
            want.shape == got.shape and want.dtype is got.dtype and want.device is got.device
        )
    else:
        same = isinstance(got, Proxy)
    check(
        same,
        lambda: (
            f"{_transform_of(executor, bsym)} returned "
            f"{f'a {got.type_string()}' if isinstance(got, Proxy) else repr(got)} where the operation gives a "
            f"{want.type_string()}:\n{bsym}{_at(bsym)}"
        ),
    )


def _transform_of(executor: Executor, bsym: BoundSymbol) -> str:
    return f"the execution_transform of the executor {executor.name!r} for {bsym.sym.name}"


def _at(bsym: BoundSymbol) -> str:
    return f"\n  at {bsym.source}" if bsym.source else ""
