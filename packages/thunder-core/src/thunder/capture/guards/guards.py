# SPDX-License-Identifier: Apache-2.0
"""Guards: what a specialization checks before it answers a call, as operators of the python executor.

Each raises `GuardFailed` when what it looks at is not what it was when the program was traced. They stand in the
prologue trace, which prints like any other.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.base.snapshots import class_attributes, dict_type
from thunder.capture.base.sources import filled
from thunder.capture.guards.messages import Message, said, shown
from thunder.core import pytree
from thunder.core.printer import printable
from thunder.core.proxies import AnyProxy, Proxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.pythonex import ex as python_executor
from thunder.runtime.torch_private import (
    any_autocast,
    current_device,
    deterministic,
    function_modes,
    matmul_precision,
    tensor_guards,
)

__all__ = ["GuardFailed", "TensorCheck", "condition_of", "guard", "same_contents", "same_value", "state_checks"]


class GuardFailed(Exception):
    """The specialization is not for this call. It is no error, only an answer.

    Its arguments are texts and values in turn: what was read, how it was, and how it is.
    """

    def __str__(self) -> str:
        return said(self.args)


class TensorsDiffer(GuardFailed):
    """Tensors are not as they were. What differs is found when somebody asks: this is how most lookups go on."""

    def __str__(self) -> str:
        check, tensors = self.args
        return check.explain(tensors)  # type: ignore[no-any-return]


_TAGS = (OpTags.CHECK_OP, OpTags.NON_DIFFERENTIABLE)


def _guard(fn: Callable[..., Any]) -> Symbol:
    """Decorator: an operator of the python executor that checks and returns nothing."""

    def meta(*args: Any) -> None:
        return None

    meta.__doc__ = fn.__doc__
    return python_executor.register_operator(fn.__name__, meta=meta, fn=fn, tags=_TAGS)


def state_checks() -> list[tuple[str, tuple[Any, ...], Message]]:
    """Conditions on the modes and defaults of torch that change what a program means, with operands and messages."""
    states: list[tuple[str, str, tuple[Any, ...], str]] = [
        ("torch.is_grad_enabled()", "is not", (torch.is_grad_enabled(),), "grad mode"),
        ("torch.is_inference_mode_enabled()", "is not", (torch.is_inference_mode_enabled(),), "inference mode"),
        ("torch.get_default_dtype()", "is not", (torch.get_default_dtype(),), "the default dtype"),
        ("current_device()", "!=", (current_device(),), "the default device"),
        ("function_modes()", "!=", (function_modes(),), "the number of torch function modes"),
        (
            "deterministic()",
            "is not",
            (deterministic(),),
            "the choice of deterministic algorithms",
        ),
        (
            "matmul_precision()",
            "!=",
            (matmul_precision(),),
            "the precision of products",
        ),
    ]
    off = [
        (
            "any_autocast()",
            (),
            Message("autocast was off and is on"),
        )
    ]
    autocast = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    if autocast:
        off = []
        for d in ("cpu", "cuda"):
            states.append(
                ("torch.is_autocast_enabled({1})", "is not", (torch.is_autocast_enabled(d), d), f"autocast on {d}")
            )
            states.append(
                (
                    "torch.get_autocast_dtype({1})",
                    "is not",
                    (torch.get_autocast_dtype(d), d),
                    f"autocast's dtype on {d}",
                )
            )
    return [
        (f"{now} {differs} {{0}}", operands, Message(f"{what} was {shown(operands[0])} and is", now))
        for now, differs, operands, what in states
    ] + off


def same_value(x: Any, expected: Any) -> bool:
    """Whether a plain value is of the same type and equal, down to the sign of zeros; NaN equals NaN."""
    if x is expected:
        return True
    kind = type(expected)
    if type(x) is not kind:
        return False
    if kind is tuple:
        return len(x) == len(expected) and all(map(same_value, x, expected))
    if kind is float or kind is complex:
        return repr(x) == repr(expected)
    if kind is slice or kind is range:
        return repr(x) == repr(expected)
    return bool(x == expected)


def same_contents(x: Any, expected: Any) -> bool:
    """Whether a container has the same plain values: `expected` is a tuple of its items, or a frozenset."""
    if isinstance(expected, frozenset):
        return len(x) == len(expected) and same_value(
            tuple(sorted(map(_typed, x))), tuple(sorted(map(_typed, expected)))
        )
    if isinstance(x, dict):
        x = dict_type(x).items(x)
        return len(x) == len(expected) and all(
            same_value(k, key) and same_value(v, value) for (k, v), (key, value) in zip(x, expected)
        )
    return len(x) == len(expected) and all(map(same_value, x, expected))


def _typed(x: Any) -> str:
    return f"{type(x).__qualname__}:{x!r}"


def _no_meta(*args: Any) -> None:
    return None


def same_attributes(cls: type, expected: dict[str, Any]) -> bool:
    """Whether a class has these very attributes and no others."""
    found = class_attributes(cls.__dict__)
    return found.keys() == expected.keys() and all(found[name] is value for name, value in expected.items())


_HELPERS = {
    "same_attributes": same_attributes,
    "same_value": same_value,
    "same_contents": same_contents,
    "current_device": current_device,
    "any_autocast": any_autocast,
    "function_modes": function_modes,
    "deterministic": deterministic,
    "matmul_precision": matmul_precision,
}


def _print_guard(bsym: BoundSymbol, context: Any) -> list[str]:
    condition, operands, message = bsym.args
    context.objects.setdefault("GuardFailed", GuardFailed)
    names = [_written(x, context) for x in operands]
    written = condition.format(*names)
    if "math." in written:
        context.imports.add("import math")
    for name, helper in _HELPERS.items():
        if name in written:
            context.objects.setdefault(name, helper)
    return [f"if {written}: raise GuardFailed({message.written(names)})"]


def _written(x: Any, context: Any) -> str:
    """An operand of a guard: literals as they are, objects by a name in the trace's namespace."""
    if isinstance(x, Step):
        return x.step.replace("{}", _written(x.parent, context))
    if isinstance(x, (Proxy, str, int, float, complex, bytes, torch.dtype, type(None))) or any(
        x is t for t in (int, float, str, bool)
    ):
        return printable(x, context)
    name = getattr(x, "__name__", None) if isinstance(x, _NAMED) else None
    if isinstance(x, types.ModuleType):
        name = x.__name__.rpartition(".")[2]
    base = "".join(c if c.isalnum() and c.isascii() else "_" for c in name or type(x).__name__)
    return context.name_of(x, base.strip("_") or "x")  # type: ignore[no-any-return]


