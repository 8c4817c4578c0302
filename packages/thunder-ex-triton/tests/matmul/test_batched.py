# SPDX-License-Identifier: Apache-2.0
"""Batched products of small matrices: values against float64, layouts, which programs contain them, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thunder
from thunder.toolkit.testing import deterministic_algorithms, measured_times, new_process, repeats
from thunder_ex_triton.matmul import batched
from thunder_ex_triton.matmul.batched_kernels import TILES, Tile, batched_product

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently
ON_DEVICE = [torch.float16, torch.float32] if DEVICE == "cpu" else [torch.float16, torch.float32, torch.bfloat16]
TOLERANCES = {torch.float16: 1e-3, torch.float32: 2e-6, torch.bfloat16: 8e-3}
CHOSEN = "64x64x32"
NAME = "triton_batched_matmul"


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products that the kernel supports are computed by it, however few matrices there are."""
    monkeypatch.setattr(batched, "default_of", lambda product: CHOSEN)
    monkeypatch.setattr(batched, "FEWEST_MATRICES", 1)


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.rand(shape, generator=generator) * 2 - 1).to(DEVICE, dtype)


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, scale: float = 1) -> None:
    tolerance = TOLERANCES[dtype] * scale
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def calls(trace: Any) -> list[Any]:
    return [op for op in trace.bound_symbols if op.sym.name == NAME]


def check(f: Callable[..., Any], *args: torch.Tensor, products: int = 1, **options: Any) -> Any:
    """Compare values with float64, and strides with eager. Return the jitted function."""
    jitted = thunder.jit(f, **options)
    found, like = jitted(*args), f(*args)
    assert (found.shape, found.stride(), found.dtype) == (like.shape, like.stride(), like.dtype)
    assert_close(found, f(*[x.double() for x in args]), HALF, 4)
    assert len(calls(thunder.last_traces(jitted)[-1])) == products
    return jitted


# -- the kernel -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ON_DEVICE)
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("rows, columns, inner", [(49, 40, 32), (67, 5, 130)])
def test_tilings(rows: int, columns: int, inner: int, name: str, dtype: torch.dtype) -> None:
    a, b = random(2, rows, inner, dtype=dtype), random(2, inner, columns, dtype=dtype)
    for x in (a, a.mT.contiguous().mT):
        for y in (b, b.mT.contiguous().mT):
            found = batched_product(x, y, TILES[name])
            assert found.is_contiguous() and found.dtype is dtype
            assert_close(found, a.double() @ b.double(), dtype, 4)


