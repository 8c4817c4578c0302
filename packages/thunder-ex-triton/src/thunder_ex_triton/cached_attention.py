# SPDX-License-Identifier: Apache-2.0
"""Attention of one position to static caches, together with what comes before: the rotation of the query and the key,
and the writes of the new key and value to the caches.

Each of these takes a kernel of its own that moves a few kilobytes, so its time is that of a launch. The kernel of
`decode_attention` does all of it: the program whose part of the keys contains the new position rotates the key, writes
it to the cache, and uses it from registers.

The pass runs before executors claim operations. It finds attention whose keys and values are caches that were updated
at one position (`cache.index_copy_(2, at, key)`, `cache[:, :, at] = key`), and that nothing else reads but the copies
to the caches themselves. Heads of caches that the program repeats for groups of queries are read as they are. The
caches are updated in place where the program allows that (`FusionMemory`), and are copied otherwise. The option
`triton_cached_attention=False` turns this off.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import (
    BoundSymbol,
    OpTags,
    Strides,
    Symbol,
    TensorProxy,
    Trace,
    are_named,
    dense_strides,
    dtypes,
    rewrite,
)
from thunder_ex_triton import decode_attention
from thunder_ex_triton.decode_attention import NewEntry, attend
from thunder_ex_triton.fusion.layout import contiguous

__all__ = [
    "OPTION",
    "is_cached_attention",
    "like",
    "register",
    "run",
    "strides_of_caches",
    "update_in_place",
    "written_caches",
]

OPTION = "triton_cached_attention"
_ATTENTION = "torch.scaled_dot_product_attention"
_KEYS, _VALUES, _WRITES = 3, 4, -1  # the positions of arguments
_REPEATING = (prims.broadcast_in_dim, prims.reshape)  # how programs repeat the heads of a cache


def like(
    query: Any, key: Any, value: Any, keys: Any, values: Any, position: Any, mask: Any, cos: Any, sin: Any,
    scale: float, writes: tuple[bool, bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Decompose into torch's operations: the attention, and the new caches."""
    if cos is not None:
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
    keys, values = (prims.index_put(c, (None, None, position), x) for c, x in ((keys, key), (values, value)))
    out = ltorch.scaled_dot_product_attention(query, keys, values, mask, scale=scale, enable_gqa=True)
    return out, keys, values


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + ltorch.cat((-x[..., half:], x[..., :half]), -1) * sin


