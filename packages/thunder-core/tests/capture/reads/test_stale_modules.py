# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used where a module that it read has changed."""

from __future__ import annotations

import contextlib
import copy
import inspect
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


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


def test_module_attributes(watch: Any, net: Net) -> None:
    w = watch(net)
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


def test_module_containers(watch: Any, net: Net) -> None:
    w = watch(net)
    net.sizes.append(3)
    w.changed()
    net.table["a"] = 4.0
    w.changed()
    net.table["b"] = 4.0
    w.call()


def test_a_function_kept_by_a_module(watch: Any, net: Net) -> None:
    w = watch(net)
    net.act = torch.tanh
    w.changed()


def test_an_attribute_appears(watch: Any, net: Net) -> None:
    w = watch(net)
    net.extra = 3.0
    w.changed()
    del net.extra
    w.kept()


def test_an_attribute_appears_on_the_class(watch: Any, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    w = watch(net)
    monkeypatch.setattr(Net, "extra", 3.0, raising=False)
    w.changed()


def test_an_instance_attribute_over_a_class_attribute(watch: Any, net: Net) -> None:
    w = watch(net)
    net.K = 5.0
    w.changed()


def test_a_class_attribute(watch: Any, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    w = watch(net)
    monkeypatch.setattr(Net, "K", 9.0)
    w.changed()


def test_a_method_is_patched_on_the_class(watch: Any, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    w = watch(net)
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x * 2)
    w.changed()
    monkeypatch.setattr(Net, "forward", lambda self, x: x * 3)
    w.changed()


def test_forward_set_on_an_instance(watch: Any, net: Net) -> None:
    w = watch(net)
    net.second.forward = lambda x: x + 1
    w.changed()
    net.forward = lambda x: x + 2
    w.changed()


def test_submodules_are_replaced(watch: Any, net: Net) -> None:
    w = watch(net)
    net.first = torch.nn.Linear(6, 6).requires_grad_(False)
    w.kept()
    net.first = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU()).requires_grad_(False)
    w.changed()


def test_parameters_are_replaced(watch: Any, net: Net) -> None:
    w = watch(net)
    net.first.weight = torch.nn.Parameter(torch.randn(6, 6), requires_grad=False)
    w.kept()
    net.first.weight.data = torch.randn(6, 6)
    w.kept()
    net.first.weight.data = torch.randn(6, 6).t()
    w.call()
    net.first.bias = None
    w.changed()


def test_weights_are_tied_and_untied(watch: Any, net: Net) -> None:
    w = watch(net)
    own = net.second.weight
    net.second.weight = net.first.weight
    w.call()
    w.kept()
    net.second.weight = own
    w.kept()


def test_requires_grad_toggles(watch: Any, net: Net) -> None:
    w = watch(net)
    net.first.weight.requires_grad_(True)
    w.changed()


def test_train_and_eval_of_any_submodule(watch: Any, net: Net) -> None:
    w = watch(net)
    net.first.eval()
    w.kept()
    net.drop.eval()
    w.changed()


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_a_module(watch: Any, net: Net, register: str) -> None:
    w = watch(net)
    if register == "register_forward_hook":
        handle = net.second.register_forward_hook(lambda m, args, out: out * 2)
    else:
        handle = net.second.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    w.changed()
    handle.remove()
    w.kept()


def test_global_hooks_of_modules(watch: Any, net: Net) -> None:
    w = watch(net)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        w.changed()
    finally:
        handle.remove()
    w.kept()


def test_a_module_list_grows(watch: Any) -> None:
    class Stack(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    net = Stack().requires_grad_(False)
    w = watch(net)
    net.layers.append(torch.nn.Linear(6, 6).requires_grad_(False))
    w.changed()
    net.layers[0] = torch.nn.ReLU()
    w.changed()


def test_computed_names(watch: Any) -> None:
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
    w = watch(net)
    net.k2 = 9.0
    w.kept()
    net.k1 = 9.0
    w.changed()


def test_parametrizations(watch: Any, net: Net) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, w: Any) -> Any:
            return w * 2

    w = watch(net)
    torch.nn.utils.parametrize.register_parametrization(net.first, "weight", Doubled())
    before = thunder.cache_misses(w.jitted)
    torch.testing.assert_close(w.jitted(X), net(X))
    assert thunder.cache_misses(w.jitted) == before + 1


def test_a_module_by_a_global(watch: Any) -> None:
    vars(sys.modules[__name__])["NET"] = torch.nn.Linear(6, 6).requires_grad_(False)
    try:
        w = watch(lambda x: NET(x))  # type: ignore[name-defined]  # noqa: F821
        sys.modules[__name__].NET = torch.nn.Linear(6, 6, bias=False).requires_grad_(False)  # type: ignore[attr-defined]
        w.changed()
    finally:
        del sys.modules[__name__].NET  # type: ignore[attr-defined]


def test_modules_as_arguments(watch: Any, net: Net) -> None:
    w = watch(lambda m, x: m(x), net, X)
    w.kept(copy.deepcopy(net), X)
    net.p = 9.0
    w.changed()


def test_classes_are_as_they_were(watch: Any, net: Net) -> None:
    watch(net)
    for cls in (Net, torch.nn.Linear, Config, torch.nn.Module):
        assert "__getattribute__" not in cls.__dict__
    with contextlib.suppress(ZeroDivisionError):
        thunder.jit(lambda x: net(x) / (1 // 0))(X)
    assert "__getattribute__" not in Net.__dict__
    assert sys.getprofile() is None


def test_why_it_traced_anew(watch: Any, net: Net) -> None:
    w = watch(net)
    net.config.scale = 7.0
    w.changed()
    assert "config.scale was 2.0" in thunder.explain(w.jitted)


@pytest.mark.parametrize(
    "test",
    [
        test_a_class_attribute, test_an_attribute_appears_on_the_class,
        test_forward_set_on_an_instance, test_an_instance_attribute_over_a_class_attribute, test_hooks_of_a_module,
        test_weights_are_tied_and_untied, test_an_attribute_appears,
    ],
    ids=lambda f: f.__name__.removeprefix("test_"),
)  # fmt: skip
def test_without_hooks(test: Any, watch: Any, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class is hooked only so often in a process; after that, all that its instances have is guarded."""
    monkeypatch.setattr("thunder.capture.reads.hooks.MAX_INSTALLS", 0)
    given = {"watch": watch, "net": net, "monkeypatch": monkeypatch, "register": "register_forward_hook"}
    test(**{name: given[name] for name in inspect.signature(test).parameters})


def test_a_module_imported_by_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects that the import creates stay, and so does their state: they are none of the call's own."""
    (tmp_path / "counting_since_import.py").write_text(
        "class Counter:\n n = 0\n def step(self):\n  self.n += 1\n  return self.n\ncounter = Counter()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def f(x: Any) -> Any:
        import counting_since_import

        return x * counting_since_import.counter.step()

    try:
        jitted = thunder.jit(f, sharp_edges="allow")
        assert [jitted(torch.ones(1)).item() for _ in range(5)] == [1, 2, 3, 4, 5]
        assert thunder.cache_hits(jitted) > 0  # since the module is there
    finally:
        sys.modules.pop("counting_since_import", None)


def test_a_random_state_imported_by_the_program() -> None:
    """NumPy imports `numpy.random` at its first use, and a draw from it is no constant."""
    program = """
        import sys, numpy as np, torch, thunder
        jitted = thunder.jit(lambda x: x * np.random.rand(), sharp_edges="allow")
        drawn = {jitted(torch.ones(1)).item() for _ in range(4)}
        assert len(drawn) == 4, drawn
    """
    subprocess.run([sys.executable, "-c", inspect.cleandoc(program)], check=True)


@pytest.mark.parametrize("last", [lambda x: float(x.sum().item()), lambda x: x.data_ptr() * 0.0], ids=["item", "eager"])
@pytest.mark.parametrize("name", ["K", "new"])
def test_assignments_in_code_that_reads_classes(last: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such modules are not watched. What the program assigns is put back before it runs a second time."""
    module = types.ModuleType("assigned_module")
    module.K = 2.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(globals(), "MODULE", module)
    body = f"""
def fn(x):
    y = x + MODULE.K + getattr(MODULE, "new", 0.0)
    MODULE.{name} = 3.0
    kind = type(y)
    return y + 0.0 * last(x)
"""
    scope = globals() | {"last": last}
    exec(compile(body, __file__, "exec"), scope)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitted = thunder.jit(scope["fn"])
        first, second = jitted(torch.zeros(1)), jitted(torch.zeros(1))
    assert (first.item(), second.item()) == ((2.0, 3.0) if name == "K" else (2.0, 5.0))
