# SPDX-License-Identifier: Apache-2.0
"""A pass that computes 2-D convolutions in half precision with channels-last memory.

cuDNN's fast kernels read and write this layout. For contiguous tensors it transposes operands and results in kernels of
their own, for each convolution. The pass orders the operands of all convolutions of a program. Operations keep the
layout of their operands as in eager mode, so that images are transposed once, at the beginning. The program's results
get the strides that they have in eager mode.

Convolutions of patches become products (`patches.py`). Of all others only the layout changes. No operation computes
other values because of it, except those that read strides: a program with `as_strided` or an operation of unknown
implementation that such a layout reaches is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import (
    BoundSymbol,
    OpTags,
    Proxy,
    TensorProxy,
    Trace,
    current_trace,
    dense_strides,
    dtypes,
    map_proxies,
    proxies_in,
    rewrite,
)
from thunder.toolkit.layouts import (
    changed_strides,
    eager_strides,
    gradient_strides,
    order_of,
    ordered_strides,
    results_of,
)
from thunder_ex_triton import patches
from thunder_ex_triton.fusion.iteration_space import has_work
from thunder_ex_triton.norm_layouts import ChannelsLast
from thunder_ex_triton.norms import HALF, compute, images_of, is_of_batch, record_cast
from thunder_ex_triton.patches import is_of_patches
from thunder_ex_triton.probe import unusable_device

__all__ = ["CHANNELS_LAST", "OPTION", "orders_convolutions", "primitives_of", "register"]

OPTION = "triton_channels_last"

CHANNELS_LAST = (3, 0, 2, 1)
_CONTIGUOUS = (3, 2, 1, 0)
_CONVOLUTIONS = (prims.convolution, prims.convolution_input_grad, prims.convolution_weight_grad)
_FEW = 16  # with fewer channels, a vector of a pixel's channels is shorter than a sector of memory


def register(registry: Any, executor: str) -> None:
    """Register the pass and its option."""
    registry.register_option(
        OPTION, type=(bool, type(None)), help="whether to compute convolutions channels-last (None: if profitable)"
    )

    def order(trace: Trace, context: Any) -> Trace:
        if not orders_convolutions(trace, context.options):
            return trace
        read = {p.name for op in trace.bound_symbols for p in _operands(op)}
        for sources in (_sources_of_images(trace, read), {}):  # without the images if a result depends on their order
            changed = _changed(trace, sources)
            found = None if changed is None else _orders_of_results(trace, changed)
            if changed is not None and found is not None:
                ordering = _Ordering(found, changed, read, sources)
                return rewrite(trace, "Channels-last convolutions", ordering, drops_dead_code=True)
        return trace

    registry.register_transform("triton_channels_last", order, phase="before_execution", executor=executor)


def orders_convolutions(trace: Trace, options: Mapping[str, Any]) -> bool:
    """Check whether the pass is on and a program has convolutions for which it is profitable."""
    asked = options.get(OPTION)
    if asked is False:
        return False
    convolutions = [op for op in trace.bound_symbols if _operands(op)]
    return bool(convolutions) and (bool(asked) or any(map(_is_profitable, convolutions)))


def primitives_of(op: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield the operations without a decomposition that an operation consists of."""
    if op.subsymbols:
        for part in op.subsymbols:
            yield from primitives_of(part)
    else:
        yield op


def _convolution(op: BoundSymbol) -> BoundSymbol | None:
    """Return the primitive of a 2-D convolution, or of its gradient, that an operation consists of."""
    found = [part for part in primitives_of(op) if part.sym in _CONVOLUTIONS]
    return found[0] if len(found) == 1 and not op.sym.is_structural else None


def _operands(op: BoundSymbol) -> list[TensorProxy]:
    """Return the tensors to order, or none if the pass does not concern the operation."""
    convolution = _convolution(op)
    if convolution is None:
        return []
    tensors = convolution.args[:2] if convolution.sym is prims.convolution else convolution.args[:3]
    for p in tensors:
        if p.ndim != 4 or p.dtype not in HALF or unusable_device(p.device) is not None:
            return []
        if any(type(n) is not int or n == 0 for n in p.shape):
            return []
    given = {p.name for p in op.tensors()}
    return [p for p in tensors if p.name in given]


def _sources_of_images(trace: Trace, read: Set[str]) -> dict[str, TensorProxy]:
    """Return what operations only order in memory (e.g. `contiguous`), by the names of the results.

    The results are those that convolutions read, and images whose channels were moved from the end.
    """
    found: dict[str, TensorProxy] = {}
    moved: set[str] = set()
    for op in trace.bound_symbols:
        parts = [] if op.sym.is_structural else list(primitives_of(op))
        if len(parts) == 1 and parts[0].sym is prims.transpose and tuple(parts[0].args[1]) == (0, 3, 1, 2):
            moved.update(op.out_names)
        elif len(parts) == 1 and parts[0].sym is prims.stride_order:
            source = parts[0].args[0]
            if source.name in moved or not read.isdisjoint(op.out_names):
                found[op.output.name] = source
    return found


