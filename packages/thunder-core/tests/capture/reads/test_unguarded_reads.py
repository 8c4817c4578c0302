# SPDX-License-Identifier: Apache-2.0
"""Reads by unusual ways: what a program finds so is guarded, or asked for at each call. Never is it what it was."""

from __future__ import annotations

import array
import collections
import dataclasses
import importlib
import itertools
import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thunder

SCALE = 2.0
SELF = sys.modules[__name__]
X = torch.arange(3.0) + 1


class Thing:
    """Has what a test gives it."""


def namespace(**values: Any) -> Any:
    return types.SimpleNamespace(**values)


def set_scale(value: Any) -> None:
    globals()["SCALE"] = value


Case = tuple[Callable[[Any], Any], list[Callable[[], Any]]]


def by_globals() -> Case:
    return lambda x: x * globals()["SCALE"], [lambda: set_scale(5.0)]


def by_sys_modules() -> Case:
    return lambda x: x * sys.modules[__name__].SCALE, [lambda: set_scale(5.0)]


def by_import_module() -> Case:
    return lambda x: x * importlib.import_module(__name__).SCALE, [lambda: set_scale(5.0)]


def by_an_import_inside() -> Case:
    module = types.ModuleType("imported_by_a_program")
    module.scale = 2.0  # type: ignore[attr-defined]
    module.inner = namespace(k=1.0)  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module

    def f(x: Any) -> Any:
        import imported_by_a_program as m

        return x * m.scale + m.inner.k

    return f, [lambda: setattr(module, "scale", 3.0), lambda: setattr(module.inner, "k", 4.0)]


def by_a_name_imported_inside() -> Case:
    module = types.ModuleType("imported_by_name")
    module.scale = 2.0  # type: ignore[attr-defined]
    module.helper = lambda x: x * 2  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module

    def f(x: Any) -> Any:
        from imported_by_name import helper, scale

        return helper(x) * scale

    return f, [lambda: setattr(module, "scale", 3.0), lambda: setattr(module, "helper", lambda x: -x)]


def by_the_environment() -> Case:
    os.environ["THUNDER_TEST_SCALE"] = "2"

    def f(x: Any) -> Any:
        return x * float(os.environ.get("THUNDER_TEST_SCALE", "1")) + float(os.getenv("THUNDER_TEST_SCALE", "7"))

    name = "THUNDER_TEST_SCALE"
    return f, [lambda: os.environ.update({name: "5"}), lambda: os.environ.pop(name)]


def by_a_module_from_around() -> Case:
    import os as system

    os.environ["THUNDER_TEST_SCALE"] = "2"
    name = "THUNDER_TEST_SCALE"
    return lambda x: x * float(system.environ[name]), [lambda: os.environ.update({name: "5"})]


def by_a_file(path: Any) -> Case:
    path.write_text("2")

    def f(x: Any) -> Any:
        with open(path) as file:
            return x * float(file.read())

    return f, [lambda: path.write_text("5")]


def by_dir() -> Case:
    thing = Thing()
    names = [lambda: setattr(thing, "q1", 1), lambda: setattr(Thing, "q2", 2), lambda: delattr(Thing, "q2")]
    return lambda x: x * len([n for n in dir(thing) if n.startswith("q")]), names


def by_dir_of_a_module() -> Case:
    module = types.ModuleType("settings")
    return lambda x: x * len(dir(module)), [lambda: setattr(module, "scale", 3.0)]


def by_vars() -> Case:
    thing, key = Thing(), ["a"]
    thing.__dict__.update(a=2.0, b=3.0)
    return lambda x: x * vars(thing)[key[0]], [lambda: key.__setitem__(0, "b"), lambda: setattr(thing, "b", 7.0)]


def by_a_computed_name() -> Case:
    thing, number = namespace(a1=2.0, a2=3.0), [1]
    changes = [lambda: setattr(thing, "a1", 5.0), lambda: number.__setitem__(0, 2), lambda: setattr(thing, "a2", 9.0)]
    return lambda x: x * getattr(thing, f"a{number[0]}"), changes


