# SPDX-License-Identifier: Apache-2.0
"""The samples with which the conformance suite tests the operators of this wheel.

References are products, in double precision, of factors that plain torch quantizes: what is compared is the arithmetic
of the kernels, and not how far fp8 is from what it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from thunder_ex_te import reference

__all__ = ["TOLERANCES", "opinfos"]

# Hopper's kernels add up fp8 products in fewer bits than float32 has, and in whole only where `split` says so. Where a
# value lies between two of fp8's, scales that differ in their last bit decide for different ones.
TOLERANCES = {
    "te_matmul:float32": (2e-3, 6e-2),
    "te_matmul:float16": (4e-3, 2e-2),
    "te_matmul:bfloat16": (1.6e-2, 2e-2),
    "te_linear:float32": (2e-2, 6e-2),
    "te_linear:float16": (2e-2, 6e-2),
    "te_linear:bfloat16": (2e-2, 6e-2),
}
KINDS = ("e4m3", "e5m2", "e4m3 1x128", "e4m3 128x128")
SHAPES = ((16, 32), (2, 80, 144), (256, 384))


def _quantize(make: Any) -> Iterator[tuple[Any, ...]]:
    for shape in SHAPES:
        for kind in KINDS:
            if kind.endswith("128x128"):
                shape = (512, 1024)  # whose scales are not padded: what is in the padding is anything
            # Scales are powers of two, so that they are the same however they are computed.
            yield make(shape, low=-4, high=4), kind, True, 0.0


def _quantize_reference(x: Any, kind: str, power_2: bool, epsilon: float) -> Any:
    return reference.quantize(x, kind, power_2, epsilon)


def _quantize_scaled(make: Any) -> Iterator[tuple[Any, ...]]:
    for shape in SHAPES:
        for kind in ("e4m3", "e5m2"):
            yield make(shape, low=-500, high=500), kind, _slot(kind)  # beyond what E4M3 has


def _slot(kind: str) -> Any:
    from thunder_ex_te.recipes import Delayed
    from thunder_ex_te.scales import Slot

    return Slot("a sample", {}, kind, Delayed(4, "max", 0, False), None)


def _quantize_scaled_reference(x: Any, kind: str, slot: Any) -> Any:
    return reference.quantize_by_scale(x, kind, torch.ones(1, device=x.device))


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
    from thunder_ex_te.library import kernels

    recipes = kernels().recipes
    return [recipes.Float8CurrentScaling(), recipes.Float8BlockScaling(), recipes.DelayedScaling(amax_history_len=4)]


def _linear(make: Any) -> Iterator[tuple[Any, ...]]:
    for recipe in _recipes():
        for rows, inputs, outputs in (((16,), 16, 16), ((2, 40), 144, 48), ((128,), 256, 144)):
            x, w = make((*rows, inputs), low=-2, high=2), make((outputs, inputs), low=-2, high=2)
            yield x, w, make((outputs,), low=-2, high=2), recipe
            yield x, w, None, recipe


class _Linear(torch.autograd.Function):
    """A linear layer whose three products are of fp8 factors."""

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
    if scheme.delayed is not None:  # in its first step
        return reference.quantize_by_scale(x, how.kind, torch.ones(1, device=x.device))
    return reference.quantize(x, how.kind, how.power_2, how.epsilon)


def _linear_reference(x: Any, w: Any, bias: Any, recipe: Any) -> Any:
    from thunder_ex_te.recipes import scheme_of

    out = _Linear.apply(x, w, scheme_of(recipe))
    return (out if bias is None else out + bias).to(x.dtype)


def _updates(make: Any) -> Iterator[tuple[Any, ...]]:
    slot = _slot("e4m3")
    slot.on(make((1,)).device)
    yield ([slot],)


def _generator(samples: Callable[..., Iterator[tuple[Any, ...]]]) -> Any:
    def generate(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[Any]:
        from thunder.tests.make_tensor import make_tensor
        from thunder.tests.opinfos import SampleInput

        for args in samples(partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)):
            yield SampleInput(*args)

    return generate


def opinfos() -> list[Any]:
    """One for each operator of the executor."""
    from thunder.extend import get_executor
    from thunder.tests.opinfos import OpInfo

    table: dict[str, tuple[Any, Any, bool]] = {
        "te_quantize": (_quantize, _quantize_reference, False),
        "te_quantize_scaled": (_quantize_scaled, _quantize_scaled_reference, False),
        "te_matmul": (_products, reference.multiply, False),
        "te_update_scales": (_updates, lambda slots: None, False),
        "te_linear": (_linear, _linear_reference, True),
    }
    operators = get_executor("te").opmap
    return [
        OpInfo(
            operators[name],
            sample_input_generator=_generator(samples),
            torch_reference=torch_reference,
            supports_grad=None if differentiable else False,
            family="fp8",
        )
        for name, (samples, torch_reference, differentiable) in table.items()
    ]