class Step:
    """What stands one step away from a value and is looked at once: it needs no name."""

    __slots__ = ("parent", "step")

    def __init__(self, parent: Any, step: str):
        self.parent = parent
        self.step = step


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


guard = Symbol("guard", _no_meta, id="python.guard", is_prim=True, printer=_print_guard, tags=_TAGS)

# What is wrong when the condition holds, for each kind of check that `reads.py` records.
_CONDITIONS = {
    "is": "{0} is not {1}",
    "weak": "{0} is not {1}()",
    "type": "type({0}) is not {1}",
    "same": "{0} is not {1}",
    "absent": "{1} in {0}",
    "empty": "{0}",
    "length": "len({0}) != {1}",
    "members": "{0} != {1}",
    "no_attribute": "hasattr({0}, {1})",
    "attributes": "not same_attributes({0}, {1})",
    "disjoint": "not {0}.keys().isdisjoint({1})",
}
_BY_IDENTITY = (bool, type(None), type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)


def condition_of(kind: str, value: Any) -> str:
    """The Python expression of what a check fails on: `{0}` is what is looked at, `{1}` what it is compared with."""
    if kind in _CONDITIONS:
        return _CONDITIONS[kind]
    if kind == "keys":
        return "tuple({0}) != {1}" if all(type(k) is str for k in value) else "not same_contents(tuple({0}), {1})"
    if kind == "contents":
        return (
            "{0} is not {1} and not same_contents({0}, {1})" if type(value) is tuple else "not same_contents({0}, {1})"
        )
    if isinstance(value, _BY_IDENTITY):
        return "{0} is not {1}"
    if type(value) is int or type(value) is str or type(value) is bytes:
        return f"type({{0}}) is not {type(value).__name__} or {{0}} != {{1}}"
    if type(value) is float and value == value and value not in (0.0, float("inf"), float("-inf")):
        return "type({0}) is not float or {0} != {1}"
    return "not same_value({0}, {1})"


def _print_check_tensors(bsym: BoundSymbol, context: Any) -> list[str]:
    check, tensors = bsym.args
    context.objects.setdefault("TensorsDiffer", TensorsDiffer)
    name, given = context.name_of(check, "tensors"), bsym.output.name
    listed = ", ".join(_written(t, context) for t in tensors)
    return [
        f"{given} = ({listed}{',' if len(tensors) == 1 else ''})",
        f"if not {name}.accepts(*{given}): raise TensorsDiffer({name}, {given})",
    ]


# Tensors have the shapes, strides, dtypes and devices that they had, and require grad alike; the tuple of them.
check_tensors = Symbol(
    "check_tensors", _no_meta, id="python.check_tensors", is_prim=True, printer=_print_check_tensors, tags=_TAGS
)


