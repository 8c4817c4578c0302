# SPDX-License-Identifier: Apache-2.0
"""Reverse mode differentiation of traces.

Each operation's gradient rule runs the operation and says, with get_grad and put_grad, how gradients flow from its
result to its inputs. What a rule records falls apart into what its result needs (the forward part) and the rest (the
backward part). The forward parts in order, then the backward parts in reverse order with get_grad and put_grad replaced
by the sums they stand for, are the joint program; `transforms/split.py` makes a forward and a backward program of it.

The rule of an operation is the first of: the claiming executor's `grad_transform`, one that `register_grad` set, the
operation's own, the rules of what it decomposes into.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_inexact_dtype, to_torch_dtype
from thunder.core.errors import ThunderError, name_source
from thunder.core.langctx import set_langctx
from thunder.core.prims.autodiff import rule_of_vjp, zeros_of
from thunder.core.proxies import TensorProxy
from thunder.core.state import registrations, state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in
from thunder.core.trace import Trace, construct
from thunder.transforms.remat import is_cheap

if TYPE_CHECKING:
    from thunder.extend import Executor

__all__ = ["GradRule", "JointTrace", "differentiate", "register_grad"]

GradRule = Callable[..., Any]

_registered: dict[Any, GradRule] = {}


def register_grad(sym_or_id: Symbol | Any, rule: GradRule) -> None:
    """Sets the gradient rule of an operation, by its symbol or id, whoever declared it."""
    _registered[sym_or_id.id if isinstance(sym_or_id, Symbol) else sym_or_id] = rule
    registrations[0] += 1


def grad_rule(bsym: BoundSymbol, executors: Sequence[Executor] = ()) -> GradRule | None:
    """The gradient rule for one call; None when what it decomposes into has to be asked."""
    sym = bsym.sym
    registered = _registered.get(sym.id)
    # Asking who takes an operation takes time; only where one of them brings a rule it matters.
    bring = any((found := ex.implmap.get(sym.id)) is not None and found.grad_transform is not None for ex in executors)
    named = getattr(executors, "named", True)  # as `thunder.extend.are_named`, a floor above
    for executor in executors if bring else ():
        if executor.is_fallback and registered is not None:
            break  # what was registered is meant to be used
        rule = executor.grad_rule(bsym, named=named)
        if rule is not None:
            return rule
        if executor.takes(bsym, named=named):
            break  # it runs the operation and brings no rule
    rule = registered or sym.grad_rule
    if rule is None and sym.vjp_rule is not None:
        rule = rule_of_vjp(sym, sym.vjp_rule)
    return rule


def _refuse_write(bsym: BoundSymbol) -> None:
    target = bsym.args[1].name
    raise ThunderError(
        f"the program writes a value that requires grad into its input {target}, through which no gradient can flow "
        f"back: write under torch.no_grad() or a detached value, or return the value instead of writing it{_at(bsym)}"
    )


def _at(bsym: BoundSymbol) -> str:
    return f"\n  at {bsym.source}" if bsym.source else ""


class _Block:
    """What one rule recorded: its forward and its backward operations."""

    __slots__ = ("backward", "forward")

    def __init__(self, forward: list[BoundSymbol], backward: list[BoundSymbol]):
        self.forward = forward
        self.backward = backward


class JointTrace:
    """A program and its differentiation, before they are put together.

    `trace` holds the forward operations; `backward(cotangents)` records the backward ones into it, or into another
    trace. With `into` the forward operations go to that trace, which is being written.
    """

    def __init__(
        self,
        source: Trace,
        wrt: Sequence[TensorProxy],
        executors: Sequence[Executor] = (),
        *,
        into: Trace | None = None,
    ):
        self.executors = executors
        self.trace = source.derive() if into is None else into
        self.env: dict[str, Any] = {}  # what a value of the source is called here
        self.tracked: set[str] = {p.name for p in wrt}  # the values that depend on what is differentiated by
        self.blocks: list[_Block] = []
        self.output: Any = None
        with tracectx(self.trace), set_langctx("torch"):
            for bsym in source.bound_symbols:
                self._forward(bsym)

    # -- forward ------------------------------------------------------------------------------------------------------
    def _forward(self, bsym: BoundSymbol) -> None:
        if self.env:
            bsym = bsym.substitute(self.env)
        sym = bsym.sym
        if sym is prims.python_return:
            self.output = bsym.args[0]
            return
        if OpTags.UNPACK_OP in sym.tags or not self._depends(bsym) or not sym.differentiable:
            if sym is prims.copy_ and bsym.args[0].name in self.tracked:
                _refuse_write(bsym)
            self.trace.record(bsym)
            return
        if sym.joint_rule is not None:
            block = _Block(*sym.joint_rule(bsym, self))
            for op in block.forward:
                self.trace.record(op)
            self.blocks.append(block)
            return
        rule = grad_rule(bsym, self.executors)
        if rule is not None:
            self._apply(rule, bsym)
        elif bsym.subsymbols:
            self._through_decomposition(bsym)
        elif bsym.out_names:
            raise ThunderError(
                f"{sym.name} has no gradient rule: give it one with thunder.core.transforms.register_grad, or keep "
                f"what it is applied to out of the gradient with .detach(){_at(bsym)}"
            )

    def _through_decomposition(self, bsym: BoundSymbol) -> None:
        """Differentiates an operation by the rules of its parts.

        It stays whole in the forward program where all that its backward needs are its inputs, its outputs and what is
        cheaply computed from them again; else its parts take its place.
        """
        first, known = len(self.blocks), len(self.env)
        with self.trace.scope() as parts:
            for sub in bsym.subsymbols:
                self._forward(sub)
        again = None if len(self.env) != known else _recomputed(self.blocks[first:], bsym, parts)
        if again is None:
            for part in parts:
                self.trace.record(part)
            return
        self.trace.record(bsym)
        if again:
            self.blocks.append(_Block([], self._as_new(again, self.blocks[first:])))

    def _as_new(self, again: list[BoundSymbol], blocks: list[_Block]) -> list[BoundSymbol]:
        """Operations that backward runs again, under names of their own: a program that was differentiated before may
        have these values already."""
        made = [p for op in again for p in op.flat_outs if isinstance(p, TensorProxy) and p.name in op.out_names]
        names = {p.name: TensorProxy(like=p, name=self.trace.make_name("t")) for p in made}
        self.tracked.update(new.name for old, new in names.items() if old in self.tracked)
        for block in blocks:
            block.backward = [op.substitute(names) for op in block.backward]
        return [op.substitute(names) for op in again]

    def _depends(self, bsym: BoundSymbol) -> bool:
        return any(
            p.name in self.tracked and isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype) for p in bsym.flat_args
        )

    def _apply(self, rule: GradRule, bsym: BoundSymbol) -> None:
        backward = getattr(rule, "backward", None)
        source, state.source = state.source, bsym.source
        try:
            with self.trace.scope() as recorded:
                if backward is not None:
                    backward(bsym.output, *bsym.args, **bsym.kwargs)
                else:
                    result = rule(*bsym.args, **bsym.kwargs)
        except Exception as error:
            name_source(error, f"the gradient rule of {bsym.sym.name}{_at(bsym)}")
            raise
        finally:
            state.source = source
        if backward is not None:
            self.trace.record(bsym)
            self._block(_split(recorded, set()), bsym)
            return
        names = self._rename(bsym, result, recorded)
        if names:
            recorded = [op.substitute(names) for op in recorded]
        block = _split(recorded, {p.name for p in proxies_in(map_proxies(result, lambda p: names.get(p.name, p)))})
        self._block(block, bsym)

    def _block(self, block: _Block, bsym: BoundSymbol) -> None:
        """Adds the operations that stand for `bsym`."""
        for op in block.forward:
            self.trace.record(op)
        self.tracked.update(
            p.name for p in proxies_in(bsym.output) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)
        )
        self.blocks.append(block)

    def _rename(self, bsym: BoundSymbol, result: Any, recorded: list[BoundSymbol]) -> dict[str, Any]:
        """Gives the rule's result the names of the output it stands for."""
        old, new = proxies_in(bsym.output), proxies_in(result)
        if len(old) != len(new):
            raise ThunderError(
                f"the gradient rule of {bsym.sym.name} returned {len(new)} values instead of {len(old)}: it must "
                "return what the operation returns"
            )
        made = {name for op in recorded for name in op.out_names}
        names: dict[str, Any] = {}
        for want, got in zip(old, new):
            if want.name == got.name:
                continue
            if got.name in made and got.name not in names:
                names[got.name] = want
            else:  # the result is an input: gradients for the one flow into the other
                self.env[want.name] = names.get(got.name, got)
                self.tracked.add(self.env[want.name].name)
        return names

    # -- backward -----------------------------------------------------------------------------------------------------
    def backward(self, cotangents: dict[str, TensorProxy], wrt: Sequence[TensorProxy]) -> list[TensorProxy | None]:
        """Records the backward program into the current trace and returns the gradients of `wrt` (None: none flows).

        `cotangents` are the gradients of outputs, by their names.
        """
        grads: dict[str, Any] = dict(cotangents)
        with set_langctx("torch"):
            for block in reversed(self.blocks):
                self._replay(block.backward, grads)
        return [grads.get(self.env.get(p.name, p).name) for p in wrt]

    def _replay(self, operations: list[BoundSymbol], grads: dict[str, Any]) -> None:
        asked = [op.args[0].name for op in operations if op.sym is prims.get_grad]
        if asked and not any(name in grads for name in asked):
            return  # nothing flows into this operation
        trace = state.trace
        assert trace is not None
        env: dict[str, Any] = {}
        put: list[tuple[str, Any]] = []
        for op in operations:
            if op.sym is prims.get_grad:
                a = op.args[0]
                found = grads.get(a.name)
                env[op.output.name] = found if found is not None else zeros_of(a)
                continue
            op = op.substitute(env) if env else op
            if op.sym is prims.put_grad:
                if op.args[0].name in self.tracked:
                    put.append((op.args[0].name, op.args[1]))
                continue
            trace.record(op)
        # An operation's result may be its input (in rules that pass it on): its gradient is used up before any new one.
        for name in asked:
            grads.pop(name, None)
        for name, grad in put:
            known = grads.get(name)
            grads[name] = grad if known is None else known + grad


