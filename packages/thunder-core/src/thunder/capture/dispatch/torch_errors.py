# SPDX-License-Identifier: Apache-2.0
"""Replace the exception of an invalid torch call by the one that torch raises.

The meta functions of operations check their arguments in their own order and with their own messages. User code may
catch torch's exception types. If the types differ, thunder repeats the call in torch on zeros of the same shapes and
dtypes, and raises the exception of that call.
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

#: Maximum number of elements of these zeros, so that an invalid call does not cost more than a valid one.
LIMIT = 1 << 20


def torchs_error(func: Any, args: Any, kwargs: Any, error: Exception) -> Exception | None:
    """Return the exception that torch raises for a call if its type differs from that of `error`, else None."""
    if isinstance(error, (ThunderError, RunsEagerly, Warning)) or getattr(func, "__module__", "") == "thunder":
        return None
    sym = torch_function_map().get(func)
    if sym is not None and sym.module is None:
        return None  # an operation declared outside of thunder keeps its own errors
    sizes = [n for x in tensors_in(args, kwargs) for n in (x._value.shape if isinstance(x, Handle) else x.shape)]
    if isinstance(error, DataDependentError) or is_unbacked(*sizes):
        return None
    if sum(x.numel() for x in tensors_in(args, kwargs)) > LIMIT:
        return None
    if any(isinstance(x, (types.FunctionType, types.MethodType)) for x in (*args, *(kwargs or {}).values())):
        return None  # user code must not run on zeros: e.g. a loop until they are large would never end
    if any(map(is_mask, (*args, *(kwargs or {}).values()))):
        return None  # torch would dispatch to the `__torch_function__` of the mask
    random = torch.default_generator.get_state()
    try:
        with DisableTorchFunction(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            func(*_real(args), **_real(kwargs))
    except Exception as theirs:  # torch may raise any type
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