def run(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
    position: torch.Tensor, mask: torch.Tensor | None, cos: torch.Tensor | None, sin: torch.Tensor | None,
    scale: float, writes: tuple[bool, bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Compute the attention. `writes` says which of the caches are updated in place; others are copied."""
    keys, values = (c if written else c.clone() for c, written in zip((keys, values), writes))
    entry = NewEntry(key, value, position, cos, sin)
    return attend(query, keys, values, mask, scale, entry), keys, values


def _workspace(query: Any, key: Any, value: Any, keys: Any, values: Any, position: Any, mask: Any, *rest: Any) -> int:
    return decode_attention.workspace(query, keys, values, mask, 1.0)


# -- memory -----------------------------------------------------------------------------------------------------------
def is_cached_attention(op: BoundSymbol) -> bool:
    """Check whether an operation is one of this file."""
    return op.sym.fn is run


def written_caches(op: BoundSymbol) -> list[str]:
    """Return the caches that are updated in place."""
    return [op.args[i].name for i, writes in zip((_KEYS, _VALUES), op.args[_WRITES]) if writes]


def strides_of_caches(op: BoundSymbol, known: Mapping[str, Strides]) -> Mapping[str, Strides]:
    """Return the strides of the new caches, as far as they are known: those of the caches, if they are contiguous."""
    found = {}
    for i, new in zip((_KEYS, _VALUES), op.output[1:]):
        strides = known.get(op.args[i].name)
        if strides is not None and strides == dense_strides(new.shape, contiguous(new.shape)):
            found[new.name] = strides
    return found


def update_in_place(op: BoundSymbol, targets: Mapping[str, tuple[TensorProxy, frozenset[str]]]) -> BoundSymbol | None:
    """Return the operation that updates caches in place; None if a target is not the cache itself."""
    writes = []
    for i, new in zip((_KEYS, _VALUES), op.output[1:]):
        target, whole = targets.get(new.name, (None, frozenset()))
        cache = op.args[i].name
        if target is not None and (cache not in whole or op.arg_names.count(cache) != 1):
            return None
        writes.append(target is not None)
    if not targets.keys() <= {p.name for p in op.output[1:]}:
        return None
    return op.replace(sym=_updating(op.sym), args=(*op.args[:_WRITES], tuple(writes)))


@functools.cache
def _updating(functional: Symbol) -> Symbol:
    def meta(*args: Any) -> Any:
        out, keys, values = functional(*args)
        caches = zip((keys, values), (args[_KEYS], args[_VALUES]), args[_WRITES])
        return out, *[prims.copy_(new, cache) if writes else new for new, cache, writes in caches]

    sym = Symbol(
        f"{functional.name}_", meta, id=f"{functional.id}_", tags=(*functional.tags, OpTags.IN_PLACE_OP),
        executor=functional.executor, fn=run,
    )  # fmt: skip
    sym.workspace, sym.capturable, sym.is_kernel = _workspace, True, functional.is_kernel
    return sym


# -- the pass ---------------------------------------------------------------------------------------------------------
class _Match(NamedTuple):
    """A call of the operator, and the names of the updated caches."""

    args: tuple[Any, ...]
    caches: tuple[str, str]


class _Update(NamedTuple):
    """An update of a cache at one position, and its result."""

    cache: TensorProxy
    position: TensorProxy
    entry: TensorProxy


def register(registry: Any, executor: str) -> None:
    """Register the operator, the option and the pass."""
    registry.register_option(
        OPTION, type=bool, default=True, help="whether attention to a static cache also rotates and writes the new key"
    )
    attention = registry.register_operator(
        "triton_cached_attention", executor=executor, like=like, fn=run, workspace=_workspace
    )

    def replace(trace: Trace, context: Any) -> Trace:
        if not context.options.get(OPTION, True):
            return trace
        calls = [op for op in trace.bound_symbols if op.sym.id == _ATTENTION]
        if not calls:
            return trace
        values = _Values(trace)
        named = are_named(context.executors)
        if named:  # in the order of the user's list; by default, the caches decide
            names = [ex.name for ex in context.executors]
            first = context.executors[: names.index(executor)]
            calls = [op for op in calls if not any(ex.takes(op, named=True) for ex in first)]
        matches = {op.output.name: found for op in calls if (found := values.match(op, named)) is not None}
        updated: dict[str, Any] = {}  # the caches that the new operations return

        def replacement(op: BoundSymbol) -> Any:
            if op.sym is prims.copy_ and op.args[0].name in updated:
                return prims.copy_(updated[op.args[0].name], *op.args[1:], **op.kwargs)
            match = matches.get(op.output.name) if op.sym.id == _ATTENTION else None
            if match is None:
                return None
            out, *caches = attention(*match.args)
            updated.update(zip(match.caches, caches))
            return out

        return rewrite(trace, "Attention to static caches", replacement, drops_dead_code=True) if matches else trace

    registry.register_transform(OPTION, replace, phase="before_execution", executor=executor)


class _Values:
    """The primitives that compute the values of a trace, and the operations that read them."""

    def __init__(self, trace: Trace):
        self.made_by: dict[str, BoundSymbol] = {}
        self.readers: dict[str, list[BoundSymbol]] = {}
        for op in trace.bound_symbols:
            self._add(op)
            for name in {*op.arg_names}:
                self.readers.setdefault(name, []).append(op)

    def _add(self, op: BoundSymbol) -> None:
        for part in op.subsymbols:
            self._add(part)
        if not op.subsymbols:
            self.made_by.update(dict.fromkeys(op.out_names, op))

    def made(self, x: Any, *syms: Symbol) -> BoundSymbol | None:
        """Return the primitive that computes a value if it is one of `syms`."""
        op = self.made_by.get(x.name) if isinstance(x, TensorProxy) else None
        return op if op is not None and op.sym in syms else None

    def match(self, op: BoundSymbol, named: bool) -> _Match | None:
        """Return the call that replaces attention and what comes before."""
        query, keys, values, mask, scale = _arguments(op)
        attended = {"attn_mask": mask, "scale": scale, **{k: v for k, v in op.kwargs.items() if k not in _NAMES}}
        attended.update(zip(("dropout_p", "is_causal"), op.args[4:]))
        if (repeated := self.repeated(keys)) is not None and query.shape[1] == keys.shape[1] == values.shape[1]:
            keys, values, attended["enable_gqa"] = repeated, self.repeated(values), True
        if values is None:
            return None
        of_keys, of_values = self.update(keys, op), self.update(values, op)
        if of_keys is None or of_values is None:
            return None
        (old_keys, position, key), (old_values, other, value) = of_keys, of_values
        if position.name != other.name or old_keys.name == old_values.name or query.ndim != 4 or query.shape[2] != 1:
            return None
        if decode_attention.takes(query, keys, values, **attended) is not True:
            return None
        if not named and decode_attention.is_profitable(query, keys, values) is not True:
            return None
        if any(p.dtype is not query.dtype for p in (key, value)):
            return None
        cos = sin = None
        of_query, of_key = self.rotation(query), self.rotation(key)
        if of_query is not None and of_key is not None and _names(of_query[1:]) == _names(of_key[1:]):
            query, cos, sin = of_query
            key = of_key[0]
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        args = (query, key, value, old_keys, old_values, position, mask, cos, sin, scale, (False, False))
        return _Match(args, (keys.name, values.name))

    def update(self, x: TensorProxy, reader: BoundSymbol) -> _Update | None:
        """Return the update of a cache at one position, if only `reader` and copies to inputs read its result."""
        op = self.made(x, prims.index_put)
        if op is None or not self.is_read_only_by(reader, x.name):
            return None
        cache, indices, entry, accumulate = (*op.args, *op.kwargs.values(), False)[:4]
        if accumulate or len(indices) != 3 or indices[0] is not None or indices[1] is not None or cache.ndim != 4:
            return None
        position = indices[2]
        shape = (*cache.shape[:2], 1, cache.shape[3])
        fits = tuple(position.shape) == (1,) and position.dtype in (dtypes.int64, dtypes.int32)
        return _Update(cache, position, entry) if fits and tuple(entry.shape) == shape else None

    def is_read_only_by(self, reader: BoundSymbol, name: str) -> bool:
        """Check whether only `reader` reads a value, also by repeated heads, apart from copies to inputs."""
        for op in self.readers.get(name, ()):
            repeats = all(self.made_by[n].sym in _REPEATING for n in op.out_names if n in self.made_by)
            through = repeats and op.out_names and all(self.is_read_only_by(reader, n) for n in op.out_names)
            if op is not reader and op.sym is not prims.copy_ and not through:
                return False
        return True

    def repeated(self, x: TensorProxy) -> TensorProxy | None:
        """Return the tensor each of whose heads `x` repeats: `y[:, :, None].expand(…).reshape(…)`."""
        reshape = self.made(x, prims.reshape)
        if reshape is None or reshape.args[0].ndim != 5 or x.ndim != 4:
            return None
        y, dims = reshape.args[0], tuple(range(5))
        (batch, heads, *_), rest = y.shape, y.shape[3:]
        if tuple(x.shape) != (batch, heads * y.shape[2], *rest):
            return None
        while (op := self.made(y, prims.broadcast_in_dim)) is not None:
            y, dims = op.args[0], tuple([dims[d] for d in op.args[2]])
        return y if dims == (0, 1, 3, 4) and tuple(y.shape) == (batch, heads, *rest) else None

    def rotation(self, x: TensorProxy) -> tuple[TensorProxy, TensorProxy, TensorProxy] | None:
        """Return `y`, `cos` and `sin` of `x = y * cos + cat((-y[..., half:], y[..., :half]), -1) * sin`."""
        total = self.made(x, prims.add)
        terms = [self.made(a, prims.mul) for a in total.args[:2]] if total is not None else []
        first, second = terms or (None, None)
        if first is None or second is None:
            return None
        for direct, turned in ((first, second), (second, first)):
            for y, cos in (direct.args, direct.args[::-1]):
                for other, sin in (turned.args, turned.args[::-1]):
                    of_cos, of_sin = self.angles(cos, y), self.angles(sin, y)
                    if of_cos is not None and of_sin is not None and self.is_turned(other, y):
                        return y, of_cos, of_sin
        return None

    def angles(self, x: Any, y: Any) -> TensorProxy | None:
        """Return the tensor of one row that is broadcast to `x`."""
        while (op := self.made(x, prims.broadcast_in_dim)) is not None:
            x = op.args[0]
        fits = isinstance(x, TensorProxy) and isinstance(y, TensorProxy) and x.dtype is y.dtype and x.ndim > 0
        fits = fits and x.ndim <= y.ndim  # `y` has the shape of the result
        return x if fits and tuple(x.shape) == (1,) * (x.ndim - 1) + (y.shape[-1],) else None

    def is_turned(self, x: Any, y: Any) -> bool:
        """Check whether `x` is `cat((-y[..., half:], y[..., :half]), -1)`."""
        cat = self.made(x, prims.cat)
        if cat is None or len(cat.args[0]) != 2 or cat.args[1] % x.ndim != x.ndim - 1 or y.shape[-1] % 2:
            return False
        negative = self.made(cat.args[0][0], prims.neg)
        half = y.shape[-1] // 2
        parts = None if negative is None else negative.args[0], cat.args[0][1]
        return all(self.is_half(part, y, first) for part, first in zip(parts, (half, 0)))

    def is_half(self, x: Any, y: Any, first: int) -> bool:
        op = self.made(x, prims.slice)
        if op is None or op.args[0].name != y.name:
            return False
        start = [0] * (y.ndim - 1) + [first]
        end = [*y.shape[:-1], first + y.shape[-1] // 2]
        steps = op.args[3] if len(op.args) > 3 else None
        return [*op.args[1]] == start and [*op.args[2]] == end and (steps is None or all(s == 1 for s in steps))


def _names(values: Sequence[TensorProxy]) -> list[str]:
    return [p.name for p in values]


_NAMES = ("query", "key", "value", "attn_mask", "scale")


def _arguments(op: BoundSymbol) -> list[Any]:
    """Return the query, keys, values, mask and scale of attention."""
    given = {**dict(zip(_NAMES[:4], op.args)), **op.kwargs}
    return [given.get(name) for name in _NAMES]