def _recomputed(blocks: list[_Block], bsym: BoundSymbol, parts: list[BoundSymbol]) -> list[BoundSymbol] | None:
    """The operations that backward has to run again if `bsym` is run whole; None if that would not be cheap."""
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
        if not is_cheap(op) or not given.isdisjoint(op.out_names):  # what makes a result as well would run twice
            return None
        needed.update(name for name in op.arg_names if name not in given)
        again.append(op)
    return again[::-1]


def _split(recorded: list[BoundSymbol], results: set[str]) -> _Block:
    """A rule's operations: those that its results need, and those for backward. Effects belong to the forward part."""
    if not results and not any(op.has_effect for op in recorded):
        return _Block([], recorded)
    needed = set(results)
    forward: list[BoundSymbol] = []
    backward: list[BoundSymbol] = []
    for op in reversed(recorded):
        is_grad = OpTags.GRAD_OP in op.sym.tags
        if not is_grad and (op.has_effect or not needed.isdisjoint(op.out_names)):
            needed.update(op.arg_names)
            forward.append(op)
        else:
            backward.append(op)
    return _Block(forward[::-1], backward[::-1])


def differentiable_outputs(output: Any, tracked: set[str]) -> list[TensorProxy]:
    """The outputs that gradients can flow into, each once."""
    found = {p.name: p for p in proxies_in(output) if isinstance(p, TensorProxy)}
    return [p for name, p in found.items() if name in tracked and is_inexact_dtype(p.dtype)]


