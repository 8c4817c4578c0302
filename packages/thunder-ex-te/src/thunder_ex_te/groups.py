# SPDX-License-Identifier: Apache-2.0
"""Grouped linear layers (mixture of experts): one operator applies a separate weight to each group of rows of a matrix.

The program splits the rows of a matrix into groups of static sizes, and calls a linear layer on each group. This pass
merges operations that are applied to all groups in the same way. Linear layers of one shape become `te_grouped_linear`:
one quantization call and one grouped matmul. Pointwise operations are applied to the whole matrix. The pass runs before
differentiation, so the merged operations are differentiated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import (
    BoundSymbol,
    OpTags,
    TensorProxy,
    Trace,
    argument_key,
    construct,
    dtypes,
    get_grad,
    map_proxies,
    proxies_in,
    put_grads,
    recording,
    rewrite,
    to_torch_dtype,
)
from thunder.toolkit.claiming import choose
from thunder_ex_te import linear
from thunder_ex_te.linear import Layer, primitives, quantized_once
from thunder_ex_te.reference import Quantized

__all__ = ["GROUP_LAYERS", "grouped", "register"]

GROUP_LAYERS = "te_group_layers"  # the option of thunder.jit


# -- the operator ------------------------------------------------------------------------------------------------------
def like(input: Any, sizes: Any, weights: Any, biases: Any = None, recipe: Any = None) -> Any:
    """Decompose `te_grouped_linear` into torch's operations: one linear layer per group of rows."""
    pieces = ltorch.split(input, list(sizes))
    return ltorch.cat([ltorch.linear(x, w, b) for x, w, b in zip(pieces, weights, _each(biases, weights))])


def run(input: Any, sizes: Any, weights: Any, biases: Any = None, recipe: Any = None) -> Any:
    """Run the operator on tensors, outside of a trace."""
    pieces = torch.split(input, list(sizes))
    return torch.cat([linear.run(x, w, b, recipe) for x, w, b in zip(pieces, weights, _each(biases, weights))])


def _each(biases: Any, weights: Any) -> Any:
    return [None] * len(weights) if biases is None else biases


def takes(input: Any, sizes: Any, weights: Any, biases: Any = None, recipe: Any = None) -> bool | str:
    """Return True, or the reason why the kernels do not support the call."""
    if input.ndim != 2:
        return "supports only matrices whose rows are split into groups"
    if biases is not None and input.dtype is dtypes.float32:
        return "does not support a bias in float32"
    if len({tuple(w.shape) for w in weights}) != 1:
        return "supports only weights of one shape"
    for n, weight, bias in zip(sizes, weights, _each(biases, weights)):
        found = linear.takes(TensorProxy("piece", like=input, shape=(n, input.shape[1])), weight, bias, recipe)
        if found is not True:
            return found
    return True


class _Layers:
    """Lower grouped linear layers. Slots and weights are tuples, with an element per layer."""

    def __init__(self, operators: dict[str, Any], sizes: Sequence[int], weights: Sequence[Any], recipe: Any):
        self.operators = operators
        self.sizes = tuple(sizes)
        self.each = [Layer(operators, weight, recipe) for weight in weights]
        self.scheme = self.each[0].scheme

    def quantized(self, x: TensorProxy, role: str) -> Quantized:
        """Quantize the groups of rows. Each part of the result is a tuple with an element per group."""
        how = getattr(self.scheme, role)
        args: tuple[Any, ...] = (x, self.sizes, how.kind, how.power_2, how.epsilon)
        if self.scheme.delayed is not None:
            args = (*args, tuple(layer.slot(role, how.kind) for layer in self.each))
        symbol = self.operators["te_quantize_groups"]
        return Quantized(*(symbol(*args) if role == "grad" else quantized_once(symbol, args)))

    def weights(self) -> Quantized:
        """Quantize each weight separately, because the cache stores a separate fp8 copy of each weight."""
        return Quantized(*zip(*[layer.quantized(layer.weight, "weight") for layer in self.each]))

    def product(self, a: tuple[Any, Any, str], b: tuple[Any, Any, str], dtype: Any, which: int, **how: Any) -> Any:
        """Compute one of the three matmuls of a layer (forward, input gradient or weight gradient) for all groups."""
        split = self.scheme.split[which]
        return self.operators["te_matmul_groups"](*a, *b, to_torch_dtype(dtype), split=split, **how)

    def forward(self, x: TensorProxy, biases: Any) -> tuple[Any, Quantized, Quantized]:
        """Return the result, and the inputs and weights in fp8."""
        of_x, of_w = self.quantized(x, "input"), self.weights()
        a = (of_x.data, of_x.scale, self.scheme.input.kind)
        b = (of_w.data, of_w.scale, self.scheme.weight.kind)
        return self.product(a, b, x.dtype, 0, biases=biases), of_x, of_w


