# SPDX-License-Identifier: Apache-2.0
"""How a node's outputs become the user's result, and a program's output becomes the node's outputs.

Both are described by data, from which functions are made, so that a saved program can contain the description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

__all__ = ["FlatItem", "Slot", "builder", "flattener"]


class Slot(NamedTuple):
    """The place of a value in a result: an output of the node ("t") or an input of the program ("x"), by its index."""

    kind: str
    index: int


class FlatItem(NamedTuple):
    """An output of a node: the keys of its path in the program's output, and whether it is detached from its base."""

    path: tuple[Any, ...]
    own: bool


def builder(template: Any, single: bool) -> Callable[[Any, Any], Any]:
    """Return the function `(outputs, inputs) -> result`. `template` is the result with slots instead of tensors.

    A `single` output is not in a tuple.
    """
    constants: list[Any] = []
    text = _expression(template, single, constants)
    return eval(f"lambda t, x: {text}", {"c": constants})  # type: ignore[no-any-return]


def _expression(template: Any, single: bool, constants: list[Any]) -> str:
    """Return the Python expression that builds a result."""
    if isinstance(template, Slot):
        return f"x[{template.index:d}]" if template.kind == "x" else "t" if single else f"t[{template.index:d}]"
    if isinstance(template, (tuple, list)):
        items = "".join(f"{_expression(x, single, constants)}, " for x in template)
        return f"({items})" if isinstance(template, tuple) else f"[{items}]"
    if isinstance(template, dict):
        items = ", ".join(f"{key!r}: {_expression(x, single, constants)}" for key, x in template.items())
        return f"{{{items}}}"
    constants.append(template)
    return f"c[{len(constants) - 1}]"


def flattener(items: Sequence[FlatItem], hidden: Sequence[int], single: bool) -> Callable[[Any, Any], Any]:
    """Return the function `(output, saved) -> outputs` of a node. A single output is not in a tuple.

    The outputs are the `items` of the program's output, and then the saved values at the indices `hidden`. Items that
    are unshared views are detached from their base, so that user code may write to them.
    """
    texts = ["o" + "".join(f"[{key!r}]" for key in path) + (".data" if own else "") for path, own in items]
    texts += [f"s[{i:d}]" for i in hidden] if len(hidden) < 2 else ["*hidden(s)"]
    text = texts[0] if single else f"({''.join(f'{item}, ' for item in texts)})"
    return eval(f"lambda o, s: {text}", {"hidden": itemgetter(*hidden or (0,))})  # type: ignore[no-any-return]