def differentiate(
    trace: Trace, executors: Sequence[Executor] = (), *, wrt: Sequence[TensorProxy] | None = None
) -> Trace:
    """The program that returns the gradients of `trace`'s outputs, as a list with one for each tensor of `wrt`.

    Outputs take ones as cotangents. `wrt` defaults to every floating point input, whether or not it requires grad.
    """
    if wrt is None:
        wrt = [p for p in trace.args if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)]
    with construct(trace, "Grad transform") as out:
        joint = JointTrace(trace, wrt, executors)
        out.names, out._counters = joint.trace.names, joint.trace._counters
        # Writes to inputs come last: the backward operations read them as they were.
        program = joint.trace.bound_symbols
        first_write = next((i for i, op in enumerate(program) if writes(op)), len(program))
        out.bound_symbols[:] = program[:first_write]
        with tracectx(out), set_langctx("torch"):
            # What the program keeps, which comes after its result, is none of it.
            keeps = "effects" in trace.info
            result = joint.output[0] if keeps else joint.output
            # A value that is returned twice takes a one for each time.
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
    out.output = found
    return out


def _full_like(p: TensorProxy, value: float) -> Any:
    return ltorch.full(p.shape, float(value), device=to_torch_device(p.device), dtype=to_torch_dtype(p.dtype))


def writes(op: BoundSymbol) -> bool:
    """Whether an operation, or a part of it, writes to one of its inputs."""
    return OpTags.IN_PLACE_OP in op.sym.tags or any(writes(sub) for sub in op.subsymbols)
