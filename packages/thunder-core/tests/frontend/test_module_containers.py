# SPDX-License-Identifier: Apache-2.0
"""Containers of modules and of parameters: each special method and method does the same on a jitted one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from module_actions import compare
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def sequential() -> nn.Module:
    return nn.Sequential(OrderedDict(a=nn.Linear(3, 3), b=nn.Tanh(), c=nn.Linear(3, 3)))


class Listed(nn.ModuleList):
    """A list of modules with a `forward`."""

    def __init__(self, modules: Any = ()) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x * len(self)


class Named(nn.ModuleDict):
    """A dict of modules with a `forward`."""

    def forward(self, x: Any) -> Any:
        for name, module in self.items():
            x = module(x) + len(name)
        return x


class Weights(nn.ParameterList):
    """A list of parameters with a `forward`."""

    def forward(self, x: Any) -> Any:
        return sum((p * x).sum() for p in self)


class NamedWeights(nn.ParameterDict):
    """A dict of parameters with a `forward`."""

    def forward(self, x: Any) -> Any:
        return sum((p * x).sum() + len(name) for name, p in self.items())


CONTAINERS: dict[str, Callable[[], nn.Module]] = {
    "Sequential": sequential,
    "ModuleList": lambda: Listed([nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)]),
    "ModuleDict": lambda: Named({"first": nn.Linear(3, 3), "second": nn.Tanh()}),
    "ParameterList": lambda: Weights([torch.ones(3), torch.zeros(1), torch.ones(2, 1)]),
    "ParameterDict": lambda: NamedWeights({"first": torch.ones(3), "second": torch.zeros(1)}),
}


def _replace(m: Any) -> Any:
    m[0] = nn.Linear(3, 3, bias=False) if isinstance(m, (nn.Sequential, nn.ModuleList)) else nn.Parameter(torch.ones(3))


def _new(m: Any) -> Any:
    return nn.Parameter(torch.ones(1)) if isinstance(m, (nn.ParameterList, nn.ParameterDict)) else nn.Linear(3, 3)


def _delete(m: Any, key: Any) -> None:
    del m[key]


def _add_in_place(m: Any) -> Any:
    before = m
    m += type(m)([_new(m)]) if not isinstance(m, nn.Sequential) else nn.Sequential(_new(m))
    assert m is before
    return len(m)


PROTOCOL: dict[str, Callable[[Any], Any]] = {
    "len": len,
    "bool": bool,
    "item": lambda m: repr(m[0]),
    "last item": lambda m: repr(m[-1]),
    "item by name": lambda m: repr(m["first"]),
    "missing item": lambda m: m[7],
    "slice": lambda m: (repr(m[1:]), m[:2].__class__.__name__, len(m[::2])),
    "iteration": lambda m: [repr(x) for x in m],
    "in": lambda m: ("first" in m, nn.ReLU() in m, next(iter(m)) in m),
    "keys": lambda m: [*m.keys()],
    "values": lambda m: [repr(x) for x in m.values()],
    "items": lambda m: [(k, repr(v)) for k, v in m.items()],
    "append": lambda m: m.append(_new(m)) is m and len(m),
    "extend": lambda m: m.extend([_new(m), _new(m)]) is m and len(m),
    "insert": lambda m: (m.insert(1, nn.ReLU()), len(m), repr(m[1])),
    "pop": lambda m: repr(m.pop("first" if hasattr(m, "keys") else 0)),
    "popitem": lambda m: repr(m.popitem()),
    "get": lambda m: repr(m.get("second")),
    "setdefault": lambda m: repr(m.setdefault("third", _new(m))),
    "update": lambda m: (m.update({"third": _new(m), "first": _new(m)}), [*m.keys()]),
    "clear": lambda m: (m.clear(), len(m)),
    "copy": lambda m: len(m.copy()),
    "reversed": lambda m: [repr(x) for x in reversed(m)],
    "set": _replace,
    "delete": lambda m: (_delete(m, 0), len(m)),
    "delete by name": lambda m: (_delete(m, "first"), len(m)),
    "delete a slice": lambda m: (_delete(m, slice(1, None)), len(m)),
    "add": lambda m: (len(m + m.__class__()), (m + m.__class__()).__class__.__name__),
    "add in place": _add_in_place,
    "multiply": lambda m: len(m * 2),
    "merge": lambda m: len(m | {"third": torch.ones(1)}),
    "dir": lambda m: sorted(dir(m)),
    "names": lambda m: [n for n, _ in m.named_parameters()],
    "by attribute": lambda m: repr(m.a),
}


@pytest.mark.parametrize("name", PROTOCOL)
@pytest.mark.parametrize("container", CONTAINERS)
def test_containers(container: str, name: str) -> None:
    """Each special method and method of a container has the same effect on a jitted one."""
    compare(CONTAINERS[container], lambda m, x: PROTOCOL[name](m), torch.linspace(-1, 1, 6).view(2, 3))
