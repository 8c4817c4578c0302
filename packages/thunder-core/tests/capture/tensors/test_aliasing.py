# SPDX-License-Identifier: Apache-2.0
"""Views and writes: random sequences of them, through `thunder.jit` and in eager, leave the same behind everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder

# Each step takes a tensor, another tensor and a small number. Steps that eager refuses are left out of the program.
VIEWS = {
    "row": lambda x, y, n: x[n % x.shape[0]],
    "last": lambda x, y, n: x[..., -1],
    "rows": lambda x, y, n: x[n % 2 :: 1 + n % 2],
    "columns": lambda x, y, n: x[:, n % 3 :],
    "new": lambda x, y, n: x[None],
    "transpose": lambda x, y, n: x.transpose(0, -1),
    "mT": lambda x, y, n: x.mT if x.dim() > 1 else 1 / 0,
    "permute": lambda x, y, n: x.permute(*range(1, x.dim()), 0),
    "movedim": lambda x, y, n: x.movedim(0, -1),
    "unsqueeze": lambda x, y, n: x.unsqueeze(n % 2),
    "squeeze": lambda x, y, n: x.squeeze(0),
    "narrow": lambda x, y, n: x.narrow(0, n % x.shape[0], 1),
    "select": lambda x, y, n: x.select(-1, n % x.shape[-1]),
    "view": lambda x, y, n: x.view(-1),
    "view_as": lambda x, y, n: x.view_as(y),
    "reshape": lambda x, y, n: x.reshape(-1),
    "flatten": lambda x, y, n: x.flatten(),
    "unflatten": lambda x, y, n: x.unflatten(0, (2, -1)),
    "contiguous": lambda x, y, n: x.contiguous(),
    "expand": lambda x, y, n: x.expand(2, *x.shape),
    "diagonal": lambda x, y, n: x.diagonal(),
    "split": lambda x, y, n: x.split(2, 0)[n % -(-x.shape[0] // 2)],
    "chunk": lambda x, y, n: x.chunk(2, -1)[0],
    "unbind": lambda x, y, n: x.unbind(0)[-1],
    "detach": lambda x, y, n: x.detach(),
    "to": lambda x, y, n: x.to(torch.float64),
    "unfold": lambda x, y, n: x.unfold(0, 2, 2),
    "identity": lambda x, y, n: x,
}


def assign(x: Any, key: Any, value: Any) -> Any:
    """x[key] = value."""
    x[key] = value
    return x


def augmented(x: Any, y: Any) -> Any:
    """x += y."""
    x += y
    return x


WRITES = {
    "add_": lambda x, y, n: x.add_(n),
    "mul_": lambda x, y, n: x.mul_(y),
    "sub_": lambda x, y, n: x.sub_(y, alpha=2),
    "iadd": lambda x, y, n: augmented(x, y),
    "zero_": lambda x, y, n: x.zero_(),
    "fill_": lambda x, y, n: x.fill_(n),
    "copy_": lambda x, y, n: x.copy_(y),
    "clamp_": lambda x, y, n: x.clamp_(max=n),
    "relu": lambda x, y, n: torch.nn.functional.relu(x, inplace=True),
    "sin_": lambda x, y, n: torch.sin_(x),
    "setitem": lambda x, y, n: assign(x, n % x.shape[0], n),
    "setitem slice": lambda x, y, n: assign(x, slice(n % 2, None, 2), y),
    "setitem tensor": lambda x, y, n: assign(x, torch.tensor([n % x.shape[0], 0]), 7),
    "setitem mask": lambda x, y, n: assign(x, x > n, 0.5),
    "setitem row": lambda x, y, n: assign(x, (..., n % x.shape[-1]), y[..., 0]),
    "masked_fill_": lambda x, y, n: x.masked_fill_(x < 0, n),
    "index_add_": lambda x, y, n: x.index_add_(0, torch.tensor([0]), x[-1:] * 2),
    "out": lambda x, y, n: torch.add(x, n, out=x),
    "out of another": lambda x, y, n: torch.mul(y, 2, out=x) if x.shape == y.shape else 1 / 0,
    "data": lambda x, y, n: x.data.mul_(2),
}
FROM_ANOTHER = {"mul_", "sub_", "iadd", "copy_", "setitem slice", "setitem row", "out of another"}
PURE = {
    "plus": lambda x, y, n: x + y,
    "times": lambda x, y, n: x * n,
    "clone": lambda x, y, n: x.clone(),
    "cat": lambda x, y, n: torch.cat([x, y]),
    "sum": lambda x, y, n: x.sum(0, keepdim=True),
    "where": lambda x, y, n: torch.where(x > 0, x, y),
    "flip": lambda x, y, n: x.flip(0),
    "gather": lambda x, y, n: x[torch.tensor([0, -1])],
}
STEPS = {**VIEWS, **WRITES, **PURE}
REFUSALS = (RuntimeError, IndexError, ZeroDivisionError, ValueError)

step = st.tuples(
    st.one_of(st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(WRITES)), st.sampled_from(sorted(PURE))),
    st.integers(0, 99),
    st.integers(0, 99),
    st.integers(-1, 5),
)
PROGRAMS = st.lists(step, min_size=2, max_size=9)


def inputs() -> list[torch.Tensor]:
    """A contiguous tensor, a transposed one, and a window of a larger one."""
    a = torch.arange(12, dtype=torch.float64).reshape(4, 3) / 4 - 1
    b = (torch.arange(12, dtype=torch.float64).reshape(3, 4) / 3 - 2).t()
    c = (torch.arange(40, dtype=torch.float64).reshape(5, 8) / 10 - 1)[1:5, 2:8:2]
    return [a, b, c]


def run(program: Any, tensors: list[Any]) -> list[Any]:
    """All the tensors there are afterwards."""
    values = list(tensors)
    for name, i, j, n in program:
        values.append(STEPS[name](values[i % len(values)], values[j % len(values)], n))
    return values


def accepted(program: Any, tensors: list[Any]) -> list[Any]:
    """The steps of a program that eager runs, without writes to several places at once (which thunder refuses)."""
    values, kept = list(tensors), []
    for name, i, j, n in program:
        i, j = i % len(values), j % len(values)
        x, y = values[i], values[j]
        if name in WRITES and any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride())):
            continue
        if name in FROM_ANOTHER and x is not y and shares_memory(x, y):
            continue  # torch reads what it has just written, or not: nothing is promised
        try:
            values.append(STEPS[name](values[i], values[j], n))
        except REFUSALS:
            continue
        kept.append((name, i, j, n))
    return kept


def shares_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether they are in one storage."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def memory(values: list[torch.Tensor]) -> list[tuple[int, ...]]:
    """Which of them share memory with which."""
    places = [t.untyped_storage().data_ptr() if t.numel() else -i for i, t in enumerate(values)]
    return [tuple(k for k, q in enumerate(places) if p == q) for p in places]


def outcome(f: Any) -> dict[str, Any]:
    """What a call returns and what it does to its inputs."""
    tensors = inputs()
    bases = [t if t._base is None else t._base for t in tensors]
    result = f(*tensors)
    found = {"result": [t.clone() for t in result], "inputs": [t.clone() for t in bases]}
    found["memory"] = memory([*tensors, *result])
    found["strides"] = [t.stride() for t in result]
    found["identity"] = [[r is t for t in tensors] for r in result]
    return found


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Equal to the last bit, NaNs included."""
    return all(
        f.shape == e.shape and f.dtype is e.dtype and torch.equal(f.nan_to_num(), e.nan_to_num())
        for f, e in zip(found, expected)
    ) and len(found) == len(expected)


