# SPDX-License-Identifier: Apache-2.0
"""`thunder.jit` of modules: the result is the module in all but how it runs."""

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


class Net(nn.Module):
    """Linear, normalization with running statistics, dropout, a buffer and attributes of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.ones(3), persistent=False)
        self.scale = 2.0
        self.kinds = ["relu"]

    def forward(self, x: Any, *, extra: Any = None) -> Any:
        """Counts its steps."""
        self.steps += 1
        x = self.drop(self.norm(self.first(x)).relu())
        x = self.last(x) * self.scale * self.scratch
        return x if extra is None else x + extra

    def shape(self) -> tuple[int, ...]:
        """A method of its own."""
        return tuple(self.last.weight.shape)


def pair() -> tuple[Net, Net, Any]:
    """Two modules with the same weights, and the second one jitted."""
    torch.manual_seed(0)
    eager = Net().double()
    ours = copy.deepcopy(eager)
    return eager, ours, thunder.jit(ours)


def batch(n: int = 5) -> torch.Tensor:
    """An input."""
    return torch.linspace(-1, 1, 4 * n, dtype=torch.float64).reshape(n, 4)


def test_what_it_is() -> None:
    """A module, with the original's tensors, children, attributes and methods."""
    _, ours, jitted = pair()
    assert isinstance(jitted, nn.Module)
    assert list(jitted.state_dict()) == list(ours.state_dict())
    for name in ("parameters", "buffers", "children", "modules"):
        found, expected = list(getattr(jitted, name)()), list(getattr(ours, name)())
        assert [id(x) for x in found if x is not jitted] == [id(x) for x in expected if x is not ours], name
    assert dict(jitted.named_parameters()).keys() == dict(ours.named_parameters()).keys()
    assert jitted.first is ours.first
    assert jitted.get_submodule("first") is ours.first
    assert jitted.get_parameter("last.weight") is ours.last.weight
    assert (jitted.scale, jitted.kinds, jitted.shape(), jitted.training) == (2.0, ["relu"], (3, 8), True)
    assert "Net" in repr(jitted)
    assert "shape" in dir(jitted)
    with pytest.raises(AttributeError, match="nothing"):
        jitted.nothing  # noqa: B018


def test_training_steps() -> None:
    """Losses, gradients, running statistics, counters and dropout's draws are eager's, step after step."""
    eager, ours, jitted = pair()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, jitted)]
    for step in range(4):
        losses = []
        for m, optimizer in zip((eager, jitted), optimizers):
            torch.manual_seed(step)
            loss = m(batch() * (step + 1)).square().sum()
            loss.backward()
            losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=1e-12)
    for (name, a), (_, b) in zip(ours.state_dict().items(), eager.state_dict().items()):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
    assert ours.steps == ours.norm.num_batches_tracked == 4
    assert type(ours.steps) is torch.Tensor
    assert counts(jitted) == (1, 3)


def test_train_and_eval() -> None:
    """Of the whole and of a part; each mode has its program."""
    eager, ours, jitted = pair()
    for switch in (
        lambda m: m.eval(), lambda m: m.train(), lambda m: m.eval(), lambda m: m.norm.train(), lambda m: m.train(False),
        lambda m: m.requires_grad_(False),
    ):  # fmt: skip
        outs = []
        for m in (eager, jitted):
            switch(m)
            torch.manual_seed(1)
            outs.append(m(batch()))
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-12, atol=1e-12)
        assert outs[1].requires_grad is outs[0].requires_grad
        assert (jitted.training, ours.norm.training) == (eager.training, eager.norm.training)
    torch.testing.assert_close(ours.norm.running_mean, eager.norm.running_mean)
    assert ours.norm.num_batches_tracked == eager.norm.num_batches_tracked == 2


def test_attributes_are_the_models() -> None:
    """Set through either, seen by both, and by the next call."""
    eager, ours, jitted = pair()
    for m in (eager, jitted):
        m.eval()
    for change in (
        lambda m: setattr(m, "scale", 3.0),
        lambda m: setattr(m, "scratch", torch.full((3,), 2.0, dtype=torch.float64)),
        lambda m: m.scratch.mul_(2),
        lambda m: setattr(m.last, "bias", None),
        lambda m: setattr(m, "last", nn.Linear(8, 3, bias=False, dtype=torch.float64).requires_grad_(False)),
        lambda m: m.last.weight.zero_(),
        lambda m: setattr(m.first, "weight", nn.Parameter(torch.ones(8, 4, dtype=torch.float64))),
        lambda m: m.first.weight.data.mul_(3),
        lambda m: delattr(m, "kinds"),
    ):
        for m in (eager, jitted):
            torch.manual_seed(2)
            change(m)
        assert ours.scale == jitted.scale
        torch.testing.assert_close(jitted(batch()), eager(batch()), rtol=1e-12, atol=1e-12)
    assert not hasattr(ours, "kinds")
    jitted.new = 5
    assert ours.new == 5


