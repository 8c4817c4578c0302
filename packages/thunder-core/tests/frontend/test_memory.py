# SPDX-License-Identifier: Apache-2.0
"""What programs keep alive: nothing of a call that eager would have freed, however it was traced."""

from __future__ import annotations

import gc
import linecache
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import thunder


def hooked(x: Any) -> Any:
    """With a hook on a tensor."""
    y = x * 2
    y.register_hook(lambda g: g * 2)
    return y.sum()


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a choice": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "a region": lambda x: checkpoint(torch.sin, x, use_reentrant=False),
    "a hook": hooked,
    "values": lambda x: x[x > 0.5] * x.sum().item(),
    "a custom operation": lambda x: torch.special.zeta(x + 2, x + 1),
    "a transform": lambda x: torch.func.grad(lambda y: (y * y).sum())(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_a_call_stays(name: str) -> None:
    """Neither its input nor who traced it."""
    jitted = thunder.jit(PROGRAMS[name])
    for _ in range(2):
        x = torch.rand(3, requires_grad=True)
        gone = weakref.ref(x)
        jitted(x)
        del x
        gc.collect()
        assert gone() is None


def test_modules_that_are_imported_meanwhile() -> None:
    """May take functions of torch for their own that are others while a program is traced: these keep nothing, and are
    torch's afterwards."""
    taken: list[Any] = []

    def f(x: Any) -> Any:
        taken[:] = [torch.cond, torch.vmap, torch.func.grad, torch.utils.checkpoint.checkpoint, torch._check]
        return x * 2

    x = torch.rand(3)
    gone = weakref.ref(x)
    jitted = thunder.jit(f)
    jitted(x)
    del x
    gc.collect()
    assert gone() is None
    cond, vmap, grad, again, check = taken
    x = torch.rand(3, requires_grad=True)
    torch.testing.assert_close(vmap(torch.sin)(x), x.sin())
    torch.testing.assert_close(grad(lambda y: y.sum())(x), torch.ones(3))
    torch.testing.assert_close(again(torch.sin, x, use_reentrant=False), x.sin())
    torch.testing.assert_close(cond(True, torch.sin, torch.cos, (x,)), x.sin())
    check(True)
    torch.testing.assert_close(thunder.jit(lambda x: vmap(torch.sin)(x) + grad(lambda y: y.sum())(x))(x), x.sin() + 1)


def test_programs_that_are_traced_each_time() -> None:
    """Leave nothing, not even their text."""
    holder = {"n": 0}

    def f(x: Any) -> Any:
        return x * len(str(sys.getrefcount(holder))) + id(object()) * 0

    jitted = thunder.jit(f, cache="no caching")
    x = torch.rand(3)
    for _ in range(3):
        jitted(x)
    gc.collect()
    before = len([k for k in linecache.cache if k.startswith("<thunder.")]), len(gc.get_objects())
    for _ in range(20):
        jitted(x)
    gc.collect()
    after = len([k for k in linecache.cache if k.startswith("<thunder.")]), len(gc.get_objects())
    assert after[0] <= before[0]
    assert after[1] < before[1] + 20


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_nothing_of_a_call_stays_alive(grad: bool, cached: bool) -> None:
    """Neither arguments nor results nor handles; at once where eager needs no collection either."""
    f = thunder.jit(lambda x, y: ((x * y).exp(), x + 1), cache="constant values" if cached else "no caching")
    gc.collect()
    gc.disable()
    try:
        for call in range(3):
            x, y = torch.ones(3, requires_grad=grad), torch.ones(3)
            out = f(x, y)
            refs = [weakref.ref(t) for t in (x, y, *out)]
            if grad:
                out[0].sum().backward()
                refs.append(weakref.ref(x.grad))
            del x, y, out
            alive = [r() is not None for r in refs]
            if call == 0 or not cached:
                gc.enable()
                gc.collect()  # tracing itself may leave cycles
                gc.disable()
                alive = [r() is not None for r in refs]
            assert not any(alive), (call, alive)
    finally:
        gc.enable()
