# SPDX-License-Identifier: Apache-2.0
"""A notebook that teaches `thunder.extend` with an operator of NumPy's, run cell by cell; its traces are compared.

What traces print is settled where the notebook is older than the system: both decorators stand above every program,
and inputs have the names of the user's function. The notebook's last part, NVIDIA apex's executor, is in
test_additional_executors.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Number
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compare_printed_traces import same_trace

import thunder
import thunder.torch as ltorch
from thunder.core.devices import DeviceType
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, grad, put_grads
from thunder.extend import OperatorExecutor, register_executor

# NumPy and torch do not agree yet on how a ufunc hands its result back.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")


def multimul_impl(
    a: Number | torch.Tensor, b: Number | torch.Tensor, c: Number | torch.Tensor, d: Number | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two multiplications, by NumPy."""
    return np.multiply(a, b), np.multiply(c, d)


def multimul_like(
    a: Number | TensorProxy, b: Number | TensorProxy, c: Number | TensorProxy, d: Number | TensorProxy
) -> tuple[TensorProxy, TensorProxy]:
    """What it computes."""
    return a * b, c * d


def mul_to_multimul_checker(a: Number | TensorProxy, b: Number | TensorProxy) -> bool:
    """NumPy reaches the CPU's memory only."""

    def is_cpu(x: Number | TensorProxy) -> bool:
        if isinstance(a, TensorProxy):
            return a.device.devicetype == DeviceType.CPU
        return True

    return all(is_cpu(x) for x in (a, b))


@pytest.fixture(scope="module")
def notebook() -> Iterator[SimpleNamespace]:
    """The notebook's variables after each of its cells has run, with the result and last trace of each call."""
    torch.manual_seed(0)
    n = SimpleNamespace(a=torch.randn((2, 2)), b=torch.randn((2, 2)))
    n.myex = OperatorExecutor("myex", version="0.1")
    n.eager = multimul_impl(n.a, n.b, n.a, n.b)
    n.multimul = n.myex.register_operator("multimul", like=multimul_like, fn=multimul_impl)
    _operator(n)
    _execution(n)
    _gradient(n)
    _contiguous(n)
    yield n


def _operator(n: SimpleNamespace) -> None:
    def foo(a: Any, b: Any, c: Any, d: Any) -> Any:
        return n.multimul(a, b, c, d)

    cfoo = thunder.jit(foo, executors=[n.myex])
    n.foo = cfoo(n.a, n.b, n.a, n.b)
    n.foo_trace = thunder.last_traces(cfoo)[-1]
    cfoo_grad = grad(cfoo)
    n.foo_grad = cfoo_grad(n.a, n.b, n.a, n.b)
    n.foo_grad_trace = thunder.last_traces(cfoo_grad)[-1]


def _execution(n: SimpleNamespace) -> None:
    def mul_to_multimul(a: Number | TensorProxy, b: Number | TensorProxy) -> TensorProxy:
        result, _ = n.multimul(a, b, 0, 0)
        return result

    n.mul_to_multimul = mul_to_multimul
    n.myex.register_implementation(ltorch.mul, checker=mul_to_multimul_checker, execution_transform=mul_to_multimul)

    def bar(a: Any, b: Any) -> Any:
        return a * b

    n.cbar = thunder.jit(bar, executors=[n.myex])
    n.bar = n.cbar(n.a, n.b)
    n.bar_trace = thunder.last_traces(n.cbar)[-1]
    cbar_grad = grad(n.cbar)
    n.bar_grad = cbar_grad(n.a, n.b)
    n.bar_grad_trace = thunder.last_traces(cbar_grad)[-1]


def _gradient(n: SimpleNamespace) -> None:
    def mymul_grad(a: TensorProxy, b: TensorProxy) -> TensorProxy:
        fwd = a * b

        g = get_grad(fwd)
        a_grad, b_grad = n.multimul(b, g, a, g)
        put_grads((a, b), (a_grad, b_grad))

        return fwd

    n.myex.register_implementation(
        ltorch.mul,
        checker=mul_to_multimul_checker,
        execution_transform=n.mul_to_multimul,
        grad_transform=mymul_grad,
    )
    cbar_grad = grad(n.cbar)
    n.mymul_grad = cbar_grad(n.a, n.b)
    n.mymul_grad_trace = thunder.last_traces(cbar_grad)[-1]


