# SPDX-License-Identifier: Apache-2.0
"""`cache="symbolic values"`: one program for all sizes, with eager's results and gradients."""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from math import cos
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import thunder

SIZES = [(4, 6), (3, 8), (5, 12), (2, 16)]


def _load(name: str) -> Any:
    full = f"thunder_test_models_{name}"
    if full not in sys.modules:
        path = Path(__file__).parents[2] / "models" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(full, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[full]


def symbolic(fn: Any) -> Any:
    return thunder.jit(fn, cache="symbolic values")


def alike(jitted: Any, fn: Any, *args: Any) -> None:
    """One call with the results and gradients of eager."""
    theirs = [x.detach().clone().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x for x in args]
    ours, expected = jitted(*args), fn(*theirs)
    torch.testing.assert_close(ours, expected)
    if torch.is_tensor(expected) and expected.requires_grad:
        g = torch.randn_like(expected)
        ours.backward(g)
        expected.backward(g)
        for x, y in zip(args, theirs):
            if torch.is_tensor(x):
                torch.testing.assert_close(x.grad, y.grad)


# -- whole models -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["nanogpt", "llama"])
def test_models_of_fifty_lengths(name: str) -> None:
    torch.manual_seed(0)
    if name == "nanogpt":
        source = _load("nanogpt")
        model = source.GPT(source.GPTConfig(block_size=64))

        def loss(m: Any, x: Any, y: Any) -> Any:
            return m(x, y)[1]
    else:
        source = _load("llama")
        model = source.Llama(source.LlamaConfig(block_size=64))

        def loss(m: Any, x: Any, y: Any) -> Any:
            return m(x, labels=y, padding=torch.ones_like(x).bool())["loss"]

    reference = copy.deepcopy(model)
    jitted = symbolic(model)
    for i, length in enumerate(range(3, 53)):
        tokens, targets = torch.randint(61, (2, 2 + i % 3, length))
        ours, theirs = loss(jitted, tokens, targets), loss(reference, tokens, targets)
        torch.testing.assert_close(ours, theirs)
        if i % 7 == 0:
            model.zero_grad()
            reference.zero_grad()
            ours.backward()
            theirs.backward()
            for p, q in zip(model.parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad, q.grad)
    assert thunder.cache_misses(jitted) == 1, thunder.explain(jitted)
    assert thunder.cache_hits(jitted) == 49


# -- operations -------------------------------------------------------------------------------------------------------
def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def tokens(b: int, t: int) -> torch.Tensor:
    return torch.randint(11, (b, t))


def _write(y: Any) -> Any:
    y[:, 0] = 1.0
    y[:, :2] += 1
    y[1:] = 0
    return y


def _rounded(x: Any) -> Any:
    return x * math.ceil(x.shape[1] / 0.7) if 1 < math.ceil(x.shape[0] * 1.5) < math.inf else x


torch.manual_seed(0)
_linear, _conv, _conv1, _embedding = nn.Linear(4, 5), nn.Conv2d(3, 4, 3, 2, 1), nn.Conv1d(3, 4, 5), nn.Embedding(11, 6)
_norm, _groups, _attention = nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.MultiheadAttention(8, 2, batch_first=True)
_encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)

OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "linear": (_linear, lambda b, t: (rand(b, t, 4),)),
    "conv2d": (_conv, lambda b, t: (rand(b, 3, t, t + 2),)),
    "conv1d": (_conv1, lambda b, t: (rand(b, 3, t),)),
    "max_pool": (lambda x: F.max_pool2d(x, 2), lambda b, t: (rand(b, 3, t, t + 2),)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda b, t: (rand(b, 3, t, t + 2),)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 1), lambda b, t: (rand(b, 3, t, t + 2),)),
    "embedding": (_embedding, lambda b, t: (tokens(b, t),)),
    "norms": (lambda x: _groups(_norm(x).mT), lambda b, t: (rand(b, t, 4),)),
    "softmax": (lambda x: F.softmax(x, -1) * x.shape[-1] / x.size(0) ** 0.5, lambda b, t: (rand(b, t),)),
    "causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), lambda b, t: (rand(b, 2, t, 8),)),
    "attention": (lambda q: _attention(q, q, q)[0], lambda b, t: (rand(b, t, 8),)),
    "encoder": (_encoder, lambda b, t: (rand(b, t, 8),)),
    "views": (
        lambda x: x.view(x.shape[0], -1, 2).transpose(1, 2).reshape(-1, x.shape[1] // 2).t().contiguous().flatten(),
        lambda b, t: (rand(b, t),),
    ),
    "unflatten": (lambda x: x.unflatten(1, (-1, 2)).permute(2, 0, 1).flatten(1), lambda b, t: (rand(b, t),)),
    "joining": (lambda x, y: torch.cat([x, y, x], 1).sum(0), lambda b, t: (rand(b, t), rand(b, t + 1))),
    "splitting": (lambda x: x.split(x.shape[1] // 2, 1)[0] - x.chunk(2, -1)[1], lambda b, t: (rand(b, t),)),
    "slices": (lambda x: x[:, 1:-1] + x[:, : x.shape[1] - 2] + x[..., 2:], lambda b, t: (rand(b, t),)),
    "elements": (lambda x: x[:, -1] + x[:, 0] + x[x.shape[0] - 1, 1], lambda b, t: (rand(b, t),)),
    "steps": (lambda x: x[:, ::2].sum(), lambda b, t: (rand(b, t),)),
    "masks": (
        lambda x: x.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1.0),
        lambda b, t: (rand(b, t, t),),
    ),
    "padding": (lambda x: F.pad(x, (1, x.shape[0])), lambda b, t: (rand(b, t),)),
    "resampling": (lambda x: F.interpolate(x, scale_factor=2), lambda b, t: (rand(b, 3, t, t),)),
    "statistics": (lambda x: (x - x.mean(-1, keepdim=True)).var(0).sqrt(), lambda b, t: (rand(b, t),)),
    "sorting": (lambda x: x.topk(2, -1)[0] + x.sort(-1)[0][:, :2], lambda b, t: (rand(b, t),)),
    "gather": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), lambda b, t: (rand(b, t),)),
    "einsum": (lambda x, y: torch.einsum("bt,bs->ts", x, y), lambda b, t: (rand(b, t), rand(b, t + 1))),
    "products": (lambda x, y: x @ y.transpose(1, 2), lambda b, t: (rand(b, t, 4), rand(b, t, 4))),
    "repeats": (lambda x: x.repeat(2, 1).sum(0) + x[:, None].expand(-1, 2, -1).sum(1), lambda b, t: (rand(b, t),)),
    "cross_entropy": (
        lambda x, y: F.cross_entropy(x.reshape(-1, 11), y.reshape(-1)),
        lambda b, t: (rand(b, t, 11), tokens(b, t)),
    ),
    "factories": (lambda x: torch.zeros(x.shape[0], x.shape[1] * 2) + x.repeat(1, 2), lambda b, t: (rand(b, t),)),
    "scans": (lambda x: x.cumsum(1).flip(0).roll(1, 1), lambda b, t: (rand(b, t),)),
    "numbers": (lambda x: torch.where(x > 0, x, 0.0) * x.numel() / x.size(0), lambda b, t: (rand(b, t),)),
    "triangles": (lambda x: x.tril() + x.triu(1) + torch.eye(x.shape[1]), lambda b, t: (rand(b, t, t),)),
    "writes": (lambda x: _write(x.clone()), lambda b, t: (rand(b, t),)),
    "written views": (lambda x: x.clone().view(-1).mul_(2).view(x.shape), lambda b, t: (rand(b, t),)),
    "windows": (lambda x: x.unfold(1, 3, 1).sum(-1), lambda b, t: (rand(b, t),)),
    "diagonal": (lambda x: torch.diagonal(x, dim1=1, dim2=2).sum(), lambda b, t: (rand(b, t, t),)),
    "one_hot": (lambda i: F.one_hot(i, 11).sum(1), lambda b, t: (tokens(b, t),)),
    "extremes": (lambda x: x * min(x.size(1), 100) / max(x.shape[0], 2), lambda b, t: (rand(b, t),)),
    "results": (lambda x: (x * 2, x.shape, x.shape[0] * 2, [x.size(1) / 2], x.dim()), lambda b, t: (rand(b, t),)),
    "limits": (_rounded, lambda b, t: (rand(b, t),)),
    "types": (lambda x: x * 2 if type(x.shape[0]) is int else x, lambda b, t: (rand(b, t),)),
}  # fmt: skip
OPERATIONS["ranges"] = (
    lambda x: x + torch.arange(x.shape[1]) * torch.arange(1, x.shape[0] + 1)[:, None],
    lambda b, t: (rand(b, t),),
)


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_program_for_all_sizes(name: str) -> None:
    fn, make = OPERATIONS[name]
    jitted = symbolic(fn)
    for b, t in SIZES:
        alike(jitted, fn, *make(b, t))
    assert thunder.cache_misses(jitted) == 1, thunder.explain(jitted)
    assert thunder.compile_stats(jitted).constant is None


