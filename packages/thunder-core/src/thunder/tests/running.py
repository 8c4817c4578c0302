# SPDX-License-Identifier: Apache-2.0
"""Run one sample of an operator: with torch, as a trace that executors claimed, and through `thunder.jit`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

import thunder
from thunder.core import prims
from thunder.core.devices import Device, to_torch_device
from thunder.core.dtypes import dtype as thunder_dtype
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from thunder.core.samples import SampleInput
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Trace
from thunder.execution.claim import is_structural, transform_for_execution
from thunder.executors import TORCH
from thunder.extend import Executor, FusionExecutor, get_always_executors
from thunder.tests.make_tensor import seeded

__all__ = [
    "all_levels",
    "claimed_by",
    "copied",
    "could_claim",
    "draws_random_numbers",
    "execution_trace",
    "exists",
    "has_implementation",
    "map_tensors",
    "operations",
    "reference",
    "run_jitted",
    "run_trace",
    "same_random_numbers",
    "share_memory",
    "tensors_in",
    "to_primitives",
    "torch_implementation",
    "trace_sample",
]

SEED = 20

# The errors by which an operation rejects an argument. Any other error is a bug.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)

# Dtypes for which torch has kernels.
_PLAIN = (torch.float32, torch.float64, torch.int64, torch.bool)


class Operation(Protocol):
    """The part of an `OpInfo` (`thunder.tests.opinfo`) that this module needs."""

    name: str
    torch_reference: Callable[..., Any] | None

    @property
    def tags(self) -> Collection[OpTags]:
        """Return the operator's tags."""

    @property
    def symbol(self) -> Symbol:
        """Return the operator as a symbol."""


# -- samples -----------------------------------------------------------------------------------------------------------
def tensors_in(x: Any) -> list[torch.Tensor]:
    """Return the tensors in a sample or a result, in order."""
    leaves = tree_leaves((x.args, x.kwargs)) if isinstance(x, SampleInput) else tree_leaves(x)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def map_tensors(sample: SampleInput, fn: Callable[[torch.Tensor], torch.Tensor]) -> SampleInput:
    """Return the sample with `fn` applied to each tensor. A tensor that occurs twice stays one tensor."""
    done: dict[int, torch.Tensor] = {}

    def once(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in done:
            done[id(leaf)] = fn(leaf)
        return done[id(leaf)]

    args, kwargs = tree_map(once, (sample.args, sample.kwargs))
    return SampleInput(*args, **kwargs)


def copied(sample: SampleInput) -> SampleInput:
    """Copy the tensors of the sample, with their strides, for operations that write to their arguments."""
    return map_tensors(sample, _copy)


def _copy(x: torch.Tensor) -> torch.Tensor:
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride())):
        return x.detach()  # overlapping elements cannot be written separately
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x.detach())


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Check whether two tensors are views of the same memory."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0


# -- torch -------------------------------------------------------------------------------------------------------------
def to_torch(x: Any) -> Any:
    """Replace thunder's dtypes and devices in arguments by torch's."""
    if isinstance(x, thunder_dtype):
        return to_torch_dtype(x)
    if isinstance(x, Device):
        return to_torch_device(x)
    if type(x) in (tuple, list):
        return type(x)(to_torch(item) for item in x)
    if type(x) is dict:
        return {key: to_torch(item) for key, item in x.items()}
    return x


def torch_implementation(sym: Symbol) -> Callable[..., Any] | None:
    """Return the torch executor's function for a primitive, which runs on real tensors."""
    found = TORCH.implementation(BoundSymbol(sym, (), {}, None))
    return None if found is None or found.op is None else found.op.fn


def reference(info: Operation, sample: SampleInput) -> Any:
    """Return torch's result for a sample.

    If torch has no such function, return the result of the operator's decomposition.
    """
    if info.torch_reference is None:
        trace = trace_sample(info, sample)
        return run_trace(execution_trace(to_primitives(trace), ()), sample)
    return info.torch_reference(*to_torch(sample.args), **to_torch(sample.kwargs))


def exists(info: Operation, sample: SampleInput, *, with_values: bool = False) -> bool:
    """Check whether a sample is a valid call: torch accepts it, and so does the meta function of a primitive.

    A primitive may accept less than torch's function of the same name, because it neither promotes nor broadcasts. If
    torch does not have the operator, the decomposition determines valid calls. `with_values`: only accept calls that
    compute elements.
    """
    tensors = tensors_in(sample)
    something = all(x.numel() for x in tensors)
    given = copied(sample) if writes(info) else sample
    own = info.torch_reference is None
    result: Any = None
    if not own:
        try:
            with same_random_numbers():
                result = reference(info, given)
        except Exception:  # any error is a rejection
            return False
    if own or info.symbol.is_prim or not something:
        # For empty tensors torch often returns before it checks the dtype, but a meta function checks it.
        refusals = REFUSALS if own or info.symbol.is_prim else NotImplementedError
        try:
            trace = trace_sample(info, sample)
            result = trace.output
            if own and not all(x.dtype in _PLAIN for x in tensors):
                # torch may lack kernels for the call or for its decomposition.
                reference(info, given)
                run_trace(execution_trace(trace, ()), given)
        except refusals:
            return False
        except Exception:  # a bug of the declaration, which a test reports
            return True
    return not with_values or (something and any(0 not in getattr(x, "shape", ()) for x in tree_leaves(result)))


