# SPDX-License-Identifier: Apache-2.0
"""The interface that torch's C++ expects of the `node` of a SymInt or SymFloat; symbolic numbers implement it.

C++ rarely calls this interface: while a program is traced, calls of torch are intercepted in Python. Calls from C++
compute with expressions and add constraints, like any other use. The names and signatures are torch's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.symint.table import SymbolTable

__all__ = ["ConstantNode", "Node", "unwrap_node"]


class Node(SymbolicNumber):
    """A symbolic number that is its own node; a SymInt that C++ wraps around the number contains it as `.node`."""

    symbols: SymbolTable

    @property
    def node(self) -> Any:
        """The number itself; the property has torch's name."""
        return self

    @node.setter
    def node(self, value: Any) -> None:
        raise AttributeError("a symbolic number is its own node")

    def guard_int(self, file: str, line: int) -> int:
        return int(self.symbols.specialize(self))

    def guard_float(self, file: str, line: int) -> float:
        return float(self.symbols.specialize(self))

    def int_(self) -> int:
        return int(self.symbols.specialize(self))

    def is_int(self) -> bool:
        return isinstance(self, torch.SymInt)

    def is_float(self) -> bool:
        return isinstance(self, torch.SymFloat)

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return self.hint is not None

    def maybe_as_int(self) -> None:
        return None

    def wrap_int(self, x: int) -> Any:
        return ConstantNode(x)

    wrap_float = wrap_bool = wrap_int

    def clone(self) -> Any:
        return self

    def str(self) -> Any:
        return self.text()

    def _graph_repr(self) -> Any:
        return self.text()

    def neg(self: Any) -> Any:
        return wrap_node(-self)

    def sym_float(self: Any) -> Any:
        return wrap_node(torch.sym_float(self))

    def floor(self: Any) -> Any:
        return wrap_node(math.floor(self))

    def ceil(self: Any) -> Any:
        return wrap_node(math.ceil(self))

    def is_contiguous(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        return ConstantNode(_contiguous(list(map(unwrap_node, sizes)), list(map(unwrap_node, strides))))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        return ConstantNode(_channels_last(sizes, strides, 4))

    def is_channels_last_contiguous_3d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        return ConstantNode(_channels_last(sizes, strides, 5))

    is_channels_last_strides_2d = is_channels_last_contiguous_2d
    is_channels_last_strides_3d = is_channels_last_contiguous_3d

    def is_non_overlapping_and_dense(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        n = [unwrap_node(x) for x in sizes]
        m = [unwrap_node(x) for x in strides]
        order = sorted(range(len(n)), key=lambda i: int(m[i]))
        return ConstantNode(_contiguous([n[i] for i in reversed(order)], [m[i] for i in reversed(order)]))


def _contiguous(sizes: list[Any], strides: list[Any]) -> bool:
    expected: Any = 1
    for n, stride in zip(reversed(sizes), reversed(strides)):
        if n == 1:
            continue
        if stride != expected:
            return any(size == 0 for size in sizes)
        expected = expected * n
    return True


def _channels_last(sizes: Sequence[Any], strides: Sequence[Any], ndim: int) -> bool:
    if len(sizes) != ndim:
        return False
    n, m = list(map(unwrap_node, sizes)), list(map(unwrap_node, strides))
    order = [0, *range(2, ndim), 1]
    return _contiguous([n[i] for i in order], [m[i] for i in order])


class ConstantNode(Node):
    """The node of a constant number or boolean."""

    def __init__(self, value: Any):
        self.value = self.hint = value

    def guard_int(self, file: str, line: int) -> Any:
        return self.value

    guard_float = guard_bool = expect_true = guard_size_oblivious = guard_or_false = guard_or_true = guard_int
    statically_known_true = guard_int

    def int_(self) -> Any:
        return self.value

    bool_ = maybe_as_int = int_

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_symbolic(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return True

    def text(self, leaf_text: Any = None) -> str:
        return repr(self.value)

    def sym_not(self) -> Any:
        return ConstantNode(not self.value)

    def neg(self) -> Any:
        return ConstantNode(-self.value)


def unwrap_node(node: Any) -> Any:
    """Return the number inside a node or a SymInt: a Python constant or a symbolic number."""
    node = getattr(node, "node", node)
    return node.value if isinstance(node, ConstantNode) else node


def wrap_node(x: Any) -> Any:
    """Wrap a number as a node, because C++ expects nodes as results."""
    return x if isinstance(x, Node) else ConstantNode(x)


def _node_operation(fn: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, other: Any) -> Any:
        return wrap_node(fn(unwrap_node(self), unwrap_node(other)))

    return apply


for _name, _fn in {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "float_truediv": operator.truediv, "int_truediv": operator.truediv, "pow": operator.pow,
    "float_pow": operator.pow, "pow_by_natural": operator.pow, "floordiv": operator.floordiv,
    "int_floordiv": operator.floordiv, "mod": operator.mod, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "sym_max": torch.sym_max,
    "sym_min": torch.sym_min, "sym_and": lambda a, b: a and b, "sym_or": lambda a, b: a or b,
}.items():  # fmt: skip
    setattr(Node, _name, _node_operation(_fn))
