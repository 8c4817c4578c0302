# SPDX-License-Identifier: Apache-2.0
"""Programs that make sets are saved unless this run may have depended on their order."""

from __future__ import annotations

import builtins
import collections.abc
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import thunder
from thunder.frontend import saved_programs

NAMES = ["abc", "def", "ghi"]


class Reversed:
    """An object that is smaller than all others."""

    def __lt__(self, other: object) -> bool:
        return True


class Layers(collections.abc.Sequence[float]):
    """A sequence that ends by an error, as `for` expects it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: Any) -> Any:
        if i == "abc":
            raise ValueError(f"none of {set(NAMES)}")
        if i > 1:
            raise IndexError
        return 2.0


@pytest.fixture(autouse=True)
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_VERIFY", "0")
    monkeypatch.setenv("THUNDER_CACHE", "1")
    monkeypatch.setattr(saved_programs, "registrants", set())  # of other tests


LAYERS, OBJECTS, NUMBERS = Layers(), [Reversed(), Reversed()], [2.0, 1.0]


def is_saved(f: Callable[[torch.Tensor], torch.Tensor], path: Path) -> bool:
    """Run a function, and check whether its program is saved."""
    jitted = thunder.jit(f, save=str(path))
    assert torch.equal(jitted(torch.ones(2)), f(torch.ones(2)))
    notes = [e.reason for e in thunder.compile_stats(jitted).events.of("saved")]
    assert any("order of a set" in note for note in notes) != any(note.startswith("saved: ") for note in notes), notes
    return any(note.startswith("saved: ") for note in notes)


def test_sorted_texts_and_numbers(tmp_path: Path) -> None:
    assert is_saved(lambda x: x * len(sorted(set(NAMES))[0]) + sorted(set(NUMBERS))[0], tmp_path)


def test_sorted_objects(tmp_path: Path) -> None:
    assert not is_saved(lambda x: x * len(sorted(set(OBJECTS))), tmp_path)


def test_an_error_with_a_set_that_is_not_raised(tmp_path: Path) -> None:
    assert is_saved(lambda x: x * sum(list(LAYERS)), tmp_path)


def test_an_error_with_a_set_that_is_caught(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * LAYERS["abc"]
        except ValueError as error:
            return x * len(str(error))

    assert not is_saved(f, tmp_path)


@pytest.mark.parametrize("base", [collections.abc.Mapping, collections.abc.Sequence])
def test_checks_of_abstract_classes(base: type, tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if isinstance(LAYERS, base) else x * 3
        return x + 1 if isinstance(OBJECTS[0], collections.abc.Iterator) else x

    assert is_saved(f, tmp_path)


def first(names: Iterable[str]) -> str:
    """Return the name that an iteration finds first."""
    return next(iter(names))


class Settings:
    """An object whose attributes are read whole, because its class has a `__getattribute__`."""

    kinds: ClassVar = set("k")
    RENAMED: ClassVar = {"other": "names"}

    def __init__(self) -> None:
        self.names, self.scale = set("a"), 2.0

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(Settings.RENAMED.get(name, name))


class Growing(Settings):
    """Settings whose hook adds to a set before it returns another value."""

    def __getattribute__(self, name: str) -> Any:
        names = super().__getattribute__("names")
        return len(first(names.union(NAMES))) if name == "length" else super().__getattribute__(name)


SETTINGS, GROWING, MORE = Settings(), Growing(), set("b")
NAMES_OF_SETTINGS = ["NAMES", "KINDS"]
read = getattr


@pytest.mark.parametrize(
    "f", [lambda x: x * SETTINGS.scale, lambda x: x * SETTINGS.scale * {"kinds": 2, "names": 3}.pop("kinds", None)]
)
def test_a_set_that_nobody_asks_for(f: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    """Its name may be a key of a dict."""
    assert is_saved(f, tmp_path)


GROWN: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x * len(first(SETTINGS.names.union(NAMES))),
    lambda x: x * len(first(SETTINGS.other | SETTINGS.names)),  # type: ignore[attr-defined]
    lambda x: x * SETTINGS.scale * len(first(getattr(SETTINGS, NAMES_OF_SETTINGS[0].lower()).union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(vars(SETTINGS)[NAMES_OF_SETTINGS[0].lower()].union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(type(SETTINGS).kinds.union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(getattr(type(SETTINGS), NAMES_OF_SETTINGS[1].lower()).union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(type(SETTINGS).__dict__[NAMES_OF_SETTINGS[1].lower()].union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(operator.attrgetter(NAMES_OF_SETTINGS[0].lower())(SETTINGS).union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(operator.attrgetter(NAMES_OF_SETTINGS[1].lower())(Settings).union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(read(Settings, NAMES_OF_SETTINGS[1].lower()).union(NAMES))),
    lambda x: x * SETTINGS.scale * len(first(builtins.getattr(Settings, NAMES_OF_SETTINGS[1].lower()).union(NAMES))),
    lambda x: x * GROWING.length,  # type: ignore[attr-defined]
]


@pytest.mark.parametrize("f", GROWN, ids=range(len(GROWN)))
def test_a_set_that_the_program_adds_to(f: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    assert not is_saved(f, tmp_path)


def test_an_empty_set_that_is_filled_for_the_run(tmp_path: Path) -> None:
    seen: set[str] = set()

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.update(NAMES)
        for name in seen:
            x = x * len(name)
        seen.clear()
        return x

    assert not is_saved(f, tmp_path)
