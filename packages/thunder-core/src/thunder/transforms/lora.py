# SPDX-License-Identifier: Apache-2.0
"""`LoRATransform`: low-rank adapters beside frozen weights.

Contract: each selected `torch.nn.Linear` computes `base(x) + (dropout(x) @ A.T @ B.T) * alpha / rank`. A is initialized
randomly and B with zeros, so results do not change at first. Only the adapters are trained. All other parameters of the
jitted module are frozen, but those of the user's own module are not.

`state_dict()` has the original layout, with the adapters merged into the weights. `load_state_dict` loads such a state
as the base, with adapters of zero. `adapters(module)` and `load_adapters(module, state)` save and load the adapters
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thunder.transforms.base import Transform, check_names, check_option
from thunder.transforms.modules import Variant, become, chosen_modules, replaced_tensors, saved_tensors

__all__ = ["LoRATransform"]


class LoRA(Variant):
    """A linear layer with a low-rank adapter."""

    lora_a: torch.nn.Parameter
    lora_b: torch.nn.Parameter
    lora_scale: float
    lora_dropout: float

    def adapt(self, rank: int, alpha: float, dropout: float, like: torch.Tensor, sizes: tuple[int, int]) -> None:
        """Add an adapter to this layer."""
        ins, outs = sizes
        self.lora_a = torch.nn.Parameter(torch.empty(rank, ins, dtype=like.dtype, device=like.device))
        self.lora_b = torch.nn.Parameter(torch.zeros(outs, rank, dtype=like.dtype, device=like.device))
        if not like.is_meta:
            torch.nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.lora_scale, self.lora_dropout = alpha / rank, dropout

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute the base layer plus the adapter."""
        base = super().forward(input)  # type: ignore[misc]
        functional = torch.nn.functional
        dropped = functional.dropout(input, self.lora_dropout, self.training) if self.lora_dropout else input  # type: ignore[attr-defined]
        added = functional.linear(functional.linear(dropped, self.lora_a), self.lora_b)
        return base + added * self.lora_scale  # type: ignore[no-any-return]

    def state_to_original(self) -> dict[str, torch.Tensor]:
        state = _base_state(self)
        state["weight"] = state["weight"] + (self.lora_b.detach() @ self.lora_a.detach()) * self.lora_scale
        return state

    def original_names(self) -> tuple[str, ...]:
        return tuple(_base_state(self))

    def state_from_original(self, state: dict[str, torch.Tensor]) -> None:
        if isinstance(self._original, type) and issubclass(self._original, Variant):
            self._original.state_from_original(self, state)
        else:
            own = saved_tensors(self)
            for name, value in state.items():
                own[name].copy_(value)
        if "weight" in state:
            self.lora_b.zero_()


def _base_state(module: Any) -> dict[str, torch.Tensor]:
    quantized = issubclass(module._original, Variant)
    found = module._original.state_to_original(module) if quantized else saved_tensors(module)
    return {name: value.detach() for name, value in found.items() if name not in ("lora_a", "lora_b")}


class LoRATransform(Transform):
    """Adapters of rank `rank` for linear layers, scaled by `alpha / rank`, with dropout on their inputs.

    `modules` contains names or patterns of submodules: e.g. `["q_proj", "v_proj"]` or `["layers.0.*"]`. None selects
    every `torch.nn.Linear`.
    """

    changes_results = False  # the transform only changes the module

    def __init__(
        self, *, rank: int = 8, alpha: float | None = None, dropout: float = 0.0, modules: Sequence[str] | None = None
    ):
        check_option("LoRATransform", "rank", rank, type(rank) is int and rank >= 1, "a positive integer")
        good = alpha is None or (_is_number(alpha) and math.isfinite(alpha))
        check_option("LoRATransform", "alpha", alpha, good, "a finite number")
        good = _is_number(dropout) and 0 <= dropout < 1
        check_option("LoRATransform", "dropout", dropout, good, "at least 0 and less than 1")
        if modules is not None:
            check_names("LoRATransform", "modules", modules)
        self.rank = rank
        self.alpha = float(2 * rank if alpha is None else alpha)
        self.dropout = dropout
        self.modules = modules

    def transform_module(self, module: torch.nn.Module) -> None:
        _freeze(module)
        chosen = chosen_modules(
            module,
            lambda m: isinstance(m, torch.nn.Linear),
            self.modules,
            option="LoRATransform",
            what="torch.nn.Linear",
        )
        for _, sub in chosen:
            sizes, like = (sub.in_features, sub.out_features), sub.weight
            become(sub, LoRA).adapt(self.rank, self.alpha, self.dropout, like, sizes)

    def adapters(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Return the adapters of a jitted module, by parameter name."""
        return {name: p.detach() for name, p in module.named_parameters() if _is_adapter(name)}

    def load_adapters(self, module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Load adapters into a jitted module."""
        own = {name: p for name, p in module.named_parameters() if _is_adapter(name)}
        if own.keys() != state.keys():
            lacking, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise KeyError(f"load_adapters: missing: {lacking}; unexpected: {unknown}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(state[name])

    def __repr__(self) -> str:
        return f"thunder.transforms.LoRATransform(rank={self.rank}, alpha={self.alpha}, dropout={self.dropout})"


def _is_adapter(name: str) -> bool:
    return name.rpartition(".")[2] in ("lora_a", "lora_b")


def _freeze(module: torch.nn.Module) -> None:
    """Replace parameters by frozen ones that share their memory, so that the user's module remains trainable."""
    frozen = {
        id(p): torch.nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters() if p.requires_grad
    }
    replaced_tensors(module, frozen)


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)
