# SPDX-License-Identifier: Apache-2.0
"""One exception at a line of thunder's own code while a program is traced, and what has to be as it was after it.

The lines are those that the first call of a program runs up to the moment when its compiled program is called, each at
its first and at its last execution. An ordinary run takes a sample of them; with `THUNDER_INTERRUPTS=all` in the
environment (`nox -s interrupts`) it takes all of them, in parts that pytest can run side by side.
"""

from __future__ import annotations

import functools
import gc
import math
import os
import random
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch

import thunder
from thunder.capture.base import phase, substitutions
from thunder.capture.base.modes import attention_kernels
from thunder.capture.tensors.handle import Handle
from thunder.core import langctx
from thunder.core.locations import OWN_FOLDER, is_ours
from thunder.core.state import state
from thunder.extend.compile_state import current_compilation
from thunder.frontend.specialization import Specialization
from thunder.runtime.lock import runs, tracing_lock

TOTAL = 1


@functools.cache
def table(n: int) -> tuple[int, ...]:
    """A function that remembers what it gave."""
    return tuple(range(n))


class Options:
    """An object of the user's with containers, and an attribute of its class."""

    scale = 2

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.rates = [0.5, 0.25]


class Block(torch.nn.Module):
    """A program with buffers, counters, containers and assigned globals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.linear = torch.nn.Linear(3, 3)
        self.options = Options()
        self.register_buffer("last", torch.zeros(3))
        self.calls = 0
        self.log: list[Any] = []

    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        """Assign to everything."""
        global TOTAL
        self.calls += 1
        self.log.append(k)
        self.options.seen[self.calls] = "x"
        self.options.rates[0] = self.options.rates[1]
        TOTAL = TOTAL + 1
        h = self.norm(self.linear(x))
        self.last = h.detach().mean(0)
        self.extra = h * 2
        Options.scale = 3
        with torch.no_grad():
            shift = h.abs().max()
        return (h * k + sum(table(3)) + shift).relu() * math.sqrt(self.calls + 1)


class Square(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the square."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        """Return the gradient."""
        return 2 * g * ctx.saved_tensors[0]


class Transforms(Block):
    """A program with transforms of functions, a checkpoint, a branch and a hook on a gradient."""

    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        """Call what runs user code from within operations."""
        self.calls += 1
        h = self.linear(x)
        h.register_hook(lambda g: g * 2)
        h = h + torch.func.grad(lambda y: (y * y).sum())(x)
        h = h + torch.vmap(lambda row, n: row * n.sum(), in_dims=(0, None))(x, self.last + 1)
        h = torch.utils.checkpoint.checkpoint(lambda y: y.sin() * k, h, use_reentrant=False)
        h = Square.apply(h)
        return torch.cond(x.sum() > 0, lambda y: y.cos(), lambda y: y.sin(), (h,))


class Program(NamedTuple):
    module: Block
    fn: Callable[..., Any]
    count: Callable[[], int]


def make(kind: type[Block]) -> Program:
    """A program that has not been called; programs made one after the other are the same."""
    global TOTAL
    TOTAL = 1
    Options.scale = 2
    table.cache_clear()
    torch.manual_seed(0)
    module, count = kind(), 0

    def fn(x: torch.Tensor, k: int) -> torch.Tensor:
        nonlocal count
        count += 1
        return module(x, k) * count

    return Program(module, fn, lambda: count)


X = torch.linspace(-1, 1, 12).reshape(4, 3)
ARGUMENTS = X, 5


# -- what has to be as it was -----------------------------------------------------------------------------------------
def _watched_modules() -> list[Any]:
    """Modules and classes of torch and Python in which something is replaced while a program is traced."""
    import torch._dynamo.eval_frame
    import torch.utils.checkpoint

    names = [n for n in sys.modules if n.startswith("torch") and n.count(".") <= 3]
    classes = [
        torch.autograd.Function,
        torch.nn.Module,
        torch.nn.BatchNorm1d,
        torch.nn.Linear,
        Block,
        Transforms,
        Square,
        Options,
    ]
    return [math, *[m for n in names if isinstance(m := sys.modules[n], types.ModuleType)], *classes]


_MODULES: list[Any] = []
# What torch, Python and typing change by themselves.
_CHANGING = {"__warningregistry__", "_abc_impl", "__annotations_cache__"}


def torch_now() -> list[tuple[list[str], list[int]]]:
    """The names in torch's modules and in classes that are watched, and the ids of what they stand for."""
    if not _MODULES:
        _MODULES.extend(_watched_modules())
    return [(list(m.__dict__), list(map(id, m.__dict__.values()))) for m in _MODULES]


