# SPDX-License-Identifier: Apache-2.0
"""`MaterializationTransform`: allocate and initialize modules that were built on the meta device.

    with torch.device("meta"):
        model = Model(config)                                  # takes no memory
    fast = thunder.jit(model, transforms=[MaterializationTransform("cuda", state_dict=torch.load(…, mmap=True))])

Contract: each tensor on the meta device is allocated on `device`. Its value is the first available one of: its entry in
`state_dict`, the result of its submodule's `reset_parameters`, and the result of `initialize(submodule)`. Otherwise an
error names the tensor. A warning names the tensors that the module's state dict should contain but that `state_dict`
lacks. Tensors on other devices stay unchanged, and tied tensors stay tied. Later transforms in the list (e.g.
quantization, adapters) receive the values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from thunder.transforms.base import Transform, check_option
from thunder.transforms.modules import replaced_tensors

__all__ = ["MaterializationTransform"]


class MaterializationTransform(Transform):
    """Allocate the tensors that are on the meta device.

    Values come from `state_dict`, or from the `reset_parameters` method of the submodule. `initialize` is called with
    each submodule that has no such method, e.g. one with buffers of precomputed tables.
    """

    changes_results = False  # the transform only changes the module

    def __init__(
        self,
        device: Any = "cpu",
        *,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        initialize: Callable[[Any], Any] | None = None,
    ):
        self.device = torch.device(device)
        if self.device.type == "meta":
            raise ValueError("MaterializationTransform: device is the device to allocate on, so it must not be meta")
        good = state_dict is None or isinstance(state_dict, Mapping)
        what = "a mapping from names to tensors (torch.load and safetensors read one from a file)"
        check_option("MaterializationTransform", "state_dict", state_dict, good, what)
        good = initialize is None or callable(initialize)
        check_option("MaterializationTransform", "initialize", initialize, good, "a function of a submodule")
        self.state_dict = state_dict
        self.initialize = initialize

    def transform_module(self, module: torch.nn.Module) -> None:
        given = self._given(module)
        made: dict[int, torch.Tensor] = {}
        for name, tensor in _on_meta(module):
            if id(tensor) in made:
                continue
            value = next((given[n] for n in _names_of(module, tensor) if n in given), None)
            made[id(tensor)] = _like(tensor, self.device, name, value)
        from_state = {id(t) for n, t in _on_meta(module) if n in given}
        to_reset = [m for m in module.modules() if _owns(m, set(made) - from_state)]
        unset = {id(t): n for n, t in _on_meta(module) if id(t) not in from_state}
        left_out = [n for n in unset.values() if given and n in module.state_dict()]
        replaced_tensors(module, made)
        for sub in to_reset:
            self._reset(sub, made, from_state, unset)
        if unset:
            where = (
                "not in the state dict, and no reset_parameters sets them"
                if given
                else "not set by any reset_parameters"
            )
            raise ValueError(
                f"MaterializationTransform: these tensors are {where}: {', '.join(unset.values())}. Put them "
                "into state_dict under these names (buffers too), give their module a reset_parameters "
                "method, or pass a function that sets them as initialize="
            )
        if left_out:
            warnings.warn(
                f"MaterializationTransform: the state dict lacks {', '.join(left_out)}. These tensors have the initial "
                "values of a new module",
                stacklevel=2,
            )

    def _given(self, module: torch.nn.Module) -> Mapping[str, torch.Tensor]:
        given = self.state_dict or {}
        known = {name for name, _ in _tensors(module)}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise KeyError(f"MaterializationTransform: the module has no {', '.join(map(repr, unknown[:5]))}")
        return given

    def _reset(self, sub: Any, made: dict[int, torch.Tensor], from_state: set[int], unset: dict[int, str]) -> None:
        """Initialize a submodule by its own method or by `initialize`, but keep the values from the state dict."""
        reset = getattr(sub, "reset_parameters", None) or getattr(sub, "_reset_parameters", None)
        if reset is None and self.initialize is None:
            return
        own = {id(t): t for table in (sub._parameters, sub._buffers) for t in table.values() if t is not None}
        unvalued = {id(new) for old, new in made.items() if old not in from_state}
        kept = [(t, t.detach().clone()) for key, t in own.items() if key not in unvalued]
        with torch.no_grad():
            reset() if reset is not None else self.initialize(sub)  # type: ignore[misc]
            for tensor, value in kept:
                tensor.copy_(value)
        for old, new in made.items():
            if id(new) in own:
                unset.pop(old, None)

    def __repr__(self) -> str:
        return f"thunder.transforms.MaterializationTransform({str(self.device)!r})"


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter and buffer under each of its names."""
    for prefix, sub in module.named_modules(remove_duplicate=False):
        for table in (sub._parameters, sub._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else name, tensor


def _on_meta(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor) for name, tensor in _tensors(module) if tensor.is_meta]


def _names_of(module: torch.nn.Module, tensor: torch.Tensor) -> list[str]:
    return [name for name, other in _tensors(module) if other is tensor]


def _owns(module: torch.nn.Module, ids: set[int]) -> bool:
    return any(id(t) in ids for table in (module._parameters, module._buffers) for t in table.values())


def _like(tensor: torch.Tensor, device: torch.device, name: str, value: torch.Tensor | None) -> torch.Tensor:
    """Allocate a tensor on `device` with the properties of a tensor on the meta device."""
    if value is not None and value.shape != tensor.shape:
        raise ValueError(
            f"MaterializationTransform: {name} has the shape {tuple(tensor.shape)}, but in the state dict it has the "
            f"shape {tuple(value.shape)}"
        )
    out = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if value is not None:
        out.copy_(value)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(out, requires_grad=tensor.requires_grad)
    return out