@settings(max_examples=250)
@given(PROGRAMS)
def test_random_programs(program: Any) -> None:
    """Values, what inputs hold afterwards, and that a cached program does the same again."""
    kept = accepted(program, inputs())
    expected = outcome(lambda a, b, c: run(kept, [a, b, c]))
    jitted = thunder.jit(lambda a, b, c: run(kept, [a, b, c]))
    for call in range(2):
        found = outcome(jitted)
        assert same(found["result"], expected["result"]), kept
        assert same(found["inputs"], expected["inputs"]), kept
        assert thunder.cache_hits(jitted) == call, kept


@settings(max_examples=100)
@given(PROGRAMS)
def test_results_share_memory_as_in_eager(program: Any) -> None:
    """With the inputs and among themselves, so that what the caller writes next shows where it would."""
    # Whether these copy depends on strides, which a value that was written to may have others of.
    program = [s for s in program if s[0] not in ("reshape", "flatten", "contiguous")]
    kept = accepted(program, inputs())
    expected = outcome(lambda a, b, c: run(kept, [a, b, c]))
    found = outcome(thunder.jit(lambda a, b, c: run(kept, [a, b, c])))
    assert found["memory"] == expected["memory"], kept


def gradients(f: Any, weights: list[torch.Tensor]) -> tuple[list[bool], Any]:
    """Which results require grad, and the gradients of their sum."""
    results = f(*weights)
    flags = [t.requires_grad for t in results]
    total = sum(((t * (k + 1)).sum() for k, t in enumerate(results) if t.requires_grad), torch.zeros(()))
    if not total.requires_grad:
        return flags, None
    return flags, torch.autograd.grad(total, weights, allow_unused=True)


def without_leaves(kept: Any) -> Any:
    """The program, begun with copies of its inputs: torch refuses to write to what gradients are taken for."""

    def f(a: Any, b: Any, c: Any) -> Any:
        return run(kept, [a * 1, b.sin(), c.clone()])

    return f


