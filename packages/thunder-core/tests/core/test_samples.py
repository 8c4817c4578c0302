# SPDX-License-Identifier: Apache-2.0
"""Sample generators: what operators of a class have to take, with the plainest sample first."""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.samples import SampleInput, elementwise_binary, elementwise_unary, reduction


class Factory:
    """A tensor factory that notes what it was asked for."""

    def __init__(self) -> None:
        self.domains: list[dict[str, Any]] = []

    def __call__(self, *shape: Any, **domain: Any) -> torch.Tensor:
        self.domains.append(domain)
        return torch.rand(shape[0] if shape and isinstance(shape[0], tuple) else shape)


def shapes(samples: list[SampleInput]) -> set[tuple[int, ...]]:
    """The shapes of the tensors in them."""
    return {tuple(a.shape) for s in samples for a in s.args if isinstance(a, torch.Tensor)}


def test_the_plainest_comes_first() -> None:
    """A contributor who looks at one sees the usual case."""
    for generator in (elementwise_unary, elementwise_binary, reduction):
        first = next(iter(generator(Factory())))
        assert all(a.shape == (4, 4) for a in first.args)
        assert first.kwargs == {}


def test_what_elementwise_operations_have_to_take() -> None:
    """Scalars, empties, transposed and expanded inputs, in the domain that was asked for."""
    make = Factory()
    samples = list(elementwise_unary(make, low=1, high=2))
    assert {(), (0,), (3, 0, 2)} <= shapes(samples)
    assert any(not s.args[0].is_contiguous() for s in samples)
    assert any(0 in s.args[0].stride() and s.args[0].numel() for s in samples)
    assert all(d == {"low": 1, "high": 2} for d in make.domains)


def test_what_binary_operations_have_to_take() -> None:
    """Broadcasting in every direction, and numbers where there may be numbers."""
    samples = list(elementwise_binary(Factory()))
    pairs = {tuple(tuple(a.shape) for a in s.args) for s in samples if isinstance(s.args[1], torch.Tensor)}
    for a, b in pairs:
        torch.broadcast_shapes(a, b)
    assert any(len(a) < len(b) for a, b in pairs)
    assert any(len(a) > len(b) for a, b in pairs)
    assert any(0 in a for a, _ in pairs)
    assert any(isinstance(s.args[1], int) for s in samples)
    assert not any(isinstance(s.args[1], int) for s in elementwise_binary(Factory(), numbers=False))


def test_what_reductions_have_to_take() -> None:
    """All of the tensor, one dimension, several, kept and not; empties unless the operation has no identity."""
    samples = list(reduction(Factory()))
    assert any(len(s.args) == 1 for s in samples)
    assert any(isinstance(s.args[-1], tuple) for s in samples)
    assert {s.kwargs.get("keepdim") for s in samples} == {None, False, True}
    assert any(s.args[0].numel() == 0 for s in samples)
    assert all(s.args[0].numel() for s in reduction(Factory(), empty=False))


def test_a_sample_prints_as_a_call() -> None:
    """For the id of a failing test."""
    assert repr(SampleInput(1, k=2)) == "[SampleInput args=(1,) kwargs={'k': 2}]"
