# SPDX-License-Identifier: Apache-2.0
"""The interface of modules: a jitted module does what the plain module does, name by name.

Each action uses a part of the interface on a plain module and on a jitted copy. Results, errors, the state afterwards
and the results of calls before and after the action have to be equal.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import thunder

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    """Layers, a buffer, a number, and an attribute with a descriptor."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh())
        self.head = nn.Linear(width, 2)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 2))
        self.register_buffer("count", torch.zeros(()))
        self.scale = 2.0
        self._model = "a name that thunder once used"
        self.stats = {"width": width}

    @property
    def doubled(self) -> float:
        return self.scale * 2

    @doubled.setter
    def doubled(self, value: float) -> None:
        self.scale = value / 2

    def forward(self, x: Any, *, shift: float = 0.0) -> Any:
        """Scale, after the layers."""
        return self.head(self.body(x)) * self.weight * self.scale + shift + self.count

    def extra_repr(self) -> str:
        return f"scale={self.scale}"

    def twice(self, x: Any) -> Any:
        return self(x) + self(x)


class Scale(nn.Module):
    """A parametrization."""

    def forward(self, x: Any) -> Any:
        return x * 3


Action = Callable[[Any, torch.Tensor], Any]
ACTIONS: dict[str, Action] = {}


def action(fn: Action) -> Action:
    """Add a function to the actions on `Net`."""
    ACTIONS[fn.__name__] = fn
    return fn


def _names(modules: Any) -> list[str]:
    return [type(m).__name__ for m in modules if not isinstance(m, Net)]


def _tensors(found: Any) -> list[Any]:
    return [t.detach().clone() for t in found]


# -- reading ----------------------------------------------------------------------------------------------------------
@action
def parameters(m: Any, x: Any) -> Any:
    return (
        _tensors(m.parameters()),
        [n for n, _ in m.named_parameters()],
        [*m.named_parameters(prefix="p", recurse=False)],
    )


@action
def buffers(m: Any, x: Any) -> Any:
    return _tensors(m.buffers()), [n for n, _ in m.named_buffers()]


@action
def modules(m: Any, x: Any) -> Any:
    assert next(iter(m.modules())) is m
    return _names(m.modules()), [n for n, _ in m.named_modules()], _names(m.children()), [*dict(m.named_children())]


@action
def get_submodule(m: Any, x: Any) -> Any:
    assert m.get_submodule("") is m
    return repr(m.get_submodule("body.0")), m.get_parameter("head.weight"), m.get_buffer("count"), m.get_extra_state


@action
def missing_submodule(m: Any, x: Any) -> Any:
    return m.get_submodule("tail")


@action
def state_dict(m: Any, x: Any) -> Any:
    return m.state_dict(), [*m.state_dict(prefix="a.")], m.state_dict(keep_vars=True)["weight"] is m.weight


@action
def attributes(m: Any, x: Any) -> Any:
    assert "twice" in dir(m) and dir(m) == sorted(dir(m), key=dir(m).index)
    return (
        sorted(vars(m)),
        m.scale,
        m.doubled,
        m._model,
        m.stats,
        m.training,
        m._get_name(),
        m.extra_repr(),
        sorted(dir(m)),
    )


@action
def missing_attribute(m: Any, x: Any) -> Any:
    return hasattr(m, "nothing"), getattr(m, "nothing", 3)


@action
def classes(m: Any, x: Any) -> Any:
    assert isinstance(m, Net) and issubclass(type(m), Net) and m.__class__ is Net
    return m.__class__.__name__, type(m).__module__, type(m).__doc__, type(type(m)(width=5)) is Net


@action
def signature(m: Any, x: Any) -> Any:
    return str(inspect.signature(m.forward)), m.forward.__doc__, m.forward.__name__


@action
def forward(m: Any, x: Any) -> Any:
    return m.forward(x), m.forward(x, shift=1.0), m(x, shift=1.0), m.twice(x)


# -- changing ---------------------------------------------------------------------------------------------------------
@action
def to(m: Any, x: Any) -> Any:
    assert m.to(torch.float32) is m and m.double() is m
    return m.float().type(torch.float64).to(torch.float32, non_blocking=True).head.weight.dtype


@action
def half(m: Any, x: Any) -> Any:
    return m.half().weight.dtype, m.bfloat16().weight.dtype, m.cpu().weight.dtype, m.float().weight.dtype


@action
def to_empty(m: Any, x: Any) -> Any:
    state = m.state_dict()
    m.to("meta")
    found = m.weight.is_meta
    m.to_empty(device="cpu").load_state_dict(state | {"head.bias": torch.ones(2)}, strict=False)
    for tensor in (*m.parameters(), *m.buffers()):
        tensor.data.fill_(0.5)
    return found


@action
def apply(m: Any, x: Any) -> Any:
    seen: list[str] = []
    assert m.apply(lambda module: seen.append(type(module).__name__ if module is not m else "it")) is m
    m.apply(lambda module: nn.init.ones_(module.weight) if isinstance(module, (nn.Linear, Net)) else None)
    return seen


