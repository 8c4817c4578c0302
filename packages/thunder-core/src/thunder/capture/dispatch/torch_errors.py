# SPDX-License-Identifier: Apache-2.0
"""Wrong calls of torch functions raise what torch raises.

An operation refuses in its own words, in the order in which it happens to look at its arguments. Where its exception is
of another type than torch's, which programs catch, torch's own takes its place: the call is made again on tensors of
the same shapes and dtypes, full of zeros, and fails as it would have.
"""

from __future__ import annotations

import types
import warnings
from typing import Any

import torch

from thunder.capture.base.fallback import RunsEagerly
from thunder.capture.base.predicates import is_mask
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import tensors_in
from thunder.core.errors import DataDependentError, ThunderError
from thunder.core.symint.numbers import is_unbacked, specialized
from thunder.torch.base import torch_function_map
from thunder.torch.private import DisableTorchFunction

__all__ = ["torchs_error"]

#: How many elements such tensors may have: a wrong call should not cost more than a right one.
LIMIT = 1 << 20


def torchs_error(func: Any, args: Any, kwargs: Any, error: Exception) -> Exception | None:
    """Return the exception that torch raises for a call, where it is of another type than `error`; else None."""
    if isinstance(error, (ThunderError, RunsEagerly, Warning)) or getattr(func, "__module__", "") == "thunder":
        return None
    sym = torch_function_map().get(func)
    if sym is not None and sym.module is None:
        return None  # an operation that was declared from outside means what it says
    sizes = [n for x in tensors_in(args, kwargs) for n in (x._value.shape if isinstance(x, Handle) else x.shape)]
    if isinstance(error, DataDependentError) or is_unbacked(*sizes):
        return None
    if sum(x.numel() for x in tensors_in(args, kwargs)) > LIMIT:
        return None
    if any(isinstance(x, (types.FunctionType, types.MethodType)) for x in (*args, *(kwargs or {}).values())):
        return None  # the user's code is not run on zeros: a loop until they are large would never end
    if any(map(is_mask, (*args, *(kwargs or {}).values()))):
        return None  # torch asks such a mask itself
    random = torch.default_generator.get_state()
    try:
        with DisableTorchFunction(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            func(*_real(args), **_real(kwargs))
    except Exception as theirs:  # whatever torch says
        same = isinstance(error, type(theirs)) or type(theirs).__module__.startswith("thunder")
        return None if same else theirs
    finally:
        torch.default_generator.set_state(random)
    return None


def _real(x: Any) -> Any:
    if isinstance(x, Handle):
        return torch.zeros(specialized(x._value.shape), dtype=x.dtype)
    if isinstance(x, torch.Tensor):
        return torch.zeros(x.shape, dtype=x.dtype)
    if type(x) in (tuple, list):
        return type(x)(_real(i) for i in x)
    return {k: _real(v) for k, v in x.items()} if type(x) is dict else specialized(x)