def register(registry: Any, executor: str, operators: dict[str, Any]) -> Any:
    """Register the operator and return it."""

    def execution(input: Any, sizes: Any, weights: Any, biases: Any = None, recipe: Any = None) -> Any:
        return _Layers(operators, sizes, weights, recipe).forward(input, biases)[0]

    def gradient(input: Any, sizes: Any, weights: Any, biases: Any = None, recipe: Any = None) -> Any:
        layers = _Layers(operators, sizes, weights, recipe)
        out, of_x, of_w = layers.forward(input, biases)
        g = get_grad(out)
        rows, by_weight, columns, by_input = linear.factors(layers.scheme, layers.quantized(g, "grad"), of_w, of_x)
        put_grads((input,), (layers.product(rows, by_weight, input.dtype, 1),))
        put_grads(weights, layers.product(columns, by_input, weights[0].dtype, 2, joined=False))
        if biases is not None:
            put_grads(biases, [ltorch.sum(piece, 0) for piece in ltorch.split(g, list(sizes))])
        return out

    registry.register_implementation(
        ltorch.grouped_mm, executor=executor, checker=why_not_grouped_mm, execution_transform=like
    )
    own = registry.register_operator("te_grouped_linear", executor=executor, like=like, fn=run)
    registry.register_implementation(
        own, executor=executor, checker=takes, execution_transform=execution, grad_transform=gradient
    )
    return own


# -- torch's own operation ---------------------------------------------------------------------------------------------
def why_not_grouped_mm(*args: Any, **kwargs: Any) -> str:
    """Return why the executor does not support a `torch.nn.functional.grouped_mm` that `grouped` left in the trace."""
    if not linear.asked():
        return linear.NOT_ASKED
    return (
        "grouped matmuls in fp8 need the group sizes on the host, but grouped_mm has them on the device: "
        "split the rows by sizes that are known while tracing and call a layer for each group, with "
        f"thunder.jit(…, {GROUP_LAYERS}=True)"
    )


def _with_known_sizes(trace: Trace, operator: Any) -> Trace:
    """Replace each `grouped_mm` whose group offsets are constants, because the group sizes are then known."""
    if not any(op.sym is ltorch.grouped_mm for op in trace.bound_symbols):
        return trace
    maker = {name: op for op in trace.bound_symbols for name in op.out_names}

    def replace(op: BoundSymbol) -> Any:
        sizes = _known_sizes(op, maker) if op.sym is ltorch.grouped_mm else None
        if sizes is None:
            return None
        x, matrices = op.args[:2]
        weights = [ltorch.getitem(matrices, i).mT for i in range(len(sizes))]
        return operator(x, sizes, weights) if takes(x, sizes, weights) is True else None

    return rewrite(trace, "Grouped products of known sizes", replace)


