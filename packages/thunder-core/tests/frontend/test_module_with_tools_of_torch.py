# SPDX-License-Identifier: Apache-2.0
"""Tools of torch on modules: optimizers, parametrizations, pruning and tracers do the same to a jitted one."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from typing import Any

import pytest
import torch
from module_actions import Actions, Net, compare
from torch import nn
from torch.nn.utils import parametrize, prune

import thunder

pytestmark = pytest.mark.filterwarnings("ignore")


class Scale(nn.Module):
    """A parametrization."""

    def forward(self, x: Any) -> Any:
        return x * 3


ACTIONS = Actions()
action = ACTIONS.add


@action
def optimizers(m: Any, x: Any) -> Any:
    losses = []
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(m.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = m(x).square().sum()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            optimizer.step()
            losses += [loss.detach(), norm]
    return losses


@action
def vectors(m: Any, x: Any) -> Any:
    found = nn.utils.parameters_to_vector(m.parameters()).detach()
    nn.utils.vector_to_parameters(found * 2, m.parameters())
    return found


@action
def parametrized(m: Any, x: Any) -> Any:
    parametrize.register_parametrization(m, "weight", Scale())
    parametrize.register_parametrization(m.head, "weight", Scale())
    found = m(x), m.weight, parametrize.is_parametrized(m), [n for n, _ in m.named_parameters()], m.__class__.__name__
    with parametrize.cached():
        found = *found, m(x)
    m.weight = torch.ones(2)
    found = *found, m(x), _changed_by(m, x)
    parametrize.remove_parametrizations(m, "weight")
    return *found, m.__class__ is Net, m.weight


def _changed_by(m: Any, x: Any) -> Any:
    m(x).sum().backward()
    return [p.grad for p in m.parameters()], copy.deepcopy(m)(x)


@action
def weight_norm(m: Any, x: Any) -> Any:
    nn.utils.parametrizations.weight_norm(m.head)
    nn.utils.parametrizations.orthogonal(m.body[0], use_trivialization=False)
    m(x).sum().backward()
    return m(x), [n for n, _ in m.named_parameters()]


@action
def older_weight_norm(m: Any, x: Any) -> Any:
    nn.utils.weight_norm(m.head)
    found = m(x), m(x)
    nn.utils.remove_weight_norm(m.head)
    return found


@action
def spectral_norm(m: Any, x: Any) -> Any:
    nn.utils.spectral_norm(m.head)
    return m(x), m(x), m.eval()(x)


@action
def pruned(m: Any, x: Any) -> Any:
    prune.l1_unstructured(m, "weight", amount=1)
    prune.random_unstructured(m.head, "weight", amount=0.0)
    found = m(x), [n for n, _ in m.named_buffers()], prune.is_pruned(m)
    m(x).sum().backward()
    prune.remove(m, "weight")
    return *found, m.weight, [n for n, _ in m.named_parameters()]


@action
def called_functionally(m: Any, x: Any) -> Any:
    state = {name: tensor * 2 for name, tensor in m.named_parameters()}
    return torch.func.functional_call(m, state, (x,)), torch.func.functional_call(m, state, (x,), {"shift": 1.0})


@action
def stacked(m: Any, x: Any) -> Any:
    params, buffers = torch.func.stack_module_state([m, copy.deepcopy(m)])
    return params, buffers


@action
def skipped_initialization(m: Any, x: Any) -> Any:
    from torch.nn.utils.fusion import fuse_linear_bn_eval

    m.eval()
    return fuse_linear_bn_eval(m.head.eval(), nn.BatchNorm1d(2).eval())(torch.ones(1, 4))


@action
def in_other_modules(m: Any, x: Any) -> Any:
    outer = nn.Sequential(OrderedDict(first=m, last=nn.ReLU()))
    assert outer.first is m and m in list(outer.modules())
    outer.eval()
    outer.to(torch.float64)
    outer.float()
    return outer(x), [n for n, _ in outer.named_parameters()], m.training, repr(outer.state_dict())


@action
def traced_by_fx(m: Any, x: Any) -> Any:
    graph = torch.fx.symbolic_trace(m, concrete_args={"shift": 0.0})
    outer = torch.fx.symbolic_trace(nn.Sequential(m, nn.ReLU()))
    return [str(n.target) for n in graph.graph.nodes], graph(x), outer(x), [n.op for n in outer.graph.nodes]


@action
def traced_by_fx_as_a_leaf(m: Any, x: Any) -> Any:
    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, module: Any, name: str) -> bool:
            return isinstance(module, Net) or super().is_leaf_module(module, name)

    outer = nn.Sequential(m, nn.ReLU())
    graph = Leaves().trace(outer)
    return [(n.op, str(n.target)) for n in graph.nodes], torch.fx.GraphModule(outer, graph)(x)


@action
def traced_by_jit(m: Any, x: Any) -> Any:
    traced = torch.jit.trace(m, (x,))
    again = torch.jit.trace(nn.Sequential(m), (x,))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    return (
        traced(x),
        again(x),
        [n for n, _ in traced.named_parameters()],
        sorted(n.kind() for n in traced.graph.nodes()),
    )


@action
def scripted(m: Any, x: Any) -> Any:
    class Simple(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    plain = Simple()
    inner = plain if type(m) is Net else thunder.jit(plain)
    return torch.jit.script(inner)(x), torch.jit.script(nn.Sequential(inner, nn.ReLU()))(x)


@action
def exported(m: Any, x: Any) -> Any:
    program = torch.export.export(m, (x,))
    return [n.op for n in program.graph.nodes], program.module()(x)


@action
def replicas(m: Any, x: Any) -> Any:
    return nn.DataParallel(m)(x)


@action
def forward_is_replaced(m: Any, x: Any) -> Any:
    """As by accelerate, which wraps `forward` for autocast and keeps the original."""
    import types

    def doubled(fn: Any) -> Any:
        def inner(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs) * 2

        inner.__wrapped__ = fn  # type: ignore[attr-defined]
        return inner

    m._original_forward = m.forward
    m.forward = types.MethodType(doubled(m.forward.__func__), m)
    first = m(x)
    m.forward = doubled(m.forward)
    second = m(x), m.forward(x)
    m.forward = m._original_forward
    third = m(x), m.forward(x)
    del m.forward
    with torch.autocast("cpu", torch.bfloat16):
        return first, second, third, m(x)


@action
def forward_is_replaced_by_a_partial(m: Any, x: Any) -> Any:
    """As by accelerate's hooks."""
    import functools

    old = m.forward

    def hooked(module: Any, *args: Any, **kwargs: Any) -> Any:
        module.scale = module.scale + 1
        return old(*args, **kwargs) + module.scale

    m.forward = functools.update_wrapper(functools.partial(hooked, m), old)
    return m(x), m.scale, m(x), m.scale


@pytest.mark.parametrize("name", ACTIONS)
def test_actions(name: str) -> None:
    """Each action has the same effect on a jitted module."""
    compare(Net, ACTIONS[name], torch.linspace(-1, 1, 6).view(2, 3))
