# SPDX-License-Identifier: Apache-2.0
"""The samples of multimul for the conformance suite, which tests an executor's own operators with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from thunder.toolkit.conformance import OperatorSamples, TensorMaker, operator_opinfos


def samples(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Scalars, empties, matrices, and two pairs of different shapes."""
    for first, second in (((), ()), ((0,), (0,)), ((4, 4), (4, 4)), ((2, 3), (5,))):
        yield make(first), make(first), make(second), make(second)


def reference(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """The same in torch."""
    return torch.mul(a, b), torch.mul(c, d)


def opinfos() -> list[Any]:
    """One operator, one OpInfo."""
    return operator_opinfos("multimul", {"multimul": OperatorSamples(samples, reference)}, family="multiplication")
