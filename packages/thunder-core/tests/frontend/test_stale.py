# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used for a program that has changed, and is used where nothing that it read has.

Each case calls, changes something, calls again and compares with eager. `changed` says whether that had to trace anew.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import inspect
import random
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


class Watched:
    """A jitted callable beside the one that it stands for."""

    def __init__(self, fn: Any, *args: Any, **options: Any):
        self.fn = fn
        self.args = args or (X,)
        self.jitted = thunder.jit(fn, **options)
        self.call()
        assert self.uncacheable is None
        assert self.call() == 0, "traced anew though nothing changed"

    @property
    def uncacheable(self) -> str | None:
        return thunder.compile_stats(self.jitted).uncacheable

    def call(self, *args: Any) -> int:
        """Calls both; the number of traces that took."""
        before = thunder.cache_misses(self.jitted)
        args = args or self.args
        torch.testing.assert_close(self.jitted(*args), self.fn(*args))
        return thunder.cache_misses(self.jitted) - before

    def changed(self, *args: Any) -> None:
        """What it read has changed."""
        assert self.call(*args) == 1, "not traced anew"
        assert self.uncacheable is None, self.uncacheable
        assert self.call(*args) == 0, "traced anew though nothing changed"

    def kept(self, *args: Any) -> None:
        """Nothing that it read has changed."""
        assert self.call(*args) == 0, thunder.explain(self.jitted)


def never_cached(fn: Any, *args: Any) -> str:
    """Asserts that each call is traced; why."""
    jitted = thunder.jit(fn)
    for _ in range(2):
        jitted(*(args or (X,)))
    assert thunder.cache_hits(jitted) == 0
    reason = thunder.compile_stats(jitted).uncacheable
    assert reason is not None
    assert reason in thunder.explain(jitted)
    return reason


# -- globals ----------------------------------------------------------------------------------------------------------
SCALE = 2.0
UNRELATED = 1.0
WEIGHT = torch.full((6,), 3.0)
OPTIONS: dict[str, Any] = {"scale": 2.0, "shift": 1}
NAMES = ["a", "b"]
FLAG = True


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x * 5


