# SPDX-License-Identifier: Apache-2.0
"""The functions that the text of a compiled program may call, by the exact names that it uses.

    resolve("torchex.layer_norm_forward")   # a kernel of the torch executor (`runtime/kernels/`)
    resolve("check_distinct")               # a function of prologues and epilogues, and other helpers
    resolve("torch.nn.functional.linear")   # a function of torch on tensors, as it was when thunder was loaded
    resolve("Tensor.mul")                   # a method of tensors
    resolve("operator.eq")                  # an operator of Python

Any other name raises a `KeyError`. `torch.load`, for example, is a function of torch, but no operation on tensors. No
language, tracer or executor is imported.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

from thunder.core.families import families
from thunder.runtime import decisions, effects, guards, kernels, output, torch_private
from thunder.runtime.arrays import array_tensor
from thunder.runtime.autocast import no_autocast
from thunder.runtime.autograd.leaf_hooks import has_leaf_hooks
from thunder.runtime.kernels.table import kernel
from thunder.runtime.kernels.table import kernels as table
from thunder.runtime.torch_originals import operations

__all__ = ["GUARD_HELPERS", "HELPERS", "Kernels", "resolve", "torch_kernel"]

kernel(decisions.decide)

#: Functions and exceptions that prologues call by a name without a module. None of them calls its arguments, except
#: `call_memoized`, or changes an object of the user.
GUARD_HELPERS: dict[str, Any] = {
    fn.__name__: fn
    for fn in (
        guards.GuardFailed,
        guards.TensorsDiffer,
        guards.call_memoized,
        guards.check_different,
        guards.check_distinct,
        guards.flatten_call,
        guards.flatten_call_in_order,
        guards.referent,
        guards.same_attributes,
        guards.same_contents,
        guards.same_plain_value,
        guards.same_value,
        array_tensor,
        has_leaf_hooks,
    )
}
# torch's own C functions have other names.
GUARD_HELPERS.update(
    current_device=torch_private.current_device,
    function_modes=torch_private.function_modes,
    deterministic=torch_private.deterministic,
    matmul_precision=torch_private.matmul_precision,
    any_autocast=torch_private.any_autocast,
    suggest_memory_format=torch_private.suggest_memory_format,
)
#: Those that any program calls.
HELPERS: dict[str, Any] = GUARD_HELPERS | {
    fn.__name__: fn
    for fn in (no_autocast, effects.fill_object, *effects.ASSIGNMENTS, *effects.CONSTRUCTORS, *output.EFFECTS)
}

# The operators of Python to which the torch executor passes a number and a tensor.
_OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge")


def resolve(name: str) -> Callable[..., Any]:
    """Return the function that programs call by this name. Raise a KeyError for all other names."""
    owner, _, attribute = name.rpartition(".")
    if not owner:
        return HELPERS[name]  # type: ignore[no-any-return]
    if owner == "torchex":
        return torch_kernel(attribute)
    if owner == "operator" and attribute in _OPERATORS:
        return getattr(operator, attribute)  # type: ignore[no-any-return]
    found = operations("torch.Tensor" if owner == "Tensor" else owner).get(attribute)
    if found is None:
        raise KeyError(name)
    return found  # type: ignore[no-any-return]


def torch_kernel(name: str) -> Callable[..., Any]:
    """Return a kernel of the torch executor. Programs call it `torchex.name`."""
    for module in families(kernels.__name__) if name not in table else ():
        importlib.import_module(module)  # one after the other, because each takes milliseconds
        if name in table:
            break
    return table[name]


class Kernels:
    """The namespace `torchex` of programs that are loaded from texts."""

    __slots__ = ("__dict__",)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            found = self.__dict__[name] = torch_kernel(name)
        except KeyError:
            raise AttributeError(f"the torch executor has no operation called {name!r}") from None
        return found