def _contiguous(n: SimpleNamespace) -> None:
    def mul_to_contiguous_multimul(a: Number | TensorProxy, b: Number | TensorProxy) -> TensorProxy:
        a = a.contiguous()
        b = b.contiguous()
        result, _ = n.multimul(a, b, 0, 0)
        return result

    n.myex.register_implementation(
        ltorch.mul, checker=mul_to_multimul_checker, execution_transform=mul_to_contiguous_multimul
    )

    def caz(a: Any, b: Any) -> Any:
        return a * b

    ccaz = thunder.jit(caz, executors=[n.myex])
    n.caz = ccaz(n.a, n.b)
    n.caz_trace = thunder.last_traces(ccaz)[-1]


HEADER = """\
# Constructed by Delete Last Used (took 0 milliseconds)
import torch
from thunder.executors.torchex import no_autocast

@torch.no_grad()
@no_autocast
"""


def test_results(notebook: SimpleNamespace) -> None:
    """Each call computes what it should: products, and the gradients of each argument."""
    n, product = notebook, notebook.a * notebook.b
    for pair in (n.eager, n.foo):
        assert isinstance(pair, tuple)
        for found in pair:
            torch.testing.assert_close(found, product, rtol=0, atol=0)
    for found in (n.bar, n.caz):
        torch.testing.assert_close(found, product, rtol=0, atol=0)
    for found, wanted in ((n.foo_grad, [n.b, n.a, n.b, n.a]), (n.bar_grad, [n.b, n.a]), (n.mymul_grad, [n.b, n.a])):
        assert type(found) is list
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_the_operator_is_recorded(notebook: SimpleNamespace) -> None:
    """One operator with two results, its decomposition below it."""
    shown = (
        HEADER
        + """\
def computation(t_0, t_1, t_2, t_3):
  # t_0: "cpu f32[2, 2]"
  # t_1: "cpu f32[2, 2]"
  # t_2: "cpu f32[2, 2]"
  # t_3: "cpu f32[2, 2]"
  (t0, t1) = multimul(t_0, t_1, t_2, t_3)
    # t0 = ltorch.mul(t_0, t_1)  # t0: "cpu f32[2, 2]"
      # t0 = prims.mul(t_0, t_1)  # t0: "cpu f32[2, 2]"
    # t1 = ltorch.mul(t_2, t_3)  # t1: "cpu f32[2, 2]"
      # t1 = prims.mul(t_2, t_3)  # t1: "cpu f32[2, 2]"
  del t_0, t_1, t_2, t_3
  return (t0, t1)
"""
    )
    same_trace(shown, notebook.foo_trace, given_twice={"t_2": "t_0", "t_3": "t_1"})
    assert str(notebook.foo_trace) == repr(notebook.foo_trace)


def test_inputs_that_are_different_tensors() -> None:
    """Four tensors are four inputs, as the notebook prints them."""
    executor = OperatorExecutor("four", version="0.1")
    multimul = executor.register_operator("multimul", like=multimul_like, fn=multimul_impl)

    def foo(a: Any, b: Any, c: Any, d: Any) -> Any:
        return multimul(a, b, c, d)

    jitted = thunder.jit(foo, executors=[executor])
    tensors = [torch.randn(2, 2) for _ in range(4)]
    torch.testing.assert_close(jitted(*tensors), (tensors[0] * tensors[1], tensors[2] * tensors[3]))
    printed = str(thunder.last_traces(jitted)[-1])
    assert "def computation(a, b, c, d):" in printed
    assert "(t0, t1) = multimul(a, b, c, d)" in printed


