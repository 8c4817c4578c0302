# SPDX-License-Identifier: Apache-2.0
"""What checkers and rules find of the compilation that asks them, and what a jitted function keeps."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder import plugins
from thunder.core.transforms import get_grad, put_grads
from thunder.extend import OperatorExecutor, compilation, deregister_executor, register_executor
from thunder.plugins.catalog import OptionSpec


class Layer(torch.nn.Module):
    """A layer that pickle finds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: Any) -> Any:
        return torch.sin(x * self.weight)


@pytest.fixture
def counting() -> Iterator[OperatorExecutor]:
    """An executor that takes `sin` where the option `acme_factor` is set, and keeps count of its calls."""
    ex = OperatorExecutor("counting")

    def takes(x: Any) -> bool | str:
        return compilation().options.get("acme_factor") is not None or "no factor was given"

    def run(x: Any, factor: float, kept: Any) -> Any:
        kept.tensors.setdefault("calls", torch.zeros(())).add_(1)
        return torch.sin(x) * factor

    class Kept:
        def __init__(self, tensors: dict[str, Any]):
            self.tensors = tensors

    def like(x: Any, factor: float, kept: Any) -> Any:
        return ltorch.sin(x) * factor

    op = ex.register_operator("counted_sin", like=like, fn=run)

    def execution(x: Any) -> Any:
        found = compilation()
        return op(x, found.options["acme_factor"], Kept(found.state.setdefault("counting", {})))

    def gradient(x: Any) -> Any:
        out = execution(x)
        put_grads((x,), (get_grad(out) * ltorch.cos(x) * compilation().options["acme_factor"],))
        return out

    ex.register_implementation(ltorch.sin, checker=takes, execution_transform=execution, grad_transform=gradient)
    register_executor(ex)
    catalog = plugins.manager().catalog
    catalog.add([OptionSpec("acme_factor", float, owner="acme")], [])
    yield ex
    catalog.remove("acme")
    deregister_executor(ex)


def _jit(module: Any, **options: Any) -> Any:
    return thunder.jit(module, executors=["counting"], **options)


def test_options_reach_checkers_and_rules(counting: Any) -> None:
    """Forward, backward, and the report of who takes what."""
    f = _jit(Layer(), acme_factor=3.0)
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    out = f(x)
    out.sum().backward()
    torch.testing.assert_close(out, 3 * torch.sin(x))
    torch.testing.assert_close(x.grad, 3 * torch.cos(x).detach())
    torch.testing.assert_close(thunder.grad(lambda x: f(x).sum())(torch.ones(2)), torch.cos(torch.ones(2)))
    torch.testing.assert_close(
        thunder.jit(thunder.grad(lambda x: torch.sin(x).sum()), executors=["counting"], acme_factor=2.0)(torch.ones(2)),
        2 * torch.cos(torch.ones(2)),
    )
    assert [row.executor for row in thunder.examine(f, x).operations][-1] == "counting"
    plain = _jit(Layer())
    torch.testing.assert_close(plain(x), torch.sin(x))
    assert "no factor was given" in str(thunder.examine(plain, x))
    assert compilation().options == {} and compilation().state == {}


def test_what_is_kept_is_shared_by_programs_and_goes_along(counting: Any) -> None:
    """With copies and pickles, by itself; and is in nobody's state dict."""
    f = _jit(Layer(), acme_factor=2.0)
    f(torch.ones(2))
    with torch.no_grad():
        f(torch.ones(3, 2))
    assert float(f._extra_state["counting"]["calls"]) == 2 and list(f.state_dict()) == ["weight"]
    for again in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        again(torch.ones(2))
        assert float(again._extra_state["counting"]["calls"]) == 3
    assert float(f._extra_state["counting"]["calls"]) == 2
    thunder.reset()
    f(torch.ones(2))
    assert float(f._extra_state["counting"]["calls"]) == 3


def test_what_is_kept_can_be_given(counting: Any) -> None:
    """Programs that are compiled already see it; it is not shared with where it came from."""
    f, other = _jit(Layer(), acme_factor=2.0), _jit(Layer(), acme_factor=2.0)
    f(torch.ones(2))
    for _ in range(3):
        other(torch.ones(2))
    f._extra_state = other._extra_state
    f(torch.ones(2))
    assert float(f._extra_state["counting"]["calls"]) == 4
    assert float(other._extra_state["counting"]["calls"]) == 3
    f._extra_state = {}
    f(torch.ones(2))
    assert float(f._extra_state["counting"]["calls"]) == 1


def test_parts_of_a_function_that_stays_python_keep_their_own(counting: Any) -> None:
    """Two modules may have weights of one name."""
    pair = torch.nn.ModuleList([Layer(), Layer()])

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = pair

        def forward(self, x: Any) -> Any:
            x = self.layers[0](x)
            thunder.disable(lambda: None)()
            return self.layers[1](self.layers[1](x))

    f = _jit(Model(), acme_factor=1.0)
    f(torch.ones(2))
    calls = {name: float(kept["counting"]["calls"]) for name, kept in f._extra_state.items()}
    assert calls == {"layers.0": 1, "layers.1": 2}
