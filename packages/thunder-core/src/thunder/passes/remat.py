# SPDX-License-Identifier: Apache-2.0
"""Rematerialization: which values the forward program saves for backward, and which ones backward recomputes.

Each value that backward reads is either saved, or recomputed from saved values. The cheapest choice is a
minimum cut between values that cannot be recomputed (inputs, results of expensive or random
operations) and the values that backward reads: a value costs its bytes, views together cost their shared memory,
inputs and results cost almost nothing, since the caller keeps them anyway.

Only values that take negligible time are recomputed. With torch, which runs operations one by one, these are

- views of saved values, and values that depend on no input (fills, ranges, masks of them);
- casts to a wider dtype;
- one step of light arithmetic (a sum, a product, a select) on values that backward reads in any case;
- operations that their executor marks so (`OpTags.RECOMPUTED`): random numbers computed from a seed, which is saved.

A fusion executor recomputes an operation in a kernel that it launches anyway, which reads less
than it would have read. So with a fusion executor, elementwise operations that it can fuse are recomputed too: unless
only unfused operations (attention, matrix products) read the result, and no kernel of backward reads its operands,
so that it would be a kernel by itself. Matrix products, attention, convolutions, reductions, sorting and random
draws never are. And where at most half of a larger value is saved as a view, such a fuser
makes a copy, usually in a kernel that reads the rest: queries and keys are saved after their rotary embedding, and the
values alone would keep the projection of all three alive.

Contract: results, gradients and random numbers are bitwise those of a program that saves everything; the saved
values are in the forward program's last line. Each recomputed operation is in the backward program
right before its first use, and in the forward program only if that needs it itself.

Other values of `remat`: "none" saves everything that backward reads, "all" recomputes every elementwise operation with
any executor: the least memory, for some time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from thunder.core import prims
from thunder.core.dtypes import bool8
from thunder.core.executor import ExecutorLike
from thunder.core.nbytes import bytes_of
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.passes.min_cut import cheapest_vertices

__all__ = ["REMAT", "Remat", "choose_saved", "small_parts"]

#: The values of `remat=`.
Remat = Literal["auto", "none", "all"]
REMAT: tuple[Remat, ...] = get_args(Remat)

Producers = dict[str, tuple[int, BoundSymbol]]
# Whether an operation may be recomputed, given whether backward reads a value anyway.
CanRecompute = Callable[[BoundSymbol, Callable[[Proxy], bool]], bool]

_SHAPING = frozenset({OpTags.SHAPE_OP, OpTags.VIEW_OP})
SMALL = 1 << 16  # smaller values are not worth an operation
_OF_INPUT, _OF_RESULT = 2, 3  # their costs, in bytes: one result rather than two inputs


def choose_saved(
    read: Sequence[Proxy],
    producers: Producers,
    executors: Sequence[ExecutorLike],
    remat: str = "auto",
    results: Sequence[Proxy] = (),
    backward: Sequence[BoundSymbol] = (),
) -> list[Proxy]:
    """Choose the values to save so that backward can compute all of `read`, in the order in which they are read.

    `results` are returned to the caller, `backward` are the operations that read.
    """
    if remat == "none":
        return list(read)
    fusers = _fusers(executors)
    graph = _Graph(read, producers, _rule(executors, remat, producers), results)
    if remat == "auto" and fusers:
        graph.keep_what_takes_a_kernel(*_readers(backward, fusers), _rule([], remat, producers))
    chosen = graph.cut()
    # Save those views of a chosen storage that are read, or the one that all others are computed from.
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
    """Return the saved views that keep memory of at least twice their size alive that is not kept otherwise."""
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
    """Return the predicate of operations that may be recomputed in backward."""
    fusers = [ex for ex in executors if hasattr(ex, "can_fuse")]
    constants = _constants(producers)

    def can_recompute(op: BoundSymbol, at_hand: Callable[[Proxy], bool]) -> bool:
        if OpTags.RECOMPUTED in op.sym.tags:
            return True
        if not is_cheap(op):
            return False
        if remat == "all" or any(ex.can_fuse(op) for ex in fusers):
            return True
        # An unfused operation: worth its time only for large values, and only where it is cheap.
        if all(bytes_of(p) < SMALL for p in op.flat_outs):
            return False
        if _widens(op) or any(name in constants for name in op.out_names):
            return True
        return _is_light(op) and all(map(at_hand, op.flat_args))

    return can_recompute


def _fusers(executors: Sequence[ExecutorLike]) -> list[Any]:
    return [ex for ex in executors if hasattr(ex, "can_fuse")]


def _readers(backward: Sequence[BoundSymbol], fusers: Sequence[Any]) -> tuple[set[str], set[str]]:
    """Return the values that unfused operations read and those that fused ones read, both through views."""
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
    """Return the values that depend on no input and take almost no arithmetic: fills, ranges, masks."""
    found: set[str] = set()
    for name, (_, op) in producers.items():  # in program order
        if found.issuperset(op.arg_names) and is_cheap(op) and (not op.arg_names or _is_mask(op)):
            found.add(name)
    return found


def _is_mask(op: BoundSymbol) -> bool:
    shaping = not op.sym.tags.isdisjoint(_SHAPING)
    return shaping or all(isinstance(p, TensorProxy) and p.dtype is bool8 for p in op.flat_outs)


def is_cheap(op: BoundSymbol) -> bool:
    """Check whether an operation is deterministic and does little more than read and write its values."""
    cost = op.sym.facts.cost
    if op.has_effect or cost == "expensive":
        return False
    if cost != "as its parts" or not op.arg_names:
        return True
    # The decomposition of an executor's operator does not determine its cost.
    parts = op.like.subsymbols
    return bool(parts) and op.sym.executor is None and all(is_cheap(part) for part in parts)


def _is_light(op: BoundSymbol) -> bool:
    """Check whether it is one pass of light arithmetic over its operands."""
    parts = op.like.subsymbols
    if parts:
        return all(_is_light(part) or not part.sym.tags.isdisjoint(_SHAPING) for part in parts)
    return op.sym.facts.cost == "light"


def _widens(op: BoundSymbol) -> bool:
    """Check whether it is a cast to a wider dtype."""
    while len(parts := op.like.subsymbols) == 1:
        op = parts[0]
    return op.sym is prims.convert_element_type and op.output.dtype.bytes > op.args[0].dtype.bytes


def _copies_scattered(op: BoundSymbol) -> bool:
    """Check whether it reshapes its first input: a view if that is contiguous, else a copy."""
    return op.sym.facts.keeps_order and op.sym.facts.view == "maybe"


def _scattered(producers: Producers) -> set[str]:
    """Return the values that are not contiguous, as far as the operations show."""
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
    """The values that backward depends on. Views count as the memory behind them."""

    def __init__(
        self, read: Sequence[Proxy], producers: Producers, can_recompute: CanRecompute, results: Sequence[Proxy]
    ):
        self.read = [p.name for p in read]
        self.producers = producers
        self.values: dict[str, Proxy] = {}
        self.memory: dict[str, str] = {}  # value -> its base
        self.recomputed: dict[str, bool] = {}  # by memory: whether it can be recomputed
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
        """Save the values that backward would have to launch a separate kernel to recompute.

        `alone` and `together` are the values read by unfused and by fused operations. `by_itself` decides which
        values are worth an operation.
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
            saved = any(not self.recomputed[x] for x in made_of)  # else it depends on inputs only
            if saved and not any(bytes_of(self.values[x]) > small for x in made_of & together):
                self.recomputed[name] = False

    def _made_of(self, name: str) -> set[str]:
        """Return the memory that a value is recomputed from, directly or indirectly, without inputs."""
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
        """Return the base of a view."""
        while (found := self.producers.get(p.name)) is not None and self._is_view(found[1]):
            p = found[1].flat_args[0]
        return p

    def _is_view(self, op: BoundSymbol) -> bool:
        if not op.sym.gives_view(op.args, op.kwargs) or not op.arg_names or op.has_effect:
            return False
        return not _copies_scattered(op) or op.arg_names[0] not in self._scattered

    def cut(self) -> set[str]:
        """Return the memory to save."""
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
        """Return the bytes that saving it costs, almost none if the caller keeps it anyway."""
        if name not in self.producers:  # an input
            return _OF_INPUT
        size = bytes_of(self.values[name])
        return min(size, _OF_RESULT) if name in self._results else size

    def needed_besides(self, saved: dict[str, Proxy]) -> list[str]:
        """Return what else has to be saved so that the rest can be recomputed: the bases of views."""
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
