# SPDX-License-Identifier: Apache-2.0
"""`@thunder.pattern`: replace a part of a program. The part and its replacement are written as functions.

    @thunder.pattern
    def gated(gate, up):                       # what to match
        return torch.nn.functional.silu(gate) * up

    @gated.replacement
    def _(gate, up):                           # the replacement: any function of the same arguments
        return my_gated(gate, up)

    thunder.jit(model, transforms=[gated])

Contract: a match consists of the same operations with the same dataflow. Names and operations in between do not matter.
The operands of commutative operations match in either order. A parameter of the pattern matches any argument (e.g. a
tensor or a number), and must match the same one at each of its uses. Literals of the pattern must be equal in the
program. Matches do not overlap.

A match is not replaced in three cases: a value inside it is used elsewhere, memory is written in between, or the
replacement could not run before its results are needed. The replacement must return tensors of the same shape, dtype
and device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from thunder.core.errors import ThunderError
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, argument_key, map_proxies, proxies_in
from thunder.core.trace import Trace, construct
from thunder.transforms.base import PassContext, Transform
from thunder.transforms.pattern_values import Call, Parameter, Picked, Value, written_by

__all__ = ["Pattern", "pattern"]


class Pattern(Transform):
    """A function to match and its replacement. `after_grad`: match in the forward and backward programs."""

    def __init__(
        self, match: Callable[..., Any], replace: Callable[..., Any] | None = None, *, after_grad: bool = False
    ):
        if not callable(match):
            raise TypeError(f"thunder.pattern requires a function, not {match!r}")
        if replace is not None and not callable(replace):
            raise TypeError(f"the replacement of a pattern must be a function, not {replace!r}")
        if type(after_grad) is not bool:
            raise TypeError(f"thunder.pattern(after_grad=…) requires True or False, not {after_grad!r}")
        self.match = match
        self.replace = replace
        self.after_grad = after_grad
        self.parameters = list(inspect.signature(match).parameters)
        self._written: Any = None

    @property
    def name(self) -> str:
        return f"pattern {getattr(self.match, '__name__', 'of a function')}"

    def replacement(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the function that replaces each match. It has the same parameters as the pattern."""
        if not callable(fn):
            raise TypeError(f"the replacement of a pattern must be a function, not {fn!r}")
        self.replace = fn
        return fn

    def has(self, phase: str) -> bool:
        return phase == ("before_execution" if self.after_grad else "before_grad")

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        return self.apply_to(trace, context)

    def transform_execution(self, trace: Trace, context: PassContext) -> Trace:
        return self.apply_to(trace, context)

    def apply_to(self, trace: Trace, context: PassContext) -> Trace:
        """Return the trace with all matches replaced."""
        if self.replace is None:
            raise ThunderError(
                f"the {self.name} has no replacement. Decorate one with @{self.match.__name__}.replacement"
            )
        if self._written is None:
            self._written = written_by(self.match)
        matches = list(_Matcher(trace, self._written).matches())
        if not matches:
            return trace
        return self._rewritten(trace, matches, context)

    def _rewritten(self, trace: Trace, matches: list[_Match], context: PassContext) -> Trace:
        at = {match.position: match for match in matches}
        gone = {i for match in matches for i in match.operations}
        with construct(trace, f"Replacement of the {self.name}") as out:
            renamed: dict[str, Any] = {}
            for i, bsym in enumerate(trace.bound_symbols):
                if i in at:
                    self._write(out, at[i], renamed, context)
                if i not in gone:
                    out.record(bsym.substitute(renamed) if renamed else bsym)
            if renamed:
                out.output = map_proxies(out.output, lambda p: renamed.get(p.name, p))
        return out

    def _write(self, out: Trace, match: _Match, renamed: dict[str, Any], context: PassContext) -> None:
        assert self.replace is not None and context.trace_into is not None
        arguments = [map_proxies(match.bound[name], lambda p: renamed.get(p.name, p)) for name in self.parameters]
        operations, result = context.trace_into(out, self.replace, arguments)
        wanted, found = match.results, _tensors(result)
        if len(wanted) != len(found):
            raise ThunderError(
                f"the replacement of the {self.name} returns {len(found)} tensors instead of {len(wanted)}"
            )
        made = {name for op in operations for name in op.out_names}
        names: dict[str, Any] = {}
        for old, new in zip(wanted, found):
            if old.type_string() != new.type_string():
                raise ThunderError(
                    f"the replacement of the {self.name} returns a {new.type_string()}, but the program has a "
                    f"{old.type_string()}: {match.where}"
                )
            if new.name in made and new.name not in names:
                names[new.name] = old
            else:
                renamed[old.name] = names.get(new.name, new)
        for op in operations:
            out.record(op.substitute(names) if names else op)


