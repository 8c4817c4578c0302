# SPDX-License-Identifier: Apache-2.0
"""The calls of an operator of the database: its samples, for each form of the operator."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal import common_utils

from thunder.core.pytree import tree_leaves, tree_map
from thunder.tests.comparison import describe, widened

__all__ = ["DTYPES", "FORMS", "Batch", "Call", "batch", "calls_of", "name_of", "operators"]

DTYPES = {str(d).removeprefix("torch."): d for d in
          (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64)}  # fmt: skip

#: The forms of an operator: the function on reference inputs, its gradients, inputs that are not contiguous, the
#: method, the in-place method, its gradients, the function and its gradients under autocast, and invalid calls.
FORMS = ("function", "gradients", "noncontiguous", "method", "in-place", "in-place gradients", "autocast", "error")

# Importing the database forbids to set flags such as `torch.backends.cudnn.allow_tf32` in the whole process.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

# The database's operators draw from a seed of their own, and restore the generator. Here both runs start from one seed.
database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def _seed(seed: int | None = None) -> None:
    seed = common_utils.SEED if seed is None else seed
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


# Before each sample, torch seeds every type of device. That takes longer than making the sample, which needs the CPU's.
common_utils.set_rng_seed = _seed


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
        memory: dict[int, torch.UntypedStorage] = {}
        done: dict[int, torch.Tensor] = {}

        def copied(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) not in done:
                done[id(x)] = _copied(x.detach(), memory).requires_grad_(x.requires_grad)
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


class Batch(Call):
    """Several calls of a function as one call, so that one program contains them all."""

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments. No memory is shared between calls."""
        alone = [Call("", 0, self.function, *given).arguments() for given in self.args[0]]
        return (alone,), {}


def batch(calls: Sequence[Call]) -> Batch:
    """Return one call for calls of one function."""
    first = calls[0]
    function, processes = first.function, [call.process for call in calls]

    def together(given: list[Any]) -> list[Any]:
        return [function(*args, **kwargs) for args, kwargs in given]

    def process(results: list[Any]) -> list[Any]:
        return [process(result) for process, result in zip(processes, results)]

    given = [(call.args, call.kwargs) for call in calls]
    return Batch(first.form, first.number, together, (given,), {}, first.differentiated, process)


def _copied(x: torch.Tensor, memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return a tensor whose memory is a copy of the memory of `x`; `memory` has the copies, by address."""
    if x.layout is not torch.strided or x.is_quantized:
        return x.clone()
    if x.is_conj():
        return _copied(x.conj(), memory).conj()
    if x.is_neg():
        return _copied(x._neg_view(), memory)._neg_view()
    storage = x.untyped_storage()
    if (address := storage.data_ptr()) not in memory or not address:
        memory[address] = storage.clone()
    made = torch.empty(0, dtype=x.dtype, device=x.device)
    return made.set_(memory[address], x.storage_offset(), x.shape, x.stride())


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


def _autocast(op: Any, dtype: torch.dtype) -> Source:
    if dtype not in (torch.float32, torch.bfloat16):
        return

    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu"):
            return op.op(*args, **kwargs)

    differentiable = _is_differentiable(op, dtype)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=differentiable):
        yield under_autocast, sample, differentiable


def _error(op: Any, dtype: torch.dtype) -> Source:
    if op.error_inputs_func is not None and dtype is torch.float32:  # they choose their dtypes themselves
        for error in op.error_inputs("cpu"):
            yield op.op, error.sample_input, False


def _is_differentiable(op: Any, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


_SOURCES: dict[str, Callable[[Any, torch.dtype], Source]] = dict(
    zip(FORMS, (_function, _gradients, _noncontiguous, _method, _in_place, _in_place_gradients, _autocast, _error))
)
