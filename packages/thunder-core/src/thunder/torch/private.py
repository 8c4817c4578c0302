# SPDX-License-Identifier: Apache-2.0
"""What thunder uses of torch that is private to torch: each piece here, with what is done where a torch lacks it.

Everything else goes by torch's documented interface, or by this file.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["any_autocast", "direct_apply", "function_modes", "functorch_active", "tensor_guards"]


def _any_autocast() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _never() -> bool:
    return False


# Whether autocast is on for any device: torch asks them all at once.
any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", _any_autocast)


def _function_modes() -> int:
    return len(torch.overrides._get_current_function_mode_stack())


# How many torch function modes are active; the default device, once it has been set, is one.
function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", _function_modes)

# Whether one of torch.func's transforms runs.
functorch_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", _never)


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply`, for a function that torch.func's transforms refuse, without the Python that is there for them.

    That Python costs more than all the rest. Within such a transform it is asked as ever.
    """
    direct = getattr(super(torch.autograd.Function, function), "apply", None)
    if not isinstance(direct, types.BuiltinFunctionType):
        return function.apply  # type: ignore[no-any-return]

    def apply(*inputs: Any) -> Any:
        return function.apply(*inputs) if functorch_active() else direct(*inputs)

    return apply


def tensor_guards(tensors: Sequence[torch.Tensor]) -> tuple[Callable[..., bool] | None, bool]:
    """torch's own comparison of the metadata of several tensors with what it is now, in one call of C++.

    Also says whether it refuses a tensor that is given twice. `None` where torch has none that takes these.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        # Both keywords, with a list a tensor: without them its check() reads past the end.
        sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
        check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        if not check(*tensors):
            return None, False
        one = torch.empty(1)
        twice = TensorGuards(one, torch.empty(1), dynamic_dims_sizes=[[1], [1]], dynamic_dims_strides=[[1], [1]])
        return check, not twice.check(one, one)
    except Exception:  # the slow way is as right
        return None, False