def _print_tell(bsym: BoundSymbol, context: Any) -> list[str]:
    program, inputs = bsym.args
    listed = ", ".join(_written(x, context) for x in inputs)
    return [f"{''.join(f'{p.name}, ' for p in bsym.output)}= {context.name_of(program, 'told')}({listed})"]


# Numbers that inputs tell (`told.py`), by the program that leads to them.
tell = Symbol("tell", _no_meta, id="python.tell", is_prim=True, printer=_print_tell, tags=_TAGS)


@_guard
def check_different(objects: Sequence[Any]) -> None:
    """Objects of which the program changes one are as many as they were."""
    if len({*map(id, objects)}) != len(objects):
        raise GuardFailed("objects that were different are one, and the program changes it")


@_guard
def check_distinct(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> None:
    """Inputs that the program writes to share no memory with others."""
    if overlap(tensors, written) is not None:
        raise GuardFailed("an input that is written in place shares memory with another")


def overlap(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> tuple[int, int] | None:
    """The positions of a tensor that is written to and of another that has elements in the same places, if any."""
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) == len(storages):
        return None
    for i in written:
        for j, storage in enumerate(storages):
            if j != i and storage == storages[i] and _meet(tensors[i], tensors[j]):
                return i, j
    return None


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage have a place in common. Where that is hard to tell, they are taken to."""
    if not a.numel() or not b.numel():
        return False
    (first, last), (start, end) = _places(a), _places(b)
    if last < start or end < first:
        return False
    if a.stride() != b.stride() or a.dtype is not b.dtype:
        return True
    # Rows or columns of one matrix lie between each other: is the distance one of steps that both can take?
    steps = sorted(zip(a.stride(), a.shape, b.shape), reverse=True)
    return _reachable(b.storage_offset() - a.storage_offset(), steps)


def _places(t: torch.Tensor) -> tuple[int, int]:
    first = t.storage_offset() * t.element_size()
    return first, first + (sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1) * t.element_size() - 1


def _reachable(distance: int, steps: Sequence[tuple[int, int, int]]) -> bool:
    if not steps:
        return distance == 0
    (stride, here, there), *rest = steps
    if stride == 0:
        return _reachable(distance, rest)
    nearest = distance // stride
    return any(-there < k < here and _reachable(distance - k * stride, rest) for k in (nearest, nearest + 1))


class TensorCheck:
    """Compares the metadata of several tensors with what it was, in one C++ call where torch has it."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        names: Sequence[Any] = (),
        dims: Sequence[frozenset[int]] = (),
    ):
        """`names` are what a message calls them, `dims` their dimensions of symbolic size."""
        self.dims = dims or [frozenset()] * len(tensors)
        self.layouts = [(i, _layout(t, d)) for i, (t, d) in enumerate(zip(tensors, self.dims)) if d]
        self.names = names or [f"tensor {i}" for i in range(len(tensors))]  # what a message calls them
        self.expected = [_metadata(t, d) for t, d in zip(tensors, self.dims)]
        self.same = _sameness([*map(id, tensors)])
        first = self.same or range(len(tensors))
        self._twice = [(i, j) for i, j in enumerate(first) if i != j]
        self._once = [i for i, j in enumerate(first) if i == j]
        self._fast, self._tells_apart = tensor_guards(
            [tensors[i] for i in self._once], [self.dims[i] for i in self._once]
        )
        #: Whether tensors are as they were. Where torch's guards say all there is to say, these themselves.
        self.accepts: Callable[..., bool] = self._accepts
        if self._fast is not None and self._tells_apart and not self._twice and not self.layouts:
            self.accepts = self._fast

    def _accepts(self, *tensors: Any) -> bool:
        if any(tensors[i] is not tensors[j] for i, j in self._twice):
            return False
        once = [tensors[i] for i in self._once]
        if not self._tells_apart and len({*map(id, once)}) != len(once):
            return False
        if self._fast is not None:
            return self._fast(*once) and (not self.layouts or self._laid_out(tensors))
        return all(
            isinstance(t, torch.Tensor) and _metadata(t, d) == e for t, d, e in zip(tensors, self.dims, self.expected)
        )

    def __call__(self, tensors: Sequence[Any]) -> bool:
        return self.accepts(*tensors)

    def _laid_out(self, tensors: Sequence[Any]) -> bool:
        """Whether tensors of symbolic sizes lie in memory as they did."""
        for i, layout in self.layouts:
            if layout is True:
                if not tensors[i].is_contiguous():
                    return False
            elif _layout(tensors[i], self.dims[i]) != layout:
                return False
        return True

    def changed_sizes(self, tensors: Sequence[Any]) -> list[tuple[Any, int]]:
        """The names of tensors and dimensions whose sizes are not what they were, where nothing else has changed."""
        changed: list[tuple[Any, int]] = []
        for name, t, d, expected in zip(self.names, tensors, self.dims, self.expected):
            if not isinstance(t, torch.Tensor):
                return []
            found = _metadata(t, d)
            if found[1] == expected[1]:
                if found != expected:
                    return []
                continue
            if len(found[1]) != len(expected[1]) or found[0] is not expected[0] or found[3:] != expected[3:]:
                return []
            changed += [(name, i) for i, (n, was) in enumerate(zip(found[1], expected[1])) if n != was]
        return changed

    def explain(self, tensors: Sequence[Any]) -> str:
        """Which tensor is not as it was."""
        for name, t, d, expected in zip(self.names, tensors, self.dims, self.expected):
            found = _metadata(t, d) if isinstance(t, torch.Tensor) else (type(t),)
            for what, now, was in zip(_METADATA, found, expected):
                if now != was:
                    return f"the {what} of {name} was {shown(was)} and is {shown(now)}"
        same, now = self._pairs(self.same), self._pairs(_sameness([*map(id, tensors)]))
        return f"of the tensors, those that are one were {same} and are {now}"

    def _pairs(self, same: tuple[int, ...] | None) -> str:
        pairs = [f"{self.names[i]} and {self.names[j]}" for j, i in enumerate(same or ()) if i != j]
        return "; ".join(pairs) or "none"


