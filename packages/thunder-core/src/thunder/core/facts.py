# SPDX-License-Identifier: Apache-2.0
"""Facts of an operation: properties that passes and executors may rely on, e.g. that addition is commutative.

Facts are declared with the operation, as keywords of `@prim`, `@torchsymbol` and `make_prim`. Passes read them from the
operation's symbol: `op.sym.facts.commutative`. Facts that are not declared follow from the operation's tags, or are
unknown. A pass that uses facts instead of lists of names also works for operations that are added later.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

__all__ = ["AutocastPolicy", "Cost", "FactOptions", "Facts", "Layout", "View", "facts_of", "with_facts"]

#: The dtype to which autocast casts floating point inputs: autocast's low-precision dtype ("lower"), float32, or the
#: widest dtype of the inputs.
AutocastPolicy = Literal["lower", "float32", "widest"]
#: How often the result shares the memory of the first input.
View = Literal["never", "maybe", "always"]
#: The devices on which the results are contiguous for all strides of the inputs. "as input": the results are dense, and
#: their dimensions have the order of the first input's strides.
Layout = Literal["unknown", "as input", "contiguous on gpu", "contiguous"]
#: The cost of recomputing the operation: "light" arithmetic, "cheap" (mostly memory traffic), "expensive", or the cost
#: of its decomposition ("as its parts").
Cost = Literal["light", "cheap", "expensive", "as its parts"]


@dataclass(frozen=True)
class Facts:
    """The properties of an operation. The defaults are conservative: they allow no optimization."""

    #: Autocast's policy for each device type ("cpu", "cuda"), as in torch's documentation.
    autocast: Mapping[str, AutocastPolicy] = field(default_factory=dict)
    view: View = "never"
    #: True if the operation returns its first input (the same object) when there is nothing to do, e.g. `x.float()`.
    returns_input: bool = False
    #: True if the result has the elements of the first input in the same (row-major) order, in another shape.
    keeps_order: bool = False
    #: True if the result is the first input in another dtype.
    casts: bool = False
    #: True if the first two arguments may be swapped.
    commutative: bool = False
    layout: Layout = "unknown"
    cost: Cost = "as its parts"


class FactOptions(TypedDict, total=False):
    """The keywords that declare facts (see `Facts`). A single autocast policy applies to all devices."""

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
    """Return the facts that `options` declare; `view` and `cost` are defaults that follow from the operation's tags."""
    known = _undeclared(view, cost)
    return with_facts(known, options) if options else known


def with_facts(known: Facts, options: FactOptions) -> Facts:
    """Return `known` updated with the facts that `options` declare."""
    given: dict[str, Any] = {**options}
    policy = given.get("autocast")
    if isinstance(policy, str):
        given["autocast"] = {"cpu": policy, "cuda": policy}
    return replace(known, **given)