def _known_sizes(op: BoundSymbol, maker: dict[str, BoundSymbol]) -> tuple[int, ...] | None:
    """Return the group sizes of a `grouped_mm` whose offsets are constants of the program; None otherwise."""
    found = dict(zip(("input", "mat2", "offs", "bias", "out_dtype"), op.args), **op.kwargs)
    x, matrices, ends = found["input"], found["mat2"], found.get("offs")
    if x.ndim != 2 or matrices.ndim != 3 or ends is None or found.get("bias") is not None:
        return None
    source = maker.get(ends.name)
    if source is None or source.sym.id != ("opaque", torch.tensor) or found.get("out_dtype") is not None:
        return None
    numbers = source.args[0]
    if not isinstance(numbers, (list, tuple)) or not all(type(n) is int for n in numbers):
        return None
    sizes = tuple(stop - start for start, stop in zip((0, *numbers), numbers))
    return sizes if len(sizes) == matrices.shape[0] and min(sizes) > 0 and numbers[-1] == x.shape[0] else None


# -- the pass that merges layers --------------------------------------------------------------------------------------
class _Family:
    """One operation, applied to each group of rows. A family without members is the matrix that the program splits."""

    def __init__(self, sizes: tuple[int, ...], whole: TensorProxy | None = None, sources: Sequence[_Family] = ()):
        self.sizes = sizes
        self.whole = whole
        self.sources = sources
        self.members: list[BoundSymbol | None] = [None] * len(sizes)

    @property
    def is_layer(self) -> bool:
        """Whether the operations of the family are linear layers."""
        return self.members[0] is not None and self.members[0].sym.id == "torch.linear"

    def ancestors(self) -> set[_Family]:
        """Return the families whose results this family reads."""
        found: set[_Family] = set()
        left = list(self.sources)
        while left:
            each = left.pop()
            if each not in found:
                found.add(each)
                left += each.sources
        return found


class _Circle(Exception):
    """Raised if an input of a family depends on the family's result."""


def grouped(trace: Trace, executors: Sequence[Any], operator: Any) -> Trace:
    """Merge the linear layers of row groups in a trace."""
    if any(OpTags.IN_PLACE_OP in op.sym.tags for op in trace.bound_symbols):
        return trace
    trace = _with_known_sizes(trace, operator)
    families, piece_of = _families(trace, executors)
    wanted = set(families)
    while any(family.is_layer for family in wanted):
        try:
            return _Writer(trace, operator, wanted, piece_of).written()
        except _Circle as circle:
            lost = circle.args[0]
            wanted = {family for family in wanted if family is not lost and lost not in family.ancestors()}
    return trace


def _families(trace: Trace, executors: Sequence[Any]) -> tuple[list[_Family], dict[str, tuple[_Family, int]]]:
    """Return the families to merge (layers and pointwise operations), and the family and group of each value."""
    piece_of = dict(_pieces(trace))
    found: dict[Any, _Family] = {}
    for op in trace.bound_symbols if piece_of else ():
        likeness = _likeness(op, piece_of) if isinstance(op.output, TensorProxy) else None
        if likeness is None:
            continue
        key, sources, index = likeness
        same = (
            found.setdefault((key, n), _Family(sources[0].sizes, None, sources))
            for n in range(len(trace.bound_symbols))
        )
        family = next(each for each in same if each.members[index] is None)
        family.members[index] = op
        piece_of[op.output.name] = family, index
    whole = [family for family in found.values() if None not in family.members]
    kept: list[_Family] = []
    for family in whole:
        if all(not source.members[0] or source in kept for source in family.sources) and _is_taken(family, executors):
            kept.append(family)
    of_layers = {family for family in kept if family.is_layer}
    after = {family for family in kept if not of_layers.isdisjoint(family.ancestors())}
    needed = {each for family in of_layers | after for each in family.ancestors()}
    kept = [family for family in kept if family in of_layers | after | needed]
    return kept, piece_of


