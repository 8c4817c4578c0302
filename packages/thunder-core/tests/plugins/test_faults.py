# SPDX-License-Identifier: Apache-2.0
"""Errors in a plugin's code: each message names the plugin, the operation, the user's line, and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from outcomes import message_and_notes

import thunder
from thunder import plugins

SOURCE = """
    import thunder.torch as ltorch
    from thunder.core.proxies import TensorProxy
    from thunder.extend import OperatorExecutor
    from thunder.core.prims import get_grad, put_grad

    FAULT = {fault!r}

    def fault(where):
        if where == FAULT:
            raise KeyError("deep in acme")

    @hookimpl
    def thunder_register_executors(registry):
        registry.register_executor(OperatorExecutor("acme"), default=True)

    def meta(a, b):
        fault("meta")
        return TensorProxy(like=a)

    def kernel(a, b):
        fault("kernel")
        return torch.mul(a, b)

    def backward_kernel(a, b):
        fault("backward kernel")
        return torch.mul(a, b)

    def checker(a, b):
        fault("checker")
        return True

    def rule(a, b):
        fault("rule")
        out = acme_mul(a, b)
        g = get_grad(out)
        put_grad(a, acme_mul_backward(g, b))
        return out

    @hookimpl
    def thunder_register_operators(registry):
        global acme_mul, acme_mul_backward
        acme_mul = registry.register_operator("acme_mul", meta=meta, fn=kernel, replaces=torch.ldexp)
        acme_mul_backward = registry.register_operator("acme_mul_backward", meta=meta, fn=backward_kernel)

    @hookimpl
    def thunder_register_implementations(registry):
        registry.register_implementation(ltorch.mul, acme_mul, checker=checker, grad_transform=rule)

    import torch
    """


@pytest.fixture
def acme(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`acme(fault)` installs a plugin that raises an error at this place."""
    made = []

    def install(fault: str) -> None:
        record = plugin("acme-kernels", SOURCE.replace("{fault!r}", repr(fault)))
        manager = plugins.PluginManager(scan=lambda: [record])
        monkeypatch.setattr(plugins, "_manager", manager)
        manager.load_all()
        assert record.ready, record.reason
        made.append(manager)

    yield install
    for manager in made:
        manager.reset()


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * y  # the faulty line


WHAT = {
    "checker": "in the checker of the executor 'acme' for mul",
    "rule": "in the gradient rule of the executor 'acme' for mul",
    "kernel": "in the kernel acme_mul of the executor 'acme'",
    "backward kernel": "in the kernel acme_mul_backward of the executor 'acme'",
}


@pytest.mark.parametrize("fault", WHAT)
def test_a_fault_is_named(acme: Callable[[str], None], fault: str) -> None:
    acme(fault)
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    with pytest.raises(KeyError, match="deep in acme") as raised:
        thunder.jit(product, executors=["acme"])(x, y).sum().backward()
    message = raised.value.args[0]
    assert WHAT[fault] in message
    assert "the faulty line" in message
    assert "THUNDER_DISABLE_PLUGINS=acme-kernels runs without it" in message
    assert message.count("acme-kernels runs") == 1


def test_a_fault_of_a_meta_function_is_named(acme: Callable[[str], None]) -> None:
    acme("meta")
    with pytest.raises(KeyError, match="deep in acme") as raised:
        thunder.jit(lambda x, y: torch.ldexp(x, y), executors=["acme"])(torch.ones(3), torch.ones(3))
    message = raised.value.args[0]
    assert "in the meta function of acme_mul of the executor 'acme'" in message
    assert "torch.ldexp(x, y)" in message_and_notes(raised.value)
    assert "THUNDER_DISABLE_PLUGINS=acme-kernels runs without it" in message


def test_a_plugin_without_faults_changes_no_message(acme: Callable[[str], None]) -> None:
    acme("none")
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    jf = thunder.jit(product, executors=["acme"])
    jf(x, y).sum().backward()
    assert torch.equal(x.grad, torch.cos(x.detach()))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError) as raised:
        thunder.jit(lambda a, b: torch.mm(a, b) * 2)(torch.ones(3, 2), torch.ones(3, 2))
    assert "acme" not in str(raised.value)