def with_default(x: torch.Tensor, factor: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
    return x * factor + shift


@pytest.fixture
def module_globals(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets globals of this module until the test ends."""
    return functools.partial(monkeypatch.setattr, sys.modules[__name__])


def test_a_global_number(module_globals: Any) -> None:
    w = Watched(lambda x: x * SCALE)
    module_globals("SCALE", 3.0)
    w.changed()
    module_globals("UNRELATED", 7.0)
    w.kept()
    module_globals("SCALE", 3)
    w.changed()


def test_a_global_tensor_flows_in(module_globals: Any) -> None:
    w = Watched(lambda x: x * WEIGHT)
    module_globals("WEIGHT", torch.full((6,), 5.0))
    w.kept()
    WEIGHT.mul_(2)
    w.kept()
    module_globals("WEIGHT", torch.full((6,), 5.0, dtype=torch.float64))
    w.changed()
    module_globals("WEIGHT", torch.full((1,), 5.0))
    w.changed()
    module_globals("WEIGHT", 5)
    w.changed()


def test_a_global_flag_in_a_branch(module_globals: Any) -> None:
    w = Watched(lambda x: x + 1 if FLAG else x - 1)
    module_globals("FLAG", False)
    w.changed()
    module_globals("FLAG", 0)
    w.changed()


def test_a_global_dict(module_globals: Any) -> None:
    w = Watched(lambda x: x * OPTIONS["scale"])
    OPTIONS["scale"] = 4.0
    w.changed()
    OPTIONS["scale"] = 2.0
    module_globals("OPTIONS", {"scale": 7.0, "shift": 1})
    w.changed()


def test_a_global_list_grows() -> None:
    w = Watched(lambda x: x * len(NAMES))
    NAMES.append("c")
    try:
        w.changed()
    finally:
        NAMES.pop()


def test_a_global_function_is_replaced(module_globals: Any) -> None:
    w = Watched(lambda x: helper(x))
    module_globals("helper", other_helper)
    w.changed()


def test_code_of_a_function_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(lambda x: helper(x))
    monkeypatch.setattr(helper, "__code__", other_helper.__code__)
    w.changed()


def test_defaults_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(lambda x: with_default(x))
    monkeypatch.setattr(with_default, "__defaults__", (3.0,))
    w.changed()
    monkeypatch.setattr(with_default, "__kwdefaults__", {"shift": 9.0})
    w.changed()


def test_a_global_shadows_a_builtin() -> None:
    w = Watched(lambda x: x * max(1, 2))
    vars(sys.modules[__name__])["max"] = min
    try:
        w.changed()
    finally:
        delattr(sys.modules[__name__], "max")


def test_a_builtin_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(lambda x: x * abs(-2))
    monkeypatch.setattr(builtins, "abs", lambda v: 7)
    w.changed()


def test_an_attribute_of_a_module_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    config = types.ModuleType("a_config")
    config.K = 2.0  # type: ignore[attr-defined]
    config.other = 1  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules[__name__], "config_module", config, raising=False)
    w = Watched(lambda x: x * config_module.K)  # type: ignore[name-defined]  # noqa: F821
    config.K = 5.0  # type: ignore[attr-defined]
    w.changed()
    config.other = 2  # type: ignore[attr-defined]
    w.kept()


def test_a_function_of_torch_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(lambda x: torch.nn.functional.relu(x))
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x * 3)
    w.changed()


# -- closures ---------------------------------------------------------------------------------------------------------
def test_a_closure_cell() -> None:
    k = 2.0

    def change(v: float) -> None:
        nonlocal k
        k = v

    w = Watched(lambda x: x * k)
    change(3.0)
    w.changed()


def test_a_closure_of_a_decorator() -> None:
    def scaled(options: dict[str, float]) -> Any:
        def decorate(fn: Any) -> Any:
            @functools.wraps(fn)
            def wrapper(x: Any) -> Any:
                return fn(x) * options["k"]

            return wrapper

        return decorate

    options = {"k": 2.0}

    @scaled(options)
    def f(x: Any) -> Any:
        return x + 1

    w = Watched(f)
    options["k"] = 3.0
    w.changed()


def test_a_closure_tensor_flows_in() -> None:
    t = torch.ones(6)

    def change(v: Any) -> None:
        nonlocal t
        t = v

    w = Watched(lambda x: x * t)
    change(torch.full((6,), 4.0))
    w.kept()
    change(torch.ones(6, dtype=torch.int64))
    w.changed()


def test_a_partial() -> None:
    part = functools.partial(with_default, factor=3.0)
    w = Watched(lambda x: part(x))
    part.keywords["factor"] = 4.0
    w.changed()
    w2 = Watched(functools.partial(with_default, factor=2.0))
    w2.kept()


def test_a_cached_helper() -> None:
    k = [2.0]

    @functools.lru_cache
    def factor() -> float:
        return k[0]

    w = Watched(lambda x: x * factor())
    w.kept()


# -- modules ----------------------------------------------------------------------------------------------------------
class Config:
    def __init__(self) -> None:
        self.scale = 2.0
        self.unused = 1


class Net(torch.nn.Module):
    K = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.drop = torch.nn.Dropout(0.0)
        self.config = Config()
        self.sizes = [1, 2]
        self.table = {"a": 1.0}
        self.p = 0.5
        self.notes = "nothing"
        self.act = torch.relu

    def forward(self, x: Any) -> Any:
        x = self.first(x) * self.config.scale + self.p
        if hasattr(self, "extra"):
            x = x + self.extra
        x = self.act(x) * self.table["a"] * len(self.sizes)
        return self.drop(self.second(x)) * self.K


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().requires_grad_(False)


def test_module_attributes(net: Net) -> None:
    w = Watched(net)
    net.notes = "something"
    w.kept()
    net.config.unused = 5
    w.kept()
    net.p = 0.25
    w.changed()
    net.config.scale = 3.0
    w.changed()
    net.config = Config()
    w.call()
    w.kept()


def test_module_containers(net: Net) -> None:
    w = Watched(net)
    net.sizes.append(3)
    w.changed()
    net.table["a"] = 4.0
    w.changed()
    net.table["b"] = 4.0
    w.call()


def test_a_function_kept_by_a_module(net: Net) -> None:
    w = Watched(net)
    net.act = torch.tanh
    w.changed()


def test_an_attribute_appears(net: Net) -> None:
    w = Watched(net)
    net.extra = 3.0
    w.changed()
    del net.extra
    w.kept()


def test_an_attribute_appears_on_the_class(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(net)
    monkeypatch.setattr(Net, "extra", 3.0, raising=False)
    w.changed()


def test_an_instance_attribute_over_a_class_attribute(net: Net) -> None:
    w = Watched(net)
    net.K = 5.0
    w.changed()


def test_a_class_attribute(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(net)
    monkeypatch.setattr(Net, "K", 9.0)
    w.changed()


def test_a_method_is_patched_on_the_class(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched(net)
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x * 2)
    w.changed()
    monkeypatch.setattr(Net, "forward", lambda self, x: x * 3)
    w.changed()


def test_forward_set_on_an_instance(net: Net) -> None:
    w = Watched(net)
    net.second.forward = lambda x: x + 1
    w.changed()
    net.forward = lambda x: x + 2
    w.changed()


def test_submodules_are_replaced(net: Net) -> None:
    w = Watched(net)
    net.first = torch.nn.Linear(6, 6).requires_grad_(False)
    w.kept()
    net.first = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU()).requires_grad_(False)
    w.changed()


def test_parameters_are_replaced(net: Net) -> None:
    w = Watched(net)
    net.first.weight = torch.nn.Parameter(torch.randn(6, 6), requires_grad=False)
    w.kept()
    net.first.weight.data = torch.randn(6, 6)
    w.kept()
    net.first.weight.data = torch.randn(6, 6).t()
    w.call()
    net.first.bias = None
    w.changed()


def test_weights_are_tied_and_untied(net: Net) -> None:
    w = Watched(net)
    own = net.second.weight
    net.second.weight = net.first.weight
    w.call()
    w.kept()
    net.second.weight = own
    w.kept()


def test_requires_grad_toggles(net: Net) -> None:
    w = Watched(net)
    net.first.weight.requires_grad_(True)
    w.changed()


def test_train_and_eval_of_any_submodule(net: Net) -> None:
    w = Watched(net)
    net.first.eval()
    w.kept()
    net.drop.eval()
    w.changed()


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_a_module(net: Net, register: str) -> None:
    w = Watched(net)
    if register == "register_forward_hook":
        handle = net.second.register_forward_hook(lambda m, args, out: out * 2)
    else:
        handle = net.second.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    w.changed()
    handle.remove()
    w.kept()


def test_global_hooks_of_modules(net: Net) -> None:
    w = Watched(net)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        w.changed()
    finally:
        handle.remove()
    w.kept()


def test_a_module_list_grows() -> None:
    class Stack(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    net = Stack().requires_grad_(False)
    w = Watched(net)
    net.layers.append(torch.nn.Linear(6, 6).requires_grad_(False))
    w.changed()
    net.layers[0] = torch.nn.ReLU()
    w.changed()


def test_computed_names() -> None:
    class Computed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(3):
                setattr(self, f"k{i}", float(i))

        def forward(self, x: Any) -> Any:
            for i in range(2):
                x = x + getattr(self, f"k{i}")
            return x

    net = Computed()
    w = Watched(net)
    net.k2 = 9.0
    w.kept()
    net.k1 = 9.0
    w.changed()


def test_parametrizations(net: Net) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, w: Any) -> Any:
            return w * 2

    w = Watched(net)
    torch.nn.utils.parametrize.register_parametrization(net.first, "weight", Doubled())
    before = thunder.cache_misses(w.jitted)
    torch.testing.assert_close(w.jitted(X), net(X))
    assert thunder.cache_misses(w.jitted) == before + 1


def test_a_module_by_a_global() -> None:
    vars(sys.modules[__name__])["NET"] = torch.nn.Linear(6, 6).requires_grad_(False)
    try:
        w = Watched(lambda x: NET(x))  # type: ignore[name-defined]  # noqa: F821
        sys.modules[__name__].NET = torch.nn.Linear(6, 6, bias=False).requires_grad_(False)  # type: ignore[attr-defined]
        w.changed()
    finally:
        del sys.modules[__name__].NET  # type: ignore[attr-defined]


# -- objects ----------------------------------------------------------------------------------------------------------
class Slotted:
    __slots__ = ("maybe", "scale")

    def __init__(self) -> None:
        self.scale = 2.0


class Computing:
    factor = 3.0

    def __init__(self) -> None:
        self.base = 2.0
        self.unused = 0

    @property
    def scale(self) -> float:
        return self.base * 2

    @staticmethod
    def static() -> float:
        return 2.0

    @classmethod
    def of_class(cls) -> float:
        return cls.factor

    def of_type(self) -> float:
        return type(self).factor

    def __len__(self) -> int:
        return 3


class Child(Computing):
    def of_type(self) -> float:
        return super().of_type() + 1


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Data:
    scale: float = 2.0
    colour: Colour = Colour.RED


class Mapping(dict):
    pass


class Items(list):
    pass


OBJECT: Any = None


def on_object(fn: Callable[[Any], Any], obj: Any, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(sys.modules[__name__], "OBJECT", obj)
    return Watched(lambda x: x * fn(OBJECT))


def test_a_property_over_an_instance_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    w = on_object(lambda o: o.base, Computing(), monkeypatch)
    monkeypatch.setattr(Computing, "base", property(lambda self: 17.0), raising=False)
    w.changed()


def test_weak_references_and_odd_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Computing()
    table: Any = {(1, "a"): 2.0, torch.float32: 3.0, Computing: 4.0, "ref": weakref.ref(target)}
    w = on_object(lambda o: o[Computing] + o["ref"]().base, table, monkeypatch)
    target.unused = 9
    w.kept()
    table[Computing] = 5.0
    w.changed()
    target.base = 7.0
    w.changed()


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Slotted()
    w = on_object(lambda o: o.scale + hasattr(o, "maybe"), obj, monkeypatch)
    obj.scale = 4.0
    w.changed()
    obj.maybe = 1
    w.changed()


def test_properties_are_watched_through(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    w = on_object(lambda o: o.scale, obj, monkeypatch)
    obj.unused = 4
    w.kept()
    obj.base = 5.0
    w.changed()
    monkeypatch.setattr(Computing, "scale", property(lambda self: 11.0))
    w.changed()


def test_static_and_class_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    w = on_object(lambda o: o.static(), obj, monkeypatch)
    monkeypatch.setattr(Computing, "static", staticmethod(lambda: 9.0))
    w.changed()
    w = on_object(lambda o: o.of_class(), obj, monkeypatch)
    monkeypatch.setattr(Computing, "factor", 8.0)
    w.changed()


def test_attributes_of_the_type(monkeypatch: pytest.MonkeyPatch) -> None:
    w = on_object(lambda o: o.of_type(), Child(), monkeypatch)
    monkeypatch.setattr(Computing, "factor", 8.0)
    w.changed()
    monkeypatch.setattr(Child, "factor", 9.0, raising=False)
    w.changed()
    monkeypatch.setattr(Computing, "of_type", lambda self: 20.0)
    w.changed()


def test_special_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    w = on_object(lambda o: len(o), Computing(), monkeypatch)
    monkeypatch.setattr(Computing, "__len__", lambda self: 7)
    w.changed()


def test_the_class_of_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    w = on_object(lambda o: o.of_type(), obj, monkeypatch)
    obj.__class__ = Child
    w.changed()


def test_bases_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        def f(self) -> float:
            return 2.0

    class Other:
        def f(self) -> float:
            return 5.0

    class Derived(Base):
        pass

    w = on_object(lambda o: o.f(), Derived(), monkeypatch)
    Derived.__bases__ = (Other,)
    w.changed()


def test_dataclasses_and_enums(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Data()
    w = on_object(lambda o: o.scale if o.colour is Colour.RED else 7.0, obj, monkeypatch)
    obj.colour = Colour.BLUE
    w.changed()
    obj.colour = Colour.RED
    w.kept()
    obj.scale = 5.0
    w.changed()


def test_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = types.SimpleNamespace(scale=2.0)
    w = on_object(lambda o: o.scale, obj, monkeypatch)
    obj.scale = 3.0
    w.changed()


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [1, 2], lambda o: o.append(3)),
        (lambda: Items([1, 2]), lambda o: o.append(3)),
        (lambda: {"a": 1}, lambda o: o.update(b=4)),
        (lambda: Mapping(a=1), lambda o: o.update(b=4)),
        (lambda: collections.OrderedDict(a=1), lambda o: o.update(b=4)),
        (lambda: collections.deque([1]), lambda o: o.append(4)),
        (lambda: {1, 2}, lambda o: o.add(4)),
        (lambda: [[1], [2]], lambda o: o[0].append(4)),
        (lambda: [(1, [2])], lambda o: o[0][1].append(4)),
        (lambda: [1.0], lambda o: o.__setitem__(0, 1)),
    ],
)
def test_containers(make: Any, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def total(o: Any) -> float:
        if isinstance(o, dict):
            o = list(o.values())
        return sum(total(i) if isinstance(i, (list, tuple)) else i for i in o)

    obj = make()
    w = on_object(total, obj, monkeypatch)
    change(obj)
    w.changed()


def test_vars_of_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    w = on_object(lambda o: vars(o)["base"], obj, monkeypatch)
    obj.base = 7.0
    w.changed()


def test_objects_that_hold_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    obj.base = torch.ones(6)  # type: ignore[assignment]
    w = on_object(lambda o: o.base, obj, monkeypatch)
    obj.base = torch.full((6,), 4.0)  # type: ignore[assignment]
    w.kept()
    obj.base = torch.ones(1)  # type: ignore[assignment]
    w.changed()


def test_metadata_of_a_tensor_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    obj.base = torch.ones(6, 2)  # type: ignore[assignment]
    w = on_object(lambda o: o.base.shape[1], obj, monkeypatch)
    obj.base = torch.ones(6, 3)  # type: ignore[assignment]
    w.changed()


def test_cached_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy:
        def __init__(self) -> None:
            self.base = 2.0

        @functools.cached_property
        def scale(self) -> float:
            return self.base * 2

    obj = Lazy()
    monkeypatch.setattr(sys.modules[__name__], "OBJECT", obj)
    jitted = thunder.jit(lambda x: x * OBJECT.scale)
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * 4.0)
    assert obj.__dict__["scale"] == 4.0
    obj.__dict__["scale"] = 5.0
    torch.testing.assert_close(jitted(X), X * 5.0)


# -- arguments --------------------------------------------------------------------------------------------------------
class Batch:
    def __init__(self, x: Any, k: float = 2.0):
        self.x = x
        self.k = k
        self.unused = 1


def test_objects_as_arguments() -> None:
    w = Watched(lambda b: b.x * b.k, Batch(X))
    w.kept(Batch(X + 1))
    other = Batch(X)
    other.unused = 7
    w.kept(other)
    w.changed(Batch(X, 3.0))
    w.changed(Batch(X.double(), 3.0))


def test_functions_as_arguments() -> None:
    def make(k: float) -> Any:
        return lambda x: x * k

    w = Watched(lambda f, x: f(x), make(2.0), X)
    w.kept(make(2.0), X)
    w.changed(make(3.0), X)
    w.changed(torch.sin, X)
    w.changed(torch.cos, X)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 2), (1, 1.0), (1, True), ("a", "b"), (None, 0), (Colour.RED, Colour.BLUE), (torch.float32, torch.float64),
        (slice(0, 2), slice(0, 3)), ([1, 2], [1, 3]), ((1, 2), [1, 2]), ({"a": 1}, {"b": 1}), (0.0, -0.0), (1j, 2j),
        (range(3), range(4)), ({1}, {2}),
    ],
)  # fmt: skip
def test_plain_arguments(one: Any, two: Any) -> None:
    jitted = thunder.jit(lambda x, v: (x + 1, repr(v)))
    for value in (one, two, one, two):
        assert jitted(X, value)[1] == repr(value)
    assert thunder.cache_misses(jitted) == 2


def test_arguments_that_are_one_tensor() -> None:
    def f(a: Any, b: Any) -> Any:
        return a * 2 + b if a is b else a + b

    jitted = thunder.jit(f)
    y = X.clone()
    for a, b in ((X, X), (X, y), (y, y), (y, X)):
        torch.testing.assert_close(jitted(a, b), f(a, b))
    assert thunder.cache_misses(jitted) == 2


def test_modules_as_arguments(net: Net) -> None:
    w = Watched(lambda m, x: m(x), net, X)
    w.kept(copy.deepcopy(net), X)
    net.p = 9.0
    w.changed()


# -- torch's state ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["grad", "inference", "autocast"],
)
def test_modes(mode: Any) -> None:
    jitted = thunder.jit(lambda x: x @ x.t())
    x = torch.randn(3, 3)
    jitted(x)
    with mode():
        jitted(x)
    assert thunder.cache_misses(jitted) == 2


def test_default_dtype() -> None:
    w = Watched(lambda x: x + torch.zeros(6))
    torch.set_default_dtype(torch.float64)
    try:
        w.changed()
    finally:
        torch.set_default_dtype(torch.float32)


# -- what is never cached ---------------------------------------------------------------------------------------------
TABLE = {i: torch.ones(6) * i for i in range(2000)}
ITERATOR: Iterator[float] = iter(())
ARRAY = numpy.ones(3)
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=2.0)


def test_a_large_table() -> None:
    assert "TABLE" in never_cached(lambda x: x * TABLE[3])


def test_iterators(module_globals: Any) -> None:
    module_globals("ITERATOR", iter([float(i) for i in range(100)]))
    assert "ITERATOR" in never_cached(lambda x: x * next(ITERATOR))


def test_contents_of_arrays() -> None:
    assert "ARRAY" in never_cached(lambda x: x * float(ARRAY[0]))


def test_chance_and_clocks() -> None:
    assert "random" in never_cached(lambda x: x * random.random())
    assert "time" in never_cached(lambda x: x * time.time())
    assert "random" in never_cached(lambda x: x * float(numpy.random.rand()))


class Compiled:
    """Its instances have modules, the class has a descriptor in that place: so are functions that Cython compiles."""

    __module__ = property(lambda self: "numpy.random")  # type: ignore[assignment]

    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self, x: Any) -> Any:
        return x * self.scale


COMPILED = Compiled()


def test_annotations_that_are_evaluated_late() -> None:
    """Since Python 3.14 asking for a signature runs code of the function's module."""

    def double(x: Any) -> Any:
        return x * 2

    Watched(lambda x: double(x) * len(inspect.signature(double).parameters))


def test_a_class_without_the_name_of_a_module() -> None:
    watched = Watched(lambda x: COMPILED(x))
    COMPILED.scale = 3.0
    watched.changed()


def test_sharp_edges_refuse_it() -> None:
    jitted = thunder.jit(lambda x: x * random.random(), sharp_edges="error")
    with pytest.raises(RuntimeError, match="random"):
        jitted(X)


def test_context_variables() -> None:
    w = Watched(lambda x: x * VARIABLE.get())
    token = VARIABLE.set(5.0)
    w.changed()
    VARIABLE.reset(token)
    w.kept()


# -- and the tracing itself -------------------------------------------------------------------------------------------
def test_classes_are_as_they_were(net: Net) -> None:
    Watched(net)
    for cls in (Net, torch.nn.Linear, Config, torch.nn.Module):
        assert "__getattribute__" not in cls.__dict__
    with contextlib.suppress(ZeroDivisionError):
        thunder.jit(lambda x: net(x) / (1 // 0))(X)
    assert "__getattribute__" not in Net.__dict__
    assert sys.getprofile() is None


def test_why_it_traced_anew(net: Net) -> None:
    w = Watched(net)
    net.config.scale = 7.0
    w.changed()
    assert "config.scale was 2.0" in thunder.explain(w.jitted)


# -- what models of libraries do --------------------------------------------------------------------------------------
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


def test_lookups_of_a_class_of_its_own() -> None:
    """A `__getattribute__` written in Python may look anywhere: everything that the object has is guarded."""
    options = Mapped()

    def f(x: Any) -> Any:
        options.used = True
        return x * options.size

    watched = Watched(f)
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


def test_sets_of_classes() -> None:
    """Their elements are guarded."""

    def f(x: Any) -> Any:
        return x * (2 if Watched in KINDS else 3) * len(KINDS)

    watched = Watched(f)
    KINDS.add(Watched)
    watched.changed()
    KINDS.remove(Mapped)
    KINDS.add(type("Mapped", (), {}))  # a class of the same name
    watched.changed()


NOTHING = object()
CHOSEN: Any = NOTHING


def test_sentinels() -> None:
    """An object without anything in it is itself."""
    global CHOSEN

    def f(x: Any) -> Any:
        return x if CHOSEN is NOTHING else x + 1

    watched = Watched(f)
    CHOSEN = object()
    watched.changed()


@dataclasses.dataclass
class Fields:
    """A class that looks at its own fields."""

    x: Any = None
    y: Any = None

    def filled(self) -> int:
        return sum(getattr(self, f.name) is not None for f in dataclasses.fields(self))


def test_fields_of_dataclasses() -> None:
    """Reading them is no reason to trace each call."""
    Watched(lambda x: x * Fields(x).filled()).kept()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def test_custom_functions_by_name() -> None:
    """What `Doubled.apply` is while a program is traced is not what is guarded, but its forward is."""
    watched = Watched(lambda x: Doubled.apply(x))
    before = Doubled.forward
    try:
        Doubled.forward = staticmethod(lambda ctx, x: x * 3)
        watched.changed()
    finally:
        Doubled.forward = staticmethod(before)


def test_custom_operators_with_gradients() -> None:
    """torch gives them an autograd function, which is none of the program's."""

    @torch.library.custom_op("thunder_test_stale::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    triple.register_fake(lambda x: torch.empty_like(x))
    triple.register_autograd(lambda ctx, g: g * 3)
    x = X.clone().requires_grad_()
    watched = Watched(lambda x: torch.ops.thunder_test_stale.triple(x).sin(), x)
    watched.kept()
    (found,) = torch.autograd.grad(watched.jitted(x).sum(), x)
    torch.testing.assert_close(found, 3 * (3 * X).cos())


def test_the_compiling_flag_is_a_boolean() -> None:
    """`torch.compiler.is_compiling()` is used like any other."""

    def f(x: Any) -> Any:
        flag = torch.compiler.is_compiling()
        both = flag | False
        both &= True
        flag |= False
        assert (both, flag == True, flag ^ True, int(flag), repr(flag)) == (True, True, False, 1, "True")  # noqa: E712
        assert {True: 1}[flag] == 1
        return x + 1

    thunder.jit(f)(X)


# -- classes that the program has in variables ------------------------------------------------------------------------
class Base:
    """A class with data."""

    n = 1
    table: dict[str, int] = {}  # noqa: RUF012


class Derived(Base):
    """Another one."""


def of_class(c: Any, x: Any) -> Any:
    """Reads attributes of a class under a name of its own."""
    return x * c.n * (c.extra if hasattr(c, "extra") else 1) + len(c.table)


def test_attributes_of_classes_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along the bases; those that appear, and those that disappear."""
    watched = Watched(lambda x: of_class(Derived, x))
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


def test_classes_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their attributes are read where they are used."""
    watched = Watched(lambda x, c: of_class(c, x), X, Derived)
    monkeypatch.setattr(Base, "n", 7)
    watched.changed()
    watched.changed(X, Base)


def test_attributes_of_tensors() -> None:
    """That the user has given them: of arguments, parameters, globals; read, missed, and appearing later."""
    x, weight = X.clone(), torch.nn.Parameter(X.clone())

    def f(x: Any) -> Any:
        y = x * 2 if getattr(x, "flag", False) else x + 1
        return y * weight.scale if hasattr(weight, "scale") else y * weight

    watched = Watched(f, x)
    x.flag = True  # type: ignore[attr-defined]
    watched.changed()
    x.flag = False  # type: ignore[attr-defined]
    watched.changed()
    weight.scale = 3  # type: ignore[attr-defined]
    watched.changed()
    weight.scale = 4  # type: ignore[attr-defined]
    watched.changed()
    del weight.scale  # type: ignore[attr-defined]
    assert watched.call() == 0  # the first program's


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


def test_functions_in_tables_of_classes() -> None:
    """They are found where they ran though no read led to them, and are guarded."""
    options = Validated()

    def f(x: Any) -> Any:
        options.used = True
        return x * options.size

    watched = Watched(f)
    before = Validated.__validators__["used"]
    try:
        Validated.__validators__["used"] = [lambda value: X.add_(0)]
        assert watched.call() == 1
    finally:
        Validated.__validators__["used"] = before


# -- classes whose hooks are used up ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "test",
    [
        test_a_class_attribute, test_an_attribute_appears_on_the_class,
        test_forward_set_on_an_instance, test_an_instance_attribute_over_a_class_attribute, test_hooks_of_a_module,
        test_weights_are_tied_and_untied, test_attributes_of_the_type, test_an_attribute_appears,
    ],
    ids=lambda f: f.__name__.removeprefix("test_"),
)  # fmt: skip
def test_without_hooks(test: Any, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class is hooked only so often in a process; after that, all that its instances have is guarded."""
    monkeypatch.setattr("thunder.frontend.hooks.MAX_INSTALLS", 0)
    given = {"net": net, "monkeypatch": monkeypatch, "register": "register_forward_hook"}
    test(**{name: given[name] for name in inspect.signature(test).parameters})


class Emptied:
    """With a slot that may be empty, and a property."""

    __slots__ = ("maybe",)

    @property
    def three(self) -> int:
        """A number."""
        return 3


def test_slots_and_properties_without_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is filled, a property that becomes another."""
    monkeypatch.setattr("thunder.frontend.hooks.MAX_INSTALLS", 0)
    thing = Emptied()
    watched = Watched(lambda x: x * getattr(thing, "maybe", 1) * thing.three)
    thing.maybe = 5
    watched.changed()
    monkeypatch.setattr(Emptied, "three", property(lambda self: 4))
    watched.changed()
    del thing.maybe
    watched.changed()
