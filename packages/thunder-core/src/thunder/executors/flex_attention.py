# SPDX-License-Identifier: Apache-2.0
"""The flex_attention executor: flex attention as torch's own kernels, which Inductor generates.

    thunder.jit(model)  # on a GPU, it claims calls with many scores; executors=["flex_attention"] claims all it can

The functions of scores and masks become FX graphs that call torch's functions. A graph with one call of torch's
higher-order operator is compiled by Inductor, which inlines them in its template: forward and backward are separate
kernels, so the split into a forward and a backward program is thunder's. On the CPU, Inductor's template has no
logsumexp and no gradient, so only calls without them are claimed.

Kernels are compiled at the first call for the sizes, strides and dtypes of the tensors, and shared by all programs of
the process.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.nbytes import known_shape
from thunder.core.printer import call_with_programs
from thunder.core.proxies import NumberProxy
from thunder.core.symbol import Symbol
from thunder.execution.claim import claim
from thunder.executors.torch_compile import compiled_by_inductor, fx_graph, warn_not_compiled
from thunder.executors.torchex.base import ex as torch_executor
from thunder.extend import NewResults, OperatorExecutor, is_capturing_graph, register_executor
from thunder.passes.scalar_programs import ScalarProgram
from thunder.runtime.torch_private import deterministic
from thunder.torch.private import FlexAttentionOperators

__all__ = ["ex"]


class FlexAttentionExecutor(OperatorExecutor):
    """Runs two operations, which are never the only parts of another one."""

    def ignores(self, sym: Symbol) -> bool:
        return sym.id not in self.implmap and sym.executor is not self


ex = FlexAttentionExecutor("flex_attention", version=torch.__version__, memory=NewResults())

_DTYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32)
_TRAINING = ("cuda",)  # the devices whose templates have the logsumexp and gradients
_LEAST_WIDTH = 16  # of a matrix multiplication in Triton
# The scores from which a kernel is compiled by default: 16 MiB in float32. With fewer, materialized scores stay in the
# GPU's cache, launches take most of the time, and a kernel does not save the seconds that its compilation takes.
_LEAST_SCORES = 1 << 22
_PRIORITY = 1000  # before executors that run parts of the decomposition


# -- which calls ------------------------------------------------------------------------------------------------------
def _why_not(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, captured: Sequence[Any], options: dict[str, Any]
) -> str | None:
    """Return why there is no kernel for a call, or None."""
    tensors = (query, key, value)
    if query.device.type not in ("cpu", "cuda"):
        return "Inductor has no template for this device"
    if query.device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if any(x.dtype is not query.dtype or x.dtype not in _DTYPES for x in tensors):
        return "query, key and value must all be float16, bfloat16 or float32"
    if any(type(x.shape[-1]) is not int or x.shape[-1] < _LEAST_WIDTH for x in (query, value)):
        return f"heads must have a fixed width of {_LEAST_WIDTH} or more"
    if any(0 in known_shape(x) for x in tensors):
        return "there is nothing to compute"
    if any(isinstance(x, NumberProxy) for x in captured):
        return "a function of scores or masks captures a number that differs between calls: pass it as a tensor"
    if any(x.device is not query.device for x in (*captured, key, value)):
        return "a function of scores or masks captures a tensor on another device"
    if options.get("BACKEND") == "FLASH":
        return "thunder does not call the FLASH backend"
    for program in (score_mod, mask_mod):
        for op in () if program is None else program.trace.bound_symbols:
            if not op.sym.is_return and not torch_executor.can_execute(op):
                return f"torch has no function for {op.sym.name} in {program.__name__}"
    return None


def _forward_checker(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, score_captured: Any, mask_captured: Any,
    block_mask: Any, scale: float, options: dict[str, Any], lse: bool, max_scores: bool,
) -> bool | str:  # fmt: skip
    if query.device.type not in _TRAINING and (lse or max_scores):
        return "Inductor's template for the CPU has no logsumexp and no gradient"
    return _why_not(query, key, value, score_mod, mask_mod, (*score_captured, *mask_captured), options) or True


def _backward_checker(
    grad: Any, grad_lse: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, score_mod: Any, mask_mod: Any,
    score_captured: Any, mask_captured: Any, block_mask: Any, scale: float, options: dict[str, Any], wrt: Any,
) -> bool | str:  # fmt: skip
    if query.device.type not in _TRAINING:
        return "Inductor's template for the CPU has no gradient"
    if block_mask is not None and block_mask[_Q_INDICES] is None:
        return "the block mask was made with compute_q_blocks=False"
    if score_mod is not None and 0 not in score_mod.differentiable:
        return "the function of scores has no gradient"
    if wrt and deterministic():
        return "gradients of captured tensors are added in any order"
    return _why_not(query, key, value, score_mod, mask_mod, (*score_captured, *mask_captured), options) or True


_Q_INDICES = 7  # of `BlockMask.as_tuple()`


def _many_scores(query: Any, key: Any) -> bool | str:
    """Check whether a kernel is faster than materialized scores, and worth its compilation."""
    if query.device.type != "cuda":
        return "on the CPU, it compiles for a long time"
    batch, heads, rows, _ = known_shape(query)
    scores = batch * heads * rows * known_shape(key)[2]
    return scores >= _LEAST_SCORES or f"there are only {scores} scores, which torch materializes"


# -- kernels ----------------------------------------------------------------------------------------------------------
_kernels: dict[Any, Callable[..., Any]] = {}
_lock = threading.Lock()  # Inductor compiles for one thread at a time


@functools.cache
def _operators() -> FlexAttentionOperators:
    return FlexAttentionOperators()


@functools.cache
def _no_block_mask(device: torch.device) -> tuple[Any, ...]:
    """Return the entries of the block mask that masks nothing. Its tensors exist once for each device."""
    element = torch.empty(1, 1, 1, 1, device=device)
    return _operators().empty_block_mask(element, element)[:-1]


def _kernel(
    key: tuple[Any, ...],
    tensors: Sequence[torch.Tensor],
    write: Callable[[], torch.fx.GraphModule],
    learnt: Sequence[int] = (),
) -> Any:
    """Return the kernel for these tensors. At the first call, compile the graph that `write` returns.

    `learnt` are the indices of the captured tensors whose gradients the graph computes.
    """
    key = (*key, *[(x.shape, x.stride(), x.dtype, x.device) for x in tensors])
    run = _kernels.get(key)
    if run is None:
        if is_capturing_graph():
            raise RuntimeError("flex attention compiles a kernel at its first call, which cannot be captured")
        with _lock:
            run = _kernels.get(key)
            if run is None:
                run = _kernels[key] = _compiled(write(), tensors, learnt)
    return run


def _compiled(
    graph: torch.fx.GraphModule, tensors: Sequence[torch.Tensor], learnt: Sequence[int]
) -> Callable[..., Any]:
    """Return Inductor's kernel, or the graph itself, which materializes the scores, if Inductor fails."""
    try:
        return compiled_by_inductor(graph, tensors)
    except Exception as error:
        warn_not_compiled("flex_attention", error)

    def materialized(*given: torch.Tensor) -> Any:
        with torch.no_grad():
            return graph(*[x.detach().requires_grad_() if i in learnt else x for i, x in enumerate(given)])

    return materialized


