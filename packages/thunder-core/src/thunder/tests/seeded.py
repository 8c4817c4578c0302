# SPDX-License-Identifier: Apache-2.0
"""Assertions about random numbers, for executors with seeds (`thunder.passes.rng_fusion`).

Each assertion accepts a function that jits with the executor under test. It returns the jitted function, so that the
executor's tests can check more. `opinfos` are the two operators, for the conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

import thunder
from thunder.core import dtypes
from thunder.core.devices import to_device
from thunder.extend import get_executor
from thunder.tests.opinfo import OpInfo, SampleInput

__all__ = [
    "assert_distributions", "assert_dropout", "assert_residual_dropout_norm", "assert_seeds_are_torchs", "opinfos",
]  # fmt: skip

Jit = Callable[..., Any]


def assert_dropout(jit: Jit, device: Any, dtype: torch.dtype) -> Any:
    """Check dropout: the dropped fraction, the kept values, a new mask per call, and the same mask in backward."""
    x = torch.ones(64, 64, device=device, dtype=dtype, requires_grad=True)
    jitted = jit(lambda x: F.dropout(x * 2, 0.3) * 1)
    first, second = jitted(x), jitted(x)
    for out in (first, second):
        assert abs((out == 0).double().mean().item() - 0.3) < 0.04
        torch.testing.assert_close(out.unique().double().cpu(), torch.tensor([0, 2 / 0.7]).double(), rtol=1e-2, atol=0)
    assert not torch.equal(first, second)
    for out in (first, second):
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
        torch.testing.assert_close(gradient, out)
    return jitted


def assert_residual_dropout_norm(jit: Jit, device: Any) -> Any:
    """Check that a residual connection, dropout and a norm save no mask.

    Backward computes the mask of forward again.
    """

    def f(x: Any, r: Any, w: Any) -> Any:
        h = x + F.dropout(r, 0.25)
        return F.layer_norm(h, w.shape, w), h

    jitted = jit(f)
    x, w = (torch.ones(shape, device=device, requires_grad=True) for shape in ((6, 32), (32,)))
    r = torch.linspace(-2, 2, 192, device=device).reshape(6, 32).requires_grad_()
    out, h = jitted(x, r, w)
    assert not any(p.dtype is dtypes.bool8 for p in thunder.last_traces(jitted)[-1].output[1])
    kept = (h - 1 != 0).detach()
    torch.testing.assert_close((h - 1)[kept], (r / 0.75)[kept], rtol=1e-5, atol=1e-5)
    expected = F.layer_norm((x + r * kept / 0.75).detach(), (32,), w)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    h.sum().backward()
    torch.testing.assert_close(r.grad, kept / 0.75)
    return jitted


def assert_seeds_are_torchs(jit: Jit, device: Any) -> Any:
    """Check that torch's generator advances, that a seed repeats results, and that two draws of a program differ."""
    jitted = jit(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.5))
    x = torch.ones(40, 8, device=device, requires_grad=True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append((jitted(x), jitted(x), torch.rand(4, device=device)))
    (a, b, after), (c, d, again), (e, _, _) = results
    for one, other, same in ((a, c, True), (b, d, True), (after, again, True), (a, b, False), (a, e, False)):
        assert torch.equal(one, other) == same
    assert set(a.unique().tolist()) == {0, 2, 4}
    torch.manual_seed(-1)  # a 64-bit seed
    negative = jitted(x)
    torch.manual_seed(-1)
    assert torch.equal(negative, jitted(x))
    return jitted


def assert_distributions(jit: Jit, device: Any, dtype: torch.dtype) -> Any:
    """Check means, variances and bounds of the distributions."""

    def f(x: Any) -> Any:
        even = torch.rand_like(x) * 1
        between = torch.empty_like(x).uniform_(-1, 3) * 1
        normal = torch.randn_like(x) * 2 + 1
        exponential = torch.empty_like(x).exponential_(2.0) * 1
        bernoulli = torch.empty_like(x).bernoulli_(0.2) * 1
        return [t + x for t in (even, between, normal, exponential, bernoulli)]

    jitted = jit(f)
    torch.manual_seed(0)
    found = [t.double() for t in jitted(torch.zeros(50, 200, device=device, dtype=dtype))]
    for t, mean, variance in zip(found, (0.5, 1, 1, 0.5, 0.2), (1 / 12, 4 / 3, 4, 0.25, 0.16)):
        assert abs(t.mean() - mean) < 0.05
        assert abs(t.var() / variance - 1) < 0.06
    assert 0 <= found[0].min() < found[0].max() < 1
    assert -1 <= found[1].min() < found[1].max() < 3
    return jitted


def opinfos(
    executor: str,
    uniform: Callable[..., torch.Tensor],
    drawn_seeds: Callable[..., Any],
    examples: Sequence[tuple[int, int]],
    *,
    seeds_on: Any = None,
) -> list[OpInfo]:
    """Yield the executor's two operators.

    `uniform` generates the numbers of a seed one by one. These numbers are the reference for each of the `examples`.
    Seeds are on the device of the draw, unless `seeds_on` is given.
    """

    def of_a_seed(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
        for numbers in examples:
            for shape in ((4, 5), (), (0, 3), (1030,), (2, 3, 4)):
                yield SampleInput(torch.tensor(numbers, device=seeds_on or device), shape, to_device(device))

    def of_a_count(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
        for n in (1, 3):
            yield SampleInput(n, to_device(device))

    operators = get_executor(executor).opmap
    table = ((f"{executor}_uniform", uniform, of_a_seed), (f"{executor}_seeds", drawn_seeds, of_a_count))
    return [
        OpInfo(
            operators[name], sample_input_generator=samples, torch_reference=of, family="random",
            dtypes=(torch.int64,), supports_grad=False,
        )
        for name, of, samples in table
    ]  # fmt: skip
