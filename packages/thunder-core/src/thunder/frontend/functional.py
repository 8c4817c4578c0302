# SPDX-License-Identifier: Apache-2.0
"""Function transforms: `thunder.grad`, `vjp`, `jvp`, `vmap` and others, with the signatures of `torch.func`.

A transform returns a jitted function that runs the transformed program. If a traced program calls this function, it is
inlined (`derivatives.py`, `vmap.py`). Transforms therefore compose in any order with each other and with `thunder.jit`.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from thunder.capture.higher_order import derivatives, function_transforms
from thunder.capture.higher_order import vmap as batching
from thunder.core.state import state
from thunder.frontend.eager_calls import TRANSFORMS_OF_TORCH
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.frontend.module import ThunderModule
from thunder.frontend.options import Options
from thunder.torch.private import pytree

__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "value_and_grad", "vjp", "vmap"]

P = ParamSpec("P")
R = TypeVar("R")
Randomness = Literal["error", "different", "same"]


# -- the programs -----------------------------------------------------------------------------------------------------
def _grad(fn: Any, argnums: Any, has_aux: bool, /, *args: Any, **kwargs: Any) -> Any:
    return function_transforms.run_grad(fn, argnums, has_aux, args, kwargs)


def _grad_and_value(fn: Any, argnums: Any, has_aux: bool, /, *args: Any, **kwargs: Any) -> Any:
    return derivatives.grad_and_value(fn, argnums, has_aux, args, kwargs)


def _value_and_grad(fn: Any, argnums: Any, has_aux: bool, /, *args: Any, **kwargs: Any) -> Any:
    grads, value = derivatives.grad_and_value(fn, argnums, has_aux, args, kwargs)
    return value, grads


def _vmap(fn: Any, in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any, /, *args: Any, **kwargs: Any) -> Any:
    return batching.vmap(fn, in_dims, out_dims, randomness, chunk_size, args, kwargs)


def _jacrev(fn: Any, argnums: Any, has_aux: bool, chunk_size: Any, /, *args: Any) -> Any:
    return derivatives.jacrev(fn, argnums, has_aux, chunk_size, args)


def _jacfwd(fn: Any, argnums: Any, has_aux: bool, randomness: str, /, *args: Any) -> Any:
    return derivatives.jacfwd(fn, argnums, has_aux, randomness, args)


def _jvp(fn: Any, strict: bool, has_aux: bool, /, primals: Any, tangents: Any) -> Any:
    return derivatives.jvp(fn, primals, tangents, strict, has_aux)


def _value_and_grad_in_torch(fn: Any, argnums: Any, has_aux: bool) -> Callable[..., Any]:
    def value_and_grad(*args: Any, **kwargs: Any) -> Any:
        grads, value = torch.func.grad_and_value(fn, argnums, has_aux)(*args, **kwargs)
        return value, grads

    return value_and_grad


_OF_TORCH: dict[Any, Any] = {
    _grad: torch.func.grad,
    _grad_and_value: torch.func.grad_and_value,
    _value_and_grad: _value_and_grad_in_torch,
    _vmap: lambda fn, in_dims, out_dims, randomness, chunk_size: torch.func.vmap(
        fn, in_dims, out_dims, randomness, chunk_size=chunk_size
    ),
    _jacrev: lambda fn, argnums, has_aux, chunk_size: torch.func.jacrev(
        fn, argnums, has_aux=has_aux, chunk_size=chunk_size
    ),
    _jacfwd: lambda fn, argnums, has_aux, randomness: torch.func.jacfwd(fn, argnums, has_aux, randomness=randomness),
    _jvp: lambda fn, strict, has_aux: functools.partial(torch.func.jvp, fn, strict=strict, has_aux=has_aux),
}
TRANSFORMS_OF_TORCH.update(_OF_TORCH)


# -- transforms -------------------------------------------------------------------------------------------------------
def _unwrap(fn: Any) -> tuple[Any, Options]:
    """Return the function inside `fn` if it is jitted, else `fn`, and the options for compiling its transform."""
    if not callable(fn):
        raise TypeError(f"expected a function or a module, not {type(fn).__name__}: {fn!r}")
    jitted = jitted_of(fn)
    if not isinstance(jitted, JitFunction):
        return fn, Options()
    return (jitted if jitted._transforms else jitted._fn), jitted._options


def _transformed(program: Callable[..., Any], fn: Any, *how: Any, signature: bool = True) -> JitFunction:
    """Return the jitted function that runs `program(fn, *how, …)`, with the signature of `fn`."""
    plain, options = _unwrap(fn)
    call = functools.partial(program, plain, *how)
    functools.update_wrapper(call, plain, ("__module__", "__name__", "__qualname__", "__doc__"), ())
    if signature:
        try:  # so that traces have the function's argument names
            target = plain.forward if isinstance(plain, torch.nn.Module) else plain
            call.__signature__ = inspect.signature(target)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            pass
    return JitFunction(call, options)


def grad(func: Callable[P, Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> JitFunction[P, Any]:
    """Return a function that computes the gradients of `func` with respect to the arguments `argnums`.

    `func` returns a scalar. With `has_aux`, `func` returns a pair `(scalar, aux)`, and the new function returns
    `(gradients, aux)`.
    """
    return _transformed(_grad, func, argnums, has_aux)


def grad_and_value(
    func: Callable[P, R], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> JitFunction[P, tuple[Any, R]]:
    """Return a function that computes `(gradients, value)`, or with `has_aux` `(gradients, (value, aux))`."""
    return _transformed(_grad_and_value, func, argnums, has_aux)


def value_and_grad(
    func: Callable[P, R], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> JitFunction[P, tuple[R, Any]]:
    """Return a function that computes `(value, gradients)`, or with `has_aux` `((value, aux), gradients)`."""
    return _transformed(_value_and_grad, func, argnums, has_aux)


def vmap(
    func: Callable[P, R],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: Randomness = "error",
    *,
    chunk_size: int | None = None,
) -> JitFunction[P, R]:
    """Return a function that applies `func` to all examples of a batch together.

    `in_dims` and `out_dims` are the batch dimensions of arguments and results. None means that a value is the same for
    all examples. With `randomness`, examples draw "different" random numbers or the "same" ones, and "error" forbids
    random numbers. `chunk_size` is the number of examples to compute at a time.
    """
    batching.check_vmap_options(randomness, chunk_size)
    return _transformed(_vmap, func, in_dims, out_dims, randomness, chunk_size)


def jacrev(
    func: Callable[P, Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> JitFunction[P, Any]:
    """Return a function that computes the Jacobian of `func` with respect to `argnums` in reverse mode.

    `chunk_size` is the number of rows to compute at a time.
    """
    if chunk_size is not None and not chunk_size > 0:
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")
    return _transformed(_jacrev, func, argnums, has_aux, chunk_size)


def jacfwd(
    func: Callable[P, Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    randomness: Randomness = "error",
) -> JitFunction[P, Any]:
    """Return a function that computes the Jacobian of `func` with respect to `argnums` in forward mode."""
    batching.check_vmap_options(randomness, None)
    return _transformed(_jacfwd, func, argnums, has_aux, randomness)


def hessian(func: Callable[P, Any], argnums: int | tuple[int, ...] = 0) -> JitFunction[P, Any]:
    """Return a function that computes the second derivatives of `func` with respect to the arguments `argnums`."""
    return jacfwd(jacrev(func, argnums), argnums)


# -- calls ------------------------------------------------------------------------------------------------------------
# The jitted functions of `jvp` and `vjp`. Both run immediately, so no returned function keeps the jitted function.
_programs: weakref.WeakKeyDictionary[Any, dict[Any, JitFunction]] = weakref.WeakKeyDictionary()


def _program_of(fn: Any, key: Any, make: Callable[[], JitFunction]) -> JitFunction:
    try:
        known = _programs.setdefault(fn, {})
    except TypeError:  # `fn` supports no weak references, so it is compiled for this call only
        return make()
    if key not in known:
        known[key] = make()
    return known[key]


def jvp(func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """Return `func(*primals)` and its directional derivative along `tangents`. With `has_aux`, also return the aux."""
    if state.frontend is not None:
        return derivatives.jvp(func, primals, tangents, strict, has_aux)
    program = _program_of(
        func, ("jvp", strict, has_aux), lambda: _transformed(_jvp, func, strict, has_aux, signature=False)
    )
    return program(primals, tangents)


@derivatives.located
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return `func(*primals)` and a function that maps cotangents of the result to gradients of the primals.

    With `has_aux`, the third result is the aux.
    """
    if state.frontend is not None:
        return derivatives.vjp(func, primals, None, has_aux)
    plain, options = _unwrap(func)
    jitted = (
        func
        if isinstance(func, (JitFunction, ThunderModule))
        else _program_of(func, "jit", lambda: JitFunction(plain, options))
    )
    return _vjp_of_jitted(jitted, plain, primals, has_aux)


