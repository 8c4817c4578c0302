# SPDX-License-Identifier: Apache-2.0
"""The page of additional executors: their import paths, and what their traces print.

The executors are plugins, in packages of their own, that need a GPU. Here stand-ins with the same operators, run by
torch, show that thunder gives them what the page shows: on the CPU, and on a GPU where there is one. Where a plugin is
installed and usable, its own executor runs the page's cells too.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from compare_printed_traces import same_trace

import thunder
import thunder.torch as ltorch
from thunder import plugins
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, grad, put_grad
from thunder.executors import of_plugin
from thunder.extend import Executor, OperatorExecutor
from thunder.plugins import PluginRecord, PluginState
from thunder.plugins.discovery import GROUP

PATHS = [
    ("thunder.executors.triton_crossentropy", "triton_ex", "triton_crossentropy", "thunder-ex-triton"),
    ("thunder.executors.apexex", "apex_ex", "apex", "thunder-ex-apex"),
    ("thunder.executors.apex_entropyex", "apex_ex", "apex", "thunder-ex-apex"),
]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


# -- import paths ------------------------------------------------------------------------------------------------------
def no_executor(name: str) -> Executor:
    """`get_executor` where no plugin brings it."""
    raise plugins.PluginLoadError(f"there is no executor {name!r}")


@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_what_to_install(
    module: str, name: str, executor: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the plugin the import fails with the command that installs it."""
    monkeypatch.setattr(of_plugin, "get_executor", no_executor)
    monkeypatch.setattr(plugins, "records", tuple)
    with pytest.raises(ImportError, match=f"pip install {distribution}$") as raised:
        exec(f"from {module} import {name}")
    assert (raised.value.name, repr(executor) in str(raised.value)) == (module, True)
    with pytest.raises(ImportError, match="cannot import name 'something_else'"):
        exec(f"from {module} import something_else")


