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


# -- writes that autograd does not see --------------------------------------------------------------------------------
def under_no_grad(x: Any, p: Any) -> Any:
    """A leaf's own memory, before it is used."""
    with torch.no_grad():
        p.mul_(0.5)
    return x * p * p


def a_view_under_no_grad(x: Any, p: Any) -> Any:
    """A part of it."""
    with torch.no_grad():
        p[0].mul_(2)
    return x * p * p


def detached(x: Any, p: Any) -> Any:
    """Through `detach()`."""
    p.detach().mul_(2)
    return x * p * p


def data(x: Any, p: Any) -> Any:
    """Through `.data`."""
    p.data.clamp_(0.1, 0.2)
    return x * p * p


def assigned_data(x: Any, p: Any) -> Any:
    """`.data = `."""
    p.data = p.data * 3
    return x * p * p


def a_value_that_requires_grad(x: Any, p: Any) -> Any:
    """Into what requires none: only the view that is written through has the value's gradient."""
    q, r = torch.zeros_like(x), torch.zeros_like(x)
    v = q.data
    v.copy_(p * 2)
    r.data.copy_(p)
    r.data.lerp_(q + p.detach(), 0.5)
    return x * p * q + v + r


def a_part_that_requires_grad(x: Any, p: Any) -> Any:
    """Through a view of such a view, whose base has the gradient, too."""
    q = torch.zeros_like(x)
    v = q.data
    v[0].copy_(p[0] * 2)
    return x * p * q + v * 3


def two_values_that_require_grad(x: Any, p: Any) -> Any:
    """Through two such views: the first keeps the gradient of its own value."""
    q = torch.zeros_like(x)
    v, w = q.data, q.detach()
    v.copy_(p * 2)
    w.mul_(p)
    return x * p * q + v * 3 + w


def an_intermediate(x: Any, p: Any) -> Any:
    """The gradient goes on as if nothing had been written."""
    q = p.sin()
    with torch.no_grad():
        q.mul_(2)
    return x + q


def a_view_made_before(x: Any, p: Any) -> Any:
    """It sees the write and keeps its gradient."""
    v = p[1]
    with torch.no_grad():
        p.mul_(2)
    return x * p + v


def through_a_view_made_before(x: Any, p: Any) -> Any:
    """And so does what it is a view of."""
    v = p[1]
    with torch.no_grad():
        v.mul_(2)
    return x * p + v


def a_view_that_looks_no_different(x: Any, p: Any) -> Any:
    """Likewise."""
    with torch.no_grad():
        v, w = p.view(p.shape), p[:]
    return x * p + v * w


def a_view_made_under_no_grad(x: Any, p: Any) -> Any:
    """It has no gradient."""
    with torch.no_grad():
        v = p[0]
    return x * p + v


def after_its_use(x: Any, p: Any) -> Any:
    """Backward sees what was used (eager refuses)."""
    y = x * p * p
    with torch.no_grad():
        p.zero_()
    return y


HIDDEN = [
    under_no_grad, a_view_under_no_grad, detached, data, assigned_data, an_intermediate,
    a_value_that_requires_grad, a_part_that_requires_grad, two_values_that_require_grad, a_view_made_before,
    through_a_view_made_before, a_view_made_under_no_grad, a_view_that_looks_no_different, after_its_use,
]  # fmt: skip


def test_data_that_stays_the_same() -> None:
    """`p.data = p.data.to(device, dtype)`, as losses with weights do, is compiled."""
    p = torch.nn.Parameter(torch.ones(3))
    buffer = torch.zeros(3)

    def f(x: Any) -> Any:
        p.data = p.data.to(device=x.device, dtype=x.dtype)
        buffer.data.copy_(x * p)
        return (x * p * (buffer / 2)).sum()

    jitted = thunder.jit(f)
    for _ in range(3):
        x, p.grad = torch.full((3,), 2.0, requires_grad=True), None
        jitted(x).backward()
        assert p.grad.tolist() == [2.0] * 3 and x.grad.tolist() == [1.0] * 3 and buffer.tolist() == [2.0] * 3
    assert thunder.cache_hits(jitted) == 2


