# SPDX-License-Identifier: Apache-2.0
"""Classes of models: methods that call the model or are traced themselves, slots, subclasses and graphs."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from typing import Any

import pytest
import torch
from outcomes import counts
from torch import nn

import thunder


# -- methods of the model ---------------------------------------------------------------------------------------------
class Stepping(nn.Module):
    """Has methods that call it, as models that generate do."""

    rate = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.rate = 0.5

    def forward(self, x: Any, *, gain: float = 1.0, **others: Any) -> Any:
        return self.layer(x).tanh() * gain

    def describe(self) -> str:
        return type(self).__name__

    def step(self, x: Any) -> Any:
        return self(x, gain=self.rate)

    @classmethod
    def make(cls) -> Stepping:
        return cls()


class Generating(Stepping):
    """Chooses a method by name, and calls those of its base."""

    def describe(self) -> str:
        return f"generating {super().describe()}"

    def generate(self, x: Any, method: str = "step") -> Any:
        taken = [name for name in ("gain", "cache") if name in inspect.signature(self.forward).parameters]
        assert taken == ["gain"]
        self.made = 0
        for _ in range(3):
            x = getattr(type(self), method)(self, x)
            self.made += 1
        return x


def test_methods_of_the_model_run_compiled_programs() -> None:
    """Where a method calls its model, it calls the jitted one."""
    model = Generating()
    jitted = thunder.jit(model)
    x = torch.linspace(-1, 1, 6).view(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(jitted.generate(x), model.generate(x), rtol=0, atol=0)
    assert counts(jitted) == (1, 2)
    assert (jitted.made, model.made, "made" in model.__dict__) == (3, 3, True)
    assert jitted.describe().startswith("generating ThunderModule")
    assert (jitted.rate, model.rate) == (0.5, 0.5)
    assert isinstance(jitted, Generating)
    assert type(jitted.make()) is Generating
    assert inspect.signature(jitted.forward) == inspect.signature(model.forward)
    with pytest.raises(AttributeError):
        jitted.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        type(jitted).nothing  # noqa: B018


def test_jitted_modules_of_one_class_are_alike() -> None:
    """Each class of models has one class of jitted modules, which copies and pickles keep."""
    one, two = thunder.jit(Generating()), thunder.jit(Generating())
    assert type(one) is type(two) is not type(thunder.jit(Stepping()))
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert type(other) is type(one)
        x = torch.ones(1, 3)
        torch.testing.assert_close(other.step(x), one.step(x))
        assert counts(other) == (1, 0)


def test_a_class_of_models_can_go() -> None:
    """thunder keeps no class of the user's alive."""

    def once() -> Any:
        class Local(nn.Module):
            def forward(self, x: Any) -> Any:
                return super().forward(x)

        thunder.jit(Local())
        return weakref.ref(Local)

    found = once()
    gc.collect()
    assert found() is None


