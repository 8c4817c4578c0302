# SPDX-License-Identifier: Apache-2.0
"""`torch.cond` inside a traced program: one operation with two branch programs. A tensor's value selects the branch.

Each function is traced into a separate program. Both programs have the same inputs: all values that either one reads.
The gradient is another `cond`, which selects between the gradient programs of the two branches. A gradient program
computes the values of its branch again. If the branch draws random numbers, the gradient program sets the generators
to their states before the branch, and restores them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.user_lines import annotate, user_line
from thunder.capture.dispatch.opaque import leave_loop
from thunder.capture.dispatch.registry import handles
from thunder.capture.higher_order.subtrace import trace_separately
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.langctx import set_langctx
from thunder.core.prims import get_grad, put_grad
from thunder.core.prims.autodiff import zeros_of
from thunder.core.printer import call_with_programs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in
from thunder.core.symint.numbers import same_shape
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.executors.torchex.base import ex as torch_executor
from thunder.passes.autodiff import JointTrace
from thunder.passes.batching import Batch
from thunder.passes.checkpoint import Source, exchanged, random_sources, states_of
from thunder.passes.cse import cse
from thunder.passes.dce import dce, has_effect
from thunder.passes.deletion import delete_last_used
from thunder.passes.forward import Forward

__all__ = ["cond_traced", "refuse_control_flow"]


class Branch:
    """The program of one branch: a function of the operation's operands that returns a tuple of tensors."""

    def __init__(self, trace: Trace, executors: Sequence[Any]):
        self.__name__ = trace.name
        self.trace = dce(cse(dce(trace)))
        self.executors = executors
        self._run: Callable[..., Any] | None = None

    def __call__(self, *operands: Any) -> Any:
        if self._run is None:
            claimed = transform_for_execution(self.trace, self.executors)[-1]
            self._run = delete_last_used(dce(claimed)).python_callable(decorators=False)
        return self._run(*operands)

    @property
    def draws(self) -> bool:
        """True if the branch draws random numbers."""
        return any(has_effect(op) for op in self.trace.bound_symbols if op.sym is not prims.python_return)


# -- the operation ----------------------------------------------------------------------------------------------------
def _meta(pred: Any, true: Branch, false: Branch, *operands: Any) -> Any:
    """Return the results of the branch `true` if `pred` is true, else those of the branch `false`."""
    return tuple([TensorProxy(like=p) for p in true.trace.output])


def _choose(pred: Any, true: Any, false: Any, *operands: Any) -> Any:
    return true(*operands) if pred else false(*operands)


def _symbol(*tags: OpTags) -> Symbol:
    return Symbol(
        "cond", _meta, id=("torch.cond", *tags), is_prim=True, executor=torch_executor, fn=_choose,
        printer=call_with_programs, tags=tags,
    )  # fmt: skip


cond = _symbol()
cond_with_draws = _symbol(OpTags.RANDOM_OP)


@cond.grad
def _(pred: Any, true: Branch, false: Branch, *operands: Any) -> Any:
    out = cond(pred, true, false, *operands)
    wrt = [i for i, p in enumerate(operands) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)]
    taking = [i for i, p in enumerate(out) if is_inexact_dtype(p.dtype)]
    gradients = [get_grad(out[i]) for i in taking]
    found = cond(pred, _gradient(true, wrt, taking), _gradient(false, wrt, taking), *operands, *gradients)
    for i, g in zip(wrt, found):
        put_grad(operands[i], g)
    return out


