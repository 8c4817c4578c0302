# SPDX-License-Identifier: Apache-2.0
"""The metadata of the results of opaque operations. torch computes it on fake tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import refuse_kinds_of_memory
from thunder.capture.base.modes import attempt
from thunder.capture.dispatch.registry import gives, result_of
from thunder.core.devices import Device, to_device, to_torch_device
from thunder.core.dtypes import corresponding_real_dtype, int64, is_inexact_dtype, to_dtype, to_torch_dtype
from thunder.core.errors import UnsupportedError
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import map_proxies, proxies_in
from thunder.core.symint.numbers import specialized
from thunder.runtime.autocast import no_autocast
from thunder.torch.private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    TorchDispatchMode,
)

__all__ = ["differentiable_places", "differentiated", "result_in_torch"]


class _Watch(TorchDispatchMode):
    """A mode that detects whether any operation draws random numbers."""

    drew = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drew |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def result_in_torch(func: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """Return proxies of a call's results, and whether it draws random numbers. torch runs the call on fake tensors.

    The proxy of a result has `requires_grad=False` if torch's autograd treats this result as a constant.
    """
    rule = result_of(func)
    if rule is not None:
        return rule.result(*args, **kwargs), rule.draws(*args, **kwargs)
    try:
        with attempt():
            return _on_fakes(func, args, kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        if not _checks_values(func):
            raise _no_shape(func, isinstance(error, DynamicOutputShapeException)) from error
        return _on_ones(func, args, kwargs), False
    except Exception:  # torch has no derivative by some of the arguments, or the call is invalid
        return _on_fakes(func, args, kwargs, _places_that_run(func, args, kwargs))


def _no_shape(func: Any, shape: bool) -> UnsupportedError:
    what = "the shape of the result" if shape else "the result"
    return UnsupportedError(
        f"{what} of {getattr(func, '__name__', func)} depends on the values of its input, which are not known while "
        "tracing. Use operations of fixed size (torch.where, masks, padding), or move this line out of the traced "
        "function"
    )


@no_autocast  # the compiled program runs without it, too
def _on_fakes(func: Any, args: Any, kwargs: Any, places: Sequence[int] | None = None) -> tuple[Any, bool]:
    """Run a call on fake tensors. Tensors at the positions `places` require grad, or all inexact ones if None."""
    number = itertools.count()
    gradients = places is None or bool(places)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def fake(p: Proxy) -> Any:
            if not isinstance(p, TensorProxy):
                return p
            grad = is_inexact_dtype(p.dtype) and (places is None or next(number) in places)
            return _empty(p, to_torch_device(p.device)).requires_grad_(grad)

        with mode, torch.set_grad_enabled(gradients), _Watch() as watch:
            result = func(*specialized(map_proxies(args, fake)), **specialized(map_proxies(kwargs, fake)))
    return _proxies_of(result, gradients=gradients), watch.drew


def _empty(p: TensorProxy, device: Any) -> torch.Tensor:
    return torch.empty(specialized(p.shape), dtype=to_torch_dtype(p.dtype), device=device)


# Functions that read values only to check them. The shapes of their results do not depend on values, so that a call on
# tensors of ones determines the metadata.
_CHECK_VALUES = frozenset({torch.istft, torch.Tensor.istft, torch.combinations, torch._VF.istft})  # type: ignore[attr-defined]


def _checks_values(func: Any) -> bool:
    return getattr(func, "runs", func) in _CHECK_VALUES


@no_autocast
def _on_ones(func: Any, args: Any, kwargs: Any) -> Any:
    devices = {p.device for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy)}

    def ones(p: Proxy) -> Any:
        return _empty(p, "cpu").fill_(1) if isinstance(p, TensorProxy) else p

    with torch.no_grad():
        result = func(*specialized(map_proxies(args, ones)), **specialized(map_proxies(kwargs, ones)))
    return _proxies_of(result, gradients=False, device=devices.pop())


def _proxies_of(x: Any, *, gradients: bool, device: Device | None = None) -> Any:
    if isinstance(x, torch.Tensor):
        refuse_kinds_of_memory(x)
        return TensorProxy(
            shape=tuple(x.shape),
            device=to_device(x.device) if device is None else device,
            dtype=to_dtype(x.dtype),
            requires_grad=x.requires_grad if gradients else x.is_floating_point() or x.is_complex(),
        )
    if isinstance(x, (tuple, list)):
        items = [_proxies_of(i, gradients=gradients, device=device) for i in x]
        if type(x) in (tuple, list, torch.Size):
            return tuple(items) if isinstance(x, tuple) else items
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)  # one of torch.return_types
    return x


# -- arguments that torch can differentiate by ------------------------------------------------------------------------
def differentiated(args: Any, kwargs: Any) -> list[TensorProxy]:
    """Return the floating point and complex tensors among the arguments of a call, in order."""
    return [p for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)]


def differentiable_places(func: Any, args: Any, kwargs: Any) -> list[int]:
    """Return the positions, among floating point and complex arguments, of those that torch can differentiate by."""
    places = list(range(len(differentiated(args, kwargs))))
    if result_of(func) is not None or _checks_values(func) or _is_run(func, args, kwargs, places):
        return places
    return _places_that_run(func, args, kwargs)


def _places_that_run(func: Any, args: Any, kwargs: Any) -> list[int]:
    return [i for i in range(len(differentiated(args, kwargs))) if _is_run(func, args, kwargs, [i])]


def _is_run(func: Any, args: Any, kwargs: Any, places: Sequence[int]) -> bool:
    try:
        with attempt():
            _on_fakes(func, args, kwargs, places)
    except Exception:  # torch may raise any type
        return False
    return True


# -- operations whose results torch cannot compute on fake tensors ----------------------------------------------------
@gives(torch.ctc_loss)
def _ctc_loss(
    log_probs: TensorProxy, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    shape = log_probs.shape[1:2] if reduction == 0 and log_probs.ndim == 3 else ()
    return TensorProxy(like=log_probs, shape=shape, requires_grad=True)


@gives(torch.linalg.lstsq)
def _lstsq(A: TensorProxy, B: TensorProxy, rcond: Any = None, *, driver: str | None = None) -> Any:
    driver = driver or ("gelsy" if A.device.type == "cpu" else "gels")
    if driver not in ("gels", "gelsy"):
        raise _no_shape(torch.linalg.lstsq, True)  # the shape of the residuals depends on the rank
    batch, (m, n) = A.shape[:-2], A.shape[-2:]
    is_vector = A.ndim - 1 == B.ndim and B.shape == A.shape[:-1] and A.ndim > 1
    right = (1,) if is_vector else B.shape[-1:]
    batch = batch if is_vector else tuple(torch.broadcast_shapes(batch, B.shape[:-2]))
    solution = (*batch, n) if is_vector else (*batch, n, *right)
    full = driver == "gels"
    shapes = (
        (solution, A.dtype),
        ((*batch, *right) if full and m > n else (0,), corresponding_real_dtype(A.dtype)),
        ((0,) if full else batch, int64),
        ((0,), corresponding_real_dtype(A.dtype)),
    )
    return torch.return_types.linalg_lstsq(
        [TensorProxy(like=A, shape=shape, dtype=dtype, requires_grad=i < 2) for i, (shape, dtype) in enumerate(shapes)]
    )


@gives(torch._sobol_engine_draw)
def _sobol_engine_draw(
    quasi: TensorProxy, n: int, sobolstate: TensorProxy, dimension: int, num_generated: int, dtype: Any = None
) -> Any:
    found = torch.get_default_dtype() if dtype is None else dtype
    return TensorProxy(like=quasi, shape=(n, dimension), dtype=to_dtype(found)), TensorProxy(like=quasi)