@settings(max_examples=150)
@given(PROGRAMS)
def test_gradients_of_random_programs(program: Any) -> None:
    """They flow through writes and views as in eager, where eager can tell."""
    # What is written through detached views is told one by one, below.
    program = [s for s in program if s[0] not in ("detach", "data")]
    start = [inputs()[0] * 1, inputs()[1].sin(), inputs()[2].clone()]
    kept = accepted(program, start)
    weights = [t.clone().requires_grad_() for t in inputs()]
    try:
        flags, expected = gradients(without_leaves(kept), weights)
    except RuntimeError:  # a value that backward needs was written to: eager cannot, thunder can
        return
    found_flags, found = gradients(thunder.jit(without_leaves(kept)), weights)
    # What was filled with a constant requires grad still in eager, though its gradient is zero.
    assert all(e or not f for f, e in zip(found_flags, flags)), kept
    for f, e in zip(found or (None,) * 3, expected or (None,) * 3):
        zero = torch.zeros(4, 3, dtype=torch.float64)
        # A gradient that is zero for certain may be none here and zeros there.
        torch.testing.assert_close(zero if f is None else f, zero if e is None else e, rtol=1e-12, atol=1e-12)


# -- layouts ----------------------------------------------------------------------------------------------------------
def test_strides_are_torchs() -> None:
    """Asked for while the program is traced, of inputs, views and copies, before and after writes."""

    def f(a: Any, b: Any, c: Any) -> Any:
        c.mul_(2)
        tensors = [
            a,
            b,
            c,
            a.T,
            b.mT,
            a[1:, ::2],
            b.reshape(-1),
            c.flatten(),
            b.contiguous(),
            a.t().expand(2, 3, 4),
            a * 2,
            b + 1,
        ]
        return [
            (t.stride(), t.is_contiguous(), t.stride(0), t.storage_offset()) for t in tensors if t is not c
        ], c.sum()

    jitted = thunder.jit(f)
    found, expected = jitted(*inputs())[0], f(*inputs())[0]
    # The offset of an input in its own storage is not known; of all else it is.
    for one, other in zip(found, expected):
        assert one[:3] == other[:3]


def test_branches_on_layout() -> None:
    """A program that asks for strides is recompiled for others."""

    def f(x: Any) -> Any:
        return x + 1 if x.is_contiguous() else x - 1

    jitted = thunder.jit(f)
    x = torch.ones(3, 4)
    for t in (x, x.t(), x, x.t()):
        assert torch.equal(jitted(t), f(t))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, 2)


# -- what is refused --------------------------------------------------------------------------------------------------
def expanded(x: Any) -> Any:
    """Several elements in one place."""
    return x[:, :1].expand(4, 3).mul_(2)


def another_shape(x: Any) -> Any:
    """A result that does not fit."""
    return x[0].add_(x)


def another_type(x: Any) -> Any:
    """A result of a higher category."""
    return x.long().add_(x)


@pytest.mark.parametrize("f", [expanded, another_shape, another_type], ids=lambda f: f.__name__)
def test_writes_that_torch_refuses(f: Any) -> None:
    """Are refused with torch's type of error, and the line; nothing was written."""
    x = torch.ones(4, 3)
    with pytest.raises(RuntimeError):
        f(x.clone())
    with pytest.raises(RuntimeError, match=r"test_aliasing\.py"):
        thunder.trace()(f, x)
    with pytest.raises(RuntimeError):
        thunder.jit(f)(x)
    assert torch.equal(x, torch.ones(4, 3))


@pytest.mark.parametrize("copy", [lambda p: p.contiguous(), lambda p: p.reshape(-1), lambda p: p.mT.flatten()[1:]])
def test_copies_of_leaves_that_require_grad(copy: Any) -> None:
    """`contiguous` and `reshape` copy for these strides, so that the result may be written to."""
    p = torch.arange(12.0).view(3, 4)[:, :3].mT.requires_grad_()

    def f(p: Any) -> Any:
        copied = copy(p).mul_(2)
        return copied + 1, p * 3

    for a, b in zip(thunder.jit(f)(p), f(p)):
        assert torch.equal(a, b)
        for x, y in zip(torch.autograd.grad(a.sum(), p), torch.autograd.grad(b.sum(), p)):
            assert torch.equal(x, y)


@pytest.mark.parametrize("view", [lambda p: p, lambda p: p[0], lambda p: p.view(-1)])
def test_leaves_that_require_grad(view: Any) -> None:
    """As eager: not in place while gradients are recorded."""
    p = torch.ones(2, 3, requires_grad=True)

    def f(p: Any) -> Any:
        return view(p).add_(1).sum()

    with pytest.raises(RuntimeError, match=r"leaf Variable that requires grad .*in-place"):
        f(p)
    with pytest.raises(RuntimeError, match=r"leaf Variable that requires grad .*in-place"):
        thunder.jit(f)(p)
    with torch.no_grad():
        assert thunder.jit(f)(p) == view(p).detach().sum() + 0


def test_views_of_views_of_symbolic_sizes() -> None:
    """Whether a view is allowed is not asked for sizes that are not fixed; one program serves them all."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.view(x.shape[0] * x.shape[1], 4)
        return y.view(-1, y.size(-1)) * 2

    jitted = thunder.jit(f, cache="symbolic values")
    for n in (2, 3, 5):
        x = torch.arange(8.0 * n).view(2, n, 4)
        torch.testing.assert_close(jitted(x), f(x))
    assert thunder.cache_misses(jitted) == 1, thunder.explain(jitted)
