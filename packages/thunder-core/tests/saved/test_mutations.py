# SPDX-License-Identifier: Apache-2.0
"""What a saved program depends on is changed: then the program is not used, or its results are still right.

A new process is imitated by a new module of the same name, whose functions and classes are new objects.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder
from thunder.core import state
from thunder.frontend import saved_programs
from thunder.saved import keys

SOURCE = """
import dataclasses, enum, functools, os
import torch
from torch import nn
from torch.nn import functional as F

SCALE = 2.0
SIZES = [1, 2, 3]
TABLE = {"a": (1, 2.5), "b": {"c": "gelu"}}
FLAG = True

class Mode(enum.Enum):
    FAST = 1
    SLOW = 2

MODE = Mode.FAST

@dataclasses.dataclass
class Config:
    width: int = 4
    act: str = "relu"
    bias: bool = True
    eps: float = 1e-5

def helper(x, factor=3.0, *, shift=0.25):
    return x * factor + shift

def nested(n):
    def inner(x):
        return x + n
    return inner

def decorate(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args) * 1.5
    return wrapper

@decorate
def decorated(x):
    return x.tanh()

ADD = nested(10)

class Base(nn.Module):
    OFFSET = 0.5
    def pre(self, x):
        return x - self.OFFSET
    @property
    def gain(self):
        return self._gain * 2
    @staticmethod
    def clip(x):
        return x.clamp(-3, 3)
    @classmethod
    def name(cls):
        return cls.__name__

class Plain:
    __slots__ = ("k",)
    def __init__(self, k):
        self.k = k
    def __call__(self, x):
        return x * self.k
    def __eq__(self, other):
        return self.k == other.k
    __hash__ = None

class Model(Base):
    def __init__(self, config):
        super().__init__()
        self.config, self._gain, self.plain = config, 1.25, Plain(2)
        self.lin = nn.Linear(config.width, config.width, bias=config.bias)
        self.layers = nn.ModuleList([nn.Linear(config.width, config.width) for _ in range(2)])
    def forward(self, x, flag=False):
        x = self.pre(x)
        x = self.lin(x)
        for i, layer in enumerate(self.layers):
            x = layer(x) * SIZES[i]
        x = getattr(F, self.config.act)(x)
        x = helper(x, SCALE) if FLAG else helper(x)
        x = ADD(x) * TABLE["a"][1] + decorated(x)
        if MODE is Mode.FAST:
            x = x / 2
        x = self.clip(self.plain(x)) * self.gain + len(self.name())
        if os.environ.get("THUNDER_TEST_MUTATION") == "on":
            x = x + 100
        return x + self.config.eps if not flag else x

def make():
    torch.manual_seed(0)
    return Model(Config())
"""


@pytest.fixture
def module(cache: Path) -> Any:
    """A function that imports a source as the module `mutated`, in place of the one before."""

    def load(source: str) -> Any:
        made = types.ModuleType("mutated")
        sys.modules["mutated"] = made
        exec(compile(source, "mutated.py", "exec"), made.__dict__)
        return made

    yield load
    sys.modules.pop("mutated", None)


def call(made: Any, prepare: Callable[[Any], None] = lambda model: None, **options: Any) -> tuple[Any, bool, list[str]]:
    """Run a model, compare its result with eager mode's, and return the statistics, whether it hit, and the notes."""
    model = made.make()
    prepare(model)
    jitted = thunder.jit(model, save=True, **options)
    x = torch.linspace(-2, 2, 8).view(2, 4)
    expected, found = model(x), jitted(x)
    torch.testing.assert_close(found, expected)
    stats = thunder.compile_stats(jitted)
    return stats, stats.saved_hits == 1, [e.reason for e in stats.events.of("saved")]


def test_the_same_source_hits(module: Any) -> None:
    """Without a change the second module reads the program of the first."""
    _, hit, notes = call(module(SOURCE))
    assert not hit and notes[-1].startswith("saved"), notes
    _, hit, notes = call(module(SOURCE))
    assert hit, notes


# What is replaced in the source, and by what.
MUTATIONS = [
    ("SCALE = 2.0", "SCALE = 2.5"),
    ("SCALE = 2.0", "SCALE = 2"),
    ("SIZES = [1, 2, 3]", "SIZES = [1, 5, 3]"),
    ("SIZES = [1, 2, 3]", "SIZES = (1, 2, 3)"),
    ('"a": (1, 2.5)', '"a": (1, 3.5)'),
    ("FLAG = True", "FLAG = False"),
    ("MODE = Mode.FAST", "MODE = Mode.SLOW"),
    ("FAST = 1", "FAST = 3"),
    ("width: int = 4", "width: int = 4; more: int = 1"),
    ('act: str = "relu"', 'act: str = "gelu"'),
    ("bias: bool = True", "bias: bool = False"),
    ("eps: float = 1e-5", "eps: float = 1e-3"),
    ("return x * factor + shift", "return x * factor - shift"),
    ("factor=3.0", "factor=4.0"),
    ("shift=0.25", "shift=0.5"),
    ("return x + n\n", "return x - n\n"),
    ("ADD = nested(10)", "ADD = nested(11)"),
    ("return f(*args) * 1.5", "return f(*args) * 2.5"),
    ("return x.tanh()", "return x.sigmoid()"),
    ("@decorate\n", ""),
    ("OFFSET = 0.5", "OFFSET = 0.75"),
    ("return x - self.OFFSET", "return x + self.OFFSET"),
    ("return self._gain * 2", "return self._gain * 3"),
    ("x.clamp(-3, 3)", "x.clamp(-1, 1)"),
    ("return cls.__name__", "return 'name'"),
    ("class Model(Base):", "class Model(Base):\n    OFFSET = 1.5"),
    ("class Model(Base):", "class Model(Base):\n    def __call__(self, x): return super().__call__(x) * 2"),
    ("class Model(Base):", "class Model(Base):\n    def __getattr__(self, name): return super().__getattr__(name)"),
    ('__slots__ = ("k",)', '__slots__ = ("k", "more")'),
    ("return x * self.k", "return x / self.k"),
    ("Plain(2)", "Plain(3)"),
    ("Plain(2)", "Plain(2.0)"),
    ("self._gain, self.plain = config, 1.25", "self._gain, self.plain = config, 1.5"),
    ("x = x / 2", "x = x / 4"),
    ("range(2)", "range(3)"),
    ("        x = self.pre(x)\n", ""),
    (
        "nn.Linear(config.width, config.width, bias",
        "torch.nn.modules.linear.NonDynamicallyQuantizableLinear(4, 4, bias",
    ),
    ("torch.manual_seed(0)\n", "torch.manual_seed(1)\n"),
]


