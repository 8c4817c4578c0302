# SPDX-License-Identifier: Apache-2.0
"""Samples for the conformance tests of this plugin's operators.

The reference is a matmul in double precision, with operands that plain torch quantizes. The tests therefore measure the
arithmetic of the kernels, not the error of quantization.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from thunder.toolkit.conformance import OperatorSamples, operator_opinfos
from thunder_ex_te import reference

__all__ = ["TOLERANCES", "opinfos"]

# Hopper's tensor cores accumulate fp8 products with fewer bits than float32, except with the split accumulator. If two
# scales differ in the last bit, a value may be rounded to different neighbours.
TOLERANCES = {
    "te_matmul:float32": (2e-3, 6e-2),
    "te_matmul:float16": (4e-3, 2e-2),
    "te_matmul:bfloat16": (1.6e-2, 2e-2),
    "te_linear:float32": (2e-2, 6e-2),
    "te_linear:float16": (2e-2, 6e-2),
    "te_linear:bfloat16": (2e-2, 6e-2),
}
for _of_one, _of_groups in (("te_matmul", "te_matmul_groups"), ("te_linear", "te_grouped_linear")):
    TOLERANCES |= {key.replace(_of_one, _of_groups): near for key, near in TOLERANCES.items() if _of_one in key}
TOLERANCES |= {f"te_quantize_norm:{dtype}": (1e-5, 1e-5) for dtype in ("float32", "float16", "bfloat16")}
KINDS = ("e4m3", "e5m2", "e4m3 1x128", "e4m3 128x128")
DIFFERENTIABLE = ("te_linear", "te_grouped_linear")
SHAPES = ((16, 32), (2, 80, 144), (256, 384))


def _quantize(make: Any) -> Iterator[tuple[Any, ...]]:
    for shape in SHAPES:
        for kind in KINDS:
            if kind.endswith("128x128"):
                shape = (512, 1024)  # the padding of scales is undefined, and these scales have none
            # Scales are powers of two, so rounding does not change them.
            yield make(shape, low=-4, high=4), kind, True, 0.0


def _quantize_reference(x: Any, kind: str, power_2: bool, epsilon: float) -> Any:
    return reference.quantize(x, kind, power_2, epsilon)


def _quantize_scaled(make: Any) -> Iterator[tuple[Any, ...]]:
    for shape in SHAPES:
        for kind in ("e4m3", "e5m2"):
            yield make(shape, low=-500, high=500), kind, _slot(kind)  # beyond the range of E4M3


def _slot(kind: str) -> Any:
    from thunder_ex_te.recipes import Delayed
    from thunder_ex_te.scales import Slot

    return Slot("a sample", {}, kind, Delayed(4, "max", 0, False), None)


def _quantize_scaled_reference(x: Any, kind: str, slot: Any) -> Any:
    return reference.quantize_by_scale(x, kind, torch.ones(1, device=x.device))


def _norms(make: Any) -> Iterator[tuple[Any, ...]]:
    for shape in SHAPES:
        signs = make((*shape[:-1], shape[-1] // 2)).sign()
        x = torch.cat((signs, -signs), -1)  # with mean 0 and deviation 1, results are integers, so they are exact
        weight, bias = (make(shape[-1:], low=-2, high=2).round() for _ in range(2))
        for kind in ("e4m3", "e4m3 1x128"):
            yield x, weight, None, 0.0, kind, True
            yield x, weight, bias, 0.0, kind, True
        yield x, weight, None, 0.0, "e4m3", False, 0.0, _slot("e4m3")


def _norms_reference(
    x: Any, weight: Any, bias: Any, eps: float, kind: str, power_2: bool, epsilon: float = 0.0, slot: Any = None
) -> Any:
    of_rows = torch.ones(*x.shape[:-1], 1, device=x.device)
    y = x * weight if bias is None else x * weight + bias
    if slot is not None:
        found = reference.quantize_by_scale(y, kind, torch.ones(1, device=x.device))
    else:
        found = reference.quantize(y, kind, power_2, epsilon)
    return *found, None if bias is None else 0 * of_rows, of_rows


SIZES = (16, 128, 32)


def _quantize_groups(make: Any) -> Iterator[tuple[Any, ...]]:
    for kind in ("e4m3", "e5m2", "e4m3 1x128"):
        yield make((sum(SIZES), 256), low=-4, high=4), SIZES, kind, True
        if " " not in kind:
            slots = tuple(_slot(kind) for _ in SIZES)
            yield make((sum(SIZES), 256), low=-4, high=4), SIZES, kind, False, 0.0, slots


def _quantize_groups_reference(
    x: Any, sizes: Any, kind: str, power_2: bool, epsilon: float = 0.0, slots: Any = None
) -> Any:
    one = torch.ones(1, device=x.device)
    found = [
        reference.quantize(piece, kind, power_2, epsilon)
        if slots is None
        else reference.quantize_by_scale(piece, kind, one)
        for piece in x.split(sizes)
    ]
    return tuple(zip(*found))


def _products_of_groups(make: Any) -> Iterator[tuple[Any, ...]]:
    for a_kind, b_kind in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3 1x128", "e4m3 128x128")):
        a, b = ([make((n, 256), low=-2, high=2) for n in each] for each in (SIZES, [144] * len(SIZES)))
        left, right = (
            [tuple(part) for part in zip(*[reference.quantize(x, kind, True)[:2] for x in each])]
            for each, kind in ((a, a_kind), (b, b_kind))
        )
        biases = None if a[0].dtype is torch.float32 else [make((144,), low=-2, high=2) for _ in SIZES]
        yield *left, a_kind, *right, b_kind, a[0].dtype, biases


def _products_of_groups_reference(
    a: Any, a_scales: Any, a_kind: str, b: Any, b_scales: Any, b_kind: str, dtype: Any, biases: Any
) -> Any:
    groups = zip(a, a_scales, b, b_scales, biases or [None] * len(a))
    return torch.cat([reference.multiply(x, s, a_kind, y, t, b_kind, dtype, bias) for x, s, y, t, bias in groups])


def _products(make: Any) -> Iterator[tuple[Any, ...]]:
    for rows, inner, columns in (((16,), 16, 16), ((2, 24), 144, 80), ((256,), 384, 128)):
        for a_kind, b_kind in (
            ("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3 1x128", "e4m3 128x128"), ("e4m3 1x128", "e4m3 1x128"),
        ):  # fmt: skip
            a, b = make((*rows, inner), low=-2, high=2), make((columns, inner), low=-2, high=2)
            left, right = (reference.quantize(x, kind, True)[:2] for x, kind in ((a, a_kind), (b, b_kind)))
            bias = None if a.dtype is torch.float32 else make((columns,), low=-2, high=2)
            yield *left, a_kind, *right, b_kind, a.dtype, bias


def _recipes() -> list[Any]:
    from thunder_ex_te.probe import kernels

    recipes = kernels().recipes
    return [recipes.Float8CurrentScaling(), recipes.Float8BlockScaling(), recipes.DelayedScaling(amax_history_len=4)]


def _linear(make: Any) -> Iterator[tuple[Any, ...]]:
    for recipe in _recipes():
        for rows, inputs, outputs in (((16,), 16, 16), ((2, 40), 144, 48), ((128,), 256, 144)):
            x, w = make((*rows, inputs), low=-2, high=2), make((outputs, inputs), low=-2, high=2)
            yield x, w, make((outputs,), low=-2, high=2), recipe
            yield x, w, None, recipe


def _grouped_linear(make: Any) -> Iterator[tuple[Any, ...]]:
    for recipe in _recipes():
        x = make((sum(SIZES), 144), low=-2, high=2)
        weights = [make((48, 144), low=-2, high=2) for _ in SIZES]
        yield x, SIZES, weights, None, recipe
        if x.dtype is not torch.float32:
            yield x, SIZES, weights, [make((48,), low=-2, high=2) for _ in SIZES], recipe


class _Linear(torch.autograd.Function):
    """A linear layer whose three matmuls have fp8 operands."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, scheme: Any) -> Any:
        ctx.scheme = scheme
        (a, a_scale, *of_x), (b, b_scale, *of_w) = (_fp8(t, scheme, role) for t, role in ((x, "input"), (w, "weight")))
        ctx.save_for_backward(*of_x, *of_w)
        ctx.dtype = x.dtype
        return reference.multiply(a, a_scale, scheme.input.kind, b, b_scale, scheme.weight.kind, torch.float64)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        scheme, (x, x_scale, w, w_scale) = ctx.scheme, ctx.saved_tensors
        a, a_scale, b, b_scale = _fp8(g.to(ctx.dtype), scheme, "grad")
        kind = scheme.grad.kind
        of_x = reference.multiply(a, a_scale, kind, w, w_scale, scheme.weight.kind, ctx.dtype)
        return of_x, reference.multiply(b, b_scale, kind, x, x_scale, scheme.input.kind, ctx.dtype), None


