# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.attention.flex_attention`: attention whose scores are modified and masked by functions of one element.

`score_mod` and `mask_mod` are arguments of the operation: `ScalarProgram`s (`passes/scalar_programs.py`), which an
executor inlines in its kernel. The values that these functions capture are operands. The decomposition materializes
the scores. Backward computes them again from the logsumexp of each row, so no program saves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.prims import get_grad, needs_grad, put_grads
from thunder.core.printer import call_with_programs
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.attention import _for_heads, _of_heads, _safe_softmax, _wide
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol

_TAGS = (OpTags.MATMUL_OP, OpTags.LAYOUT_OF_KERNEL)
_LN2 = math.log(2.0)
_ELEMENTS = 5  # the score and the indices, which precede what `score_mod` captures


def _positions(query: Any, key: Any) -> list[Any]:
    """Return the indices of batches, heads, queries and keys."""
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return [ltorch.arange(n, device=query.device) for n in sizes]


def _scores(query: Any, key: Any, scale: float) -> Any:
    return clang.matmul(_wide(query), ltorch.transpose(_for_heads(_wide(key), query), -2, -1)) * scale


def _masked(scores: Any, mask_mod: Any, positions: Sequence[Any], captured: Sequence[Any], value: float) -> Any:
    return scores if mask_mod is None else ltorch.where(mask_mod.over(positions, captured), scores, value)


def _unchanged(g: Any) -> list[Any]:
    return [g]


def _whole(modified: Any, scores: Any) -> Any:
    """Return modified scores in the shape and dtype of the scores: functions may ignore scores and indices."""
    return ltorch.expand(clang.maybe_convert_to_dtype(modified, scores.dtype), scores.shape)


@torchsymbol(id="torch.flex_attention", is_method=False, tags=_TAGS)
def flex_attention(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, score_captured: Sequence[Any],
    mask_captured: Sequence[Any], block_mask: Sequence[Any] | None, scale: float, options: dict[str, Any],
    lse: bool, max_scores: bool,
) -> Any:  # fmt: skip
    """Return attention, the logsumexp of each row to base 2, and the largest score of each row to base 2.

    The last two are None unless `lse` and `max_scores` ask for them. `block_mask` has the entries of torch's
    `BlockMask.as_tuple()` without the function: they only tell a kernel what it can skip. `options` are torch's kernel
    options.
    """
    if not dtypes.is_float_dtype(query.dtype):
        raise NotImplementedError(f"flex_attention is not implemented for {query.dtype}")
    positions = _positions(query, key)
    plain = modified = _scores(query, key, scale)
    if score_mod is not None:
        modified = score_mod.over((plain, *positions), score_captured)
    scores = _whole(_masked(modified, mask_mod, positions, mask_captured, -math.inf), plain)
    weights = clang.maybe_convert_to_dtype(_safe_softmax(scores), query.dtype)
    out = clang.matmul(weights, clang.maybe_convert_to_dtype(_for_heads(value, query), query.dtype))
    rows = ltorch.logsumexp(scores, -1) / _LN2 if lse else None
    return out, rows, ltorch.detach(ltorch.amax(scores, -1)) / _LN2 if max_scores else None