@action
def train(m: Any, x: Any) -> Any:
    assert m.eval() is m and not m.training and not m.head.training
    assert m.train() is m and m.train(False) is m
    m.training = True
    return m.training, m.head.training


@action
def requires_grad(m: Any, x: Any) -> Any:
    assert m.requires_grad_(False) is m
    m.head.requires_grad_(True)
    m(x).sum().backward()
    return [p.grad for p in m.parameters()]


@action
def zero_grad(m: Any, x: Any) -> Any:
    m(x).sum().backward()
    m.zero_grad(set_to_none=False)
    before = [p.grad.clone() for p in m.parameters()]
    m.zero_grad()
    return before, [p.grad for p in m.parameters()]


@action
def load_state_dict(m: Any, x: Any) -> Any:
    found = m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})
    return str(found)


@action
def load_state_dict_by_assignment(m: Any, x: Any) -> Any:
    state = {k: v + 1 for k, v in m.state_dict().items()}
    m.load_state_dict(state, assign=True)
    return m.weight.data_ptr() == state["weight"].data_ptr(), isinstance(m.weight, nn.Parameter)


@action
def load_wrong_state(m: Any, x: Any) -> Any:
    m.load_state_dict({"weight": torch.ones(2)})


@action
def setting(m: Any, x: Any) -> Any:
    m.scale = 3.0
    m.doubled = 8.0
    m.weight = nn.Parameter(torch.ones(2))
    m.count = torch.ones(())
    m.head = nn.Linear(4, 2, bias=False)
    nn.init.ones_(m.head.weight)
    m.extra = torch.ones(2)
    return m.scale, m.extra


@action
def setting_what_is_no_parameter(m: Any, x: Any) -> Any:
    m.weight = torch.ones(2)


@action
def deleting(m: Any, x: Any) -> Any:
    del m.scale
    del m.count
    m.scale, m.count = 1.0, 2.0
    del m.body
    m.body = nn.Tanh()
    m.head = nn.Identity()
    m.weight = None
    m.weight = nn.Parameter(torch.ones(3))
    return [n for n, _ in m.named_parameters()]


@action
def registering(m: Any, x: Any) -> Any:
    m.add_module("added", nn.Linear(2, 2))
    m.register_module("other", None)
    m.register_buffer("table", torch.ones(2), persistent=False)
    m.register_parameter("gain", nn.Parameter(torch.ones(1)))
    m.set_submodule("body.1", nn.ReLU())
    m.set_extra_state = lambda state: None
    return [*m._modules], [*m._buffers], [*m._parameters], m._non_persistent_buffers_set


@action
def share_memory(m: Any, x: Any) -> Any:
    assert m.share_memory() is m
    return m.weight.is_shared()


@action
def compiled(m: Any, x: Any) -> Any:
    m.compile(backend="eager")
    m._compiled_call_impl = None


# -- hooks ------------------------------------------------------------------------------------------------------------
@action
def forward_hooks(m: Any, x: Any) -> Any:
    handles = [
        m.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
        m.register_forward_hook(lambda module, args, out: out * 2),
        m.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {"shift": 3.0}), with_kwargs=True, prepend=True
        ),
        m.register_forward_hook(lambda module, args, kwargs, out: out + kwargs["shift"], with_kwargs=True),
        m.head.register_forward_hook(lambda module, args, out: out + 1),
    ]
    found = m(x), m.forward(x)
    for handle in handles[::2]:
        handle.remove()
    return found, m(x)


@action
def hooks_that_are_always_called(m: Any, x: Any) -> Any:
    seen: list[Any] = []
    m.register_forward_hook(lambda module, args, kwargs, out: seen.append(kwargs), always_call=True, with_kwargs=True)
    m.head.register_forward_hook(lambda module, args, out: seen.append("head") or out + 1, always_call=True)
    return m(x), m(x, shift=1.0), seen


@action
def hooks_that_are_called_after_an_error(m: Any, x: Any) -> Any:
    seen: list[Any] = []
    m.register_forward_hook(lambda module, args, out: seen.append(("whole", out)), always_call=True)
    m.head.register_forward_hook(lambda module, args, out: seen.append(("head", out)), always_call=True)
    for wrong in (x[..., :-1], x[..., :-1]):
        try:
            m(wrong)
        except RuntimeError as error:
            seen.append(str(error))
    return m(x), seen


@action
def hooks_that_see_the_module(m: Any, x: Any) -> Any:
    m.register_forward_pre_hook(lambda module, args: setattr(module, "scale", module.scale + 1))
    return m(x), m.scale, m(x), m.scale


@action
def backward_hooks(m: Any, x: Any) -> Any:
    m.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    m.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,))
    x = x.clone().requires_grad_()
    m(x).sum().backward()
    return x.grad, [p.grad for p in m.parameters()]


