# SPDX-License-Identifier: Apache-2.0
"""Derivatives of functions inside a traced program: `grad`, `vjp`, `jvp`, `jacrev`, `jacfwd`, `hessian`.

Each function has the arguments and results of the `torch.func` function with the same name, and records operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.user_lines import annotate, user_line
from thunder.capture.higher_order.subtrace import Subtrace, handle_here, tracer_here
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer
from thunder.clang import maybe_convert_to_dtype
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_complex_dtype, is_inexact_dtype, to_torch_dtype
from thunder.core.langctx import set_langctx
from thunder.core.prims.autodiff import zeros_of
from thunder.core.proxies import TensorProxy
from thunder.passes.autodiff import JointTrace
from thunder.passes.batching import Batch
from thunder.passes.checkpoint import copy_operations
from thunder.passes.forward import Forward, pulled_back
from thunder.torch.private import pytree

__all__ = [
    "aux_leaves", "check_cotangents", "check_differentiable", "check_inexact_results", "grad_and_value", "jacfwd",
    "jacrev", "jvp", "located", "one_of", "tensors_of", "vjp", "with_aux",
]  # fmt: skip


def located(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that its errors name the line of user code."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            annotate(error, user_line())
            raise

    return call


# -- arguments --------------------------------------------------------------------------------------------------------
def _chosen(argnums: Any, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the argument positions that `argnums`, an int or a tuple of ints, selects."""
    if not isinstance(argnums, (int, tuple)) or not all(isinstance(i, int) for i in _as_tuple(argnums)):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    if argnums == ():
        raise RuntimeError("argnums must be non-empty, got argnums=()")
    positions = []
    for i in _as_tuple(argnums):
        if not -len(args) <= i < len(args):
            raise RuntimeError(f"Got argnum={i}, but only {len(args)} positional inputs")
        positions.append(i % len(args))
    if len(set(positions)) != len(positions):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return tuple(positions)


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _differentiated(part: Subtrace, tree: Any) -> Any:
    """Replace the tensors in an argument by stand-ins that gradients are computed for."""

    def leaf(x: Any) -> Handle:
        check_differentiable(x, part.name)
        return part.stand_in(x, requires_grad=True)

    return pytree.tree_map(leaf, tree)


def check_differentiable(x: Any, name: str) -> None:
    """Raise if `x` is not a tensor that can have a gradient."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"Thing passed to transform API must be Tensor, got {type(x)}")
    if not (x.is_floating_point() or x.is_complex()):
        raise RuntimeError(
            f"only Tensors of floating point dtype can require gradients, but {name} is called with a tensor of "
            f"{x.dtype}"
        )


def tensors_of(outputs: Any, where: str) -> list[torch.Tensor]:
    """Return the tensors in a function's result, or raise if the result contains other values."""
    leaves = pytree.tree_leaves(outputs)
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            raise RuntimeError(f"{where}: expected f to return only tensors, got unsupported type {type(x)}")
    if not leaves:
        raise RuntimeError(f"{where}: expected f to return at least one tensor, got no tensors")
    return leaves


def check_inexact_results(tensors: Sequence[torch.Tensor]) -> None:
    """Raise torch's error for results without derivatives, e.g. integer tensors."""
    for x in tensors:
        if not (x.is_floating_point() or x.is_complex()):
            raise RuntimeError(
                "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got Tensor with dtype "
                f"{x.dtype}"
            )


def with_aux(output: Any, has_aux: bool, where: str) -> tuple[Any, Any]:
    """Split a function's result from its auxiliary output."""
    if not has_aux:
        return output, None
    if not (isinstance(output, tuple) and len(output) == 2):
        raise RuntimeError(f"{where}: output of function f should be a tuple: (output, aux) if has_aux is True")
    return output


def aux_leaves(aux: Any) -> tuple[list[Any], Any]:
    """Return the tensors in an auxiliary output and its structure, or raise if it contains other values."""
    leaves, spec = pytree.tree_flatten(aux)
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            raise RuntimeError(f"Expected tensors, got unsupported type {type(x)}")
    return leaves, spec