def writes(info: Operation) -> bool:
    """Check whether the operator writes to one of its arguments."""
    return OpTags.IN_PLACE_OP in info.tags


def same_random_numbers() -> AbstractContextManager[None]:
    """Make random numbers reproducible within the context. Restore the generators' states afterwards."""
    return seeded(SEED)


# -- traces ------------------------------------------------------------------------------------------------------------
def trace_sample(info: Operation, sample: SampleInput) -> Trace:
    """Return the trace of the operator called with the sample. Its inputs are the sample's tensors in order."""
    name = "".join(c if c.isalnum() else "_" for c in info.name)
    trace = Trace(name)
    leaves, structure = tree_flatten((sample.args, sample.kwargs))
    proxies: dict[int, TensorProxy] = {}
    with tracectx(trace):
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if id(leaf) not in proxies:
                    proxies[id(leaf)] = _input(trace, leaf)
                leaves[i] = proxies[id(leaf)]
        args, kwargs = tree_unflatten(leaves, structure)
        output = info.symbol(*args, **kwargs)
        prims.python_return(output)
    trace.args = list(proxies.values())
    return trace


def _input(trace: Trace, x: torch.Tensor) -> TensorProxy:
    name = trace.make_name("t_")
    proxy = TensorProxy(name, shape=x.shape, device=x.device, dtype=x.dtype, requires_grad=x.requires_grad)
    prims.unpack_trivial(proxy)
    return proxy


def run_trace(trace: Trace, sample: SampleInput) -> Any:
    """Run an execution trace on the sample that it was traced with."""
    unique = {id(x): x for x in tensors_in(sample)}
    return trace.python_callable()(*unique.values())


def execution_trace(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return the trace that the executors run. torch and Python run the operations that they do not claim."""
    return transform_for_execution(trace, with_torch(executors))[-1]


def with_torch(executors: Sequence[Executor]) -> list[Executor]:
    """Return the executors under test, followed by the executors that end every list."""
    return [*executors, *(ex for ex in get_always_executors() if ex not in executors)]


def to_primitives(trace: Trace) -> Trace:
    """Return the trace with every operation replaced by the primitives that it decomposes into."""
    out = trace.derive("Decompose to primitives")

    def write(bsym: BoundSymbol) -> None:
        if is_structural(bsym) or bsym.sym.is_prim:
            out.bound_symbols.append(bsym)
        for sub in () if bsym.sym.is_prim else bsym.subsymbols:
            write(sub)

    for bsym in trace.bound_symbols:
        write(bsym)
    return out


def all_levels(bsyms: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the operations and everything that they decompose into."""
    for bsym in bsyms:
        yield bsym
        yield from all_levels(bsym.subsymbols)


def draws_random_numbers(trace: Trace) -> bool:
    """Check whether any operation of the trace draws random numbers."""
    return any(OpTags.RANDOM_OP in bsym.sym.tags for bsym in all_levels(trace.bound_symbols))


def operations(trace: Trace) -> list[BoundSymbol]:
    """Return the operations that a trace runs. The list is empty if the program only returns its inputs."""
    return [bsym for bsym in trace.bound_symbols if not is_structural(bsym)]


def claimed_by(trace: Trace, executors: Sequence[Executor]) -> bool:
    """Check whether one of the executors runs some operation of an execution trace."""
    return any(bsym.sym.executor is ex for bsym in trace.bound_symbols for ex in executors)


def could_claim(trace: Trace, executors: Sequence[Executor]) -> bool:
    """Check whether one of the executors implements an operation in the trace, or a part of an operation."""
    return any(
        has_implementation(bsym, ex)
        for bsym in all_levels(trace.bound_symbols)
        if not is_structural(bsym)
        for ex in executors
    )


def has_implementation(bsym: BoundSymbol, executor: Executor) -> bool:
    """Check whether the executor can run an operation, or could if its checker accepted it."""
    found = executor.implementation(bsym)
    if found is not None and found.executable:
        return True
    return isinstance(executor, FusionExecutor) and executor.can_fuse(bsym)


# -- jit ---------------------------------------------------------------------------------------------------------------
def jit_strictly(fn: Callable[..., Any], executors: Sequence[Executor] | None) -> Any:
    """Return a jitted function that raises an error where others would run eagerly, and thus hide an operator's defect.

    All jitted functions of the suite come from here.
    """
    return thunder.jit(fn, executors=executors, sharp_edges="error")


def run_jitted(info: Operation, sample: SampleInput, executors: Sequence[Executor]) -> tuple[Any, Any]:
    """Return the result of `thunder.jit` for a sample, and the jitted function."""
    symbol = info.symbol

    def call(args: Any, kwargs: Any) -> Any:
        return symbol(*args, **kwargs)

    jitted = jit_strictly(call, executors)
    return jitted(sample.args, sample.kwargs), jitted
