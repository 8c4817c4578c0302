# SPDX-License-Identifier: Apache-2.0
"""Variants of a jitted function, which differ in executors, transforms or options."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.capture import Captured
from thunder.core.pytree import tree_leaves
from thunder.core.symbol import OpTags
from thunder.execution.excerpt import all_levels
from thunder.extend import Executor, named_executors
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.frontend.options import Options
from thunder.frontend.specialization import Specialization
from thunder.transforms.base import Transform

__all__ = ["changes_other_objects", "compile_once", "jit_function", "variant"]


def jit_function(fn: Any) -> JitFunction[..., Any]:
    """Return the `JitFunction` of a jitted callable, or one with default options for any other callable."""
    jitted = jitted_of(fn)
    return jitted if isinstance(jitted, JitFunction) else JitFunction(fn, Options())


def variant(
    jitted: JitFunction[..., Any],
    fn: Any = None,
    *,
    executors: Sequence[Executor | str] | None = None,
    transforms: Sequence[Transform] | None = None,
    **options: Any,
) -> JitFunction[..., Any]:
    """Return a new `JitFunction` with the options of `jitted`, except for what is given here."""
    own = copy.copy(jitted._options)
    if executors is not None:
        own.executors, own.exact = named_executors(executors), False
    for name, value in options.items():
        setattr(own, name, value)
    return JitFunction(
        jitted._fn if fn is None else fn,
        own,
        transforms=jitted._transforms if transforms is None else transforms,
        autograd=jitted._autograd,
    )


def compile_once(
    jitted: JitFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Captured, Specialization]:
    """Trace and compile a call without running or caching it. Errors are those of thunder, with all frames."""
    return jitted._compiler._compile(args, kwargs, ())  # type: ignore[no-any-return]


def changes_other_objects(captured: Captured, fn: Any, arguments: Any) -> bool:
    """Check whether a call of a function changes objects that are not its arguments, e.g. the parameters of a model.

    Calls on copies of the arguments then see each other's changes. A module is copied itself.
    """
    if isinstance(fn, torch.nn.Module):
        return False
    if captured.targets:
        return True
    own = {id(x) for x in tree_leaves(arguments)}
    other = {p.name for p, x in zip(captured.computation.args, captured.inputs) if id(x) not in own}
    writes = [op for op in all_levels(captured.computation.bound_symbols) if OpTags.IN_PLACE_OP in op.sym.tags]
    return any(not other.isdisjoint(op.arg_names) for op in writes)
