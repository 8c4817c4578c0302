# SPDX-License-Identifier: Apache-2.0
"""How torch is set up around a call, and modes of the user's: a program is never used where they are others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.errors import TracingError


class Counting(TorchFunctionMode):
    """Counts calls, and makes sines of cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return (torch.Tensor.sin if func is torch.Tensor.cos else func)(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Counts what reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def program(x: Any) -> Any:
    """With the call that the mode changes."""
    return x.cos() * 2


X = torch.linspace(0, 1, 4)


@pytest.mark.parametrize("first", [True, False])
def test_torch_function_modes_see_the_programs_calls(first: bool) -> None:
    """Around a first call and around a later one."""
    jitted = thunder.jit(program)
    for inside in (first, not first, True, False):
        counting = Counting()
        with counting if inside else nullcontext():
            torch.testing.assert_close(jitted(X), program(X))
        assert (counting.calls > 0) is inside
    assert thunder.cache_misses(jitted) == 1
    assert thunder.cache_hits(jitted) == 1
    with Counting():
        jitted(X)
    assert "the torch function mode Counting is active" in thunder.explain(jitted)
    with Counting(), pytest.raises(TracingError, match="Leave the mode around the call"):
        thunder.jit(program, sharp_edges="error")(X)


def test_torch_function_modes_inside() -> None:
    """Of a program are a part of it."""

    def f(x: Any) -> Any:
        with Counting():
            y = x.cos()
        return y + x.cos()

    jitted = thunder.jit(f)
    for _ in range(2):
        torch.testing.assert_close(jitted(X), X.sin() + X.cos())
    assert thunder.cache_hits(jitted) == 1


def test_torch_dispatch_modes_see_what_runs() -> None:
    """The compiled program's operations, and nothing of the tracing."""
    jitted = thunder.jit(lambda x: (x.cos() * 2 + 1).sum())
    for _ in range(2):
        with Dispatched() as found:
            out = jitted(X)
        torch.testing.assert_close(out, (X.cos() * 2 + 1).sum())
        assert found.names[0].startswith("cos")
        assert len(found.names) == 4
    assert thunder.cache_hits(jitted) == 1


@contextmanager
def changed(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    """A setting of torch's, and back."""
    change(value)
    try:
        yield
    finally:
        change(before)


def cudnn(value: bool) -> None:
    """Sets one of the backends' settings."""
    torch.backends.cudnn.allow_tf32 = value


TF32 = torch.backends.cudnn.allow_tf32
STATES: dict[str, tuple[Callable[[], Any], AbstractContextManager[Any]]] = {
    "threads": (lambda: torch.get_num_threads(), changed(torch.set_num_threads, 2, 1)),
    "cudnn": (lambda: torch.backends.cudnn.allow_tf32, changed(cudnn, not TF32, TF32)),
    "kernels": (lambda: torch.backends.cuda.flash_sdp_enabled(), sdpa_kernel(SDPBackend.MATH)),
    "precision": (
        lambda: torch.get_float32_matmul_precision(),
        changed(torch.set_float32_matmul_precision, "high", "highest"),
    ),
    "tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        changed(torch.set_float32_matmul_precision, "high", "highest"),
    ),
    "deterministic": (
        lambda: torch.are_deterministic_algorithms_enabled(),
        changed(torch.use_deterministic_algorithms, True, False),
    ),
    "warnings": (lambda: torch.is_warn_always_enabled(), changed(torch.set_warn_always, True, False)),
    "device": (lambda: torch.get_default_device().type, torch.device("meta")),
    "dtype": (lambda: torch.get_default_dtype(), changed(torch.set_default_dtype, torch.float64, torch.float32)),
    "grad": (lambda: torch.is_grad_enabled(), torch.no_grad()),
    "inference": (lambda: torch.is_inference_mode_enabled(), torch.inference_mode()),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), torch.autocast("cpu")),
}


def test_precision_of_one_backend() -> None:
    """It leaves torch without an answer for all backends, and is guarded."""

    def products(value: str) -> None:
        torch.backends.cuda.matmul.fp32_precision = value

    jitted = thunder.jit(lambda x: x @ x)
    with changed(products, "tf32", "ieee"):
        assert jitted(torch.ones(2, 2)).equal(jitted(torch.ones(2, 2)))
    assert thunder.cache_misses(jitted) == thunder.cache_hits(jitted) == 1
    jitted(torch.ones(2, 2))
    assert thunder.cache_misses(jitted) == 2


@pytest.mark.parametrize("name", STATES)
def test_states_of_torch(name: str) -> None:
    """That a program reads."""
    read, other = STATES[name]
    jitted = thunder.jit(lambda x: (x + 1, read()))
    torch.set_num_threads(1)
    before = read()
    assert jitted(X)[1] == before
    with other:
        assert read() != before
        assert jitted(X)[1] == read()
    assert jitted(X)[1] == before
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, 1)