# -- reverse mode -----------------------------------------------------------------------------------------------------
class Pullback:
    """A part of the program that has run, with the operations that propagate gradients back to its inputs."""

    def __init__(self, part: Subtrace, values: Sequence[TensorProxy]):
        self.part = part
        self.used = False
        trace = part.tracer.trace
        # Executors' own implementations of forward and backward cannot be differentiated again.
        last = not part.needs_grad and not part.tracer.parts
        program = part.to_trace(values)
        with part.transforming():
            self.joint = JointTrace(program, part.values, part.tracer.executors if last else (), into=trace)

    def record(self, cotangents: Sequence[tuple[TensorProxy, TensorProxy]]) -> list[TensorProxy | None]:
        """Record backward for pairs of a result and its cotangent, and return the gradients of the inputs or None."""
        trace = self.part.tracer.trace
        with trace.scope() as operations:
            found = pulled_back(self.joint, cotangents, self.part.values)
        if self.used:  # later calls copy the operations under new names
            names: dict[str, Any] = {}
            operations = copy_operations(operations, names, trace)
            found = [g if g is None else names.get(g.name, g) for g in found]
        self.used = True
        for op in operations:
            trace.record(op)
        return found

    def gradients(self, cotangents: Sequence[tuple[TensorProxy, TensorProxy]]) -> list[TensorProxy]:
        """Return the result of `record`, with zeros for inputs that no gradient flows to."""
        found = self.record(cotangents)
        return [zeros_of(p) if g is None else g for p, g in zip(self.part.values, found)]


