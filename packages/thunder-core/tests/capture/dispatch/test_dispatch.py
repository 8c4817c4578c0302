# SPDX-License-Identifier: Apache-2.0
"""From torch's functions to operations: metadata, factories and random draws, and what has no symbol."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from dispatched_calls import left_to_python, value
from torch.nn import functional as F

import thunder
import thunder.torch as ltorch
from thunder.core.symbol import OpTags


def from_the_same_seeds(f: Any, run: Callable[[Any, int], Any]) -> Iterator[tuple[Any, Any]]:
    """For two seeds, what `run` gives for the function and for the jitted one."""
    jitted = thunder.jit(f)
    for seed in (0, 1):
        results = []
        for fn in (f, jitted):
            torch.manual_seed(seed)
            results.append(run(fn, seed))
        yield results[0], results[1]


def test_metadata_is_torchs() -> None:
    """Everything that a program may ask of a tensor without its values."""

    def f(x: Any) -> Any:
        y = x[1:].t()
        return [
            (
                t.shape,
                t.size(),
                t.size(0),
                t.size(-1),
                t.dim(),
                t.ndim,
                t.ndimension(),
                t.numel(),
                t.nelement(),
                t.dtype,
                t.device,
                t.layout,
                t.is_floating_point(),
                t.is_complex(),
                t.is_signed(),
                t.element_size(),
                t.itemsize,
                t.nbytes,
                t.is_cuda,
                t.is_cpu,
                t.is_meta,
                t.is_sparse,
                t.is_quantized,
                t.requires_grad,
                t.is_leaf,
                t.grad_fn,
                t.stride(),
                t.is_contiguous(),
                len(t),
                t.get_device(),
                t.type(),
                t.is_inference(),
                t.dim_order(),
                isinstance(t, torch.Tensor),
                torch.is_tensor(t),
                torch.numel(t),
                torch.is_floating_point(t),
            )
            for t in (x, y, x > 0.3, x.long())
        ]

    x = value(torch.float64)
    assert thunder.jit(f)(x) == f(x)


def test_tensors_made_of_tensors_and_numbers() -> None:
    """Factories of every kind, `new_*`, `*_like`, constants and stacks of values."""

    def f(x: Any) -> Any:
        n = x.shape[0]
        return [
            torch.tensor([1.0, 2.0]),
            torch.tensor([x[0, 0], x[1, 1] * 2, 3]),
            torch.as_tensor([[1, 2]]),
            torch.zeros(n, 2),
            torch.ones((2, n)),
            torch.full((n,), 2),
            torch.arange(n),
            torch.arange(1, 2, 0.25),
            torch.linspace(0, 1, n),
            torch.eye(n),
            x.new_zeros(2),
            x.new_full((n,), 7),
            x.new_tensor([1, 2]),
            torch.zeros_like(x),
            x.new_ones(1, n),
            torch.ones_like(x, dtype=torch.int32),
            torch.full_like(x, 3),
            torch.empty(0),
            torch.stack([x, x]).sum(0),
            torch.scalar_tensor(2.5),
            torch.tril_indices(3, 3),
            torch.cartesian_prod(x[0], x[1]),
            torch.complex(x, x),
            torch.meshgrid(x[0], x[1], indexing="ij")[0],
            torch.nn.functional.one_hot(torch.arange(n), 4),
        ]

    x = value(torch.float64)
    jitted = thunder.jit(f)
    for _ in range(2):
        for found, expected in zip(jitted(x), f(x)):
            assert found.dtype is expected.dtype
            torch.testing.assert_close(found, expected)
    assert thunder.cache_hits(jitted) == 1


def test_random_numbers_come_in_eagers_order() -> None:
    """Of every kind of draw, in sequence, with generators of the program's own, used or not."""

    def f(x: Any, g: Any) -> Any:
        torch.rand(3)
        out = [
            torch.rand(2),
            torch.randn(2, 2),
            torch.randint(0, 9, (4,)),
            torch.randperm(5),
            F.dropout(x, 0.4),
            x.bernoulli(),
            torch.bernoulli(x),
            torch.normal(0.0, 1.0, (3,)),
            torch.normal(x, 2.0),
            torch.empty(3).uniform_(-1, 1),
            torch.empty(2).normal_(),
            torch.rand_like(x),
            torch.randn_like(x),
            torch.randint_like(x, 5),
            x.clone().exponential_(),
            torch.multinomial(x, 2),
            torch.rand(2, generator=g),
            torch.feature_dropout(x[None], 0.5, True),
            F.gumbel_softmax(x),
            torch.poisson(x),
            torch.empty(3).random_(0, 7),
            torch.randn(2, generator=g),
            F.alpha_dropout(x, 0.3),
            torch.rand(1),
        ]
        torch.nn.init.kaiming_uniform_(out[1])
        return out

    x = value(torch.float64)

    def run(fn: Any, seed: int) -> list[Any]:
        g = torch.Generator().manual_seed(seed)
        return [*fn(x, g), torch.rand(1), torch.rand(1, generator=g)]

    for expected, found in from_the_same_seeds(f, run):
        for k, (a, b) in enumerate(zip(found, expected)):
            assert torch.equal(a, b), k


