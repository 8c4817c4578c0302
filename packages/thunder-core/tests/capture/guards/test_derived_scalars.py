# SPDX-License-Identifier: Apache-2.0
"""Numbers that integers among the inputs tell: what programs do with them is guarded, and as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import thunder
from thunder.capture.session import CaptureSession


def by_branch(x: Any, m: Any) -> Any:
    """A branch on a tensor."""
    if (m > 0).any():
        return x * 2
    return x + 1


def by_flag(x: Any, m: Any) -> Any:
    """A branch on a number, as of sparse attention with global tokens."""
    some = (m * 2).flatten().gt(2).any().item()
    return x * 2 if some else x + 1


def by_loop(x: Any, m: Any) -> Any:
    """Over the positions that a mask selects."""
    for i in m.nonzero():
        x = x + x[i[0]]
    return x


def by_chunks(x: Any, m: Any) -> Any:
    """Windows of a length that the input tells, as in models that see pictures."""
    ends = torch.repeat_interleave(m.clamp(0), 2).cumsum(0)
    return [
        chunk.sum()
        for chunk in torch.split(x.repeat(8)[: ends[-1]], (ends[1:] - ends[:-1]).tolist() + [ends[0].item()])
    ]


def by_steps(x: Any, m: Any) -> Any:
    """A loop that ends by the value."""
    while m.sum() < 9:
        m, x = m + 1, x * 1.5
    return x, m


def by_key(x: Any, m: Any) -> Any:
    """A number as a key, and a float of integers."""
    return {1: x, 2: x * 2}.get(m[0].item(), x * 5) * (2 if m.double().mean() > 1 else 3)


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "branch": by_branch, "flag": by_flag, "loop": by_loop, "chunks": by_chunks, "steps": by_steps, "key": by_key,
    "elements": lambda x, m: sum((x * k for k in m.tolist() if k > 1), x),
    "slice": lambda x, m: x[: m.max()] if m.max() < 4 else x,
    "equal": lambda x, m: x * 2 if torch.equal(m, m.abs()) else x,
    "allclose": lambda x, m: x * 2 if torch.allclose(m, m.abs()) else x,
    "range": lambda x, m: [x[i] for i in range(m[0])],
    "in": lambda x, m: x * 2 if 2 in m else x,
    "written to": lambda x, m: [m.add_(1), x * 2 if m.sum() > 5 else x][1],
    "is_nonzero": lambda x, m: x * 2 if torch.is_nonzero(m[1]) else x,
}  # fmt: skip

VALUES = ([1, 2, 1, 0], [1, 2, 1, 0], [2, 1, 0, 1], [0, 0, 0, 0], [3, 1, 0, 0], [1, 2, 1, 0], [-1, 1, 2, 2])


def flat(x: Any) -> list[Any]:
    """The tensors of a result."""
    return [t for i in x for t in flat(i)] if isinstance(x, (tuple, list)) else [x]


def results(run: Callable[..., Any], values: list[int]) -> list[Any]:
    """What a program gives, the gradient, and what it wrote."""
    x, m = torch.arange(1.0, 5.0, dtype=torch.float64).requires_grad_(), torch.tensor(values)
    found = flat(run(x, m))
    if found and found[0].requires_grad:
        sum(t.sum() for t in found if t.requires_grad).backward()
    return [[t.detach() for t in found], x.grad, m]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_have_to_know(name: str) -> None:
    """Whatever the values are, what was for other values is not used."""
    f = PROGRAMS[name]
    jitted = thunder.jit(f)
    for values in VALUES:
        torch.testing.assert_close(results(jitted, values), results(f, values), rtol=0, atol=0)
    misses = thunder.cache_misses(jitted)
    results(jitted, VALUES[0])
    assert thunder.cache_misses(jitted) == misses and thunder.cache_hits(jitted) > 0
    assert "Python" not in thunder.explain(jitted)


def test_the_guard_is_what_was_asked() -> None:
    """Two programs for a branch, however many masks there are; the prologue prints it, and explain says it."""
    jitted = thunder.jit(by_flag)
    for values in VALUES:
        results(jitted, values)
    assert thunder.cache_misses(jitted) == 2
    text = str(thunder.last_prologue_traces(jitted)[-1])
    assert "= _derived_scalars_0(m)" in text
    for values in ([0, 0, 0, 0], [3, 3, 3, 3]):
        results(jitted, values)
    assert thunder.cache_misses(jitted) == 2
    fresh = thunder.jit(by_flag)
    for values in ([0, 0, 0, 0], [3, 3, 3, 3]):
        results(fresh, values)
    assert "(derived from m)" in thunder.explain(fresh)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(-2, 5), min_size=4, max_size=4), min_size=2, max_size=5))
def test_random_values(calls: list[list[int]]) -> None:
    """Of one jitted function after another, in any order."""
    for f in (by_branch, by_loop, PROGRAMS["slice"]):
        jitted = thunder.jit(f)
        for values in calls:
            torch.testing.assert_close(results(jitted, values), results(f, values), rtol=0, atol=0)


TABLE = torch.tensor([1, 2, 3])
CHOSEN = torch.tensor([True, False, True, False])


def of_globals(x: Any) -> Any:
    """What globals tell."""
    return [
        x * 2 if TABLE.sum() > 5 else x,
        x[: TABLE[0]],
        x * torch.where(CHOSEN)[0].shape[0],
        *[x * k for k in TABLE],
    ]


def test_globals_and_buffers() -> None:
    """Written to in place between calls; of a module's buffer too."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            self.steps += 1
            return x * 2 if self.steps % 2 == 0 else x

    x = torch.arange(4.0)
    jitted, module = thunder.jit(of_globals), Scaled()
    scaled = thunder.jit(module)
    for i, value in enumerate((2, 2, 1, 3, 2)):
        TABLE.fill_(value)
        CHOSEN.copy_(torch.arange(4) < value)
        torch.testing.assert_close(jitted(x), of_globals(x))
        assert torch.equal(scaled(x), x * 2 if i % 2 else x) and module.steps == i + 1
    assert thunder.cache_misses(jitted) <= 4 and thunder.cache_misses(scaled) == 2


