# SPDX-License-Identifier: Apache-2.0
"""The samples of multimul for the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from thunder.toolkit.conformance import OperatorSamples, TensorMaker, operator_opinfos


def samples(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield scalars, empty tensors, matrices, and two pairs of different shapes."""
    for first, second in (((), ()), ((0,), (0,)), ((4, 4), (4, 4)), ((2, 3), (5,))):
        yield make(first), make(first), make(second), make(second)


def reference(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """Compute the same in torch."""
    return torch.mul(a, b), torch.mul(c, d)


def opinfos() -> list[Any]:
    """Return the OpInfo of the operator."""
    return operator_opinfos("multimul", {"multimul": OperatorSamples(samples, reference)}, family="multiplication")