def test_it_is_differentiated_through_its_description(notebook: SimpleNamespace) -> None:
    """The gradient of the operator is that of its two products; results that are no scalars take ones."""
    shown = (
        HEADER
        + """\
def computation(t_0, t_1, t_2, t_3):
  # t_1: "cpu f32[2, 2]"
  t8 = torch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t8: "cpu f32[2, 2]"
    # t8 = ltorch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t8: "cpu f32[2, 2]"
      # t8 = prims.full((2, 2), 1.0, device=devices.Device("cpu"), dtype=dtypes.float32)  # t8: "cpu f32[2, 2]"
  t2 = torch.mul(t_1, t8)  # t2: "cpu f32[2, 2]"
    # t2 = ltorch.mul(t_1, t8)  # t2: "cpu f32[2, 2]"
      # t2 = prims.mul(t_1, t8)  # t2: "cpu f32[2, 2]"
  del t_1
  # t_0: "cpu f32[2, 2]"
  t3 = torch.mul(t_0, t8)  # t3: "cpu f32[2, 2]"
    # t3 = ltorch.mul(t_0, t8)  # t3: "cpu f32[2, 2]"
      # t3 = prims.mul(t_0, t8)  # t3: "cpu f32[2, 2]"
  del t_0, t8
  # t_3: "cpu f32[2, 2]"
  t9 = torch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t9: "cpu f32[2, 2]"
    # t9 = ltorch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t9: "cpu f32[2, 2]"
      # t9 = prims.full((2, 2), 1.0, device=devices.Device("cpu"), dtype=dtypes.float32)  # t9: "cpu f32[2, 2]"
  t6 = torch.mul(t_3, t9)  # t6: "cpu f32[2, 2]"
    # t6 = ltorch.mul(t_3, t9)  # t6: "cpu f32[2, 2]"
      # t6 = prims.mul(t_3, t9)  # t6: "cpu f32[2, 2]"
  del t_3
  # t_2: "cpu f32[2, 2]"
  t7 = torch.mul(t_2, t9)  # t7: "cpu f32[2, 2]"
    # t7 = ltorch.mul(t_2, t9)  # t7: "cpu f32[2, 2]"
      # t7 = prims.mul(t_2, t9)  # t7: "cpu f32[2, 2]"
  del t_2, t9
  return [t2, t3, t6, t7]
"""
    )
    same_trace(shown, notebook.foo_grad_trace)


def test_an_execution_transform_replaces_an_operation(notebook: SimpleNamespace) -> None:
    """Products run as the operator with its second multiplication idle."""
    shown = (
        HEADER
        + """\
def computation(t_0, t_1):
  # t_0: "cpu f32[2, 2]"
  # t_1: "cpu f32[2, 2]"
  (t0, _) = multimul(t_0, t_1, 0, 0)
    # t0 = ltorch.mul(t_0, t_1)  # t0: "cpu f32[2, 2]"
      # t0 = prims.mul(t_0, t_1)  # t0: "cpu f32[2, 2]"
  del t_0, t_1
  return t0
"""
    )
    same_trace(shown, notebook.bar_trace)


def test_execution_transforms_come_after_grad(notebook: SimpleNamespace) -> None:
    """The products of the gradient run as the operator too."""
    shown = (
        HEADER
        + """\
def computation(t_0, t_1):
  # t_1: "cpu f32[2, 2]"
  t4 = torch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t4: "cpu f32[2, 2]"
    # t4 = ltorch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t4: "cpu f32[2, 2]"
      # t4 = prims.full((2, 2), 1.0, device=devices.Device("cpu"), dtype=dtypes.float32)  # t4: "cpu f32[2, 2]"
  (t2, _) = multimul(t_1, t4, 0, 0)
    # t2 = ltorch.mul(t_1, t4)  # t2: "cpu f32[2, 2]"
      # t2 = prims.mul(t_1, t4)  # t2: "cpu f32[2, 2]"
  del t_1
  # t_0: "cpu f32[2, 2]"
  (t3, _) = multimul(t_0, t4, 0, 0)
    # t3 = ltorch.mul(t_0, t4)  # t3: "cpu f32[2, 2]"
      # t3 = prims.mul(t_0, t4)  # t3: "cpu f32[2, 2]"
  del t_0, t4
  return [t2, t3]
"""
    )
    same_trace(shown, notebook.bar_grad_trace)


