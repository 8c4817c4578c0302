# SPDX-License-Identifier: Apache-2.0
"""What a trace or a call that fails leaves behind: the user's error, and everything else as it was."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from outcomes import counts

import thunder
from thunder.core.errors import TracingError
from thunder.core.state import state


class Surroundings:
    """What a failed trace has to leave as it was."""

    def __init__(self) -> None:
        self.flag = torch.compiler._is_compiling_flag
        self.apply = torch.autograd.Function.__dict__.get("apply")
        self.vmap = torch.vmap
        self.getattribute = torch.nn.Module.__getattribute__

    def assert_same(self) -> None:
        """Modes, flags and functions of torch, and the thread's own state."""
        assert torch.compiler._is_compiling_flag is self.flag
        assert torch.autograd.Function.__dict__.get("apply") is self.apply
        assert torch.vmap is self.vmap
        assert torch.nn.Module.__getattribute__ is self.getattribute
        assert not torch.compiler.is_compiling()
        assert torch._C._len_torch_function_stack() == 0
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert (state.trace, state.frontend, state.source) == (None, None, None)


def strict(fn: Any) -> Any:
    """Compile `fn` so that thunder's own errors are raised."""
    return thunder.jit(fn, sharp_edges="error")


def fails_in_python(x: Any) -> Any:
    """An error of the program's own."""
    with torch.no_grad(), torch.autocast("cpu"):
        y = x + 1
        raise KeyError(f"no luck with {y.shape}")


def fails_in_torch(x: Any) -> Any:
    """An error of torch's."""
    return x @ torch.ones(7, 7)


def fails_deep_inside(x: Any) -> Any:
    """In a function of a function, in a hook."""

    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Any) -> Any:
            raise ValueError("not this one")

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    return Picky.apply(x)


def exits(x: Any) -> Any:
    """Not even an Exception."""
    raise SystemExit(3)


FAILURES = [
    (fails_in_python, KeyError), (fails_in_torch, RuntimeError), (fails_deep_inside, ValueError), (exits, SystemExit),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "error"), FAILURES, ids=lambda p: getattr(p, "__name__", ""))
def test_a_failed_trace_leaves_nothing_behind(fn: Any, error: Any) -> None:
    """The error reaches the user with the lines of the program, and all is as it was."""
    before = Surroundings()
    f = strict(fn)
    for grad in (False, True):
        x = torch.ones(2, 3, requires_grad=grad)
        with pytest.raises(error) as caught:
            f(x)
        before.assert_same()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert any(frame.name == fn.__name__ for frame in frames)
        assert torch.equal(x, torch.ones(2, 3))
    assert counts(f) == (2, 0)
    del caught, frames
    g = thunder.jit(lambda x: x + 1)
    assert torch.equal(g(torch.ones(2)), torch.full((2,), 2.0))


def test_an_error_of_the_user_keeps_its_message_and_type() -> None:
    """It is the error of eager mode, without a chain."""
    with pytest.raises(KeyError) as caught:
        thunder.jit(fails_in_python)(torch.ones(2))
    assert caught.value.args == ("no luck with torch.Size([2])",)
    with pytest.raises(RuntimeError) as expected:
        fails_in_torch(torch.ones(2, 3))
    with pytest.raises(RuntimeError) as error:
        thunder.jit(fails_in_torch)(torch.ones(2, 3))
    assert error.value.args == expected.value.args
    assert error.value.__cause__ is error.value.__context__ is None
    assert traceback.extract_tb(error.value.__traceback__)[-1].line == "return x @ torch.ones(7, 7)"


def test_errors_that_the_program_catches() -> None:
    """Are its own business."""

    def f(x: Any) -> Any:
        try:
            return x @ torch.ones(7, 7)
        except RuntimeError:
            return x * 2

    jitted = thunder.jit(f)
    for _ in range(2):
        assert torch.equal(jitted(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert counts(jitted) == (1, 1)


def test_an_error_at_run_time() -> None:
    """A kernel that fails in a cached program raises its error, and the next call works."""
    executor = thunder.extend.OperatorExecutor("jit_test_run")
    broken = [False]

    def run(a: torch.Tensor) -> torch.Tensor:
        if broken[0]:
            raise ArithmeticError("the kernel failed")
        return a + 1

    op = executor.register_operator("flaky", like=lambda a: a + 1, fn=run)
    f = thunder.jit(lambda x: op(x), executors=[executor])
    assert f(torch.ones(1)).item() == 2
    broken[0] = True
    with pytest.raises(ArithmeticError, match="the kernel failed"):
        f(torch.ones(1))
    broken[0] = False
    assert f(torch.ones(1)).item() == 2
    assert counts(f) == (1, 2)


def test_a_tensor_of_another_trace() -> None:
    """Cannot be used in this one, and outside of any it says so."""

    def f(x: Any) -> Any:
        raise KeyError(x + 1)  # what a failed trace has put anywhere else is taken back

    with pytest.raises(KeyError) as caught:
        thunder.trace()(f, torch.ones(2))
    (stolen,) = caught.value.args
    with pytest.raises(TracingError):
        stolen + 1
    with pytest.raises(TracingError, match="another trace"):
        strict(lambda x: x + stolen)(torch.ones(2))
