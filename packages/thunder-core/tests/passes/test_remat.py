# SPDX-License-Identifier: Apache-2.0
"""What is saved for backward and what is computed again: bytes, and the same gradients whatever is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.nbytes import bytes_of
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags
from thunder.core.trace import Trace
from thunder.extend import FusionExecutor, OperatorExecutor

N = 256  # large enough that an operation is worth its memory


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Float64 leaves that require grad."""
    generator = torch.Generator().manual_seed(5)
    return [torch.rand(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]


def saved(fn: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> tuple[dict[str, int], list[str]]:
    """The bytes of what the jitted function saves, by name, and the operations of its backward program."""
    jitted = thunder.jit(fn, **options)
    out = jitted(*inputs)
    found = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
    expected = torch.autograd.grad(fn(*inputs).sum(), inputs, allow_unused=True)
    for g, e in zip(found, expected):
        if e is not None:
            torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)
    values = thunder.last_traces(jitted)[-1].output[1]
    program = thunder.last_backward_traces(jitted)[-1]
    return {p.name: bytes_of(p) for p in values}, [op.sym.name for op in program.bound_symbols]


def test_light_arithmetic_on_what_is_read_anyway() -> None:
    """A product whose factors are kept for its own gradient is not kept besides."""
    x, w = leaves((N, N), (N, N))

    def f(x: Any, w: Any) -> Any:
        gate, up = x @ w, w @ x
        return (gate.sigmoid() * up) @ w

    auto, again = saved(f, x, w)
    none, _ = saved(f, x, w, remat="none")
    assert sum(none.values()) - sum(auto.values()) == N * N * 8
    assert "mul" in again


def test_a_result_is_kept_rather_than_two_inputs() -> None:
    """The caller has all three; backward reads one."""
    x, r = leaves((N, N), (N, N))

    def f(x: Any, r: Any) -> Any:
        h = x + r
        return h.sin(), h

    jitted = thunder.jit(f)
    for mine, right in zip(
        torch.autograd.grad(jitted(x, r), (x, r), [x, r]), torch.autograd.grad(f(x, r), (x, r), [x, r])
    ):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)
    trace = thunder.last_traces(jitted)[-1]
    (kept,) = trace.output[1]
    assert kept.name == trace.output[0][1].name


def test_small_values_are_kept() -> None:
    """An operation costs more than their memory."""
    x, w = leaves((8, 8), (8, 8))

    def f(x: Any, w: Any) -> Any:
        return ((x @ w).sigmoid() * (w @ x)) @ w

    assert saved(f, x, w)[0] == saved(f, x, w, remat="none")[0]


def test_wider_casts_are_made_again() -> None:
    """Half the bytes are kept."""
    x = torch.rand(N, N).requires_grad_()

    def f(x: Any) -> Any:
        return (x.sin().to(torch.bfloat16).float() ** 3).sum()

    jitted = thunder.jit(f)
    jitted(x).backward()
    kinds = {p.name: str(p.dtype) for p in thunder.last_traces(jitted)[-1].output[1]}
    assert sorted(kinds.values()) == ["bfloat16", "float32"]  # and the argument of sin
    assert "to" in [op.sym.name for op in thunder.last_backward_traces(jitted)[-1].bound_symbols]


def test_masks_and_fills_are_made_again() -> None:
    """They hang on no input."""
    (x,) = leaves((N, N))

    def f(x: Any) -> Any:
        mask = torch.ones(N, N, dtype=torch.bool).tril()
        return torch.where(mask, x, torch.full((N, N), 2.0, dtype=torch.float64)) * 3

    found, again = saved(f, x)
    assert found == {}
    assert "tril" in again


def test_views_share_what_is_behind_them() -> None:
    """Parts that are all read are kept as they are: their memory is one."""
    x, w = leaves((N, 3 * N), (N, N))

    def f(x: Any, w: Any) -> Any:
        q, k, v = (x.sin() * 2).chunk(3, dim=1)
        return (q @ k.T).tanh() @ v @ w

    jitted = thunder.jit(f)
    jitted(x, w).sum().backward()
    # sin's argument, the three parts in one piece of memory, tanh's result, the last product's factors
    predicted = thunder.examine.memory(jitted).sections["forward"][-1].live - 4 * N * N * 8
    assert predicted == (3 + 1 + 1 + 1) * N * N * 8