def _pieces(trace: Trace) -> Iterator[tuple[str, tuple[_Family, int]]]:
    """Yield each matrix whose rows are partitioned, in order and completely, by slices; with these slices."""
    slices: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    whole: dict[str, TensorProxy] = {}
    for op in trace.bound_symbols:
        for part in primitives(op):
            if part.sym is not prims.slice:
                break
            x, start, stop, *steps = part.args
            along = all(a == 0 and b == n for a, b, n in zip(start[1:], stop[1:], x.shape[1:]))
            if (
                x.ndim == 2
                and along
                and type(start[0]) is type(stop[0]) is type(x.shape[0]) is int
                and not _wide(steps)
            ):
                slices[x.name].append((start[0], stop[0], part.output.name))
                whole[x.name] = x
    for name, found in slices.items():
        bounds = sorted({(start, stop) for start, stop, _ in found})
        ends = [0, *[stop for _, stop in bounds]]
        if len(bounds) > 1 and [start for start, _ in bounds] == ends[:-1] and ends[-1] == whole[name].shape[0]:
            family = _Family(tuple(stop - start for start, stop in bounds), whole[name])
            for start, stop, piece in found:
                yield piece, (family, bounds.index((start, stop)))


def _wide(steps: Any) -> bool:
    """Check whether a slice has a step other than 1."""
    return any(step != 1 for each in steps if each is not None for step in each)


def _likeness(op: BoundSymbol, piece_of: dict[str, tuple[_Family, int]]) -> tuple[Any, Sequence[_Family], int] | None:
    """Return a key that is equal for all members of a family, the families of the inputs, and the group's index."""
    if op.sym.id == "torch.linear":
        input, weight, bias = _arguments(op)
        if input.name not in piece_of or weight.name in piece_of or (bias is not None and bias.name in piece_of):
            return None
        family, index = piece_of[input.name]
        return ("linear", id(family), tuple(weight.shape), weight.dtype, bias is None), (family,), index
    tensors = [p for p in proxies_in((op.args, op.kwargs)) if isinstance(p, TensorProxy)]
    there = [piece_of.get(p.name) for p in tensors]
    if not there or None in there or OpTags.RANDOM_OP in op.sym.tags:
        return None
    found = [each for each in there if each is not None]
    family, index = found[0]
    if any(i != index or of.sizes != family.sizes for of, i in found):
        return None
    parts = list(primitives(op))
    if not parts or not all(OpTags.ELEMENTWISE_OP in part.sym.tags for part in parts):
        return None
    names = {p.name: f"piece of {id(family)}" for p, (family, _) in zip(tensors, found)}
    how = argument_key(map_proxies((op.args, op.kwargs), lambda p: names.get(p.name, p)))
    return (op.sym.id, how), [each for each, _ in found], index


def _arguments(op: BoundSymbol) -> tuple[Any, Any, Any]:
    found = dict(zip(("input", "weight", "bias"), op.args), **op.kwargs)
    return found["input"], found["weight"], found.get("bias")


def _is_taken(family: _Family, executors: Sequence[Any]) -> bool:
    """Check whether this executor supports the layers of a family. Pointwise operations need no check."""
    members = [op for op in family.members if op is not None]
    if not family.is_layer:
        return True
    takers = {choose(op, executors).implementation for op in members}
    if not all(taker is not None and taker.checker is linear.takes for taker in takers):
        return False
    arguments = [_arguments(op) for op in members]
    inputs, weights, biases = zip(*arguments)
    whole = TensorProxy("whole", like=inputs[0], shape=(sum(family.sizes), inputs[0].shape[-1]))
    return takes(whole, family.sizes, weights, None if biases[0] is None else biases) is True