_METADATA = ("class", "shape", "stride", "dtype", "device", "requires_grad")


def _metadata(t: torch.Tensor, dims: frozenset[int] = frozenset()) -> tuple[Any, ...]:
    """What is compared: of symbolic sizes only that they are there, and with them how the tensor is laid out."""
    shape, layout = tuple(t.shape), t.stride()
    if dims:
        shape = tuple(["any" if i in dims else n for i, n in enumerate(shape)])  # type: ignore[misc]
        layout = _layout(t, dims)
    return (type(t), shape, layout, t.dtype, t.device, t.requires_grad)


def _layout(t: torch.Tensor, dims: frozenset[int]) -> Any:
    """How a tensor of symbolic sizes lies in memory: if it is dense, the order of its dimensions, else its strides."""
    if t.is_contiguous():
        return True
    strides = t.stride()
    order = tuple(sorted(range(t.ndim), key=lambda i: -strides[i]))
    return ("dense", order) if t.permute(order).is_contiguous() else ("strides", strides)


def _sameness(ids: list[int]) -> tuple[int, ...] | None:
    """None when all are different objects, else which is the same as which."""
    if len(set(ids)) == len(ids):
        return None
    first: dict[int, int] = {}
    return tuple(first.setdefault(x, i) for i, x in enumerate(ids))


# -- reading inputs ---------------------------------------------------------------------------------------------------
def _flatten_meta(*args: Any) -> Any:
    raise TypeError("flatten_call is bound by the prologue's builder")


def _flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any], structure: Any) -> list[Any]:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if spec != structure:
        raise GuardFailed(f"the arguments were {structure} and are {spec}")
    return leaves


flatten_call = python_executor.register_operator(
    "flatten_call", meta=_flatten_meta, fn=_flatten_call, tags=(OpTags.UNPACK_OP,)
)


def _print_unpack(bsym: BoundSymbol, context: Any) -> list[str]:
    names = ", ".join("_" if p is None else p.name for p in bsym.output)
    return [f"{names}, = {printable(bsym.args[0], context)}"] if bsym.output else []


unpack = Symbol(
    "unpack", _flatten_meta, id="python.unpack", is_prim=True, printer=_print_unpack, tags=(OpTags.UNPACK_OP,)
)


def _print_fetch(bsym: BoundSymbol, context: Any) -> list[str]:
    parent, step, *others = bsym.args
    written = filled(step, _written(parent, context), [_written(x, context) for x in others])
    return [f"{bsym.output.name} = {written}"]


fetch = Symbol("fetch", _flatten_meta, id="python.fetch", is_prim=True, printer=_print_fetch, tags=(OpTags.UNPACK_OP,))


def fetched(parent: Any, step: str, name: str, others: Sequence[Any] = ()) -> tuple[BoundSymbol, Proxy]:
    """The line of a prologue that takes a step (`{}.name`) from a value, and the value that it binds."""
    out = AnyProxy(name=name)
    return BoundSymbol(fetch, (parent, step, *others), {}, out), out