def _differentiated_with_draws(bsym: BoundSymbol, joint: JointTrace) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    """Record `cond` in the forward program, and `cond` between gradient programs in the backward program.

    Both draw the same random numbers.
    """
    pred, true, false, *operands = bsym.args
    wrt = [i for i, p in enumerate(operands) if isinstance(p, TensorProxy) and p.name in joint.tracked]
    wrt = [i for i in wrt if is_inexact_dtype(operands[i].dtype)]
    taking = [i for i, p in enumerate(bsym.output) if is_inexact_dtype(p.dtype)]
    sources = random_sources([*true.trace.bound_symbols, *false.trace.bound_symbols])
    gradients = [_gradient(branch, wrt, taking, sources) for branch in (true, false)]
    # Forward runs the same differentiated branches as backward, so that both draw the same random numbers.
    chosen = [_forward(branch, wrt) for branch in (true, false)]
    with tracectx(joint.trace):
        with joint.trace.scope() as forward:
            states = states_of(sources)
            joint.trace.record(
                BoundSymbol(cond_with_draws, (pred, *chosen, *operands), {}, bsym.output, source=bsym.source)
            )
        with joint.trace.scope() as backward:
            arriving = [prims.get_grad(bsym.output[i]) for i in taking]
            for i, g in zip(wrt, cond_with_draws(pred, *gradients, *operands, *arriving, *states)):
                prims.put_grad(operands[i], g)
    joint.tracked.update(bsym.output[i].name for i in taking)
    return forward, backward


cond_with_draws.joint_rule = _differentiated_with_draws


def _moving(bsym: BoundSymbol, forward: Forward) -> None:
    """Record `cond` between programs that compute both results and tangents, so that each branch draws once."""
    pred, true, false, *operands = bsym.args
    tangents = [forward.tangent(p) if isinstance(p, TensorProxy) else None for p in operands]
    moving = [i for i, tangent in enumerate(tangents) if tangent is not None]
    branches = [_with_tangents(branch, moving) for branch in (true, false)]
    out = [p for p in bsym.output if is_inexact_dtype(p.dtype)]
    found = [TensorProxy(like=p) for p in out]
    args = (pred, *branches, *operands, *[tangents[i] for i in moving])
    trace = state.trace
    assert trace is not None
    trace.record(BoundSymbol(bsym.sym, args, {}, (*bsym.output, *found), source=bsym.source))
    forward.tangents.update({p.name: tangent for p, tangent in zip(out, found)})


cond.joint_jvp_rule = cond_with_draws.joint_jvp_rule = _moving


def _with_tangents(branch: Branch, moving: Sequence[int]) -> Branch:
    """Return the branch in forward mode.

    Its further inputs are the tangents of the operands `moving`, and its further outputs the tangents of the results.
    """
    out = branch.trace.derive()
    with tracectx(out), set_langctx("torch"):
        given: Any = [branch.trace.args[i] for i in moving]
        arriving = {p.name: TensorProxy(like=p, name=out.add_name(f"t_{p.name}")) for p in given}
        forward = Forward(arriving)
        forward.push([op for op in branch.trace.bound_symbols if op.sym is not prims.python_return])
        results: list[Any] = [forward.value(p) for p in branch.trace.output]
        tangents = [forward.tangent(p) for p in results]
        pairs = [(p, t) for p, t in zip(results, tangents) if is_inexact_dtype(p.dtype)]
        moved = [zeros_of(p) if t is None else t for p, t in pairs]
        out.args = [*branch.trace.args, *arriving.values()]
        prims.python_return(_of_their_own([*results, *moved], out.args))
    return Branch(out, branch.executors)


def _batch_of(sym: Symbol) -> Callable[..., Any]:
    def rule(b: Any, pred: Any, true: Branch, false: Branch, *operands: Any) -> Any:
        if pred not in b:
            return sym(pred, *[_over_batch(b, branch, operands) for branch in (true, false)], *operands)
        # Examples of the batch may select different branches, so both branches run.
        one, other = (_each_example(b, branch, operands) for branch in (true, false))

        def chosen(x: Any, y: Any) -> Any:
            which = ltorch.reshape(pred, (b.size, *[1] * (x.ndim - 1)))
            return ltorch.where(ltorch.to(which, torch.bool), x, y)

        return tuple([chosen(x, y) for x, y in zip(one, other)])

    return rule


cond.batch(_batch_of(cond))
cond_with_draws.batch(_batch_of(cond_with_draws))