def weak_keys() -> Case:
    key = Thing()
    table = weakref.WeakKeyDictionary({key: 2.0})
    return lambda x: x * table[key], [lambda: table.__setitem__(key, 5.0)]


def weak_values() -> Case:
    value = Thing()
    value.k = 2.0  # type: ignore[attr-defined]
    table = weakref.WeakValueDictionary(k=value)
    other = Thing()
    other.k = 7.0  # type: ignore[attr-defined]
    return lambda x: x * table["k"].k, [lambda: setattr(value, "k", 5.0), lambda: table.__setitem__("k", other)]


def chains_of_maps() -> Case:
    first, second = {"k": 2.0}, {"k": 3.0, "z": 4.0}
    both = collections.ChainMap(first, second)
    changes = [lambda: first.update(k=5.0), lambda: first.pop("k"), lambda: second.update(z=9.0)]
    return lambda x: x * both["k"] + both["z"], changes


def views_of_maps() -> Case:
    table = {"k": 2.0}
    seen = types.MappingProxyType(table)
    return lambda x: x * seen["k"], [lambda: table.update(k=5.0)]


def counters() -> Case:
    counter = collections.Counter("aab")
    return lambda x: x * counter["a"] + counter["z"], [lambda: counter.update("a"), lambda: counter.update("z")]


def buffers() -> Case:
    numbers, raw, floats = np.array([1.0, 2.0]), bytearray(b"\x02"), array.array("f", [2.0])
    changes = [lambda: numbers.__setitem__(0, 5.0), lambda: raw.__setitem__(0, 7), lambda: floats.__setitem__(0, 9.0)]
    return lambda x: x * numbers[0] + raw[0] + floats[0], changes


def numbers_of_numpy() -> Case:
    thing = namespace(s=np.float32(2.0), n=np.int64(3))
    changes = [lambda: setattr(thing, "s", np.float32(5.0)), lambda: setattr(thing, "n", np.int64(4))]
    return lambda x: (x * thing.s + thing.n) / thing.s, changes


def modules_of_closures() -> Case:
    settings = types.ModuleType("settings")
    settings.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * settings.scale, [lambda: setattr(settings, "scale", 3.0)]


def bases_of_classes() -> Case:
    class Root:
        pass

    class First(Root):
        def scale(self) -> float:
            return 2.0

    class Second(Root):
        def scale(self) -> float:
            return 9.0

    class Own(First):
        pass

    own = Own()
    return lambda x: x * own.scale(), [lambda: setattr(Own, "__bases__", (Second,))]


def protocols() -> Case:
    class Bag:
        def __init__(self) -> None:
            self.items = [1.0, 2.0]

        def __iter__(self) -> Any:
            return iter(self.items)

        def __len__(self) -> int:
            return len(self.items)

        def __contains__(self, k: Any) -> bool:
            return k in self.items

        def __bool__(self) -> bool:
            return len(self.items) > 2

    bag = Bag()

    def f(x: Any) -> Any:
        return x * sum(bag) + len(bag) + (1.0 in bag) + (10 if bag else 0)

    return f, [lambda: bag.items.append(5.0), lambda: bag.items.remove(1.0)]


def errors() -> Case:
    thing, table = Thing(), {}

    def f(x: Any) -> Any:
        try:
            return x * thing.k  # type: ignore[attr-defined]
        except AttributeError:
            try:
                return x * table["k"]
            except KeyError:
                return x * 100

    return f, [lambda: table.update(k=3.0), lambda: setattr(thing, "k", 5.0), lambda: delattr(thing, "k")]


CASES = [
    by_globals, by_sys_modules, by_import_module, by_an_import_inside, by_a_name_imported_inside, by_the_environment,
    by_a_module_from_around, by_dir_of_a_module,
    by_dir, by_vars, by_a_computed_name, weak_keys, weak_values, chains_of_maps, views_of_maps,
    counters, buffers, numbers_of_numpy, modules_of_closures, bases_of_classes, protocols, errors,
]  # fmt: skip


