# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy against torch in double precision: every argument, layout and dtype, forward and backward."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder.executors.triton_crossentropy import triton_ex
from thunder_ex_triton.cross_entropy import kernels
from thunder_ex_triton.cross_entropy.operators import LossBackward, LossForward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
SHAPES = (
    ((4, 5), (4,)),
    ((7,), ()),
    ((2, 5, 3), (2, 3)),
    ((2, 4, 3, 2), (2, 3, 2)),
    ((3, 1030), (3,)),
    ((2, 4099), (2,)),
    ((5, 1), (5,)),
)


def exact(x: Any) -> Any:
    """The same in double precision."""
    return x.detach().double().requires_grad_(x.requires_grad) if x is not None and x.is_floating_point() else x


def check(x: Any, target: Any, weight: Any = None, *, through: Any = lambda x: x, **how: Any) -> None:
    """Loss and gradients are those of torch in double precision, and the executor took the operation."""
    jitted = thunder.jit(lambda x, t, w: F.cross_entropy(through(x), t, w, **how), executors=[triton_ex])
    x, target, weight = (
        None if a is None else a.to(DEVICE).detach().requires_grad_(a.requires_grad) for a in (x, target, weight)
    )
    wide = [exact(a) for a in (x, target, weight)]
    expected = F.cross_entropy(through(wide[0]), *wide[1:], **how)
    found = jitted(x, target, weight)
    assert "triton_crossentropy" in str(thunder.last_traces(jitted)[-1])
    tolerance = TOLERANCES[x.dtype]
    compare: Any = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    assert found.dtype is x.dtype and found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, **compare)
    g = torch.linspace(-1, 2, max(expected.numel(), 1), dtype=x.dtype, device=DEVICE).reshape(expected.shape)
    inputs = [(a, b) for a, b in zip((x, target), wide) if a.requires_grad]
    gradients = torch.autograd.grad(found, [a for a, _ in inputs], g)
    if x.ndim == 1 and DEVICE == "cuda" and target.eq(how.get("ignore_index", -100)).all():
        assert not any(mine.any() for mine in gradients)  # torch's are NaN there, and on the CPU zero
        return
    for mine, right in zip(gradients, torch.autograd.grad(expected, [b for _, b in inputs], g.double())):
        torch.testing.assert_close(mine.double(), right, **compare)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random logits."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def labels_of(rows: tuple[int, ...], classes: int) -> torch.Tensor:
    """Class numbers."""
    return (torch.arange(max(torch.Size(rows).numel(), 1)) * 3 % classes).reshape(rows)


CASES = list(itertools.product(("mean", "sum", "none"), (0.0, 0.2), (False, True), (-100, 0)))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("shape", "rows"), SHAPES)
def test_class_numbers(shape: tuple[int, ...], rows: tuple[int, ...], dtype: torch.dtype) -> None:
    """Every reduction, smoothing, weights, ignored rows (all rows where there is one class)."""
    classes = shape[0] if len(shape) == 1 else shape[1]
    # Every case in double precision; in the others those that differ in what the kernels are compiled for.
    for reduction, smoothing, weighted, ignore_index in CASES if dtype is torch.float64 else CASES[::5]:
        weight = torch.linspace(0.1, 2, classes).to(dtype) if weighted else None
        how = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": smoothing}
        check(random(shape, dtype), labels_of(rows, classes), weight, **how)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [shape for shape, _ in SHAPES if len(shape) < 4])