# -- jitted modules in traced programs --------------------------------------------------------------------------------
class Counting(nn.Module):
    """Reads and assigns attributes in methods."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.rate, self.calls = 2.0, 0

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return self.layer(x) * self.rate

    def slowed(self, x: Any) -> Any:
        self.rate = self.rate / 2
        return self(x) + self.calls


def test_a_traced_program_that_uses_a_jitted_module() -> None:
    """Reads and assignments through the jitted module are those of the model: guarded, undone and repeated."""
    torch.manual_seed(0)
    eager = Counting()
    model = copy.deepcopy(eager)
    inner, x = thunder.jit(model), torch.ones(2, 3)

    def program(m: Any, x: Any) -> Any:
        y = m.slowed(x) + m.rate
        m.calls += 1
        m.last = float(m.calls)
        return y + len(list(m.parameters()))

    jitted = thunder.jit(lambda x: program(inner, x))
    for step in range(6):
        torch.testing.assert_close(jitted(x), program(eager, x), msg=f"step {step}")
        assert (
            (model.rate, model.calls, model.last)
            == (eager.rate, eager.calls, eager.last)
            == (inner.rate, inner.calls, inner.last)
        )
        if step == 3:
            eager.rate = model.rate = 64.0
        if step == 4:
            eager.calls = inner.calls = 100
    assert thunder.compile_stats(jitted).uncacheable is None


def test_assignments_through_the_model_and_the_jitted_module_in_one_program() -> None:
    """They are one object: what one assigns, the other reads, and so do guards."""
    model = Counting()
    inner, x = thunder.jit(model), torch.ones(3)

    def program(x: Any) -> Any:
        model.rate = model.rate + 1
        found = inner.rate
        inner.rate = found * 2
        return x * model.rate

    jitted = thunder.jit(program)
    rate = 2.0
    for _ in range(5):
        rate = (rate + 1) * 2
        assert torch.equal(jitted(x), x * rate) and model.rate == rate
    model.rate = 0.0
    assert torch.equal(jitted(x), x * 2)


def test_a_bound_method_of_a_jitted_module() -> None:
    """It can be jitted itself."""
    torch.manual_seed(0)
    eager = Counting()
    inner, x = thunder.jit(copy.deepcopy(eager)), torch.ones(2, 3)
    jitted = thunder.jit(inner.slowed)
    for _ in range(4):
        torch.testing.assert_close(jitted(x), eager.slowed(x))


# -- unusual classes of models ----------------------------------------------------------------------------------------
class Slotted(nn.Module):
    """Has a slot, which the jitted module cannot share."""

    __slots__ = ("gain",)

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "gain", 3.0)

    def forward(self, x: Any) -> Any:
        return x * self.gain


def test_slots() -> None:
    """They are read and assigned in the model."""
    model = Slotted()
    jitted = thunder.jit(model)
    assert jitted.gain == 3.0
    object.__setattr__(jitted, "gain", 4.0)
    assert model.gain == 4.0
    assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 4.0))


def test_classes_that_register_their_subclasses() -> None:
    """The class of a jitted module is no subclass that user code sees."""
    registered: list[str] = []

    class Base(nn.Module):
        def __init_subclass__(cls, **options: Any) -> None:
            registered.append(cls.__name__)

    class Model(Base):
        def forward(self, x: Any) -> Any:
            return x + 1

    thunder.jit(Model())(torch.ones(2))
    assert registered == ["Model"]


def test_attributes_have_any_name() -> None:
    """No name of a model's attribute collides with a name of thunder's."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._model, self._jitted, self._stats, self.stats = 1, 2, 3, 4

        def forward(self, x: Any) -> Any:
            return x * self._model * self._jitted * self._stats * self.stats

        def product(self) -> int:
            return self._model * self._jitted * self._stats * self.stats

    jitted = thunder.jit(Model())
    assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 24.0)) and jitted.product() == 24
    jitted._jitted = 0
    assert jitted.product() == 0 and not jitted(torch.ones(2)).any()
    assert counts(jitted)[0] == 2
    assert thunder.last_traces(jitted)


def test_a_class_that_changes() -> None:
    """The class of the jitted module follows that of the model."""
    model = Counting()
    jitted = thunder.jit(model)
    nn.utils.parametrize.register_parametrization(model.layer, "weight", nn.Identity())

    class Other(Counting):
        def extra(self) -> str:
            return "other"

    model.__class__ = Other
    assert jitted.extra() == "other" and jitted.__class__ is Other and isinstance(jitted, Other)
    jitted.__class__ = Counting
    assert type(model) is Counting and not hasattr(jitted, "extra")
    torch.testing.assert_close(jitted(torch.ones(2, 3)), model(torch.ones(2, 3)))


def test_graph_modules() -> None:
    """A change of the graph of a jitted `GraphModule` changes the model, and the next call compiles it."""
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    jitted, x = thunder.jit(graph), torch.randn(2, 3)
    torch.testing.assert_close(jitted(x), graph(x))
    for node in jitted.graph.nodes:
        if node.op == "call_module" and node.target == "1":
            with jitted.graph.inserting_after(node):
                node.replace_all_uses_with(jitted.graph.call_function(torch.sin, (node.args[0],)))
            jitted.graph.erase_node(node)
            break
    jitted.recompile()
    torch.testing.assert_close(jitted(x), graph(x))
    torch.testing.assert_close(jitted(x), graph.get_submodule("0")(x).sin())


def test_forward_is_compiled_without_hooks() -> None:
    """`module.forward(x)` runs no hooks, as in eager mode, and runs a compiled program."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model.register_forward_hook(lambda module, args, out: out * 0)
    jitted, x = thunder.jit(model), torch.randn(2, 3)
    for _ in range(2):
        torch.testing.assert_close(jitted.forward(x), model.forward(x))
        assert not jitted(x).any()
    program = jitted._thunder_forward[1]
    assert counts(program) == (1, 1)


def test_functional_calls() -> None:
    """`torch.func.functional_call` gives a jitted module other parameters, and so do transforms of `torch.func`."""
    model = nn.Linear(3, 2)
    jitted, x = thunder.jit(model), torch.randn(4, 3)
    state = {name: torch.randn_like(p) for name, p in model.named_parameters()}

    def loss(module: Any, state: Any) -> Any:
        return torch.func.functional_call(module, state, (x,)).square().sum()

    torch.testing.assert_close(loss(jitted, state), loss(model, state))
    torch.testing.assert_close(
        torch.func.grad(lambda s: loss(jitted, s))(state), torch.func.grad(lambda s: loss(model, s))(state)
    )
