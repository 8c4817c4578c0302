# SPDX-License-Identifier: Apache-2.0
"""Repeat in torch a call that an operation rejects, on zeros of the same shapes and dtypes.

The meta functions of operations check their arguments in their own order and with their own messages. Users expect
torch's exception types and messages, so torch's exception is raised. If torch accepts the call, torch computes it, as
an opaque operation or eagerly (`dispatch.py`).
"""

from __future__ import annotations

import contextlib
import enum
import types
import warnings
from typing import Any

import torch

from thunder.capture.base.fallback import is_torchs, refuse_kinds_of_memory
from thunder.capture.base.phase import TracerPhase
from thunder.capture.base.predicates import is_mask
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.layout import meta_of
from thunder.capture.tensors.tracer import tensors_in
from thunder.core.errors import ThunderError, UnsupportedError
from thunder.core.symint.numbers import is_unbacked, specialized
from thunder.torch.base import torch_function_map
from thunder.torch.private import DisableTorchFunction, TorchDispatchMode

__all__ = ["Answer", "check_write", "is_rejection", "reads_numbers", "torchs_answer"]

#: Maximum number of elements of these zeros, so that an invalid call does not cost more than a valid one.
LIMIT = 1 << 20


# Types of the exceptions by which an operation rejects a call. Any other exception is a defect, or from outside.
_REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ThunderError,
)


class Answer(enum.Enum):
    """The outcome of a repeated call, other than torch's exception."""

    SAME_ERROR = "raises thunder's own error"
    UNKNOWN = "cannot be repeated"
    ACCEPTS = "computes a result"
    ALIASES = "returns a tensor that shares memory with an argument"


def torchs_answer(func: Any, args: Any, kwargs: Any, error: Exception) -> Exception | Answer:
    """Repeat in torch a call that failed with `error`, and return torch's exception if torch rejects the call, too."""
    if not _may_be_made_again(func, args, kwargs, error):
        return Answer.UNKNOWN
    refused: list[Exception] = []
    for fill in (0, 1):  # torch may reject a valid call for its values, e.g. a distribution of zeros
        made: dict[int, torch.Tensor] = {}
        given = _real(args, fill, made), _real(kwargs, fill, made)
        try:
            result = _call(func, given)
            break
        except torch.linalg.LinAlgError:
            return Answer.ACCEPTS
        except Exception as theirs:  # torch may raise any type
            refused.append(theirs)
    else:
        return Answer.SAME_ERROR if type(refused[0]).__module__.startswith("thunder") else refused[0]
    for x in tensors_in((result,)):
        refuse_kinds_of_memory(x)
    return Answer.ACCEPTS if _memory(result).isdisjoint(_memory(given)) else Answer.ALIASES


def _memory(x: Any) -> set[int]:
    """Return the addresses of the memory of the tensors in `x`."""
    return {t.untyped_storage().data_ptr() for t in tensors_in((x,)) if t.numel()}


class _Reads(TorchDispatchMode):
    """A mode that detects whether torch converts a tensor to a number."""

    found = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first call imports torch._dynamo, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.found:
            raise RuntimeError("the number is read, and the kernel need not run")
        self.found = func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def reads_numbers(func: Any, args: Any, kwargs: Any, error: Exception) -> bool:
    """Check whether torch converts arguments without dimensions to numbers in a call that failed with `error`.

    Other tensors are on the meta device, so that the call computes nothing.
    """
    is_method = getattr(torch.Tensor, getattr(func, "__name__", ""), None) is func
    scalars = [x for x in tensors_in(args[is_method:], kwargs) if x.dim() == 0 and not x.requires_grad]
    if not scalars or not is_rejection(error) or not _may_be_made_again(func, args, kwargs, None, limit=None):
        return False
    made: dict[int, torch.Tensor] = {}
    _real(scalars, 1, made)
    for x in tensors_in(args, kwargs):
        if id(x) not in made:
            shape = specialized(x._value.shape) if isinstance(x, Handle) else x.shape
            made[id(x)] = torch.empty(shape, dtype=x.dtype, device="meta")
    with TracerPhase(), _Reads() as reads, contextlib.suppress(Exception):  # e.g. because the devices differ
        _call(func, (_real(args, 1, made), _real(kwargs, 1, made)))
    return reads.found


def check_write(func: Any, args: Any, kwargs: Any, out: Any = None) -> None:
    """Raise torch's error about writing the result of a valid call to `out`, or to its first argument."""
    computes = func if out is not None else getattr(torch.Tensor, func.__name__[:-1], None)
    if not callable(computes) or not _may_be_made_again(func, (*args, out), kwargs, None):
        return
    for fill in (0, 1):
        made: dict[int, torch.Tensor] = {}  # a tensor that is given twice is one tensor here, too
        given, named = _real(args, fill, made), _real(kwargs, fill, made)
        try:
            _call(computes, (given, named))
        except Exception:  # the call is invalid for these values
            continue
        _call(func, (given, named if out is None else {**named, "out": _real(out, fill, made)}))
        return


def _call(func: Any, given: tuple[Any, Any]) -> Any:
    """Call torch's function; the random generator is restored afterwards."""
    random = torch.default_generator.get_state()
    try:
        with DisableTorchFunction(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return func(*given[0], **given[1])
    finally:
        torch.default_generator.set_state(random)


def is_rejection(error: Exception) -> bool:
    """Check whether an operation may have raised `error` because it does not accept the arguments of the call."""
    return isinstance(error, _REFUSALS) and not is_torchs(error)


def _may_be_made_again(
    func: Any, args: Any, kwargs: Any, error: Exception | None, *, limit: int | None = LIMIT
) -> bool:
    own = isinstance(error, ThunderError) and not isinstance(error, UnsupportedError)
    if own or not (error is None or is_rejection(error)):
        return False
    if getattr(func, "__module__", "") == "thunder":
        return False
    sym = torch_function_map().get(func)
    if sym is not None and sym.module is None:
        return False  # an operation declared outside of thunder keeps its own errors
    sizes = [n for x in tensors_in(args, kwargs) for n in (x._value.shape if isinstance(x, Handle) else x.shape)]
    if is_unbacked(*sizes):
        return False
    if limit is not None and sum(x.numel() for x in tensors_in(args, kwargs)) > limit:
        return False
    if any(isinstance(x, (types.FunctionType, types.MethodType)) for x in (*args, *kwargs.values())):
        return False  # user code must not run on zeros: e.g. a loop until they are large would never end
    return not any(map(is_mask, (*args, *kwargs.values())))  # torch would dispatch to their methods


def _real(x: Any, fill: int, made: dict[int, torch.Tensor]) -> Any:
    """Return arguments with tensors full of one number in place of tensors. One that occurs twice is made once."""
    if isinstance(x, torch.Tensor):
        if id(x) not in made:
            with contextlib.suppress(Exception):  # of a handle whose layout is unknown
                like = meta_of(x) if isinstance(x, Handle) else x
                made[id(x)] = torch.empty_strided(like.shape, like.stride(), dtype=x.dtype, device="cpu").fill_(fill)
        if id(x) not in made:
            shape = specialized(x._value.shape) if isinstance(x, Handle) else x.shape
            made[id(x)] = torch.full(shape, fill, dtype=x.dtype, device="cpu")
        return made[id(x)]
    if type(x) in (tuple, list):
        return type(x)(_real(i, fill, made) for i in x)
    return {k: _real(v, fill, made) for k, v in x.items()} if type(x) is dict else specialized(x)