def test_opaque_functions() -> None:
    """What thunder has no symbol for runs as torch's, with torch's gradient, and is named as such."""
    fn = torch.linalg.matrix_exp
    assert fn not in ltorch.torch_function_map(), "take another function for this test"
    x = value(torch.float64).requires_grad_()
    f = thunder.jit(lambda x: fn(x * 2).sum() + 1)
    expected = fn(x * 2).sum() + 1
    for _ in range(2):
        (g,) = torch.autograd.grad(f(x), x)
        (e,) = torch.autograd.grad(expected, x, retain_graph=True)
        torch.testing.assert_close(g, e)
    assert thunder.cache_hits(f) == 1
    opaque = [op for op in thunder.last_traces(f)[0].bound_symbols if OpTags.OPAQUE_OP in op.sym.tags]
    assert [op.sym.name for op in opaque] == ["linalg_matrix_exp"]
    torch.testing.assert_close(thunder.jit(torch.linalg.svdvals)(x.detach()), torch.linalg.svdvals(x.detach()))


def test_foreach_operations() -> None:
    """With results and in place."""

    def f(x: Any) -> Any:
        tensors = [x * 1, x[0] * 2]
        made = torch._foreach_mul(tensors, 3.0)
        torch._foreach_add_(tensors, 1.0)
        torch._foreach_mul_(tensors, made)
        return tensors, made, torch._foreach_norm(tensors)

    x = value(torch.float64)
    torch.testing.assert_close(thunder.jit(f)(x), f(x))


def test_copies() -> None:
    """`copy.deepcopy` of a tensor inside of a program is a clone."""

    def f(x: Any) -> Any:
        y = x * 1
        z = copy.deepcopy(y)
        z.add_(1)
        return y, z

    x = value(torch.float64)
    torch.testing.assert_close(thunder.jit(f)(x), f(x))


def test_modules_made_inside() -> None:
    """Their parameters are drawn anew by each call, as in eager."""

    def f(x: Any) -> Any:
        return torch.nn.Linear(3, 2, dtype=torch.float64)(x)

    x = value(torch.float64)
    for expected, found in from_the_same_seeds(f, lambda fn, seed: fn(x)):
        torch.testing.assert_close(found, expected)


def test_functions_compiled_by_torch() -> None:
    """Are traced through, whether or not they have run; `torch.compile` inside does nothing."""
    compiled = torch.compile(lambda x: x.sin() * 2, backend="eager")
    x = value(torch.float64)
    for f in (lambda x: compiled(x) + 1, lambda x: torch.compile(lambda y: y.sin() * 2, backend="eager")(x) + 1):
        jitted = thunder.jit(f)
        for _ in range(2):
            torch.testing.assert_close(jitted(x), x.sin() * 2 + 1)
        assert thunder.cache_hits(jitted) == 1
        assert "sin" in str(thunder.last_traces(jitted)[0])
    torch.testing.assert_close(compiled(x), x.sin() * 2)


