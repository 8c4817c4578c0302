# SPDX-License-Identifier: Apache-2.0
"""What a program from texts loads is light: no language, no tracer, no pass, no executor, and nothing that is slow."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = """
import sys
import thunder, thunder.runtime.autograd.node, thunder.runtime.lock, thunder.runtime.guards, thunder.runtime.effects
from thunder.executors.torchex import no_autocast
import thunder.core.dtypes, thunder.core.devices
"""

# A module and its training step, by a specialization from texts.
PROGRAM = '''
import sys
import thunder, torch
from thunder.frontend.specialization import Specialization
from thunder.runtime.autograd.layout import NodeLayout
from thunder.runtime.autograd.program import AutogradProgram
from thunder.runtime.names import Kernels, resolve

PROLOGUE = """
def prologue(*args, **kwargs):
  if kwargs or len(args) != 1: raise GuardFailed("arguments")
  x, = args
  tensors = (x, model.weight)
  if torch.is_grad_enabled() is not True: raise GuardFailed("grad mode was", True)
  if any_autocast(): raise GuardFailed("autocast was off and is on")
  if not same_value(model.eps, 1e-05): raise GuardFailed("eps was", 1e-05)
  return tensors, (model,)
"""
FORWARD = """
def computation(x, weight):
  (t0, t1, t2) = torchex.layer_norm_forward(x, (4,), weight, None, 1e-05)
  t3 = torch.nn.functional.gelu(t0)
  return (t3, (t0, x, t1, t2, weight))
"""
BACKWARD = """
def backward(saved, grad):
  [t0, x, t1, t2, weight] = saved
  saved.clear()
  t4 = torchex.gelu_backward(grad, t0)
  (t5, t6, _) = torchex.layer_norm_backward(t4, x, (4,), t1, t2, weight, None)
  return [t5, t6]
"""
EPILOGUE = """
def epilogue(values, targets):
  set_attribute(targets[0], "calls", 1)
  return values
"""


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(4)), 1e-05

    def forward(self, x):
        self.calls = 1
        return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (4,), self.weight, None, self.eps))


model = Scaled()
helpers = ("GuardFailed", "any_autocast", "same_value", "set_attribute", "no_autocast")
namespace = {**{name: resolve(name) for name in helpers}, "torchex": Kernels(), "torch": torch, "model": model}
for text in (PROLOGUE, FORWARD, BACKWARD, EPILOGUE):
    exec(text, namespace)


class Loaded(AutogradProgram):
    def make_backward(self, key):
        assert key == self.everything
        return torch.no_grad()(namespace["backward"])


layout = NodeLayout(
    single=True, plain=False, built="t", constants=[], flat="o", flat_natively="o", hidden=[], count=1, returned=1,
    tensors=[0, 1, 2, 3, 4], numbers=[], saved_outputs=[], arriving=[0], non_differentiable=[], gradient_of=[0, 1],
    wanted=[0, 1], edges=[0, 1], guarded=True, prunes=False, result_dependencies=[], observed=False, stages=None,
    device=torch.device("cpu"), retains=False,
)
program = Loaded(layout, namespace["computation"])
specialization = Specialization(
    namespace["prologue"], program.run, namespace["epilogue"], differentiable=program,
)
jitted = thunder.jit(model)
x = torch.randn(3, 4, requires_grad=True)
jitted._thunder_jitted._cache.keep(specialization, (x,), {})
for _ in range(2):
    y = jitted(x)
    y.square().sum().backward()
found = y, x.grad / 2, model.weight.grad / 2
assert thunder.cache_hits(jitted) == 2 and thunder.cache_misses(jitted) == 0 and model.calls == 1
x.grad = model.weight.grad = None
y = model(x)
y.square().sum().backward()
assert all(map(torch.allclose, found, (y, x.grad, model.weight.grad)))
'''

HEAVY = """
heavy = ("thunder.torch", "thunder.numpy", "thunder.clang", "thunder.core.prims", "thunder.core.trace",
         "thunder.core.symbol", "thunder.core.proxies", "thunder.core.symint", "thunder.core.pytree",
         "thunder.passes", "thunder.transforms", "thunder.plugins", "thunder.extend", "thunder.execution",
         "thunder.capture", "thunder.frontend.compiler", "thunder.frontend.pipeline", "thunder.frontend.eager_calls",
         "thunder.executors.torchex.base", "thunder.executors.torchex.families", "thunder.executors.built_in",
         "optree", "pluggy", "packaging", "sympy", "torch._dynamo", "torch._inductor", "torch._functorch.apis",
         "torch._subclasses", "torch.fx.experimental.symbolic_shapes", "importlib.metadata")
print([name for name in sys.modules if any(name == h or name.startswith(h + ".") for h in heavy)])
"""


def _run(program: str) -> subprocess.CompletedProcess[str]:
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found


@pytest.mark.parametrize("program", [IMPORTS, PROGRAM], ids=["header", "program"])
def test_a_program_loads_neither_a_language_nor_the_tracer(program: str) -> None:
    """The header of each text loads only the runtime, and calls of programs that are found only the cache."""
    before = "import torch, sys\nbefore = set(sys.modules)\n"
    heavy = HEAVY.replace("in sys.modules", "in set(sys.modules) - before")
    found = _run(before + program + heavy)
    assert found.stdout.strip() == "[]", found.stdout


REPLACED = """
import thunder, torch
f = thunder.jit(lambda x: (torch.sin(x), torch.cos(x)))
sin, torch.sin = torch.sin, torch.cos
first = f(torch.tensor(0.0))
assert [x.item() for x in first] == [1, 1], first
torch.sin = sin
assert [x.item() for x in f(torch.tensor(0.0))] == [0, 1]
"""


def test_functions_of_torch_that_are_replaced_before_the_compiler_is_loaded() -> None:
    """The languages refer to the originals, although the first call loads them."""
    _run(REPLACED)
