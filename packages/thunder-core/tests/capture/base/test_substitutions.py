# SPDX-License-Identifier: Apache-2.0
"""The board of substitutions: what was swapped is put back, whatever interrupts it."""

from __future__ import annotations

import threading
from collections import deque
from types import CellType, SimpleNamespace
from typing import Any

import pytest

from thunder.capture.base import substitutions
from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import DictSnapshot
from thunder.capture.base.sources import Root
from thunder.capture.base.substitutions import Substitutions, undone


def test_attributes_are_put_back_in_reverse() -> None:
    owner = SimpleNamespace(a=1)
    board = Substitutions()
    board.set(owner, "a", 2)
    board.set(owner, "a", 3)
    board.set(owner, "b", 4)
    assert (owner.a, owner.b) == (3, 4)
    assert board.replaces(owner, "a") and not board.replaces(owner, "c")
    assert board.original(owner, "c", 5) == 5
    board.restore()
    assert vars(owner) == {"a": 1}
    assert not board.replaces(owner, "a")


def test_what_a_class_inherits_is_inherited_again() -> None:
    class A:
        def f(self) -> int:
            return 1

    class B(A):
        pass

    board = Substitutions()
    board.set(B, "f", lambda self: 2)
    assert B().f() == 2
    board.restore()
    assert "f" not in B.__dict__ and B().f() == 1


class Interrupt(KeyboardInterrupt):
    """Ctrl-C."""


def test_an_interrupted_step_is_run_again_and_the_others_too() -> None:
    done: list[str] = []
    failures = iter([Interrupt(), None])

    def step() -> None:
        failure = next(failures)
        if failure is not None:
            raise failure
        done.append("b")

    board = Substitutions()
    board.callback(done.append, "a")
    board.callback(step)
    board.callback(done.append, "c")
    with pytest.raises(Interrupt):
        board.restore()
    assert done == ["c", "b", "a"]
    assert len(board) == 0


def test_a_step_that_always_fails_keeps_no_other_from_running() -> None:
    done: list[str] = []

    def fails() -> None:
        done.append("tried")
        raise ValueError("no")

    board = Substitutions()
    board.callback(done.append, "a")
    board.callback(fails)
    with pytest.raises(ValueError, match="no"):
        board.restore()
    assert done == ["tried"] * substitutions.ATTEMPTS + ["a"]


def test_down_to_a_mark() -> None:
    owner = SimpleNamespace(a=1, b=1)
    board = Substitutions()
    board.set(owner, "a", 2)
    mark = len(board)
    board.set(owner, "b", 2)
    board.restore(mark)
    assert (owner.a, owner.b) == (2, 1)
    board.restore()
    assert (owner.a, owner.b) == (1, 1)


def test_contexts_are_left_once() -> None:
    seen: list[str] = []

    class Context:
        def __enter__(self) -> int:
            seen.append("in")
            return 1

        def __exit__(self, *exc: Any) -> None:
            seen.append("out")

    class Broken(Context):
        def __enter__(self) -> int:
            raise ValueError

    board = Substitutions()
    assert board.enter(Context()) == 1
    with pytest.raises(ValueError):
        board.enter(Broken())
    board.restore()
    board.restore()
    assert seen == ["in", "out"]


def test_a_lock_is_held_once_a_thread() -> None:
    lock = threading.RLock()
    outer, inner = Substitutions(), Substitutions()
    outer.hold(lock)
    inner.hold(lock)
    inner.restore()
    assert lock._is_owned()  # type: ignore[attr-defined]
    outer.restore()
    outer.restore()
    assert not lock._is_owned()  # type: ignore[attr-defined]


class Slots:
    __slots__ = ("a",)


@pytest.mark.parametrize("target", [{"a": 1}, [0, 1], deque([0, 1]), CellType(1), Slots(), type("K", (), {"a": 1})])
def test_values_in_objects(target: Any) -> None:
    """They are put back where the program has not assigned something else."""
    key: Any = {list: 1, deque: 1, CellType: None}.get(type(target), "a")
    if isinstance(target, Slots):
        target.a = 1
    new = object()
    board = Substitutions()
    board.substitute(target, key, 1, new)
    found = board.in_objects[0]
    assert found.get() is new
    board.restore()
    assert found.get() == 1
    board.substitute(target, key, 1, new)
    found.put("assigned")
    board.restore()
    assert found.get() == "assigned"
    board.substitute(target, key, "assigned", new)
    found.delete()
    board.restore()
    assert found.get() is ABSENT


def test_snapshots_do_not_see_substitutes() -> None:
    target = {"a": 1, "b": 2}
    new = object()
    board = Substitutions()
    board.substitute(target, "a", 1, new)
    snapshot = DictSnapshot(Root(None), target, dict(target))
    board.hide_in_snapshots([snapshot])
    assert snapshot.before == {"a": 1, "b": 2}
    board.restore()
    assert board.with_substitutes(target, target) == {"a": new, "b": 2}
    assert target == {"a": 1, "b": 2}


def test_what_runs_is_undone_when_it_fails() -> None:
    owner = SimpleNamespace(a=1)

    def run(board: Substitutions) -> int:
        board.set(owner, "a", 2)
        return 1 // (owner.a - 2)

    with pytest.raises(ZeroDivisionError):
        undone(run)
    assert owner.a == 1


def test_the_next_call_restores_what_was_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both attempts to restore a board were interrupted; boards of functions that still run are left alone."""
    owner = SimpleNamespace(a=1, b=1)

    def interrupted(board: Substitutions) -> None:
        raise Interrupt

    def run(board: Substitutions) -> None:
        board.set(owner, "a", 2)

    with monkeypatch.context() as patch:
        patch.setattr(substitutions, "_close", interrupted)
        with pytest.raises(Interrupt):
            undone(run)
    assert owner.a == 2

    def outer(board: Substitutions) -> tuple[int, int]:
        board.set(owner, "b", 2)
        undone(lambda inner: None)
        return owner.a, owner.b

    assert undone(outer) == (1, 2)
    assert owner.b == 1