@torchsymbol(id="torch.flex_attention_backward", is_method=False, tags=_TAGS)
def flex_attention_backward(
    grad: Any, grad_lse: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, score_mod: Any, mask_mod: Any,
    score_captured: Sequence[Any], mask_captured: Sequence[Any], block_mask: Sequence[Any] | None, scale: float,
    options: dict[str, Any], wrt: Sequence[int],
) -> Any:  # fmt: skip
    """Return the gradients of query, key, value and the captured tensors of `score_mod` with the numbers `wrt`.

    `lse` is the logsumexp of each row to base 2, and `grad_lse` its cotangent, or None.
    """
    positions = _positions(query, key)
    scores = _scores(query, key, scale)
    learnt = [score_captured[i] for i in wrt]
    modified: Any = scores
    pull: Callable[[Any], list[Any]] = _unchanged
    if score_mod is not None:
        modified, pull = score_mod.vjp_over((scores, *positions), score_captured, [scores, *learnt])
    masked = _whole(_masked(modified, mask_mod, positions, mask_captured, -math.inf), scores)
    rows = ltorch.unsqueeze(lse * _LN2, -1)
    weights = ltorch.where(rows == -math.inf, 0.0, ltorch.exp(masked - rows))
    grad = _wide(grad)
    of_weights = clang.matmul(grad, ltorch.transpose(_for_heads(_wide(value), query), -2, -1))
    along = clang.sum(grad * _wide(out), 3, True)
    if grad_lse is not None:
        along = along - ltorch.unsqueeze(grad_lse / _LN2, -1)
    of_modified = ltorch.sum_to_size(weights * (of_weights - along), modified.shape)  # it may be the same for all rows
    of_scores, *of_learnt = pull(clang.maybe_convert_to_dtype(of_modified, modified.dtype))
    of_value = clang.matmul(ltorch.transpose(weights, -2, -1), grad)
    if of_scores is None:
        of_scores = ltorch.zeros_like(scores)
    of_scores = _masked(of_scores, mask_mod, positions, mask_captured, 0.0) * scale
    of_query = clang.matmul(of_scores, _for_heads(_wide(key), query))
    of_key = clang.matmul(ltorch.transpose(of_scores, -2, -1), _wide(query))
    found = [_of_heads(g, x) for g, x in ((of_query, query), (of_key, key), (of_value, value))]
    return (*found, *[ltorch.zeros_like(x) if g is None else g for g, x in zip(of_learnt, learnt)])


for _sym in (flex_attention, flex_attention_backward):
    _sym.printer = call_with_programs
    _sym.is_kernel = True


@flex_attention.grad
def _(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, score_captured: Sequence[Any],
    mask_captured: Sequence[Any], block_mask: Sequence[Any] | None, scale: float, options: dict[str, Any],
    lse: bool, max_scores: bool,
) -> Any:  # fmt: skip
    how = (score_mod, mask_mod, score_captured, mask_captured, block_mask, scale, options)
    out, rows, largest = flex_attention(query, key, value, *how, True, max_scores)
    reached = () if score_mod is None else score_mod.differentiable
    wrt = tuple([i for i, x in enumerate(score_captured) if i + _ELEMENTS in reached and needs_grad(x)])
    grad_rows = get_grad(rows) if lse else None
    grads = flex_attention_backward(get_grad(out), grad_rows, query, key, value, out, rows, *how, wrt)
    put_grads((query, key, value, *[score_captured[i] for i in wrt]), grads)
    return out, rows if lse else None, largest


# -- samples -----------------------------------------------------------------------------------------------------------
# Without functions, which no layer below can trace; the tests of capture and of the executor have them.
def _calls(make: MakeTensor) -> Any:
    """Yield query, key, value and a scale."""
    bounds = {"low": -2, "high": 2}
    yield make((2, 3, 5, 8), **bounds), make((2, 3, 7, 8), **bounds), make((2, 3, 7, 4), **bounds), 0.3
    yield make((2, 4, 5, 8), **bounds), make((2, 2, 5, 8), **bounds), make((2, 2, 5, 8), **bounds), 1.0
    yield make((2, 2, 1, 8), **bounds), make((1, 2, 6, 8), **bounds), make((1, 2, 6, 8), **bounds), 0.5


@flex_attention.samples
def _(make: MakeTensor) -> Any:
    for *tensors, scale in _calls(make):
        yield SampleInput(*tensors, None, None, (), (), None, scale, {}, False, False)
        yield SampleInput(*tensors, None, None, (), (), None, scale, {}, True, False)


@flex_attention_backward.samples
def _(make: MakeTensor) -> Any:
    for query, key, value, scale in _calls(make):
        keys, values = (x.detach().repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = query.detach().to(wide) @ keys.to(wide).mT * scale
        out = (scores.softmax(-1) @ values.to(wide)).to(query.dtype)
        lse = scores.logsumexp(-1) / _LN2
        how = (query, key, value, out, lse, None, None, (), (), None, scale, {}, ())
        yield SampleInput(make(out.shape), None, *how)
        yield SampleInput(make(out.shape), make(lse.shape, dtype=lse.dtype), *how)
