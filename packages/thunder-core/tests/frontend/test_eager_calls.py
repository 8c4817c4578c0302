# SPDX-License-Identifier: Apache-2.0
"""Calls whose trace is given up run eagerly, exactly once: results, errors, state and output are eager's."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import pickle
import queue
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder.core.errors import FallbackWarning, TracingError
from thunder.frontend import pipeline

# -- programs ----------------------------------------------------------------------------------------------------------
LOGGER = logging.getLogger("thunder_tests.fallbacks")
counter = 0


class World:
    """What programs read and change."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.txt"
        self.path.write_text("")
        self.items: list[Any] = []
        self.table: dict[str, int] = {"n": 0}
        self.count = 0
        self.caught = 0
        self.iterator = iter(range(100))
        self.made = (i * i for i in itertools.count())
        self.queue: queue.Queue[int] = queue.Queue()
        for i in range(100):
            self.queue.put(i)
        self.buffer = torch.zeros(2)
        self.text = io.StringIO()
        self.generator = torch.Generator().manual_seed(3)

    def state(self) -> dict[str, Any]:
        """Everything that a program may have changed."""
        return {
            "file": self.path.read_text(), "items": [*self.items], "table": {**self.table}, "count": self.count,
            "caught": self.caught, "iterator": pickle.dumps(self.iterator), "queue": list(self.queue.queue),
            "buffer": self.buffer.tolist(), "text": self.text.getvalue(), "counter": counter,
            "generator": self.generator.get_state().tolist(),
            "torch": torch.get_rng_state().tolist(), "python": random.getstate(),
            "numpy": pickle.dumps(np.random.get_state()), "grad": torch.is_grad_enabled(),
        }  # fmt: skip


Step = Callable[[World, torch.Tensor], torch.Tensor]


def prints(w: World, x: torch.Tensor) -> torch.Tensor:
    print("step", w.count)
    return x


def writes_to_stderr(w: World, x: torch.Tensor) -> torch.Tensor:
    sys.stderr.write("step\n")
    return x


def appends(w: World, x: torch.Tensor) -> torch.Tensor:
    w.items.append(len(w.items))
    return x


def counts_up(w: World, x: torch.Tensor) -> torch.Tensor:
    w.count += 1
    w.table["n"] += 2
    return x * w.count


def assigns_a_global(w: World, x: torch.Tensor) -> torch.Tensor:
    global counter
    counter += 1
    return x


def writes_a_line(w: World, x: torch.Tensor) -> torch.Tensor:
    with open(w.path, "a") as file:
        file.write("line\n")
    return x


def writes_text(w: World, x: torch.Tensor) -> torch.Tensor:
    w.text.write("text")
    return x


