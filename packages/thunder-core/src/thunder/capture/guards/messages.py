# SPDX-License-Identifier: Apache-2.0
"""What guards say when they refuse a call: what was read, what it was, and what it is now.

The first two are known when a prologue is written; the third is looked up by the line that refuses.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from thunder.capture.base.sources import Place
    from thunder.capture.reads.values import Check

__all__ = ["Message", "message_of", "said", "shown"]


class Message(NamedTuple):
    """Texts, and the expressions of what follows each: `{0}` is what the guard looks at, `{1}` what it was."""

    text: str
    found: str = ""
    text_after: str = ""
    found_after: str = ""
    end: str = ""

    def written(self, names: Sequence[str]) -> str:
        """The arguments of the exception, as Python."""
        parts = [repr(part) if i % 2 == 0 else part.format(*names) for i, part in enumerate(self) if part]
        return ", ".join(parts)


def said(parts: Sequence[Any]) -> str:
    """The sentence that texts and values make, in turn."""
    return " ".join([str(part) if i % 2 == 0 else shown(part) for i, part in enumerate(parts)])


def shown(x: Any) -> str:
    """A value in a message. No code of the user's runs for it."""
    if isinstance(x, type):
        return f"the class {x.__qualname__}"
    if isinstance(x, types.FunctionType):
        return f"the function {x.__qualname__} ({_line(x.__code__)})"
    if isinstance(x, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return f"the function {x.__name__}"
    if isinstance(x, types.CodeType):
        return f"the code at {_line(x)}"
    if isinstance(x, types.ModuleType):
        return f"the module {x.__name__}"
    if _is_simple(x):
        text = repr(x)
        return text if len(text) <= 120 else f"{text[:117]}..."
    return f"a {type(x).__qualname__}"


def _line(code: types.CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"


_SIMPLE = (bool, int, float, complex, str, bytes, slice, range, type(None), torch.dtype, torch.device, torch.layout,
           torch.memory_format, torch.Size)  # fmt: skip


def _is_simple(x: Any, depth: int = 3) -> bool:
    if type(x) in (list, tuple, set, frozenset):
        return len(x) <= 100 and depth > 0 and all(_is_simple(i, depth - 1) for i in x)
    if type(x) is dict:
        return _is_simple([*x.keys(), *x.values()], depth)
    return type(x) in _SIMPLE


def message_of(check: Check) -> Message:
    """What a guard says."""
    kind, place, value = check
    name = _name(place)
    if kind == "value":
        return Message(f"{name} was {shown(value)} and is", "{0}")
    if kind == "type":
        return Message(f"{name} was of {shown(value)} and is of", "type({0})")
    if kind in ("empty", "length"):
        return Message(f"{name} had {value or 0} items; their number is", "len({0})")
    if kind == "contents":
        return Message(f"the contents of {name} were {shown(value)} and are", "{0}")
    if kind == "keys":
        return Message(f"the keys of {name} were {shown(value)} and are", "tuple({0})")
    if kind == "same":
        return Message(f"{name} was the same object as {_name(value)} and is another:", "{0}")
    if kind == "absent":
        owner = place.parent if place.step == "{}.__dict__" and place.parent and not place.title else place
        return Message(f"{_name(owner)} had no {value} and has one now")
    if kind == "no_attribute":
        return Message(f"{name} had no attribute {value} and has one now")
    if kind == "attributes":
        return Message(f"the class {name} has other attributes than it had")
    if kind == "disjoint":
        owner = place.parent or place
        return Message(
            f"{_name(owner)} had none of {', '.join(sorted(value))}; now it has", "sorted({1}.intersection({0}))"
        )
    if isinstance(value, (bool, type(None))):
        return Message(f"{name} was {value} and is", "{0}")
    return Message(f"{name} was", "{1}()" if kind == "weak" else "{1}", "and is another:", "{0}")


def _name(place: Place) -> str:
    """What a message calls a place: the callable itself has no name but its own."""
    root = place.root
    if place.parent is None and isinstance(root, types.ModuleType):
        return f"the module {root.__name__}"
    if place.title and place.step in ("{}.__dict__", "{}.__globals__"):
        return f"the module {place.title}"
    return str(place) or f"a {type(root).__name__}"
