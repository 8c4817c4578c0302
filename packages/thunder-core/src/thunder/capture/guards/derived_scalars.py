# SPDX-License-Identifier: Apache-2.0
"""Derived scalars: numbers that a program computes only from integer and boolean inputs.

E.g. a mask input determines whether any row is masked, and a table of picture sizes determines the number of patches.
If a program needs such a number while it is traced (for a branch or the length of a loop), the program is traced a
second time. In the second trace, each needed number is computed from this call's inputs, and then treated as a symbolic
number with a hint, like the size of an input (`core/symint/symbols.py`). Assumptions about the number (e.g. that it is
not 0) become guards. The prologue computes the number from the new inputs and checks these guards before the program
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from thunder.capture.guards.evaluation import Evaluation, Program, is_pure
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.proxies import NumberProxy
from thunder.core.symbol import BoundSymbol
from thunder.runtime.guards import GuardFailed

if TYPE_CHECKING:
    from thunder.capture.tensors.tracer import Tracer

__all__ = ["DerivedScalars"]


class DerivedScalars:
    """The derived scalars of one trace."""

    def __init__(self, tracer: Tracer, evaluation: Evaluation):
        self._tracer = tracer
        self._evaluation = evaluation
        self._ways: dict[str, list[BoundSymbol]] = {}  # the operations that compute each number, by its name

    def __contains__(self, name: str) -> bool:
        return name in self._ways

    def derives(self, name: str) -> bool:
        """Check whether a value of the program is computed only from integer and boolean inputs."""
        return not self._tracer.parts and self._leading_to(name) is not None

    def resolve(self, number: Any) -> None:
        """Compute an unbacked number's value for this call if it derives from inputs."""
        leaf: NumberProxy = number.proxy
        if number.hint is not None or leaf.python_type is complex or self._tracer.parts:
            return
        way = self._leading_to(leaf.name)
        if way is None:
            return
        self._evaluation.run(way)
        self._ways[leaf.name] = way
        number.hint = leaf.value = leaf.python_type(self._evaluation.value(leaf.name))
        for atom in number.symbols.atoms:
            if atom.proxy is leaf:
                atom.hint = number.hint

    def program(self, leaves: Sequence[NumberProxy]) -> Program:
        """Return the program that computes resolved numbers from the inputs."""
        operations: dict[int, BoundSymbol] = {}
        made: set[str] = set()
        for leaf in leaves:
            for op in self._ways[leaf.name]:
                if not made.issuperset(op.out_names):
                    operations[id(op)] = op
                    made.update(op.out_names)
        args, run = self._evaluation.program([*operations.values()], leaves)

        def derived(*inputs: torch.Tensor) -> Any:
            try:
                return run(*inputs)
            except Exception as error:  # new values can make it fail; that is a cache miss, not an error
                raise GuardFailed(f"a scalar derived from inputs cannot be computed in this call ({error})") from error

        return Program(args, derived)

    def _leading_to(self, wanted: str) -> list[BoundSymbol] | None:
        """Return the operations that compute `wanted`, or None if they need more than integer and boolean inputs."""
        return self._evaluation.leading_to([wanted], is_pure, lambda p: not is_inexact_dtype(p.dtype))
