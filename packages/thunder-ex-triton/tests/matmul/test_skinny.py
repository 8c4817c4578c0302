# SPDX-License-Identifier: Apache-2.0
"""Products of few rows: values against float64, which programs contain them, what they include, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.extend import TensorProxy
from thunder.toolkit.testing import deterministic_algorithms, measured_times, new_process, repeats
from thunder.transforms import QuantizationTransform
from thunder.transforms.quantization import quantize_float8, quantize_int8
from thunder_ex_triton.matmul import skinny
from thunder_ex_triton.matmul.skinny_kernels import TILES, Tile, parts_of, skinny_product

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently
ON_DEVICE = [torch.float16, torch.float32] if DEVICE == "cpu" else [torch.float16, torch.float32, torch.bfloat16]
TOLERANCES = {torch.float16: 2e-3, torch.float32: 2e-6, torch.bfloat16: 2e-2}
DEFAULT = next(iter(TILES))
NAME = "triton_skinny_linear"


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are computed by the kernels, too."""
    monkeypatch.setattr(skinny, "default_of", lambda product: DEFAULT)


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def weight(rows: int, columns: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return (random(rows, columns, dtype=torch.float32) / columns**0.5).to(dtype)


def calls(jitted: Any) -> list[Any]:
    """The operator's calls, also of those in which the program has no other use for a fusion."""
    return [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name == NAME]


def check(f: Callable[..., Any], *args: Any, products: int = 1, tolerance: float = 2e-3, **options: Any) -> Any:
    """Compare values with float64, and strides with eager. Return the jitted function."""
    jitted = thunder.jit(f, **options)
    found, like = jitted(*args), f(*args)
    expected = f(*[x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args])
    assert (found.shape, found.stride(), found.dtype) == (like.shape, like.stride(), like.dtype)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    assert len(calls(jitted)) == products
    return jitted


# -- kernels ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ON_DEVICE)
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("rows, columns, inner", [(2, 40, 300), (16, 130, 64), (5, 1, 1030)])
def test_kernels(rows: int, columns: int, inner: int, name: str, dtype: torch.dtype) -> None:
    x, w = random(rows, inner, dtype=dtype), weight(columns, inner, dtype)
    bias, residual = random(columns, dtype=dtype), random(rows, columns, dtype=dtype)
    for b in (None, bias):
        for r in (None, residual):
            found = skinny_product(x, w, None, b, r, TILES[name])
            expected = F.linear(x.double(), w.double(), None if b is None else b.double())
            expected = expected if r is None else expected + r.double()
            torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[dtype], atol=2 * TOLERANCES[dtype])


@settings(max_examples=10)
@given(
    rows=st.integers(1, 16), columns=st.integers(1, 70), inner=st.integers(1, 200),
    tile=st.sampled_from([Tile(32, 16, 4), Tile(64, 64, 4)]),
)  # fmt: skip
def test_any_size(rows: int, columns: int, inner: int, tile: Tile) -> None:
    """Small integers are exact in every dtype and order."""
    x = (torch.arange(rows * inner, device=DEVICE).reshape(rows, inner) % 5 - 2).to(HALF)
    w = (torch.arange(columns * inner, device=DEVICE).reshape(columns, inner) % 3 - 1).to(HALF)
    found = skinny_product(x, w, None, None, None, tile)
    torch.testing.assert_close(found.float(), x.float() @ w.float().T, rtol=0, atol=0)


@given(columns=st.integers(1, 1 << 18), inner=st.integers(1, 1 << 16), name=st.sampled_from([*TILES]))
def test_parts(columns: int, inner: int, name: str) -> None:
    """Parts cover the inner dimension, none is empty, and they begin at a step."""
    parts, part = parts_of(columns, inner, TILES[name])
    assert (parts - 1) * part < inner <= parts * part and part % TILES[name].inner == 0 and 1 <= parts <= 32


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_float8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_quantized_weights(quantize: Any, dtype: torch.dtype) -> None:
    """The scales multiply the sum in float32, so results are more precise than those of a rounded weight."""
    numbers, scale = quantize(weight(40, 300, dtype))
    x, bias = random(4, 300, dtype=dtype), random(40, dtype=dtype)
    found = skinny.run(x, numbers, scale, bias, None, DEFAULT)
    expected = F.linear(x.double(), numbers.double() * scale.double(), bias.double())
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[dtype], atol=2 * TOLERANCES[dtype])


def test_values_that_are_not_finite() -> None:
    """They do not spread to other rows and columns through the padding."""
    x, w = random(3, 70), weight(20, 70)
    x[1, 69], w[19, 3] = float("inf"), float("nan")
    found = skinny.run(x, w, None, None, None, DEFAULT)
    assert found[[0, 2]][:, :19].isfinite().all() and found[:, 19].isnan().all() and not found[1].isfinite().any()


def test_repeats() -> None:
    x, w = random(4, 600), weight(24, 600)
    assert parts_of(24, 600, TILES[DEFAULT])[0] == 3
    assert repeats(lambda x: skinny.run(x, w, None, None, None, DEFAULT), x, times=2)


# -- programs ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(2, 72), (16, 72), (2, 3, 72), (8, 1, 72)])
def test_linear(shape: tuple[int, ...], always: None) -> None:
    check(F.linear, random(*shape), weight(24, 72))
    check(F.linear, random(*shape), weight(24, 72), random(24))


def test_matmul_with_a_transposed_weight(always: None) -> None:
    check(lambda x, w: x @ w.T, random(2, 72), weight(24, 72))
    check(lambda x, w: torch.mm(x, w.mT), random(2, 72), weight(24, 72))


