# SPDX-License-Identifier: Apache-2.0
"""`Rewriter`: a pass over one trace that visits its operations in order and replaces some of them.

A subclass computes the replacements. This class does everything else: it creates the new trace with its provenance,
sets the contexts for recording, names the results, and substitutes them in later operations and in the output.
`thunder.RewritePass` (`transforms/rewrite.py`) offers the same as a transform, for users to subclass.

Contract: the replacement of a result has the same type. It also has the same name, unless it is an earlier value.
Operations inside other operations (decompositions, checkpointed regions, branches of `torch.cond`) are not visited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.langctx import set_langctx
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder.core.verify import same_type
from thunder.passes.dce import live_operations

__all__ = ["Rewriter", "rewrite"]


class Rewriter:
    """Rewrite a trace operation by operation. A subclass must initialize its state for each trace in `start`."""

    #: The name of the pass in the provenance of the new trace. The default is the name of the class.
    pass_name = ""
    #: The original trace (`trace`) and the new trace (`out`).
    trace: Trace
    out: Trace
    #: Whether anything was replaced, added or dropped.
    changed = False
    #: Whether to drop operations whose results are unused after the rewrite.
    drops_dead_code = True

    @property
    def _title(self) -> str:
        return self.pass_name or type(self).__name__

    def start(self) -> None:
        """Analyze the whole of `self.trace` before the first operation is rewritten."""

    def rewrite(self, op: BoundSymbol) -> Any:
        """Return the replacements of the results of `op`, or None to leave it unchanged.

        Operations that this method calls replace `op`. If it returns None, these operations are dropped. Otherwise it
        returns a value for each result of `op`: a value computed here, an earlier value, or None if nothing reads that
        result. To drop an operation without results, return `()`. To keep `op` and add operations, call
        `self.record(op)`, which returns the output of `op`; later operations then read the returned values instead. The
        arguments of `op` are already replaced.
        """
        return None

    def rewrite_output(self, output: Any) -> Any:
        """Return the new output of the program, given `output`."""
        return output

    def record(self, op: BoundSymbol) -> Any:
        """Record `op` unchanged and return its output, or `()` if it has none."""
        self.out.record(op)
        return () if op.output is None else op.output

    def run(self, trace: Trace) -> Trace:
        """Return the rewritten trace."""
        self.trace = trace
        self.start()
        replaced: dict[str, Any] = {}
        program = trace.bound_symbols
        end = program[-1] if program and program[-1].sym.is_return else None
        with construct(trace, self._title) as out, tracectx(out), set_langctx("torch"):
            self.out = out
            operations, rewrite = out.bound_symbols, self.rewrite
            for op in program if end is None else program[:-1]:
                if replaced:
                    op = op.substitute(replaced)
                before = len(operations)
                result = rewrite(op)
                if result is None:
                    operations[before:] = (op,)
                else:
                    self.changed = True
                    operations[before:] = self._replacement(op, result, operations[before:], replaced)
                    self._belong_with(op, operations[before:])
            if end is not None:
                self._return(end.substitute(replaced))
            if self.changed and self.drops_dead_code:
                operations[:] = live_operations(operations)
        return out

    def _belong_with(self, op: BoundSymbol, recorded: Sequence[BoundSymbol]) -> None:
        """Count the replacements of an operation of backward among the operations of backward."""
        for k, names in enumerate(self.out.info.get("backward", ())):
            if not names.isdisjoint(op.out_names):
                backward = list(self.out.info["backward"])
                backward[k] = names.union(_made_in(recorded))
                self.out.info["backward"] = backward

    def _return(self, op: BoundSymbol) -> None:
        output = op.args[0] if op.args else None
        before = len(self.out.bound_symbols)
        new = self.rewrite_output(output)
        if new is output:
            self.changed = self.changed or len(self.out.bound_symbols) > before
            self.out.record(op)
        else:
            self.changed = True
            prims.python_return(new)

    def _replacement(
        self, op: BoundSymbol, result: Any, recorded: Sequence[BoundSymbol], replaced: dict[str, Any]
    ) -> list[BoundSymbol]:
        """Return the operations recorded for `op`, with the names of its results. Add other values to `replaced`."""
        wanted, found = [] if op.output is None else _values(op.output), _values(result)
        if len(wanted) != len(found):
            raise ThunderError(
                f"{self._title}: the replacement of {op.sym.name} returned {len(found)} values instead of "
                f"{len(wanted)}{_at(op)}"
            )
        kept = any(call is op for call in recorded)
        made = set() if kept else {name for call in recorded for name in call.out_names}
        names: dict[str, Any] = {}
        for old, new in zip(wanted, found):
            if not isinstance(old, Proxy) or new is None:
                continue
            if isinstance(old, TensorProxy) and not (isinstance(new, TensorProxy) and same_type(old, new)):
                what = new.type_string() if isinstance(new, Proxy) else repr(new)
                raise ThunderError(f"{self._title} replaces a {old.type_string()} by a {what}{_at(op)}")
            if isinstance(new, Proxy):
                new = replaced.get(new.name, new)  # a value of the original trace, e.g. stored by `start`
            if isinstance(new, Proxy):
                if new.name == old.name:
                    continue
                if new.name in made and new.name not in names:
                    names[new.name] = old
                    continue
                new = names.get(new.name, new)
            replaced[old.name] = new
        for call in recorded:
            call.source = call.source or op.source
        return [call.substitute(names) for call in recorded] if names else list(recorded)


class _Function(Rewriter):
    """Rewrite by calling a function."""

    def __init__(self, name: str, replace: Callable[[BoundSymbol], Any], drops_dead_code: bool):
        self.pass_name = name
        self.drops_dead_code = drops_dead_code
        self._replace = replace

    def rewrite(self, op: BoundSymbol) -> Any:
        """Return the result of the function."""
        return self._replace(op)


def rewrite(trace: Trace, name: str, replace: Callable[[BoundSymbol], Any], *, drops_dead_code: bool = False) -> Trace:
    """Return a trace with replaced operations, or `trace` itself if nothing is replaced.

    `replace(operation)` follows the contract of `Rewriter.rewrite`. It calls the replacing operations and returns the
    replacement of the output in the same structure; None in the structure means that nothing reads that value. To keep
    the operation, it returns None. `name` is the name of the pass in the trace's provenance. Operations whose results
    become unused are dropped if `drops_dead_code` is set.
    """
    rewriter = _Function(name, replace, drops_dead_code)
    out = rewriter.run(trace)
    return out if rewriter.changed else trace


def _made_in(operations: Sequence[BoundSymbol]) -> Iterator[str]:
    """Yield the names of results, also of the parts of operations."""
    for op in operations:
        yield from op.out_names
        yield from _made_in(op.subsymbols)


def _values(result: Any) -> list[Any]:
    """Flatten an output of an operation or a result of `rewrite`."""
    if isinstance(result, (tuple, list)):
        return [value for item in result for value in _values(item)]
    if isinstance(result, dict):
        return _values(list(result.values()))
    return [result]


def _at(op: BoundSymbol) -> str:
    return f":\n  {str(op).splitlines()[0]}" + (f"\n  at {op.source}" if op.source else "")