def _changed_in_torch(before: list[tuple[list[str], list[int]]]) -> list[str]:
    if before == (now := torch_now()):
        return []
    found = []
    for module, (old_names, old_ids), (names, ids) in zip(_MODULES, before, now):
        old, new = dict(zip(old_names, old_ids)), dict(zip(names, ids))
        for name in {**old, **new}:
            if old.get(name) == new.get(name) or name in _CHANGING:
                continue
            value = module.__dict__.get(name)
            imported = name not in old and isinstance(value, types.ModuleType)
            counter = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not imported and not counter:
                found.append(f"{module.__name__}.{name} is {value!r:.100}")
    return found


def objects_now(program: Program) -> Any:
    """The user's objects, with the identity of each part of them."""
    m = program.module

    def shown(x: Any) -> Any:
        if type(x) is Handle:
            return "a handle"
        if isinstance(x, torch.Tensor):
            return id(x), x.detach().tolist(), x._version, dict(x.__dict__)
        if isinstance(x, dict):
            return id(x), [(k, shown(v)) for k, v in x.items()]
        if isinstance(x, list):
            return id(x), [shown(v) for v in x]
        if isinstance(x, (torch.nn.Module, Options)):
            return id(x), shown(x.__dict__)
        return id(x), repr(x)

    return shown(m), program.count(), TOTAL, Options.scale, table.__wrapped__, globals()["table"], globals()["Options"]


def interpreter_now() -> dict[str, Any]:
    """What tracing changes of the interpreter, of torch and of this thread."""
    monitoring = getattr(sys, "monitoring", None)
    return {
        "gc": gc.isenabled(),
        "profile": sys.getprofile(),
        "tools": None if monitoring is None else [monitoring.get_tool(i) for i in (3, 4)],
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "function modes": torch.overrides._get_current_function_mode_stack(),
        "dispatch modes": torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        "torch functions": (torch._C._is_torch_function_enabled(), torch._C._is_torch_function_mode_enabled()),
        "attention": attention_kernels(),
        "functorch": torch._C._functorch.maybe_current_level(),
        "random": (torch.get_rng_state().tolist(), random.getstate()),
        "locks": (_is_free(tracing_lock), _is_free(runs.lock), runs.stable is not None),
        "state": (state.trace, state.frontend, state.source),
        "language": langctx._current.language,
        "compilation": current_compilation(),
        "phase": (phase.active.phase, phase.active.thread, phase.active.profile),
        "threads": (phase.active.readers, phase.active.tracing, phase.active.waits, phase.active.intact),
        "builtins": [len, int, float, type, math.sqrt],
    }


def _is_free(lock: Any) -> bool:
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return found[0]


# -- the exception ----------------------------------------------------------------------------------------------------
class Point(NamedTuple):
    """A line of thunder's, and its how-many-eth execution."""

    filename: str
    line: int
    execution: int

    def __str__(self) -> str:
        return f"{self.filename.removeprefix(OWN_FOLDER)}:{self.line} (execution {self.execution})"


class Injected(Exception):
    """An exception that nobody expects."""


_CALL = Specialization.call.__code__


def traced(jitted: Any, on_line: Callable[[str, int], None], only: str | None = None) -> Any:
    """The first call of a jitted program, with `on_line` at each line of thunder's until the program is called."""
    over = False

    def local(frame: Any, event: str, arg: Any) -> Any:
        if event == "line" and not over:
            on_line(frame.f_code.co_filename, frame.f_lineno)
        return local

    def begin(frame: Any, event: str, arg: Any) -> Any:
        nonlocal over
        code = frame.f_code
        over = over or code is _CALL
        wanted = code.co_filename == only if only is not None else is_ours(code.co_filename)
        return local if wanted and not over else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        return jitted(*ARGUMENTS)
    finally:
        sys.settrace(before)


def jit(program: Program) -> Any:
    """The program with symbolic numbers."""
    return thunder.jit(program.fn, cache="symbolic values")


@functools.cache
def lines(kind: type[Block]) -> list[Point]:
    """Every line that is run, at its first and at its last execution."""
    for _ in range(2):
        traced(jit(make(kind)), lambda filename, line: None)  # what is remembered from call to call is there
    seen: Counter[tuple[str, int]] = Counter()

    def count(filename: str, line: int) -> None:
        seen[filename, line] += 1

    traced(jit(make(kind)), count)
    return [Point(*where, n) for where, last in sorted(seen.items()) for n in sorted({1, last})]


