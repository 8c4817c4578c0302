# SPDX-License-Identifier: Apache-2.0
"""Sharding rules: which placements of the operands an operation on DTensors supports, and what its results have.

A rule labels the dimensions of the operands and of the result. Dimensions with one label are the same index, e.g. the
rows of `linear` are `("b", "i"), ("o", "i") -> ("b", "o")`. On each dimension of the mesh, one label may be sharded.
The result is sharded in the dimension with this label. If it has none, the operation sums over the index, and the
result is partial. A dimension without a label (None) must not be sharded.

Operations without a rule run on replicated operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from thunder.core.layouts import NORM, Partial, Placement, Replicated, Sharded

__all__ = ["RULES", "Call", "Plan", "Rule", "norm_reduction", "placements_for", "pointwise"]

Labels = tuple[Any, ...]


class Call(NamedTuple):
    """A call of an operation: the shapes of its tensor operands, and its arguments by name."""

    name: str
    shapes: list[tuple[int, ...]]
    arguments: dict[str, Any]
    on_meta: Callable[[Sequence[torch.Tensor]], Any]  # runs the operation on other operands


class Rule(NamedTuple):
    """The labels of the dimensions of operands and results, and which partial operands the operation supports."""

    operands: Sequence[Labels]
    results: Sequence[Labels]
    #: "each": linear in each operand; "all": linear in all operands together; "": neither.
    linear: str = ""
    #: The reduction over a sharded index that the results do not have.
    reduction: str = "sum"
    #: The operands that are added to the result, e.g. a bias: partial if the result is.
    added: frozenset[int] = frozenset()
    #: Whether the operation only moves elements, so that operands may be partial by any reduction.
    moves: bool = False
    #: Whether the operation only changes the shape, so that it is a `reshape` to the local shape of the result.
    reshapes: bool = False


class Plan(NamedTuple):
    """The placements on one dimension of the mesh that operands must have, and that results then have."""

    operands: list[Placement]
    results: list[Placement]


def placements_for(
    rule: Rule, given: Sequence[Placement], shapes: Sequence[tuple[int, ...]], size: int, *, even: bool = True
) -> Plan:
    """Choose the placements of operands and results on one dimension of the mesh, which has `size` ranks.

    Unless `even`, ranks have parts of different sizes, and all operands must be given as the operation needs them.
    """
    partial = [p for p in given if isinstance(p, Partial)]
    sharded = [i for i, p in enumerate(given) if isinstance(p, Sharded)]
    if partial and not sharded:
        ops = {p.op for p in partial}
        everywhere = all(isinstance(p, Partial) for p in given)
        if len(ops) == 1 and everywhere and (rule.moves or ops == {rule.reduction} & {"max", "min"}):
            return Plan(list(given), [partial[0]] * len(rule.results))
        if len(ops) == 1 and rule.moves and partial[0].op.startswith(NORM):
            return Plan([partial[0]] * len(given), [partial[0]] * len(rule.results))  # as torch stacks norms
        if len(ops) == 1 and ops <= {"sum", "avg"}:
            if rule.linear == "each" and len(partial) == 1:
                return Plan(list(given), [partial[0]] * len(rule.results))
            if rule.linear == "all" and (everywhere or ops == {"sum"}):
                return Plan([partial[0]] * len(given), [partial[0]] * len(rule.results))
    best = None
    for i in sorted(sharded, key=lambda i: -math.prod(shapes[i])):
        label = rule.operands[i][given[i].dim]  # type: ignore[union-attr]
        if label is not None and not even:
            if rule.reduction == "avg" and any(label not in labels for labels in rule.results):
                continue  # the means of parts of different sizes do not give the mean
            best = label
            break
        if label is not None and all(
            shape[labels.index(label)] % size == 0 for shape, labels in zip(shapes, rule.operands) if label in labels
        ):
            best = label
            break
    if best is None:
        return Plan([Replicated()] * len(given), [Replicated()] * len(rule.results))
    operands: list[Placement] = [
        Sharded(labels.index(best))
        if best in labels
        else Partial("sum")
        if i in rule.added and not any(best in result for result in rule.results)
        else Replicated()
        for i, labels in enumerate(rule.operands)
    ]
    results: list[Placement] = [
        Sharded(labels.index(best)) if best in labels else Partial(rule.reduction) for labels in rule.results
    ]
    return Plan(operands, results)


RULES: dict[str, Callable[[Call], Rule | None]] = {}


def _rule(*names: str) -> Callable[[Callable[[Call], Rule | None]], Callable[[Call], Rule | None]]:
    def register(rule: Callable[[Call], Rule | None]) -> Callable[[Call], Rule | None]:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


# -- elementwise operations -------------------------------------------------------------------------------------------
# Operations that are linear in all tensors together.
_ADDITIVE = frozenset({"add", "sub", "neg", "clone"})


def pointwise(call: Call, name: str) -> Rule:
    """Return the rule of an elementwise operation with broadcasting."""
    ndim = max(map(len, call.shapes), default=0)
    sizes = [max(s[i - ndim + len(s)] for s in call.shapes if i >= ndim - len(s)) for i in range(ndim)]
    operands = [tuple([i if n == sizes[i] else None for i, n in enumerate(s, ndim - len(s))]) for s in call.shapes]
    linear = ""
    if name in _ADDITIVE and (len(call.shapes) > 1 or name not in ("add", "sub")):
        linear = "all"
    elif name == "mul" or (
        name in ("div", "true_divide") and len(call.shapes) == 1 and call.arguments.get("rounding_mode") is None
    ):
        linear = "each"
    return Rule(operands, [tuple(range(ndim))], linear)


@_rule("clone", "contiguous", "to", "type_as", "float", "half", "bfloat16", "double", "long", "int", "bool", "detach",
       "zeros_like", "ones_like", "full_like", "empty_like")  # fmt: skip
def _like(call: Call) -> Rule | None:
    if "device" in call.arguments or len(call.shapes) != 1:
        return None
    casts = any(isinstance(x, torch.dtype) for x in call.arguments.values())
    moves = call.name in ("clone", "detach", "to") and not casts
    return pointwise(call, "clone")._replace(moves=moves)


# -- products ---------------------------------------------------------------------------------------------------------
@_rule("linear")
def _linear(call: Call) -> Rule:
    x, w, *bias = call.shapes
    batch = tuple(range(len(x) - 1))
    rows: Labels = () if len(w) == 1 else ("o",)
    linear, added = ("", frozenset({2})) if bias else ("each", frozenset())
    return Rule([(*batch, "i"), (*rows, "i"), *[rows for _ in bias]], [(*batch, *rows)], linear, added=added)


@_rule("matmul", "mm", "bmm", "mv", "dot")
def _matmul(call: Call) -> Rule:
    a, b = call.shapes
    ndim = max(len(a), len(b)) - 2
    rows = ("m",) if len(a) > 1 else ()
    columns = ("n",) if len(b) > 1 else ()

    def batch(shape: tuple[int, ...], other: tuple[int, ...]) -> Labels:
        outer, of_other = shape[:-2], other[:-2]
        return tuple(
            ndim - len(outer) + i
            if n != 1 or (len(of_other) - len(outer) + i >= 0 and of_other[i - len(outer)] == 1)
            else None
            for i, n in enumerate(outer)
        )

    return Rule(
        [(*batch(a, b), *rows, "k"), (*batch(b, a), "k", *columns)],
        [(*range(max(ndim, 0)), *rows, *columns)],
        "each",
    )


@_rule("einsum")
def _einsum(call: Call) -> Rule | None:
    equation = call.arguments.get("equation")
    if not isinstance(equation, str) or "." in equation:
        return None
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        right = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    repeated = any(len(set(t)) != len(t) for t in terms)
    return None if repeated else Rule([tuple(t) for t in terms], [tuple(right)], "each")


# -- reductions -------------------------------------------------------------------------------------------------------
def _dims(call: Call, dim: Any) -> set[int]:
    ndim = len(call.shapes[0])
    if dim is None or dim == ():
        return set(range(ndim))
    return {d % ndim for d in (dim if isinstance(dim, (tuple, list)) else (dim,))} if ndim else set()


def _kept(call: Call, dims: set[int]) -> Labels:
    keeps = call.arguments.get("keepdim", False)
    return tuple([None if i in dims else i for i in range(len(call.shapes[0])) if keeps or i not in dims])


@_rule("sum", "mean")
def _sum(call: Call) -> Rule:
    dims = _dims(call, call.arguments.get("dim"))
    reduction = "avg" if call.name == "mean" else "sum"
    return Rule([tuple(range(len(call.shapes[0])))], [_kept(call, dims)], "all", reduction)


def norm_reduction(order: float) -> str:
    """Return the reduction of the ranks' norms."""
    special = {math.inf: "max", -math.inf: "min", 0: "sum"}
    return special.get(order) or f"{NORM}{float(order)}"


