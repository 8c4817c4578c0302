# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used where an object that it read has changed."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


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


@pytest.fixture
def on_object(watch: Any, module_globals: Any) -> Callable[..., Any]:
    """Watches what a function of a global object gives."""

    def start(fn: Callable[[Any], Any], obj: Any) -> Any:
        module_globals("OBJECT", obj)
        return watch(lambda x: x * fn(OBJECT))

    return start


def test_a_property_over_an_instance_attribute(on_object: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = on_object(lambda o: o.base, Computing())
    monkeypatch.setattr(Computing, "base", property(lambda self: 17.0), raising=False)
    w.changed()


def test_weak_references_and_odd_keys(on_object: Any) -> None:
    target = Computing()
    table: Any = {(1, "a"): 2.0, torch.float32: 3.0, Computing: 4.0, "ref": weakref.ref(target)}
    w = on_object(lambda o: o[Computing] + o["ref"]().base, table)
    target.unused = 9
    w.kept()
    table[Computing] = 5.0
    w.changed()
    target.base = 7.0
    w.changed()


def test_slots(on_object: Any) -> None:
    obj = Slotted()
    w = on_object(lambda o: o.scale + hasattr(o, "maybe"), obj)
    obj.scale = 4.0
    w.changed()
    obj.maybe = 1
    w.changed()


def test_properties_are_watched_through(on_object: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    w = on_object(lambda o: o.scale, obj)
    obj.unused = 4
    w.kept()
    obj.base = 5.0
    w.changed()
    monkeypatch.setattr(Computing, "scale", property(lambda self: 11.0))
    w.changed()


def test_static_and_class_methods(on_object: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    obj = Computing()
    w = on_object(lambda o: o.static(), obj)
    monkeypatch.setattr(Computing, "static", staticmethod(lambda: 9.0))
    w.changed()
    w = on_object(lambda o: o.of_class(), obj)
    monkeypatch.setattr(Computing, "factor", 8.0)
    w.changed()


def test_attributes_of_the_type(on_object: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = on_object(lambda o: o.of_type(), Child())
    monkeypatch.setattr(Computing, "factor", 8.0)
    w.changed()
    monkeypatch.setattr(Child, "factor", 9.0, raising=False)
    w.changed()
    monkeypatch.setattr(Computing, "of_type", lambda self: 20.0)
    w.changed()


def test_attributes_of_the_type_without_hooks(on_object: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the object has is guarded."""
    monkeypatch.setattr("thunder.capture.reads.hooks.MAX_INSTALLS", 0)
    test_attributes_of_the_type(on_object, monkeypatch)


def test_special_methods(on_object: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = on_object(lambda o: len(o), Computing())
    monkeypatch.setattr(Computing, "__len__", lambda self: 7)
    w.changed()


def test_the_class_of_an_object(on_object: Any) -> None:
    obj = Computing()
    w = on_object(lambda o: o.of_type(), obj)
    obj.__class__ = Child
    w.changed()


def test_bases_of_a_class(on_object: Any) -> None:
    class Base:
        def f(self) -> float:
            return 2.0

    class Other:
        def f(self) -> float:
            return 5.0

    class Derived(Base):
        pass

    w = on_object(lambda o: o.f(), Derived())
    Derived.__bases__ = (Other,)
    w.changed()


def test_dataclasses_and_enums(on_object: Any) -> None:
    obj = Data()
    w = on_object(lambda o: o.scale if o.colour is Colour.RED else 7.0, obj)
    obj.colour = Colour.BLUE
    w.changed()
    obj.colour = Colour.RED
    w.kept()
    obj.scale = 5.0
    w.changed()


def test_namespaces(on_object: Any) -> None:
    obj = types.SimpleNamespace(scale=2.0)
    w = on_object(lambda o: o.scale, obj)
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
def test_containers(on_object: Any, make: Any, change: Any) -> None:
    def total(o: Any) -> float:
        if isinstance(o, dict):
            o = list(o.values())
        return sum(total(i) if isinstance(i, (list, tuple)) else i for i in o)

    obj = make()
    w = on_object(total, obj)
    change(obj)
    w.changed()


def test_vars_of_an_object(on_object: Any) -> None:
    obj = Computing()
    w = on_object(lambda o: vars(o)["base"], obj)
    obj.base = 7.0
    w.changed()


def test_objects_that_hold_tensors(on_object: Any) -> None:
    obj = Computing()
    obj.base = torch.ones(6)  # type: ignore[assignment]
    w = on_object(lambda o: o.base, obj)
    obj.base = torch.full((6,), 4.0)  # type: ignore[assignment]
    w.kept()
    obj.base = torch.ones(1)  # type: ignore[assignment]
    w.changed()


def test_metadata_of_a_tensor_that_is_not_used(on_object: Any) -> None:
    obj = Computing()
    obj.base = torch.ones(6, 2)  # type: ignore[assignment]
    w = on_object(lambda o: o.base.shape[1], obj)
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


def test_attributes_of_tensors(watch: Any) -> None:
    """That the user has given them: of arguments, parameters, globals; read, missed, and appearing later."""
    x, weight = X.clone(), torch.nn.Parameter(X.clone())

    def f(x: Any) -> Any:
        y = x * 2 if getattr(x, "flag", False) else x + 1
        return y * weight.scale if hasattr(weight, "scale") else y * weight

    watched = watch(f, x)
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


class Emptied:
    """With a slot that may be empty, and a property."""

    __slots__ = ("maybe",)

    @property
    def three(self) -> int:
        """A number."""
        return 3


def test_slots_and_properties_without_hooks(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is filled, a property that becomes another."""
    monkeypatch.setattr("thunder.capture.reads.hooks.MAX_INSTALLS", 0)
    thing = Emptied()
    watched = watch(lambda x: x * getattr(thing, "maybe", 1) * thing.three)
    thing.maybe = 5
    watched.changed()
    monkeypatch.setattr(Emptied, "three", property(lambda self: 4))
    watched.changed()
    del thing.maybe
    watched.changed()


# -- assignments that change nothing when they are traced -------------------------------------------------------------
class Part:
    def __init__(self) -> None:
        self.count, self.items = 3, [1]


class Assigning(torch.nn.Module):
    """Everything that may be assigned; `assign` says what a call does with it."""

    kind = 3

    def __init__(self, assign: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.assign, self.part, self.slotted = assign, Part(), Slotted()
        self.n = self.other = self.rows = 3
        self.name, self.function, self.nothing = "a", torch.sin, None
        self.t = self.same = torch.ones(2)
        self.register_buffer("b", torch.ones(2))
        self.buffer, self.items, self.child = self.b, self.part.items, torch.nn.Linear(1, 1)
        self.again, self.also = self.child, self.part

    def forward(self, x: Any) -> Any:
        self.assign(self, x)
        return x * 2

    def state(self) -> Any:
        """All of it, objects by whether they are the same."""
        plain = self.n, self.part.count, self.slotted.scale, type(self).kind, self.name, self.function, self.nothing
        same = self.same is self.t, self.buffer is self.b, self.items is self.part.items, self.again is self.child
        return plain, same, self.also is self.part, self.rows, self.training, COUNT


COUNT = 3


def counts(m: Any, x: Any) -> None:
    """Assigns a global."""
    global COUNT
    COUNT = 3


def of_the_type(m: Any, x: Any) -> None:
    """Assigns an attribute of the class."""
    Assigning.kind = 3


def several(m: Any, x: Any) -> None:
    """Assigns what other objects have."""
    m.items, m.again, m.also, m.buffer = m.part.items, m.child, m.part, m.b


@pytest.mark.parametrize(
    "assign",
    [
        lambda m, x: setattr(m, "n", 3),
        lambda m, x: setattr(m, "n", m.other),
        lambda m, x: setattr(m.part, "count", 3),
        lambda m, x: setattr(m.slotted, "scale", 2.0),
        lambda m, x: setattr(m, "name", "a"),
        lambda m, x: setattr(m, "function", torch.sin),
        lambda m, x: setattr(m, "nothing", None),
        lambda m, x: setattr(m, "same", m.t),
        lambda m, x: setattr(m, "rows", len(x)),
        lambda m, x: m.train(),
        lambda m, x: vars(m.part).update(count=3),
        counts,
        of_the_type,
        several,
    ],
)
def test_assignments_that_change_nothing(assign: Any) -> None:
    """They are made again where something else has been assigned since."""
    global COUNT

    def run(jit: Any) -> list[Any]:
        global COUNT
        COUNT = Assigning.kind = 3
        module, found = Assigning(assign), []
        call = jit(module)
        for i in range(6):
            call(torch.ones(3 + i % 2))
            found.append(module.state())
            if i > 1:
                COUNT, Assigning.kind = i, i + 10
                module.n = module.part.count = module.slotted.scale = module.rows = i + 20
                module.name, module.function, module.nothing = "b", torch.cos, i
                module.t, module.same, module.buffer, module.items = torch.ones(2), torch.zeros(2), None, []
                module.again, module.also = torch.nn.Linear(1, 1), Part()
                module.eval()
        return found

    def jit(module: Any) -> Any:
        jitted.append(thunder.jit(module))
        return jitted[0]

    jitted: list[Any] = []
    expected = run(lambda module: module)
    assert run(jit) == expected
    assert thunder.cache_misses(jitted[0]) <= 4
    COUNT = Assigning.kind = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    scale: float = 2.0
    shift: Any = None


def test_slotted_dataclasses_among_arguments() -> None:
    """Their fields are guarded and may be tensors."""

    def program(x: torch.Tensor, options: Options) -> torch.Tensor:
        return x * options.scale + (0 if options.shift is None else options.shift)

    jitted = thunder.jit(program)
    x = torch.ones(2)
    for options in (Options(), Options(3.0), Options(shift=torch.ones(2)), Options()):
        assert torch.equal(jitted(x, options), program(x, options))
    assert thunder.cache_misses(jitted) == 3


class Named:
    def __init__(self) -> None:
        self.scale = 2.0


def test_absent_attribute_that_classes_have(watch: Any) -> None:
    """Whether an object has a `__name__` does not depend on that of its class."""
    named = Named()
    w = watch(lambda x: x * (3 if hasattr(named, "__name__") else named.scale))
    w.kept()
    named.__name__ = "n"  # type: ignore[attr-defined]
    w.changed()


class Triple(tuple):
    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError


def test_items_of_a_tuple_with_its_own_methods(watch: Any) -> None:
    """Guards call no method of a user class."""
    holder = Named()
    holder.scale = Triple((1.0, 2.0, 3.0))  # type: ignore[assignment]
    w = watch(lambda x: x * holder.scale[1])  # type: ignore[index]
    w.kept()
    holder.scale = Triple((1.0, 4.0, 3.0))  # type: ignore[assignment]
    w.changed()


def test_gradient_that_is_none(watch: Any) -> None:
    """A tensor without a gradient is guarded to have none; with one, there is another program."""
    tensor = torch.ones(6)
    w = watch(lambda x: x * tensor * (2 if tensor.grad is None else 3))
    w.kept()
    tensor.grad = torch.ones(6)
    for _ in range(2):
        torch.testing.assert_close(w.jitted(X), 3 * X)
    assert "tensor.grad was None and is a Tensor" in thunder.explain(w.jitted)
