# SPDX-License-Identifier: Apache-2.0
"""The epilogue: a program that builds the user's result from the computation's results, and repeats the assignments
that the traced program made to the user's objects.

Containers and objects that the program created are created again at each call. Objects that existed before the call
are found by their sources.
"""

from __future__ import annotations

import collections
import collections.abc
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.fallback import RunsEagerly, fall_back
from thunder.capture.base.predicates import is_tensor
from thunder.capture.base.snapshots import CONTAINERS, Effect, Write, cell_value, slot, slot_names, variables
from thunder.capture.base.sources import Source
from thunder.capture.guards import guards
from thunder.capture.numbers.type_of import TypeOf
from thunder.capture.reads.classify import classify
from thunder.capture.reads.kinds.callables import Function
from thunder.capture.reads.kinds.leaves import Identity, Plain
from thunder.capture.reads.kinds.references import ClassKind
from thunder.capture.tensors.arrays import ArrayHandle, is_array_handle
from thunder.capture.tensors.handle import is_handle
from thunder.capture.tensors.layout import function_of
from thunder.core import prims
from thunder.core.printer import printable
from thunder.core.proxies import AnyProxy, Proxy, TupleProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.symint.numbers import SymbolicNumber, specialized
from thunder.core.trace import Trace
from thunder.executors.pythonex import ex as python_executor
from thunder.runtime import effects, output
from thunder.runtime.containers import dict_type, items_of
from thunder.runtime.guards import plain_base, plain_value
from thunder.runtime.output import Location

__all__ = ["Epilogue"]


# -- operations -------------------------------------------------------------------------------------------------------
def _no_meta(*args: Any) -> None:
    return None


def _effect(fn: Any) -> Symbol:
    """Declare an operation of epilogues."""
    return python_executor.register_operator(fn.__name__, meta=_no_meta, fn=fn, tags=(OpTags.SIDE_EFFECT,))


fill_object = _effect(effects.fill_object)
_OUTPUT = {s.name: s for s in map(_effect, (*output.EFFECTS, effects.count_write))}
_EFFECTS = {s.name: s for s in map(_effect, effects.ASSIGNMENTS)}


def _print_make(bsym: BoundSymbol, context: Any) -> list[str]:
    return [f"{bsym.output.name} = {printable(bsym.args[0], context)}"]


make = Symbol("make", _no_meta, id="python.make", is_prim=True, printer=_print_make, tags=(OpTags.SIDE_EFFECT,))
_OPERATORS = {
    fn.__name__: Symbol(fn.__name__, _no_meta, id=f"python.{fn.__name__}", is_prim=True, fn=fn)
    for fn in effects.CONSTRUCTORS
}


