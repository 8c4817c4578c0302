# SPDX-License-Identifier: Apache-2.0
"""Passes that replace the operations of attention by one operator, and remove unused gradients of biases.

Before differentiation:

- `softmax(q @ k.T * scale + mask) @ v` becomes one attention operator. The intermediate values must have no other use,
  and the executor must support the call. The matmuls may be written with matmul or einsum, masks may be additive or
  filled in, and dropout is supported.
- Keys and values that are repeated for the query's heads are replaced by the tensors before the repetition.
- Attention without a batch dimension gets a batch dimension of size 1.
- A causal mask or a sliding window becomes a flag. The additive form of another mask is computed once for all layers.

A fully masked row then gives zeros, as in torch's attention; the separate operations would give NaN. If intermediate
values are detached (`torch.no_grad` detaches after each operation), the inputs of the attention are detached.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import thunder.torch as ltorch
from thunder.extend import (
    BoundSymbol,
    Proxy,
    TensorProxy,
    Trace,
    dtypes,
    proxies_in,
    rewrite,
)
from thunder_ex_cudnn.attention.causal_masks import is_least, side_of
from thunder_ex_cudnn.attention.graphs import Causal
from thunder_ex_cudnn.attention.implementation import added_by, takes
from thunder_ex_cudnn.attention.index_expressions import filled
from thunder_ex_cudnn.attention.matmul_patterns import as_scores, as_weighted, is_product, ordered

__all__ = ["register"]


class _Mask(NamedTuple):
    """A mask of scores: an additive tensor, or a condition with the value to fill in where the condition is false."""

    tensor: Any
    fill: float | None = None
    negated: bool = False


class _Scores(NamedTuple):
    """The argument of softmax: `query @ key.T * scale`, and the masks."""

    query: Any
    key: Any
    scale: float
    masks: tuple[_Mask, ...]


class _Finder:
    """Matches attention in one trace. Records replacements in the trace under construction."""

    def __init__(self, trace: Trace, attention: Any):
        self.attention = attention
        self.biases: dict[Any, Any] = {}  # the additive forms of masks, which layers share
        self.made = {name: op for op in trace.bound_symbols for name in op.out_names}
        works = [op for op in trace.bound_symbols if op.out_names or op.sym.must_stay]  # others have no effect
        self.uses = Counter(name for op in works for name in op.arg_names)
        self.uses.update({p.name for p in proxies_in(trace.output)})

    def replacement(self, op: BoundSymbol) -> Any:
        """Return the replacement of an operation's result; None if the operation is not replaced."""
        if op.sym.id == "torch.scaled_dot_product_attention":
            return self.simplified(op)
        return self.spelt_out(op) if is_product(op) else None

    def detached(self, x: Any) -> Any:
        """Detach `x`."""
        new = ltorch.detach(x)
        self.made[new.name] = BoundSymbol(ltorch.detach, (x,), {}, new)
        return new

    def cut(self, scores: _Scores) -> _Scores:
        """Detach the tensors of the scores."""
        masks = tuple(
            m if m.tensor.dtype is dtypes.bool8 else m._replace(tensor=self.detached(m.tensor)) for m in scores.masks
        )
        return scores._replace(query=self.detached(scores.query), key=self.detached(scores.key), masks=masks)

    def behind(self, x: Any) -> tuple[BoundSymbol | None, bool]:
        """Return the operation that computes `x` before any detaches, and whether there are detaches."""
        op = self.made.get(x.name) if isinstance(x, Proxy) else None
        cut = False
        while op is not None and op.sym.id == "torch.detach":
            op, cut = self.made.get(op.args[0].name), True
        return op, cut

    def inner(self, x: Any) -> BoundSymbol | None:
        """Return the operation that computes `x` if `x` has only one use; None otherwise."""
        return self.made.get(x.name) if isinstance(x, TensorProxy) and self.uses[x.name] == 1 else None

    # -- calls of torch's attention ------------------------------------------------------------------------------------
    def simplified(self, op: BoundSymbol) -> Any:
        """Return a call of attention without repeated heads, and with a flag instead of a causal mask."""
        query, key, value, mask, p, is_causal, scale, _ = _arguments(*op.args, **op.kwargs)
        lacks_batch = query.ndim == key.ndim == value.ndim == 3
        if lacks_batch:
            query, key, value = (ltorch.unsqueeze(x, 0) for x in (query, key, value))
        if not query.ndim == key.ndim == value.ndim == 4:
            return None
        masks = () if mask is None else (_Mask(mask),)
        side = None if is_causal else self.side(masks, query, key)
        heads = self.shared_heads(key), self.shared_heads(value)
        truths = mask is not None and mask.dtype is dtypes.bool8
        if heads[0] is key and heads[1] is value and side is None and not truths and not lacks_batch:
            return None
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
        if side is not None:
            masks = ()
        out = self.made_of(query, *heads, masks, p, "top-left" if is_causal else side, scale)
        return ltorch.squeeze(out, 0) if lacks_batch and out is not None else out

    def shared_heads(self, x: Any) -> Any:
        """Return keys or values as they were before their heads were repeated.

        Return None if they were not repeated.
        """
        op, cut = self.behind(x)
        if op is None or not op.args:
            return x
        if op.sym.id == "torch.repeat_interleave":
            source, times, dim = (*op.args, *op.kwargs.values(), None, None)[:3]
            source = source if isinstance(times, int) and dim in (1, -3) else None
        else:
            source = self.spread(op, x) if op.sym.id in ("torch.reshape", "torch.view", "torch.flatten") else None
        if source is None:
            return x
        return self.detached(source) if cut else source

    def spread(self, op: BoundSymbol, x: Any) -> Any:
        """Return the source of heads that are repeated by `unsqueeze`, `expand` and a reshape."""
        wide, cut = self.behind(op.args[0])
        if wide is None or wide.sym.id not in ("torch.expand", "torch.repeat"):
            return None
        adds, cut_too = self.behind(wide.args[0])
        if adds is None or not _adds_third(adds):
            return None
        source, times = adds.args[0], wide.output.shape[2] if wide.output.ndim == 5 else 0
        b, heads, *rest = source.shape
        if tuple(wide.output.shape) != (b, heads, times, *rest) or tuple(x.shape) != (b, heads * times, *rest):
            return None
        return self.detached(source) if cut or cut_too else source

    # -- attention that is written out ---------------------------------------------------------------------------------
    def spelt_out(self, op: BoundSymbol) -> Any:
        """Return one attention operator for the matmul of weights and values."""
        weighted = as_weighted(op)
        if weighted is None:
            return None
        weights, value, order = weighted
        p, cut, found = 0.0, False, self.inner(weights)
        while found is not None and (found.sym.facts.casts or found.sym.id in ("torch.dropout", "torch.detach")):
            if found.sym.id == "torch.dropout":
                p = _probability(found) if p == 0.0 else 1.0
            cut = cut or found.sym.id == "torch.detach"
            found = self.inner(found.args[0])
        if found is None or found.sym.id != "torch.softmax" or p >= 1:
            return None
        dim = found.args[1] if len(found.args) > 1 else found.kwargs.get("dim")
        scores = self.scores(found.args[0]) if dim in (-1, weights.ndim - 1) else None
        if scores is None or scores.query.ndim != value.ndim or value.ndim not in (3, 4):
            return None
        query, key, _, masks = self.cut(scores) if cut else scores
        if not query.dtype is key.dtype is value.dtype is op.output.dtype:
            return None
        if value.ndim == 3:  # a single head
            query, key, value = (_with_heads(x) for x in (query, key, value))
            masks = tuple(m._replace(tensor=_with_heads(m.tensor)) if m.tensor.ndim == 3 else m for m in masks)
        side = self.side(masks, query, key)
        heads = (self.shared_heads(key), self.shared_heads(value))
        out = self.made_of(query, *heads, () if side else masks, p, side, scores.scale)
        if out is None:
            return None
        return ordered(_without_heads(out) if weights.ndim == 3 else out, order)

    def scores(self, x: Any, scale: float = 1.0, masks: tuple[_Mask, ...] = ()) -> _Scores | None:
        """Match the argument of softmax, from its last operation back to the matmul."""
        op = self.inner(x)
        if op is None:
            return None
        product = as_scores(op)
        if product is not None:
            query, of_query = self.unscaled(product[0])
            key, of_key = self.unscaled(self.untransposed(product[1]) if product[2] else product[1])
            return _Scores(query, key, scale * of_query * of_key, masks)
        if op.sym.id == "torch.detach":
            found = self.scores(op.args[0], scale, masks)
            return found and self.cut(found)
        if op.sym.facts.casts:
            return self.scores(op.args[0], scale, masks) if _is_widening(op.args[0], op.output) else None
        source, factor = self.scaled(op)
        if source is not None:
            return self.scores(source, scale * factor, masks)
        for source, mask in _masked(op):
            # A mask that is added before a scaling would be scaled, too.
            if scale == 1.0 and isinstance(source, TensorProxy) and tuple(source.shape) == tuple(x.shape):
                found = self.scores(source, scale, (*masks, mask))
                if found is not None:
                    return found
        return None

    def scaled(self, op: BoundSymbol) -> tuple[Any, float]:
        """Match a multiplication or division by a number. Return the tensor (None: no match) and the factor."""
        if op.sym.id not in ("torch.mul", "torch.div") or len(op.args) != 2 or op.kwargs:
            return None, 1.0
        for x, factor in (op.args, op.args[::-1]):
            if isinstance(factor, TensorProxy) and factor.ndim == 0:
                factor = filled(factor, self.made)
            if isinstance(x, TensorProxy) and type(factor) in (int, float) and factor:
                if op.sym.id == "torch.mul":
                    return x, float(factor)
                return (x, 1.0 / factor) if x is op.args[0] else (None, 1.0)
        return None, 1.0

    def unscaled(self, x: Any) -> tuple[Any, float]:
        """Return an operand of the matmul before it is scaled, and the factor."""
        op, cut = self.behind(x)
        source, factor = (None, 1.0) if op is None else self.scaled(op)
        if source is None or source.dtype is not x.dtype:
            return x, 1.0
        return (self.detached(source) if cut else source), factor

    def untransposed(self, x: Any) -> Any:
        """Return keys with their last two dimensions transposed. Never transpose twice."""
        op, cut = self.behind(x)
        if op is not None and op.sym.id in ("torch.mT", "torch.transpose", "torch.swapaxes", "torch.swapdims"):
            dims = {d % x.ndim for d in op.args[1:] if isinstance(d, int)}
            if op.sym.id == "torch.mT" or dims == {x.ndim - 1, x.ndim - 2}:
                return self.detached(op.args[0]) if cut else op.args[0]
        return ltorch.transpose(x, -2, -1)

    # -- the replacement ---------------------------------------------------------------------------------------------
    def side(self, masks: tuple[_Mask, ...], query: Any, key: Any) -> Causal:
        """Return the corner (and window) of a causal mask, if it is the only mask."""
        if len(masks) != 1:
            return None
        return side_of(masks[0].tensor, query.shape[2], key.shape[2], self.made, negated=masks[0].negated)

    def made_of(
        self, query: Any, key: Any, value: Any, masks: tuple[_Mask, ...], p: float, side: Causal, scale: float
    ) -> Any:
        """Return the attention operator; None if the executor does not support the call."""
        kind = (query.dtype, *((m.tensor.name, m.fill, m.negated) for m in masks))
        mask = self.biases.get(kind)
        if mask is None and masks:
            mask = added_by(_joined(masks), query.dtype)
        corner = isinstance(side, tuple) or (side == "bottom-right" and query.shape[2] != key.shape[2])
        how: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
        if (corner and p) or takes(query, key, value, mask, p, side is not None, **how) is not True:
            return None
        self.biases[kind] = mask
        if corner:
            return self.attention(query, key, value, None, side, scale)
        return ltorch.scaled_dot_product_attention(query, key, value, mask, p, side is not None, **how)