@located
def grad_and_value(fn: Callable[..., Any], argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
    """Return the gradients of a scalar function and its value, or with `has_aux` `(grads, (value, aux))`."""
    tracer, where = tracer_here("grad"), "grad_and_value(f)(*args)"
    chosen = _chosen(argnums, args)
    part = Subtrace(tracer, "grad", constant=True, leaves=True)
    inputs = {i: _differentiated(part, args[i]) for i in chosen}
    with torch.enable_grad():
        out = part.run(fn, *[inputs.get(i, a) for i, a in enumerate(args)], **kwargs)
    value, aux = with_aux(out, has_aux, where)
    _check_scalar(value, where)
    aux, aux_spec = aux_leaves(aux) if has_aux else ([], None)
    first, *rest = values = part.read([value, *aux])
    pullback = Pullback(part, values)
    with part.transforming():
        grads = pullback.gradients([(first, one_of(first))])
    leaves = iter(part.give(grads, gradients=True))
    trees = tuple([pytree.tree_map(lambda x: next(leaves), inputs[i]) for i in chosen])
    found = trees if isinstance(argnums, tuple) else trees[0]
    [value] = part.give([first])
    return (found, (value, pytree.tree_unflatten(part.give(rest), aux_spec))) if has_aux else (found, value)


def one_of(p: TensorProxy) -> Any:
    """Return 1.0 in the dtype of `p`: the default cotangent of a scalar."""
    with set_langctx("torch"):
        return ltorch.full((), 1.0, dtype=to_torch_dtype(p.dtype), device=to_torch_device(p.device))


def _arriving(out: TensorProxy, given: Handle | None) -> Any:
    """Return the cotangent that a caller passes for `out`, in the dtype of `out`. None stands for a cotangent of 1."""
    if given is not None:
        return maybe_convert_to_dtype(aliasing.read(given), out.dtype)
    with set_langctx("torch"):
        return ltorch.reshape(one_of(out), out.shape)


def _check_scalar(value: Any, where: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(f"{where}: Expected f(*args) to return a tensor, got {type(value)}")
    if value.dim() != 0:
        raise RuntimeError(
            f"{where}: Expected f(*args) to return a scalar Tensor, got tensor with {value.dim()} dims. Maybe you "
            "wanted to use the vjp or jacrev APIs instead?"
        )
    if not value.is_floating_point():
        raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {value.dtype}")


@located
def vjp(fn: Callable[..., Any], primals: tuple[Any, ...], argnums: Any, has_aux: bool) -> Any:
    """Return `fn(*primals)`, and a function from cotangents of the result to gradients of the primals `argnums`."""
    tracer, where = tracer_here("vjp"), "vjp(f, *primals)"
    part, chosen, inputs, out, aux = _run_for_vjp(tracer, fn, primals, argnums, has_aux, where)
    tensors = tensors_of(out, where)
    spec = pytree.tree_structure(out)
    aux, aux_spec = aux_leaves(aux) if has_aux else ([], None)
    values = part.read([*tensors, *aux])
    outs, rest = values[: len(tensors)], values[len(tensors) :]
    pullback = Pullback(part, values)

    @located
    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        given, structure = pytree.tree_flatten(cotangents)
        check_cotangents(given, structure, outs, spec)
        here = tracer_here("vjp_fn")
        handles = [None if x is None else handle_here(here, x) for x in given]
        with part.transforming():
            arriving = [(out, _arriving(out, x)) for out, x in zip(outs, handles) if is_inexact_dtype(out.dtype)]
            grads = pullback.gradients(arriving)
        part.also_reads([x for x in handles if x is not None])
        leaves = iter(part.give(grads, gradients=True))
        trees = tuple([pytree.tree_map(lambda x: next(leaves), inputs[i]) for i in chosen])
        return trees if argnums is None or isinstance(argnums, tuple) else trees[0]

    results = pytree.tree_unflatten(part.give(outs), spec)
    return (results, vjp_fn, pytree.tree_unflatten(part.give(rest), aux_spec)) if has_aux else (results, vjp_fn)


def check_cotangents(given: Sequence[Any], structure: Any, outs: Sequence[Any], spec: Any) -> None:
    """Raise if cotangents do not match the results `outs`. For a result with one element, None is allowed."""
    if structure != spec:
        raise RuntimeError(
            "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function. "
            f"cotangents: {structure}, primal output: {spec}"
        )
    for i, (x, out) in enumerate(zip(given, outs)):
        if x is None:
            if math.prod(out.shape) != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            continue
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"gradients can be either Tensors or None, but got {type(x).__name__}")
        if tuple(x.shape) != tuple(out.shape):
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {x.shape} and output[{i}] has a shape of "
                f"{torch.Size(out.shape)}."
            )
        dtype = to_torch_dtype(out.dtype)
        if (x.is_complex() or dtype.is_complex) and x.dtype != dtype:
            raise RuntimeError(
                "For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in "
                f"dtype: grad_output[{i}] has a dtype of {x.dtype} and output[{i}] has a dtype of {dtype}."
            )
        if x.device != to_torch_device(out.device):
            raise RuntimeError(f"invalid gradient at index {i} - expected device {out.device} but got {x.device}")


def _run_for_vjp(
    tracer: Tracer, fn: Callable[..., Any], args: tuple[Any, ...], argnums: Any, has_aux: bool, where: str
) -> Any:
    chosen = tuple(range(len(args))) if argnums is None else _chosen(argnums, args)
    part = Subtrace(tracer, where.partition("(")[0], constant=True, leaves=True)
    inputs = {i: _differentiated(part, args[i]) for i in chosen}
    with torch.enable_grad():
        out = part.run(fn, *[inputs.get(i, a) for i, a in enumerate(args)])
    return part, chosen, inputs, *with_aux(out, has_aux, where)


