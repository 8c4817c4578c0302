# SPDX-License-Identifier: Apache-2.0
"""Traversal of arguments and outputs: proxies are nested in tuples, lists, dicts, slices and symbolic numbers."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_not
from typing import Any

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symint.numbers import SymbolicNumber

__all__ = ["ATOMS", "argument_key", "map_proxies", "proxies_in", "renamed"]

# Types of arguments that contain no proxy.
ATOMS = frozenset({int, float, bool, str, type(None), complex, bytes, type(...)})


def proxies_in(x: Any, found: list[Proxy] | None = None) -> list[Proxy]:
    """Return the proxies in an argument or output, in order."""
    if found is None:
        found = []
    kind = type(x)
    if kind is tuple or kind is list:
        for item in x:
            if isinstance(item, Proxy):
                found.append(item)
            elif type(item) not in ATOMS:
                proxies_in(item, found)
    elif isinstance(x, Proxy):
        found.append(x)
    elif kind in ATOMS:
        return found
    elif isinstance(x, (tuple, list)):
        for item in x:
            proxies_in(item, found)
    elif isinstance(x, dict):
        for item in x.values():
            proxies_in(item, found)
    elif kind is slice:
        proxies_in((x.start, x.stop, x.step), found)
    elif isinstance(x, SymbolicNumber):
        found.extend(x.leaves)
    return found


def map_proxies(x: Any, fn: Callable[[Proxy], Any]) -> Any:
    """Apply `fn` to each proxy in an argument or output; return objects that contain no proxy unchanged."""
    kind = type(x)
    if kind is TensorProxy or isinstance(x, Proxy):
        return fn(x)
    if kind in ATOMS:
        return x
    if kind is tuple:
        new = tuple([map_proxies(item, fn) for item in x])
        return new if any(map(is_not, new, x)) else x
    if kind is list:
        return [map_proxies(item, fn) for item in x]
    if kind is dict:
        return {key: map_proxies(item, fn) for key, item in x.items()}
    if kind is slice:
        return slice(map_proxies(x.start, fn), map_proxies(x.stop, fn), map_proxies(x.step, fn))
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return kind(*[map_proxies(item, fn) for item in x])
    if isinstance(x, tuple) and type(x) is not tuple:
        return kind([map_proxies(item, fn) for item in x]) if proxies_in(x) else x
    if isinstance(x, SymbolicNumber):
        leaves = {p.name: fn(p) for p in x.leaves}
        return x if all(leaves[p.name] is p for p in x.leaves) else x.substitute(lambda p: leaves[p.name])
    return x


def argument_key(x: Any) -> Any:
    """Return a key that is equal for equal arguments only.

    The key of a proxy differs from the key of a string that equals the proxy's name.
    """
    kind = type(x)
    if kind is TensorProxy:
        return x.name
    if kind is float or kind is complex:
        return kind, repr(x)  # 0.0 and -0.0 differ, nan equals itself
    if kind in ATOMS:
        return kind, x
    if isinstance(x, (tuple, list)):
        return (kind, *[argument_key(i) for i in x])
    if isinstance(x, Proxy):
        return x.name
    if isinstance(x, dict):
        return (dict, *[(k, argument_key(v)) for k, v in x.items()])
    if isinstance(x, slice):
        return (slice, argument_key(x.start), argument_key(x.stop), argument_key(x.step))
    if isinstance(x, SymbolicNumber):
        return (kind, x.text())
    if isinstance(x, (float, complex)):
        return kind, repr(x)
    return kind, x


def renamed(p: Proxy, mapping: dict[str, Any], fresh: dict[str, str] | None) -> Any:
    """Return the replacement of `p` in `mapping`; otherwise rename `p` by `fresh` and add the result to `mapping`."""
    new = mapping.get(p.name)
    if new is None:
        if fresh is None or p.name not in fresh:
            return p
        mapping[p.name] = new = p.replace_name(fresh[p.name])
    return new