missed: list[Point] = []


def check(kind: type[Block], point: Point, exception: type[BaseException]) -> str | None:
    """What is not as it was after an exception at a line; None where everything is."""
    program = make(kind)
    seen = 0

    def on_line(filename: str, line: int) -> None:
        nonlocal seen
        if line == point.line:
            seen += 1
            if seen == point.execution:
                raise exception("injected")

    jitted = jit(program)
    objects, torchs, around = objects_now(program), torch_now(), interpreter_now()
    raised: BaseException | None = None
    results = []
    try:
        results.append(traced(jitted, on_line, point.filename))
    except BaseException as error:
        raised = error
    wrong = []
    if seen < point.execution:
        missed.append(point)  # how often a line runs depends on what is cached
    if raised is not None and not isinstance(raised, exception):
        wrong.append(f"{type(raised).__name__} is raised: {raised}")
    raised = None
    if not results and (changed := _difference(objects, objects_now(program))) is not None:
        wrong.append(f"objects: {changed}")
    wrong += _changed_in_torch(torchs)
    now = interpreter_now()
    differing = [name for name in around if now[name] != around[name]]
    wrong += [f"{name}: {around[name]!r:.100} has become {now[name]!r:.100}" for name in differing]
    try:
        results.append(jitted(*ARGUMENTS))
    except Exception as error:
        wrong.append(f"the next call raises {error!r}")
    expected = make(kind)
    wanted = [expected.fn(*ARGUMENTS) for _ in results]
    if not all(map(torch.equal, results, wanted)) or program.count() != expected.count():
        wrong.append("the next call gives another result")
    elif (changed := _difference(_plain(program), _plain(expected))) is not None:
        wrong.append(f"the next call has other effects: {changed}")
    return "; ".join(wrong) or None


def _plain(program: Program) -> Any:
    m = program.module
    state = {name: t.tolist() for name, t in m.state_dict().items()}
    return state, m.calls, m.log, m.options.seen, m.options.rates, list(m.__dict__), program.count()


def _difference(before: Any, now: Any) -> str | None:
    if before == now:
        return None
    if type(before) is tuple and type(now) is tuple and len(before) == len(now):
        return next((found for a, b in zip(before, now) if (found := _difference(a, b)) is not None), None)
    if type(before) is list and type(now) is list and len(before) == len(now):
        return next((found for a, b in zip(before, now) if (found := _difference(a, b)) is not None), None)
    return f"{before!r:.200} has become {now!r:.200}"


def failures(kind: type[Block], points: Sequence[Point], *, stop: int = 5) -> list[str]:
    """What is wrong after an exception at each of these lines, which is Ctrl-C at every second."""
    found = []
    for i, point in enumerate(points):
        exception = (KeyboardInterrupt, Injected)[i % 2]
        wrong = check(kind, point, exception)
        if wrong is not None:
            found.append(f"{exception.__name__} at {point}: {wrong}")
        if len(found) == stop:
            break
    return found


EVERY_LINE = os.environ.get("THUNDER_INTERRUPTS") == "all"
PARTS = 32 if EVERY_LINE else 1
SAMPLE = 30


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an injected `Exception` in the tracer, the call runs eagerly."""
    monkeypatch.setenv("THUNDER_STRICT", "0")


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", [Block, Transforms])
def test_nothing_is_left_behind(kind: type[Block], part: int) -> None:
    points = list(lines(kind))
    assert len(points) > 5000
    random.Random(18).shuffle(points)  # so that each line meets either exception
    if not EVERY_LINE:
        undoing = [p for p in points if p.filename.endswith(("substitutions.py", "snapshots.py", "hooks.py"))]
        points = points[: SAMPLE // 2] + undoing[: SAMPLE // 2]
    chosen = points[part::PARTS]
    missed.clear()
    assert failures(kind, chosen) == []
    assert len(missed) <= len(chosen) // 20 + 1


def test_it_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that takes a step off before it runs it, and is restored once, loses steps."""

    def restore(self: Any, down_to: int = 0) -> None:
        while len(self) > down_to:
            undo, args = self._steps.pop()
            undo(*args)

    points = [p for p in lines(Block) if p.filename.endswith("snapshots.py")]
    monkeypatch.setattr(substitutions.Substitutions, "restore", restore)
    assert any("has become" in found for found in failures(Block, points, stop=3))