@action
def state_dict_hooks(m: Any, x: Any) -> Any:
    m._register_state_dict_hook(
        lambda module, state, prefix, metadata: state.update(seen=torch.ones(module.stats["width"]))
    )
    m.register_state_dict_pre_hook(lambda module, prefix, keep: setattr(module, "scale", 7.0))
    m.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.__delitem__("seen"))
    m.register_load_state_dict_pre_hook(lambda module, state, *rest: state.update(count=torch.ones(())))
    m.register_load_state_dict_post_hook(lambda module, keys: setattr(module, "loaded", str(keys)))
    m.load_state_dict(m.state_dict())
    return m.scale, m.loaded


# -- copies -----------------------------------------------------------------------------------------------------------
def _changed(twin: Any, x: Any) -> Any:
    with torch.no_grad():
        twin.weight.add_(1)
    return twin(x), twin.__class__.__name__


@action
def deepcopy(m: Any, x: Any) -> Any:
    m.own = m.forward  # a method that refers to the module
    twin = copy.deepcopy(m)
    assert twin.own.__self__ is twin and type(twin) is type(m)
    return _changed(twin, x)


@action
def shallow_copy(m: Any, x: Any) -> Any:
    twin = copy.copy(m)
    twin.scale = 5.0
    assert twin.weight is m.weight and type(twin) is type(m)
    return twin(x), m.scale


@action
def pickled(m: Any, x: Any) -> Any:
    return _changed(pickle.loads(pickle.dumps(m)), x)


@action
def pickled_with_a_method(m: Any, x: Any) -> Any:
    m.own = m.twice
    twin = pickle.loads(pickle.dumps(m))
    assert twin.own.__self__ is twin and type(twin) is type(m)
    return twin.own(x)


@action
def saved(m: Any, x: Any) -> Any:
    file = io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    return _changed(torch.load(file, weights_only=False), x)


@action
def averaged(m: Any, x: Any) -> Any:
    average = torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    average.update_parameters(m)
    with torch.no_grad():
        m.weight.add_(1)
    average.update_parameters(m)
    return average(x), [n for n, _ in average.named_parameters()]


# -- tools of torch ---------------------------------------------------------------------------------------------------
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


# -- containers -------------------------------------------------------------------------------------------------------
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


# -- the comparison ---------------------------------------------------------------------------------------------------
def outcome(run: Callable[[], Any]) -> Any:
    """Return what a function returns, or the class of its error."""
    try:
        return run()
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return type(error)


def assert_same(found: Any, expected: Any) -> None:
    """Compare results with tensors in containers."""
    if isinstance(expected, torch.Tensor):
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert_same(a, b)
    elif inspect.ismethod(expected):
        assert found.__func__.__name__ == expected.__func__.__name__
    else:
        assert found == expected


def compare(make: Callable[[], nn.Module], act: Action, x: Any) -> None:
    """Perform an action on a plain and on a jitted module, and compare everything."""
    results = []
    for jit in (lambda m: m, thunder.jit):
        torch.manual_seed(0)
        model = make()
        module = jit(model)
        before = outcome(lambda module=module: module(x))
        found = outcome(lambda module=module: act(module, x))
        torch.manual_seed(1)
        after = [outcome(lambda module=module: module(x)) for _ in range(2)]
        state = {**model.state_dict(), **{k: v for k, v in vars(model).items() if isinstance(v, (int, float, str))}}
        results.append((before, found, after, dict(state), sorted(vars(model)), type(model).__name__))
    assert_same(results[1], results[0])


@pytest.mark.parametrize("name", ACTIONS)
def test_actions(name: str) -> None:
    """Each action has the same effect on a jitted module."""
    compare(Net, ACTIONS[name], torch.linspace(-1, 1, 6).view(2, 3))


@pytest.mark.parametrize("name", PROTOCOL)
@pytest.mark.parametrize("container", CONTAINERS)
def test_containers(container: str, name: str) -> None:
    """Each special method and method of a container has the same effect on a jitted one."""
    compare(CONTAINERS[container], lambda m, x: PROTOCOL[name](m), torch.linspace(-1, 1, 6).view(2, 3))


# Members of `nn.Module` without an action of the same meaning, with the reason.
COVERED = {
    "T_destination": "an annotation", "call_super_init": "a class attribute", "dump_patches": "a class attribute",
    "cuda": "a device that tests lack", "ipu": "as cuda", "xpu": "as cuda", "mtia": "as cuda",
    "register_backward_hook": "test_per_module.py: a legacy hook", "__init__": "called by models",
}  # fmt: skip


def test_the_interface_is_covered() -> None:
    """A member that a version of torch adds to `nn.Module` fails this test until an action uses it."""
    source = inspect.getsource(inspect.getmodule(compare))  # type: ignore[arg-type]
    public = [name for name in dir(nn.Module) if not name.startswith("_") and name not in COVERED]
    missing = [name for name in public if f".{name}" not in source]
    assert missing == []