def test_quotients_of_quotients() -> None:
    """Half of what is half of a size, rounded up, is less than that but for a single element."""
    fn = lambda x: x[::2].chunk(2)[-1] * 2  # noqa: E731
    jitted = symbolic(fn)
    for n in (3, 4, 7, 2):
        alike(jitted, fn, rand(n, 2))


# What a program needs the number itself for; what thunder does not look into; what is asked of strides.
NEEDED: dict[str, Callable[..., Any]] = {
    "as many operations": lambda x: sum([r * i for i, r in enumerate(x)]),
    "range": lambda x: sum([x * i for i in range(x.shape[0])]),
    "text": lambda x: x * len(f"{x.shape[0]:4}" + str(x.shape[0] * 30)),
    "key": lambda x: x * {n: n for n in range(9)}[x.shape[0]],
    "opaque": lambda x: torch.fft.rfft(x).abs(),
    "strides": lambda x: x * x.t().stride()[0] if x.is_contiguous() else x,
    "json": lambda x: x * len(json.dumps([x.shape[0], x.shape[1] * 10])),
    "math": lambda x: x / math.sqrt(x.shape[0]) + math.gcd(x.shape[0], 2),
}


@pytest.mark.parametrize("name", NEEDED)
def test_where_a_number_is_needed_each_has_its_program(name: str) -> None:
    jitted = symbolic(NEEDED[name])
    for b, t in (*SIZES, SIZES[1]):
        alike(jitted, NEEDED[name], rand(b, t))
    assert thunder.cache_misses(jitted) == 4, thunder.explain(jitted)


def test_programs_that_fail_with_symbolic_numbers_get_constants() -> None:
    def fn(x: Any, n: Any) -> Any:
        return x * int.__add__(n, 1)

    jitted = symbolic(fn)
    for n in (3, 4, 3):
        alike(jitted, fn, torch.ones(3), n)
    assert thunder.cache_misses(jitted) == 2
    assert "__add__" in thunder.explain(jitted)
    with pytest.raises(ZeroDivisionError):
        symbolic(lambda x, n: x * (1 / n))(torch.ones(3), 0)


def test_zero_and_one_are_other_programs() -> None:
    def fn(x: Any, y: Any) -> Any:
        return (x + y).sum(0)

    jitted = symbolic(fn)
    misses = []
    for n, m in ((3, 3), (1, 5), (7, 7), (0, 0), (2, 1), (1, 9)):
        alike(jitted, fn, torch.randn(n, 2), torch.randn(m, 2))
        misses.append(thunder.cache_misses(jitted))
    assert misses == [1, 2, 2, 3, 4, 4]


def test_how_tensors_lie_in_memory() -> None:
    def fn(x: Any) -> Any:
        return x.reshape(-1) * 2

    jitted = symbolic(fn)
    misses = []
    for x in (
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(5, 6),
        torch.randn(9, 8).t(),
        torch.randn(6, 9)[:, :7],
    ):
        alike(jitted, fn, x)
        misses.append(thunder.cache_misses(jitted))
    assert misses == [1, 2, 2, 2, 3]


