# SPDX-License-Identifier: Apache-2.0
"""Errors that reach the user: eager's type and message, no frames of thunder, and notes."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import message_and_notes

import thunder
from thunder.core import tracebacks
from thunder.core.locations import is_ours, is_user_code


class Net(torch.nn.Module):
    """Three linear layers and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)] + [torch.nn.Linear(5, 4)])
        self.embedding = torch.nn.Embedding(4, 4)

    def forward(self, x, i):
        """Fail in `layers.2`, unless it is left out, or in the embedding."""
        for layer in self.layers[: x.shape[0]]:
            x = layer(x)
        return x + self.embedding(i)


def error_of(fn: Callable[..., Any], *args: Any) -> BaseException:
    """Return the exception that a call raises."""
    with pytest.raises(Exception) as caught:
        fn(*args)
    return caught.value


def files(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def is_hidden(filename: str) -> bool:
    return is_ours(filename) or filename.startswith("<thunder.")


def check_as_in_eager(eager: Any, jitted: Any, *args: Any) -> BaseException:
    """Check type, message and frames, and return the error."""
    theirs, ours = error_of(eager, *args), error_of(jitted, *args)
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    assert ours.__cause__ is None
    assert not any(map(is_hidden, files(ours)))
    return ours


def test_an_error_while_tracing() -> None:
    """In a layer: torch's message, the line that calls the layer, and the layer's path."""
    net = Net()
    error = check_as_in_eager(net, thunder.jit(net), torch.ones(3, 4), torch.tensor([0]))
    assert "mat1 and mat2 shapes cannot be multiplied" in str(error)
    at, module = error.__notes__  # type: ignore[attr-defined]
    assert at.startswith(f"at {__file__}:")
    assert at.endswith("x = layer(x)")
    assert module == "in layers.2 (Linear)"
    assert sum("in forward" in line for line in traceback.format_tb(error.__traceback__)) > 1  # the user's frames stay


def test_an_error_of_the_compiled_program() -> None:
    """At run time, in a warm call."""
    net = Net()
    jitted = thunder.jit(net)
    jitted(torch.ones(2, 4), torch.tensor([0]))
    error = check_as_in_eager(net, jitted, torch.ones(2, 4), torch.tensor([9]))
    assert thunder.cache_misses(jitted) == 1
    at, module = error.__notes__  # type: ignore[attr-defined]
    assert at.endswith("return x + self.embedding(i)")
    assert module == "in embedding (Embedding)"


def test_an_error_of_user_code() -> None:
    """Raised by the program itself."""

    def f(x):
        raise KeyError("user", x.shape)

    error = check_as_in_eager(f, thunder.jit(f), torch.ones(3))
    assert files(error)[-1] == __file__
    assert 'raise KeyError("user"' in message_and_notes(error)


def test_an_error_in_backward() -> None:
    """It comes out of `loss.backward()`, through torch, without frames of thunder."""

    def f(x):
        y = x.exp()
        y.register_hook(lambda g: 1 / 0)
        return y.sum()

    x = torch.ones(3, requires_grad=True)
    error = error_of(thunder.jit(f)(x).backward)
    assert type(error) is ZeroDivisionError
    assert not any(map(is_hidden, files(error)))


def test_an_error_that_the_program_catches_is_eagers() -> None:
    """The program may print the message or compare it."""

    def f(x):
        try:
            x @ torch.ones(7)
        except RuntimeError as error:
            return x + len(str(error))
        return x

    x = torch.ones(2, 3)
    torch.testing.assert_close(thunder.jit(f)(x), f(x))


def test_an_error_of_thunder_keeps_the_line_in_its_message() -> None:
    """And names the module."""

    class Branch(torch.nn.Module):
        def forward(self, x):
            assert isinstance(x, torch.Tensor)
            with thunder.core.langctx.langctx("no such language"):
                return x

    error = error_of(thunder.jit(torch.nn.Sequential(torch.nn.Identity(), Branch())), torch.ones(3))
    assert f"at {__file__}" in message_and_notes(error)
    assert "in 1 (Branch)" in message_and_notes(error)
    assert not any(map(is_hidden, files(error)))


def test_all_frames_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """THUNDER_TRACEBACK=full keeps thunder's frames and those of the program, with its source."""
    net = Net()
    jitted = thunder.jit(net, sharp_edges="error")  # otherwise the error is that of an eager run
    jitted(torch.ones(2, 4), torch.tensor([0]))
    monkeypatch.setenv("THUNDER_TRACEBACK", "full")
    error = error_of(jitted, torch.ones(2, 4), torch.tensor([9]))
    assert any(map(is_ours, files(error)))
    text = "".join(traceback.format_exception(error))
    assert "in computation" in text
    assert "torch.nn.functional.embedding(" in text
    assert "in embedding (Embedding)" in message_and_notes(error)


def test_a_defect_of_thunder_says_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frames are hidden too, so a note tells how to see them."""
    monkeypatch.setattr("thunder.frontend.pipeline.Passes", None)
    error = error_of(thunder.jit(lambda x: x + 1), torch.ones(3))
    assert "'NoneType' object is not callable" in str(error)
    assert "THUNDER_TRACEBACK=full" in message_and_notes(error)


def test_causes_have_no_frames_of_thunder() -> None:
    """Also of errors that user code raises from others."""

    def f(x):
        try:
            return x.reshape(7)
        except RuntimeError as error:
            raise ValueError("the shape") from error

    error = error_of(thunder.jit(f), torch.ones(3))
    assert isinstance(error.__cause__, RuntimeError)
    assert not any(map(is_hidden, files(error.__cause__)))
    assert "shape '[7]' is invalid for input of size 3" in str(error.__cause__)


def test_errors_that_allow_no_notes() -> None:
    """They stay as they are."""

    class Closed(Exception):
        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(name)

    tracebacks.present(Closed("x"))


def test_notes_are_added_once() -> None:
    """By several layers."""
    error = ValueError("x")
    for note in ("a", "b", "a"):
        tracebacks.add_note(error, note)
    assert error.__notes__ == ["a", "b"]  # type: ignore[attr-defined]


def test_which_files_are_user_code() -> None:
    """Neither thunder, nor torch, nor the standard library, nor generated code."""
    assert is_user_code(__file__)
    assert not any(map(is_user_code, (thunder.__file__, torch.__file__, traceback.__file__, "<string>")))


def test_programs_are_forgotten_with_their_functions() -> None:
    """The table of lines does not grow."""
    before = len(tracebacks.sources)
    jitted = thunder.jit(lambda x: x + 1)
    jitted(torch.ones(2))
    assert len(tracebacks.sources) > before
    del jitted
    gc.collect()
    assert len(tracebacks.sources) <= before
