# SPDX-License-Identifier: Apache-2.0
"""Attention with dropout inside a kernel: what each kernel gives back, and what cannot be differentiated again."""

from __future__ import annotations

import pytest

from thunder.core import devices, dtypes, prims
from thunder.core.errors import UnsupportedError
from thunder.core.langctx import set_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.passes.autodiff import differentiate


def traced(kernel: str) -> tuple[Trace, tuple[TensorProxy, ...]]:
    """The trace of attention with dropout by a kernel, which returns the first of its results, and all of these."""
    trace = Trace("f")
    kind = {"device": devices.cpu, "dtype": dtypes.bfloat16, "requires_grad": True}
    trace.args = [TensorProxy(trace.make_name("q"), shape=(2, 3, n, 8), **kind) for n in (5, 7, 7)]  # type: ignore[arg-type]
    with tracectx(trace):
        results = prims.attention_dropout(*trace.args, None, 0.1, True, 0.3, kernel)
        prims.python_return(results[0])
    return trace, results


@pytest.mark.parametrize(("kernel", "seed"), [("flash", (2,)), ("efficient", ()), ("cudnn", ())])
def test_what_kernels_give_back(kernel: str, seed: tuple[int, ...]) -> None:
    """The sums are float32; flash keeps seed and offset in one tensor."""
    out, lse, drawn, offset = traced(kernel)[1]
    assert (out.shape, out.dtype) == ((2, 3, 5, 8), dtypes.bfloat16)
    assert (lse.shape, lse.dtype) == ((2, 3, 5), dtypes.float32)
    assert (drawn.shape, offset.shape) == (seed, ())


def test_gradients_of_gradients_are_refused() -> None:
    """The backward kernel draws the mask again; nothing draws it a third time."""
    trace, _ = traced("flash")
    first = differentiate(trace)
    assert "attention_dropout_backward" in str(first)
    with pytest.raises(UnsupportedError, match="are not supported, as in torch"), set_langctx("torch"):
        differentiate(first)