def check(case: Case) -> Any:
    f, changes = case
    jf = thunder.jit(f)
    for change in (lambda: None, lambda: None, *changes):
        change()
        for _ in range(2):
            torch.testing.assert_close(jf(X), f(X))
    return jf


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_changes_is_seen(case: Callable[[], Case]) -> None:
    try:
        check(case())
    finally:
        set_scale(2.0)


def test_files(tmp_path: Any) -> None:
    check(by_a_file(tmp_path / "scale"))


def test_these_are_guarded() -> None:
    """And not asked for at each call."""
    for case in (by_an_import_inside, by_the_environment, by_a_module_from_around, numbers_of_numpy, protocols):
        assert thunder.cache_hits(check(case())) >= 3, case


def test_asking_what_is_imported_is_no_read() -> None:
    jf = thunder.jit(lambda x: x * 2 if "torch" in sys.modules else x)
    jf(X)
    jf(X)
    assert thunder.cache_hits(jf) == 1


def test_parameters_are_parameters() -> None:
    def f(x: Any) -> Any:
        return x * 2 if isinstance(x, nn.Parameter) else x * 3

    jf = thunder.jit(f)
    for x in (torch.ones(3), nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)):
        for _ in range(2):
            torch.testing.assert_close(jf(x), f(x))
    assert thunder.cache_misses(jf) == 3
    net = nn.Linear(2, 2)
    jf = thunder.jit(lambda: [isinstance(p, nn.Parameter) for p in net.parameters()])
    assert jf() == jf() == [True, True]


def test_what_goes_on_after_the_call() -> None:
    """A generator or a function that a program returns with its tensors inside: the program runs as Python."""

    def generates(x: Any) -> Any:
        y = x * 2
        return (y * i for i in range(3))

    def closes_over(x: Any) -> Any:
        y = x * 2
        return lambda z: z + y

    for _ in range(2):
        torch.testing.assert_close(list(thunder.jit(generates)(X)), list(generates(X)))
        torch.testing.assert_close(thunder.jit(closes_over)(X)(X), closes_over(X)(X))


def test_numbers_in_a_deque() -> None:
    @dataclasses.dataclass
    class Log:
        last: Any
        n: int = 0

    log, other = Log(collections.deque([0], maxlen=2)), Log(collections.deque([0], maxlen=2))

    def f(x: Any, log: Any) -> Any:
        log.n += 1
        log.last.append(log.n)
        return x * log.n + log.last[0]

    jf = thunder.jit(f)
    for _ in range(9):
        torch.testing.assert_close(jf(X, log), f(X, other))
        assert log == other and {type(n) for n in log.last} == {int}
    assert thunder.cache_misses(jf) <= 6


def test_keys_of_a_dict_that_grows() -> None:
    table: dict[Any, Any] = {}

    def f(x: Any, key: int) -> Any:
        table[key] = x.sum()
        return x * key

    jf = thunder.jit(f)
    for key in range(8):
        torch.testing.assert_close(jf(X, key), X * key)
        assert list(table) == list(range(key + 1)) and {type(k) for k in table} == {int}


def test_a_cumulative_average() -> None:
    net, other = nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3, momentum=None)
    jnet = thunder.jit(net)
    for _ in range(4):
        x = torch.randn(5, 3)
        torch.testing.assert_close(jnet(x), other(x))
    torch.testing.assert_close(net.state_dict(), other.state_dict())
    assert thunder.cache_misses(jnet) == 1


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_the_body_of_a_class_uses_variables_of_a_function() -> None:
    """It loads them by another instruction than functions do."""

    def make() -> Any:
        turns = itertools.cycle([1.0, 2.0, 3.0])

        def program(x: Any) -> Any:
            class Values:
                value = next(turns)

            return x * Values.value

        return program

    program, jitted = make(), thunder.jit(make())
    for _ in range(5):
        assert torch.equal(jitted(torch.ones(2)), program(torch.ones(2)))
