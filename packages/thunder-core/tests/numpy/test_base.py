# SPDX-License-Identifier: Apache-2.0
"""The language context decides what expressions on proxies mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder.numpy as lnp
from thunder.core.langctx import langctx, set_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.numpy.base import all_npsymbols, npsymbol


def proxy(name: str, dtype: Any, *shape: int) -> TensorProxy:
    """A proxy on the CPU."""
    return TensorProxy(name, shape=shape, device="cpu", dtype=dtype)


def test_the_same_expressions_in_two_languages() -> None:
    """`a.size` and the type of `a + b`."""

    def program(a: Any, b: Any) -> Any:
        return a.size, a + b

    a, b = proxy("a", torch.int32, 3, 4), proxy("b", torch.float32, 4)
    trace = Trace("program")
    with tracectx(trace):
        size, in_numpy = langctx("numpy")(program)(a, b)
        method, in_torch = langctx("torch")(program)(a, b)
    assert size == 12
    assert callable(method)
    assert (in_numpy.dtype, in_torch.dtype) == (torch.float64, torch.float32)
    assert [bsym.sym.id for bsym in trace.bound_symbols] == ["numpy.add", "torch.add"]
    assert str(trace.bound_symbols[0]).startswith(f"{in_numpy.name} = lnp.add(a, b)")


def test_methods_and_properties() -> None:
    """Arrays have NumPy's."""
    a = proxy("a", torch.float32, 2, 3)
    with tracectx(Trace("program")), set_langctx("numpy"):
        assert (a.size, a.itemsize, a.nbytes) == (6, 4, 24)
        assert a.T.shape == (3, 2)
        assert a.reshape(3, -1).shape == a.reshape((3, 2)).shape == (3, 2)
        assert a.transpose(1, 0).shape == a.transpose().shape == (3, 2)
        assert a.sum(axis=0, keepdims=True).shape == (1, 3)
        assert a.ravel().shape == a.flatten().shape == (6,)
        assert a.astype(torch.int64).dtype is lnp.arange(3).dtype
        assert (a @ a.T)[0].shape == (2,)
        assert (-a + 1 - a * 2 / a // 3 % 2**a).shape == (2, 3)
        assert ((a > 0) & ~(a == 1) | (a != 2) ^ (a <= 1)).dtype == torch.bool
        with pytest.raises(AttributeError, match="'unsqueeze' in the language 'numpy'"):
            _ = a.unsqueeze


def test_an_operation_from_outside() -> None:
    """`npsymbol` declares operations for others too."""

    @npsymbol(method_name="halved", id="test.halved")
    def halved(a: Any) -> Any:
        """a / 2."""
        return a / 2

    try:
        assert all_npsymbols()["test.halved"] is halved
        a = proxy("a", torch.int32, 3)
        with tracectx(Trace("program")), set_langctx("numpy"):
            assert str(a.halved().dtype) == "float64"
        assert torch.equal(halved(torch.tensor([1, 2])), torch.tensor([0.5, 1.0], dtype=torch.float64))
    finally:
        lnp.language.methods.pop("halved")
        from thunder.numpy import base

        base._symbols.pop("test.halved")