def test_strides(always: None) -> None:
    """Rows with gaps are read where they are, other layouts are copied."""
    w = weight(24, 72)
    check(F.linear, random(4, 2, 72)[:, 0], w)
    check(F.linear, random(72, 4).T, w)
    check(F.linear, random(4, 72), random(72, 24).T)
    check(lambda x, w, r: F.linear(x, w) + r, random(4, 72), w, random(24, 4).T, products=1)


@pytest.mark.parametrize(
    "x, w",
    [
        (random(17, 72), weight(24, 72)),
        (random(0, 72), weight(24, 72)),
        (random(4, 72), weight(0, 72)),
        (random(4, 72, dtype=torch.float64), weight(24, 72, torch.float64)),
    ],
)
def test_products_of_torch(x: torch.Tensor, w: torch.Tensor, always: None) -> None:
    check(F.linear, x, w, products=0)


def test_without_the_option(always: None) -> None:
    check(F.linear, random(4, 72), weight(24, 72), products=0, triton_skinny=False)
    check(F.linear, random(4, 72), weight(24, 72), products=0, executors=["torch"])


def test_residual_connections(always: None) -> None:
    """An addition is included if it alone reads the product, and the product is rounded before."""

    def residual(x: Any, w: Any, r: Any) -> Any:
        return r + F.linear(x, w)

    x, w, r = random(4, 72), weight(24, 72), random(4, 24)
    (call,) = calls(check(residual, x, w, r))
    assert call.args[4].name == "r"
    jitted = check(lambda x, w, r: F.linear(x, w) + F.linear(x, w * 2) + r, x, w, r, products=2)
    assert sorted(op.args[4] is not None for op in calls(jitted)) == [False, True]
    for f in (
        lambda x, w, r: (F.linear(x, w) + r) * F.linear(x, w),
        lambda x, w, r: F.linear(x, w) + r[0],
        lambda x, w, r: F.linear(x, w) + r.float(),
    ):
        (call,) = calls(check(f, x, w, r))
        assert call.args[4] is None
    products = [F.linear(x, w), skinny.run(x, w, None, None, None, DEFAULT)]
    if torch.equal(*products):  # the interpreter adds exactly enough
        assert torch.equal(thunder.jit(residual)(x, w, r), residual(x, w, r))


def test_a_product_of_a_product(always: None) -> None:
    def mlp(x: Any, up: Any, down: Any) -> Any:
        return x + F.linear(F.linear(x, up), down)

    check(mlp, random(4, 72), weight(24, 72), weight(72, 24), products=2)


def test_gradients(always: None) -> None:
    """Forward is computed by the kernels, and torch computes the gradients."""
    x, w = random(4, 72).requires_grad_(), weight(24, 72).requires_grad_()
    jitted = thunder.jit(F.linear)
    found = torch.autograd.grad(jitted(x, w).cos().sum(), (x, w))
    assert calls(jitted)
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    for mine, right in zip(found, torch.autograd.grad(F.linear(*exact).cos().sum(), exact)):
        torch.testing.assert_close(mine.double(), right, rtol=5e-3, atol=5e-3)


class Mlp(nn.Module):
    """Two layers with a residual connection."""

    def __init__(self, width: int = 64, hidden: int = 96):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(x)))


@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_quantization(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule takes products with large quantized weights, which then are never dequantized in memory."""
    torch.manual_seed(0)
    model = Mlp().to(DEVICE, HALF).requires_grad_(False)
    x = random(4, 64)
    small = thunder.jit(model, transforms=[QuantizationTransform(kind)])
    expected = small(x)
    assert not calls(small)
    monkeypatch.setattr(skinny, "FEWEST_ELEMENTS", 64 * 96)
    jitted = thunder.jit(model, transforms=[QuantizationTransform(kind)])
    torch.testing.assert_close(jitted(x), expected, rtol=5e-3, atol=5e-3)
    assert [(op.args[1].name[-len(kind) :], op.args[4] is not None) for op in calls(jitted)] == [
        (kind, False), (kind, True)
    ]  # fmt: skip
    assert all(p.shape != (96, 64) for op in thunder.last_traces(jitted)[-1].bound_symbols for p in op.flat_outs
               if isinstance(p, TensorProxy) and op.sym.name not in ("unpack_trivial",))  # fmt: skip


# -- the choice -------------------------------------------------------------------------------------------------------
@pytest.fixture
def times() -> Iterator[dict[str, float]]:
    """A clock in which a tiling is the fastest."""
    found = dict.fromkeys([*TILES, "torch"], 2.0)
    found["64x128"] = 1.0
    with measured_times(found):
        yield found


def test_the_rule_of_other_weights() -> None:
    """Without measurements, torch computes products of weights that are not quantized."""
    check(F.linear, random(4, 72), weight(24, 72), products=0)


@pytest.mark.skipif(DEVICE == "cuda", reason="of the interpreter")
def test_the_interpreter_has_no_products_in_bfloat16(always: None) -> None:
    x, w = random(4, 72, dtype=torch.bfloat16), weight(24, 72, torch.bfloat16)
    check(F.linear, x, w, products=0, tolerance=3e-2)


def test_measurements_decide(times: dict[str, float]) -> None:
    (call,) = calls(check(F.linear, random(4, 72), weight(24, 72), measured="first call"))
    assert call.args[5] == "64x128"
    (choice,) = thunder.examine.choices(check(F.linear, random(4, 72), weight(24, 72), measured=True))
    assert (choice.operation, choice.default, choice.chosen) == ("matmul of few rows", "torch", "64x128")
    with deterministic_algorithms():
        check(F.linear, random(4, 72), weight(24, 72), measured=True, products=0)
    times["torch"] = 0.5
    new_process()
    check(F.linear, random(8, 72), weight(24, 72), measured="first call", products=0)
