# SPDX-License-Identifier: Apache-2.0
"""Programs of one element that an operation applies to many elements, e.g. the `score_mod` of flex attention.

A `ScalarProgram` is an argument of an operation. Its own inputs are scalars of one element, followed by the values that
the user's function has captured, which are operands of the operation. An executor can inline the program in a kernel.
All others run it over whole tensors (`over`) by batching, and its gradient follows from that (`vjp_over`).

Equal programs are the same object. Therefore passes merge equal calls, and executors compile equal programs once.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import state, tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace
from thunder.passes.autodiff import JointTrace
from thunder.passes.batching import Batch
from thunder.passes.checkpoint import copy_operations
from thunder.passes.dce import dce

__all__ = ["ScalarProgram"]

_known: weakref.WeakValueDictionary[Any, ScalarProgram] = weakref.WeakValueDictionary()


class ScalarProgram:
    """A traced function of `elements`, which are 0-dimensional tensors, and of `captured` values."""

    def __init__(self, trace: Trace, count: int):
        self.__name__ = trace.name
        self.trace = trace
        self.elements: list[TensorProxy] = trace.args[:count]  # type: ignore[assignment]
        self.captured: list[Proxy] = trace.args[count:]

    @classmethod
    def make(
        cls,
        name: str,
        elements: dict[str, TensorProxy],
        captured: Sequence[Proxy],
        operations: Sequence[BoundSymbol],
        result: TensorProxy,
    ) -> ScalarProgram:
        """Return the program that computes `result` by `operations`. `elements` are its scalars by their new names."""
        trace = Trace(name)
        trace.args = [p.replace_name(trace.add_name(new)) for new, p in elements.items()]
        trace.args += [p.replace_name(trace.make_name("captured")) for p in captured]
        names: dict[str, Any] = {p.name: new for p, new in zip((*elements.values(), *captured), trace.args)}
        with tracectx(trace):
            for op in copy_operations(operations, names, trace):
                trace.record(op)
            prims.python_return(names[result.name])
        program = cls(dce(trace), len(elements))
        key = program._key()
        return program if key is None else _known.setdefault(key, program)

    def _key(self) -> Any:
        """Return a key that equal programs share, or None if there is no such key."""
        args = self.trace.args
        sizes = [n for p in args if isinstance(p, TensorProxy) for n in p.shape]
        if not all(isinstance(p, TensorProxy) for p in args) or any(isinstance(n, SymbolicNumber) for n in sizes):
            return None  # symbolic numbers belong to one trace
        given = tuple([(p.name, p.type_string()) for p in args])
        key = (self.__name__, len(self.elements), given, tuple([op.key for op in self.trace.bound_symbols]))
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def __repr__(self) -> str:
        return f"<{self.__name__}({', '.join(p.name for p in self.trace.args)})>"

    @property
    def result(self) -> TensorProxy:
        """The value of the trace that the program returns."""
        return self.trace.output  # type: ignore[no-any-return]

    @functools.cached_property
    def differentiable(self) -> frozenset[int]:
        """The indices of the inputs, elements first, that a gradient of the result reaches."""
        wrt = {i: p for i, p in enumerate(self.trace.args) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)}
        joint = JointTrace(self.trace, [*wrt.values()])
        if not is_inexact_dtype(joint.output.dtype):
            return frozenset()
        with tracectx(joint.trace):
            grads = joint.backward({joint.output.name: TensorProxy(like=joint.output)}, [*wrt.values()])
        return frozenset([i for i, g in zip(wrt, grads) if g is not None])

    # -- over whole tensors -------------------------------------------------------------------------------------------
    def over(self, elements: Sequence[Any], captured: Sequence[Any]) -> Any:
        """Record the program for all elements at once, and return a tensor with one dimension for each index.

        The last elements are vectors: one for each index, whose combinations are the elements. Before these, there may
        be tensors with a value for each combination. Dimensions that do not matter have the size 1 in the result.
        """
        whole = len(elements) - sum(x.ndim == 1 for x in elements)
        vectors = elements[whole:]
        operations: Sequence[BoundSymbol] = [op for op in self.trace.bound_symbols if not op.sym.is_return]
        inputs: Sequence[Any] = self.elements
        result: Any = self.result
        trace = state.trace
        assert trace is not None
        given = dict(zip((p.name for p in self.captured), captured))
        for axis in reversed(range(len(vectors))):  # the innermost dimension first
            if axis:
                outer = [TensorProxy(like=p, shape=x.shape[axis:]) for p, x in zip(inputs, elements[:whole])]
                outer += [TensorProxy(like=p, shape=x.shape if i >= axis else ()) for i, (p, x) in enumerate(
                    zip(inputs[whole:], vectors))]  # fmt: skip
            else:
                outer = [*elements]
            batch = Batch(vectors[axis].shape[0], copies=True)
            batch.env.update(given)
            for i, (old, new) in enumerate(zip(inputs, outer)):
                batch.env[old.name] = new
                if i < whole or i - whole == axis:
                    batch.add(new)
            with trace.scope() as recorded:
                batch.run(operations)
                result = batch.value(result)
                result = result if result in batch else prims.reshape(result, (1, *result.shape))
            operations, inputs, given = recorded, outer, {}
        for op in operations:
            trace.record(op)
        return result

    def vjp_over(
        self, elements: Sequence[Any], captured: Sequence[Any], wrt: Sequence[TensorProxy]
    ) -> tuple[Any, Callable[[Any], list[Any]]]:
        """Return the result of `over`, and a function from its cotangent to the gradients of `wrt` (None for zero)."""
        trace: Any = state.trace
        source = Trace(self.__name__)
        source.names, source._counters = trace.names, trace._counters
        with trace.scope() as source.bound_symbols:
            result = self.over(elements, captured)
            prims.python_return(result)
        joint = JointTrace(source, wrt, into=trace)

        def pull(cotangent: Any) -> list[Any]:
            return joint.backward({joint.output.name: cotangent}, wrt)  # type: ignore[no-any-return]

        return joint.output, pull
