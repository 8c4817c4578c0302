# SPDX-License-Identifier: Apache-2.0
"""A notebook that adds an executor for one operation with `add_operator_executor`, run cell by cell.

It runs on the CPU, and on a GPU where there is one. The notebook is the oldest of the documents; where it prints traces
otherwise than the others do, the newer form holds: both decorators, no `alpha=None`, `del b` without brackets, imports
that are not commented out, the time in the header, and decompositions in execution traces.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compare_printed_traces import same_trace

import thunder
from thunder.executors import add_operator_executor
from thunder.tests.opinfos import add_opinfo


class Log:
    """The notebook's logging of calls, with arguments and results, kept instead of printed."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.lines: list[str] = []
        self.depth = 0

    def take(self) -> list[str]:
        """What was logged since it was last asked for, with the CPU for the device."""
        lines, self.lines = self.lines, []
        return [line.replace(f"device={self.device}", "device=cpu") for line in lines]

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def told(v: Any) -> str:
            if isinstance(v, tuple):
                return f"({', '.join(map(told, v))})"
            if isinstance(v, thunder.core.proxies.TensorProxy):
                return f"TensorProxy(name={v.name}, shape={v.shape}, dtype={v.dtype}, device={v.device})"
            if isinstance(v, torch.Tensor):
                return f"Tensor(shape={v.shape}, stride={v.stride()}, dtype={v.dtype}, device={v.device})"
            return str(v) if isinstance(v, bool) else type(v).__name__

        @functools.wraps(func)
        def wrapper(*args: Any) -> Any:
            self.lines.append("  " * self.depth + f"call {func.__name__}({', '.join(map(told, args))})")
            self.depth += 1
            result = func(*args)
            self.depth -= 1
            self.lines.append("  " * self.depth + f"|<- {func.__name__} = {told(result)}")
            return result

        return wrapper


def fun(a: Any, b: Any) -> Any:
    """The notebook's function."""
    return a + b * a