@_rule("vector_norm")
def _vector_norm(call: Call) -> Rule | None:
    order, dim = call.arguments.get("ord", 2), call.arguments.get("dim")
    if len(call.shapes) != 1 or not isinstance(order, (int, float)) or "dtype" in call.arguments:
        return None
    return Rule([tuple(range(len(call.shapes[0])))], [_kept(call, _dims(call, dim))], reduction=norm_reduction(order))


@_rule("amax", "amin", "var", "std", "prod", "logsumexp", "argmax", "argmin", "all", "any", "norm")
def _whole_reduction(call: Call) -> Rule | None:
    if "dim" not in call.arguments or len(call.shapes) != 1:
        return None
    dims = _dims(call, call.arguments["dim"])
    return Rule([tuple([None if i in dims else i for i in range(len(call.shapes[0]))])], [_kept(call, dims)])


# -- operations along a dimension -------------------------------------------------------------------------------------
@_rule("softmax", "log_softmax", "_softmax", "cumsum", "cumprod", "logcumsumexp", "flip", "roll", "normalize", "glu")
def _along(call: Call) -> Rule | None:
    dim = call.arguments.get("dim", call.arguments.get("dims", call.arguments.get("axis")))
    if dim is None or len(call.shapes) != 1:
        return None
    dims = _dims(call, dim)
    labels = tuple([None if i in dims else i for i in range(len(call.shapes[0]))])
    return Rule([labels], [labels])


