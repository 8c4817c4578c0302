# SPDX-License-Identifier: Apache-2.0
"""Comparing transforms of operators: what is right passes, and each kind of wrong does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core.errors import TracingError
from thunder.core.samples import SampleInput
from thunder.core.symbol import Symbol
from thunder.extend import get_executor
from thunder.tests import transformed
from thunder.tests.cases import Case
from thunder.tests.comparison import Mismatch
from thunder.tests.opinfos import OpInfo, make_tensor, opinfo_of
from thunder.tests.target import target_of
from thunder.tests.transformed import compare_batched_gradients, compare_batches, compare_tangents


def one_sample(op: OpInfo, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
    yield SampleInput(make_tensor(4, device=device, dtype=dtype, requires_grad=requires_grad, low=0.5, high=2))


def case_of(info: OpInfo, *, number: int = 0) -> tuple[Case, SampleInput]:
    case = Case(info, target_of(get_executor("torch")), "test_jvp_vs_torch", "cpu", torch.float64)
    return case, info.sample_inputs("cpu", torch.float64, requires_grad=True)[number]


def squared(meta: Callable[..., Any] = lambda a: a * a) -> tuple[Symbol, OpInfo]:
    sym = Symbol("squared", meta, id="test.squared_and_transformed")
    return sym, OpInfo(sym, sample_input_generator=one_sample, torch_reference=torch.square)


def test_right_ones_pass() -> None:
    """Of thunder's own, and of one from outside."""
    for name in ("mul", "softmax", "linear", "where"):
        assert compare_tangents(*case_of(opinfo_of(name)))
        assert compare_batches(*case_of(opinfo_of(name))) > 0
        assert compare_batched_gradients(*case_of(opinfo_of(name)))
    _, info = squared()
    assert compare_tangents(*case_of(info))


def test_wrong_tangents() -> None:
    """A rule that is off by a factor."""
    sym, info = squared()
    sym.jvp(lambda t, out, a: t[0] * a * 2.001)
    with pytest.raises(Mismatch):
        compare_tangents(*case_of(info))


def test_wrong_batches() -> None:
    """A rule that mixes examples."""
    sym, info = squared()
    sym.batch(lambda b, a: ltorch.flip(a * a, (0,)))
    with pytest.raises(Mismatch):
        compare_batches(*case_of(info))


def test_wrong_gradients_of_examples() -> None:
    """A rule whose result is right, and whose gradient is not."""
    sym, info = squared()
    sym.batch(lambda b, a: a * ltorch.detach(a))
    compare_batches(*case_of(info))
    with pytest.raises(Mismatch):
        compare_batched_gradients(*case_of(info))


def test_random_numbers_are_refused() -> None:
    """Whoever draws them in a batch without being told how is found out."""
    assert compare_batches(*case_of(opinfo_of("bernoulli"))) == 0
    sym, info = squared(lambda a: a * ltorch.rand_like(a))
    sym.batch(lambda b, a: a)
    compare_batches(*case_of(info))


@pytest.mark.parametrize("compare", [compare_tangents, compare_batches, compare_batched_gradients])
def test_eager_results_do_not_count(compare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are right, but nothing was compiled."""
    monkeypatch.setattr(transformed, "_symbol", thunder.disable(transformed._symbol))
    with pytest.raises(TracingError, match="disable keeps out of traces"):
        compare(*case_of(opinfo_of("mul")))
