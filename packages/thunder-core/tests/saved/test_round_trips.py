# SPDX-License-Identifier: Apache-2.0
"""Programs that one process saves run in a second process, with the same bits and without the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from saved_processes import run

import thunder

MLP = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
jitted = thunder.jit(model, save=True)
x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
y = jitted(x)
y.square().sum().backward()
report(jitted, y, x.grad, *[p.grad for p in model.parameters()])
"""

CONV = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.5),
                            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2))
jitted = thunder.jit(model, save=True)
x = torch.randn(2, 3, 8, 8)
torch.manual_seed(1)
for _ in range(2):
    y = jitted(x)
    y.sum().backward()
report(jitted, y, *[p.grad for p in model.parameters()], *model.buffers())
"""

FUNCTION = """
from collections import namedtuple
SCALE, TABLE = 2.5, {"shift": (1.0, [2.0, 3.0]), "name": "gelu"}
Pair = namedtuple("Pair", "first second")
calls = []

def helper(x, factor=3.0):
    return torch.nn.functional.gelu(x) * factor if TABLE["name"] == "gelu" else x

def outer(offset):
    def inner(x):
        calls.append(offset)
        return Pair(helper(x * SCALE) + offset, [x.sum(), TABLE["shift"][1][0]])
    return inner

jitted = thunder.jit(outer(0.5), save=True)
x = torch.linspace(-1, 1, 12).requires_grad_()
found = jitted(x)
found.first.sum().backward()
report(jitted, found.first, found.second[0], found.second[1], type(found).__name__, calls, x.grad)
"""

BRANCH = """
def f(x):
    if x.sum() > 0:
        return torch.sin(x)
    if x.sum() < -10:
        return torch.cos(x)
    return torch.exp(x)

jitted = thunder.jit(f, save=True)
values = [jitted(torch.full((3,), v)) for v in (1.0, -1.0, -100.0, 2.0, -2.0)]
report(jitted, *values)
"""

KEYWORDS = """
def f(batch, *, scale=1.0, others=()):
    return {"y": batch["x"] * scale, "z": [t + 1 for t in others], "n": None}

jitted = thunder.jit(f, save=True)
found = jitted({"x": torch.arange(3.0)}, scale=2.0, others=(torch.ones(2), torch.zeros(1)))
report(jitted, found["y"], *found["z"], sorted(found))
"""

IN_PLACE = """
class Counter(torch.nn.Module):
    __factors__ = {"total": 2}
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.count = 0
        self.last = {}
    def forward(self, x):
        self.total.add_(x)
        self.count += 1
        self.last["x"] = x.detach() * 2
        return self.total * self.__factors__["total"]

model = Counter()
jitted = thunder.jit(model, save=True)
with torch.no_grad():
    y = jitted(torch.ones(3)); z = jitted(torch.ones(3))
report(jitted, y, z, model.total, model.count, model.last["x"])
"""

PROGRAMS = {
    "mlp": MLP,
    "conv": CONV,
    "function": FUNCTION,
    "branch": BRANCH,
    "keywords": KEYWORDS,
    "in place": IN_PLACE,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_second_process_hits(tmp_path: Path, name: str) -> None:
    """A second process reads what the first has saved, compiles nothing, and computes the same bits."""
    first, second = run(tmp_path, PROGRAMS[name]), run(tmp_path, PROGRAMS[name])
    assert first["misses"] > 0 and any(n.startswith("saved") for n in first["notes"]), first["notes"]
    assert second["misses"] == 0 and second["saved_hits"] > 0, second["notes"]
    assert second["values"] == first["values"]
    if name in ("mlp", "function"):
        assert not second["compiler"]


GRADIENTS = """
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
def f(x):
    y = model(x)
    return y.sin(), y.cos()
jitted = thunder.jit(f, save=True)
x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
a, b = jitted(x)
found = []
if sys.argv[1:] == [] and MODE == "one":
    found = torch.autograd.grad(a.sum(), [x])
elif MODE == "other":
    found = torch.autograd.grad(b.sum(), [x, *model.parameters()])
elif MODE == "both":
    found = torch.autograd.grad(a.sum() + b.sum(), [x, *model.parameters()])
elif MODE == "twice":
    g, = torch.autograd.grad(a.sum(), [x], create_graph=True)
    found = torch.autograd.grad(g.square().sum(), [x])
report(jitted, a, b, *found)
"""


@pytest.mark.parametrize("mode", ["other", "both", "twice"])
def test_gradients_that_were_not_saved(tmp_path: Path, mode: str) -> None:
    """A combination of gradients that no process has saved is compiled from the saved source, and then saved."""
    run(tmp_path, GRADIENTS.replace("MODE", "'one'"))
    source = GRADIENTS.replace("MODE", repr(mode))
    found = run(tmp_path, source)
    assert found["saved_hits"] == 1 and found["misses"] == 0
    assert found["values"] == run(tmp_path, source, THUNDER_CACHE="0")["values"]
    if mode != "twice":
        again = run(tmp_path, source)
        assert again["values"] == found["values"] and not again["compiler"]


def test_nothing_is_saved_by_default_for_a_quick_compilation(tmp_path: Path) -> None:
    """Programs are saved by default only if compiling them took a second."""
    source = "jitted = thunder.jit(torch.sin); jitted(torch.ones(1)); jitted(torch.ones(1)); report(jitted)"
    assert run(tmp_path, source)["notes"] == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("save", "lines"), [(None, 0), (True, 1)])
def test_explain_mentions_a_first_call_only_if_saving_was_asked_for(cache: Path, save: bool | None, lines: int) -> None:
    """That a function has no saved program is no news otherwise."""
    thunder.jit(lambda x: x.cos(), save=True)(torch.ones(2))  # makes the directory
    jitted = thunder.jit(lambda x: x.sin(), save=save)
    jitted(torch.ones(2))
    assert thunder.explain(jitted).count("no program of this function is saved") == lines
