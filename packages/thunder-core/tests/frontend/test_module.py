# SPDX-License-Identifier: Apache-2.0
"""`thunder.jit` of modules: the result is the module in all but how it runs."""

from __future__ import annotations

import copy
import pickle
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
