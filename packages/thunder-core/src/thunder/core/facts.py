# SPDX-License-Identifier: Apache-2.0
"""Facts of an operation: what passes and executors may rely on besides what it computes.

They are declared with the operation, as keywords of what declares one (`@prim`, `@torchsymbol`, `make_prim`), and read
from its symbol: `op.sym.facts.commutative`. What is not declared follows from the operation's tags, or is unknown. A
pass that asks for a fact also works for operations that are declared after it was written.
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
#: Where results are laid out contiguously whatever the strides of the inputs are.
Layout = Literal["unknown", "contiguous on gpu", "contiguous"]
#: What it takes to compute it again: one pass of light arithmetic, little more than reading and writing, or time.
Cost = Literal["light", "cheap", "expensive", "as its parts"]


@dataclass(frozen=True)
class Facts:
    """What is known of an operation. Without a declaration nothing may be assumed that makes a program faster."""

    #: By device type ("cpu", "cuda"), as torch's documentation lists it.
    autocast: Mapping[str, AutocastPolicy] = field(default_factory=dict)
    view: View = "never"
    #: Whether it gives its first input itself, the same tensor, where there is nothing to do.
    returns_input: bool = False
    #: Whether the result has the elements of the first input in the same (row-major) order, in another shape.
    keeps_order: bool = False
    #: Whether the result is the first input in another dtype.
    casts: bool = False
    #: Whether its first two arguments may change places.
    commutative: bool = False
    layout: Layout = "unknown"
    cost: Cost = "as its parts"


class FactOptions(TypedDict, total=False):
    """Keywords of what declares operations: see `Facts`. An autocast policy by itself is for all devices."""

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
    """Return the facts that `options` declare; `view` and `cost` are those that follow from the operation's tags."""
    known = _undeclared(view, cost)
    return with_facts(known, options) if options else known


def with_facts(known: Facts, options: FactOptions) -> Facts:
    """Return `known` with what `options` declare."""
    given: dict[str, Any] = {**options}
    policy = given.get("autocast")
    if isinstance(policy, str):
        given["autocast"] = {"cpu": policy, "cuda": policy}
    return replace(known, **given)