def test_all_and_none() -> None:
    """From each elementwise operation kept to each computed again."""
    x, w = leaves((N, N), (N, N))

    def f(x: Any, w: Any) -> Any:
        return F.gelu((x @ w).sin()).tanh() @ w

    sizes = [sum(saved(f, x, w, remat=how)[0].values()) // (N * N * 8) for how in ("none", "auto", "all")]
    assert sizes == [5, 5, 3]  # x, w and x @ w; then the results of sin and tanh
    with pytest.raises(ValueError, match="remat is one of 'auto', 'none', 'all'"):
        thunder.jit(f, remat="some")


def test_what_is_dear_is_never_computed_again() -> None:
    """Products, reductions, sorts and random numbers."""
    x, w = leaves((N, N), (N, N))

    def f(x: Any, w: Any) -> Any:
        y = F.dropout((x @ w).cumsum(0), 0.5)
        return (y.sort(1).values * y.amax(1, keepdim=True)).sum(1)

    results = []
    for g in (f, jitted := thunder.jit(f, remat="all")):
        torch.manual_seed(0)
        results.append(torch.autograd.grad(g(x, w).sum(), (x, w)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    again = [op.sym.name for op in thunder.last_backward_traces(jitted)[-1].bound_symbols]
    assert not [name for name in again if "drop" in name or "bernoulli" in name or name in ("sort", "amax")]
    assert again.count("matmul") == 2  # the gradients of x and w


class Fuser(FusionExecutor):
    """Says that it fuses everything elementwise, and leaves it to torch."""

    def fusion_pass(self, trace: Trace) -> Trace:
        """The trace as it is."""
        return trace


def test_what_a_fusion_executor_takes_is_computed_again() -> None:
    """And nothing else."""
    fuser = Fuser("remat_test")
    for sym in (prims.sin, prims.tanh, prims.mul, prims.exp):
        fuser.register_supported(sym)
    x, w = leaves((N, N), (N, N))

    def f(x: Any, w: Any) -> Any:
        return (x @ w).sin().tanh().sigmoid() @ w

    sizes = [sum(saved(f, x, w, executors=ex)[0].values()) // (N * N * 8) for ex in ([], [fuser])]
    assert sizes == [5, 4]  # x, w, x @ w and sigmoid's result stay, tanh's is computed again


def test_what_would_be_a_kernel_by_itself_is_kept() -> None:
    """Where only a product reads it, and no fusion of backward what it is computed of."""
    fuser = Fuser("remat_test_alone")
    for sym in (prims.mul, prims.sin, prims.cos):
        fuser.register_supported(sym)
    x, w = leaves((N, N), (N, N))
    c = torch.rand(N, N, dtype=torch.float64)

    def alone(x: Any, w: Any) -> Any:
        u = x @ w
        return u @ w + (u * c * c) @ w

    def beside(x: Any, w: Any) -> Any:
        u = x @ w
        return u @ w + (u * c * c) @ w + u.sin()

    kept, program = saved(alone, x, w, executors=[fuser])
    assert sum(kept.values()) // (N * N * 8) == 5 and program.count("mul") == 2  # x, w, c, u and the product with c
    kept, program = saved(beside, x, w, executors=[fuser])
    assert sum(kept.values()) // (N * N * 8) == 4 and program.count("mul") > 3
    kept, program = saved(alone, x, w, executors=[fuser], remat="all")
    assert sum(kept.values()) // (N * N * 8) == 4 and program.count("mul") == 4


def test_a_small_part_of_something_larger_is_copied() -> None:
    """Where a fuser makes the copy, and the rest would be kept for it alone."""
    fuser = Fuser("remat_test_parts")
    for sym in (prims.clone, prims.mul):
        fuser.register_supported(sym)
    x, w, v = leaves((N, N), (N, N), (N // 2, N))

    def of_half(x: Any, w: Any, v: Any) -> Any:
        first, second = (x @ w).split(N // 2, -1)
        return (first @ v) * second.sum()

    def of_both(x: Any, w: Any, v: Any) -> Any:
        first, second = (x @ w).split(N // 2, -1)
        return (first @ v) @ (second @ v).T

    def of_an_input(x: Any, w: Any, v: Any) -> Any:
        return (x[:, : N // 2] @ v) @ w

    def of_a_sum(x: Any, w: Any, v: Any) -> Any:
        u = x @ w
        return u + u[:, : N // 2] @ v

    def copies(f: Callable[..., Any], **options: Any) -> list[str]:
        return [name for name in saved(f, x, w, v, **options)[0] if "copy" in name]

    found = [len(copies(f, executors=[fuser])) for f in (of_half, of_both, of_an_input, of_a_sum)]
    assert found == [1, 0, 0, 1]
    assert copies(of_half, executors=[fuser], remat="all")
    assert not copies(of_half, executors=[]) and not copies(of_half, executors=[fuser], remat="none")
    jitted = thunder.jit(lambda x, w, v: ((u := x @ w), u[:, : N // 2] @ v), executors=[fuser])
    jitted(x, w, v)  # whose caller keeps the first result
    assert not [p.name for p in thunder.last_traces(jitted)[-1].output[1] if "copy" in p.name]


def test_what_was_copied_is_differentiated_again() -> None:
    """Gradients of gradients flow through the copy."""
    fuser = Fuser("remat_test_parts_again")
    fuser.register_supported(prims.clone)
    x, w, v = leaves((N, N), (N, N), (N // 2, N))

    def f(x: Any, w: Any, v: Any) -> Any:
        u = (x @ w).sin()[:, : N // 2] @ v
        return u * x + u.sin()

    jitted, results = thunder.jit(f, executors=[fuser]), []
    for g in (f, jitted):
        first = torch.autograd.grad(g(x, w, v).sum(), (x, w, v), create_graph=True)
        results.append([*first, *torch.autograd.grad(sum((t * t).sum() for t in first), (x, w, v))])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert [p.name for p in thunder.last_traces(jitted)[-1].output[1] if "copy" in p.name]


def test_random_numbers_from_a_seed() -> None:
    """Of an executor that draws from one, the seed is kept, and the same numbers are made of it again."""
    executor = OperatorExecutor("seeds_test")
    cpu, marks = devices.cpu, (OpTags.NON_DIFFERENTIABLE,)

    def noise(seed: torch.Tensor, shape: Any) -> torch.Tensor:
        return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(int(seed)))

    draw = executor.register_operator(
        "draw_seed", meta=lambda: TensorProxy(shape=(), device=cpu, dtype=dtypes.int64),
        fn=lambda: torch.randint(2**31, ()), tags=(OpTags.RANDOM_OP, *marks),
    )  # fmt: skip
    numbers = executor.register_operator(
        "numbers", meta=lambda seed, shape: TensorProxy(shape=shape, device=cpu, dtype=dtypes.float64),
        fn=noise, tags=(OpTags.RECOMPUTED, *marks),
    )  # fmt: skip
    jitted = thunder.jit(lambda x: x.sin() * numbers(draw(), (N, N)), executors=[executor])
    (x,) = leaves((N, N))
    torch.manual_seed(3)
    (found,) = torch.autograd.grad(jitted(x).sum(), x)
    torch.manual_seed(3)
    assert torch.equal(found, noise(torch.randint(2**31, ()), (N, N)) * x.cos())
    assert {p.shape for p in thunder.last_traces(jitted)[-1].output[1]} == {(), (N, N)}  # the seed, and x
    assert "numbers" in [op.sym.name for op in thunder.last_backward_traces(jitted)[-1].bound_symbols]


STEPS = st.lists(
    st.tuples(st.sampled_from(["sin", "mul", "matmul", "row", "T", "sum", "cast", "mask", "where"]), st.integers(0, 9),
              st.integers(0, 9)),
    min_size=1, max_size=10,
)  # fmt: skip


def run(steps: Any, a: Any, b: Any) -> Any:
    """A program of these steps."""
    values = [a, b]
    for name, i, j in steps:
        x, y = values[i % len(values)], values[j % len(values)]
        if name == "sin":
            out = x.sin()
        elif name == "mul":
            out = x * y * 0.5
        elif name == "matmul":
            out = (x @ y) / 100
        elif name == "row":
            out = torch.cat([x[50:], y[:50]])
        elif name == "T":
            out = x.T.reshape(100, 100)
        elif name == "sum":
            out = x.sum(0, keepdim=True).expand(100, 100) / 100
        elif name == "cast":
            out = x.float().double()
        elif name == "mask":
            out = x * torch.ones(100, 100, dtype=torch.float64).tril()
        else:
            out = torch.where(x > y, x, y)
        values.append(out)
    return values[-1] * 1.0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(STEPS, st.sampled_from(["auto", "none", "all"]))
def test_gradients_are_the_same_whatever_is_saved(steps: Any, remat: str) -> None:
    """On random programs."""
    a, b = leaves((100, 100), (100, 100))
    f = thunder.jit(lambda a, b: run(steps, a, b), remat=remat)
    out, expected = f(a, b), run(steps, a, b)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    found, wanted = (torch.autograd.grad(t.sin().sum(), (a, b), allow_unused=True) for t in (out, expected))
    for g, e in zip(found, wanted):
        assert (g is None) == (e is None)
        if e is not None:
            torch.testing.assert_close(g, e, rtol=1e-9, atol=1e-11)


def test_one_result_of_an_operation_is_saved_and_another_is_computed_again() -> None:
    """The operation that runs again does not define the saved result a second time, which verification rejects."""
    (x,) = leaves((N, N))

    def f(x: Any) -> Any:
        value, gate = x.chunk(2, 1)
        return value * gate.sigmoid()

    found, again = saved(f, x, remat="all")
    assert "x" in found
    assert "chunk" in again
