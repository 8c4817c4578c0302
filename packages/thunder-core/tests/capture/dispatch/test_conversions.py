# SPDX-License-Identifier: Apache-2.0
"""Conversions return the tensor itself where torch does, so that writes to the result are writes to the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

LAST, CONTIGUOUS = torch.channels_last, torch.contiguous_format
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "to": lambda x: x.to(memory_format=LAST),
    "to, dtype": lambda x: x.to(torch.float32, memory_format=LAST),
    "to, device": lambda x: x.to("cpu", torch.float32, memory_format=LAST),
    "to, other dtype": lambda x: x.to(torch.float64, memory_format=LAST),
    "to, copy": lambda x: x.to(torch.float32, memory_format=LAST, copy=True),
    "to, preserve": lambda x: x.to(torch.float32, memory_format=torch.preserve_format),
    "to, contiguous": lambda x: x.to(memory_format=CONTIGUOUS),
    "cpu": lambda x: x.cpu(memory_format=LAST),
    "float": lambda x: x.float(memory_format=LAST),
    "double": lambda x: x.double(memory_format=CONTIGUOUS),
}
MEMORIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=LAST),
    "one image": lambda x: x[:1].contiguous(memory_format=LAST),
    "transposed": lambda x: x.transpose(2, 3),
    "gaps": lambda x: x.contiguous(memory_format=LAST)[:, :2],
}


@pytest.mark.parametrize("memory", list(MEMORIES))
@pytest.mark.parametrize("name", list(CONVERSIONS))
def test_what_a_conversion_returns(name: str, memory: str) -> None:
    """Values, strides, and whether a write to the result is one to the tensor."""
    convert, source = CONVERSIONS[name], torch.arange(120.0).view(2, 3, 4, 5)

    def f(x: Any) -> Any:
        y = convert(x)
        y.mul_(2)
        return y, x + 1

    theirs, ours = MEMORIES[memory](source.clone()), MEMORIES[memory](source.clone())
    expected, found = f(theirs), thunder.jit(f)(ours)
    for a, b in zip((*found, ours), (*expected, theirs)):
        assert a.equal(b) and a.dtype is b.dtype and a.stride() == b.stride()
    assert (found[0].data_ptr() == ours.data_ptr()) == (expected[0].data_ptr() == theirs.data_ptr())


@pytest.mark.parametrize("last", [True, False])
def test_symbolic_sizes(last: bool) -> None:
    """One program serves all sizes, and a write to the result still is one to an image that has the format."""

    def f(x: Any) -> Any:
        return x.to(memory_format=LAST) * 2

    def g(x: Any) -> Any:
        return x.to(memory_format=LAST).mul_(2)

    for fn in (f, g):
        jitted = thunder.jit(fn, cache="symbolic values")
        for n in (3, 5, 6):
            ours = torch.randn(n, 3, n + 1, 7).contiguous(memory_format=LAST if last else CONTIGUOUS)
            theirs = ours.clone()
            found, expected = jitted(ours), fn(theirs)
            assert found.equal(expected) and found.stride() == expected.stride() and ours.equal(theirs)
        assert fn is g or thunder.cache_misses(jitted) == 1
