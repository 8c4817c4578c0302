# SPDX-License-Identifier: Apache-2.0
"""Where values are among the inputs, the outputs and the saved values of a program's node: plain data."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

__all__ = ["NodeLayout"]


class NodeLayout(NamedTuple):
    """The positions of values among the inputs, the outputs and the saved values of a node.

    The outputs start with the tensors of the user's output, each once. Their number is `count`, and gradients can
    arrive for `returned` of them. Then follow saved values that gradients flow through, which user code never sees.
    """

    single: bool  # whether the node returns one output that is not in a tuple
    plain: bool  # whether the node's output is the output for the user
    built: str  # the user's output: an expression of the outputs `t`, the inputs `x` and the constants `c`
    constants: list[Any]  # the objects in the user's output that are no values of the program
    flat: str  # the outputs: an expression of the program's output `o` and the saved values `s`
    flat_natively: str  # the same for a program of torch's own operations, whose results are not detached
    hidden: list[int]  # the saved values that are outputs; `hidden(s)` in `flat` if they are several
    count: int  # type: ignore[assignment]  # and no method of tuples
    returned: int
    tensors: list[int]  # the saved values that are tensors
    numbers: list[int]  # the saved values that are numbers, such as symbolic sizes
    saved_outputs: list[tuple[int, int]]  # saved values that are outputs: autograd must save the same tensor object
    arriving: list[int]  # the outputs whose gradients a backward program takes
    non_differentiable: list[int]  # the outputs that have no gradient
    gradient_of: list[int | None]  # for each input, the position of its gradient
    wanted: list[int]  # for each gradient, the position of its input
    edges: list[int]  # like `wanted`, but positions count only inputs that are tensors
    guarded: bool  # whether guards ensure that each of `wanted` requires grad
    prunes: bool  # whether to find out which gradients autograd wants
    result_dependencies: list[int]  # for each gradient, the results that depend on its input, as bits; empty if all
    observed: bool  # whether hooks in C++, of DistributedDataParallel, observe gradients of None
    stages: list[list[int]] | None  # of a staged backward: the gradients that each stage computes
    device: Any  # of the first of `wanted`
    retains: bool  # whether a pass with some of the gradients retains saved tensors for later passes

    def builder(self) -> Callable[[Any, Any], Any]:
        """Return the function `(outputs, inputs) -> the user's output`."""
        return eval(f"lambda t, x: {self.built}", {"c": self.constants})  # type: ignore[no-any-return]

    def flattener(self, *, natively: bool = False) -> Callable[[Any, Any], Any]:
        """Return the function `(the program's output, saved values) -> outputs`."""
        text = self.flat_natively if natively else self.flat
        return eval(f"lambda o, s: {text}", {"hidden": itemgetter(*self.hidden or (0,))})  # type: ignore[no-any-return]