def _over_batch(b: Batch, branch: Branch, operands: Sequence[Any]) -> Branch:
    """Return the branch program for the whole batch. Some operands may be the same for all examples."""
    out = branch.trace.derive()
    with tracectx(out), set_langctx("torch"):
        out.args = [
            TensorProxy(like=p, name=out.add_name(f"{p.name}_batch")) if p in b else one
            for one, p in zip(branch.trace.args, operands)
        ]
        inner = Batch(b.size, b.randomness)
        prims.python_return(_of_their_own(_results_over_batch(inner, b, branch, operands, out.args), out.args))
    return Branch(out, branch.executors)


def _each_example(b: Batch, branch: Branch, operands: Sequence[Any]) -> list[Any]:
    """Record the operations of a branch for the whole batch in the surrounding trace, and return the results."""
    return _results_over_batch(Batch(b.size, b.randomness, copies=True), b, branch, operands, operands)


def _results_over_batch(
    inner: Batch, b: Batch, branch: Branch, operands: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    for p, given, value in zip(branch.trace.args, operands, values):
        inner.env[p.name] = value
        if given in b:
            inner.add(value)
    inner.run([op for op in branch.trace.bound_symbols if op.sym is not prims.python_return])
    return [inner.batched(p) for p in branch.trace.output]


def _forward(branch: Branch, wrt: Sequence[int]) -> Branch:
    """Return the forward program of a branch that is differentiated by the operands `wrt`."""
    source = branch.trace
    joint = JointTrace(source, [source.args[i] for i in wrt], branch.executors)  # type: ignore[misc]
    out = joint.trace
    out.args, out.info = source.args, dict(source.info)
    with tracectx(out):
        prims.python_return(_of_their_own(joint.output, out.args))
    return Branch(out, branch.executors)


def _gradient(branch: Branch, wrt: Sequence[int], taking: Sequence[int], sources: Sequence[Source] = ()) -> Branch:
    """Return the gradient program of a branch, which returns the gradients of the operands `wrt`.

    Its inputs are the operands, the gradients of the results `taking`, and the generator states of `sources` before the
    branch ran.
    """
    source = branch.trace
    out = Trace(f"{source.name}_gradient", args=source.args)
    inputs: list[Any] = [source.args[i] for i in wrt]
    joint = JointTrace(source, inputs, branch.executors)
    out.names, out._counters = joint.trace.names, joint.trace._counters
    out.info = dict(source.info)
    with tracectx(out), set_langctx("torch"):
        cotangents: dict[str, Any] = {}
        results = [joint.output[i] for i in taking]
        arriving = [TensorProxy(like=p, name=out.add_name(f"grad_{p.name}")) for p in results]
        with out.scope():
            states = states_of(sources)  # proxies with the metadata of generator states
        out.args += [*arriving, *states]
        before = exchanged(states, sources)
        out.bound_symbols += joint.trace.bound_symbols
        exchanged(before, sources)
        for p, given in zip(results, arriving):
            cotangents[p.name] = cotangents[p.name] + given if p.name in cotangents else given
        known = {name: g for name, g in cotangents.items() if name in joint.tracked}
        grads = joint.backward(known, inputs) if known else [None] * len(inputs)
        found = [ltorch.zeros_like(p) if g is None else g for g, p in zip(grads, inputs)]
        prims.python_return(_of_their_own(found, out.args))
    return Branch(out, branch.executors)


def _of_their_own(values: Sequence[Any], given: Sequence[Proxy]) -> tuple[Any, ...]:
    """Clone results of a branch that are inputs or duplicates, so that all results are distinct tensors."""
    known = {p.name for p in given}
    out: list[Any] = []
    for p in values:
        out.append(prims.clone(p) if p.name in known else p)
        known.add(p.name)
    return tuple(out)


# -- tracing ----------------------------------------------------------------------------------------------------------
@handles(torch.ops.higher_order.cond, traced=True)  # `torch.cond` calls this operation
def cond_traced(
    tracer: Tracer, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()
) -> Any:
    """Call `torch.cond(pred, true_fn, false_fn, operands)` in a traced program."""
    try:
        return _chosen(tracer, pred, true_fn, false_fn, operands)
    except RuntimeError as error:
        annotate(error, user_line())
        raise


def _chosen(tracer: Tracer, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    if not isinstance(pred, torch.Tensor):
        return (true_fn if pred else false_fn)(*operands)
    if pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if not isinstance(operands, (tuple, list)):
        raise RuntimeError(f"Expect operands to be a tuple of tensors, but got {operands}.")
    parts = [
        trace_separately(tracer, lambda fn=fn: fn(*operands), "torch.cond")  # type: ignore[misc]
        for fn in (true_fn, false_fn)
    ]
    _check_alike(parts[0][1], parts[1][1])
    inputs = {p.name: p for operations, output in parts for p in _read(operations, output)}
    branches = [
        _branch(tracer, name, operations, output, list(inputs.values()))
        for name, (operations, output) in zip(("true", "false"), parts)
    ]
    tensors = [p for p in inputs.values() if isinstance(p, TensorProxy)]
    requiring = {h._value.name for h in tracer.handles if needs_grad(h)}
    with tracer.recording():
        which = cond_with_draws if any(b.draws for b in branches) else cond
        results = iter(which(tracer.unwrap(pred), *branches, *inputs.values()))
    grad = any(p.name in requiring for p in tensors)
    made = map_proxies(parts[0][1], lambda p: next(results) if isinstance(p, TensorProxy) else p)
    with tracer.recording():
        if grad and tracer.detaching and not torch.is_grad_enabled():
            made = tracer.detached(made, (), {})
        return tracer.wrap(made, requires_grad=grad and torch.is_grad_enabled())


def _read(operations: Sequence[BoundSymbol], output: Any) -> list[Proxy]:
    """Return the values that `operations` and `output` read from outside."""
    made = {name for op in operations for name in op.out_names}
    return [p for p in [*(p for op in operations for p in op.flat_args), *proxies_in(output)] if p.name not in made]


def _branch(
    tracer: Tracer, name: str, operations: Sequence[BoundSymbol], output: Any, inputs: Sequence[Proxy]
) -> Branch:
    trace = Trace(name, args=inputs)
    trace.names, trace._counters = set(tracer.trace.names), dict(tracer.trace._counters)
    trace.info = {k: v for k, v in tracer.trace.info.items() if k == "symbols"}
    trace.bound_symbols[:] = operations
    with tracectx(trace), set_langctx("torch"):
        prims.python_return(_of_their_own(proxies_in(output), inputs))
    tracer.trace.names |= trace.names
    return Branch(trace, tracer.executors or (torch_executor,))


def _check_alike(true: Any, false: Any) -> None:
    """Check that both functions return tensors with the same metadata in the same containers."""
    one, other = proxies_in(true), proxies_in(false)
    shapes = repr(map_proxies(true, lambda p: None)) == repr(map_proxies(false, lambda p: None))
    if not shapes or len(one) != len(other):
        raise RuntimeError(
            "torch.cond: the two functions must return equal containers, as many tensors, and equal Python numbers"
        )
    for p, q in zip(one, other):
        if not isinstance(p, TensorProxy) or not isinstance(q, TensorProxy):
            raise RuntimeError("torch.cond: the two functions must return tensors")
        if not same_shape(p.shape, q.shape) or p.dtype is not q.dtype or p.device is not q.device:
            raise RuntimeError(
                f"torch.cond: the two functions return tensors that differ: {p.type_string()} and {q.type_string()}"
            )


def refuse_control_flow(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `original`, which runs torch's higher-order operations such as `while_loop`."""

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        tracer: Any = state.frontend
        if tracer is None:
            return original(fn, args, kwargs)
        name = getattr(fn, "__qualname__", type(fn).__name__).partition(".")[0]
        if name == "cond":
            return cond_traced(tracer, *args)
        if name == "associative_scan":  # `scanning.py`
            return fn(*args)
        return leave_loop(name)

    return call
