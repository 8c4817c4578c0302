# SPDX-License-Identifier: Apache-2.0
"""Samples of a plugin's operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from thunder.extend import OperatorExecutor, deregister_executor, register_executor
from thunder.tests.philox import philox
from thunder.toolkit.conformance import OperatorSamples, SampleInput, TensorMaker, operator_opinfos, philox_words


@pytest.fixture
def acme() -> Iterator[OperatorExecutor]:
    """An executor with an operator."""
    found = OperatorExecutor("acme")
    found.register_operator("acme_twice", like=lambda a, by=2: a * by, fn=lambda a, by=2: a * by)
    register_executor(found)
    yield found
    deregister_executor(found)


def _samples(make: TensorMaker) -> Iterator[Any]:
    yield (make((2, 3)),)
    yield SampleInput(make(4), by=3)
    yield (make.constant((2,)),)
    yield (make.saved((2,), low=1, high=2),)


def test_opinfos(acme: OperatorExecutor) -> None:
    """Each operator of the table has one, whose samples follow the dtype, and are the same each time."""
    table = {"acme_twice": OperatorSamples(_samples, lambda a, by=2: a * by, (torch.float16, torch.float64))}
    (info,) = operator_opinfos("acme", table, family="products")
    assert (info.name, info.family) == ("acme_twice", "products")
    assert info.exists_for("cpu", torch.float16) and not info.exists_for("cpu", torch.float32)
    first, named, constant, saved = info.sample_inputs("cpu", torch.float16, requires_grad=True)
    assert first.args[0].dtype is torch.float16 and first.args[0].requires_grad
    assert named.kwargs == {"by": 3}
    assert not constant.args[0].requires_grad and saved.args[0].dtype is torch.float32
    assert info.sample_inputs("cpu", torch.float64)[3].args[0].dtype is torch.float64
    again = info.sample_inputs("cpu", torch.float16)[0]
    assert torch.equal(again.args[0], first.args[0])


def test_words_of_philox() -> None:
    """Four elements share a counter."""
    words = philox_words(torch.tensor([7, 5]), (2, 3), lambda block, offset: (block, offset, 0, 0))
    assert words.shape == (2, 3)
    assert words.flatten().tolist() == [*philox(7, (0, 5, 0, 0)), *philox(7, (1, 5, 0, 0))[:2]]
