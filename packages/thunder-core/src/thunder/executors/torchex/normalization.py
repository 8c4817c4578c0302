# SPDX-License-Identifier: Apache-2.0
"""Normalizations: what torch's kernels support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.executors.torchex.base import ex, torch_impl, torch_operator
from thunder.runtime.kernels import normalization

Optional = torch.Tensor | None


def _is_real_or_on_cpu(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: Optional, eps: float | None
) -> bool | str:
    return input.device.type == "cpu" or not input.dtype.is_complex or "torch's kernel is for real numbers"


torch_impl(ltorch.rms_norm_forward, checker=_is_real_or_on_cpu)(normalization.rms_norm_forward)


def _writes_nothing(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    *constants: float, **options: Any,
) -> bool | str:  # fmt: skip
    return (not training or running_mean is None) or "torch's function writes the running statistics in place"


ex.register_implementation(ltorch.batch_norm, torch_operator(torch.nn.functional.batch_norm), checker=_writes_nothing)


def _never_in_place(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, *constants: float, **options: Any,
) -> bool | str:  # fmt: skip
    return (not use_input_stats or running_mean is None) or "torch's function writes the running statistics in place"


ex.register_implementation(
    ltorch.instance_norm, torch_operator(torch.nn.functional.instance_norm), checker=_never_in_place
)
