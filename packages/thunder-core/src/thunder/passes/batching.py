# SPDX-License-Identifier: Apache-2.0
"""Batching: turn a program for one example into one for many examples at once (`vmap`).

`Batch.run` records the operations of a program, some of whose inputs are batches. The batch is always the first
dimension, both of batched inputs and of all values that depend on them. An operation without a batched input is
recorded unchanged. For any other operation, the first available rule is used:

- the rule set by `register_batch`;
- the operation's own rule (`@sym.batch`);
- the rule for its tags (e.g. elementwise);
- the rules of the operations in its decomposition;
- a separate call for each example.

If a composite has its own gradient or tangent rule, the batched decomposition becomes a new composite, whose rules are
the batched original rules.

Contract: for each example, the batched program computes the same values as the original program. Random numbers depend
on `randomness`: "error" rejects random operations, "different" draws for each example, and "same" draws once for all
examples.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import ThunderError
from thunder.core.langctx import set_langctx
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import count_registration, state
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in
from thunder.core.symint.numbers import SymbolicNumber
from thunder.passes import forward
from thunder.passes.autodiff import grad_rule

__all__ = ["RANDOMNESS", "Batch", "register_batch"]

RANDOMNESS = ("error", "different", "same")

BatchRule = Callable[..., Any]

_registered: dict[Any, BatchRule] = {}
_numbers = itertools.count()


def register_batch(sym_or_id: Symbol | Any, rule: BatchRule) -> None:
    """Set the batching rule of an operation, given by its symbol or id.

    `rule(b, *args, **kwargs)` has the signature of `@sym.batch`.
    """
    _registered[sym_or_id.id if isinstance(sym_or_id, Symbol) else sym_or_id] = rule
    count_registration()


class Batch:
    """A batch of `size` examples. It is the interface for batching rules, and the pass that applies them."""

    def __init__(self, size: Any, randomness: str = "error", *, copies: bool = False):
        self.size = size
        self.randomness = randomness
        self.copies = copies  # whether to copy unbatched operations, with new results
        self.env: dict[str, Any] = {}  # values of the program for one example -> replacements
        self._batched: set[str] = set()

    # -- for rules ----------------------------------------------------------------------------------------------------
    def __contains__(self, x: Any) -> bool:
        """Check whether the first dimension of a value is the batch."""
        return isinstance(x, TensorProxy) and x.name in self._batched

    def add(self, x: TensorProxy) -> TensorProxy:
        """Record that the first dimension of `x` is the batch, and return `x`."""
        self._batched.add(x.name)
        return x

    def shape(self, x: TensorProxy) -> tuple[Any, ...]:
        """Return the shape of one example."""
        return x.shape[1:] if x in self else x.shape

    def ndim(self, x: TensorProxy) -> int:
        """Return the number of dimensions of one example."""
        return x.ndim - (x in self)

    def expand(self, x: Any) -> Any:
        """Expand a tensor without a batch dimension to a batch; return other arguments unchanged."""
        if not isinstance(x, TensorProxy) or x in self:
            return x
        dims = tuple(range(1, x.ndim + 1))
        return self.add(prims.broadcast_in_dim(x, (self.size, *x.shape), dims))

    def line_up(self, x: Any, ndim: int) -> Any:
        """Return a batch whose examples have `ndim` dimensions, for broadcasting. Return unbatched values unchanged."""
        if x not in self or x.ndim - 1 >= ndim:
            return x
        return self.add(prims.reshape(x, (self.size, *[1] * (ndim - x.ndim + 1), *x.shape[1:])))

    def at_least_1d(self, x: Any) -> Any:
        """Return a batch of scalars as a batch of one-element vectors, for operations along a dimension."""
        return self.line_up(x, 1)

    def dim(self, x: TensorProxy, dim: int) -> int:
        """Return the index, in the batch `x`, of an example's dimension `dim`."""
        return dim % max(x.ndim - 1, 1) + 1

    def reduced(self, x: TensorProxy, dims: Sequence[int]) -> tuple[TensorProxy, tuple[int, ...]]:
        """Return the batch `x`, and `dims` of an example as dimensions of the batch.

        A batch of scalars becomes a batch of one-element vectors.
        """
        if x.ndim == 1:
            return self.at_least_1d(x), (1,)
        return x, tuple([self.dim(x, d) for d in dims])

    def merge(self, x: Any) -> Any:
        """Merge the batch dimension with the examples' first dimension; the batch is the outer one."""
        if not isinstance(x, TensorProxy):
            return x
        x = self.expand(x)
        return prims.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))

    def split(self, x: Any, length: Any) -> Any:
        """Undo `merge`: split the first dimension into the batch and a dimension of size `length`."""
        return prims.reshape(x, (self.size, length, *x.shape[1:]))

    def first(self, x: Any) -> Any:
        """Return the first example, for random draws that all examples share. Only its metadata is read."""
        if x not in self:
            return x
        if int(self.size) == 0:
            return prims.full(x.shape[1:], 0, device=x.device, dtype=x.dtype)
        return prims.squeeze(prims.slice(x, (0,) * x.ndim, (1, *x.shape[1:])), (0,))

    def drawn_from(self, x: Any, name: str) -> Any:
        """Return the arguments for drawing separate random numbers for each example."""
        if self.randomness == "same":
            raise RuntimeError(
                f"vmap: {name} draws from a tensor that differs between examples, so randomness='same' has no "
                "meaning. Use randomness='different'"
            )
        return self.expand(x)

    def apply(self, sym: Symbol, *args: Any, **kwargs: Any) -> Any:
        """Apply another operation to batches, for rules that consist of several operations."""
        trace = state.trace
        assert trace is not None
        example = map_proxies(args, self._example), map_proxies(kwargs, self._example)
        with trace.scope() as recorded:
            output = sym(*example[0], **example[1])
        inner = Batch(self.size, self.randomness)
        for given, one in zip(proxies_in((args, kwargs)), proxies_in(example)):
            inner.env[one.name] = given
            if given in self:
                inner.add(given)  # type: ignore[arg-type]
        inner.run(recorded)
        self._batched |= inner._batched
        return map_proxies(output, lambda p: self.add(inner.batched(p)) if isinstance(p, TensorProxy) else p)

    def _example(self, p: Proxy) -> Any:
        if not isinstance(p, TensorProxy) or p not in self:
            return p
        return TensorProxy(like=p, shape=p.shape[1:], requires_grad=p.requires_grad)

    # -- the pass -----------------------------------------------------------------------------------------------------
    def value(self, p: Any) -> Any:
        """Return the batched counterpart of a value of the program for one example."""
        return self.env.get(p.name, p)

    def batched(self, p: Any) -> Any:
        """Return the batched counterpart of a tensor, expanded to a batch if it is the same for all examples."""
        return self.expand(self.value(p))

    def run(self, operations: Sequence[BoundSymbol]) -> None:
        """Record `operations` over the batch."""
        with set_langctx("torch"):
            for op in operations:
                source, state.source = state.source, op.source
                try:
                    self._operation(op)
                finally:
                    state.source = source

    def _operation(self, op: BoundSymbol) -> None:
        trace = state.trace
        assert trace is not None
        any_batched = any(self.value(p) in self for p in op.tensors())
        draws = _draws(op)
        if draws and self.randomness == "error":
            raise RuntimeError(
                f"vmap: called random operation {op.sym.name} while in randomness error mode. Please either use the "
                "'same' or 'different' randomness flags on vmap or perform the randomness operation out of vmap"
                f"{_at(op)}"
            )
        if not any_batched and not (draws and self.randomness == "different"):
            self._as_it_is(op)
            return
        if OpTags.GRAD_OP in op.sym.tags:
            self._gradient(op)
            return
        rule = _registered.get(op.sym.id) or op.sym.batch_rule or self._rule_of_tags(op)
        result = NotImplemented
        if rule is not None:
            result = rule(self, *map_proxies(op.args, self.value), **map_proxies(op.kwargs, self.value))
        elif op.sym is prims.barrier or OpTags.GENERATOR_STATE_OP in op.sym.tags:
            result = op.sym(*map_proxies(op.args, self.value))
        if result is not NotImplemented:
            self._results(op, result)
        elif op.subsymbols and _has_rules(op):
            self._results(op, _Composite(self, op).symbol()(*map_proxies(op.flat_args, self.value)))
        elif op.subsymbols or not op.out_names:  # an operation that only returns inputs is not recorded
            self.run(op.subsymbols)
        else:
            self._results(op, self._one_by_one(op))

    def _as_it_is(self, op: BoundSymbol) -> None:
        """Record an operation that is the same for all examples."""
        trace = state.trace
        assert trace is not None
        if not self.copies:
            trace.record(op.substitute(self.env) if self.env else op)
            return
        result = op.sym(*map_proxies(op.args, self.value), **map_proxies(op.kwargs, self.value))
        self.env.update({old.name: new for old, new in zip(proxies_in(op.output), proxies_in(result))})

    def _rule_of_tags(self, op: BoundSymbol) -> BatchRule | None:
        if OpTags.ELEMENTWISE_OP not in op.sym.tags:
            return None
        tensors = op.tensors()
        if op.sym.is_prim and op.sym.executor is None:
            return lambda b, *args, **kwargs: op.sym(
                *map(b.expand, args), **{k: b.expand(v) for k, v in kwargs.items()}
            )
        # A 0-dimensional tensor of an example has a dimension in the batch, so its dtype and device matter.
        if any(p.dtype is not tensors[0].dtype or p.device is not tensors[0].device for p in tensors):
            return None
        # Dimension arguments refer to the dimensions of one example.
        if any(isinstance(a, (tuple, list, torch.memory_format)) for a in (*op.args, *op.kwargs.values())):
            return None
        if op.sym.executor is not None:
            return None
        ndim = max(p.ndim for p in tensors)

        def lined_up(b: Batch, *args: Any, **kwargs: Any) -> Any:
            return op.sym(*[b.line_up(a, ndim) for a in args], **{k: b.line_up(v, ndim) for k, v in kwargs.items()})

        return lined_up

    def _results(self, op: BoundSymbol, result: Any) -> None:
        """Store the batched values of an operation's outputs."""
        old: list[Any] = proxies_in(op.output)
        new: list[Any] = proxies_in(result)
        if len(old) != len(new):
            raise ThunderError(
                f"the batching rule of {op.sym.name} returned {len(new)} values instead of {len(old)}: it must return "
                f"the same values as the operation{_at(op)}"
            )
        given = set(op.arg_names)
        for one, many in zip(old, new):
            if one.name in given:
                continue
            if not isinstance(one, TensorProxy) or many.ndim == one.ndim:
                self.env[one.name] = many
                continue
            if one.ndim == 0 and many.ndim == 2:
                many = prims.reshape(many, (self.size,))
            if many.shape[1:] != one.shape or many.dtype is not one.dtype:
                raise ThunderError(
                    f"the batching rule of {op.sym.name} returned a batch of {many.type_string()}, but the operation "
                    f"returns a {one.type_string()} for an example{_at(op)}"
                )
            self.env[one.name] = self.add(many)

    def _gradient(self, op: BoundSymbol) -> None:
        """Record `get_grad` or `put_grad` of a gradient rule over the batch."""
        value = self.value(op.args[0])
        if op.sym is prims.get_grad:
            self._results(op, prims.get_grad(value))
            return
        gradient = self.batched(op.args[1])
        if value not in self:  # all examples share the value, so their gradients are summed
            gradient = prims.sum(gradient, (0,))
        prims.put_grad(value, gradient)

    def _one_by_one(self, op: BoundSymbol) -> Any:
        """Record a separate call for each example."""
        outs = proxies_in(op.output)
        if any(isinstance(p, NumberProxy) for p in outs):
            raise RuntimeError(
                f"vmap: {op.sym.name} returns a single Python number for all examples. Use a tensor instead, or call "
                f"{op.sym.name} outside of vmap{_at(op)}"
            )
        known = {n.name for n in _symbols((op.args, op.kwargs))} | {n.name for p in op.tensors() for n in _sizes(p)}
        if any(n.name not in known for p in outs for n in _sizes(p)):
            raise RuntimeError(
                f"vmap: the size of the result of {op.sym.name} is data-dependent and may differ between examples. Use "
                f"an operation whose result has a fixed size (torch.where, masks, padding){_at(op)}"
            )
        if OpTags.IN_PLACE_OP in op.sym.tags:
            raise RuntimeError(f"vmap: {op.sym.name} writes to an argument that all examples share{_at(op)}")
        if int(self.size) == 0:
            raise RuntimeError(f"vmap: {op.sym.name} has no batching rule, and the batch has no examples{_at(op)}")
        warnings.warn(
            f"vmap: {op.sym.name} has no batching rule and is called once for each of {int(self.size)} examples. "
            f"Register a rule with thunder.core.transforms.register_batch{_at(op)}",
            stacklevel=2,
        )
        found: list[Any] = []
        for i in range(int(self.size)):

            def example(p: Proxy, i: int = i) -> Any:
                value = self.value(p)
                if value not in self:
                    return value
                rest = value.shape[1:]
                part = prims.slice(value, (i, *[0] * len(rest)), (i + 1, *rest))
                return prims.squeeze(part, (0,))

            found.append(proxies_in(op.sym(*map_proxies(op.args, example), **map_proxies(op.kwargs, example))))
        whole = iter([prims.cat([prims.reshape(p, (1, *p.shape)) for p in outputs], 0) for outputs in zip(*found)])
        return map_proxies(op.output, lambda p: next(whole))