# -- forward mode -----------------------------------------------------------------------------------------------------
@located
def jvp(fn: Callable[..., Any], primals: Any, tangents: Any, strict: bool, has_aux: bool, argnums: Any = None) -> Any:
    """Return `fn(*primals)` and its directional derivative along `tangents`."""
    tracer, where = tracer_here("jvp"), "jvp(f, primals, tangents)"
    args = _as_tuple(primals) if argnums is not None else primals
    if argnums is None:
        _check_directions(primals, tangents, where)
        moving, directions = primals, tangents
    else:
        chosen = _chosen(argnums, args)
        moving = tuple([args[i] for i in chosen])
        directions = _as_tuple(tangents)
    part = Subtrace(tracer, "jvp", constant=True)
    handles = [handle_here(tracer, t) for t in pytree.tree_leaves(directions)]
    inputs = pytree.tree_map(functools.partial(_moving, part), moving)
    for x, t in zip(part.inputs, handles):
        _check_direction(x, t, where)
        if x.shape != t.shape:
            raise RuntimeError(
                "Trying to set a forward gradient that has a different size than that of the original Tensor, this is "
                f"not supported. Tensor is of size {list(x.shape)} while the given forward gradient is of size "
                f"{list(t.shape)}."
            )
    if argnums is not None:
        inputs = tuple([inputs[chosen.index(i)] if i in chosen else a for i, a in enumerate(args)])
    out, aux = with_aux(_run_moving(part, fn, *inputs), has_aux, where)
    tensors, spec = tensors_of(out, where), pytree.tree_structure(out)
    aux, aux_spec = aux_leaves(aux) if has_aux else ([], None)
    values = part.read([*tensors, *aux])
    written = part.written()
    with part.transforming():
        along = [maybe_convert_to_dtype(aliasing.read(t), p.dtype) for p, t in zip(part.values, handles)]
        pushed = Forward({p.name: t for p, t in zip(part.values, along)})
        pushed.push(part.to_trace(values).bound_symbols)
        values = [pushed.value(p) for p in values]
        outs = values[: len(tensors)]
        found = [pushed.tangent(p) for p in outs]
        if strict and any(t is None for t in found):
            raise RuntimeError(
                f"{where.removesuffix(')')}, strict=True): The output of f is independent of the inputs. This is not "
                "allowed with strict=True."
            )
        moved = [zeros_of(p) if t is None else t for p, t in zip(outs, found)]
    _write_back(part, [(handle, pushed.value(value)) for handle, value in written])
    part.also_reads(handles)
    results = tuple([pytree.tree_unflatten(x, spec) for x in (part.give(outs, anew=True), part.give(moved))])
    return (*results, pytree.tree_unflatten(part.give(values[len(tensors) :]), aux_spec)) if has_aux else results


def _run_moving(part: Subtrace, fn: Callable[..., Any], *inputs: Any) -> Any:
    """Run a part for forward mode. Tangents also propagate under `no_grad`, where only the results are detached."""
    if torch.is_grad_enabled():
        return part.run(fn, *inputs)
    with part.tracer.without_gradients():
        return part.run(fn, *inputs)


def _check_directions(primals: Any, tangents: Any, where: str) -> None:
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple):
            raise RuntimeError(f"{where}: Expected {name} to be a tuple. E.g. it should be valid to call f(*primals).")
    one, other = pytree.tree_structure(primals), pytree.tree_structure(tangents)
    if one != other:
        raise RuntimeError(
            f"{where}: Expected primals and tangents to have the same python structure. For example, if primals is a "
            f"tuple of 3 tensors, tangents also must be. Got primals with structure {one} and tangents with structure "
            f"{other}"
        )
    for name, given in (("primals", primals), ("tangents", tangents)):
        leaves = pytree.tree_leaves(given)
        if not leaves:
            raise RuntimeError(f"{where}: Expected {name} to contain at least one Tensor.")
        for x in leaves:
            if not isinstance(x, torch.Tensor):
                raise RuntimeError(f"{where}: Expected {name} to only contain Tensors, got unsupported type {type(x)}")


