# SPDX-License-Identifier: Apache-2.0
"""Functions of `torch.nn.functional` that torch computes by other operations with deterministic algorithms.

On a GPU the backward of their kernels adds in any order. With `torch.use_deterministic_algorithms`, torch calls
decompositions whose backward is deterministic, and these are traced. The choice is guarded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors.tracer import Tracer
from thunder.runtime.torch_private import deterministic
from thunder.torch.vision import check_mode, size_and_scales

__all__: list[str] = []

_ALWAYS_DETERMINISTIC = frozenset({"cpu"})  # types of devices for which torch decomposes nothing


def _is_decomposed(input: Any) -> bool:
    """Check whether torch calls a deterministic decomposition for this input."""
    return deterministic() and isinstance(input, torch.Tensor) and input.device.type not in _ALWAYS_DETERMINISTIC


def _decomposition(name: str) -> Any:
    """Return torch's decomposition, or None if this torch version does not have it."""
    import torch._decomp.decompositions as decompositions

    return getattr(decompositions, name, None)


@handles(F.interpolate, traced=True)
def _interpolate(
    tracer: Tracer, input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Any:  # fmt: skip
    if antialias or mode not in ("bilinear", "trilinear") or not _is_decomposed(input):
        return NotImplemented
    check_mode(input, mode, align_corners, antialias)
    output_size, scales = size_and_scales(input, size, scale_factor)
    by_scales = size is None and not recompute_scale_factor
    sizes = (None, bool(align_corners), scales) if by_scales else (output_size, bool(align_corners), None)
    return _decomposition("_upsample_linear_vec")(input, *sizes)


@handles(F.pad, traced=True)
def _pad(tracer: Tracer, input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    if mode != "replicate" or not _is_decomposed(input):
        return NotImplemented
    return _decomposition("_replication_pad")(input, tuple(pad))


@handles(F.max_pool3d_with_indices, traced=True)
def _max_pool3d_with_indices(
    tracer: Tracer, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = True,
) -> Any:  # fmt: skip
    decomposition = _decomposition("max_pool3d_with_indices") if _is_decomposed(input) else None
    if decomposition is None:
        return NotImplemented
    return decomposition(input, kernel_size, [] if stride is None else stride, padding, dilation, ceil_mode)


@handles(F.max_pool3d, traced=True)
def _max_pool3d(tracer: Tracer, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
    """Pool with indices if the caller wants them. Without indices, torch has no deterministic backward."""
    if len(args) > 6:
        args, return_indices = args[:6], args[6]
    return _max_pool3d_with_indices(tracer, *args, **kwargs) if return_indices else NotImplemented
