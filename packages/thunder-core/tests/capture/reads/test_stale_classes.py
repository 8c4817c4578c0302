# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used where a class that it read has changed, whatever classes do of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

X = torch.linspace(-1, 1, 6)


class Compiled:
    """Its instances have modules, the class has a descriptor in that place: so are functions that Cython compiles."""

    __module__ = property(lambda self: "numpy.random")  # type: ignore[assignment]

    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self, x: Any) -> Any:
        return x * self.scale


COMPILED = Compiled()


def test_a_class_without_the_name_of_a_module(watch: Any) -> None:
    watched = watch(lambda x: COMPILED(x))
    COMPILED.scale = 3.0
    watched.changed()


class Mapped:
    """Attributes under other names, as configurations of model libraries have them."""

    names: dict[str, str] = {"size": "width"}  # noqa: RUF012

    def __init__(self) -> None:
        self.width = 2.0
        self.used = True

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(super().__getattribute__("names").get(name, name), value)

    def __getattribute__(self, name: str) -> Any:
        if name != "names":
            name = super().__getattribute__("names").get(name, name)
        return super().__getattribute__(name)


def writes_and_reads(options: Any) -> Any:
    """A program that assigns an attribute of an object and reads another."""

    def f(x: Any) -> Any:
        options.used = True
        return x * options.size

    return f


def test_lookups_of_a_class_of_its_own(watch: Any) -> None:
    """A `__getattribute__` written in Python may look anywhere: everything that the object has is guarded."""
    options = Mapped()
    watched = watch(writes_and_reads(options))
    options.width = 3.0
    watched.changed()
    options.size = 4.0
    watched.changed()
    lookup, assign = Mapped.__getattribute__, Mapped.__setattr__
    try:
        Mapped.__getattribute__ = lambda self, name: 5.0 if name == "size" else object.__getattribute__(self, name)
        watched.changed()
        Mapped.__setattr__ = lambda self, name, value: object.__setattr__(self, name, value)
        watched.changed()
    finally:
        Mapped.__getattribute__, Mapped.__setattr__ = lookup, assign


KINDS: set[type] = {Mapped}


def test_sets_of_classes(watch: Any) -> None:
    """Their elements are guarded."""

    def f(x: Any) -> Any:
        return x * (2 if Derived in KINDS else 3) * len(KINDS)

    watched = watch(f)
    KINDS.add(Derived)
    watched.changed()
    KINDS.remove(Mapped)
    KINDS.add(type("Mapped", (), {}))  # a class of the same name
    watched.changed()


@dataclasses.dataclass
class Fields:
    """A class that looks at its own fields."""

    x: Any = None
    y: Any = None

    def filled(self) -> int:
        return sum(getattr(self, f.name) is not None for f in dataclasses.fields(self))


def test_fields_of_dataclasses(watch: Any) -> None:
    """Reading them is no reason to trace each call."""
    watch(lambda x: x * Fields(x).filled()).kept()


class Base:
    """A class with data."""

    n = 1
    table: dict[str, int] = {}  # noqa: RUF012


class Derived(Base):
    """Another one."""


def of_class(c: Any, x: Any) -> Any:
    """Reads attributes of a class under a name of its own."""
    return x * c.n * (c.extra if hasattr(c, "extra") else 1) + len(c.table)


def test_attributes_of_classes_in_variables(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along the bases; those that appear, and those that disappear."""
    watched = watch(lambda x: of_class(Derived, x))
    monkeypatch.setattr(Base, "n", 2)
    watched.changed()
    monkeypatch.setattr(Derived, "n", 5, raising=False)
    watched.changed()
    monkeypatch.setattr(Derived, "extra", 3, raising=False)
    watched.changed()
    monkeypatch.setattr(Base, "extra", 4, raising=False)
    watched.call()
    monkeypatch.delattr(Derived, "extra")
    watched.changed()
    monkeypatch.setitem(Base.table, "a", 1)
    watched.changed()
    monkeypatch.setattr(Base, "other", 1, raising=False)
    watched.kept()


def test_classes_as_arguments(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their attributes are read where they are used."""
    watched = watch(lambda x, c: of_class(c, x), X, Derived)
    monkeypatch.setattr(Base, "n", 7)
    watched.changed()
    watched.changed(X, Base)


def validator_of(least: float) -> Any:
    def validator(value: float) -> None:
        if value < least:
            raise ValueError(value)

    return validator


class Validated(Mapped):
    """Its assignments run functions that the class keeps in a table."""

    __validators__: dict[str, list[Any]] = {"used": [validator_of(0)], "width": [validator_of(1)]}  # noqa: RUF012

    def __setattr__(self, name: str, value: Any) -> None:
        for validator in self.__validators__.get(name, ()):
            validator(value)
        super().__setattr__(name, value)


def test_functions_in_tables_of_classes(watch: Any) -> None:
    """They are found where they ran though no read led to them, and are guarded."""
    options = Validated()
    watched = watch(writes_and_reads(options))
    before = Validated.__validators__["used"]
    try:
        Validated.__validators__["used"] = [lambda value: X.add_(0)]
        assert watched.call() == 1
    finally:
        Validated.__validators__["used"] = before


class Scaled:
    scale = 2.0


class Rescaled(Scaled):
    scale = 9.0

    def implicit(self) -> float:
        return super().scale

    def explicit(self) -> float:
        return super(Rescaled, self).scale  # noqa: UP008


@pytest.mark.parametrize("method", ["implicit", "explicit"])
def test_attributes_of_a_base_by_super(watch: Any, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Since Python 3.12, this is one instruction, which calls nothing."""
    owner = Rescaled()
    watched = watch(lambda x: x * getattr(owner, method)())
    monkeypatch.setattr(Scaled, "scale", 3.0)
    watched.changed()