def _of_a_seed(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x + torch.rand(2, 3)


def _nested(x: torch.Tensor) -> Any:
    return torch.nested.nested_tensor([x[0], x[1, :2]]).unbind()


LEFT = {
    "linearize": (lambda x: torch.func.linearize(torch.sin, x)[0], r"torch\.func\.linearize"),
    "seed": (_of_a_seed, r"torch\.manual_seed"),
    "nested": (_nested, "no trace can record"),
    "sparse": (lambda x: torch.sparse.mm(x.to_sparse(), x.T), r"layout torch\.sparse"),
    "a sparse result": (lambda x: x.to_sparse() * 2, r"layout torch\.sparse"),
    "csr": (lambda x: x.to_sparse_csr() @ x.T, r"layout torch\.sparse"),
    "quantized": (
        lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8).int_repr(),
        "quantize_per_tensor",
    ),
    "what is asked of a sparse one": (lambda x: x * x.to_sparse().is_sparse, r"layout torch\.sparse"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_traced(name: str) -> None:
    """Runs as Python."""
    f, why = LEFT[name]
    left_to_python(f, value(torch.float64).reshape(-1)[:6].reshape(2, 3), why=why)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.ones(2, 2).to_sparse(), "layout"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "qint8"),
    ],
)
def test_inputs_that_cannot_be_traced(make: Any, why: str) -> None:
    """Functions of them run as Python."""
    left_to_python(lambda x: x * 2 if x.is_sparse else x.dequantize(), make(), why=why)
    left_to_python(lambda x: x, make(), why=why)


def test_functions_of_lists() -> None:
    """Under their private names, and where torch has them under public ones, which are Python around these."""
    public = [lambda x: torch.foreach.sin([x, x * 2])] if hasattr(torch, "foreach") else []
    for fn in [lambda x: torch._foreach_sin([x, x * 2]), *public]:
        x = torch.ones(3)
        torch.testing.assert_close(list(thunder.jit(fn)(x)), list(fn(x)))


def test_new_tells_sizes_from_data() -> None:
    """`Tensor.new` of a `torch.Size` or of numbers is a size, of a list or tuple data."""
    x = torch.ones(3, 4, dtype=torch.float64)
    for fn in (
        lambda x: x.new(x.shape).zero_(),
        lambda x: x.new(2, 3).fill_(1),
        lambda x: x.new(),
        lambda x: x.new([2, 3]),
    ):
        out, wanted = thunder.jit(fn)(x), fn(x)
        assert out.dtype is wanted.dtype
        torch.testing.assert_close(out, wanted)


def test_shapes_that_are_returned_are_torchs() -> None:
    jf = thunder.jit(lambda x: (x.shape, [x.size()], x.sum(0).shape))
    for _ in range(2):
        out = jf(torch.ones(2, 3))
        assert out == (torch.Size([2, 3]), [torch.Size([2, 3])], torch.Size([3]))
        assert {type(s) for s in (out[0], out[1][0], out[2])} == {torch.Size}


def test_operations_on_numbers_alone() -> None:
    """Give tensors, as in torch."""

    def f(x: Any) -> Any:
        return torch.add(2, 2), torch.true_divide(7, 2), torch.mul(x.shape[0], 1.5) + x, torch.sub(2j, 1)

    x = torch.ones(3)
    for cache in ("constant values", "symbolic values"):
        torch.testing.assert_close(thunder.jit(f, cache=cache)(x), f(x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_weights_that_torch_does_not_hand_on(reduction: str) -> None:
    """Those of `l1_loss`, given by position, by name and from around the program, under whatever name it is called."""
    if "weight" not in inspect.signature(F.l1_loss).parameters:
        pytest.skip("this torch has no weights in l1_loss")
    loss, w = F.l1_loss, torch.tensor([1.0, 2.0, 3.0])

    def f(x: Any, y: Any) -> Any:
        by_position = F.l1_loss(x, y, None, None, reduction, y)
        return by_position, loss(x, y, reduction=reduction, weight=w), loss(x, y, reduction=reduction)

    x, y = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 2.0, 1.5])
    torch.testing.assert_close(thunder.jit(f)(x, y), f(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("number", [0.1, 3, 2j])
def test_a_number_divided_by_a_tensor(number: Any, dtype: torch.dtype) -> None:
    """Torch multiplies with the reciprocal, and so rounds twice. The gradient is that of both."""
    draw = torch.Generator().manual_seed(0)
    x = (torch.rand(1000, generator=draw) * 10 + 1).to(dtype)
    fn = lambda x: number / x  # noqa: E731
    found, expected = thunder.jit(fn, fullgraph=True)(x), fn(x)
    assert found.dtype is expected.dtype and torch.equal(found, expected)
    if dtype.is_floating_point and isinstance(number, float):
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        thunder.jit(fn, fullgraph=True, executors=["torch"])(ours).sum().backward()
        fn(theirs).sum().backward()
        assert torch.equal(ours.grad, theirs.grad)