def test_state_dicts() -> None:
    """Saved from one, loaded into the other, also between steps."""
    eager, ours, jitted = pair()
    jitted(batch())
    with torch.no_grad():
        for p in eager.parameters():
            p.mul_(1.5)
    for m in (eager, jitted):
        m.eval()
    jitted.load_state_dict(eager.state_dict())
    torch.testing.assert_close(jitted(batch()), eager(batch()))
    ours.load_state_dict({k: v * 0 for k, v in jitted.state_dict().items()})
    assert not jitted(batch()).any()
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)"):
        jitted.load_state_dict({})
    assert isinstance(pickle.loads(pickle.dumps(jitted.state_dict())), dict)


def test_moves_and_casts() -> None:
    """`.to()`, `.float()` and their like change the model."""
    eager, ours, jitted = pair()
    for m in (eager, jitted):
        m.eval()
    assert jitted.float() is jitted
    eager.float()
    assert ours.last.weight.dtype is torch.float32
    torch.testing.assert_close(jitted(batch().float()), eager(batch().float()))
    assert jitted.to(torch.float64) is jitted
    eager.to(torch.float64)
    torch.testing.assert_close(jitted(batch()), eager(batch()))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies(duplicate: Any) -> None:
    """Of a jitted module: another one, with tensors and programs of its own."""
    _, ours, jitted = pair()
    jitted.eval()
    expected = jitted(batch())
    twin = duplicate(jitted)
    assert type(twin) is type(jitted)
    assert counts(twin) == (0, 0)
    torch.testing.assert_close(twin(batch()), expected)
    with torch.no_grad():
        twin.last.weight.zero_()
        twin.last.bias.zero_()
    assert not twin(batch()).any()
    torch.testing.assert_close(jitted(batch()), expected)
    assert twin.last is not ours.last


def test_copies_of_the_model_itself() -> None:
    """It has not been changed by being jitted and called."""
    eager, ours, jitted = pair()
    jitted(batch())
    twin = copy.deepcopy(ours)
    assert set(twin.__dict__) == set(eager.__dict__)
    twin.eval()
    ours.eval()
    torch.testing.assert_close(twin(batch()), ours(batch()))


def test_hooks() -> None:
    """On the model and its parts, through either, added and removed between calls."""
    eager, ours, jitted = pair()
    for m in (eager, jitted):
        m.eval()
    torch.testing.assert_close(jitted(batch()), eager(batch()))
    handles = [m.last.register_forward_hook(lambda mod, args, out: out * 10) for m in (eager, ours)]
    handles += [m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,)) for m in (eager, jitted)]
    torch.testing.assert_close(jitted(batch()), eager(batch()))
    for h in handles:
        h.remove()
    torch.testing.assert_close(jitted(batch()), eager(batch()))