def test_whether_a_transform_of_torch_func_is_active() -> None:
    """A program may ask, outside of its transforms and inside of them, and is not used inside of another's."""
    ask = torch._C._are_functorch_transforms_active

    def f(x: Any) -> Any:
        inside = torch.vmap(lambda y: y * (2 if torch._C._are_functorch_transforms_active() else 3))(x)
        return inside * (5 if torch._C._are_functorch_transforms_active() or ask() else 7)

    jitted = thunder.jit(f)
    for _ in range(3):
        assert jitted(torch.ones(2)).tolist() == f(torch.ones(2)).tolist() == [14, 14]
        assert (
            torch.vmap(jitted)(torch.ones(2, 2)).tolist() == torch.vmap(f)(torch.ones(2, 2)).tolist() == [[10, 10]] * 2
        )
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)


def attend(q: Any) -> Any:
    """Attention."""
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_the_choice_of_attention_kernels_around() -> None:
    """Is guarded by programs that have attention in them, and by no others."""
    q = torch.rand(1, 2, 4, 8, requires_grad=True)
    jitted, without = thunder.jit(attend), thunder.jit(program)
    kernels = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            torch.testing.assert_close(jitted(q), attend(q))
            without(X)
        kernels.append("attention_forward" in str(thunder.last_traces(jitted)[-1]))
    assert kernels == [True, False, True]
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, 1)
    assert thunder.cache_misses(without) == 1


FIRST_ATTENTION = """
import torch, thunder
q = torch.randn(1, 2, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
f = thunder.jit(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
for _ in range(3):
    f(q).sum().backward()
assert thunder.cache_misses(f) == 1
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch changes its mind on a GPU only")
def test_the_first_attention_of_a_process() -> None:
    """torch puts its kernels into another order when it first chooses one: before the program is traced."""
    subprocess.run([sys.executable, "-c", FIRST_ATTENTION], check=True, timeout=120)


def test_the_choice_of_attention_kernels_inside() -> None:
    """Is the program's, in both directions."""

    def f(q: Any) -> Any:
        with sdpa_kernel([SDPBackend.MATH]):
            y = attend(q)
        return y + attend(q)

    q = torch.rand(1, 2, 4, 8, requires_grad=True)
    jitted = thunder.jit(f)
    for _ in range(2):
        found, expected = jitted(q), f(q)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), q), torch.autograd.grad(expected.sum(), q))
    assert thunder.cache_hits(jitted) == 1, thunder.explain(jitted)
    assert "attention_by_choice" in str(thunder.last_traces(jitted)[0])
    with Dispatched() as seen, torch.no_grad():
        thunder.jit(f)(q)
    assert sum("flash" in name for name in seen.names) == 1


# -- grad mode --------------------------------------------------------------------------------------------------------
class Doubled(torch.autograd.Function):
    """Twice the input, and the input and one."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x + 1

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return g * 2 + h


WITHOUT_GRADIENTS = {
    "operation": lambda x: x.sin(),
    "function": lambda x: Doubled.apply(x)[0],
    "second_result": lambda x: Doubled.apply(x)[1],
    "method": lambda x: x.where(x > 0, x * 2),
    "checkpoint": lambda x: checkpoint(lambda y: y.sin() * y, x, use_reentrant=False),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)),
    "torchs_own": lambda x: torch.linalg.lstsq(x, x + 1).solution,
    "grad": lambda x: torch.func.grad(lambda y: (y**3).sum())(x),
    "vmap": lambda x: torch.func.vmap(lambda y: y * y.sum())(x),
    "jvp": lambda x: torch.func.jvp(lambda y: y**3 + x, (x,), (x.detach(),))[1],
    "write": lambda x: x.clone().mul_(x),
    "module": nn.GRU(3, 3).double(),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_no_gradient_flows_out_of_no_grad(name: str) -> None:
    """Whatever it is that runs there."""
    run = WITHOUT_GRADIENTS[name]

    def f(x: Any) -> Any:
        with torch.no_grad():
            y = run(x)
            y = y[0] if isinstance(y, tuple) else y
        return y * x, y

    found = []
    for g in (thunder.jit(f), f):
        torch.manual_seed(0)
        x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
        out, inner = g(x)
        found.append([*torch.autograd.grad(out.sum(), x), out.detach(), inner])
        assert not inner.requires_grad
    torch.testing.assert_close(*found)


def test_tangents_move_under_no_grad() -> None:
    """Of modules too, whose parameters require grad."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, along = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    programs = [
        lambda m, x: m.jvp(model, (x,), (along,)),
        lambda m, x: m.jacfwd(model)(x),
        lambda m, x: m.hessian(lambda y: model(y).sum())(x),
        lambda m, x: m.vmap(m.jacfwd(model))(x.expand(2, 3)),
    ]
    for f in programs:
        with torch.no_grad():
            expected = f(torch.func, x)
            torch.testing.assert_close(f(thunder, x), expected)
            jitted = thunder.jit(lambda x, f=f: f(torch.func, x))
            torch.testing.assert_close(jitted(x), expected)
        assert not jitted(x)[0].is_leaf

        def inside(x: Any, f: Any = f) -> Any:
            with torch.no_grad():
                return f(torch.func, x)

        found = thunder.jit(inside)(x)
        torch.testing.assert_close(found, expected)
        assert not found[0].requires_grad
