# SPDX-License-Identifier: Apache-2.0
"""`associative_scan` inside a traced program: running combinations along a dimension.

The function that combines two elements is traced once, into a separate program. If it computes sums, products and
linear recurrences, as in state space models, these are operations of their own, which have gradients of the same kind.
Any other function of elements becomes one operation, `associative_scan`. Fusions may compute it as one kernel. Else it
is decomposed: neighbors are combined in pairs, and so are the results, until one is left. n elements take about
2 log2(n) steps, whose number depends on the shape only. The gradient follows from these steps.

The steps of a function that does not combine element by element (it multiplies matrices, or reads other tensors) are
traced one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.dispatch.registry import handles
from thunder.capture.higher_order.subtrace import trace_separately
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core import prims
from thunder.core.printer import PrintContext, bound_symbol_lines, call_line
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_leaves
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies
from thunder.core.symint.numbers import equal_shapes, same_shape
from thunder.torch.base import torchctx

__all__ = ["Combination", "scan_traced"]

Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


class Combination:
    """A program that combines two tuples of tensors element by element, so it combines tensors of any shape."""

    def __init__(
        self,
        left: Sequence[TensorProxy],
        right: Sequence[TensorProxy],
        operations: Sequence[BoundSymbol],
        output: Sequence[TensorProxy],
    ):
        self.__name__ = "combine"
        self.left, self.right = tuple(left), tuple(right)
        self.operations, self.output = tuple(operations), tuple(output)  # the operations are primitives

    def __call__(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        values = {p.name: x for p, x in zip((*self.left, *self.right), (*left, *right))}
        for op in self.operations:
            args = map_proxies(op.args, lambda p: values[p.name])
            kwargs = map_proxies(op.kwargs, lambda p: values[p.name])
            values[op.output.name] = op.sym(*args, **kwargs)
        return [values[p.name] for p in self.output]

    def recurrences(self) -> list[tuple[str, int | None]] | None:
        """Return, for each result, "sum", "product", or "linear" with the position of its factors.

        None if a result is something else.
        """
        made = {op.output.name: op for op in self.operations}
        pairs = [{p.name, q.name} for p, q in zip(self.left, self.right)]

        def reads(x: Any) -> tuple[Symbol | None, set[str]]:
            op = made.get(x.name)
            if op is None or not all(isinstance(a, TensorProxy) for a in op.args):
                return None, set()
            return op.sym, {a.name for a in op.args}

        products = {i for i, p in enumerate(self.output) if reads(p) == (prims.mul, pairs[i])}

        def kind(i: int) -> tuple[str, int | None] | None:
            if i in products:
                return "product", None
            sym, given = reads(self.output[i])
            if sym is not prims.add or len(given) != 2:
                return None
            if given == pairs[i]:
                return "sum", None
            if self.right[i].name not in given:
                return None
            (name,) = given - {self.right[i].name}
            sym, given = reads(made[name].output) if name in made else (None, set())
            factors = (j for j in products if {self.right[j].name, self.left[i].name} == given)
            found = next(factors, None) if sym is prims.mul else None
            if found is None or self.left[found].dtype is not self.left[i].dtype:
                return None
            return "linear", found

        found = [kind(i) for i in range(len(self.output))]
        return None if None in found else found  # type: ignore[return-value]


# -- the operation -----------------------------------------------------------------------------------------------------
@torchctx
def _meta(combine: Combination, xs: Sequence[TensorProxy], dim: int) -> tuple[TensorProxy, ...]:
    """Return the running combinations of `xs` along `dim`."""
    moved = [ltorch.movedim(x, dim, 0) for x in xs]
    return tuple([ltorch.movedim(x, 0, dim) for x in running(combine, moved)])


def _print(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    combine = bsym.args[0]
    left, right, out = (", ".join(p.name for p in values) for values in (combine.left, combine.right, combine.output))
    aside = context.for_comments()
    lines = [line for op in combine.operations for line in bound_symbol_lines(op, depth=0, context=aside)]
    head = f"  # {combine.__name__}(({left}), ({right})):"
    return [call_line(bsym, context), head, *(f"    # {line}" for line in [*lines, f"return {out}"])]


associative_scan = Symbol(
    "associative_scan", _meta, id="torch.associative_scan", printer=_print, tags=(OpTags.REDUCTION_OP,)
)


@associative_scan.batch
def _(b: Any, combine: Combination, xs: Sequence[Any], dim: int) -> Any:
    batches = [b.expand(x) for x in xs]
    return associative_scan(combine, batches, b.dim(batches[0], dim))


def running(combine: Combine, xs: Sequence[Any]) -> Sequence[Any]:
    """Return the running combinations of tensors along their first dimension, in steps that combine pairs."""
    count = xs[0].shape[0]
    if count < 2:
        return xs
    odd = running(combine, combine([x[:-1:2] for x in xs], [x[1::2] for x in xs]))  # of positions 1, 3, 5, …
    even = [x[:1] for x in xs]
    if count > 2:
        following = combine([x[: (count - 1) // 2] for x in odd], [x[2::2] for x in xs])
        even = [ltorch.cat((first, x)) for first, x in zip(even, following)]
    return [_interleaved(x, y) for x, y in zip(even, odd)]


def _interleaved(even: Any, odd: Any) -> Any:
    pairs = ltorch.flatten(ltorch.stack((even[: odd.shape[0]], odd), 1), 0, 1)
    return pairs if even.shape[0] == odd.shape[0] else ltorch.cat((pairs, even[-1:]))


# -- tracing -----------------------------------------------------------------------------------------------------------
# Torch's function of this name calls the operation for pointwise functions, with the dimension moved to the front. For
# others, it calls `generic_associative_scan`, which is replaced while a program is traced (`torch_patches.py`).
@handles(torch.ops.higher_order.associative_scan, traced=True)
def scan_traced(
    tracer: Tracer, combine_fn: Callable[..., Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Any:
    """Return the running combinations of `xs` along their first dimension."""

    def combine(left: Sequence[Any], right: Sequence[Any]) -> Sequence[Any]:
        return tree_leaves(combine_fn(*left, *right, *additional_inputs))

    count = xs[0].shape[0] if xs[0].dim() else 0
    one = type(count) is int and count < 2  # the result is the input
    found = None if additional_inputs or one else _combination(tracer, combine, xs)
    if found is None:
        return tuple(running(combine, [*xs]))
    recurrences = found.recurrences()
    if recurrences is None:
        return associative_scan(found, [*xs], 0)
    return tuple([_recurrence(kind, x, None if i is None else xs[i]) for x, (kind, i) in zip(xs, recurrences)])


def _recurrence(kind: str, x: Any, factors: Any) -> Any:
    if kind == "linear":
        return prims.linear_recurrence(factors, x, 0)
    return (prims.cumsum if kind == "sum" else prims.cumprod)(x, 0)


def _combination(tracer: Tracer, combine: Combine, xs: Sequence[Any]) -> Combination | None:
    """Trace the function that combines elements. Return None if it does not combine tensors element by element."""
    with tracer.recording():
        given: list[Any] = [tracer.unwrap(x) for x in xs]
    shape = given[0].shape
    if not shape or any(not equal_shapes(p.shape, shape) for p in given):
        return None
    left, right = ([TensorProxy(like=p, shape=shape) for p in given] for _ in range(2))
    inputs = [[Handle.make(tracer, p, requires_grad=False) for p in side] for side in (left, right)]
    operations, output = trace_separately(tracer, lambda: combine(*inputs), "associative_scan")
    if not isinstance(output, (tuple, list)) or len(output) != len(given):
        return None
    names = {p.name: p for p in (*left, *right)}
    parts: list[BoundSymbol] = []
    for op in _elementwise(operations):
        if op is None or any(p.name not in names for p in op.flat_args) or not _has_shape(op.output, shape):
            return None
        names[op.output.name] = op.output
        parts.append(op)
    if any(getattr(p, "name", None) not in names or p.dtype is not x.dtype for p, x in zip(output, given)):
        return None
    return Combination(left, right, _needed(parts, output), output)


def _has_shape(p: Any, shape: tuple[Any, ...]) -> bool:
    return isinstance(p, TensorProxy) and same_shape(p.shape, shape)


def _elementwise(operations: Sequence[BoundSymbol]) -> Iterator[BoundSymbol | None]:
    """Yield the elementwise primitives of operations, and None for another primitive."""
    for op in operations:
        if not op.sym.is_prim:
            yield from _elementwise(op.subsymbols)
        elif OpTags.ELEMENTWISE_OP in op.sym.tags:
            yield op
        else:
            yield None


def _needed(operations: Sequence[BoundSymbol], output: Sequence[TensorProxy]) -> list[BoundSymbol]:
    used = {p.name for p in output}
    out = []
    for op in reversed(operations):
        if op.output.name in used:
            used.update(op.arg_names)
            out.append(op)
    return out[::-1]