def _arguments(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: Any = None, enable_gqa: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    return query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa


def _probability(dropout: BoundSymbol) -> float:
    p = dropout.args[1] if len(dropout.args) > 1 else dropout.kwargs.get("p", 0.5)
    return float(p) if len(dropout.args) + len(dropout.kwargs) <= 2 and type(p) in (int, float) else 1.0


def _masked(op: BoundSymbol) -> Iterator[tuple[Any, _Mask]]:
    """Yield the tensor that an operation masks, and the mask, for each interpretation of the operation."""
    id, args = op.sym.id, op.args
    if id == "torch.add" and len(args) == 2 and not op.kwargs:
        for x, mask in (args, args[::-1]):
            if isinstance(mask, TensorProxy) and dtypes.is_float_dtype(mask.dtype) and mask.ndim > 1:
                yield x, _Mask(mask)
    elif id == "torch.masked_fill" and is_least(args[2]) and args[1].ndim > 1:
        yield args[0], _Mask(args[1], args[2], negated=True)
    elif id == "torch.where" and len(args) == 3 and is_least(args[2]) and args[0].ndim > 1:
        yield args[1], _Mask(args[0], args[2])


def _joined(masks: tuple[_Mask, ...]) -> Any:
    """Combine masks into one mask. It is boolean if all masks are boolean, otherwise additive."""
    seen: Any = None
    added: Any = None
    for mask in masks:
        if mask.fill is None and mask.tensor.dtype is not dtypes.bool8:
            added = mask.tensor if added is None else added + mask.tensor
            continue
        condition = ltorch.logical_not(mask.tensor) if mask.negated else mask.tensor
        if mask.fill is None or mask.fill == -math.inf:
            seen = condition if seen is None else ltorch.logical_and(seen, condition)
        else:
            term = ltorch.where(condition, 0.0, mask.fill)
            added = term if added is None else added + term
    if added is None or seen is None:
        return seen if added is None else added
    return ltorch.where(seen, added, -math.inf)


def _is_widening(source: Any, result: Any) -> bool:
    wide = result.dtype in (source.dtype, dtypes.float32, dtypes.float64)
    return wide and tuple(source.shape) == tuple(result.shape)


def _adds_third(op: BoundSymbol) -> bool:
    """Check whether an operation only inserts a dimension of size 1 at index 2."""
    if op.sym.id == "torch.unsqueeze":
        return op.args[1] in (2, -3)
    if op.sym.id != "torch.getitem" or not isinstance(op.args[1], tuple):
        return False
    key = op.args[1]
    whole = [k == slice(None) for k in key]
    return len(key) in (3, 4, 5) and key[2] is None and all(w for i, w in enumerate(whole) if i != 2)


def _with_heads(x: Any) -> Any:
    return ltorch.unsqueeze(x, 1)


def _without_heads(x: Any) -> Any:
    return ltorch.squeeze(x, 1)


def register(registry: Any, executor: str) -> None:
    """Register the passes."""
    attention = registry.operator("cudnn_attention")
    backward = [registry.operator(f"cudnn_attention_{name}backward") for name in ("", "dropout_")]
    with_bias = {sym.id: sym for sym in backward}

    def find(trace: Trace, context: Any) -> Trace:
        return rewrite(trace, "Attention that is written out", _Finder(trace, attention).replacement)

    def prune(trace: Trace, context: Any) -> Trace:
        used = {name for op in trace.bound_symbols for name in op.arg_names}

        def without_bias(op: BoundSymbol) -> Any:
            sym = with_bias.get(op.sym.id)
            if sym is None or not op.args[-1] or op.output[3].name in used:
                return None
            return *sym(*op.args[:-1], False), None

        return rewrite(trace, "Unused gradients of biases", without_bias)

    registry.register_transform("cudnn_attention", find, phase="before_grad", executor=executor)
    registry.register_transform("cudnn_attention_unused", prune, phase="before_execution")
