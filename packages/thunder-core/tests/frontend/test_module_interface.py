# SPDX-License-Identifier: Apache-2.0
"""The interface of modules: a jitted module does what the plain module does, name by name."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from module_actions import Actions, Net, compare
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


ACTIONS = Actions()
action = ACTIONS.add


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


@pytest.mark.parametrize("name", ACTIONS)
def test_actions(name: str) -> None:
    """Each action has the same effect on a jitted module."""
    compare(Net, ACTIONS[name], torch.linspace(-1, 1, 6).view(2, 3))


# Members of `nn.Module` without an action of the same meaning, with the reason.
COVERED = {
    "T_destination": "an annotation", "call_super_init": "a class attribute", "dump_patches": "a class attribute",
    "cuda": "a device that tests lack", "ipu": "as cuda", "xpu": "as cuda", "mtia": "as cuda",
    "register_backward_hook": "test_per_module.py: a legacy hook", "__init__": "called by models",
}  # fmt: skip


def test_the_interface_is_covered() -> None:
    """A member that a version of torch adds to `nn.Module` fails this test until an action uses it."""
    source = inspect.getsource(inspect.getmodule(test_actions))  # type: ignore[arg-type]
    public = [name for name in dir(nn.Module) if not name.startswith("_") and name not in COVERED]
    missing = [name for name in public if f".{name}" not in source]
    assert missing == []