def draws_from_torch(w: World, x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(2)


def draws_from_a_generator(w: World, x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(2, generator=w.generator)


def draws_from_python(w: World, x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def draws_from_numpy(w: World, x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())


def takes_an_item(w: World, x: torch.Tensor) -> torch.Tensor:
    return x + next(w.iterator)


def takes_what_is_generated(w: World, x: torch.Tensor) -> torch.Tensor:
    return x + next(w.made)


def takes_from_a_queue(w: World, x: torch.Tensor) -> torch.Tensor:
    return x + w.queue.get_nowait()


def writes_to_a_buffer(w: World, x: torch.Tensor) -> torch.Tensor:
    w.buffer.add_(1)
    return x + w.buffer


def writes_to_its_input(w: World, x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def catches_its_own_error(w: World, x: torch.Tensor) -> torch.Tensor:
    try:
        raise LookupError("caught")
    except LookupError:
        w.caught += 1
    return x


def catches_an_error_of_torch(w: World, x: torch.Tensor) -> torch.Tensor:
    try:
        return x @ torch.ones(7, 7)
    except RuntimeError:
        w.caught += 1
        return x * 2


def catches_what_ends_the_trace(w: World, x: torch.Tensor) -> torch.Tensor:
    try:
        w.items.append(random.random())
    except Exception:
        w.caught += 1
    return x


def goes_on_in_finally(w: World, x: torch.Tensor) -> torch.Tensor:
    try:
        w.count += int(np.random.rand() > 2)
    finally:
        with open(w.path, "a") as file:
            file.write("finally\n")
    return x


class Closing:
    def __init__(self, w: World) -> None:
        self.w = w

    def __enter__(self) -> Closing:
        return self

    def __exit__(self, *_: Any) -> None:
        self.w.items.append(self.w.queue.get_nowait())


def goes_on_in_a_context(w: World, x: torch.Tensor) -> torch.Tensor:
    with Closing(w), contextlib.suppress(Exception):
        return x + next(w.iterator)
    return x


def logs(w: World, x: torch.Tensor) -> torch.Tensor:
    LOGGER.warning("step %d", w.count)
    return x


EFFECTS: list[Step] = [
    prints, writes_to_stderr, appends, counts_up, assigns_a_global, writes_a_line, writes_text, draws_from_torch,
    draws_from_a_generator, draws_from_python, draws_from_numpy, takes_an_item, takes_what_is_generated,
    takes_from_a_queue, writes_to_a_buffer, writes_to_its_input, catches_its_own_error, catches_an_error_of_torch,
    catches_what_ends_the_trace, goes_on_in_finally, goes_on_in_a_context, logs,
]  # fmt: skip


def branches(w: World, x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sin().sum() > 0 else x - 1


def branches_and_catches(w: World, x: torch.Tensor) -> torch.Tensor:
    try:
        return x + 1 if x.sin().sum() > 0 else x - 1
    except Exception:
        w.caught += 1
        return x


def uses_numpy(w: World, x: torch.Tensor) -> torch.Tensor:
    return x * float(np.median(x.detach().numpy()))


def counts_by_a_value(w: World, x: torch.Tensor) -> torch.Tensor:
    for i in range(int(x.abs().sum()) % 3):
        x = x + i
    return x


def is_sparse(w: World, x: torch.Tensor) -> torch.Tensor:
    return x + torch.eye(2).to_sparse().to_dense().sum()


@thunder.disable
def _stays_python(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_a_disabled_function(w: World, x: torch.Tensor) -> torch.Tensor:
    return _stays_python(x)


def goes_backward(w: World, x: torch.Tensor) -> torch.Tensor:
    y = torch.ones(2, requires_grad=True)
    (y * x.detach()).sum().backward()
    return x + y.grad  # type: ignore[operator]


def raises(w: World, x: torch.Tensor) -> torch.Tensor:
    raise KeyError("no luck", w.count)


def raises_from_another(w: World, x: torch.Tensor) -> torch.Tensor:
    try:
        raise LookupError("inner")
    except LookupError as error:
        raise ValueError("outer") from error


def raises_after_a_branch(w: World, x: torch.Tensor) -> torch.Tensor:
    if x.sin().sum() > 1000:
        return x
    raise ArithmeticError("late")


def fails_in_torch(w: World, x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(7, 7)


def exits(w: World, x: torch.Tensor) -> torch.Tensor:
    sys.exit(3)


def raises_at_times(w: World, x: torch.Tensor) -> torch.Tensor:
    if w.count == 1:
        raise RuntimeError("only in the first call")
    return x + 1


ENDS: list[Step] = [
    branches, branches_and_catches, uses_numpy, counts_by_a_value, is_sparse, calls_a_disabled_function, goes_backward,
    raises, raises_from_another, raises_after_a_branch, fails_in_torch, exits, raises_at_times, draws_from_python,
    writes_a_line, takes_an_item, catches_what_ends_the_trace, goes_on_in_finally, goes_on_in_a_context,
]  # fmt: skip
# Ends that are the program's own, that the user has asked for, or that thunder compiles after all.
COMPILED = {
    "raises", "raises_from_another", "raises_after_a_branch", "fails_in_torch", "exits", "raises_at_times", "branches",
    "branches_and_catches", "counts_by_a_value", "calls_a_disabled_function", "uses_numpy", "goes_backward",
}  # fmt: skip


# -- comparison --------------------------------------------------------------------------------------------------------
def described(error: BaseException | None) -> Any:
    """An error with its chain, and the functions of the program that it passed."""
    if error is None:
        return None
    names = [f.name for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
    chain = described(error.__cause__), described(error.__context__), error.__suppress_context__
    return type(error), error.args, [name for name in names if name != "one_call"], chain


def one_call(fn: Any, w: World, x: torch.Tensor) -> Any:
    """Everything that a call does."""
    out, err, log = io.StringIO(), io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    LOGGER.addHandler(handler)
    result, failure = None, None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = fn(w, x).tolist()
    except (Exception, SystemExit) as error:
        failure = described(error)
    finally:
        LOGGER.removeHandler(handler)
    return result, failure, x.tolist(), out.getvalue(), err.getvalue(), log.getvalue(), w.state()


def program_of(steps: tuple[Step, ...]) -> Callable[[World, torch.Tensor], torch.Tensor]:
    def program(w: World, x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(w, x)
        return x

    return program


def calls(fn: Any, folder: Path, number: int) -> Iterator[Any]:
    """Call `fn` several times from the same state, and yield everything that each call does."""
    global counter
    counter = 0
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    w = World(folder)
    for i in range(number):
        yield one_call(fn, w, torch.full((2,), 0.25 + i))


def check(steps: tuple[Step, ...], folder: Path, *, number: int = 4) -> list[Any]:
    """Compare the calls of a jitted program with eager mode, and return the warnings about fallbacks."""
    eager = list(calls(program_of(steps), folder, number))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jitted = thunder.jit(program_of(steps))
        for i, (expected, actual) in enumerate(zip(eager, calls(jitted, folder, number))):
            assert actual == expected, (i, [step.__name__ for step in steps])
    assert thunder.cache_misses(jitted) <= number
    return [w.message for w in found if issubclass(w.category, FallbackWarning)]


@pytest.mark.parametrize("end", ENDS, ids=lambda f: f.__name__)
def test_effects_before_and_after_the_end_of_a_trace(end: Step, tmp_path: Path) -> None:
    """Effects before the end of the trace happen once, also those after it, and there is one warning at most."""
    for effect in EFFECTS:
        found = check((effect, end, effect), tmp_path)
        assert len(found) <= 1
        if end.__name__ not in COMPILED:
            assert len(found) == 1, effect


@settings(max_examples=40)
@given(steps=st.lists(st.sampled_from([*EFFECTS, *ENDS]), min_size=2, max_size=6))
def test_random_programs(steps: list[Step], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever ends the trace, the calls are those of eager mode."""
    assert len(check(tuple(steps), tmp_path_factory.mktemp("programs"), number=3)) <= 1


# -- errors ------------------------------------------------------------------------------------------------------------
def test_bad_inputs_do_not_end_the_compilation_of_good_ones() -> None:
    """A program that raises its own errors is compiled for the calls that do not raise."""
    seen = []

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        seen.append(n)
        if n < 0:
            raise ValueError(f"negative: {n}")
        return x * n

    jitted = thunder.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (-1, -2, -3, -4, 2, -5, 2, 2):
            if n < 0:
                with pytest.raises(ValueError, match="negative") as caught:
                    jitted(torch.ones(2), n)
                assert caught.value.args == (f"negative: {n}",)
                assert caught.value.__cause__ is caught.value.__context__ is None
            else:
                assert torch.equal(jitted(torch.ones(2), n), torch.full((2,), 2.0))
    assert seen == [-1, -2, -3, -4, 2, -5, 2, 2]
    assert thunder.cache_hits(jitted) == 2


def test_an_error_of_thunder_that_eager_mode_does_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of thunder is a fallback that asks to report it. The tests of thunder raise it."""

    monkeypatch.setattr(pipeline, "cse", None)
    log: list[int] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return x.sin()

    with pytest.raises(
        TracingError,
        match=r"raised an error that eager mode does not raise: .*TypeError: 'NoneType' object is not callable",
    ):
        thunder.jit(f)(torch.ones(2))
    log.clear()
    monkeypatch.setenv("THUNDER_STRICT", "0")
    jitted = thunder.jit(f)
    with pytest.warns(FallbackWarning, match=r"(?s)TypeError: 'NoneType' object is not callable.*please report it"):
        assert torch.equal(jitted(torch.ones(2)), torch.ones(2).sin())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.equal(jitted(torch.ones(2)), torch.ones(2).sin())
    assert len(log) == 4
    assert thunder.cache_misses(jitted) == 2
    assert "TypeError: 'NoneType' object is not callable" in thunder.explain(jitted)
    with pytest.raises(TracingError, match="TypeError: 'NoneType' object is not callable"):
        thunder.jit(f, sharp_edges="error")(torch.ones(2))


# -- sharp edges -------------------------------------------------------------------------------------------------------
def test_one_warning_names_the_line_and_the_way_out() -> None:
    """The function is traced twice, and warns once, at the line of the call."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * random.random()

    jitted = thunder.jit(f)
    with pytest.warns(FallbackWarning) as found:
        for _ in range(5):
            jitted(torch.ones(2))
    (warning,) = found
    assert warning.filename == __file__
    assert "test_eager_calls.py" in str(warning.message) and "return x * random.random()" in str(warning.message)
    assert "Move this code out of the jitted function" in str(warning.message)
    assert thunder.cache_misses(jitted) == 2


@pytest.mark.parametrize("end", [is_sparse, draws_from_python], ids=lambda f: f.__name__)
def test_sharp_edges(end: Step, tmp_path: Path) -> None:
    """ "error" and `fullgraph=True` raise before anything has happened, and "allow" is silent."""
    program = program_of((appends, end))
    for options in ({"sharp_edges": "error"}, {"fullgraph": True}):
        w = World(tmp_path)
        before = w.state()
        with pytest.raises(thunder.core.errors.ThunderError):
            thunder.jit(program, **options)(w, torch.ones(2))
        assert w.state() == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jitted = thunder.jit(program, sharp_edges="allow")
        w = World(tmp_path)
        for _ in range(4):
            jitted(w, torch.ones(2))
    assert w.items == [0, 1, 2, 3]


def test_modules_around_the_line_are_compiled() -> None:
    """From the second call on, a module that draws runs its children as compiled programs."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
            self.second = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return self.second(x) if random.random() < 2 else x

    model = Model()
    jitted = thunder.jit(model)
    x = torch.ones(3, 2)
    with pytest.warns(FallbackWarning) as found:
        for _ in range(5):
            torch.testing.assert_close(jitted(x), model(x))
    assert len(found) == 1
    assert [p._stats.cache_hits for p in thunder.compile_stats(jitted).per_module.programs] == [3, 3]


# -- transforms --------------------------------------------------------------------------------------------------------
def _drawing(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() if random.random() < 2 else x.cos()).sum()


@pytest.mark.parametrize(
    "name", ["grad", "grad_and_value", "value_and_grad", "jacrev", "jacfwd", "hessian"],
)  # fmt: skip
def test_transforms_run_eagerly(name: str) -> None:
    """The transform of torch.func computes a function that cannot be traced."""
    x = torch.tensor([0.3, 0.7])

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    jitted, expected = getattr(thunder, name)(_drawing), getattr(thunder, name)(plain)(x)
    with pytest.warns(FallbackWarning) as found:
        for _ in range(4):
            torch.testing.assert_close(jitted(x), expected)
    assert sum(w.category is FallbackWarning for w in found) == 1
    with pytest.raises(TracingError):
        getattr(thunder, name)(thunder.jit(_drawing, sharp_edges="error"))(x)


def test_jvp_runs_eagerly() -> None:
    """It has no function of its own, and the program is kept by the function."""
    x = torch.tensor([0.3, 0.7])
    with pytest.warns(FallbackWarning):
        value, tangent = thunder.jvp(_drawing, (x,), (torch.ones(2),))
    torch.testing.assert_close((value, tangent), (x.sin().sum(), x.cos().sum()))


def _draws(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def _array(x: torch.Tensor) -> torch.Tensor:
    return x + float(x.numpy().max())


@pytest.mark.parametrize("attempt", [_draws, _array, _stays_python], ids=lambda f: f.__name__)
def test_a_program_that_tries_again_and_again(attempt: Any) -> None:
    """A program that tries again after each error must not try forever while it is traced."""

    def f(x: torch.Tensor) -> torch.Tensor:
        while True:
            try:
                return attempt(x)
            except Exception:
                pass

    random.seed(0)
    expected = f(torch.ones(2))
    random.seed(0)
    assert torch.equal(thunder.jit(f, sharp_edges="allow")(torch.ones(2)), expected)