@pytest.mark.parametrize("f", HIDDEN, ids=lambda f: f.__name__)
def test_writes_that_autograd_does_not_see(f: Any) -> None:
    """The value changes, the gradient flows on as it would have."""
    found = []
    for fn in (f, thunder.jit(f)):
        x = torch.arange(1.0, 7.0).reshape(2, 3)
        p = torch.full((2, 3), 0.5, requires_grad=True)
        y = fn(x, p)
        try:
            y.sum().backward()
        except RuntimeError:
            assert fn is f is after_its_use
            p.grad = x.clone()
        found.append((y.detach(), p.detach(), p.grad))
    torch.testing.assert_close(found[1], found[0])


def test_embeddings_that_renormalize() -> None:
    """`max_norm` writes to the weights under no_grad, before they are looked up."""
    torch.manual_seed(0)
    eager = torch.nn.Embedding(5, 3, max_norm=1.0).double()
    ours = torch.nn.Embedding(5, 3, max_norm=1.0).double()
    ours.load_state_dict(eager.state_dict())
    jitted = thunder.jit(ours)
    for tokens in ([1, 3, 1], [0, 4, 2]):
        for module in (eager, jitted):
            module(torch.tensor(tokens)).sum().backward()
        torch.testing.assert_close(ours.weight, eager.weight)
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad)


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


# -- windows that overlap ---------------------------------------------------------------------------------------------
def _one_window(y):
    y.unfold(0, 3, 1)[1].mul_(2)


def _first_of_each(y):
    y.unfold(dimension=0, size=3, step=1)[:, 0].mul_(y[:4] + 1)


def _ends_of_some(y):
    y.unfold(0, 3, 1)[1:3, 2].copy_(torch.zeros(2))


def _a_row(y):
    y.as_strided((3, 3), (1, 1))[1].add_(1)


def _columns_of_windows(y):
    y.view(2, 3).unfold(1, 2, 1)[:, :, 0].transpose(0, 1).mul_(2)


@pytest.mark.parametrize("write", [_one_window, _first_of_each, _ends_of_some, _a_row, _columns_of_windows])
def test_a_write_to_elements_of_windows_that_overlap(write):
    """What is written to is in different places, though the windows on the way to it are not."""

    def f(x):
        y = x * 1
        other = y[2:]
        write(y)
        return y, other * 2

    jf = thunder.jit(f)
    for _ in range(2):
        x = torch.randn(6, dtype=torch.float64, requires_grad=True)
        out, wanted = jf(x), f(x)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(*[torch.autograd.grad((a.sin().sum() + b.sum()), x) for a, b in (out, wanted)])
    assert thunder.cache_misses(jf) == 1


TWICE: list[Any] = [
    lambda y: y.unfold(0, 3, 1).mul_(2),
    lambda y: y.as_strided((3, 2), (1, 1)).mul_(2),
    lambda y: y.unfold(0, 2, 1).__setitem__((..., slice(0, 1)), 2.0),
    lambda y: y.unfold(0, 2, 1).__setitem__(y.unfold(0, 2, 1) > 0, 2.0),
    lambda y: y.unfold(0, 2, 1).__iadd__(1),
]


@pytest.mark.parametrize("write", TWICE)
def test_a_write_to_one_place_twice_is_as_in_eager(write):
    """Eager mode does not refuse it, and the call runs eagerly."""

    def f(x):
        y = x * 1
        write(y)
        return y

    jitted = thunder.jit(f)
    for _ in range(3):
        torch.testing.assert_close(jitted(torch.ones(6)), f(torch.ones(6)))


# -- memory of its own ------------------------------------------------------------------------------------------------
BUFFER = torch.arange(6.0).reshape(2, 3)


def set_all(y: Any, key: Any, value: Any) -> Any:
    """y[key] = value."""
    y[key] = value
    return y


