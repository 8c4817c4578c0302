# SPDX-License-Identifier: Apache-2.0
"""Rematerialization: choose the values that the forward program saves and those that backward recomputes.

Each value that backward reads is either saved, or recomputed from saved values. The cheapest choice is a minimum cut in
the graph of values. The sources of this graph are values that cannot be recomputed: inputs, and results of expensive or
random operations. The sinks are the values that backward reads. The cost of a value is its size in bytes. Views that
share memory count once. Inputs and results cost almost nothing, because the caller keeps them anyway.

Only values that take negligible time are recomputed. Torch runs operations one by one, so with torch these values are:

- views of saved values;
- values that depend on no input (fills, ranges, and masks computed from ranges);
- casts to a wider dtype;
- results of one light arithmetic operation (e.g. add, multiply, select) on values that backward reads in any case;
- results of operations that their executor marks with `OpTags.RECOMPUTED` (e.g. random numbers from a saved seed);
- parameters that are gathered from shards, if torch would reshard them after the forward, except those that are kept
  within a budget (`passes/kept_parameters.py`).

A fusion executor recomputes an operation inside a kernel that backward launches anyway, and that kernel then reads
fewer values. So with a fusion executor, elementwise operations that it can fuse are recomputed too. There is one
exception: if only unfused operations (attention, matrix multiplications) read the result, and no kernel of backward
reads the operands, recomputation would need a separate kernel. Matrix multiplications, attention, convolutions,
reductions, sorting and random draws are never recomputed.

A fusion executor also copies small views: if only views of a value are saved, and they cover at most half of its
memory, copies are saved instead. The copy usually runs in a kernel that reads the rest of the value. Example: a
projection computes queries, keys and values together. Queries and keys are saved after their rotary embedding, so a
saved view of the values alone would keep the memory of all three alive.

Contract: results, gradients and random numbers are bitwise equal to those of a program that saves everything. The last
line of the forward program returns the saved values. Backward runs each recomputed operation directly before its first
use. The forward program runs the operation only if the forward program needs the result itself.

Other values of `remat`: "none" saves everything that backward reads. "all" recomputes every elementwise operation with
any executor, which needs the least memory but more time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.dtypes import bool8
from thunder.core.executor import ExecutorLike
from thunder.core.nbytes import bytes_of
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.passes.min_cut import cheapest_vertices

__all__ = ["choose_saved", "gathers_again", "small_parts"]

#: The allowed values of the option `remat`.

Producers = dict[str, tuple[int, BoundSymbol]]
# A predicate of operations that may be recomputed. Its second argument checks whether backward reads a value anyway.
CanRecompute = Callable[[BoundSymbol, Callable[[Proxy], bool]], bool]

_SHAPING = frozenset({OpTags.SHAPE_OP, OpTags.VIEW_OP})
SMALL = 1 << 16  # in bytes; recomputing smaller values in a separate operation does not pay off
_OF_INPUT, _OF_RESULT = 2, 3  # costs in bytes, such that one result is cheaper than two inputs


def choose_saved(
    read: Sequence[Proxy],
    producers: Producers,
    executors: Sequence[ExecutorLike],
    remat: str = "auto",
    results: Sequence[Proxy] = (),
    backward: Sequence[BoundSymbol] = (),
    keep_gathered: Callable[[Sequence[tuple[int, BoundSymbol]]], Sequence[BoundSymbol]] | None = None,
) -> list[Proxy]:
    """Choose values to save from which backward can compute all values of `read`, in the order of `read`.

    `results` are the values returned to the caller. `backward` contains the operations of the backward program.
    `keep_gathered` returns those gathers of parameters, among all with their positions, that backward does not repeat.
    """
    if remat == "none":
        return list(read)
    fusers = _fusers(executors)
    graph = _Graph(read, producers, _rule(executors, remat, producers), results)
    if keep_gathered is not None:
        graph.keep(keep_gathered(graph.gathers()))
    if remat == "auto" and fusers:
        graph.keep_what_takes_a_kernel(*_readers(backward, fusers), _rule([], remat, producers))
    chosen = graph.cut()
    # Save the views of a chosen storage that backward reads. If it reads none directly, save the base of the storage.
    saved: dict[str, Proxy] = {}
    for p in read:
        memory = graph.memory[p.name]
        if memory in chosen:
            saved[p.name] = p
    held = {graph.memory[name] for name in saved}
    saved.update((name, value) for name, value in graph.values.items() if name in chosen and name not in held)
    needed = graph.needed_besides(saved)
    for name in needed:
        saved.setdefault(name, graph.values[name])
    return list(saved.values())


def small_parts(saved: Sequence[Proxy], producers: Producers, results: Sequence[Proxy]) -> list[TensorProxy]:
    """Return the saved views of large storages.

    A storage is large if its size is at least twice that of its saved views, and only these views keep it alive.
    """
    graph = _Graph(saved, producers, lambda op, at_hand: False, results)
    views: dict[str, list[TensorProxy]] = {}
    for p in saved:
        if isinstance(p, TensorProxy):
            views.setdefault(graph.memory[p.name], []).append(p)
    found: list[TensorProxy] = []
    for name, parts in views.items():
        size = bytes_of(graph.values[name])
        if graph.cost(name) == size >= SMALL and 2 * sum(map(bytes_of, parts)) <= size:
            found += parts
    return found


def _rule(executors: Sequence[ExecutorLike], remat: str, producers: Producers) -> CanRecompute:
    """Return the predicate that decides which operations backward may recompute."""
    fusers = [ex for ex in executors if hasattr(ex, "can_fuse")]
    constants = _constants(producers)

    def can_recompute(op: BoundSymbol, at_hand: Callable[[Proxy], bool]) -> bool:
        if OpTags.RECOMPUTED in op.sym.tags or gathers_again(op):
            return True
        if not is_cheap(op):
            return False
        if remat == "all" or any(ex.can_fuse(op) for ex in fusers):
            return True
        # Recomputing an unfused operation pays off only if its values are large and the operation is cheap.
        if all(bytes_of(p) < SMALL for p in op.flat_outs):
            return False
        if _widens(op) or any(name in constants for name in op.out_names):
            return True
        return _is_light(op) and all(map(at_hand, op.flat_args))

    return can_recompute


def _fusers(executors: Sequence[ExecutorLike]) -> list[Any]:
    return [ex for ex in executors if hasattr(ex, "can_fuse")]


def _readers(backward: Sequence[BoundSymbol], fusers: Sequence[Any]) -> tuple[set[str], set[str]]:
    """Return the values read by unfused operations and those read by fused operations, directly or through views."""
    alone: set[str] = set()
    together: set[str] = set()
    for op in reversed(backward):
        if OpTags.VIEW_OP in op.sym.tags:
            for kind in (alone, together):
                if not kind.isdisjoint(op.out_names):
                    kind.update(op.arg_names)
        elif any(ex.can_fuse(op) for ex in fusers):
            together.update(op.arg_names)
        elif not op.sym.is_structural:
            alone.update(op.arg_names)
    return alone, together


def _constants(producers: Producers) -> set[str]:
    """Return the values that depend on no input and need almost no arithmetic (fills, ranges, masks)."""
    found: set[str] = set()
    for name, (_, op) in producers.items():  # in program order
        if found.issuperset(op.arg_names) and is_cheap(op) and (not op.arg_names or _is_mask(op)):
            found.add(name)
    return found


def gathers_again(op: BoundSymbol) -> bool:
    """Check whether an operation gathers parameters that backward gathers again."""
    return op.sym is prims.gather_shards or any(map(gathers_again, op.subsymbols))


def _is_mask(op: BoundSymbol) -> bool:
    shaping = not op.sym.tags.isdisjoint(_SHAPING)
    return shaping or all(isinstance(p, TensorProxy) and p.dtype is bool8 for p in op.flat_outs)


def is_cheap(op: BoundSymbol) -> bool:
    """Check whether an operation is deterministic and costs little more than reading and writing its values."""
    cost = op.sym.facts.cost
    if op.has_effect or cost == "expensive":
        return False
    if cost != "as its parts" or not op.arg_names:
        return True
    # The decomposition of an executor's operator does not determine the operator's cost.
    parts = op.like.subsymbols
    return bool(parts) and op.sym.executor is None and all(is_cheap(part) for part in parts)


def _is_light(op: BoundSymbol) -> bool:
    """Check whether an operation is one pass of light arithmetic over its operands."""
    parts = op.like.subsymbols
    if parts:
        return all(_is_light(part) or not part.sym.tags.isdisjoint(_SHAPING) for part in parts)
    return op.sym.facts.cost == "light"


def _widens(op: BoundSymbol) -> bool:
    """Check whether an operation is a cast to a wider dtype."""
    while len(parts := op.like.subsymbols) == 1:
        op = parts[0]
    return op.sym is prims.convert_element_type and op.output.dtype.bytes > op.args[0].dtype.bytes


def _copies_scattered(op: BoundSymbol) -> bool:
    """Check whether an operation reshapes its first input: a view if the input is contiguous, otherwise a copy."""
    return op.sym.facts.keeps_order and op.sym.facts.view == "maybe"


def _scattered(producers: Producers) -> set[str]:
    """Return the values that the operations show to be non-contiguous."""
    found: set[str] = set()
    for name, (_, op) in producers.items():
        if _copies_scattered(op):
            continue
        if op.sym.gives_view(op.args, op.kwargs):
            scattered = not op.sym.facts.keeps_order or op.arg_names[0] in found
        else:
            scattered = OpTags.ELEMENTWISE_OP in op.sym.tags and any(a in found for a in op.arg_names)
        if scattered:
            found.add(name)
    return found


class _Graph:
    """The values that backward depends on. All views of a storage count as one vertex: their base."""

    def __init__(
        self, read: Sequence[Proxy], producers: Producers, can_recompute: CanRecompute, results: Sequence[Proxy]
    ):
        self.read = [p.name for p in read]
        self.producers = producers
        self.values: dict[str, Proxy] = {}
        self.memory: dict[str, str] = {}  # value -> base of its storage
        self.recomputed: dict[str, bool] = {}  # base -> whether it can be recomputed
        self._scattered = _scattered(producers)
        self._results = {self._root(p).name for p in results}
        read_anyway = {self._root(p).name for p in read}

        def at_hand(p: Proxy) -> bool:
            root = self._root(p).name
            return root in read_anyway or root not in producers

        self._at_hand = at_hand
        stack = list(read)
        while stack:
            p = stack.pop()
            if p.name in self.values:
                continue
            self.values[p.name] = p
            root = self._root(p)
            self.memory[p.name] = root.name
            self.values.setdefault(root.name, root)
            self.memory.setdefault(root.name, root.name)
            found = producers.get(root.name)
            self.recomputed[root.name] = found is not None and can_recompute(found[1], at_hand)
            if found is not None and self.recomputed[root.name]:
                stack += found[1].flat_args

    def keep_what_takes_a_kernel(self, alone: set[str], together: set[str], by_itself: CanRecompute) -> None:
        """Save the values whose recomputation would need a separate kernel in backward.

        Unfused operations read the values in `alone`; fused operations read those in `together`. `by_itself` decides
        which values are worth recomputing in a separate operation.
        """
        together = {self.memory[name] for name in together if name in self.memory}
        found = [self.memory[name] for name in self.read if name in alone]
        for name in found:
            if not self.recomputed[name] or name in together:
                continue
            op = self.producers[name][1]
            if not _SHAPING.isdisjoint(op.sym.tags) or by_itself(op, self._at_hand):
                continue
            made_of = self._made_of(name)
            small = bytes_of(self.values[name]) // 4
            saved = any(not self.recomputed[x] for x in made_of)  # if not, it depends on inputs only
            if saved and not any(bytes_of(self.values[x]) > small for x in made_of & together):
                self.recomputed[name] = False

    def gathers(self) -> list[tuple[int, BoundSymbol]]:
        """Return the gathers of parameters that backward would repeat, with their positions."""
        found = dict(self.producers[name] for name, again in self.recomputed.items() if again)
        return [(i, op) for i, op in found.items() if gathers_again(op)]

    def keep(self, operations: Sequence[BoundSymbol]) -> None:
        """Do not repeat operations."""
        for op in operations:
            self.recomputed.update(dict.fromkeys(op.out_names, False))

    def _made_of(self, name: str) -> set[str]:
        """Return the storages that a value is recomputed from, directly or indirectly, without inputs."""
        seen: set[str] = set()
        stack = [name]
        while stack:
            op = self.producers[stack.pop()][1]
            for memory in {self.memory[a] for a in op.arg_names} - seen:
                if memory in self.producers:
                    seen.add(memory)
                    if self.recomputed[memory]:
                        stack.append(memory)
        return seen

    def _root(self, p: Proxy) -> Proxy:
        """Return the base of a view, or `p` itself if it is not a view."""
        while (found := self.producers.get(p.name)) is not None and self._is_view(found[1]):
            p = found[1].flat_args[0]
        return p

    def _is_view(self, op: BoundSymbol) -> bool:
        if not op.sym.gives_view(op.args, op.kwargs) or not op.arg_names or op.has_effect:
            return False
        return not _copies_scattered(op) or op.arg_names[0] not in self._scattered

    def cut(self) -> set[str]:
        """Return the storages to save, by the names of their bases."""
        roots = dict.fromkeys(self.memory.values())
        cost = {name: self.cost(name) for name in roots}
        edges: list[tuple[str, str]] = []
        for name in roots:
            if self.recomputed[name]:
                edges += {(self.memory[a], name) for a in self.producers[name][1].arg_names}
        sources = [name for name in roots if not self.recomputed[name]]
        sinks = dict.fromkeys(self.memory[name] for name in self.read)
        return cheapest_vertices(cost, edges, sources, sinks)

    def cost(self, name: str) -> int:
        """Return the cost of saving a value in bytes. It is almost zero if the caller keeps the value anyway."""
        if name not in self.producers:  # the value is an input
            return _OF_INPUT
        size = bytes_of(self.values[name])
        return min(size, _OF_RESULT) if name in self._results else size

    def needed_besides(self, saved: dict[str, Proxy]) -> list[str]:
        """Return the values needed to recompute the others that `saved` lacks (e.g. bases of views)."""
        needed: list[str] = []
        seen: set[str] = set(saved)
        stack = [name for name in self.read if name not in seen]
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            found = self.producers.get(name)
            if found is not None and (self.memory[name] != name or self.recomputed.get(name, False)):
                for p in found[1].flat_args:
                    self.values.setdefault(p.name, p)
                    self.memory.setdefault(p.name, self._root(p).name)
                    stack.append(p.name)
            else:
                needed.append(name)
        return needed
