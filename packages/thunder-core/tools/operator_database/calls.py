# SPDX-License-Identifier: Apache-2.0
"""The calls of an operator of the database: its samples, for each form of the operator."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database

from thunder.core.pytree import tree_leaves, tree_map
from thunder.tests.comparison import describe, widened

__all__ = ["DTYPES", "FORMS", "Call", "calls_of", "name_of", "operators"]

DTYPES = {str(d).removeprefix("torch."): d for d in
          (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64)}  # fmt: skip

#: The forms of an operator: the function on reference inputs, its gradients, inputs that are not contiguous, the
#: method, the in-place method, its gradients, and invalid calls.
FORMS = ("function", "gradients", "noncontiguous", "method", "in-place", "in-place gradients", "error")

# Importing the database forbids to set flags such as `torch.backends.cudnn.allow_tf32` in the whole process.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

# The database's operators draw from a seed of their own, and restore the generator. Here both runs start from one seed.
database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


@dataclass
class Call:
    """One call: a function with its arguments, and what is compared."""

    form: str
    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiated: bool = False
    # Makes a result independent of what the operator leaves open (the sign of an eigenvector), for gradients.
    process: Callable[[Any], Any] = lambda result: result

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments, with their strides and what memory they share."""
        memory: dict[int, Any] = {}
        done: dict[int, Any] = {}

        def copied(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) not in done:
                plain = x.detach()
                new = copy.deepcopy(plain, memory) if x.layout is torch.strided else plain.clone()
                done[id(x)] = new.requires_grad_(x.requires_grad)
            return done[id(x)]

        args, kwargs = tree_map(copied, (self.args, self.kwargs))
        return args, kwargs

    def widened(self) -> Call:
        """Return the call in double precision."""

        def wide(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
                return x
            return widened(x.detach()).requires_grad_(x.requires_grad)

        args, kwargs = tree_map(wide, (self.args, self.kwargs))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def __str__(self) -> str:
        given = [describe(x) for x in self.args] + [f"{k}={describe(x)}" for k, x in self.kwargs.items()]
        return f"{self.form} {self.number}: ({', '.join(given)})"


def operators() -> dict[str, Any]:
    """Return the operators of the database by name."""
    return {name_of(op): op for op in database.op_db}


def name_of(op: Any) -> str:
    """Return an operator's name, with that of its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def calls_of(op: Any, dtype: torch.dtype, form: str) -> Iterator[Call]:
    """Yield the calls of an operator in a dtype, of one of the `FORMS`."""
    for number, (function, sample, differentiated) in enumerate(_SOURCES[form](op, dtype)):
        args = (sample.input, *sample.args)
        yield Call(form, number, function, args, sample.kwargs, differentiated, sample.output_process_fn_grad)


Source = Iterator[tuple[Callable[..., Any], Any, bool]]


def _function(op: Any, dtype: torch.dtype) -> Source:
    for sample in op.reference_inputs("cpu", dtype):
        yield op.op, sample, False


def _gradients(op: Any, dtype: torch.dtype) -> Source:
    if _is_differentiable(op, dtype):
        for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
            yield op.op, sample, True


def _noncontiguous(op: Any, dtype: torch.dtype) -> Source:
    differentiable = _is_differentiable(op, dtype)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=differentiable):
        if all(x.layout is torch.strided for x in tree_leaves(sample.input) if isinstance(x, torch.Tensor)):
            yield op.op, sample.noncontiguous(), differentiable


def _method(op: Any, dtype: torch.dtype) -> Source:
    if (method := op.get_method()) is not None:
        for sample in op.sample_inputs("cpu", dtype):
            if isinstance(sample.input, torch.Tensor):
                yield method, sample, False


def _in_place(op: Any, dtype: torch.dtype) -> Source:
    if (inplace := op.get_inplace()) is not None:
        for sample in op.sample_inputs("cpu", dtype):
            yield inplace, sample, False


def _in_place_gradients(op: Any, dtype: torch.dtype) -> Source:
    inplace = op.get_inplace()
    if inplace is None or not op.supports_inplace_autograd or not _is_differentiable(op, dtype):
        return

    def on_copy(input: Any, *args: Any, **kwargs: Any) -> Any:  # a leaf may not be written to
        return inplace(tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, input), *args, **kwargs)

    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        if not sample.broadcasts_input:
            yield on_copy, sample, True


def _error(op: Any, dtype: torch.dtype) -> Source:
    if op.error_inputs_func is not None and dtype is torch.float32:  # they choose their dtypes themselves
        for error in op.error_inputs("cpu"):
            yield op.op, error.sample_input, False


def _is_differentiable(op: Any, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


_SOURCES: dict[str, Callable[[Any, torch.dtype], Source]] = dict(
    zip(FORMS, (_function, _gradients, _noncontiguous, _method, _in_place, _in_place_gradients, _error))
)