@pytest.mark.parametrize("old, new", MUTATIONS, ids=[f"{new.strip()[:40]}" for _, new in MUTATIONS])
def test_mutations_of_the_source_give_right_results(module: Any, old: str, new: str) -> None:
    """`call` compares with eager mode: a program of another source is not used, or it computes the same."""
    assert old in SOURCE
    call(module(SOURCE))
    _, hit, notes = call(module(SOURCE.replace(old, new, 1)))
    data_only = new.startswith(("torch.manual_seed", 'act: str = "relu"'))
    same = {"SCALE = 2", "__slots__"}
    assert hit == data_only or new.startswith(tuple(same)), notes


OBJECTS: dict[str, Callable[[Any], None]] = {
    "hook": lambda m: m.lin.register_forward_hook(lambda mod, args, out: out * 2) and None,
    "eval": lambda m: m.eval() and None,
    "dtype": lambda m: setattr(m.lin, "bias", torch.nn.Parameter(torch.ones(4))),
    "frozen": lambda m: m.requires_grad_(False) and None,
    "parameter missing": lambda m: setattr(m.lin, "bias", None),
    "shared": lambda m: setattr(m.layers[0], "weight", m.layers[1].weight),
    "method of the instance": lambda m: setattr(m, "pre", lambda x: x),
    "swapped": lambda m: setattr(m, "lin", torch.nn.Sequential(m.lin, torch.nn.ReLU())),
    "attribute": lambda m: setattr(m.config, "eps", 0.5),
    "not contiguous": lambda m: setattr(m.lin, "weight", torch.nn.Parameter(torch.ones(4, 4).t()[:, :])),
}


@pytest.mark.parametrize("what", OBJECTS)
def test_mutations_of_objects_give_right_results(module: Any, what: str) -> None:
    """Guards of the prologue find differences of the model's state."""
    call(module(SOURCE))
    call(module(SOURCE), OBJECTS[what])


def test_environment_variable(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the program reads is guarded, or the program is not saved."""
    call(module(SOURCE))
    monkeypatch.setenv("THUNDER_TEST_MUTATION", "on")
    call(module(SOURCE))


def test_replaced_functions(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is replaced after its module was imported is not the saved one."""
    call(module(SOURCE))
    made = module(SOURCE)
    monkeypatch.setattr(made, "helper", lambda x, *args: x * 7)
    assert not call(made)[1]
    made = module(SOURCE)
    monkeypatch.setattr(made.Base, "pre", lambda self, x: x * 7)
    assert not call(made)[1]


@pytest.mark.parametrize("options", [{"remat": "all"}, {"executors": ["torch"]}, {"cache": "symbolic values"}])
def test_options_have_programs_of_their_own(module: Any, options: dict[str, Any]) -> None:
    """A program is found for the options with which it was compiled."""
    call(module(SOURCE))
    assert not call(module(SOURCE), **options)[1]
    with torch.no_grad():
        call(module(SOURCE), **options)
        assert call(module(SOURCE), **options)[1]


@pytest.mark.parametrize("name", ["sources_of", "devices", "FORMAT"])
def test_versions_are_part_of_the_key(module: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Other sources of thunder, other devices and other formats have other programs."""
    call(module(SOURCE))
    keys._environment.cache_clear()
    monkeypatch.setattr(keys, name, 99 if name == "FORMAT" else lambda *args: "another")
    _, hit, notes = call(module(SOURCE))
    assert not hit and "miss: no program of this function is saved" in notes
    monkeypatch.undo()
    keys._environment.cache_clear()


def test_programs_that_depend_on_hashes_are_not_saved(cache: Path) -> None:
    """The order of a set of strings differs between processes."""
    names = {"a", "b", "c"}

    def f(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = x * ord(name)
        return x

    jitted = thunder.jit(f, save=True)
    jitted(torch.ones(2))
    notes = [e.reason for e in thunder.compile_stats(jitted).events.of("saved")]
    assert any("hashes" in note for note in notes), notes


def test_registered_rules_are_not_those_of_another_process(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What user code registers changes compilations, and no key contains it."""
    call(module(SOURCE))
    monkeypatch.setattr(saved_programs, "registrants", {"user"})
    _, hit, notes = call(module(SOURCE))
    assert not hit and all("user has registered" in note for note in notes), notes


def test_registrations_name_who_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """thunder itself and its plugins are left out."""
    from thunder.extend import OperatorExecutor, deregister_executor, register_executor  # loads the executors

    here = __name__.partition(".")[0]
    state.registrants.discard(here)
    register_executor(OperatorExecutor("registers_itself", version="1"))
    deregister_executor("registers_itself")
    assert here in state.registrants