def _is_profitable(op: BoundSymbol) -> bool:
    convolution = _convolution(op)
    assert convolution is not None
    weight = convolution.args[1] if convolution.sym is prims.convolution else convolution.args[2]
    return bool(convolution.args[-1] == 1 and min(weight.shape[:2]) >= _FEW) or is_of_patches(convolution)


def _changed(trace: Trace, sources: Mapping[str, TensorProxy]) -> dict[str, TensorProxy] | None:
    """Return the values whose strides the pass may change. Return None if it must leave the program alone."""

    def origins(op: BoundSymbol) -> Sequence[Proxy] | None:
        if any(name in sources for name in op.out_names):
            return op.flat_outs
        convolution = _convolution(op) if _operands(op) else None
        if convolution is None:
            return None
        return [] if convolution.sym is prims.convolution_weight_grad else op.flat_outs

    return changed_strides(trace, origins)


def _orders_of_results(trace: Trace, changed: Mapping[str, TensorProxy]) -> Mapping[str, Sequence[int]] | None:
    """Return the order of strides in eager mode for the results of the program among `changed`.

    Return None if it is not known. Gradients have the order of their inputs, also those of weights.
    """
    if "forward" in trace.info:
        return _orders_of_gradients(trace, changed)
    results = [changed[p.name] for p in proxies_in(results_of(trace)) if p.name in changed]
    if not results:
        return {}
    results = _or_bases(trace, {p.name: p for p in results}, changed)
    strides = eager_strides(trace, results)
    found = {}
    for p in results:
        if p.name not in strides or dense_strides(p.shape, strides[p.name]) is None:
            return None
        found[p.name] = _order(p.shape, strides[p.name])
    return found


def _order(shape: Sequence[int], strides: Sequence[int]) -> Sequence[int]:
    """Return the order of strides. Dimensions of one element do not tell it, so the usual orders come first."""
    usual = (_CONTIGUOUS, CHANNELS_LAST) if len(shape) == 4 else ()
    return next((order for order in usual if ordered_strides(shape, order) == strides), order_of(strides))


def _orders_of_gradients(trace: Trace, changed: Mapping[str, TensorProxy]) -> dict[str, Sequence[int]]:
    """Return the order of strides for the gradients among `changed`, and for those of weights as they are computed.

    A gradient of a weight that another operation than a cast reads has the order that it has in eager mode.
    """
    strides = gradient_strides(trace)
    found: dict[str, Sequence[int]] = {}
    for p in proxies_in(results_of(trace)):
        if p.name in changed:
            contiguous = tuple(reversed(range(changed[p.name].ndim)))
            found[p.name] = _order(changed[p.name].shape, strides[p.name]) if p.name in strides else contiguous
    read: set[str] = set()
    for op in reversed(trace.bound_symbols):
        if op.sym.is_structural:
            continue
        if op.sym is prims.convert_element_type and op.output.name in strides:  # the cast of autocast
            source = op.args[0].name
            if strides.setdefault(source, strides[op.output.name]) == strides[op.output.name]:
                continue
        read.update(op.arg_names)
        convolution = _convolution(op) if _operands(op) else None
        if convolution is not None and convolution.sym is prims.convolution_weight_grad:
            weight = convolution.output
            if weight.name in strides and weight.name not in read:
                found[weight.name] = _order(weight.shape, strides[weight.name])
    return found


def _or_bases(trace: Trace, results: Mapping[str, TensorProxy], changed: Mapping[str, Any]) -> list[TensorProxy]:
    """Return the results. Those that share memory are replaced by the tensor whose views they are.

    The views then have the strides of eager mode, and still share memory.
    """
    bases: dict[str, TensorProxy] = {}
    for op in trace.bound_symbols:
        if OpTags.VIEW_OP in op.sym.tags and op.args and isinstance(op.args[0], TensorProxy):
            bases.update(dict.fromkeys(op.out_names, bases.get(op.args[0].name, op.args[0])))
    found = {name: bases.get(name, p) for name, p in results.items()}
    times = Counter(p.name for p in found.values())
    return [base if times[base.name] > 1 and base.name in changed else results[p] for p, base in found.items()]