@st.composite
def operands(draw: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Batches that broadcast, of matrices with any order of dimensions and gaps; empty ones, too."""
    count = draw(st.integers(1, 3))
    batch = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    sizes = [draw(st.integers(0, 20)) for _ in range(3)]
    found = []
    for matrix in ((sizes[0], sizes[1]), (sizes[1], sizes[2])):
        own = [1 if draw(st.booleans()) else n for n in batch[draw(st.integers(0, count - 1)) :]]
        shape = (*own, *matrix)
        order = draw(st.permutations(range(len(shape))))
        gap, first = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        stored = [shape[i] for i in order]
        numbers = torch.arange(2 * torch.Size(stored).numel() + 2, device=DEVICE) % 5 - 2
        x = numbers.to(HALF)[first : first + gap * torch.Size(stored).numel() : gap].reshape(stored)
        if gap > 1:  # `reshape` of numbers with gaps is a view for which every stride is doubled
            assert x.numel() < 2 or min(x.stride()) > 1
        x = x.permute([order.index(i) for i in range(len(shape))])
        found.append(x.expand(*batch, *matrix) if draw(st.booleans()) else x)
    return found[0], found[1]


@given(operands=operands(), tile=st.sampled_from([Tile(16, 16, 16, 2), Tile(16, 32, 32, 4)]))
def test_any_layout(operands: tuple[torch.Tensor, torch.Tensor], tile: Tile) -> None:
    """Small integers are exact in every dtype and order."""
    a, b = operands
    found = batched_product(a, b, tile)
    torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=0, atol=0)
    assert found.is_contiguous()


def test_values_that_are_not_finite() -> None:
    """They do not spread to other rows, columns and matrices through the padding."""
    a, b = random(3, 20, 37), random(3, 37, 21)
    a[1, 19, 36], b[1, 3, 20] = float("inf"), float("nan")
    found = batched_product(a, b, TILES["32x32x32"])
    assert found[[0, 2]].isfinite().all() and found[1, :19, :20].isfinite().all()
    assert not found[1, 19].isfinite().any() and found[1, :, 20].isnan().all()


def test_repeats() -> None:
    a, b = random(3, 20, 70), random(3, 70, 21)
    assert repeats(lambda a: batched_product(a, b, TILES["32x32x32"]), a, times=2)


# -- programs ---------------------------------------------------------------------------------------------------------
def test_products(always: None) -> None:
    a, b = random(3, 17, 33), random(3, 33, 9)
    check(torch.bmm, a, b)
    check(torch.matmul, a, b)
    check(lambda a, b: torch.bmm(a, mat2=b), a, b)
    check(lambda a, b: (b.mT @ a.mT) * 2, a, b)
    check(lambda a, b: a.unsqueeze(1) @ b, random(2, 4, 8), random(3, 8, 5))
    check(torch.matmul, random(2, 1, 2, 3, 8), random(1, 3, 2, 8, 5))


def test_operands_are_not_copied(always: None) -> None:
    """The kernel reads the heads of a projection, transposed keys and broadcast weights where they are."""
    qkv = random(2, 9, 3, 4, 8)

    def scores(qkv: Any) -> Any:
        q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q @ k.mT

    def merged(a: Any, b: Any) -> Any:
        return torch.bmm(a.transpose(1, 2).reshape(6, 4, 8), b.expand(2, 3, 8, 5).reshape(6, 8, 5))

    jitted = check(scores, qkv)
    assert all(op.sym.name != "reshape" for op in thunder.last_traces(jitted)[-1].bound_symbols)
    (call,) = calls(thunder.last_traces(check(merged, random(2, 4, 3, 8), random(3, 8, 5)))[-1])
    assert [tuple(p.shape) for p in call.args[:2]] == [(2, 3, 4, 8), (2, 3, 8, 5)]


def test_reshapes_of_other_dimensions(always: None) -> None:
    """Operands that broadcast after reshapes are read after them."""
    check(lambda a, b: a.reshape(2, 1, 4, 8) @ b, random(1, 2, 4, 8), random(1, 2, 8, 5))
    check(lambda a, b: a.reshape(6, 4, 8) @ b.reshape(6, 8, 5), random(2, 3, 4, 8), random(3, 2, 8, 5))
    check(lambda a, b: a.reshape(3, 2, 4, 8) @ b.reshape(3, 2, 8, 5), random(2, 3, 4, 8), random(2, 3, 8, 5))
    check(lambda a, b: a.reshape(2, 8, 4) @ b, random(2, 4, 8), random(2, 4, 5))
    check(lambda a, b: a.mT.reshape(6, 4, 8).mT @ b.reshape(6, 4, 5), random(2, 3, 8, 4), random(2, 3, 4, 5))


@pytest.mark.parametrize(
    "a, b",
    [
        (random(3, 4, 8), random(8, 5)),
        (random(4, 8), random(3, 8, 5)),
        (random(3, 4, 8), random(8)),
        (random(0, 4, 8), random(0, 8, 5)),
        (random(3, 4, 0), random(3, 0, 5)),
        (random(1, 1, 2, 2, 4, 8), random(1, 1, 2, 2, 8, 5)),
        (random(2, 4, batched.LARGEST + 1), random(2, batched.LARGEST + 1, 5)),
        (random(2, 4, 8, dtype=torch.float64), random(2, 8, 5, dtype=torch.float64)),
    ],
)
def test_products_of_torch(a: torch.Tensor, b: torch.Tensor, always: None) -> None:
    check(torch.matmul, a, b, products=0)


def test_without_the_option(always: None) -> None:
    a, b = random(3, 17, 33), random(3, 33, 9)
    check(torch.bmm, a, b, products=0, triton_batched=False)
    check(torch.bmm, a, b, products=0, executors=["torch"])


def test_gradients(always: None) -> None:
    """The kernel computes the gradients of products, too, and reads permuted operands where they are."""

    def scored(q: Any, k: Any, v: Any) -> Any:  # by no softmax, because that would be attention
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return (q @ k.mT * 0.1).sigmoid() @ v

    args = [random(2, 9, 3, 8).add(i).requires_grad_() for i in range(3)]
    jitted = thunder.jit(scored, cuda_graphs="never")
    found = torch.autograd.grad(jitted(*args).cos().sum(), args)
    exact = [x.detach().double().requires_grad_() for x in args]
    for mine, right in zip(found, torch.autograd.grad(scored(*exact).cos().sum(), exact)):
        assert_close(mine, right, HALF, 10)
    backward = calls(thunder.last_backward_traces(jitted)[-1])
    assert len(calls(thunder.last_traces(jitted)[-1])) == 2 and len(backward) == 4
    assert all(p.shape[:2] == (2, 3) for op in backward for p in op.args[:2])  # before reshapes to six matrices


def test_gradients_of_broadcast_operands(always: None) -> None:
    a, b = random(2, 3, 5, 8).requires_grad_(), random(3, 8, 7).requires_grad_()
    jitted = thunder.jit(torch.matmul)
    found = torch.autograd.grad(jitted(a, b).cos().sum(), (a, b))
    exact = [x.detach().double().requires_grad_() for x in (a, b)]
    for mine, right in zip(found, torch.autograd.grad(torch.matmul(*exact).cos().sum(), exact)):
        assert_close(mine, right, HALF, 10)
    assert len(calls(thunder.last_backward_traces(jitted)[-1])) == 2


# -- the choice -------------------------------------------------------------------------------------------------------
@pytest.fixture
def times() -> Iterator[dict[str, float]]:
    """A clock in which a tiling is the fastest."""
    found = dict.fromkeys([*TILES, "torch", "padded"], 2.0)
    found["64x32x64"] = 1.0
    with measured_times(found):
        yield found


@pytest.mark.parametrize(
    "sizes, tiling",
    [
        ((16, 16, 16), "16x16x16"),
        ((1, 64, 64), "16x64x64"),
        ((49, 49, 32), "64x64x32"),  # windows
        ((49, 32, 49), "64x32x64"),
        ((64, 64, 64), "64x64x64"),
        ((49, 49, 49), None),
        ((64, 16, 64), None),
        ((1, 197, 64), None),
        ((77, 77, 64), "64x32x64"),  # tokens whose rows begin anywhere
        ((77, 64, 77), "64x64x32"),
        ((197, 197, 64), "64x64x32"),
        ((197, 64, 197), "64x64x64"),
        ((100, 32, 100), "64x32x64"),
        ((500, 64, 500), "64x64x32"),
        ((200, 200, 64), None),
        ((200, 64, 200), None),
        ((513, 513, 64), None),
        ((128, 128, 64), "128x64x64"),
        ((128, 64, 128), "128x64x64"),
        ((128, 128, 128), None),
        ((63, 67, 65), None),
        ((512, 512, 64), None),
        ((1, 256, 256), None),
        ((255, 255, 255), None),
    ],
)
def test_the_rule(sizes: tuple[int, int, int], tiling: str | None) -> None:
    assert batched.tiling_of(*sizes) == tiling


def test_the_rule_in_programs() -> None:
    """Many small matrices in half precision are computed by the kernel, few of them and float32 by cuBLAS."""
    a, b = random(96, 16, 16), random(96, 16, 16)
    (call,) = calls(thunder.last_traces(check(torch.bmm, a, b))[-1])
    assert call.args[2] == "16x16x16"
    check(torch.bmm, a[:95], b[:95], products=0)
    check(torch.bmm, a.float(), b.float(), products=0)
    check(torch.bmm, random(96, 9, 9), random(96, 9, 9), products=0)


def test_few_and_large_matrices_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "default_of", lambda product: CHOSEN)
    check(torch.bmm, random(7, 4, 8), random(7, 8, 5), products=0)
    check(torch.bmm, random(8, 4, 8), random(8, 8, 5), products=1)


@pytest.mark.skipif(DEVICE == "cuda", reason="a limit of the interpreter, which multiplies the bits of bfloat16")
def test_the_interpreter_has_no_products_in_bfloat16(always: None) -> None:
    a, b = random(3, 4, 8, dtype=torch.bfloat16), random(3, 8, 5, dtype=torch.bfloat16)
    jitted = thunder.jit(torch.bmm)
    torch.testing.assert_close(jitted(a, b), torch.bmm(a, b))
    assert not calls(thunder.last_traces(jitted)[-1])


def test_measurements_decide(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "FEWEST_MATRICES", 1)
    a, b = random(1, 9, 16), random(1, 9, 16)

    def scores(a: Any, b: Any) -> Any:
        return a @ b.mT

    (call,) = calls(thunder.last_traces(check(scores, a, b, measured="first call"))[-1])
    assert call.args[2] == "64x32x64"
    (choice,) = thunder.examine.choices(check(scores, a, b, measured=True))
    assert (choice.operation, choice.chosen) == ("matmul of small matrices", "64x32x64")
    with deterministic_algorithms():
        check(scores, a, b, measured=True, products=0)
    times["torch"] = 0.5
    new_process()
    check(scores, random(2, 9, 16), random(2, 9, 16), measured="first call", products=0)
