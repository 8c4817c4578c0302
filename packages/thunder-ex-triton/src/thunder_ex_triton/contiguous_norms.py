# SPDX-License-Identifier: Apache-2.0
"""A pass for norms of contiguous images: computes them in operations that fuse with what comes before and after.

torch's kernels of batch normalization in training, and of gradients of batch and group normalization, do not fuse, and
the operations that those norms consist of reduce dimensions that are not adjacent in memory. Here, they reduce rows of
pixels (`norm_layouts.py`). Norms whose rows already fuse as they are stay the same, unless there are few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, Trace, rewrite
from thunder.toolkit.layouts import eager_strides, reads_strides
from thunder_ex_triton import channels_last
from thunder_ex_triton.norm_layouts import ByChannel, BySample, ChannelsLast, Layout
from thunder_ex_triton.norms import compute, images_of, is_of_batch, record_cast
from thunder_ex_triton.probe import unusable_device

__all__ = ["register"]

_ROW_OF_CHANNEL = 1 << 14  # the elements of a channel that one program holds in registers
_FEW_ROWS = 512  # fewer programs than this leave multiprocessors idle
_LONG_ROW = 1 << 13  # the elements of rows that are worth splitting if there are few
_SHORT_ROW = 1 << 11  # the fewest elements of a part of a row


def register(registry: Any, executor: str) -> None:
    """Register the pass."""

    def fuse(trace: Trace, context: Any) -> Trace:
        norms = [(op, layout) for op in trace.bound_symbols if (layout := _layout_of(op)) is not None]
        if not norms:
            return trace
        source = trace.info.get("forward", trace)
        if channels_last.orders_convolutions(source, context.options):  # which takes care of 2-D images
            norms = [(op, layout) for op, layout in norms if len(layout.shape) != 4]
        contiguous = _contiguous(trace, source, [images_of(op)[-1] for op, _ in norms])
        layouts = {op.out_names: layout for op, layout in norms if images_of(op)[-1].name in contiguous}
        if not layouts:
            return trace
        return rewrite(trace, "Norms of contiguous images", _in_layouts(layouts), drops_dead_code=True)

    registry.register_transform(
        "triton_contiguous_norms", fuse, phase="before_execution", after="triton_channels_last", executor=executor
    )


def _in_layouts(layouts: Mapping[tuple[str, ...], Layout]) -> Callable[[BoundSymbol], Any]:
    narrow: dict[str, TensorProxy] = {}

    def replace(op: BoundSymbol) -> Any:
        record_cast(op, narrow)
        layout = layouts.get(op.out_names)
        return None if layout is None else compute(op, layout, narrow)

    return replace


# -- the choice of a layout --------------------------------------------------------------------------------------------
def _layout_of(op: BoundSymbol) -> Layout | None:
    """Return the layout in which to compute a normalization of contiguous images; None to leave it as it is."""
    images = images_of(op)
    if not images or unusable_device(images[0].device) is not None:
        return None
    shape = images[0].shape
    if any(type(n) is not int for n in shape) or 0 in shape:
        return None
    n, c, *pixels = shape
    count = math.prod(pixels)
    if is_of_batch(op):
        if op.sym.id == "torch.batch_norm" and not _is_training(op):
            return None  # elementwise
        if count == 1:
            return ChannelsLast(shape)
        return ByChannel(shape) if n * count <= _ROW_OF_CHANNEL else BySample(shape, _parts(n * c, count))
    groups = c if "instance" in op.sym.id else op.args[2 if op.sym.id.endswith("_backward") else 1]
    few = n * groups < _FEW_ROWS and c // groups * count > _LONG_ROW
    return BySample(shape, _parts(n * c, count)) if few or _sums_channels_of_groups(op) else None


def _is_training(op: BoundSymbol) -> bool:
    return bool(op.args[5] if len(op.args) > 5 else op.kwargs.get("training", False))


def _sums_channels_of_groups(op: BoundSymbol) -> bool:
    """Check whether an operation computes gradients of a weight or bias of groups: their sums have other rows."""
    return op.sym.id == "torch.group_norm_backward" and any(x is not None for x in op.args[5:7])


def _parts(rows: int, pixels: int) -> int:
    """Return the number of parts of a row, so that there are enough rows for all multiprocessors."""
    parts = 1
    while rows * parts < _FEW_ROWS and pixels % (2 * parts) == 0 and pixels // (2 * parts) >= _SHORT_ROW:
        parts *= 2
    return parts


# -- which images are contiguous ---------------------------------------------------------------------------------------
def _contiguous(trace: Trace, source: Trace, images: Iterable[TensorProxy]) -> set[str]:
    """Return the names of the images that are contiguous in eager mode.

    The images of a backward program are values of the program that it differentiates, `source`.
    """
    images = list(images)
    if _keeps_contiguous(source) and (source is trace or _keeps_contiguous(trace, given=True)):
        return {p.name for p in images}
    strides = eager_strides(source, images)
    return {p.name for p in images if p.name in strides and _is_contiguous(p.shape, strides[p.name])}


def _keeps_contiguous(trace: Trace, given: bool = False) -> bool:
    """Check that no operation of a program, and no input (unless `given`), has other strides than contiguous ones.

    Unlike computing the strides, this takes no time.
    """
    known = trace.info.get("strides", {})
    images = [p for p in trace.args if isinstance(p, TensorProxy) and p.ndim > 1 and not given]
    if not all(p.name in known and _is_contiguous(p.shape, known[p.name]) for p in images):
        return False
    return not any(map(_may_reorder, trace.bound_symbols))


def _may_reorder(op: BoundSymbol) -> bool:
    if op.subsymbols:
        return any(map(_may_reorder, op.subsymbols))
    return op.sym in (prims.transpose, prims.stride_order) or reads_strides(op)


def _is_contiguous(shape: Any, strides: Any) -> bool:
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True