def _in_parts(op: BoundSymbol, ordered: Mapping[str, Any]) -> Any:
    """Compute a convolution and then add its bias, or the gradient of the weight and then that of the bias.

    torch does the same, in kernels that do not fuse with what comes before and after. A convolution of patches becomes
    a product. Return None for an operation that stays as it is.
    """
    first, *others = primitives_of(op)
    given = {p.name for p in op.tensors()}
    if any(isinstance(p, TensorProxy) and p.name not in given for p in first.args):
        return None
    if first.sym is prims.convolution and not others:
        a, weight, bias, *how = first.args
        if is_of_patches(first):
            return patches.convolve(a, weight, bias)
        if bias is None:
            return None
        out = prims.convolution(ordered[a.name], ordered[weight.name], None, *how)
        return ltorch.add(out, ltorch.reshape(bias, (1, -1, 1, 1)))
    if first.sym is prims.convolution_weight_grad:
        g, a, weight, *how = first.args
        with_bias = [part.sym for part in others] == [prims.sum] and others[0].args[0].name == g.name
        if not with_bias and (others or not is_of_patches(first)):
            return None
        if is_of_patches(first):
            found = patches.weight_gradient(ordered[g.name], a, weight)
        else:
            found = prims.convolution_weight_grad(*(ordered[p.name] for p in (g, a, weight)), *how)
        return (found, ltorch.sum(ltorch.permute(g, (0, 2, 3, 1)), (0, 1, 2))) if with_bias else found
    return None


class _Ordering:
    """Orders the operands of convolutions, the gradients of their weights, and results of the program."""

    def __init__(
        self,
        results: Mapping[str, Sequence[int]],
        changed: Mapping[str, TensorProxy],
        read: Set[str],
        sources: Mapping[str, TensorProxy],
    ):
        self.results = results
        self.changed = changed
        self.read = read  # the values that convolutions read
        self.sources = sources  # of images that the program orders
        self.ordered: dict[str, Any] = {}
        self.narrow: dict[str, TensorProxy] = {}  # the values in half precision that others in single precision are of

    def __call__(self, op: BoundSymbol) -> Any:
        operands = _operands(op)
        made = {p.name: p for p in op.flat_outs if isinstance(p, TensorProxy) and p.name not in op.arg_names}
        orders = {name: self.results[name] for name in made if name in self.results}
        if any(name in self.sources for name in made):
            return self._image(op.output, orders)
        convolution = _convolution(op) if operands else None
        if convolution is not None and convolution.sym is prims.convolution_weight_grad:
            orders = {name: _CONTIGUOUS for name, p in made.items() if p.ndim == 4} | orders
        found = self._fusible(op) if convolution is None else None
        if convolution is None and not orders:
            return found
        for p in operands:
            if p.name not in self.ordered:
                self.ordered[p.name] = prims.stride_order(p, CHANNELS_LAST)
        if convolution is not None:
            found = _in_parts(op, self.ordered)
        op = op.substitute({p.name: self.ordered[p.name] for p in operands})
        if found is None:
            trace: Any = current_trace()
            unordered = {name: made[name].replace_name(trace.make_name()) for name in orders}
            op = op.substitute(unordered)
            trace.record(op)
            found = map_proxies(op.output, lambda p: p)
            orders = {unordered[name].name: order for name, order in orders.items()}
        else:
            orders = {
                new.name: orders[old.name] for old, new in zip(made.values(), proxies_in(found)) if old.name in orders
            }
        return map_proxies(found, lambda p: prims.stride_order(p, orders[p.name]) if p.name in orders else p)

    def _image(self, image: TensorProxy, orders: Mapping[str, Sequence[int]]) -> Any:
        """Order an image as convolutions read it, instead of as the program does. In the program's results, do both."""
        found = prims.stride_order(self.sources[image.name], CHANNELS_LAST)
        if image.name not in orders:
            self.ordered[image.name] = image  # `found` gets its name
            return found
        self.ordered[image.name] = found
        return prims.stride_order(found, orders[image.name])

    def _fusible(self, op: BoundSymbol) -> Any:
        """Return the results of operations that fuse, for the normalization of an image that may be channels-last."""
        record_cast(op, self.narrow)
        images = images_of(op)
        if not images or images[0].ndim != 4 or not _has_work(op, images):
            return None
        # The image of a gradient may be an input of the program, which an earlier program has computed channels-last.
        if all(p.name not in self.changed for p in images) and self.read.isdisjoint(op.out_names):
            return None
        return compute(op, ChannelsLast(images[0].shape), self.narrow)


def _has_work(op: BoundSymbol, images: Sequence[TensorProxy]) -> bool:
    """Check whether kernels have enough work for each sum of a normalization, in a dtype that convolutions read."""
    if is_of_batch(op):
        return all(p.dtype in HALF for p in images)
    n, c, h, w = images[0].shape
    return has_work(n, h * w, c) and all(p.dtype in (*HALF, dtypes.float32) for p in images)