def _fp8(x: Any, scheme: Any, role: str) -> tuple[Any, ...]:
    how = getattr(scheme, role)
    if scheme.delayed is not None:  # in the first step the scale is 1
        return reference.quantize_by_scale(x, how.kind, torch.ones(1, device=x.device))
    return reference.quantize(x, how.kind, how.power_2, how.epsilon)


def _linear_reference(x: Any, w: Any, bias: Any, recipe: Any) -> Any:
    from thunder_ex_te.recipes import scheme_of

    out = _Linear.apply(x, w, scheme_of(recipe))
    return (out if bias is None else out + bias).to(x.dtype)


def _grouped_linear_reference(x: Any, sizes: Any, weights: Any, biases: Any, recipe: Any) -> Any:
    groups = zip(x.split(sizes), weights, biases or [None] * len(weights))
    return torch.cat([_linear_reference(piece, w, bias, recipe) for piece, w, bias in groups])


def _updates(make: Any) -> Iterator[tuple[Any, ...]]:
    slot = _slot("e4m3")
    slot.on(make((1,)).device)
    yield ([slot],)


def opinfos() -> list[Any]:
    """Return an OpInfo for each operator of the executor."""
    table: dict[str, tuple[Any, Any]] = {
        "te_quantize": (_quantize, _quantize_reference),
        "te_quantize_scaled": (_quantize_scaled, _quantize_scaled_reference),
        "te_quantize_norm": (_norms, _norms_reference),
        "te_quantize_groups": (_quantize_groups, _quantize_groups_reference),
        "te_matmul": (_products, reference.multiply),
        "te_matmul_groups": (_products_of_groups, _products_of_groups_reference),
        "te_update_scales": (_updates, lambda slots: None),
        "te_linear": (_linear, _linear_reference),
        "te_grouped_linear": (_grouped_linear, _grouped_linear_reference),
    }
    entries = {
        name: OperatorSamples(*entry, supports_grad=None if name in DIFFERENTIABLE else False)
        for name, entry in table.items()
    }
    return operator_opinfos("te", entries, family="fp8")