class Epilogue:
    """Builds the trace of a result and of assignments, and collects the tensors and targets that it needs."""

    def __init__(
        self,
        reached: dict[int, Any],
        writes: Sequence[Write],
        aliases: dict[int, tuple[Source, Any]],
        effects: Sequence[Effect] = (),
    ):
        self.trace = Trace("epilogue", signature="values, targets")
        self.trace.decorated = False
        self.tensors: list[Any] = []  # and symbolic numbers
        self.targets: list[tuple[Source, Any]] = []
        self.unguardable: str | None = None
        self._values: list[Proxy] = []
        self._proxies: dict[int, Proxy] = {}  # the values of tensors, by their ids
        self._target_proxies: dict[int, Proxy] = {}
        self._made: dict[int, Any] = {}
        self._repeated: dict[tuple[int, ...], Proxy] = {}  # views of `shared` memory, by the ids of their steps
        self._alive: list[Any] = []
        self._reached = reached
        self._aliases = aliases  # the program got copies of the call's containers; maps each to the caller's original
        self._writes = writes
        self._effects = effects
        self.shared: dict[int, Any] = {}  # handles of memory of which the results are views, by the ids of the storages

    @staticmethod
    def needed(result: Any, writes: Sequence[Write]) -> bool:
        """Check whether an epilogue is needed, i.e. whether there are writes or the result is not a plain structure."""
        return bool(writes) or not _is_plain(result)

    def build(self, result: Any, *, whole: bool = False) -> None:
        """Write the trace. With `whole`, the computation's first value is already the complete result."""
        trace = self.trace
        values, targets = TupleProxy((), name="values"), TupleProxy((), name="targets")
        trace.names |= {"values", "targets"}
        for effect in self._effects:
            self._effect(effect)
        for write in self._writes:
            self._write(write)
        if whole:
            output: Any = AnyProxy(name=trace.make_name("result"))
            self._values.insert(0, output)
        else:
            output = self.expression(result)
        body, trace.bound_symbols[:] = list(trace.bound_symbols), []
        for source, proxies in ((values, self._values), (targets, list(self._target_proxies.values()))):
            if proxies:
                trace.record(BoundSymbol(guards.unpack, (source,), {}, tuple(proxies)))
        trace.bound_symbols += body
        trace.record(BoundSymbol(_return(), (output,), {}, None))
        trace.args = [values, targets]

    def release(self) -> None:
        """Release references to the values that were written."""
        self._writes, self._effects, self._reached, self._aliases = (), (), {}, {}
        self.tensors.clear()
        self._proxies.clear()
        self._alive.clear()
        self._made.clear()
        self.shared.clear()

    def _write(self, write: Write) -> None:
        target = self._target(write.source, write.target)
        if write.kind.startswith("delete"):
            args: tuple[Any, ...] = (target, self._key(write.key))
        elif write.key is None:
            args = (target, self.expression(write.value))
        else:
            args = (target, self._key(write.key), self.expression(write.value))
        self.trace.record(BoundSymbol(_EFFECTS[write.kind], args, {}, None))

    def _key(self, key: Any) -> Any:
        return self._tensor(key) if is_tensor(key) else specialized(key)

    def _effect(self, effect: Effect) -> None:
        target = effect.target if effect.source is None else self._target(effect.source, effect.target)
        values = [x if isinstance(x, Location) else self.expression(x) for x in effect.values]
        self.trace.record(BoundSymbol(_OUTPUT[effect.operation], (target, *values), {}, None))

    def _target(self, source: Source, thing: Any) -> Proxy:
        if id(thing) in self._aliases:
            source, thing = self._aliases[id(thing)]
        found = self._target_proxies.get(id(thing))
        if found is None:
            self.targets.append((source, thing))
            found = self._target_proxies[id(thing)] = AnyProxy(name=self.trace.make_name("o"))
        return found

    # -- values -------------------------------------------------------------------------------------------------------
    def expression(self, x: Any) -> Any:
        """Return the trace's expression for a value. Values known only at run time are proxies in it."""
        if isinstance(x, SymbolicNumber) or is_tensor(x):
            return self._tensor(x)
        if is_array_handle(x):
            return self._array(x)
        if type(x) is torch.Size:  # printing would turn it into a plain tuple
            return self._make(x, "new_tuple", [self.expression(n) for n in x])
        x = type if x is TypeOf else x
        kind = classify(x)
        if isinstance(kind, (Plain, Identity)):
            return kind.rebuild(x, self)
        if id(x) in self._aliases:
            return self._target(*self._aliases[id(x)])
        known = self._reached.get(id(x))
        if known is not None and not isinstance(kind, (ClassKind, Function)):
            return self._target(known.source, x)
        if id(x) in self._made:
            return self._made[id(x)]
        self._alive.append(x)
        if isinstance(x, tuple) and type(x) is not tuple:
            return self._make(x, "new_tuple", [self.expression(i) for i in tuple.__iter__(x)])
        return kind.rebuild(x, self)

    # -- how kinds rebuild values that the program created -------------------------------------------------------------
    def constant(self, x: Any) -> Any:
        """Write the value itself, or a slice whose bounds are numbers or tensors of the program."""
        if type(x) is slice:
            bounds = [x.start, x.stop, x.step]
            if any(isinstance(i, SymbolicNumber) or is_tensor(i) for i in bounds):
                return self._make(x, "new_slice", *map(self.expression, bounds))
        return specialized(x)

    def kept(self, x: Any) -> Any:
        """Write an object that the program created, as it is."""
        if isinstance(x, (types.GeneratorType, collections.abc.Iterator)) or _holds_tensor(x):
            fall_back(f"the program returns or stores a {type(x).__name__} that uses its tensors after the call")
        if _holds_number(x):
            self.unguardable = f"the program returns or stores a {type(x).__name__} made with symbolic numbers"
        return x

    def not_rebuilt(self, x: Any) -> Any:
        """Write an object that cannot be rebuilt. The trace then cannot be cached."""
        kept = self.kept(x)
        self.unguardable = f"the program returns or stores a new {type(x).__name__}, which thunder cannot rebuild"
        return kept

    def new_mask(self, x: Any) -> Any:
        """Write a new causal mask of the same shape."""
        return self._make(x, "new_mask", x.variant, self.expression(x.seq_len_q), self.expression(x.seq_len_kv))

    def new_array(self, x: Any) -> Any:
        """Write a new array with the same elements."""
        out = self._made[id(x)] = AnyProxy(name=self.trace.make_name("a"))
        self.trace.record(BoundSymbol(_OPERATORS["new_array"], (x.copy(),), {}, out))
        return out

    def _tensor(self, x: Any) -> Proxy:
        known = self._proxies.get(id(x))
        if known is not None:
            return self._made.get(id(x), known)  # type: ignore[no-any-return]
        out = AnyProxy(name=self.trace.make_name("t"))
        base = self.shared.get(id(x._storage)) if is_handle(x) else None
        if base is not None and base is not x:
            self._proxies[id(x)] = self._repeat_views(x, self._tensor(base), out)
            return self._proxies[id(x)]
        self.tensors.append(x)
        self._values.append(out)
        self._proxies[id(x)] = out
        if is_handle(x) and x._tracer.input_with(x) is None:
            if "_is_param" in x.given_attributes:
                raise RunsEagerly("the program creates a parameter and stores it")
            if x._tracer.subclasses and not issubclass(x.__class__, torch.nn.Parameter):
                made = self._made[id(x)] = AnyProxy(name=self.trace.make_name("x"))
                operator = _OPERATORS["as_subclass"]
                self.trace.record(BoundSymbol(operator, (x.__class__, out), {}, made))
                out = made
            if x._freed is not None:
                out = self._freed(x, out)
            for name, value in x.given_attributes.items():
                self.trace.record(BoundSymbol(_EFFECTS["set_attribute"], (out, name, self.expression(value)), {}, None))
        return out

    def _freed(self, x: Any, found: Proxy) -> AnyProxy:
        """Return a result that requires grad, and whose `backward()` raises as for a graph that was freed."""
        if x._freed == "part":
            fall_back("the program returns or stores a tensor with a graph that backward() has freed in part")
        out = self._made[id(x)] = AnyProxy(name=self.trace.make_name("x"))
        self.trace.record(BoundSymbol(_OPERATORS["with_freed_graph"], (found,), {}, out))
        return out

    def _repeat_views(self, x: Any, base: Proxy, out: Proxy) -> Proxy:
        """Write the views from a base to a handle, except those that are written already, and return the last."""
        steps: list[Any] = [(function_of(view), view.args, view.kwargs, view.part) for view in x._views]
        if not steps or (x._is_new and x._views[-1].sym.facts.returns_input):
            steps.append((torch.Tensor.view_as, None, {}, None))  # another tensor, e.g. of `view` with the same shape
        for i, (function, args, kwargs, part) in enumerate(steps):
            path = (id(x._storage), *map(id, x._views[: i + 1]))
            is_last = i + 1 == len(steps)
            is_own = is_last and (x._is_new or not x._views)  # not the tensor of another handle with the same views
            if path in self._repeated and not is_own:
                base = self._repeated[path]
                continue
            found = out if is_last else AnyProxy(name=self.trace.make_name("t"))
            args = (base,) if args is None else specialized(args)
            given = function, base, args, specialized(kwargs), *([] if part is None else [part])
            self.trace.record(BoundSymbol(_OPERATORS["repeat_view"], given, {}, found))
            base = found
            if not is_own:
                self._repeated[path] = found
        return base

    def _array(self, x: ArrayHandle) -> Any:
        """Write an array from outside as it is, and a new array with the memory of its tensor."""
        if x._thunder_origin is not None:
            return self._target(*x._thunder_origin)
        if id(x) not in self._made:
            storage = getattr(x._thunder_tensor, "_storage", None)
            if storage is not None and any(storage in copies for _, copies in x._thunder_tensor._tracer.copied_views):
                raise RunsEagerly("the program returns or stores a view of a NumPy array that a tensor cannot express")
            self._alive.append(x)
            out = self._made[id(x)] = AnyProxy(name=self.trace.make_name("a"))
            constructor = _OPERATORS["number_of" if x._thunder_scalar else "array_of"]
            self.trace.record(BoundSymbol(constructor, (self._tensor(x._thunder_tensor),), {}, out))
        return self._made[id(x)]

    def _make(self, x: Any, operator: str, *args: Any) -> Proxy:
        out = AnyProxy(name=self.trace.make_name("x"))
        self._made[id(x)] = out
        self.trace.record(BoundSymbol(_OPERATORS[operator], (type(x), *args), {}, out))
        return out

    def new_container(self, x: Any) -> Any:
        """Write a new container with the same items."""
        kind = type(x)
        if kind is tuple:
            return tuple([self.expression(i) for i in x])
        if kind in (list, dict, set, frozenset) and not _contains_itself(x):
            if kind is frozenset:
                return frozenset(map(specialized, x))
            out = AnyProxy(name=self.trace.make_name("x"))
            items = (
                {self._key(k): self.expression(v) for k, v in x.items()}
                if kind is dict
                else kind([self.expression(i) for i in x])
            )
            self._made[id(x)] = out
            self.trace.record(BoundSymbol(make, (items,), {}, out))
            return out
        proxy = self._empty_container(x)
        self._fill(x, proxy)
        return proxy

    def _empty_container(self, x: Any) -> Proxy:
        if isinstance(x, collections.defaultdict):
            return self._make(x, "new_defaultdict", self.expression(x.default_factory))
        if isinstance(x, collections.deque):
            return self._make(x, "new_deque", x.maxlen)
        return self._make(x, "new_container")

    def new_object(self, x: Any) -> Any:
        """Write a new object with the same attributes."""
        if isinstance(x, (frozenset, BaseException)):
            return self.not_rebuilt(x)
        if plain_base(x) is not None:
            proxy = self._make(x, "new_plain", plain_value(x))
        else:
            proxy = self._empty_container(x) if isinstance(x, CONTAINERS) else self._make(x, "new_object")
        self._fill(x, proxy)
        return proxy

    def _fill(self, x: Any, proxy: Proxy) -> None:
        values = {k: self.expression(v) for k, v in (variables(x) or {}).items()}
        slots = {k: self.expression(v) for k in slot_names(type(x)) if (v := slot(x, k)) is not ABSENT}
        items: Any = None
        if isinstance(x, dict):
            items = [(self._key(k), self.expression(v)) for k, v in dict_type(x).items(x)]
        elif isinstance(x, CONTAINERS):
            items = [self.expression(i) for i in items_of(x)]
        self.trace.record(BoundSymbol(fill_object, (proxy, values, slots, items), {}, None))