def _check_direction(x: Handle, t: Handle, where: str) -> None:
    """Raise if the dtype of a primal cannot represent its tangent, or if they are on different devices."""
    if not (t.is_floating_point() or t.is_complex()):
        raise ValueError(f"Expected tangent to be floating point or complex, but got: {t.dtype}")
    if torch.promote_types(x.dtype, t.dtype) != x.dtype:
        raise RuntimeError(
            f"{where}: a tangent has dtype {t.dtype}, which the dtype {x.dtype} of its primal cannot represent. "
            f"Convert the tangent (tangent.to({x.dtype})) or the primal "
            f"(primal.to({torch.promote_types(x.dtype, t.dtype)}))"
        )
    if x.device != t.device:
        raise RuntimeError(f"{where}: a tangent is on the device {t.device}, but its primal is on {x.device}")


def _moving(part: Subtrace, x: Any) -> Handle:
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"Thing passed to transform API must be Tensor, got {type(x)}")
    if not (x.is_floating_point() or x.is_complex()):
        raise ValueError(f"Expected primal to be floating point or complex, but got: {x.dtype}")
    return part.stand_in(x)


def _write_back(part: Subtrace, written: Sequence[tuple[Handle, TensorProxy]]) -> None:
    """Apply in-place writes to stand-ins of a part to the real inputs."""
    for handle, value in written:
        with part.tracer.recording():
            aliasing.write(handle, part.outer(value), part.name)


# -- Jacobians --------------------------------------------------------------------------------------------------------
def _identity(p: TensorProxy, n: Any) -> Any:
    return ltorch.eye(n, dtype=to_torch_dtype(p.dtype), device=to_torch_device(p.device))


def _refuse_complex(name: str, args: Any, what: str) -> None:
    for x in pytree.tree_leaves(args):
        if isinstance(x, (torch.Tensor, TensorProxy)) and (
            is_complex_dtype(x.dtype) if isinstance(x, TensorProxy) else x.is_complex()
        ):
            raise RuntimeError(f"{name}: Expected all {what} to be real but received complex tensor")


def _chunks(total: Any, size: int | None) -> list[tuple[Any, Any]]:
    if size is None or size >= total:
        return [(0, total)]
    return [(start, min(start + size, total)) for start in range(0, int(total), size)]


@located
def jacrev(fn: Callable[..., Any], argnums: Any, has_aux: bool, chunk_size: int | None, args: Any) -> Any:
    """Return the Jacobian of a function by reverse mode, which computes one row for each element of the result."""
    tracer, where = tracer_here("jacrev"), "jacrev(f)(*args)"
    _refuse_complex("jacrev", args, "inputs")
    part, chosen, inputs, out, aux = _run_for_vjp(tracer, fn, args, argnums, has_aux, where)
    tensors = tensors_of(out, where)
    spec = pytree.tree_structure(out)
    check_inexact_results(tensors)
    _refuse_complex("jacrev", tensors, "outputs")
    aux, aux_spec = aux_leaves(aux) if has_aux else ([], None)
    values = part.read([*tensors, *aux])
    pullback = Pullback(part, values)
    with part.transforming():
        rows = [_rows(pullback, p, chunk_size) for p in values[: len(tensors)]]

    def jacobian(found: list[TensorProxy]) -> Any:
        leaves = iter(part.give(found, gradients=True))
        trees = tuple([pytree.tree_map(lambda x: next(leaves), inputs[i]) for i in chosen])
        return trees if isinstance(argnums, tuple) else trees[0]

    result = pytree.tree_unflatten([jacobian(found) for found in rows], spec)
    return (result, pytree.tree_unflatten(part.give(values[len(tensors) :]), aux_spec)) if has_aux else result


