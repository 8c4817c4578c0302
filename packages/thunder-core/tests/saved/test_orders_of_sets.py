# SPDX-License-Identifier: Apache-2.0
"""A program that loops over a set of strings is for processes in which the set has the same order."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_processes import run

import thunder

SEES_NEW_SETS = sys.version_info >= (3, 12)
NAMES = ["full", "sliding", "full", "chunked"]


def loops(x: torch.Tensor) -> Any:
    """Loop over a new set."""
    found = {}
    for name in set(NAMES):
        found[name] = x * len(name)
    return found


def loops_in_turn(x: torch.Tensor) -> Any:
    """Loop over several sets, one of them in a comprehension."""
    for i in frozenset((b"a", b"bc", b"def")):
        x = (x + len(i)).sin()
    return x, [x * i for i in set((100, 67, 34, 1))]  # noqa: C405


def changes(x: torch.Tensor) -> Any:
    """Change the set before the loop."""
    names = set(NAMES)
    names.add("more")
    return [x * len(name) for name in names]


def of_objects(x: torch.Tensor) -> Any:
    """Loop over a set whose elements have other hashes in each process, whatever the seed."""
    return [x * i for i, _ in enumerate(set([object, Path]))]  # noqa: C405


def of_generator(x: torch.Tensor) -> Any:
    """Loop over a set of what a generator yields."""
    return [x * len(name) for name in set(name for name in NAMES)]  # noqa: C401


def one_element(x: torch.Tensor) -> Any:
    """Loop over a set of one element, which has no order."""
    return [x * len(name) for name in set(NAMES[:1])]


SETTINGS: dict[str, Any] = {"selected": None}


def stores(x: torch.Tensor) -> torch.Tensor:
    """Store a set in an object if it is asked to."""
    found = {}
    if SETTINGS["selected"] is not None:
        found["selected"] = set(SETTINGS["selected"])
    return x * (1 + len(found))


def notes_of(f: Callable[..., Any]) -> list[str]:
    """Return what became of the saved programs of a function in its first call, which returns what eager mode does."""
    jitted, x = thunder.jit(f, save=True), torch.ones(3)
    found, expected = jitted(x), f(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert list(found) == list(expected) if isinstance(expected, dict) else True
    return [event.reason for event in thunder.compile_stats(jitted).events.of("saved")]


def note_of(f: Callable[..., Any]) -> str:
    """Return the first of these notes."""
    return notes_of(f)[0]


@pytest.mark.parametrize("f", [loops, loops_in_turn, one_element])
def test_loops_over_new_sets(cache: Path, f: Callable[..., Any]) -> None:
    """They are saved since Python 3.12, which reports what a set is made of."""
    note_of(f)
    assert note_of(f).startswith("hit" if SEES_NEW_SETS else "not saved")


@pytest.mark.parametrize("f", [changes, of_objects, of_generator])
def test_sets_whose_order_no_process_can_check(cache: Path, f: Callable[..., Any]) -> None:
    """Programs that loop over them are not saved."""
    assert "the order of a set" in note_of(f) and "the order of a set" in note_of(f)


def test_sets_that_are_not_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A use of a set that a program does not make is none, since Python 3.12."""
    note_of(stores)
    assert note_of(stores).startswith("hit" if SEES_NEW_SETS else "not saved")
    monkeypatch.setitem(SETTINGS, "selected", ["a", "b"])
    assert "the order of a set" in notes_of(stores)[-1]


@pytest.mark.skipif(not SEES_NEW_SETS, reason="such programs are not saved")
@pytest.mark.parametrize("f", [loops, loops_in_turn])
def test_other_order(cache: Path, rewrite: Any, f: Callable[..., Any]) -> None:
    """A program that was compiled for another order is a miss."""
    note_of(f)
    (file,) = (x for x in cache.rglob("*") if x.is_file())
    content = json.loads(file.read_bytes().partition(b"\n")[2])
    assert len(content["orders"]) == (1 if f is loops else 2)
    content["orders"][-1][-1][1].reverse()
    rewrite(file, content)
    assert note_of(f) == "miss: the elements of a set have another order in this process"


SOURCE = """
def f(x):
    found = {}
    for name in set(["full", "sliding", "chunked", "global", "local"]):
        found[name] = x * len(name)
    return found

jitted, x = thunder.jit(f, save=True), torch.ones(3)
found = jitted(x)
assert [*found] == [*f(x)] and all(torch.equal(v, f(x)[k]) for k, v in found.items())
report(jitted, [*found])
"""


@pytest.mark.skipif(not SEES_NEW_SETS, reason="such programs are not saved")
def test_processes_with_other_hashes(tmp_path: Path) -> None:
    """Each order has a program, which processes with this order find."""
    reports = [run(tmp_path, SOURCE, PYTHONHASHSEED=seed) for seed in ("1", "2", "1", "2")]
    assert [r["saved_hits"] for r in reports] == [0, 0, 1, 1], [r["notes"] for r in reports]
    assert reports[0]["values"] != reports[1]["values"]
    assert "another order" in reports[1]["notes"][0]
