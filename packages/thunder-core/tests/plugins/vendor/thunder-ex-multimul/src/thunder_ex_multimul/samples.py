# SPDX-License-Identifier: Apache-2.0
"""The samples of multimul for the conformance suite, which tests an executor's own operators with them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch


def generate(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[Any]:
    """Scalars, empties, matrices, and two pairs of different shapes."""
    from thunder.tests.make_tensor import make_tensor
    from thunder.tests.opinfos import SampleInput

    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    for first, second in (((), ()), ((0,), (0,)), ((4, 4), (4, 4)), ((2, 3), (5,))):
        yield SampleInput(make(first), make(first), make(second), make(second))


def reference(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """The same in torch."""
    return torch.mul(a, b), torch.mul(c, d)


def opinfos() -> list[Any]:
    """One operator, one OpInfo."""
    from thunder.extend import get_executor
    from thunder.tests.opinfos import OpInfo

    multimul = get_executor("multimul").opmap["multimul"]
    return [OpInfo(multimul, sample_input_generator=generate, torch_reference=reference)]