def _rows(pullback: Pullback, out: TensorProxy, chunk_size: int | None) -> list[TensorProxy]:
    """Return the derivatives of all elements of the result `out` with respect to each input."""
    part = pullback.part
    trace = part.tracer.trace
    if not out.shape:
        return pullback.gradients([(out, one_of(out))])
    total = math.prod(out.shape)
    with trace.scope() as backward:
        arriving = TensorProxy(like=out)
        found = pullback.record([(out, arriving)])
    chunks: list[list[TensorProxy]] = []
    with set_langctx("torch"):
        basis = _identity(out, total)
        for start, end in _chunks(total, chunk_size):
            batch = Batch(end - start, copies=bool(chunks))
            lines = basis if end - start == total else basis[start:end]
            batch.env[arriving.name] = batch.add(ltorch.reshape(lines, (end - start, *out.shape)))
            batch.run(backward)
            chunks.append([
                batch.expand(zeros_of(p)) if g is None else batch.batched(g) for p, g in zip(part.values, found)
            ])  # fmt: skip
        whole = [parts[0] if len(parts) == 1 else ltorch.cat(list(parts)) for parts in zip(*chunks)]
        return [ltorch.reshape(g, (*out.shape, *p.shape)) for p, g in zip(part.values, whole)]


@located
def jacfwd(fn: Callable[..., Any], argnums: Any, has_aux: bool, randomness: str, args: Any) -> Any:
    """Return the Jacobian of a function by forward mode, which computes one column for each element of the inputs."""
    tracer, where = tracer_here("jacfwd"), "jacfwd(f)(*args)"
    _refuse_complex("jacfwd", args, "inputs")
    chosen = _chosen(argnums, args)
    part = Subtrace(tracer, "jacfwd", constant=True)
    inputs = {i: pytree.tree_map(functools.partial(_moving, part), args[i]) for i in chosen}
    out, aux = with_aux(_run_moving(part, fn, *[inputs.get(i, a) for i, a in enumerate(args)]), has_aux, where)
    tensors, spec = tensors_of(out, where), pytree.tree_structure(out)
    _refuse_complex("jacfwd", tensors, "outputs")
    aux, aux_spec = aux_leaves(aux) if has_aux else ([], None)
    values = part.read([*tensors, *aux])
    with part.transforming():
        columns, values = _columns(part, values, len(tensors), randomness)
    given = [part.give(found, gradients=True) for found in columns]

    def jacobian(found: list[Any]) -> Any:
        leaves = iter(found)
        trees = tuple([pytree.tree_map(lambda x: next(leaves), inputs[i]) for i in chosen])
        return trees if isinstance(argnums, tuple) else trees[0]

    result = pytree.tree_unflatten([jacobian(found) for found in given], spec)
    return (result, pytree.tree_unflatten(part.give(values[len(tensors) :]), aux_spec)) if has_aux else result


def _columns(
    part: Subtrace, values: list[TensorProxy], outputs: int, randomness: str
) -> tuple[list[list[Any]], list[Any]]:
    """Return the derivatives of each result with respect to each input, and the results."""
    trace = part.tracer.trace
    with trace.scope() as operations:
        along = [TensorProxy(like=p) for p in part.values]
        pushed = Forward({p.name: t for p, t in zip(part.values, along)})
        pushed.push(part.to_trace(values).bound_symbols)
    sizes = [math.prod(p.shape) for p in part.values]
    total = sum(sizes)
    batch = Batch(total, randomness)
    with set_langctx("torch"):
        for i, (p, t) in enumerate(zip(part.values, along)):
            basis = _identity(p, sizes[i])
            if sum(sizes[:i]) or sum(sizes[i + 1 :]):
                basis = ltorch.pad(basis, (0, 0, sum(sizes[:i]), sum(sizes[i + 1 :])))
            batch.env[t.name] = batch.add(ltorch.reshape(basis, (total, *p.shape)))
        batch.run(operations)
        values = [pushed.value(p) for p in values]
        columns = []
        for out in values[:outputs]:
            tangent = pushed.tangent(out)
            moved = batch.expand(zeros_of(out)) if tangent is None else batch.batched(tangent)
            parts = ltorch.split(moved, sizes) if len(sizes) > 1 else [moved]
            columns.append([
                ltorch.reshape(ltorch.movedim(t, 0, -1), (*out.shape, *p.shape)) for p, t in zip(part.values, parts)
            ])  # fmt: skip
    return columns, [batch.value(p) for p in values]