def _holds_number(x: Any) -> bool:
    """Check whether a function, or a wrapper of a function, holds a symbolic number (e.g. in its closure)."""
    return _holds(x, lambda i: isinstance(i, SymbolicNumber))


def _holds_tensor(x: Any) -> bool:
    """Check whether a function, or a wrapper of a function, holds a tensor of the program (e.g. in its closure)."""
    return _holds(x, is_handle)


def _holds(x: Any, found: Callable[[Any], bool], seen: tuple[Any, ...] = ()) -> bool:
    if isinstance(x, functools.partial):
        held: list[Any] = [*x.args, *x.keywords.values(), x.func]
    elif isinstance(x, types.MethodType):
        held = [x.__func__]
    elif isinstance(x, types.FunctionType):
        held = [cell_value(cell) for cell in x.__closure__ or ()]
        held += [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
    else:
        return False
    seen = (*seen, x)
    held = [i for i in held if not any(i is known for known in seen)]
    return any(found(i) or _holds(i, found, seen) for i in held)


def _return() -> Symbol:
    return prims.python_return  # type: ignore[no-any-return]


def _contains_itself(x: Any) -> bool:
    """Check whether a list, dict or tuple contains itself, directly or in its items."""

    def reaches_itself(x: Any, around: tuple[int, ...]) -> bool:
        if type(x) not in (list, dict, tuple):
            return False
        items = x.values() if type(x) is dict else x
        return id(x) in around or any(reaches_itself(i, (*around, id(x))) for i in items)

    return reaches_itself(x, ())


def _is_plain(x: Any, around: tuple[int, ...] = ()) -> bool:
    """Check whether a trace can return `x` directly: tensors, numbers, strings and None in tuples, lists and dicts.

    `around` contains the ids of the containers of `x`. A container that contains itself is not plain.
    """
    kind = type(x)
    if kind in (tuple, list, dict):
        if id(x) in around:
            return False
        around = (*around, id(x))
    if kind in (tuple, list):
        return all(_is_plain(i, around) for i in x)
    if kind is dict:
        return all(type(k) in (str, int) and _is_plain(v, around) for k, v in x.items())
    if is_handle(x) and (x.given_attributes or x._freed or x._tracer.subclasses):
        return False
    return isinstance(x, SymbolicNumber) or is_tensor(x) or kind in (bool, int, float, str, type(None))
