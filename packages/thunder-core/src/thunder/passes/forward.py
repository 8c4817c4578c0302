# SPDX-License-Identifier: Apache-2.0
"""Forward mode differentiation: compute the tangent of each value of a program next to the value.

`push` records a program's operations. After each operation, it records the operations that compute the tangents of its
results. The rule of an operation is the first one that exists of these:

- the rule set by `register_jvp`;
- the operation's own rule (`@sym.jvp`);
- the gradient rule, applied twice;
- the rules of the operations in its decomposition.

Applying the gradient rule twice works because a gradient is linear in the cotangent. Differentiate the gradient with
respect to the cotangent, and apply this derivative to the tangents of the inputs: the result is the tangent of the
output. So every operation with a gradient rule has a tangent.

Contract: the program's own operations and the names of existing values stay unchanged. A tangent has the shape and
dtype of its value; None stands for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import ThunderError
from thunder.core.langctx import set_langctx
from thunder.core.prims.autodiff import zeros_of
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import flat_items
from thunder.core.state import count_registration, current_trace, state
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies
from thunder.core.trace import Trace
from thunder.passes.autodiff import JointTrace, differentiable_outputs, grad_rule

__all__ = ["Forward", "pulled_back", "register_jvp"]

JvpRule = Callable[..., Any]

_registered: dict[Any, JvpRule] = {}


def register_jvp(sym_or_id: Symbol | Any, rule: JvpRule) -> None:
    """Set the tangent rule of an operation, given by its symbol or id.

    `rule(t, output, *args, **kwargs)` has the signature of `@sym.jvp`.
    """
    _registered[sym_or_id.id if isinstance(sym_or_id, Symbol) else sym_or_id] = rule
    count_registration()


def jvp_rule(op: BoundSymbol) -> JvpRule | None:
    """Return the tangent rule of an operation: registered, its own, or None."""
    return _registered.get(op.sym.id) or op.sym.jvp_rule


def part(operations: Sequence[BoundSymbol]) -> Trace:
    """Return operations of a program as a trace, so that passes can process them."""
    trace = Trace("part")
    trace.bound_symbols[:] = operations
    return trace


def pulled_back(joint: JointTrace, cotangents: Sequence[tuple[Any, Any]], wrt: Sequence[TensorProxy]) -> list[Any]:
    """Return the gradients of `wrt`, given pairs of a value and its cotangent."""
    arriving: dict[str, Any] = {}
    with set_langctx("torch"):
        for value, gradient in cotangents:
            name = joint.env.get(value.name, value).name
            arriving[name] = arriving[name] + gradient if name in arriving else gradient
        return joint.backward(arriving, wrt)


class Forward:
    """The tangents of the values of a program that is being recorded into the current trace."""

    def __init__(self, tangents: dict[str, TensorProxy]):
        self.tangents = dict(tangents)
        self.env: dict[str, Any] = {}  # value of the program -> its replacement

    def value(self, value: Any) -> Any:
        """Return the replacement of `value`, or `value` itself if it has none."""
        return self.env.get(value.name, value)

    def tangent(self, value: Any) -> TensorProxy | None:
        """Return the tangent of `value`, or None if it is zero."""
        return self.tangents.get(self.env.get(value.name, value).name)

    def push(self, operations: Sequence[BoundSymbol]) -> None:
        """Record each operation, followed by the operations that compute the tangents of its results."""
        with set_langctx("torch"):
            for op in operations:
                self._push(op)

    def _push(self, op: BoundSymbol) -> None:
        if self.env:
            op = op.substitute(self.env)
        trace: Trace = current_trace()
        moving = _each({p.name: p for p in op.tensors() if p.name in self.tangents})
        if not moving or not op.sym.differentiable or OpTags.UNPACK_OP in op.sym.tags:
            trace.record(op)
            return
        rule = jvp_rule(op)
        source, state.source = state.source, op.source
        try:
            if rule is None and op.sym.joint_jvp_rule is not None:
                op.sym.joint_jvp_rule(op, self)
            elif rule is not None:
                trace.record(op)
                self._apply(rule, op)
            elif op.sym.joint_rule is None and grad_rule(op) is not None:
                self._by_gradient(op, moving, trace)
            elif op.subsymbols:
                self._by_parts(op, trace)
            elif op.out_names:
                raise ThunderError(
                    f"{op.sym.name} has no tangent rule and no gradient rule. Register one with "
                    "thunder.core.transforms.register_jvp or register_grad, or exclude its arguments from the "
                    f"derivative with .detach()\n  at {op.source}"
                )
        finally:
            state.source = source

    def _by_parts(self, op: BoundSymbol, trace: Trace) -> None:
        """Compute tangents by the rules of the operations in the decomposition of `op`.

        `op` stays whole if the tangents need no intermediate value of the decomposition.
        """
        env = dict(self.env)
        with trace.scope() as recorded:
            self.push(op.subsymbols)
        inside = _made_in(op)
        beside = [x for x in recorded if not inside.issuperset(x.out_names)]
        needed = {name for x in beside for name in x.arg_names}
        whole = self.env == env and needed.isdisjoint(inside.difference(op.out_names))
        for x in [op, *beside] if whole else recorded:
            trace.record(x)

    # -- by a rule ----------------------------------------------------------------------------------------------------
    def _apply(self, rule: JvpRule, op: BoundSymbol) -> None:
        """Compute tangents by `rule`."""
        names = op.sym.bind.names
        more = op.kwargs.values() if op.sym.bind.variadic else [op.kwargs.get(name) for name in names[len(op.args) :]]
        given = (*op.args, *more)
        found = rule(tuple([self._of(a) for a in given]), op.output, *op.args, **op.kwargs)
        outs, tangents = flat_items(op.output), flat_items(found)
        if len(outs) != len(tangents):
            raise ThunderError(
                f"the tangent rule of {op.sym.name} returned {len(tangents)} values instead of {len(outs)}: it must "
                "return a tangent or None for each output"
            )
        for out, tangent in zip(outs, tangents):
            if tangent is not None and isinstance(out, TensorProxy):
                if tangent.shape != out.shape or tangent.dtype is not out.dtype:
                    raise ThunderError(
                        f"the tangent rule of {op.sym.name} returned a {tangent.type_string()} for {out.name}, which "
                        f"is a {out.type_string()}"
                    )
                self.tangents[out.name] = tangent

    def _of(self, x: Any) -> Any:
        if isinstance(x, TensorProxy):
            return self.tangents.get(x.name)
        return tuple([self._of(i) for i in x]) if isinstance(x, (tuple, list)) else None

    # -- by the gradient rule, twice ----------------------------------------------------------------------------------
    def _by_gradient(self, op: BoundSymbol, moving: list[TensorProxy], trace: Trace) -> None:
        joint = JointTrace(part([op]), moving, into=trace)
        for p in op.flat_outs:
            if p.name in joint.env:  # the operation returns an input
                self.env[p.name] = joint.env[p.name]
        outs = differentiable_outputs(map_proxies(op.output, lambda p: joint.env.get(p.name, p)), joint.tracked)
        outs = [p for p in outs if p.name not in self.tangents]
        # The derivative is with respect to the cotangents. The rule is linear in them, so their values are not needed.
        arriving = [zeros_of(p) for p in outs]
        with trace.scope() as backward:
            gradients = joint.backward({p.name: v for p, v in zip(outs, arriving)}, moving)
        again = JointTrace(part(backward), arriving, into=trace)
        pairs = [(g, self.tangents[p.name]) for p, g in zip(moving, gradients) if g is not None]
        for p, tangent in zip(outs, pulled_back(again, pairs, arriving)):
            if tangent is not None:
                self.tangents[p.name] = tangent


def _made_in(op: BoundSymbol) -> set[str]:
    """Return the names of the results of an operation and of all operations in its decomposition."""
    return {name for part in op.subsymbols for name in _made_in(part)}.union(op.out_names)


def _each(found: dict[str, TensorProxy]) -> list[TensorProxy]:
    return [p for p in found.values() if is_inexact_dtype(p.dtype)]
