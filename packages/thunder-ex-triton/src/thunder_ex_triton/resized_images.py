# SPDX-License-Identifier: Apache-2.0
"""Images that are resampled and then concatenated along the channels: kernels write them to their places.

Models that combine feature maps of several sizes do this. torch's concatenation reads and writes all images again. The
pass replaces a concatenation of images of which one is resampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, Trace, proxies_in, rewrite
from thunder_ex_triton.channels_last import primitives_of
from thunder_ex_triton.images import is_channels_last
from thunder_ex_triton.resize import TAKEN, takes, write

__all__ = ["TAKEN", "like", "register", "resized_cat"]


def resized_cat(
    images: Sequence[torch.Tensor], output_size: Sequence[int], mode: str, align_corners: bool,
    scales: Sequence[Sequence[float | None]],
) -> torch.Tensor:  # fmt: skip
    """Resample images to `output_size`, those that have other sizes, and concatenate them along the channels."""
    first = images[0]
    channels_last = all(map(is_channels_last, images))
    shape = (first.shape[0], sum(a.shape[1] for a in images), *output_size)
    order = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=order)
    parts = out.split([a.shape[1] for a in images], 1)
    for a, part, factors in zip(images, parts, scales):
        if a.shape[2:] == part.shape[2:]:
            write(a, part, channels_last, "nearest", False, (None, None))
        else:
            write(a, part, channels_last, mode, align_corners, factors)
    return out


def like(images: Any, output_size: Any, mode: str, align_corners: bool, scales: Any) -> Any:
    """Decompose into torch's operations."""
    resized = [
        a if tuple(a.shape[2:]) == tuple(output_size) else prims.resize(a, output_size, mode, align_corners, s, False)
        for a, s in zip(images, scales)
    ]
    return ltorch.cat(resized, 1)


def register(registry: Any, executor: str) -> None:
    """Register the operator and the pass."""
    operator = registry.register_operator("triton_resized_cat", executor=executor, like=like, fn=resized_cat)

    def join(trace: Trace, context: Any) -> Trace:
        resized = {op.output.name: found for op in trace.bound_symbols if (found := _resampling(op)) is not None}
        if not resized:
            return trace
        uses = Counter(name for op in trace.bound_symbols for name in op.arg_names)
        uses.update(p.name for p in proxies_in(trace.output))

        def replace(op: BoundSymbol) -> Any:
            arguments = _arguments(op, {name: found for name, found in resized.items() if uses[name] == 1})
            return None if arguments is None else operator(*arguments)

        return rewrite(trace, "Concatenated images", replace, drops_dead_code=True)

    registry.register_transform(
        "triton_resized_cat", join, phase="before_execution", after="triton_channels_last", executor=executor
    )


def _resampling(op: BoundSymbol) -> tuple[Any, ...] | None:
    """Return the arguments of an operation that only resamples an image, if the kernels support it, or a copy does."""
    parts = [] if op.sym.is_structural else list(primitives_of(op))
    if len(parts) != 1 or parts[0].sym is not prims.resize:
        return None
    a, size, mode, _, scales, antialias = parts[0].args
    if not _is_image(a):
        return None
    if tuple(a.shape[2:]) == tuple(size):
        copies = mode in ("bilinear", "nearest", "nearest-exact") and all(s in (None, 1.0) for s in scales)
        return parts[0].args if copies and not antialias else None
    return parts[0].args if takes(a, a.shape[2:], size, mode, scales, antialias) is True else None


def _arguments(op: BoundSymbol, resized: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """Return the arguments of the operator for a concatenation that it supports."""
    parts = [] if op.sym.is_structural else list(primitives_of(op))
    if len(parts) != 1 or parts[0].sym is not prims.cat or parts[0].args[1] != 1:
        return None
    images = parts[0].args[0]
    if not all(map(_is_image, images)) or len({p.dtype for p in images}) > 1:
        return None
    size = tuple(images[0].shape[2:])
    given = [resized.get(p.name, (p, size, None, None, (None, None))) for p in images]
    hows = {how[2:4] for how in given if tuple(how[0].shape[2:]) != size}
    if len(hows) != 1:  # different modes, or no resampled image
        return None
    return [how[0] for how in given], size, *hows.pop(), [how[4] for how in given]


def _is_image(p: TensorProxy) -> bool:
    """Check whether the strides of an image say what its layout is: it has several channels, and several pixels."""
    static = p.ndim == 4 and all(type(n) is int for n in p.shape)
    return static and p.dtype in TAKEN and p.shape[0] > 0 and p.shape[1] > 1 and p.shape[2] * p.shape[3] > 1
