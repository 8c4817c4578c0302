# SPDX-License-Identifier: Apache-2.0
"""The torch_compile executor: compiles regions of a trace with Inductor, the compiler behind `torch.compile`.

    thunder.jit(model, executors=["torch_compile"])

On the CPU, Inductor fuses chains of operations into loops, which needs a C++ compiler. The executor is never a default:
its first call takes many times longer than thunder's, and the speedup depends on the program.

A region is compiled at its first call, because that call provides the strides of its inputs. It is compiled again for
other strides. Regions do not include random operations (their order must be the program's), in-place writes, operators
of other executors, opaque operations or complex numbers. Views at the border of a region stay outside of it, so that
they remain views.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.dtypes import is_complex_dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies
from thunder.core.trace import Trace
from thunder.execution.claim import claim, is_structural
from thunder.execution.regions import Region, by_device, fused, partition, without_views
from thunder.executors.torchex.base import ex as torch_executor
from thunder.extend import Executor, FusionExecutor, register_executor
from thunder.transforms.folding import is_literal

__all__ = [
    "CompiledRegion",
    "TorchCompileExecutor",
    "compiled_by_inductor",
    "ex",
    "fx_graph",
    "program_of",
    "warn_not_compiled",
]

_LEFT_OUT = {
    OpTags.RANDOM_OP: "draws random numbers",
    OpTags.IN_PLACE_OP: "writes to its input",
    OpTags.SIDE_EFFECT: "has a side effect",
    OpTags.DEVICE_SYNC_OP: "waits for the device",
    OpTags.OPAQUE_OP: "is opaque",
    OpTags.GRAD_OP: "exists only in gradient rules",
}


class TorchCompileExecutor(FusionExecutor):
    """Compiles one region at a time with Inductor."""

    def fuse_rejection(self, bsym: BoundSymbol) -> str | None:
        if is_structural(bsym):
            return "is not a computation"
        reason = _unfit(bsym)
        if reason is None and not torch_executor.can_execute(bsym):
            if not bsym.subsymbols:
                return "torch has no such function"
            reason = next((why for sub in bsym.subsymbols if (why := self.fuse_rejection(sub))), None)
        return reason

    def fusion_pass(self, trace: Trace) -> Trace:
        count = 0

        def run(region: Region) -> Sequence[BoundSymbol] | None:
            nonlocal count
            before, inner, after = without_views(region)
            if all(OpTags.VIEW_OP in op.sym.tags for op in inner.operations) or not self.get_fuel():
                return None
            fn = CompiledRegion(f"TorchCompile{count}", inner)
            count += 1
            whole = self.register_temporary_operation(
                fn.name, fn, inputs=inner.inputs, outputs=inner.outputs, bsyms=inner.operations
            )
            return [*before, whole, *after]

        return fused(trace, partition(trace, by_device(self)), run, "Fusion by torch_compile")


def _unfit(bsym: BoundSymbol) -> str | None:
    """Return why Inductor cannot compile an operation of this kind; None if it can."""
    sym = bsym.sym
    if sym.executor is not None and sym.executor is not torch_executor:
        return f"is an operator of {sym.executor.name}"
    found = _reason_to_leave_out(bsym)
    if found is not None:
        return found
    if not is_literal((bsym.args, bsym.kwargs)):
        return "has a data-dependent argument"
    devices = set()
    for p in (*bsym.flat_args, *bsym.flat_outs):
        if not isinstance(p, TensorProxy):
            return "reads or returns a value that is not a tensor"
        if any(type(d) is not int for d in p.shape):
            return "has a data-dependent size"
        if is_complex_dtype(p.dtype):
            return "Inductor does not compile complex numbers"
        devices.add(p.device)
    if len(devices) > 1 or any(d.type not in ("cpu", "cuda") for d in devices):
        return f"uses several devices: {', '.join(sorted(map(str, devices)))}"
    return None


def _reason_to_leave_out(bsym: BoundSymbol) -> str | None:
    """Return why an operation cannot be compiled, from its tags or from those of its decomposition; else None."""
    for tag in bsym.sym.tags:
        if tag in _LEFT_OUT:
            return _LEFT_OUT[tag]
    return next((why for sub in bsym.subsymbols if (why := _reason_to_leave_out(sub))), None)


# -- running a region --------------------------------------------------------------------------------------------------
class CompiledRegion:
    """A region as a function of its inputs. Inductor compiles it for each combination of strides that occurs."""

    def __init__(self, name: str, region: Region):
        self.name = self.__name__ = name
        self.trace = program_of(name, region)
        self._compiled: dict[Any, Callable[..., Any]] = {}

    @property
    def source(self) -> str:
        """The region as a program of torch's functions."""
        return str(self.trace)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        key = tuple([x.stride() for x in inputs])
        run = self._compiled.get(key)
        if run is None:
            run = self._compiled[key] = self.compile(inputs)
        return run(*inputs)

    def compile(self, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Return a function for inputs with these strides: Inductor's, or torch's if Inductor fails."""
        try:
            return compiled_by_inductor(fx_graph(self.trace), inputs)
        except Exception as error:
            warn_not_compiled(self.name, error)
            return self.trace.python_callable()

    def __repr__(self) -> str:
        return f"<{self.name}>"


def compiled_by_inductor(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """Compile a graph for inputs with these sizes and strides, without gradients."""
    import torch._inductor

    with torch.no_grad():
        return torch._inductor.compile(graph, [x.detach() for x in inputs], options={"triton.cudagraphs": False})


def warn_not_compiled(name: str, error: Exception) -> None:
    """Warn that Inductor does not compile a program."""
    reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    warnings.warn(f"torch_compile: Inductor does not compile {name} ({reason}); torch runs it", stacklevel=4)


def fx_graph(trace: Trace) -> torch.fx.GraphModule:
    """Return a claimed trace as an FX graph that calls torch's functions."""
    graph = torch.fx.Graph()
    nodes: dict[str, Any] = {p.name: graph.placeholder(f"in_{i}") for i, p in enumerate(trace.args)}

    def written(p: Proxy) -> Any:
        return nodes[p.name]

    for op in trace.bound_symbols:
        if op.sym is prims.python_return:
            graph.output(map_proxies(op.args[0], written))
        elif op.out_names:
            node = graph.call_function(
                op.sym.fn, map_proxies(op.args, written), map_proxies(op.kwargs, written) if op.kwargs else {}
            )
            _bind(graph, node, op.output, nodes)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _bind(graph: torch.fx.Graph, node: Any, output: Any, nodes: dict[str, Any]) -> None:
    """Record which FX node corresponds to each value of an operation's output."""
    if isinstance(output, Proxy):
        nodes[output.name] = node
    elif isinstance(output, (tuple, list)):
        for i, item in enumerate(output):
            if item is not None:
                _bind(graph, graph.call_function(operator.getitem, (node, i)), item, nodes)


def program_of(name: str, region: Region, *others: Executor) -> Trace:
    """Return the region as a separate trace, which consists of torch's functions and operators of `others`."""
    trace = Trace(name, args=region.inputs)
    trace.names.update(n for op in region.operations for n in (*op.arg_names, *op.out_names))
    trace.bound_symbols += region.operations
    trace.bound_symbols.append(BoundSymbol(prims.python_return, (region.outputs,), {}, None))
    return claim(trace, [torch_executor, *others], name="Region", fusing=False)


ex = TorchCompileExecutor("torch_compile", version=torch.__version__)
register_executor(ex)