def _vjp_of_jitted(jitted: Any, plain: Any, primals: tuple[Any, ...], has_aux: bool) -> Any:
    """Compute `vjp` of a jitted function with torch's autograd, which sees the program as a node of its graph."""
    leaves: list[torch.Tensor] = []

    def leaf(x: Any) -> torch.Tensor:
        derivatives.check_differentiable(x, "vjp")
        leaves.append(x.view_as(x) if outer and x.requires_grad else x.detach().requires_grad_())
        return leaves[-1]

    outer = torch.is_grad_enabled()
    inputs = pytree.tree_map(leaf, primals)
    with torch.enable_grad():
        out = jitted(*inputs)
    recorded = outer and (
        any(x.requires_grad for x in pytree.tree_leaves(primals)) or _captures_differentiable(jitted, leaves)
    )

    def detached(x: Any) -> Any:
        return x.detach() if isinstance(x, torch.Tensor) and not recorded else x

    out, aux = derivatives.with_aux(out, has_aux, "vjp(f, *primals)")
    if has_aux:
        derivatives.aux_leaves(aux)
    outs, spec = derivatives.tensors_of(out, "vjp(f, *primals)"), pytree.tree_structure(out)

    @derivatives.located
    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        if state.frontend is not None:  # called in a traced program
            return derivatives.vjp(plain, primals, None, has_aux)[1](cotangents)
        given, structure = pytree.tree_flatten(cotangents)
        derivatives.check_cotangents(given, structure, outs, spec)
        wanted = torch.is_grad_enabled() if create_graph is None else create_graph
        graph = wanted and (recorded or any(x is not None and x.requires_grad for x in given))
        pairs = [(x, g) for x, g in zip(outs, given) if x.requires_grad]
        found: Any = [None] * len(leaves)
        if pairs:
            found = torch.autograd.grad(
                [x for x, _ in pairs],
                leaves,
                [g for _, g in pairs],
                retain_graph=retain_graph,
                create_graph=graph,
                allow_unused=True,
            )
        grads = iter([torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)])
        return pytree.tree_map(lambda x: next(grads), inputs)

    result = pytree.tree_map(detached, out)
    return (result, vjp_fn, pytree.tree_map(detached, aux)) if has_aux else (result, vjp_fn)


def _captures_differentiable(jitted: Any, leaves: list[torch.Tensor]) -> bool:
    """Check whether the program has lifted inputs that require grad."""
    program = jitted._stats.last
    inputs = None if program is None or not program.traces else getattr(program.traces[0], "args", None)
    if inputs is None:  # a program that was loaded may have such inputs
        return True
    return sum(getattr(p, "requires_grad", False) for p in inputs) > len(set(map(id, leaves)))


# These functions replace `torch.func.grad` and the others while a program is traced.
function_transforms.public.update(
    grad=grad, grad_and_value=grad_and_value, vjp=vjp, jvp=jvp, vmap=vmap, jacrev=jacrev, jacfwd=jacfwd, hessian=hessian
)