def _function(program: ScalarProgram | None, count: int) -> torch.fx.GraphModule:
    """Return a function of scores or masks as a graph. None is the one of `count` elements that changes nothing."""
    if program is not None:
        return fx_graph(claim(program.trace, [torch_executor], name="Scalar program", fusing=False))
    graph = torch.fx.Graph()
    first, *_ = [graph.placeholder(f"in_{i}") for i in range(count)]
    graph.output(first if count == _OF_SCORE else graph.call_function(torch.ge, (first, 0)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


_OF_MASK, _OF_SCORE = 4, 5  # the numbers of elements that the functions have


def _tensors_in(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, tuple):
        for item in x:
            yield from _tensors_in(item)


def _graph(call: Any, args: tuple[Any, ...], results: Sequence[tuple[int, ...]]) -> torch.fx.GraphModule:
    """Return the graph that calls an operator. Its inputs are the tensors in `args`, in order."""
    root, graph = torch.nn.Module(), torch.fx.Graph()
    inputs = iter([graph.placeholder(f"in_{i}") for i, _ in enumerate(_tensors_in(args))])

    def node(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return next(inputs)
        if isinstance(x, torch.fx.GraphModule):
            name = f"function_{len(root._modules)}"
            root.add_module(name, x)
            return graph.get_attr(name)
        return tuple(map(node, x)) if isinstance(x, tuple) else x

    made = graph.call_function(call, node(args))
    graph.output(tuple([_item(graph, made, *path) for path in results]))
    return torch.fx.GraphModule(root, graph)


def _item(graph: torch.fx.Graph, node: Any, *path: int) -> Any:
    for i in path:
        node = graph.call_function(operator.getitem, (node, i))
    return node


# -- the operators ----------------------------------------------------------------------------------------------------
def _run_forward(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, score_captured: Any, mask_captured: Any,
    block_mask: Any, scale: float, options: dict[str, Any], lse: bool, max_scores: bool,
) -> Any:  # fmt: skip
    """Compute attention by torch's kernel."""
    entries = _no_block_mask(query.device) if block_mask is None else block_mask
    tensors = (query, key, value, *_tensors_in(entries), *score_captured, *mask_captured)
    results = [(0,), *([(1,)] if lse else []), *([(2,)] if max_scores else [])]

    def write() -> torch.fx.GraphModule:
        functions = _function(score_mod, _OF_SCORE), _function(mask_mod, _OF_MASK)
        chosen = {**options, "OUTPUT_LOGSUMEXP": lse, "OUTPUT_MAX": max_scores}
        args = query, key, value, functions[0], (*entries, functions[1]), scale, chosen, score_captured, mask_captured
        return _graph(_operators().forward, args, results)

    how = ("forward", score_mod, mask_mod, *_constants(entries, scale, options), lse, max_scores)
    out = iter(_kernel(how, tensors, write)(*tensors))
    return next(out), next(out) if lse else None, next(out) if max_scores else None


def _run_backward(
    grad: Any, grad_lse: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, score_mod: Any, mask_mod: Any,
    score_captured: Any, mask_captured: Any, block_mask: Any, scale: float, options: dict[str, Any], wrt: Any,
) -> Any:  # fmt: skip
    """Compute attention's gradients by torch's kernel."""
    entries = _no_block_mask(query.device) if block_mask is None else block_mask
    given = (query, key, value, out, lse, grad, grad_lse)
    tensors = (*_tensors_in(given), *_tensors_in(entries), *score_captured, *mask_captured)
    results = [(0,), (1,), (2,), *[(3, i) for i in wrt]]

    def write() -> torch.fx.GraphModule:
        functions = _function(score_mod, _OF_SCORE), _function(mask_mod, _OF_MASK)
        learnt = tuple([x.detach().requires_grad_() if i in wrt else x.detach() for i, x in enumerate(score_captured)])
        joint = _operators().joint_graph(functions[0], query, learnt)
        chosen = {**options, "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False}
        masks = (*entries, functions[1])
        args = (*given, functions[0], joint, masks, scale, chosen, score_captured, mask_captured)
        return _graph(_operators().backward, args, results)

    how = ("backward", score_mod, mask_mod, *_constants(entries, scale, options), grad_lse is None, tuple(wrt))
    first = len(tensors) - len(score_captured) - len(mask_captured)
    return tuple(_kernel(how, tensors, write, [first + i for i in wrt])(*tensors))


def _constants(entries: tuple[Any, ...], scale: float, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a kernel depends on beside its functions and tensors."""
    return tuple([None if isinstance(x, torch.Tensor) else x for x in entries]), scale, tuple(sorted(options.items()))


def _register(sym: Symbol, run: Callable[..., Any], checker: Any, profitable: Any) -> None:
    op = ex.register_operator(sym.name, like=sym.meta, fn=run, tags=tuple(sym.tags), kernel=True)
    op.printer = call_with_programs
    ex.register_implementation(sym, op, checker=checker, profitable=profitable, priority=_PRIORITY)


_register(ltorch.flex_attention, _run_forward, _forward_checker, lambda query, key, *rest: _many_scores(query, key))
_register(
    ltorch.flex_attention_backward,
    _run_backward,
    _backward_checker,
    lambda grad, grad_lse, query, key, *rest: _many_scores(query, key),
)
register_executor(ex, default=True)
