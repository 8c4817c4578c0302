# SPDX-License-Identifier: Apache-2.0
"""Facts of an operation: properties that passes and executors may rely on, besides what it computes.

They are declared with the operation, as keywords of `@prim`, `@torchsymbol` and `make_prim`, and read from its symbol:
`op.sym.facts.commutative`. What is not declared follows from the operation's tags, or is unknown. A pass that uses
facts instead of lists of names also works for operations that are added later.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

__all__ = ["AutocastPolicy", "Cost", "FactOptions", "Facts", "Layout", "View", "facts_of", "with_facts"]

#: What autocast casts an operation's floating point inputs to: its own dtype, float32, or the widest among them.
AutocastPolicy = Literal["lower", "float32", "widest"]
#: Whether the result shares the memory of the first input.
View = Literal["never", "maybe", "always"]
#: On which devices the results are contiguous whatever the strides of the inputs are.
Layout = Literal["unknown", "contiguous on gpu", "contiguous"]
#: The cost of recomputing it: light arithmetic, not much more than memory traffic, expensive, or its decomposition's.
Cost = Literal["light", "cheap", "expensive", "as its parts"]


@dataclass(frozen=True)
class Facts:
    """The properties of an operation. The defaults are conservative: they allow no optimization."""

    #: By device type ("cpu", "cuda"), as torch's documentation lists it.
    autocast: Mapping[str, AutocastPolicy] = field(default_factory=dict)
    view: View = "never"
    #: Whether it returns its first input, the same object, if there is nothing to do.
    returns_input: bool = False
    #: Whether the result has the elements of the first input in the same (row-major) order, in another shape.
    keeps_order: bool = False
    #: Whether the result is the first input in another dtype.
    casts: bool = False
    #: Whether its first two arguments may be swapped.
    commutative: bool = False
    layout: Layout = "unknown"
    cost: Cost = "as its parts"


class FactOptions(TypedDict, total=False):
    """The keywords with which facts are declared: see `Facts`. A single autocast policy applies to all devices."""

    autocast: AutocastPolicy | Mapping[str, AutocastPolicy]
    view: View
    returns_input: bool
    keeps_order: bool
    casts: bool
    commutative: bool
    layout: Layout
    cost: Cost


@functools.cache
def _undeclared(view: View, cost: Cost) -> Facts:
    return Facts(view=view, cost=cost)


def facts_of(view: View, cost: Cost, options: FactOptions) -> Facts:
    """Return the facts that `options` declare; `view` and `cost` are the defaults by the operation's tags."""
    known = _undeclared(view, cost)
    return with_facts(known, options) if options else known


def with_facts(known: Facts, options: FactOptions) -> Facts:
    """Return `known` updated with the facts that `options` declare."""
    given: dict[str, Any] = {**options}
    policy = given.get("autocast")
    if isinstance(policy, str):
        given["autocast"] = {"cpu": policy, "cuda": policy}
    return replace(known, **given)