def test_numbers_among_the_arguments() -> None:
    def fn(x: Any, n: int, s: float, *, options: dict[str, Any]) -> Any:
        y = x * s + n // 2
        if n > 10:
            y = -y
        return y * options["lr"], n + 1, s / n

    jitted = symbolic(fn)
    misses = []
    for n, s in ((3, 0.5), (4, 2.0), (30, 0.25), (-7, -0.0), (11, 1e300), (10, float("inf")), (12, float("nan"))):
        ours, theirs = (f(torch.ones(3), n, s, options={"lr": s}) for f in (jitted, fn))
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        assert [type(i) for i in ours] == [type(i) for i in theirs]
        misses.append(thunder.cache_misses(jitted))
    assert misses == [1, 1, 2, 2, 2, 2, 2]
    for n, s in ((True, 0.5), (3, 1)):  # of other types
        assert jitted(torch.ones(3), n, s, options={"lr": 1.0})[1:] == fn(torch.ones(3), n, s, options={"lr": 1.0})[1:]
    assert thunder.cache_misses(jitted) == 4


def test_constraints_are_printed_as_a_program() -> None:
    def fn(x: Any, y: Any) -> Any:
        if x.shape[0] * 2 <= 40:
            x = x * 2
        return x.reshape(-1, 2) + y.reshape(-1, 2)

    jitted = symbolic(fn)
    jitted(torch.randn(6, 4), torch.randn(3, 8))
    prologue = str(thunder.last_prologue_traces(jitted)[-1])
    for line in (
        "s0 = x.shape[0]",
        "if s0 < 2: raise GuardFailed('x.shape[0] was more than 1 and is', s0)",
        "if not (s0 * 2 <= 40): raise GuardFailed('the program requires x.shape[0] * 2 <= 40')",
    ):
        assert f"  {line}\n" in prologue
    computation = thunder.last_traces(jitted)[-1]
    assert "(s0 * s1) // 2" in str(computation)
    scope = computation.python_ctx()
    exec(str(computation), scope)
    x, y = torch.randn(8, 6), torch.randn(4, 12)
    torch.testing.assert_close(scope["computation"](x, y), fn(x, y))
    alike(jitted, fn, x, y)
    assert thunder.cache_misses(jitted) == 1
    alike(jitted, fn, torch.randn(22, 4), torch.randn(11, 8))
    assert thunder.cache_misses(jitted) == 2 and "x.shape[0] * 2 <= 40" in thunder.explain(jitted)


def test_what_is_made_with_numbers() -> None:
    """Slices, sets and keys have numbers in them; functions that a program makes with one serve one call."""

    def fn(x: Any) -> Any:
        n, m = x.shape
        return slice(0, n), {m: x * 2}, frozenset([n]), {n + 1}, torch.Size([m, n]), {"n": n, "half": (n / 2, [m])}

    jitted = symbolic(fn)
    for b, t in (*SIZES, SIZES[0]):
        x = torch.randn(b, t)
        ours, theirs = jitted(x), fn(x)
        assert repr(ours) == repr(theirs)
        assert type(ours[0].stop) is type(next(iter(ours[1]))) is type(next(iter(ours[2]))) is int
    assert thunder.cache_misses(jitted) == 4

    def makes(x: Any) -> Any:
        n = x.shape[0]
        return lambda k: k + n

    jitted = symbolic(makes)
    for b, t in SIZES:
        assert jitted(torch.ones(b, t))(1) == b + 1
    assert "symbolic" in thunder.explain(jitted)


def test_numbers_that_another_program_left_behind() -> None:
    @functools.lru_cache
    def double(n: int) -> Any:
        return n * 2

    def fn(x: Any) -> Any:
        return x * double(x.shape[0]) + x.shape[1] - double(x.shape[0])

    jitted, other = symbolic(fn), symbolic(lambda x, n: x * double(n) / (n - double(n)))
    for b, t in (*SIZES, *SIZES):
        alike(jitted, fn, torch.ones(b, t))
        alike(other, lambda x, n: x * (n * 2) / (n - n * 2), torch.ones(2), b)
        torch.testing.assert_close(fn(torch.ones(b, t)), torch.ones(b, t) * 2 * b + t - 2 * b)
    assert int(double(4)) == 8 and double(4) + 1 == 9


