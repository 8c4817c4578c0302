# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that fail at run time: the error, the effects before the error and its handling are eager's."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import TracingError

GOOD, BAD = torch.eye(2), -torch.eye(2)
log: list[Any] = []


class Net(torch.nn.Module):
    """Has all kinds of effects before and after an operation that fails for some values."""

    def __init__(self, *, draws: bool = False) -> None:
        super().__init__()
        self.draws = draws
        self.calls = 0
        self.seen: list[int] = []
        self.register_buffer("total", torch.zeros(2, 2))

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.total.add_(x.detach())
        out.add_(1)
        print("before", self.calls)
        if self.draws:
            x = x + torch.rand(2, 2) * 0
        y = torch.linalg.cholesky(x)
        print("after")
        self.seen.append(-self.calls)
        out.mul_(2)
        return y


def outcome(run: Callable[..., Any], net: Net, *args: Any) -> Any:
    """Return the result or the error of a call, and what it has changed."""
    printed, out = io.StringIO(), torch.zeros(2, 2)
    with contextlib.redirect_stdout(printed):
        try:
            result: Any = run(*args, out).detach()
        except RuntimeError as error:
            result = type(error), str(error)
    return result, out, net.total.clone(), net.calls, list(net.seen), printed.getvalue()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("order", [(GOOD, BAD, GOOD, BAD), (BAD, BAD, GOOD, BAD)])
def test_effects_before_the_error(grad: bool, order: Any) -> None:
    eager, compiled = Net(), Net()
    jitted = thunder.jit(compiled)
    for x in order:
        x = x.clone().requires_grad_(grad)
        expected, found = outcome(eager, eager, x), outcome(jitted, compiled, x)
        assert str(found) == str(expected)
    assert thunder.cache_misses(jitted) <= 3  # the counter becomes symbolic
    assert "eager" not in thunder.explain(jitted)


def test_nothing_happens_twice_after_random_numbers() -> None:
    net = Net(draws=True)
    jitted = thunder.jit(net)
    jitted(GOOD, torch.zeros(2, 2))
    before = torch.get_rng_state()
    result, out, total, calls, _, printed = outcome(jitted, net, BAD)
    assert result[0] is torch.linalg.LinAlgError
    assert not out.any() and torch.equal(total, GOOD) and calls == 1 and not printed
    assert not torch.equal(torch.get_rng_state(), before)  # the program has drawn, as eager mode does


def test_nothing_happens_twice_after_a_write() -> None:
    written: list[Any] = []

    def write(x: Any) -> None:
        written.append(x)

    @torch.library.custom_op("thunder_tests::write_then_fail", mutates_args=("x",))
    def write_then_fail(x: torch.Tensor) -> None:
        write(x)
        x.add_(1)
        if x.sum() > 10:
            raise RuntimeError("too much")

    def fn(x: torch.Tensor) -> torch.Tensor:
        write_then_fail(x)
        return x * 2

    jfn = thunder.jit(fn)
    jfn(torch.zeros(2))
    written.clear()
    x = torch.full((2,), 8.0)
    with pytest.raises(RuntimeError, match="too much"):
        jfn(x)
    assert len(written) == 1  # eager mode would also have written to x


def handles(x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return x * 5


def test_an_error_that_the_program_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_STRICT", "0")
    jfn = thunder.jit(handles)
    jfn(GOOD)
    with pytest.warns(
        thunder.FallbackWarning, match="the compiled program raised _LinAlgError, but eager mode did not"
    ):
        assert torch.equal(jfn(BAD), handles(BAD))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(jfn(BAD), handles(BAD))
    assert thunder.cache_misses(jfn) == 1
    assert "but eager mode did not" in thunder.explain(jfn)


def test_a_strict_environment_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_STRICT", "1")
    jfn = thunder.jit(handles)
    jfn(GOOD)
    with pytest.raises(TracingError, match="but eager mode did not") as caught:
        jfn(BAD)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_sharp_edges_error_runs_nothing_eagerly() -> None:
    ran = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return torch.linalg.cholesky(x)

    jfn = thunder.jit(fn, sharp_edges="error")
    jfn(GOOD)
    ran.clear()
    with pytest.raises(torch.linalg.LinAlgError):
        jfn(BAD)
    assert not ran


def test_the_error_has_the_line_of_the_program_and_no_context() -> None:
    jfn = thunder.jit(lambda x: torch.linalg.cholesky(x))
    jfn(GOOD)
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        jfn(BAD)
    assert any("torch.linalg.cholesky(x)" in note for note in caught.value.__notes__)
    assert caught.value.__context__ is None and caught.value.__cause__ is None


def test_an_index_out_of_range() -> None:
    def fn(i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return w[i]

    log.clear()
    jfn = thunder.jit(fn)
    jfn(torch.tensor([0]), GOOD)
    with pytest.raises(IndexError):
        jfn(torch.tensor([7]), GOOD)
    assert len(log) == 2


def test_a_path_that_fails() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        log.append("start")
        return torch.linalg.cholesky(x) if x.sum() < 5 else x

    log.clear()
    jfn = thunder.jit(fn)
    jfn(GOOD), jfn(GOOD * 9)
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError):
            jfn(BAD)
    assert len(log) == 4


def test_an_error_in_an_epilogue_is_not_repeated() -> None:
    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if fails:
                raise OSError("the disk is full")
            return super().write(text)

    fails, held = False, []

    def fn(x: torch.Tensor) -> torch.Tensor:
        held.append(1)
        print("text")
        return x + 1

    jfn = thunder.jit(fn)
    with contextlib.redirect_stdout(Stream()):
        jfn(GOOD)
        fails = True
        with pytest.raises(OSError, match="disk"):
            jfn(GOOD)
    assert len(held) <= 2
