# SPDX-License-Identifier: Apache-2.0
"""Products of a matrix and a single row: which kernels compute them, and their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.transforms import QuantizationTransform
from thunder_ex_triton.matmul import matvec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently
WIDTH = 272  # not a power of two


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of few elements, because the interpreter is slow."""
    monkeypatch.setattr(matvec, "FEWEST_COLUMNS", 2)


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def weight(rows: int, columns: int) -> torch.Tensor:
    return random(rows, columns) / columns**0.5


def fusions(jitted: Any) -> list[list[str]]:
    """The operations of each fusion with a product."""
    found = [
        [part.sym.name for part in op.subsymbols]
        for op in thunder.last_traces(jitted)[-1].bound_symbols
        if op.sym.is_fusion
    ]
    return [names for names in found if "triton_matvec" in names]


def check(f: Any, *args: Any, products: int = 1, **options: Any) -> Any:
    """Compare with float64, and count the kernels with products. Return the jitted function."""
    jitted = thunder.jit(f, **options)
    found, like = jitted(*args), f(*args)
    expected = f(*[x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args])
    strides = [[s for n, s in zip(x.shape, x.stride()) if n > 1] for x in (found, like)]
    assert (found.shape, strides[0], found.dtype) == (like.shape, strides[1], like.dtype)
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)
    assert len(fusions(jitted)) == products
    return jitted


@pytest.mark.parametrize("shape", [(WIDTH,), (1, WIDTH), (1, 1, WIDTH)])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_linear(shape: tuple[int, ...], rows: int) -> None:
    check(F.linear, random(*shape), weight(rows, WIDTH))
    check(F.linear, random(*shape), weight(rows, WIDTH), random(rows))


def test_matmul_with_a_transposed_weight() -> None:
    check(lambda x, w: x @ w.T, random(1, WIDTH), weight(5, WIDTH))
    check(lambda x, w: torch.mm(x, w.mT), random(1, WIDTH), weight(5, WIDTH))


@pytest.mark.parametrize(
    "x, w",
    [
        (random(2, WIDTH), weight(5, WIDTH)),  # two rows
        (random(0, WIDTH), weight(5, WIDTH)),
        (random(1, WIDTH), weight(0, WIDTH)),
        (random(1, WIDTH, dtype=torch.float32), weight(5, WIDTH).float()),
    ],
)
def test_products_of_torch(x: torch.Tensor, w: torch.Tensor) -> None:
    check(F.linear, x, w, products=0)


def test_rows_of_the_weight_that_are_not_contiguous() -> None:
    check(lambda x, w: x @ w, random(1, WIDTH), weight(WIDTH, 5), products=0)
    check(F.linear, random(1, WIDTH), weight(WIDTH, 6).T)  # the program does not show the strides
    check(F.linear, random(1, WIDTH), weight(9, 2 * WIDTH)[::2, 1::2])


def test_option() -> None:
    check(F.linear, random(1, WIDTH), weight(5, WIDTH), products=0, triton_matvec=False)


def test_values_that_are_not_finite() -> None:
    x, w = random(1, WIDTH), weight(6, WIDTH)
    w[1, 3], w[2, 4], w[3, 5] = torch.inf, torch.nan, -torch.inf
    torch.testing.assert_close(thunder.jit(F.linear)(x, w), F.linear(x, w), equal_nan=True, rtol=2e-3, atol=2e-3)
    x[0, 0] = torch.inf
    torch.testing.assert_close(thunder.jit(F.linear)(x, w), F.linear(x, w), equal_nan=True, rtol=2e-3, atol=2e-3)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, w.shape, w, 1e-5)


def test_norm_swiglu_and_residual() -> None:
    def mlp(h: Any, norm: Any, gate: Any, up: Any, down: Any) -> Any:
        x = rms_norm(h, norm)
        return h + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    hidden = 48
    args = random(1, 1, WIDTH), random(WIDTH), weight(hidden, WIDTH), weight(hidden, WIDTH), weight(WIDTH, hidden)
    first, second = fusions(check(mlp, *args, products=2))
    assert first.count("triton_matvec") == 2 and first[-1] == "mul" and "rms_norm" in first
    assert second == ["triton_matvec", "add"]


def test_square_layers() -> None:
    """A norm of a result needs all its elements, so it is in the next kernel, although the sizes are equal."""

    def f(h: Any, norm: Any, a: Any, b: Any) -> Any:
        h = h + F.linear(F.layer_norm(h, norm.shape, norm), a)
        return h + F.linear(F.layer_norm(h, norm.shape, norm), b)

    args = random(1, WIDTH), random(WIDTH), weight(WIDTH, WIDTH), weight(WIDTH, WIDTH)
    first, second = fusions(check(f, *args, products=2))
    assert first[-1] == "add" and second[-1] == "add" and "layer_norm" in second


def test_chains() -> None:
    def f(x: Any, a: Any, b: Any) -> Any:
        return F.linear(F.linear(x, a).relu(), b).softmax(-1)

    check(f, random(1, WIDTH), weight(WIDTH, WIDTH), weight(WIDTH, WIDTH), products=2)


def test_rotation_of_a_result() -> None:
    """Elements of the result are read by others than those at their place."""

    def f(x: Any, w: Any) -> Any:
        y = F.linear(x, w).view(1, 1, -1, 8).transpose(1, 2)
        return torch.cat((-y[..., 4:], y[..., :4]), -1) * 2 + y

    check(f, random(1, 1, WIDTH), weight(32, WIDTH))


def test_an_input_of_products_of_several_sizes() -> None:
    def f(h: Any, norm: Any, q: Any, k: Any, v: Any) -> Any:
        x = rms_norm(h, norm)
        return torch.cat((F.linear(x, q), F.linear(x, k), F.linear(x, v)), -1)

    check(f, random(1, WIDTH), random(WIDTH), weight(WIDTH, WIDTH), weight(8, WIDTH), weight(8, WIDTH), products=2)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_quantized_weights(kind: str, rows: int) -> None:
    """The kernels read the eight-bit numbers."""
    model = nn.Sequential(nn.Linear(WIDTH, 24), nn.SiLU(), nn.Linear(24, 5, bias=False)).to(DEVICE, HALF)
    model.requires_grad_(False)
    jitted = thunder.jit(model, transforms=[QuantizationTransform(kind)])
    x = random(rows, WIDTH)
    found = jitted(x)
    layers = [jitted.get_submodule(name) for name in "02"]
    first, second = (getattr(m, f"weight_{kind}").double() * m.weight_scale.double() for m in layers)
    expected = F.linear(F.silu(F.linear(x.double(), first, model[0].bias.double())), second)
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)
    assert len(fusions(jitted)) == (2 if rows == 1 else 0)
    assert all({"to", "mul"}.isdisjoint(names) for names in fusions(jitted))  # scales multiply sums


def test_gradients_of_a_single_row() -> None:
    x, w = random(1, WIDTH).requires_grad_(), weight(5, WIDTH).requires_grad_()
    found = torch.autograd.grad(thunder.jit(F.linear)(x, w).sum(), (x, w))
    for mine, expected in zip(found, torch.autograd.grad(F.linear(x, w).sum(), (x, w))):
        torch.testing.assert_close(mine, expected, rtol=2e-3, atol=2e-3)


def test_the_operator_alone() -> None:
    x, w = random(1, WIDTH), weight(5, WIDTH)
    torch.testing.assert_close(matvec.run(w, x), F.linear(x, w))
