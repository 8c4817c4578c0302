# SPDX-License-Identifier: Apache-2.0
"""Norms whose results are read only by fp8 layers: one operator computes the norm and writes it in fp8.

The pass runs after differentiation and before claiming. In a trace with gradients, the users of the norm are then
quantizations. In a trace without gradients, the users are still layers, and the pass lowers these first. The gradient
rules of thunder's norms apply. These rules read the statistics that the fused operator returns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from thunder.extend import BoundSymbol, TensorProxy, Trace, construct, dtypes, recording, rewrite
from thunder.toolkit.claiming import choose
from thunder_ex_te.probe import unusable_device
from thunder_ex_te.scales import Slot

__all__ = ["FUSE", "fused"]

FUSE = "te_fuse_norms"  # the option of thunder.jit
LAYERS = ("torch.linear", "te_linear")
_TAKEN = (dtypes.bfloat16, dtypes.float16, dtypes.float32)


class _Norm(NamedTuple):
    """A norm over the last dimension. A norm without a bias is an RMS norm."""

    x: TensorProxy
    weight: TensorProxy
    bias: TensorProxy | None
    eps: float


def _rms(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> _Norm | None:
    least = torch.finfo(torch.float32).eps if eps is None else eps
    return _norm(input, normalized_shape, weight, None, least)


def _layer(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> _Norm | None:
    return None if bias is None else _norm(input, normalized_shape, weight, bias, eps)


def _norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> _Norm | None:
    """Return the norm of an operation if the library's kernels support it: one dimension, a weight, and one dtype."""
    parameters = [p for p in (weight, bias) if p is not None]
    if (
        weight is None
        or len(shape) != 1
        or unusable_device(x.device) is not None
        or dtypes.to_dtype(x.dtype) not in _TAKEN
    ):
        return None
    if any(p.dtype is not x.dtype or p.device is not x.device for p in parameters):
        return None
    return _Norm(x, weight, bias, eps)


_NORMS: dict[Any, Callable[..., _Norm | None]] = {
    "torch.rms_norm": _rms,
    "torch.rms_norm_forward": _rms,
    "torch.layer_norm": _layer,
    "torch.layer_norm_forward": _layer,
}


def fused(trace: Trace, context: Any, executor: str, operators: dict[str, Any], layer: Callable[..., Any]) -> Trace:
    """Fuse a norm with the quantization of its result, if the norm has no other users."""
    if not any(op.sym.id in _NORMS for op in trace.bound_symbols):
        return trace
    return _with_norms(_with_layers(trace, context, executor, layer), operators["te_quantize_norm"])


def _readers(trace: Trace) -> dict[str, list[BoundSymbol]]:
    found = defaultdict(list)
    for op in trace.bound_symbols:
        for name in set(op.arg_names):
            found[name].append(op)
    return found


def _result(op: BoundSymbol) -> TensorProxy:
    found = op.output[0] if isinstance(op.output, (tuple, list)) else op.output
    assert isinstance(found, TensorProxy)
    return found


def _with_layers(trace: Trace, context: Any, executor: str, layer: Callable[..., Any]) -> Trace:
    """Lower the layers that are the only users of a norm to fp8."""
    readers = _readers(trace)
    early: set[str] = set()  # the names of the results of these layers
    for op in trace.bound_symbols:
        if op.sym.id in _NORMS and _NORMS[op.sym.id](*op.args, **op.kwargs) is not None:
            found = readers[_result(op).name]
            if all(_is_layer(each, _result(op), context, executor) for each in found):
                early.update(_result(each).name for each in found)
    if not early:
        return trace

    def replace(op: BoundSymbol) -> Any:
        return layer(*op.args, **op.kwargs) if early.intersection(op.out_names) else None

    return rewrite(trace, "Layers of norms", replace)


def _is_layer(op: BoundSymbol, x: TensorProxy, context: Any, executor: str) -> bool:
    """Check whether an operation is a layer that reads `x` and that this executor claims."""
    if op.sym.id not in LAYERS or op.args[0].name != x.name or list(op.arg_names).count(x.name) != 1:
        return False
    taker = choose(op, context.executors).executor
    return taker is not None and taker.name == executor


def _with_norms(trace: Trace, operator: Any) -> Trace:
    readers = _readers(trace)
    made: dict[int, tuple[_Norm, BoundSymbol]] = {}
    gone: dict[int, int] = {}
    for op in trace.bound_symbols:
        norm = _NORMS[op.sym.id](*op.args, **op.kwargs) if op.sym.id in _NORMS else None
        if norm is None:
            continue
        found = readers[_result(op).name]
        if found and all(_quantizes(each, _result(op)) for each in found) and len({_how(each) for each in found}) == 1:
            made[id(op)] = norm, found[0]
            gone.update((id(each), id(op)) for each in found)
    if not made:
        return trace
    results: dict[int, Any] = {}
    with construct(trace, "Norms in fp8") as out:
        renamed: dict[str, Any] = {}
        for op in trace.bound_symbols:
            if id(op) in gone:
                renamed.update((old.name, new) for old, new in zip(op.output, results[gone[id(op)]]))
            elif id(op) not in made:
                out.record(op.substitute(renamed) if renamed else op)
            else:
                norm, quantization = made[id(op)]
                with recording(out) as recorded:
                    found = _written(operator, norm, quantization)
                results[id(op)] = found
                statistics = op.output[1:] if isinstance(op.output, (tuple, list)) else ()
                names = {new.name: old for old, new in zip(statistics, [p for p in found[4:] if p is not None])}
                for new in recorded:
                    new = new.substitute(names)
                    new.source = op.source
                    out.record(new)
    return out


def _quantizes(op: BoundSymbol, x: TensorProxy) -> bool:
    """Check whether an operation quantizes `x` as the input of a layer."""
    return (
        op.sym.name in ("te_quantize", "te_quantize_scaled") and op.args[0].name == x.name and not op.kwargs.get("keep")
    )


def _how(op: BoundSymbol) -> Any:
    """Return a key that is equal for equal quantizations of a value. It ignores slots: a value has only one scale."""
    return op.sym.name, *[each for each in op.args[1:] if not isinstance(each, Slot)]


def _written(operator: Any, norm: _Norm, quantization: BoundSymbol) -> Any:
    kind, *how = quantization.args[1:]
    if quantization.sym.name == "te_quantize":
        return operator(*norm, kind, *how)
    return operator(*norm, kind, slot=how[0])