def test_symbolic_sizes() -> None:
    """Along with sizes that stay symbolic."""
    jitted = thunder.jit(
        lambda x, m: x[:, : m.shape[0]].sum() * (2 if m.sum() > m.shape[0] else 3), cache="symbolic values"
    )
    for n in (3, 5, 8):
        for value in (0, 2):
            x, m = torch.ones(n, 9), torch.full((n,), value)
            assert jitted(x, m).item() == n * n * (2 if value else 3)
    assert thunder.cache_misses(jitted) == 2


def test_numbers_that_change() -> None:
    """A counter, which is a symbolic number after some calls, says where a buffer is written to."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.seen[self.calls % 3] += 1
            self.calls += 1
            return x * 2 if self.seen.sum() % 2 == 0 and self.seen[0] < 3 else x

    module, twin = Counting(), Counting()
    jitted = thunder.jit(module)
    for _ in range(9):
        assert torch.equal(jitted(torch.ones(2)), twin(torch.ones(2)))
    assert torch.equal(module.seen, twin.seen) and module.calls == twin.calls


OTHER: dict[str, Callable[[Any, Any], Any]] = {
    "a float": lambda x, m: x * 2 if x.sum() > 0 else x,
    "a float picked by an integer": lambda x, m: x * 2 if x[m[0]] > 0 else x,
    "chance": lambda x, m: x * 2 if torch.randint(5, (1,)).item() + m[0] > 2 else x,
}


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not_derived_is_decided(name: str) -> None:
    """What depends on more than integers of the inputs is checked in the middle of the program, not by a guard."""
    jitted = thunder.jit(OTHER[name])
    for values in VALUES:
        torch.manual_seed(0)
        expected = results(OTHER[name], values)
        torch.manual_seed(0)
        torch.testing.assert_close(results(jitted, values), expected)
    assert "decide(" in str(thunder.last_traces(jitted)[-1])


def waits(x: Any, m: Any) -> Any:
    """A loop that floats end."""
    while x.sum() < 99:
        x = x * 2
    return x


def catches(x: Any, m: Any) -> Any:
    """Whatever the branch says."""
    try:
        return x * 2 if not x.isfinite().all() else x
    except Exception:
        return x


RUNS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "a float": (OTHER["a float"], 2),
    "a loop": (waits, 2),
    "caught": (catches, 2),
    "a float's number": (lambda x, m: x * 2 if x[0].item() > 0 or m[0] else x, 2),
    "a number of both": (lambda x, m: x * 2 if (x[0] * m[0]).item() > 0 else x, 2),
    "a conversion": (lambda x, m: x * 2 if bool(x[0] > 0) else x, 3),
    "an integer": (lambda x, m: x * 2 if m[0] > 0 else x, 2),
    "an integer's number": (lambda x, m: x * 2 if m.sum().item() > 0 else x, 2),
    "an integer, then a float": (lambda x, m: x * 2 if m[0] > 0 and x[0] > 0 else x, 3),
    "a conversion, then an integer": (lambda x, m: x * int(x[3]) * (2 if m[0] > 0 else 3), 3),
}


@pytest.mark.parametrize("name", RUNS)
def test_it_runs_again_only_where_that_may_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that branches is traced a second time; one that converts, or derives and then decides, a third time."""
    f, runs = RUNS[name]

    ran = []
    run = CaptureSession.run
    monkeypatch.setattr(CaptureSession, "run", lambda session: ran.append(session.fn) or run(session))  # type: ignore[func-returns-value]

    results(thunder.jit(f), VALUES[0])
    assert len(ran) == runs


def test_a_call_that_the_guard_cannot_ask() -> None:
    """What leads to a number may fail for other values: then the program is traced, and says what eager says."""

    def f(x: Any, m: Any) -> Any:
        return x * 2 if torch.repeat_interleave(m, m).sum() > 3 else x

    jitted = thunder.jit(f)
    results(jitted, [1, 2, 1, 0])
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        results(jitted, [-1, 2, 1, 0])
    torch.testing.assert_close(results(jitted, [1, 0, 1, 0]), results(f, [1, 0, 1, 0]))