def test_keywords_and_wrong_calls() -> None:
    """As the model's own."""
    eager, _, jitted = pair()
    for m in (eager, jitted):
        m.eval()
    torch.testing.assert_close(jitted(x=batch(), extra=batch()[:, :3]), eager(batch(), extra=batch()[:, :3]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        jitted(batch(), y=1)
    with pytest.raises(RuntimeError) as expected:
        eager(batch()[:, :3])
    with pytest.raises(RuntimeError) as found:
        jitted(batch()[:, :3])
    assert str(found.value) == str(expected.value)
    torch.testing.assert_close(jitted(batch()), eager(batch()))


def test_modules_in_modules() -> None:
    """A jitted one as a part of another, jitted or not."""
    eager, _, jitted = pair()
    for m in (eager, jitted):
        m.eval()
    outer = nn.Sequential(jitted, nn.ReLU())
    expected = eager(batch()).relu()
    torch.testing.assert_close(outer(batch()), expected)
    assert counts(jitted) == (1, 0)
    torch.testing.assert_close(thunder.jit(outer)(batch()), expected)
    assert [n for n, _ in outer.named_parameters()] == [f"0.{n}" for n, _ in eager.named_parameters()]


def test_shared_parameters_and_containers() -> None:
    """Tied weights are one input; lists and dictionaries of modules are walked."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 5, bias=False)})
            self.extra = nn.ParameterList([torch.ones(4), torch.zeros(4)])
            self.heads["a"].weight = self.embed.weight

        def forward(self, i: Any) -> Any:
            x = self.embed(i)
            for layer in self.layers:
                x = layer(x).tanh()
            for p in self.extra:
                x = x + p
            return self.heads["a"](x)

    torch.manual_seed(0)
    eager = Tied()
    ours = copy.deepcopy(eager)
    jitted = thunder.jit(ours)
    i = torch.tensor([0, 3, 3])
    for m in (eager, jitted):
        m(i).square().sum().backward()
    for (name, p), (_, q) in zip(eager.named_parameters(), ours.named_parameters()):
        torch.testing.assert_close(q.grad, p.grad, msg=lambda text, name=name: f"{name}: {text}")
    inputs = [p.name for p in thunder.last_traces(jitted)[0].args]
    assert sum("weight" in n for n in inputs) == 3
    ours.layers.append(nn.Linear(4, 4))
    eager.layers.append(ours.layers[-1])
    torch.testing.assert_close(jitted(i), eager(i))


def test_frozen_and_unused_parameters() -> None:
    """Their gradients are None, as in eager."""
    eager, _, jitted = pair()
    for m in (eager, jitted):
        m.unused = nn.Parameter(torch.ones(2))
        m.first.weight.requires_grad_(False)
        torch.manual_seed(0)
        m(batch()).sum().backward()
    grads = [{n: p.grad for n, p in m.named_parameters()} for m in (eager, jitted)]
    assert {n for n, g in grads[1].items() if g is None} == {n for n, g in grads[0].items() if g is None}
    assert grads[1]["unused"] is None
    assert grads[1]["first.weight"] is None
    for name, g in grads[0].items():
        if g is not None:
            torch.testing.assert_close(grads[1][name], g, rtol=1e-10, atol=1e-12)


def test_a_failed_call_changes_what_eager_mode_changes() -> None:
    """Buffers, counters and attributes that the program has assigned before its error stay assigned, once."""
    eager, _, jitted = pair()
    for m in (eager, jitted):
        m.last.register_forward_pre_hook(lambda _, args, m=m: setattr(m, "left", args[0].shape))
        torch.manual_seed(0)
        with pytest.raises(RuntimeError):
            m(batch(), extra=torch.ones(7, dtype=torch.float64))
    for (name, value), expected in zip(jitted.state_dict().items(), eager.state_dict().values()):
        assert type(value) is torch.Tensor
        torch.testing.assert_close(value, expected, msg=name)
    assert eager.left == jitted.left


def test_a_module_that_is_not_reached_is_not_touched() -> None:
    """No class, module or table is left changed by tracing."""
    _, ours, jitted = pair()
    classes = {type(m): dict(type(m).__dict__) for m in ours.modules()}
    jitted(batch())
    for cls, attributes in classes.items():
        assert dict(cls.__dict__) == attributes
    assert type(ours).forward is Net.forward
    assert all(type(p) is nn.Parameter for p in ours.parameters())


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


@pytest.mark.parametrize("convert", [lambda m: m.to(torch.float32), lambda m: m.float(), lambda m: m.cpu()])
def test_a_module_that_is_converted_to_what_it_is(convert: Any) -> None:
    """`module.to(...)` in a program changes nothing there, as in routers of experts; gradients arrive."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            self.classifier = convert(self.classifier)
            return self.classifier(x)

    module = Router()
    jitted, x = thunder.jit(module), torch.ones(4, 3)
    for _ in range(3):
        jitted(x).sum().backward()
    assert torch.equal(module.classifier.weight.grad, torch.full((2, 3), 12.0))
    assert thunder.cache_misses(jitted) == 1 and thunder.cache_hits(jitted) == 2


def test_a_module_that_is_converted() -> None:
    """By Python, to another type: the user's parameters are of that afterwards."""

    class Widening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.linear.double()(x)

    module = Widening()
    out = thunder.jit(module)(torch.ones(4, 3, dtype=torch.float64))
    assert out.dtype is module.linear.weight.dtype is torch.float64
    torch.testing.assert_close(out, module(torch.ones(4, 3, dtype=torch.float64)))


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
