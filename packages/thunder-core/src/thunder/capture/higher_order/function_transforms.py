# SPDX-License-Identifier: Apache-2.0
"""Replacements of torch's function transforms (`torch.func`) while a program is traced.

A public transform such as `torch.func.grad` returns a function. thunder's transforms of the same names replace the
public ones, and `frontend/functional.py` registers them. Transforms imported under other names still call torch's
internal implementations. `run_grad` and the other functions below replace these implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.capture.higher_order import derivatives, vmap
from thunder.torch.private import pytree

__all__ = ["implementations", "public"]

public: dict[str, Callable[..., Any]] = {}  # by their names in `torch.func`


def run_grad(fn: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
    """Return `grad(fn, argnums, has_aux)(*args, **kwargs)`."""
    grads, value = derivatives.grad_and_value(fn, argnums, has_aux, args, kwargs)
    return (grads, value[1]) if has_aux else grads


def run_vmap(
    fn: Any, in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Return `vmap(fn, in_dims, out_dims, randomness, chunk_size=chunk_size)(*args, **kwargs)`."""
    return vmap.vmap(fn, in_dims, out_dims, randomness, chunk_size, args, kwargs)


def run_vjp(fn: Any, *primals: Any, argnums: Any = None, has_aux: bool = False) -> Any:
    """Return `vjp(fn, *primals)` with respect to the primals `argnums`."""
    found = derivatives.vjp(fn, primals, argnums, has_aux)
    derivatives.check_inexact_results(pytree.tree_leaves(found[0]))
    return found


def run_jvp(fn: Any, primals: Any, tangents: Any, argnums: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """Return `jvp(fn, primals, tangents)` with respect to the primals `argnums`."""
    return derivatives.jvp(fn, primals, tangents, strict, has_aux, argnums)


# The keys are the names in `private.function_transforms`.
implementations: dict[str, Callable[..., Any]] = {
    "run_grad": run_grad, "run_grad_and_value": derivatives.grad_and_value, "run_vmap": run_vmap, "run_vjp": run_vjp,
    "run_jvp": run_jvp,
}  # fmt: skip
