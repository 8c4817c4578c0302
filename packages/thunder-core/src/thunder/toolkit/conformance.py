# SPDX-License-Identifier: Apache-2.0
"""Samples of a plugin's operators, and reference functions of these operators, for the conformance suite.

    def _matmul_samples(make):
        for n in (1, 16):
            yield make((n, 32)), make((32, 8))

    def opinfos():
        samples = OperatorSamples(_matmul_samples, torch.matmul)
        return operator_opinfos("acme", {"acme_matmul": samples}, family="matmul")

`make` is a `TensorMaker` of the device and dtype under test. Samples are reproducible, because torch's generator is
seeded by the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from thunder.extend import get_executor
from thunder.tests.comparison import compare
from thunder.tests.make_tensor import TensorMaker, make_tensor
from thunder.tests.opinfo import OpInfo, SampleInput
from thunder.tests.philox import philox
from thunder.tests.seeded import (
    assert_distributions,
    assert_dropout,
    assert_residual_dropout_norm,
    assert_seeds_are_torchs,
)
from thunder.tests.seeded import opinfos as seeded_opinfos

__all__ = [
    "OpInfo",
    "OperatorSamples",
    "SampleInput",
    "TensorMaker",
    "assert_distributions",
    "assert_dropout",
    "assert_residual_dropout_norm",
    "assert_seeds_are_torchs",
    "compare",
    "make_tensor",
    "operator_opinfos",
    "philox",
    "philox_words",
    "seeded_opinfos",
]


class OperatorSamples(NamedTuple):
    """The tests of an operator.

    - `samples`: given a `TensorMaker`, yields the arguments of each call, as a tuple or (with keyword arguments) as a
      `SampleInput`.
    - `reference`: a function that computes the expected result from the same arguments, on real tensors.
    - `dtypes`: the dtypes that the operator supports; None means all that its reference supports.
    - `supports_grad`: False means that its gradient is not tested; None means that it is differentiable if its
      reference is differentiable.
    """

    samples: Callable[[TensorMaker], Iterator[Any]]
    reference: Callable[..., Any]
    dtypes: Sequence[Any] | None = None
    supports_grad: bool | None = None


def operator_opinfos(executor: str, table: Mapping[str, OperatorSamples], *, family: str) -> list[OpInfo]:
    """Return an OpInfo for each operator in `table`. The keys are names of operators of a registered executor.

    family: the row of these operators in the suite's summary table.
    """
    operators = get_executor(executor).opmap
    return [
        OpInfo(
            operators[name],
            sample_input_generator=_generator(entry.samples),
            torch_reference=entry.reference,
            dtypes=entry.dtypes,
            supports_grad=entry.supports_grad,
            family=family,
        )
        for name, entry in table.items()
    ]


def _generator(samples: Callable[[TensorMaker], Iterator[Any]]) -> Callable[..., Iterator[SampleInput]]:
    def generate(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
        for found in samples(TensorMaker(device, dtype, requires_grad)):
            yield found if isinstance(found, SampleInput) else SampleInput(*found)

    return generate


def philox_words(
    seed: torch.Tensor, shape: Sequence[int], counter: Callable[[int, int], tuple[int, int, int, int]]
) -> torch.Tensor:
    """Return the 32-bit words (as int64) that a kernel generates from a seed and an offset.

    Each counter gives four words.

    `counter(block, offset)` is Philox's counter for elements `4 * block` to `4 * block + 3`.
    """
    number, offset = seed.tolist()
    count = torch.Size(shape).numel()
    words = [word for block in range(-(-count // 4)) for word in philox(number, counter(block, offset))]
    return torch.tensor(words[:count], dtype=torch.int64, device="cpu").reshape(tuple(shape))