class _Writer:
    """Writes a trace in which each family is one operation on the whole matrix.

    The merged operation is placed where the first member was. Operations that it depends on are moved before it.
    """

    def __init__(self, trace: Trace, operator: Any, families: set[_Family], piece_of: dict[str, tuple[_Family, int]]):
        self.trace = trace
        self.operator = operator
        self.piece_of = piece_of
        self.family_of = {id(op): family for family in families for op in family.members}
        self.maker = {name: op for op in trace.bound_symbols for name in op.out_names}
        self.whole: dict[_Family, TensorProxy] = {}
        self.replaced: dict[str, Any] = {}
        self.written_already: set[int] = set()
        self.under_way: set[_Family] = set()
        self.split: set[_Family] = set()

    def written(self) -> Trace:
        """Return the new trace."""
        with construct(self.trace, "Layers of groups") as self.out:
            for op in self.trace.bound_symbols:
                self.write(op)
            self.out.output = map_proxies(self.out.output, lambda p: self.replaced.get(p.name, p))
        return self.out

    def write(self, op: BoundSymbol, needed_by: _Family | None = None) -> None:
        """Write an operation, or its whole family, after the operations that it depends on."""
        if id(op) in self.written_already:
            return
        if needed_by is not None and op.sym.must_stay:
            raise _Circle(needed_by)  # an operation with side effects cannot be moved
        family = self.family_of.get(id(op))
        if family is not None:
            self.write_family(family)
            return
        self.written_already.add(id(op))
        joined = self.joined(op)
        if joined is not None:
            self.write_family(joined)
            self.replaced[op.output.name] = self.whole[joined]
            return
        self.write_makers(op.arg_names, needed_by)
        for name in op.arg_names:
            family = self.piece_of[name][0] if name in self.piece_of else None
            if family in self.whole and family not in self.split:
                self.write_pieces(family)
        self.out.record(op.substitute(self.replaced) if self.replaced else op)

    def write_makers(self, names: Any, needed_by: _Family | None) -> None:
        for name in names:
            if name in self.maker:
                self.write(self.maker[name], needed_by)

    def write_family(self, family: _Family) -> None:
        """Write the operation on the whole matrix that replaces the members of a family."""
        if family in self.whole:
            return
        if family in self.under_way:
            raise _Circle(family)
        self.under_way.add(family)
        members = [op for op in family.members if op is not None]
        for source in family.sources:
            if source.whole is not None:
                self.write_makers((source.whole.name,), family)
                self.whole[source] = self.replaced.get(source.whole.name, source.whole)
            else:
                self.write_family(source)
        self.write_makers([name for op in members for name in op.arg_names if name not in self.piece_of], family)
        with recording(self.out) as recorded:
            made = self.of_layers(family, members) if family.is_layer else self.of_elements(members[0])
        for new in recorded:
            new.source = members[0].source
            self.out.record(new)
        self.whole[family] = made
        self.written_already.update(map(id, members))
        self.under_way.discard(family)

    def of_layers(self, family: _Family, members: Sequence[BoundSymbol]) -> Any:
        _, weights, biases = zip(*[_arguments(op.substitute(self.replaced)) for op in members])
        whole = self.whole[family.sources[0]]
        return self.operator(whole, list(family.sizes), list(weights), None if biases[0] is None else list(biases))

    def of_elements(self, op: BoundSymbol) -> Any:
        args, kwargs = map_proxies((op.args, op.kwargs), lambda p: self.whole[self.piece_of[p.name][0]])
        return op.sym(*args, **kwargs)

    def joined(self, op: BoundSymbol) -> _Family | None:
        """Return the family whose results a concatenation joins; None if there is no such family."""
        if (
            op.sym.id != "torch.cat"
            or len(op.args) + len(op.kwargs) > 2
            or [*op.args[1:], *op.kwargs.values()] not in ([], [0])
        ):
            return None
        there = [self.piece_of.get(p.name) for p in op.args[0]]
        family = there[0][0] if there and there[0] is not None else None
        if family is None or family.whole is not None or family not in set(self.family_of.values()):
            return None
        return family if there == [(family, i) for i in range(len(family.sizes))] else None

    def write_pieces(self, family: _Family) -> None:
        """Split a family's result into the results of its members, and keep their names."""
        self.split.add(family)
        if family.whole is not None:
            return
        with recording(self.out) as recorded:
            made = ltorch.split(self.whole[family], list(family.sizes))
        names = {new.name: op.output for new, op in zip(made, family.members) if op is not None}
        for new in recorded:
            self.out.record(new.substitute(names))