def test_a_grad_transform_replaces_a_gradient(notebook: SimpleNamespace) -> None:
    """One call of the operator computes both gradients; registering again has replaced what was registered before."""
    shown = (
        HEADER
        + """\
def computation(t_0, t_1):
  # t_0: "cpu f32[2, 2]"
  t4 = torch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t4: "cpu f32[2, 2]"
    # t4 = ltorch.full((2, 2), 1.0, device=torch.device("cpu"), dtype=torch.float32)  # t4: "cpu f32[2, 2]"
      # t4 = prims.full((2, 2), 1.0, device=devices.Device("cpu"), dtype=dtypes.float32)  # t4: "cpu f32[2, 2]"
  # t_1: "cpu f32[2, 2]"
  (t2, t3) = multimul(t_1, t4, t_0, t4)
    # t2 = ltorch.mul(t_1, t4)  # t2: "cpu f32[2, 2]"
      # t2 = prims.mul(t_1, t4)  # t2: "cpu f32[2, 2]"
    # t3 = ltorch.mul(t_0, t4)  # t3: "cpu f32[2, 2]"
      # t3 = prims.mul(t_0, t4)  # t3: "cpu f32[2, 2]"
  del t_1, t4, t_0
  return [t2, t3]
"""
    )
    same_trace(shown, notebook.mymul_grad_trace)


def test_an_execution_transform_uses_other_operations(notebook: SimpleNamespace) -> None:
    """What it calls besides its own operator runs on torch."""
    shown = (
        HEADER.replace("import torch\n", "from torch import Tensor\nimport torch\n", 1)
        + """\
def computation(t_0, t_1):
  # t_0: "cpu f32[2, 2]"
  # t_1: "cpu f32[2, 2]"
  t1 = Tensor.contiguous(t_0, memory_format=_torch_memory_format_0)  # t1: "cpu f32[2, 2]"
    # t1 = ltorch.contiguous(t_0, memory_format=_torch_memory_format_0)  # t1: "cpu f32[2, 2]"
      # t1 = prims.stride_order(t_0, (1, 0))  # t1: "cpu f32[2, 2]"
  del t_0
  t2 = Tensor.contiguous(t_1, memory_format=_torch_memory_format_0)  # t2: "cpu f32[2, 2]"
    # t2 = ltorch.contiguous(t_1, memory_format=_torch_memory_format_0)  # t2: "cpu f32[2, 2]"
      # t2 = prims.stride_order(t_1, (1, 0))  # t2: "cpu f32[2, 2]"
  del t_1
  (t0, _) = multimul(t1, t2, 0, 0)
    # t0 = ltorch.mul(t1, t2)  # t0: "cpu f32[2, 2]"
      # t0 = prims.mul(t1, t2)  # t0: "cpu f32[2, 2]"
  del t1, t2
  return t0
"""
    )
    same_trace(shown, notebook.caz_trace)


def test_registering_again_reaches_what_is_compiled(notebook: SimpleNamespace) -> None:
    """A program compiled with what an executor said before is compiled anew with what it says now."""
    misses = thunder.cache_misses(notebook.cbar)
    torch.testing.assert_close(notebook.cbar(notebook.a, notebook.b), notebook.bar, rtol=0, atol=0)
    assert thunder.cache_misses(notebook.cbar) == misses + 1
    assert "Tensor.contiguous" in str(thunder.last_traces(notebook.cbar)[-1])


def test_the_executor_is_named(notebook: SimpleNamespace) -> None:
    """A registered executor is also known by its name."""
    register_executor(notebook.myex)
    jitted = thunder.jit(lambda a, b: a * b, executors=["myex"])
    torch.testing.assert_close(jitted(notebook.a, notebook.b), notebook.bar, rtol=0, atol=0)
    assert "multimul(" in str(thunder.last_traces(jitted)[-1])
    assert (notebook.myex.name, notebook.myex.version) == ("myex", "0.1")