def test_attention_of_other_widths_has_other_kernels() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v)

    jitted = symbolic(fn)
    for n, m, e, ev, heads in ((5, 5, 8, 8, 2), (6, 9, 8, 8, 3), (5, 7, 8, 4, 2), (4, 3, 16, 16, 2), (7, 7, 8, 8, 2)):
        alike(jitted, fn, rand(2, heads, n, e), rand(2, heads, m, e), rand(2, heads, m, ev))
    assert thunder.cache_misses(jitted) == 3, thunder.explain(jitted)


def test_gradients_that_are_asked_for_later() -> None:
    def fn(x: Any, w: Any) -> Any:
        return (x @ w).softmax(-1).sum(0), (x * w.sum()).mean(1)

    jitted = symbolic(fn)
    for b, t in SIZES[:3]:
        x, w = rand(b, t), rand(t, 4)
        ours, theirs = jitted(x, w), fn(x, w)
        for out, expected in zip(ours, theirs):
            for wrt in ((x,), (w,), (x, w)):
                g = torch.randn_like(expected)
                a, b_ = (torch.autograd.grad(o, wrt, g, retain_graph=True, allow_unused=True) for o in (out, expected))
                torch.testing.assert_close(a, b_)
        twice = [torch.autograd.grad(o[0].pow(2).sum(), x, create_graph=True)[0].pow(2).sum() for o in (ours, theirs)]
        torch.testing.assert_close(*[torch.autograd.grad(t, w)[0] for t in twice])
    assert thunder.cache_misses(jitted) == 1


@pytest.mark.parametrize("fn", [
    lambda x, y: torch.diagonal_scatter(x.sin(), y.cos()).square().exp(),
    lambda x, y: torch.diagonal_scatter(x.sin(), y[1:].cos(), -1).exp() * x.diagonal().sum(),
    lambda x, y: (z := x.sin(), z.diagonal().mul_(y.cos()), z @ z)[-1],
    lambda x, y: torch.diag_embed(y.sin()) @ x.tril().cos() + y.diag(),
])  # fmt: skip
def test_second_gradients_of_diagonals(fn: Any) -> None:
    """Which are asked for when the guards are written: nothing may be assumed any more."""
    jitted = symbolic(fn)
    for n in (3, 4, 6, 5):
        results = []
        for run in (jitted, fn):
            torch.manual_seed(n)
            x, y = rand(n, n).double().detach().requires_grad_(), rand(n).double().detach().requires_grad_()
            first = torch.autograd.grad(run(x, y).square().sum(), [x, y], create_graph=True)
            results.append(torch.autograd.grad(sum(g.sin().sum() for g in first), [x, y]))
        torch.testing.assert_close(*results)
    assert thunder.cache_misses(jitted) == 1


def test_gradients_of_large_programs_that_are_asked_for_later() -> None:
    """So large that it is asked which gradients are wanted: sizes among the inputs have no edge in torch's graph."""

    def fn(x: Any, w: Any) -> Any:
        return (x @ w / x.shape[0]).tanh() * x.shape[1]

    jitted = symbolic(fn)
    for n in (160, 150):
        x, w = rand(n, n), rand(n, n)
        for wrt in (x, w):
            first = [torch.autograd.grad(f(x, w).mean(), wrt, create_graph=True)[0] for f in (jitted, fn)]
            for other in (x, w):
                found, expected = (torch.autograd.grad(g.sum(), other, retain_graph=True)[0] for g in first)
                torch.testing.assert_close(found, expected)
    assert thunder.cache_misses(jitted) == 1