def _symbols(x: Any) -> list[Proxy]:
    return [p for p in proxies_in(x) if isinstance(p, NumberProxy)]


def _sizes(p: Proxy) -> list[Proxy]:
    """Return the data-dependent numbers in a tensor's shape."""
    return proxies_in([n for n in p.shape if isinstance(n, SymbolicNumber)]) if isinstance(p, TensorProxy) else []


def _at(op: BoundSymbol) -> str:
    return f"\n  at {op.source}" if op.source else ""


def _draws(op: BoundSymbol) -> bool:
    """Check whether an operation draws random numbers."""
    if OpTags.GENERATOR_STATE_OP in op.sym.tags:
        return False
    if op.subsymbols:
        return any(map(_draws, op.subsymbols))
    return OpTags.RANDOM_OP in op.sym.tags


# -- composites with rules of their own -------------------------------------------------------------------------------
def _has_rules(op: BoundSymbol) -> bool:
    if not op.sym.differentiable or not any(
        isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype) for p in op.flat_args
    ):
        return False
    return op.sym.joint_rule is None and (forward.jvp_rule(op) is not None or grad_rule(op) is not None)


class _Composite:
    """A batched composite as an operation on the values of its arguments, with the composite's own rules."""

    def __init__(self, b: Batch, op: BoundSymbol):
        self.op = op
        self.size, self.randomness = b.size, b.randomness
        self.is_batched = [b.value(p) in b for p in op.flat_args]

    def symbol(self) -> Symbol:
        """Create the operation's symbol, whose rules are the composite's rules."""
        op = self.op

        def meta(*values: Any) -> Any:
            """Return the results of a composite over a batch."""
            inner = self.batch_of(values)
            inner.run(op.subsymbols)
            return self.whole(inner, op.output)

        tags = tuple(op.sym.tags & {OpTags.RANDOM_OP})
        sym = Symbol(f"vmap_{op.sym.name}", meta, id=("vmap", op.sym.id, next(_numbers)), tags=tags)
        if grad_rule(op) is not None:
            sym.grad(self.gradient)
        if forward.jvp_rule(op) is not None:
            sym.jvp(self.tangents)
        return sym

    def batch_of(self, values: Sequence[Any]) -> Batch:
        """Return a batch in which the arguments of the composite have these values."""
        inner = Batch(self.size, self.randomness, copies=True)  # the operation may be called several times
        for p, value, is_batched in zip(self.op.flat_args, values, self.is_batched):
            inner.env[p.name] = value
            if is_batched:
                inner.add(value)
        return inner

    def whole(self, inner: Batch, result: Any) -> Any:
        """Return a result, expanded to a batch if it is the same for all examples."""
        return map_proxies(result, lambda p: inner.batched(p) if isinstance(p, TensorProxy) else p)

    def gradient(self, *values: Any) -> Any:
        """Apply the composite's own gradient rule to the batch."""
        rule, trace = grad_rule(self.op), state.trace
        assert rule is not None and trace is not None
        inner = self.batch_of(values)
        with trace.scope() as recorded:
            result = rule(*self.op.args, **self.op.kwargs)
        inner.run(recorded)
        return self.whole(inner, result)

    def tangents(self, t: Any, out: Any, *values: Any) -> Any:
        """Compute the tangents of the results from the tangents of the values, over the batch."""
        trace = state.trace
        assert trace is not None
        inner = self.batch_of(values)
        moving: dict[str, TensorProxy] = {}
        for p, value, tangent in zip(self.op.flat_args, values, t):
            if tangent is not None:
                one = moving[p.name] = TensorProxy(like=p)  # type: ignore[arg-type]
                inner.env[one.name] = tangent
                if value in inner:
                    inner.add(tangent)
        with trace.scope() as recorded:
            pushed = forward.Forward(moving)
            pushed.push([self.op])
        inner.run(recorded)
        found = [pushed.tangent(p) for p in proxies_in(self.op.output)]
        return tuple([None if one is None else inner.batched(one) for one in found])