@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_why_an_installed_plugin_is_not_used(
    module: str, name: str, executor: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that is there and cannot run here says why; it is not to be installed again."""
    record = PluginRecord("it", EntryPoint("it", "it.plugin", GROUP), distribution.replace("-", "_"), "1.2")
    record.end(PluginState.UNAVAILABLE, "needs a GPU, and this machine has none")
    monkeypatch.setattr(of_plugin, "get_executor", no_executor)
    monkeypatch.setattr(plugins, "records", lambda: (record,))
    with pytest.raises(ImportError, match="needs a GPU, and this machine has none") as raised:
        exec(f"from {module} import {name}")
    assert "pip install" not in str(raised.value)
    record.end(PluginState.READY)  # but it brings no executor of that name
    with pytest.raises(ImportError, match=f"there is no executor '{executor}'"):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_the_plugins_executor(
    module: str, name: str, executor: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the plugin it is the plugin's executor."""
    found = OperatorExecutor(executor)
    monkeypatch.setattr(of_plugin, "get_executor", {executor: found}.__getitem__)
    assert getattr(importlib.import_module(module), name) is found
    assert dir(importlib.import_module(module)) == [name]


# -- stand-ins ---------------------------------------------------------------------------------------------------------
def triton_stand_in() -> OperatorExecutor:
    """An executor with Triton's operator: all arguments of cross_entropy, one after the other."""
    executor = OperatorExecutor("triton_stand_in", version="0.1")

    def meta(
        a: TensorProxy, target: TensorProxy, weight: Any, size_average: Any, ignore_index: int, reduce: Any,
        reduction: str, label_smoothing: float,
    ) -> TensorProxy:  # fmt: skip
        return TensorProxy(like=a, shape=target.shape if reduction == "none" else ())

    operator = executor.register_operator("triton_crossentropy", meta=meta, fn=torch.nn.functional.cross_entropy)

    def transform(
        input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
        reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        return operator(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)

    executor.register_implementation(ltorch.cross_entropy, execution_transform=transform)
    return executor


def apex_forward(a: torch.Tensor, target: torch.Tensor, reduction: str, label_smoothing: float) -> Any:
    """What apex's kernel gives: the loss, rows with the class -1 left out, and each row's log-sum-exp."""
    loss = torch.nn.functional.cross_entropy(
        a, target, reduction=reduction, label_smoothing=label_smoothing, ignore_index=-1
    )
    return loss, torch.logsumexp(a.float(), 1)


def apex_backward(
    g: torch.Tensor, a: torch.Tensor, *, target: torch.Tensor, max_log_sum_exp: torch.Tensor, label_smoothing: float
) -> torch.Tensor:
    """The gradient of the logits, from that of each row's loss."""
    out = torch.exp(a - max_log_sum_exp[:, None])
    out[torch.arange(len(target)), target.clamp(min=0)] -= 1
    return out * torch.where(target == -1, 0, g)[:, None]


def apex_stand_in() -> OperatorExecutor:
    """An executor with apex's operators: a forward with two results, a backward that takes the second."""
    executor = OperatorExecutor("apex_stand_in", version="0.1")

    def forward_meta(a: TensorProxy, target: TensorProxy, reduction: str, label_smoothing: float) -> Any:
        shape = target.shape if reduction == "none" else ()
        return TensorProxy(like=a, shape=shape), TensorProxy(like=a, shape=target.shape, dtype=thunder.dtypes.float32)

    def backward_meta(
        g: TensorProxy, a: TensorProxy, *, target: TensorProxy, max_log_sum_exp: TensorProxy, label_smoothing: float
    ) -> TensorProxy:
        return TensorProxy(like=a)

    forward = executor.register_operator("apex_cross_entropy", meta=forward_meta, fn=apex_forward)
    backward = executor.register_operator("apex_cross_entropy_backward", meta=backward_meta, fn=apex_backward)

    def checker(input: Any, target: Any, *args: Any, **kwargs: Any) -> bool | str:
        taken = not args and kwargs.get("ignore_index") == -1 and set(kwargs) <= {"ignore_index", "reduction"}
        return taken or "takes neither weights nor smoothing, and ignores the class -1"

    def transform(input: Any, target: Any, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
        loss, _ = forward(input, target, reduction, 0.0)
        return loss

    def rule(input: Any, target: Any, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
        loss, max_log_sum_exp = forward(input, target, reduction, 0.0)
        g = get_grad(loss)
        if reduction == "mean":  # over the rows that count
            g = g / (target != ignore_index).sum()
        g = g.unsqueeze(0).expand(target.shape) if reduction != "none" else g
        put_grad(
            input, backward(g, input.contiguous(), target=target, max_log_sum_exp=max_log_sum_exp, label_smoothing=0.0)
        )
        return loss

    executor.register_implementation(
        ltorch.cross_entropy, checker=checker, execution_transform=transform, grad_transform=rule
    )
    return executor


HEADER = """\
# Constructed by Delete Last Used (took 0 milliseconds)
import torch
from thunder.executors.torchex import no_autocast
@torch.no_grad()
@no_autocast
"""


@pytest.mark.parametrize("device", DEVICES)
def test_triton(device: str) -> None:
    """The page's first cell: arguments that are no tensors are no inputs, and are written out."""

    def xentropy(logits: Any, labels: Any, weight: Any, reduction: str, ignore_index: int) -> Any:
        return thunder.torch.cross_entropy(
            logits, labels, weight=weight, reduction=reduction, ignore_index=ignore_index
        )

    jitted_xentropy = thunder.jit(xentropy, executors=[triton_stand_in()])
    dtype = torch.float32
    logits = torch.randn([32, 101], device=device, dtype=dtype)
    labels = torch.randint(0, 101, [32], device=device)
    weight = torch.rand(101, device=device, dtype=dtype, requires_grad=False)
    reduction = "sum"
    ignore_index = labels[5].item()
    found = jitted_xentropy(logits, labels, weight, reduction, ignore_index)
    wanted = torch.nn.functional.cross_entropy(
        logits, labels, weight=weight, reduction=reduction, ignore_index=ignore_index
    )
    torch.testing.assert_close(found, wanted)
    where = str(thunder.core.devices.to_device(logits.device))
    shown = (
        HEADER
        + f"""\
def computation(logits, labels, weight):
# logits: "{where} f32[32, 101]"
# labels: "{where} i64[32]"
# weight: "{where} f32[101]"
t23 = triton_crossentropy(logits, labels, weight, None, {ignore_index}, None, 'sum', 0.0)  # t23: "{where} f32[]"
del logits, labels, weight
return t23
"""
    )
    same_trace(_indented(shown), thunder.last_traces(jitted_xentropy)[-1])


@pytest.mark.parametrize("device", DEVICES)
def test_apex(device: str) -> None:
    """The page's second cell, and the notebook's: an operator with a result that nobody reads."""

    def xentropy(logits: Any, labels: Any) -> Any:
        return thunder.torch.cross_entropy(logits, labels, reduction="mean", ignore_index=-1)

    def foo(logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="mean", ignore_index=-1)

    executor = apex_stand_in()
    logits = torch.randn([32, 101], device=device, dtype=ltorch.to_torch_dtype(torch.float32))
    labels = torch.randint(0, 101, [32], device=device)
    labels[3] = -1
    where = str(thunder.core.devices.to_device(logits.device))
    shown = (
        HEADER
        + f"""\
def computation(logits, labels):
# logits: "{where} f32[32, 101]"
# labels: "{where} i64[32]"
(t18, _) = apex_cross_entropy(logits, labels, 'mean', 0.0)
del logits, labels
return t18
"""
    )
    for fn in (xentropy, foo):
        jitted = thunder.jit(fn, executors=[executor])
        torch.testing.assert_close(jitted(logits, labels), foo(logits, labels))
        same_trace(_indented(shown), thunder.last_traces(jitted)[-1])


def _indented(text: str) -> str:
    """The text with its program's lines indented, which the page shows flush left."""
    head, line, body = text.partition("\ndef ")
    first, *rest = body.splitlines()
    return "\n".join([head + line + first, *(f"  {each}" for each in rest)])


@pytest.mark.parametrize("device", DEVICES)
def test_apex_backward(device: str) -> None:
    """Its gradient: the forward's second result goes to the backward operator, torch does what lies between the two."""

    def foo(logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="mean", ignore_index=-1)

    executor = apex_stand_in()
    logits = torch.randn([32, 101], device=device, requires_grad=True)
    labels = torch.randint(0, 101, [32], device=device)
    labels[3] = -1
    (wanted,) = torch.autograd.grad(foo(logits, labels), logits)
    cfoo_grad = grad(thunder.jit(foo, executors=[executor]))
    found = cfoo_grad(logits.detach(), labels)
    torch.testing.assert_close(found, [wanted])
    printed = str(thunder.last_traces(cfoo_grad)[-1])
    for line in (
        "(_, t1) = apex_cross_entropy(logits, labels, 'mean', 0.0)",
        "Tensor.contiguous(logits, memory_format=_torch_memory_format_0)",
        "torch.full((), 1.0, device=torch.device(",
        "target=labels, max_log_sum_exp=t1, label_smoothing=0.0)",
    ):
        assert line in _first_result_unread(printed), printed
    thunder.jit(foo, executors=[executor])(logits, labels).backward()
    torch.testing.assert_close(logits.grad, wanted)


def _first_result_unread(text: str) -> str:
    """The text with the page's names for the forward's results."""
    line = next(line for line in text.splitlines() if " = apex_cross_entropy(" in line)
    loss, saved = line.strip().partition(" = ")[0].strip("()").split(", ")
    return text.replace(f"({loss}, {saved}) =", "(_, t1) =").replace(f"max_log_sum_exp={saved}", "max_log_sum_exp=t1")


# -- the plugins themselves --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_the_real_executors(module: str, name: str, executor: str, distribution: str) -> None:
    """Where a plugin is usable, the page's cell gives torch's loss; else the import says what to do."""
    try:
        real = getattr(importlib.import_module(module), name)
    except ImportError as error:
        installed = distribution in {record.distribution for record in plugins.records()}
        assert (f"pip install {distribution}" in str(error)) != installed
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits, labels = torch.randn([2048, 50257], device=device), torch.randint(0, 50257, [2048], device=device)
    jitted = thunder.jit(
        lambda logits, labels: thunder.torch.cross_entropy(logits, labels, reduction="mean", ignore_index=-1),
        executors=[real],
    )
    torch.testing.assert_close(jitted(logits, labels), torch.nn.functional.cross_entropy(logits, labels))
    shown = {"triton_crossentropy": "triton_crossentropy(", "apex": "apex_cross_entropy("}[executor]
    assert shown in str(thunder.last_traces(jitted)[-1])