# -- anything that Python does with sizes -----------------------------------------------------------------------------
_STEPS = [
    lambda x, n: x.reshape(-1, 2) if x.numel() % 2 == 0 else x.reshape(-1),
    lambda x, n: x.flatten(),
    lambda x, n: x[1:] if x.shape[0] > 1 else x,
    lambda x, n: torch.cat([x, x[:n]]),
    lambda x, n: x.t() if x.dim() == 2 else x[:, None],
    lambda x, n: x * x.shape[0] + n,
    lambda x, n: x.repeat(2, *[1] * (x.dim() - 1)),
    lambda x, n: x[: x.shape[0] // 2 + 1],
    lambda x, n: x + torch.arange(x.shape[-1]),
    lambda x, n: x.sum(0, keepdim=True).expand(n, *x.shape[1:]),
    lambda x, n: x[::n],
    lambda x, n: F.pad(x, (n, 1)),
]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, len(_STEPS) - 1), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 4)), min_size=3, max_size=5),
)
def test_programs_of_sizes(program: list[int], calls: list[tuple[int, int, int]]) -> None:
    def fn(x: Any, n: int) -> Any:
        for i in program:
            x = _STEPS[i](x, n)
        return x, x.shape, n * 2

    jitted = symbolic(fn)
    for b, t, n in calls:
        x = torch.arange(float(b * t)).reshape(b, t)
        ours, theirs = jitted(x, n), fn(x, n)
        torch.testing.assert_close(ours[0], theirs[0])
        assert ours[1:] == theirs[1:] and type(ours[2]) is int and all(type(i) is int for i in ours[1])


# -- functions of `math` ----------------------------------------------------------------------------------------------
def by_module(x: Any, n: int) -> Any:
    return x * math.cos(math.pi * n / 10) + math.sqrt(n)


def by_name(x: Any, n: int) -> Any:
    return x * cos(n / 7)


def as_a_value(x: Any, n: int) -> Any:
    chosen = math.cos
    return x * chosen(n / 7), chosen is math.cos


@pytest.mark.parametrize(("fn", "programs"), [(by_module, 3), (by_name, 3), (as_a_value, 8)])
def test_functions_of_math(fn: Any, programs: int) -> None:
    """They accept numbers that are inputs. A program that uses one as a value gets Python's, and constants."""
    jitted = thunder.jit(fn)
    for n in range(2, 10):
        found, expected = jitted(torch.ones(2), n), fn(torch.ones(2), n)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert thunder.cache_misses(jitted) == programs, thunder.explain(jitted)


def test_an_error_of_math() -> None:
    """For another number, the program's own error comes out."""
    jitted = thunder.jit(lambda x, n: x * math.sqrt(n))
    for n in (3.0, 2.0, 1.0, 0.5):
        jitted(torch.ones(2), n)
    with pytest.raises(ValueError, match=r"math domain error|expected a nonnegative input"):
        jitted(torch.ones(2), -1.0)


# -- tuples -----------------------------------------------------------------------------------------------------------
def test_numbers_in_a_tuple() -> None:
    """They become inputs one by one, e.g. the betas of an optimizer. The program may store the tuple."""
    options: dict[str, Any] = {}

    def f(x: Any) -> Any:
        first, second = options["betas"]
        options["used"] = options["betas"]
        return x * first - second

    jitted = thunder.jit(f)
    for n in range(8):
        options["betas"] = (n / 10, 0.5)
        assert torch.equal(jitted(torch.ones(2)), f(torch.ones(2)))
        assert options["used"] == (n / 10, 0.5) and [*map(type, options["used"])] == [float, float]
    assert thunder.cache_misses(jitted) == 4


def test_a_tuple_of_numbers_at_two_places() -> None:
    """One of them is a place where no symbol can be put: nothing is wrong."""
    betas: Any = (0.1, 0.5)
    held: Any = {}

    def f(x: Any) -> Any:
        return x * held["betas"][0] + held["inside"][0][0]

    jitted = thunder.jit(f)
    for n in range(6):
        betas = (n / 10, 0.5)
        held.update(betas=betas, inside=(betas, "name"))
        assert torch.equal(jitted(torch.ones(2)), f(torch.ones(2)))