@pytest.mark.parametrize(
    "write",
    [
        lambda y, v, b: y.copy_(b),
        lambda y, v, b: y.copy_(b[:1]),
        lambda y, v, b: y.copy_(BUFFER),
        lambda y, v, b: y.copy_(BUFFER[0]),
        lambda y, v, b: y.fill_(v),
        lambda y, v, b: y[0, 0].fill_(v) * y,
        lambda y, v, b: set_all(y, slice(None), b[1]),
        lambda y, v, b: set_all(y, ..., v),
        lambda y, v, b: set_all(y, slice(None), BUFFER),
        lambda y, v, b: torch.add(v, 1, out=y) if y.dim() == 0 else torch.add(b, 1, out=y),
        lambda y, v, b: torch.tensor(BUFFER),
        lambda y, v, b: torch.asarray(BUFFER, copy=True),
    ],
)
def test_what_is_copied_has_memory_of_its_own(write: Any) -> None:
    """A later write, by the program or by who is given the result, reaches neither the source nor other elements."""

    def f(x: Any, v: Any, b: Any) -> Any:
        y = write(x * 2, v, b)
        for source in (v, b, BUFFER):
            source.add_(1)
        return y

    results = []
    for call in (f, thunder.jit(f)):
        BUFFER.copy_(torch.arange(6.0).reshape(2, 3))
        given = torch.ones(2, 3), torch.tensor(3.0), torch.arange(6.0).reshape(2, 3) * 2
        y = call(*given)
        y[0, 0] += 100
        results.append((y, *given, BUFFER.clone()))
        assert y.stride() == (3, 1)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_fills_are_of_one_element() -> None:
    """As torch says."""
    with pytest.raises(RuntimeError, match="fill_ only supports 0-dimension value tensor"):
        thunder.jit(lambda x: (x * 2).fill_(x[:1]))(torch.ones(3))


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_a_write_to_memory_of_another_input_runs_eagerly() -> None:
    """The trace has no alias between two inputs."""

    def run(compile_: Any) -> Any:
        base = torch.zeros(4)
        part = base[1:2]

        def program(x: Any) -> Any:
            y = x * part
            base.add_(1.0)
            return y + part

        compiled = compile_(program)
        return [compiled(torch.ones(2)).tolist() for _ in range(4)], base.tolist()

    assert run(thunder.jit) == run(lambda fn: fn)


@pytest.mark.parametrize(
    "results",
    [
        lambda y: (y.view(-1), y),
        lambda y: (y, y.view(-1), y[1:]),
        lambda y: (y.view(-1), y.view(-1)),
        lambda y: (y, y),
    ],
)
@pytest.mark.parametrize("of_input", [False, True])
def test_results_that_are_views_of_the_whole_tensor_can_be_written(results: Any, of_input: bool) -> None:
    def f(x: Any) -> Any:
        return results(x if of_input else x * 2)

    outcomes = []
    for fn in (f, thunder.jit(f)):
        leaf = torch.arange(4.0, requires_grad=True)
        found = fn(leaf * 1)
        found[0].mul_(2)
        sum((x * x).sum() for x in found).backward()
        outcomes.append([*(x.detach() for x in found), leaf.grad])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "write", [lambda x: x.__setitem__(0, 0.5), lambda x: x[0].mul_(2), lambda x: x.masked_fill_(x > 0, 2.0)]
)
def test_parts_of_expanded_inputs(write: Any) -> None:
    """torch writes to all elements that share the memory."""

    def f(x: Any) -> Any:
        write(x)
        return x * 2

    mine, eager = (torch.arange(3.0).expand(2, 3) for _ in range(2))
    with pytest.warns(thunder.FallbackWarning, match="elements share memory"):
        found = thunder.jit(f)(mine)
    assert torch.equal(found, f(eager)) and torch.equal(mine, eager)


@pytest.mark.parametrize("write", [lambda d: d.add_(1), lambda d: d.__setitem__(0, 2.0)])
def test_a_detached_input_that_was_written_to(write: Any) -> None:
    """The result is another tensor than the input, which requires grad."""

    def f(x: Any) -> Any:
        d = x.detach()
        write(d)
        return d

    x, y = (torch.zeros(3, requires_grad=True) for _ in range(2))
    out, expected = thunder.jit(f)(x), f(y)
    assert torch.equal(out, expected) and torch.equal(x, y)
    assert not out.requires_grad and x.requires_grad
    assert out.data_ptr() == x.data_ptr()
