# SPDX-License-Identifier: Apache-2.0
"""Handlers of `torch._foreach_*`, which optimizers and gradient clipping call: one operation for each tensor.

This is the definition of these functions, and how torch runs them on a CPU. Where torch has kernels for lists, which
may round differently, each tensor is a call of such a kernel, for lists of one tensor. The torch executor joins these
calls again (`executors/torchex/join_foreach.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.registry import handles
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors.tracer import Tracer
from thunder.core.symbol import Symbol
from thunder.executors.torchex.foreach import FOREACH, FUNCTIONS, of_one_tensor

__all__: list[str] = []

# The types of devices for which torch has kernels for lists of tensors.
_MULTI_TENSOR = {"cuda"}


def _for_each(name: str, function: Callable[..., Any], sym: Symbol | None = None) -> None:
    listed = getattr(torch, name, None)
    if listed is None:
        return
    in_place = name.endswith("_")

    @handles(listed, traced=True)
    def handler(tracer: Tracer, xs: Any, *args: Any, **kwargs: Any) -> Any:
        given = xs, *[_numbers(x, name) for x in args]
        kwargs = {k: _numbers(x, name) for k, x in kwargs.items()}
        count = len(next(x for x in given if isinstance(x, (list, tuple))))  # a number may have tensors as exponents
        together = sym is not None and _is_multi_tensor(given, kwargs, count)
        found = []
        for i in range(count):
            if sym is None or not together:
                found.append(function(*[_item(a, i) for a in given], **{k: _item(a, i) for k, a in kwargs.items()}))
                continue
            call = tuple([_list_of_one(a, i) for a in given]), {k: _list_of_one(a, i) for k, a in kwargs.items()}
            (result,) = tracer.call_symbol(sym, *call)
            found.append(assign(tracer, xs[i], result, name) if in_place else result)
        return found if in_place else tuple(found)


def _is_multi_tensor(args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> bool:
    """Check whether torch runs a call by kernels for lists: real floating point tensors that are alike."""
    given = [*args, *kwargs.values()]
    lists = [x for x in given if isinstance(x, (list, tuple))]
    tensors = [x for xs in lists for x in xs if isinstance(x, torch.Tensor)]
    numbers = [x for xs in (given, *lists) for x in xs if not isinstance(x, (torch.Tensor, list, tuple))]
    if not tensors or any(isinstance(x, complex) for x in numbers) or any(len(xs) != count for xs in lists):
        return False
    device, dtype = tensors[0].device, tensors[0].dtype
    if device.type not in _MULTI_TENSOR or not dtype.is_floating_point:
        return False
    if any(x.device != device or x.dtype is not dtype for x in tensors):
        return False
    shapes = [[x.shape for x in xs] for xs in lists if all(isinstance(x, torch.Tensor) for x in xs)]
    if any(xs != shapes[0] for xs in shapes) or sum(map(len, shapes)) != len(tensors):
        return False
    single = [x for x in given if isinstance(x, torch.Tensor)]
    return all(x.device == device and x.dtype.is_floating_point for x in single)


def _numbers(x: Any, name: str) -> Any:
    """Return the numbers in a tensor, one for each tensor of a list. A tensor without dimensions is one factor."""
    if not isinstance(x, torch.Tensor) or not x.ndim:
        return x
    if x.device.type != "cpu":
        fall_back(f"the program calls {name} with numbers in a tensor that is not on the CPU")
    return x.tolist()


def _item(x: Any, i: int) -> Any:
    return x[i] if isinstance(x, (list, tuple)) else x


def _list_of_one(x: Any, i: int) -> Any:
    return [x[i]] if isinstance(x, (list, tuple)) else x


for _name, _function in FUNCTIONS.items():
    _for_each(f"_foreach_{_name}", of_one_tensor(_name, _function), FOREACH.get(_name))
    _writing = getattr(torch.Tensor, f"{_function.__name__}_", None)
    if _writing is not None:
        _for_each(f"_foreach_{_name}_", of_one_tensor(_name, _writing), FOREACH.get(_name))
_for_each("_foreach_clone", torch.clone)
_for_each("_foreach_zero_", torch.Tensor.zero_)
_for_each("_foreach_copy_", torch.Tensor.copy_)