def test_class_probabilities(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """With gradients of logits and of probabilities."""
    classes = shape[0] if len(shape) == 1 else shape[1]
    for reduction, smoothing, weighted, _ in CASES[::2] if dtype is torch.float64 else CASES[::6]:
        weight = torch.linspace(0.1, 2, classes).to(dtype) if weighted else None
        target = random(shape, dtype, seed=1).detach().abs().requires_grad_(smoothing > 0)
        check(random(shape, dtype), target, weight, reduction=reduction, label_smoothing=smoothing)


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT, "every second row": lambda x: x.repeat_interleave(2, 0)[::2],
    "every second class": lambda x: x.repeat_interleave(2, 1)[:, ::2], "one row for all": lambda x: x[:1].expand(6, -1),
    "a part": lambda x: torch.nn.functional.pad(x, (3, 2))[:, 3:-2],
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    """Rows and classes may lie anywhere."""
    for reduction in ("mean", "none"):
        check(random((6, 9), torch.float32), labels_of((6,), 9), through=LAYOUTS[name], reduction=reduction)
        images = random((2, 9, 4, 3), torch.float32)
        check(images, labels_of((2, 4, 3), 9), through=lambda x: x.contiguous(memory_format=torch.channels_last))
        check(images, labels_of((2, 3, 4), 9), through=lambda x: x.transpose(2, 3), reduction=reduction)


FEW = list(itertools.product(("mean", "none"), (0.0, 0.1), (False, True)))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("classes", [24, 150, 151])
def test_images(classes: int, channels_last: bool) -> None:
    """Few classes in the second dimension, in either layout, with ignored pixels of any values, and vectors or not."""
    x = random((2, classes, 6, 10), torch.float32).detach()
    t = labels_of((2, 6, 10), classes)
    t[:, 2] = -100
    x[:, :, 2] = float("nan")
    memory = torch.channels_last if channels_last else torch.contiguous_format
    for reduction, smoothing, weighted in FEW:
        weight = torch.linspace(0.1, 2, classes) if weighted else None
        given = x.contiguous(memory_format=memory).requires_grad_()
        jitted = thunder.jit(F.cross_entropy, executors=[triton_ex])
        how: Any = {"reduction": reduction, "label_smoothing": smoothing}
        found = jitted(given.to(DEVICE), t.to(DEVICE), None if weight is None else weight.to(DEVICE), **how).cpu()
        wide = x.nan_to_num(0.0).double().requires_grad_()
        right = F.cross_entropy(wide, t, exact(weight), **how)
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
        g = torch.linspace(-1, 2, right.numel()).reshape(right.shape)
        (mine,) = torch.autograd.grad(found, given, g)
        assert mine.stride() == given.stride()
        torch.testing.assert_close(mine.double(), torch.autograd.grad(right, wide, g.double())[0], rtol=1e-5, atol=1e-5)


def test_tiles() -> None:
    """Tiles of few classes are long where the logits are contiguous. Vectors are as long as strides allow."""
    images = torch.empty(4, 150, 64, 512, dtype=torch.bfloat16, device="meta")
    rows = kernels.Rows.of(images)
    (joined,) = kernels.joined(rows)
    assert rows.by_row and joined.inner == rows.inner and kernels.unit(joined) == 8
    assert kernels.tile(joined, kernels.Limits(16384, 4096, 16, lanes=16), 8) == (1, 128, 64)
    last = kernels.Rows.of(images.contiguous(memory_format=torch.channels_last))
    (joined,) = kernels.joined(last)
    assert not last.by_row and joined.inner == last.number and kernels.unit(joined) == 2
    parts, count, block = kernels.tile(joined, kernels.Limits(16384, 4096, 16, lanes=16), 2)
    assert (parts, count, block) == (5, 32, 32)
    assert kernels.unit(last, rows) == 1 and kernels.joined(last, rows) == [last, rows]
    few = kernels.Rows.of(torch.empty(20, 150, dtype=torch.bfloat16, device="meta"))
    assert kernels.tile(few, kernels.Limits(16384, 4096, 16, lanes=16), 2)[1] == 8  # not all rows in one program
    long = kernels.Rows.of(torch.empty(8, 50257, dtype=torch.bfloat16, device="meta"))
    assert kernels.tile(long, kernels.Limits(16384, 4096, 16, lanes=16), 1) == (1, 1, 2048)


@pytest.mark.parametrize("classes", [5, 37, 1030, 4099])
@pytest.mark.parametrize("gaps", [False, True])
def test_gradient_in_padded_memory(classes: int, gaps: bool) -> None:
    """The gradient has its bits, and the padding is zero. Gaps between the rows of the logits are not read."""
    columns = -(-classes // 16) * 16
    memory = torch.full((3, columns), float("nan"), dtype=torch.float16, device=DEVICE)
    x = random((3, classes), torch.float16).detach().to(DEVICE)
    memory[:, :classes] = x
    t = torch.tensor([0, -100, classes - 1], device=DEVICE)
    g = torch.tensor(2.0, device=DEVICE)
    loss, lse, total = LossForward.run(memory[:, :classes] if gaps else x, t, None, -100, "mean", 0.1)
    for mine, right in zip((loss, lse, total), LossForward.run(x, t, None, -100, "mean", 0.1)):
        torch.testing.assert_close(mine, right)
    how = (t, lse, total, None, -100, "mean", 0.1)
    found = LossBackward.run(g, memory[:, :classes] if gaps else x, *how, columns)
    assert found.shape == (3, columns) and found.is_contiguous() and not found[:, classes:].any()
    assert torch.equal(found[:, :classes], LossBackward.run(g, x, *how))


def test_special_values() -> None:
    """Infinities and NaN come out as torch's; masked classes get no gradient."""
    x = random((5, 6), torch.float32).detach()
    x[0, 2] = float("-inf")
    x[1, 3] = float("inf")
    x[2] = float("-inf")
    x[3, 0] = float("nan")
    for reduction in ("none", "sum"):
        check(x.clone().requires_grad_(), torch.tensor([0, 0, 1, 2, 5]), reduction=reduction)
    check(x[:1].clone().requires_grad_(), torch.tensor([2]), reduction="none")
    large = (random((4, 6), torch.float32).detach() * 3e4).requires_grad_()
    check(large, labels_of((4,), 6))


def test_targets_that_are_no_class() -> None:
    """Are an error, and nothing is read there."""
    f = thunder.jit(lambda x, t: F.cross_entropy(x, t, reduction="sum"), executors=[triton_ex])
    x = torch.randn(3, 4, device=DEVICE)
    if DEVICE == "cpu":
        for wrong in (4, -1, 1 << 40):
            with pytest.raises(IndexError, match="it must be ignore_index or one of the 4 classes"):
                f(x, torch.tensor([0, wrong, 1]))
    torch.testing.assert_close(
        f(x, torch.tensor([0, -100, 1], device=DEVICE)),
        F.cross_entropy(x[::2], torch.tensor([0, 1], device=DEVICE), reduction="sum"),
    )


@settings(max_examples=12)
@given(
    rows=st.integers(1, 9), classes=st.integers(1, 70), inner=st.integers(0, 3), smoothing=st.sampled_from([0.0, 0.1]),
    reduction=st.sampled_from(["mean", "sum", "none"]), dtype=st.sampled_from(list(TOLERANCES)),
    data=st.data(),
)  # fmt: skip
def test_any_size(
    rows: int, classes: int, inner: int, smoothing: float, reduction: str, dtype: torch.dtype, data: Any
) -> None:
    """Whatever the sizes and the labels."""
    shape = (rows, classes, inner) if inner else (rows, classes)
    where = (rows, inner) if inner else (rows,)
    count = torch.Size(where).numel()
    numbers = data.draw(st.lists(st.sampled_from([-7, *range(classes)]), min_size=count, max_size=count))
    how = {"reduction": reduction, "ignore_index": -7, "label_smoothing": smoothing}
    check(random(shape, dtype), torch.tensor(numbers).reshape(where), **how)


def test_what_is_saved_and_read() -> None:
    """Backward has one number a row besides the logits; no tensor of probabilities is made."""
    f = thunder.jit(F.cross_entropy, executors=[triton_ex])
    x = random((8, 33), torch.float32).detach().to(DEVICE).requires_grad_()
    f(x, labels_of((8,), 33).to(DEVICE)).backward()
    for trace, made in ((thunder.last_traces(f)[-1], 0), (thunder.last_backward_traces(f)[-1], 1)):
        given = {p.name for p in trace.args}
        outputs = {p.name: p for op in trace.bound_symbols for p in op.flat_outs if p.name not in given}
        assert sum(getattr(p, "shape", ()) == (8, 33) for p in outputs.values()) == made
    assert x.grad is not None


def test_what_is_not_taken() -> None:
    """Says why, and torch runs it."""
    f = thunder.jit(F.cross_entropy, executors=[triton_ex])
    x = torch.randn(0, 4, device=DEVICE)
    torch.testing.assert_close(
        f(x, torch.zeros(0, dtype=torch.long, device=DEVICE)), torch.tensor(float("nan"), device=DEVICE), equal_nan=True
    )
    assert "triton" not in str(thunder.last_traces(f)[-1])


def test_the_operator_of_probabilities() -> None:
    """Programs may call the operator itself. Its gradients are those of torch's function."""
    x, target = (torch.randn(4, 5, device=DEVICE).requires_grad_() for _ in range(2))
    loss = triton_ex.opmap["triton_crossentropy"]
    jitted = thunder.jit(lambda x, t: loss(x, t, None, None, -100, None, "mean", 0.1), executors=[triton_ex])
    expected = torch.autograd.grad(F.cross_entropy(x, target, label_smoothing=0.1), (x, target))
    torch.testing.assert_close(torch.autograd.grad(jitted(x, target), (x, target)), expected)


def test_twice_differentiated() -> None:
    """The operators mean operations of torch, through which they are differentiated again."""
    from thunder.core.transforms import grad

    def penalty(x: Any, t: Any) -> Any:
        return grad(thunder.jit(F.cross_entropy, executors=[triton_ex]))(x, t)[0].square().sum()

    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([1, 2, 4])
    (g,) = torch.autograd.grad(F.cross_entropy(x, t), x, create_graph=True)
    torch.testing.assert_close(penalty(x.detach().to(DEVICE), t.to(DEVICE)).cpu(), g.square().sum().detach())