def pattern(match: Callable[..., Any] | None = None, *, after_grad: bool = False) -> Any:
    """Decorate a function to match, and return it as a transform. See `Pattern.replacement`."""
    if match is None:
        return lambda fn: Pattern(fn, after_grad=after_grad)
    return Pattern(match, after_grad=after_grad)


class _Match:
    """A match of a pattern: operations, values of parameters, results, and the position of the replacement."""

    def __init__(
        self, operations: set[int], bound: dict[str, Any], results: list[TensorProxy], position: int, where: str
    ):
        self.operations = operations
        self.bound = bound
        self.results = results
        self.position = position
        self.where = where


class _State:
    """The state of matching: the value of each parameter, and the operation that matches each call."""

    def __init__(self, bound: dict[str, Any], calls: dict[int, int]):
        self.bound = bound
        self.calls = calls

    def copy(self) -> _State:
        return _State(dict(self.bound), dict(self.calls))


class _Matcher:
    """Find a pattern in one trace."""

    def __init__(self, trace: Trace, written: Any):
        self.trace = trace
        self.program = trace.bound_symbols
        self.outputs = list(_values(written))
        self.made_at: dict[str, int] = {}
        self.used_at: dict[str, list[int]] = {}
        self.by_id: dict[Any, list[int]] = {}
        self.writes: list[int] = []
        for i, bsym in enumerate(self.program):
            for id in _ids(bsym):
                self.by_id.setdefault(id, []).append(i)
            for name in bsym.out_names:
                self.made_at.setdefault(name, i)
            for name in dict.fromkeys(bsym.arg_names):
                self.used_at.setdefault(name, []).append(i)
            if OpTags.IN_PLACE_OP in bsym.sym.tags:
                self.writes.append(i)

    def matches(self) -> Iterator[_Match]:
        """Yield the matches from last to first, so that the last of overlapping matches in a chain is chosen."""
        taken: set[int] = set()
        first = self.outputs[0].call
        for i in reversed(self.by_id.get(first.id, ())):
            if i in taken:
                continue
            for state in self._roots(i):
                match = self._checked(state)
                if match is not None and taken.isdisjoint(match.operations):
                    taken |= match.operations
                    yield match
                    break

    def _roots(self, index: int) -> Iterator[_State]:
        """Yield the matches in which the operation at `index` computes the first output."""
        states = list(self._call(self.outputs[0].call, index, _State({}, {})))
        for output in self.outputs[1:]:
            states = [
                after
                for state in states
                for i in self._candidates(output.call, state)
                for after in self._call(output.call, i, state)
            ]
        yield from states

    def _candidates(self, call: Call, state: _State) -> list[int]:
        if id(call) in state.calls:
            return [state.calls[id(call)]]
        names = {p.name for value in state.bound.values() for p in proxies_in(value)}
        users = {i for name in names for i in self.used_at.get(name, ())}
        found = self.by_id.get(call.id, [])
        direct = [i for i in found if i in users]
        return direct or found

    # -- unification --------------------------------------------------------------------------------------------------
    def _call(self, call: Call, index: int, state: _State) -> Iterator[_State]:
        """Yield each way in which the operation at `index` matches `call`, a call of the pattern."""
        known = state.calls.get(id(call))
        if known is not None or index in state.calls.values():
            if known == index:
                yield state
            return
        bsym = self.program[index]
        if call.id not in _ids(bsym) or len(bsym.args) != len(call.args) or bsym.kwargs.keys() != call.kwargs.keys():
            return
        state = state.copy()
        state.calls[id(call)] = index
        wanted = (*call.args, *(call.kwargs[k] for k in bsym.kwargs))
        given = (*bsym.args, *bsym.kwargs.values())
        yield from self._all(wanted, given, state)
        if bsym.sym.facts.commutative and len(call.args) == 2 and not call.kwargs:  # alpha= makes the call asymmetric
            yield from self._all((wanted[1], wanted[0], *wanted[2:]), given, state)

    def _all(self, wanted: Any, given: Any, state: _State) -> Iterator[_State]:
        if len(wanted) != len(given):
            return
        if not wanted:
            yield state
            return
        for after in self._one(wanted[0], given[0], state):
            yield from self._all(wanted[1:], given[1:], after)

    def _one(self, wanted: Any, given: Any, state: _State) -> Iterator[_State]:
        if isinstance(wanted, Parameter):
            if wanted.name in state.bound:
                if argument_key(state.bound[wanted.name]) == argument_key(given):
                    yield state
                return
            after = state.copy()
            after.bound[wanted.name] = given
            yield after
        elif isinstance(wanted, Picked):
            yield from self._picked(wanted, given, state)
        elif isinstance(wanted, Value):
            if isinstance(given, Proxy) and given.name in self.made_at:
                index = self.made_at[given.name]
                if isinstance(self.program[index].output, Proxy):
                    yield from self._call(wanted.call, index, state)
        elif type(wanted) in (tuple, list):
            if type(given) is type(wanted):
                yield from self._all(wanted, given, state)
        elif type(wanted) is slice:
            if type(given) is slice:
                yield from self._all(
                    (wanted.start, wanted.stop, wanted.step), (given.start, given.stop, given.step), state
                )
        elif argument_key(wanted) == argument_key(given):
            yield state

    def _picked(self, wanted: Picked, given: Any, state: _State) -> Iterator[_State]:
        """Match `x[i]`: one of several results of a call, or otherwise the indexing operation."""
        if not (isinstance(given, Proxy) and given.name in self.made_at):
            return
        index = self.made_at[given.name]
        output = self.program[index].output
        if isinstance(output, (tuple, list)):
            if type(wanted.key) is int and -len(output) <= wanted.key < len(output) and output[wanted.key] is given:
                yield from self._call(wanted.of.call, index, state)
        else:
            yield from self._call(wanted.call, index, state)

    # -- legality of a replacement -------------------------------------------------------------------------------------
    def _checked(self, state: _State) -> _Match | None:
        operations = set(state.calls.values())
        results = [self._result(output, state) for output in self.outputs]
        names = {p.name for p in results if isinstance(p, TensorProxy)}
        if len(names) != len(results):
            return None
        for i in operations:
            for name in self.program[i].out_names:
                if name not in names and not operations.issuperset(self.used_at.get(name, ())):
                    return None  # an inner value is used outside
        uses = [i for name in names for i in self.used_at.get(name, ()) if i not in operations]
        position = min((max(operations), *uses))
        inputs = [p.name for value in state.bound.values() for p in proxies_in(value)]
        if any(self.made_at.get(name, -1) >= position for name in inputs):
            return None  # results are needed before all inputs are computed
        if any(min(operations) < i <= max(operations) for i in self.writes):
            return None
        where = str(self.program[max(operations)].source or "")
        return _Match(operations, state.bound, results, position, where)  # type: ignore[arg-type]

    def _result(self, output: Value, state: _State) -> Any:
        if isinstance(output, Picked) and id(output.call) not in state.calls:
            return self.program[state.calls[id(output.of.call)]].output[output.key]
        return self.program[state.calls[id(output.call)]].output


def _ids(bsym: BoundSymbol) -> tuple[Any, ...]:
    """Return the ids of an operation in patterns. An elementwise primitive also has the id of torch's operation."""
    sym = bsym.sym
    if sym.is_prim and OpTags.ELEMENTWISE_OP in sym.tags:
        return sym.id, f"torch.{sym.name}"
    return (sym.id,)


def _values(x: Any) -> Iterator[Value]:
    """Yield the values in the result of a pattern. Raise an error if the pattern did not compute one of them."""
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from _values(item)
    elif isinstance(x, Value) and not isinstance(x, Parameter):
        yield x
    else:
        raise ThunderError(f"a pattern must return one or more tensors that its operations compute, not {x!r}")


def _tensors(x: Any) -> list[TensorProxy]:
    return [p for p in proxies_in(x) if isinstance(p, TensorProxy)]