DEVICES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module", params=DEVICES)
def notebook(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """The notebook's variables after its cells have run, with what each call returned, logged and left as a trace."""
    torch.manual_seed(0)
    device = request.param
    n = SimpleNamespace(a=torch.randn(2, 2, device=device), b=torch.randn(2, 1, device=device), log=Log(device))
    n.device = device
    n.trace = thunder.trace()(fun, n.a, n.b)
    _executor(n)
    _runs(n)
    _samples(n)
    _orders(n)
    yield n


def _executor(n: SimpleNamespace) -> None:
    @n.log
    def add_numpy(a: Any, b: Any) -> Any:
        assert isinstance(a, np.ndarray), "a must be a NumPy ndarray"
        assert isinstance(b, np.ndarray), "b must be a NumPy ndarray"
        return np.add(a, b)

    @n.log
    def torch_to_numpy(tensors: Any) -> Any:
        return tuple(t.detach().cpu().numpy() for t in tensors)

    @n.log
    def numpy_to_torch(arrays: Any, device: Any) -> Any:
        return tuple(torch.from_numpy(arr).to(device) for arr in arrays)

    @n.log
    def checker_add_numpy(a: Any, b: Any) -> bool:
        first_condition = a.dtype == b.dtype == thunder.dtypes.float32
        second_condition = a.ndim == b.ndim == 2
        third_condition = a.shape[0] == b.shape[0] == 2
        return first_condition and second_condition and third_condition

    @n.log
    def executor_add_numpy(a: Any, b: Any) -> Any:
        np_a, np_b = torch_to_numpy((a, b))
        np_res = add_numpy(np_a, np_b)
        (res,) = numpy_to_torch((np_res,), a.device)
        return res

    op_map = {thunder.prims.PrimIDs.ADD: ("add_numpy", checker_add_numpy, executor_add_numpy)}
    add_operator_executor("custom_add_executor", op_map, add_to_default_executors=False)


def _runs(n: SimpleNamespace) -> None:
    alone = thunder.compile(fun, executors_list=["custom_add_executor"])
    try:
        alone(n.a, n.b)
    except RuntimeError as e:
        n.error = str(e)
    n.log.take()
    n.cfun = thunder.compile(fun, executors_list=["custom_add_executor", thunder.executors.TORCH])
    n.result, n.first_log = n.cfun(n.a, n.b), n.log.take()
    n.execution_trace = thunder.last_traces(n.cfun)[-1]
    n.cfun_torch = thunder.compile(fun, executors_list=[thunder.executors.TORCH])
    n.expected, n.actual, n.warm_log = n.cfun_torch(n.a, n.b), n.cfun(n.a, n.b), n.log.take()


def _samples(n: SimpleNamespace) -> None:
    generator = add_opinfo.sample_input_generator(add_opinfo, device=n.device, dtype=torch.float32, requires_grad=False)
    n.generator, n.sample = generator, next(generator)
    n.sample_pair = n.cfun_torch(*n.sample.args), n.cfun(*n.sample.args)
    n.sample_log = n.log.take()


def _orders(n: SimpleNamespace) -> None:
    cfun_torch_first = thunder.compile(fun, executors_list=[thunder.executors.TORCH, "custom_add_executor"])
    cfun_torch_first(n.a, n.b)
    n.torch_first_trace, n.torch_first_log = thunder.last_traces(cfun_torch_first)[-1], n.log.take()
    a = torch.randn(3, 2, device=n.device, dtype=torch.float64)
    b = torch.randn(3, 1, device=n.device, dtype=torch.float64)
    torch.testing.assert_close(n.cfun(a, b), fun(a, b))
    n.unsupported_trace, n.unsupported_log = thunder.last_traces(n.cfun)[-1], n.log.take()


HEADER = """\
import torch
from thunder.executors.torchex import no_autocast

@torch.no_grad()
@no_autocast
def fun(a, b):
"""
EXECUTION_HEADER = "# Constructed by Delete Last Used (took 0 milliseconds)\n" + HEADER
MUL = """\
  t1 = torch.mul(b, a)  # t1: "cpu f32[2, 2]"
    # t1 = ltorch.mul(b, a)  # t1: "cpu f32[2, 2]"
      # t0 = prims.broadcast_in_dim(b, [2, 2], (0, 1))  # t0: "cpu f32[2, 2]"
      # t1 = prims.mul(t0, a)  # t1: "cpu f32[2, 2]"
  del b
"""
TORCH_ADD = """\
  t2 = torch.add(a, t1)  # t2: "cpu f32[2, 2]"
    # t2 = ltorch.add(a, t1)  # t2: "cpu f32[2, 2]"
      # t2 = prims.add(a, t1)  # t2: "cpu f32[2, 2]"
  del a, t1
  return t2
"""
INPUTS = """\
  # a: "cpu f32[2, 2]"
  # b: "cpu f32[2, 1]"
"""


def on(device: str, text: str) -> str:
    """What is shown for the CPU, for a device."""
    return text.replace('"cpu ', f'"{device} ')


def test_the_function_as_a_trace(notebook: SimpleNamespace) -> None:
    """Before anything is executed it is written in the torch language, primitives below."""
    shown = (
        "import thunder.torch as ltorch\n"
        + HEADER
        + INPUTS
        + """\
  t1 = ltorch.mul(b, a)  # t1: "cpu f32[2, 2]"
    # t0 = prims.broadcast_in_dim(b, [2, 2], (0, 1))  # t0: "cpu f32[2, 2]"
    # t1 = prims.mul(t0, a)  # t1: "cpu f32[2, 2]"
  t2 = ltorch.add(a, t1)  # t2: "cpu f32[2, 2]"
    # t2 = prims.add(a, t1)  # t2: "cpu f32[2, 2]"
  return t2
"""
    )
    same_trace(on(notebook.device, shown), notebook.trace, deletes=False)
    assert str(notebook.trace) == on(notebook.device, shown).rstrip()  # this one in every letter


def test_bound_symbols(notebook: SimpleNamespace) -> None:
    """Operations have ids, text and parts."""
    printed = []
    for bound_symbol in notebook.trace.bound_symbols:
        printed.append(f"{bound_symbol.sym.id} |{bound_symbol}|")
        printed += [f"  {subsymbol.sym.id} |{subsymbol}|" for subsymbol in bound_symbol.subsymbols]
    assert (
        "\n".join(printed).replace(notebook.device, "cpu")
        == """\
PrimIDs.UNPACK_TRIVIAL |# a: "cpu f32[2, 2]"|
PrimIDs.UNPACK_TRIVIAL |# b: "cpu f32[2, 1]"|
torch.mul |t1 = ltorch.mul(b, a)  # t1: "cpu f32[2, 2]"
  # t0 = prims.broadcast_in_dim(b, [2, 2], (0, 1))  # t0: "cpu f32[2, 2]"
  # t1 = prims.mul(t0, a)  # t1: "cpu f32[2, 2]"|
  PrimIDs.BROADCAST_IN_DIM |t0 = prims.broadcast_in_dim(b, [2, 2], (0, 1))  # t0: "cpu f32[2, 2]"|
  PrimIDs.MUL |t1 = prims.mul(t0, a)  # t1: "cpu f32[2, 2]"|
torch.add |t2 = ltorch.add(a, t1)  # t2: "cpu f32[2, 2]"
  # t2 = prims.add(a, t1)  # t2: "cpu f32[2, 2]"|
  PrimIDs.ADD |t2 = prims.add(a, t1)  # t2: "cpu f32[2, 2]"|
PrimIDs.RETURN |return t2|"""
    )


def test_help() -> None:
    """`help` shows the signature as the notebook has it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        help(add_operator_executor)
    assert "Help on function add_operator_executor in module thunder.executors:" in printed.getvalue()
    signature = "add_operator_executor(name, op_map, *, add_to_default_executors: bool = True) -> None"
    assert signature in printed.getvalue()


def test_an_operation_that_no_executor_takes(notebook: SimpleNamespace) -> None:
    """`compile` uses exactly its list: the error names the operation of the program, and the line that it came from."""
    shown = """\
Could not find executor for bound symbol t1 = ltorch.mul(b, a)  # t1: "cpu f32[2, 2]"
  # t0 = prims.broadcast_in_dim(b, [2, 2], (0, 1))  # t0: "cpu f32[2, 2]"
  # t1 = prims.mul(t0, a)  # t1: "cpu f32[2, 2]"
"""
    assert notebook.error.startswith(on(notebook.device, shown))
    assert notebook.error.endswith(": return a + b * a")


def test_the_checker_sees_proxies_and_the_implementation_tensors(notebook: SimpleNamespace) -> None:
    """While compiling the checker is asked; then the implementation is called, with torch's result of the product."""
    proxies = [f"TensorProxy(name={name}, shape=(2, 2), dtype=float32, device=cpu)" for name in ("a", "t1")]
    tensors = ", ".join(["Tensor(shape=torch.Size([2, 2]), stride=(2, 1), dtype=torch.float32, device=cpu)"] * 2)
    check = [f"call checker_add_numpy({', '.join(proxies)})", "|<- checker_add_numpy = True"]
    run = [
        f"call executor_add_numpy({tensors})",
        f"  call torch_to_numpy(({tensors}))",
        "  |<- torch_to_numpy = (ndarray, ndarray)",
        "  call add_numpy(ndarray, ndarray)",
        "  |<- add_numpy = ndarray",
        "  call numpy_to_torch((ndarray), device)",
        f"  |<- numpy_to_torch = ({tensors[: len(tensors) // 2 - 1]})",
        f"|<- executor_add_numpy = {tensors[: len(tensors) // 2 - 1]}",
    ]
    assert notebook.first_log == check * 2 + run
    assert notebook.warm_log == run  # nobody is asked twice
    for found in (notebook.result, notebook.actual):
        torch.testing.assert_close(found, notebook.expected, rtol=0, atol=0)


def test_the_execution_trace(notebook: SimpleNamespace) -> None:
    """The sum is the executor's operator, the product torch's."""
    shown = (
        EXECUTION_HEADER
        + INPUTS
        + MUL
        + """\
  t2 = add_numpy(a, t1)  # t2: "cpu f32[2, 2]"
    # t2 = prims.add(a, t1)  # t2: "cpu f32[2, 2]"
  del a, t1
  return t2
"""
    )
    same_trace(on(notebook.device, shown), notebook.execution_trace)


def test_a_sample_of_the_operator(notebook: SimpleNamespace) -> None:
    """The generator of `add` gives two tensors of one shape first, and the checker refuses that shape once."""
    assert isinstance(notebook.generator, Iterator)
    a, b = notebook.sample.args
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((4, 4), (4, 4), torch.float32, torch.float32)
    printed = str(notebook.sample)
    assert printed.startswith("[SampleInput args=(tensor([[") and printed.endswith(") kwargs={}]")
    torch.testing.assert_close(*notebook.sample_pair, rtol=0, atol=0)
    proxies = [f"TensorProxy(name={name}, shape=(4, 4), dtype=float32, device=cpu)" for name in ("a", "t0")]
    assert notebook.sample_log == [f"call checker_add_numpy({', '.join(proxies)})", "|<- checker_add_numpy = False"]


def test_the_order_of_executors_decides(notebook: SimpleNamespace) -> None:
    """Where torch is asked first it takes the sum, and the checker is not asked at all."""
    same_trace(on(notebook.device, EXECUTION_HEADER + INPUTS + MUL + TORCH_ADD), notebook.torch_first_trace)
    assert notebook.torch_first_log == []


def test_inputs_that_the_executor_does_not_take(notebook: SimpleNamespace) -> None:
    """Other inputs are compiled anew, and what the checker refuses goes to the next executor."""
    shown = on(notebook.device, EXECUTION_HEADER + INPUTS + MUL + TORCH_ADD)
    same_trace(shown.replace("f32[2", "f64[3").replace("[2, 2]", "[3, 2]"), notebook.unsupported_trace)
    proxies = [f"TensorProxy(name={name}, shape=(3, 2), dtype=float64, device=cpu)" for name in ("a", "t1")]
    log = [f"call checker_add_numpy({', '.join(proxies)})", "|<- checker_add_numpy = False"]
    assert notebook.unsupported_log == log


def test_a_default_executor() -> None:
    """Without `add_to_default_executors=False` it is used without being named, until it is removed."""
    from thunder.extend import deregister_executor, get_default_executors

    calls = []

    def run(a: Any, b: Any) -> Any:
        calls.append((a, b))
        return torch.add(a, b)

    add_operator_executor("default_add_executor", {thunder.prims.PrimIDs.ADD: ("default_add", lambda a, b: True, run)})
    try:
        assert "default_add_executor" in [executor.name for executor in get_default_executors()]
        assert torch.equal(thunder.jit(fun)(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
        assert len(calls) == 1
    finally:
        deregister_executor("default_add_executor")
    assert torch.equal(thunder.jit(fun)(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    assert len(calls) == 1
