# SPDX-License-Identifier: Apache-2.0
"""Variants of a jitted function, which differ in executors, transforms or options."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.capture import Captured
from thunder.extend import Executor, named_executors
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.frontend.options import Options
from thunder.frontend.specialization import Specialization
from thunder.transforms.base import Transform

__all__ = ["compile_once", "jit_function", "variant"]


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