@_rule("layer_norm", "rms_norm")
def _norm(call: Call) -> Rule:
    ndim = len(call.arguments["normalized_shape"])
    outer = len(call.shapes[0]) - ndim
    labels = (*range(outer), *[None] * ndim)
    return Rule([labels, *[(None,) * ndim for _ in call.shapes[1:]]], [labels])


@_rule("embedding")
def _embedding(call: Call) -> Rule | None:
    if call.arguments.get("max_norm") is not None:
        return None
    indices = tuple(range(len(call.shapes[0])))
    return Rule([indices, (None, "w")], [(*indices, "w")])


@_rule("scaled_dot_product_attention")
def _attention(call: Call) -> Rule | None:
    q, k = call.shapes[0], call.shapes[1]
    if call.arguments.get("dropout_p", 0.0) or len(q) < 3 or len(q) != len(k):
        return None
    batch = tuple([i if n == m or i == len(q) - 3 else None for i, (n, m) in enumerate(zip(q[:-2], k[:-2]))])
    labels = (*batch, None, None)
    others = call.shapes[3:]
    masks = [
        (*[labels[i] if n == q[i] else None for i, n in enumerate(m[:-2], len(q) - len(m))], None, None)[-len(m) :]
        for m in others
    ]
    return Rule([labels, labels, labels, *masks], [labels])


# -- shapes -----------------------------------------------------------------------------------------------------------
def _reshaped(old: tuple[int, ...], new: tuple[int, ...]) -> Rule:
    """Label the first dimensions of groups of dimensions that a reshape maps to each other."""
    a: list[Any] = [None] * len(old)
    b: list[Any] = [None] * len(new)
    i = j = 0
    while i < len(old) and j < len(new):
        first_i, first_j = i, j
        m, n = old[i], new[j]
        while m != n:
            if m < n:
                i += 1
                if i == len(old):
                    return Rule([tuple(a)], [tuple(b)], "all", reshapes=True)
                m *= old[i]
            else:
                j += 1
                if j == len(new):
                    return Rule([tuple(a)], [tuple(b)], "all", reshapes=True)
                n *= new[j]
        while old[first_i] == 1 and first_i < i:
            first_i += 1
        while new[first_j] == 1 and first_j < j:
            first_j += 1
        a[first_i] = b[first_j] = first_i
        i, j = i + 1, j + 1
    return Rule([tuple(a)], [tuple(b)], "all", reshapes=True)


@_rule("view", "reshape", "flatten", "unflatten", "ravel")
def _reshape(call: Call) -> Rule | None:
    if len(call.shapes) != 1:
        return None
    out = call.on_meta([torch.empty(call.shapes[0], device="meta")])
    return _reshaped(call.shapes[0], tuple(out.shape))


@_rule(
    "transpose", "t", "mT", "permute", "movedim", "swapaxes", "swapdims", "T", "adjoint", "H", "mH", "squeeze",
    "unsqueeze", "select", "narrow", "getitem", "split", "chunk", "unbind", "tensor_split", "split_with_sizes",
)  # fmt: skip
def _view(call: Call) -> Rule | None:
    """Label the dimensions that a view has as a whole: in a tensor with a distinct stride for each dimension."""
    if len(call.shapes) != 1:
        return None
    (shape,) = call.shapes
    strides = [1009 + 2 * i for i in range(len(shape))]
    out = call.on_meta([torch.empty_strided(shape, strides, device="meta")])
    views = list(out) if isinstance(out, (tuple, list)) else [out]
    of = dict(zip(zip(strides, shape), range(len(shape))))
    results = [tuple([of.get(key) for key in zip(v.stride(), v.shape)]) for v in views]
    everywhere = set.intersection(*[set(labels) for labels in results]) if results else set()
    kept = tuple([i if i in everywhere else None for i in range(len(shape))])
    return Rule([kept], [tuple([i if i in everywhere else None for i in labels]) for labels in results], "all")


@_rule("cat", "stack")
def _cat(call: Call) -> Rule:
    joined, ndim = call.arguments.get("dim", 0), len(call.shapes[0])
    if call.name == "stack":
        at = joined % (ndim + 1)
        labels: tuple[int | None, ...] = tuple(range(ndim))
        return Rule([labels] * len(call.shapes), [(*labels[:at], None, *labels[at:])], "all", moves=True)
    labels = tuple([None if i == joined % ndim else i for i in range(ndim)])
    return Rule([labels] * len(call.shapes), [labels], "all")
