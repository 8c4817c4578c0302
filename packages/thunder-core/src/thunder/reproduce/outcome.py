# SPDX-License-Identifier: Apache-2.0
"""The outcome of a run (results, gradients and inputs after the call, or an error), and comparisons of outcomes."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thunder.core.pytree import tree_leaves
from thunder.execution.verify_results import difference_of_values

__all__ = ["Outcome", "call_outcome", "cloned", "difference", "outcome_of", "seeded"]


class Outcome:
    """The tensors and numbers that a run returned or wrote, by description, or the error that it raised.

    `result` is what the run returned.
    """

    def __init__(self, values: dict[str, Any], error: Exception | None = None, result: Any = None):
        self.values = values
        self.result = result
        self.error = error


def cloned(x: Any) -> Any:
    """Return a copy of an argument. A copy of a tensor is a leaf that requires grad if the tensor does."""
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        return x.detach().clone().requires_grad_(x.requires_grad)
    if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
        return type(x)(map(cloned, x))
    if type(x) is dict:
        return {key: cloned(value) for key, value in x.items()}
    try:
        return copy.deepcopy(x)
    except Exception:  # e.g. an open file: all runs share it
        return x


def outcome_of(run: Callable[[], Any], leaves: Sequence[Any]) -> Outcome:
    """Run a program, compute gradients of its results for `leaves`, and return both.

    `leaves` are the tensors that the program receives. Random numbers are the same in all runs.
    """
    values: dict[str, Any] = {}
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    with seeded():
        try:
            result = run()
            results = [x for x in tree_leaves(result) if isinstance(x, (torch.Tensor, int, float, bool, complex))]
            for i, x in enumerate(results):
                values[f"result {i}"] = x.detach().clone() if isinstance(x, torch.Tensor) else x
            ends = [x for x in results if isinstance(x, torch.Tensor) and x.grad_fn is not None]
            starts = [x for x in tensors if x.is_leaf and x.requires_grad]
            if ends and starts:
                torch.manual_seed(1)
                grads = torch.autograd.grad(ends, starts, [torch.randn_like(x) for x in ends], allow_unused=True)
                position = {id(x): i for i, x in enumerate(tensors)}
                values.update({f"the gradient of input {position[id(x)]}": g for x, g in zip(starts, grads)})
            values.update({f"input {i}, after the call,": x.detach() for i, x in enumerate(tensors)})
        except Exception as error:
            return Outcome({}, error)
    return Outcome(values, result=result)


def call_outcome(fn: Any, prepare: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """Run a call on copies of the function, if it is a module, and of the arguments. `prepare` may jit the function."""
    fn = cloned(fn) if isinstance(fn, torch.nn.Module) else fn
    args, kwargs = cloned(args), cloned(kwargs)
    leaves = [*tree_leaves((args, kwargs)), *(fn.parameters() if isinstance(fn, torch.nn.Module) else ())]
    run = prepare(fn)
    return outcome_of(lambda: run(*args, **kwargs), leaves)


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Return a context in which random states of torch, Python and NumPy are seeded. They are restored at its end."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), _fork_other_rngs():
        torch.manual_seed(0)
        yield


@contextlib.contextmanager
def _fork_other_rngs() -> Iterator[None]:
    """Return a context in which Python's and NumPy's random states are seeded. They are put back afterwards."""
    numpy: Any = sys.modules.get("numpy.random")
    before, before_of_numpy = random.getstate(), None if numpy is None else numpy.get_state()
    try:
        random.seed(0)
        if numpy is not None:
            numpy.seed(0)
        yield
    finally:
        random.setstate(before)
        if numpy is not None:
            numpy.set_state(before_of_numpy)


def difference(found: Outcome, expected: Outcome, tolerance: float | None) -> str | None:
    """Return how an outcome differs from that of eager mode, or None."""
    if found.error is not None:
        if expected.error is not None and type(found.error) is type(expected.error):
            return None
        return f"it raises {type(found.error).__name__}: {str(found.error).splitlines()[0] if str(found.error) else ''}"
    if expected.error is not None:
        return f"it does not raise eager mode's {type(expected.error).__name__}: {expected.error}"
    if found.values.keys() != expected.values.keys():
        return f"it returns {', '.join(found.values)} instead of {', '.join(expected.values)}"
    for name, value in expected.values.items():
        problem = _difference_of(found.values[name], value, tolerance)
        if problem is not None:
            return f"{name} differs from eager mode: {problem}"
    return None


def _difference_of(found: Any, expected: Any, tolerance: float | None) -> str | None:
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        if type(found) is not type(expected):
            return f"{found!r:.80} instead of {expected!r:.80}"
        same = found == expected or (found != found and expected != expected)  # NaN
        return None if same or _is_close(found, expected, tolerance) else f"{found} instead of {expected}"
    if found.shape != expected.shape or found.dtype is not expected.dtype or found.device != expected.device:
        return f"{_metadata(found)} instead of {_metadata(expected)}"
    return difference_of_values(found, expected, tolerance)


def _is_close(found: Any, expected: Any, tolerance: float | None) -> bool:
    allowed = 1e-4 if tolerance is None else tolerance
    return isinstance(found, (float, complex)) and abs(found - expected) <= allowed * abs(expected)


def _metadata(x: torch.Tensor) -> str:
    return f"a {x.device} {str(x.dtype).removeprefix('torch.')} tensor of shape {tuple(x.shape)}"
