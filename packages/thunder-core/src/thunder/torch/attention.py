# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention.

Without gradients, torch runs attention as one operation. With gradients, the rule queries which kernel torch would
choose. For a fused kernel, it records `attention_forward` and `attention_backward`. Between them, the result and the
logsumexp (the logarithm of the sum of exponentials) of each row are saved. The gradient of a mask is a separate
operation, which is dropped if it is not needed. If torch would compute attention step by step, the rule does so too,
and saves the attention weights.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import ThunderError, check
from thunder.core.nbytes import known_shape
from thunder.core.prims import get_grad, needs_grad, put_grads
from thunder.core.prims.matmul import matmul_grads
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import equal_shapes, same_shape, specialized
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.dropout import dropped
from thunder.torch.private import ATTENTION_ADDS_A_BATCH, DisableTorchFunction, fused_sdp_choice, without_modes

_TAGS = (OpTags.MATMUL_OP, OpTags.LAYOUT_OF_KERNEL)
# The numbers of torch's kernels.
_MATH, _FLASH, _EFFICIENT, _CUDNN = 0, 1, 2, 3
_NAMES = {_FLASH: "flash", _EFFICIENT: "efficient", _CUDNN: "cudnn"}


# -- checks ------------------------------------------------------------------------------------------------------------
def _check(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, enable_gqa: bool) -> None:
    tensors = {"query": query, "key": key, "value": value}
    check(
        query.dtype is key.dtype is value.dtype,
        lambda: (
            "Expected query, key, and value to have the same dtype, but got "
            + " ".join(f"{n}.dtype: {x.dtype}" for n, x in tensors.items())
        ),
    )
    check(
        min(x.ndim for x in tensors.values()) >= 2,
        lambda: (
            "Expected query, key, and value to all be  at least 2 dimensional, but got "
            + " ".join(f"{n}.dim: {x.ndim}" for n, x in tensors.items())
        ),
    )
    check(dtypes.is_inexact_dtype(query.dtype), lambda: f"expected scalar type Float but found {query.dtype}")
    check(
        query.shape[-1] == key.shape[-1],
        lambda: f"query and key must have the same last dimension, but have {query.shape[-1]} and {key.shape[-1]}",
    )
    check(
        key.shape[-2] == value.shape[-2],
        lambda: f"key and value must have the same length, but have {key.shape[-2]} and {value.shape[-2]}",
        ThunderError,  # torch computes a result from memory that does not belong to the tensors
    )
    check(0 <= dropout_p <= 1, lambda: f"dropout probability has to be between 0 and 1, but got {dropout_p}")
    check(
        attn_mask is None or attn_mask.dtype in (dtypes.bool8, dtypes.float32, query.dtype),
        lambda: (
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{attn_mask.dtype} and  query.dtype: {query.dtype} instead."
        ),
    )
    if enable_gqa:
        heads = [x.shape[-3] if x.ndim > 2 else 0 for x in tensors.values()]
        check(
            all(heads) and heads[0] % heads[1] == 0 and heads[0] % heads[2] == 0,
            lambda: f"Number of heads in key and value must divide the number of heads in query, but there are {heads}",
        )
    else:  # a single head is shared by all others
        clang.base.compute_broadcast_shape(query.shape[:-2], value.shape[:-2])
        lead = clang.base.compute_broadcast_shape(query.shape[:-2], key.shape[:-2])
        if attn_mask is not None:
            scores = (*lead, query.shape[-2], key.shape[-2])
            masked = clang.base.compute_broadcast_shape(scores, attn_mask.shape)
            check(
                same_shape(scores, masked),
                lambda: f"output with shape {list(scores)} doesn't match the broadcast shape {list(masked)}",
            )


def _scale(query: Any, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)


# -- step by step ------------------------------------------------------------------------------------------------------
def _wide(x: Any) -> Any:
    return clang.maybe_convert_to_dtype(x, clang.reductions.compute_dtype(x.dtype))


def _for_heads(x: Any, query: Any) -> Any:
    """Return keys or values with each head repeated for all query heads that share it."""
    if x.ndim < 3 or query.ndim < 3 or query.shape[-3] == 1 or x.shape[-3] in (1, query.shape[-3]):
        return x
    times = query.shape[-3] // x.shape[-3]
    spread = (*x.shape[:-2], times, *x.shape[-2:])
    return ltorch.reshape(
        ltorch.expand(ltorch.unsqueeze(x, -3), spread), (*x.shape[:-3], query.shape[-3], *x.shape[-2:])
    )


def _of_heads(g: Any, like: Any) -> Any:
    """Return the gradient of keys or values, given the gradient of the result of `_for_heads`."""
    if like.ndim >= 3 and g.ndim >= 3 and like.shape[-3] not in (1, g.shape[-3]):
        times = g.shape[-3] // like.shape[-3]
        shared = (*g.shape[:-3], like.shape[-3], times, *g.shape[-2:])
        g = clang.sum(ltorch.reshape(g, shared), len(shared) - 3)
    return clang.maybe_convert_to_dtype(ltorch.sum_to_size(g, like.shape), like.dtype)


def _scores(query: Any, key: Any, attn_mask: Any, is_causal: bool, scale: float) -> Any:
    """Return the input of the softmax."""
    s = clang.matmul(_wide(query) * scale, ltorch.transpose(_for_heads(_wide(key), query), -2, -1))
    return _masked(s, attn_mask, is_causal)


def _masked(s: Any, attn_mask: Any, is_causal: bool) -> Any:
    if is_causal:
        rows, columns = (ltorch.arange(n, device=s.device) for n in s.shape[-2:])
        s = ltorch.where(columns <= ltorch.unsqueeze(rows, 1), s, -math.inf)
    if attn_mask is None:
        return s
    if attn_mask.dtype is dtypes.bool8:
        return ltorch.where(attn_mask, s, -math.inf)
    return s + attn_mask


def _weights(scores: Any) -> tuple[Any, Any]:
    """Return the softmax over the last dimension (zeros for a row of -inf), and the logsumexp of each row."""
    dim = scores.ndim - 1
    if scores.shape[-1] == 0:
        return scores, ltorch.full(scores.shape[:-1], -math.inf, dtype=scores.dtype, device=scores.device)
    largest = clang.amax(scores, dim, True)
    largest = ltorch.where(largest == -math.inf, 0.0, largest)
    exponents = ltorch.exp(scores - largest)
    total = clang.sum(exponents, dim, True)
    lse = ltorch.squeeze(ltorch.log(total) + largest, dim)
    return exponents / ltorch.where(total == 0, 1.0, total), lse


def _attend(weights: Any, value: Any, query: Any) -> Any:
    out = clang.matmul(weights, _for_heads(_wide(value), query))
    return clang.maybe_convert_to_dtype(out, query.dtype)


def _lacks_batch(query: Any, key: Any, value: Any) -> bool:
    """Check whether torch adds a batch dimension."""
    return ATTENTION_ADDS_A_BATCH and query.ndim == key.ndim == value.ndim == 3


def _with_batch(query: Any, key: Any, value: Any, attn_mask: Any) -> tuple[Any, Any, Any, Any]:
    if attn_mask is not None:
        attn_mask = ltorch.reshape(attn_mask, (1,) * (4 - attn_mask.ndim) + attn_mask.shape)
    return ltorch.unsqueeze(query, 0), ltorch.unsqueeze(key, 0), ltorch.unsqueeze(value, 0), attn_mask


@torchsymbol(torch.nn.functional.scaled_dot_product_attention, is_method=False, tags=_TAGS, autocast="lower")
def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Compute softmax(query @ key.T * scale + attn_mask) @ value. A row whose elements are all masked gives zeros."""
    if _lacks_batch(query, key, value):
        how: Any = {"scale": scale, "enable_gqa": enable_gqa}
        tensors = _with_batch(query, key, value, attn_mask)
        return ltorch.squeeze(scaled_dot_product_attention(*tensors, dropout_p, is_causal, **how), 0)
    _check(query, key, value, attn_mask, dropout_p, enable_gqa)
    weights, _ = _weights(_scores(query, key, attn_mask, is_causal, _scale(query, scale)))
    if dropout_p:
        weights = ltorch.dropout(weights, dropout_p)
    return _attend(weights, value, query)


# -- gradients ---------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """Disable tracing of calls to torch in this context."""
    with DisableTorchFunction(), without_modes(), torch.enable_grad():
        yield


def _stand_in(x: Any) -> Any:
    """Return a tensor with the metadata of `x` and almost no memory. Symbolic sizes are replaced by their hints."""
    kind, shape = dtypes.to_torch_dtype(x.dtype), known_shape(x)
    return torch.empty(shape[-1] if shape else 1, dtype=kind, device=str(x.device)).expand(shape)


def _settle_sizes(query: Any, key: Any, value: Any) -> None:
    """Add constraints for the symbolic sizes that the choice of a kernel depends on.

    These are the widths, and whether the numbers of batches and heads are equal. Any kernel supports all lengths.
    """
    specialized(tuple(x.shape[-1] for x in (query, key, value)))
    for n, m in ((query.shape[:-2], key.shape[:-2]), (key.shape[:-1], value.shape[:-1])):
        equal_shapes(n, m)


def _chosen_kernel(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, how: dict[str, Any]
) -> int:
    """Return the number of the kernel that torch chooses for these tensors if their gradients are needed."""
    if query.device.type not in ("cpu", "cuda") or min(query.ndim, key.ndim, value.ndim) < 4:
        return _MATH
    if dropout_p == 1 or (attn_mask is not None and attn_mask.ndim < 2):  # cuDNN's kernel would crash the process
        return _MATH
    if query.device.type == "cpu" and key.shape[:-3] != query.shape[:-3]:
        return _MATH
    if 0 in known_shape(query):
        return _MATH  # torch's kernel for the CPU divides by the number of heads
    _settle_sizes(query, key, value)
    with _plain_torch():
        tensors = [_stand_in(x).detach().requires_grad_() for x in (query, key, value)]
        mask = None if attn_mask is None else _stand_in(attn_mask).requires_grad_(_has_gradient(attn_mask))
        return int(fused_sdp_choice(*tensors, mask, dropout_p, is_causal, **how))


@torchsymbol(id="torch.attention_forward", tags=_TAGS)
def attention_forward(
    query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, scale: float, kernel: str
) -> Any:
    """Return the result of attention and the logsumexp of each row. `kernel` is the kernel that torch chooses."""
    weights, lse = _weights(_scores(query, key, attn_mask, is_causal, scale))
    return _attend(weights, value, query), lse


def _again(query: Any, key: Any, lse: Any, attn_mask: Any, is_causal: bool, scale: float) -> Any:
    """Recompute the attention weights."""
    lse = ltorch.unsqueeze(ltorch.where(ltorch.abs(lse) == math.inf, 0.0, lse), -1)
    return ltorch.exp(_scores(query, key, attn_mask, is_causal, scale) - lse)


def _of_scores(grad: Any, value: Any, weights: Any, out: Any, query: Any) -> Any:
    of_weights = clang.matmul(_wide(grad), ltorch.transpose(_for_heads(_wide(value), query), -2, -1))
    along = clang.sum(_wide(grad) * _wide(out), out.ndim - 1, True)
    return weights * (of_weights - along)


@torchsymbol(id="torch.attention_backward", tags=_TAGS)
def attention_backward(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    out: Any,
    lse: Any,
    is_causal: bool,
    scale: float,
    kernel: str,
) -> Any:
    """Return the gradients of attention's query, key and value."""
    weights = _again(query, key, lse, attn_mask, is_causal, scale)
    of_scores = _of_scores(grad, value, weights, out, query)
    of_query = clang.matmul(of_scores, _for_heads(_wide(key), query)) * scale
    of_key = clang.matmul(ltorch.transpose(of_scores, -2, -1), _wide(query)) * scale
    of_value = clang.matmul(ltorch.transpose(weights, -2, -1), _wide(grad))
    return _of_heads(of_query, query), _of_heads(of_key, key), _of_heads(of_value, value)


@torchsymbol(id="torch.attention_mask_grad", tags=_TAGS)
def attention_mask_grad(
    grad: Any, query: Any, key: Any, value: Any, attn_mask: Any, out: Any, lse: Any, is_causal: bool, scale: float
) -> Any:
    """Return the gradient of attention's additive mask."""
    weights = _again(query, key, lse, attn_mask, is_causal, scale)
    of_scores = _of_scores(grad, value, weights, out, query)
    return clang.maybe_convert_to_dtype(ltorch.sum_to_size(of_scores, attn_mask.shape), attn_mask.dtype)


@torchsymbol(id="torch.attention_backward_of_mask", tags=_TAGS)
def attention_backward_of_mask(
    grad: Any, query: Any, key: Any, value: Any, attn_mask: Any, out: Any, lse: Any, is_causal: bool, scale: float,
    kernel: str,
) -> Any:  # fmt: skip
    """Return the gradients of attention's query, key, value and additive mask."""
    how = (query, key, value, attn_mask, out, lse, is_causal, scale)
    return *attention_backward(grad, *how, kernel), attention_mask_grad(grad, *how)


# A rule returns the result and the gradients of query, key, value and mask. `flow` maps the result of an operation to
# that result and the gradient that flows into it.
_Flow = Callable[[Any], tuple[Any, Any]]
_Rule = tuple[Any, list[Any]]


def _safe_softmax(scores: Any) -> Any:
    """Return the softmax over the last dimension, which is zero for a row of -inf."""
    if scores.shape[-1] == 0:
        return scores
    empty = clang.amax(scores, scores.ndim - 1, True) == -math.inf
    return ltorch.where(empty, 0.0, ltorch.softmax(scores, -1))


def _stepwise_rule(
    flow: _Flow, query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: float,
    learns_mask: bool,
) -> _Rule:  # fmt: skip
    check(
        attn_mask is None or not is_causal,
        lambda: "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True",
    )
    # As in torch, each factor is multiplied by the square root of the scale.
    root = math.sqrt(abs(scale))
    left = _wide(query) * math.copysign(root, scale)
    right = ltorch.transpose(_for_heads(_wide(key), query), -2, -1) * root
    weights = _safe_softmax(_masked(clang.matmul(left, right), attn_mask, is_causal))
    kept: Any = weights * (1.0 - dropout_p) if dropout_p else weights
    noise: Any = 1.0 - dropout_p
    if 0 < dropout_p < 1:
        kept, noise = dropped(weights, dropout_p)
    out, g = flow(_attend(kept, value, query))
    g = _wide(g)
    of_value = clang.matmul(ltorch.transpose(kept, -2, -1), g)
    of_weights = clang.matmul(g, ltorch.transpose(_for_heads(_wide(value), query), -2, -1))
    of_weights = of_weights * noise if dropout_p else of_weights
    of_scores = ltorch.softmax_backward(of_weights, weights, weights.ndim - 1)
    of_left, of_right = matmul_grads(of_scores, left, right)
    of_query, of_key = of_left * math.copysign(root, scale), ltorch.transpose(of_right * root, -2, -1)
    of_mask = None
    if learns_mask:
        of_mask = clang.maybe_convert_to_dtype(ltorch.sum_to_size(of_scores, attn_mask.shape), attn_mask.dtype)
    return out, [_of_heads(of_query, query), _of_heads(of_key, key), _of_heads(of_value, value), of_mask]


def _dropout_rule(
    flow: _Flow, query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: float,
    kernel: str,
) -> _Rule:  # fmt: skip
    """Differentiate attention with dropout in the kernel. Backward draws the same random numbers again."""
    how = (dropout_p, is_causal, scale, kernel)
    out, lse, seed, offset = prims.attention_dropout(query, key, value, attn_mask, *how)
    result, g = flow(out)
    grads = prims.attention_dropout_backward(g, query, key, value, attn_mask, out, lse, seed, offset, *how)
    return result, [*grads, None]


def _fused_rule(
    flow: _Flow, query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, scale: float, kernel: str,
    learns_mask: bool,
) -> _Rule:  # fmt: skip
    out, lse = attention_forward(query, key, value, attn_mask, is_causal, scale, kernel)
    result, g = flow(out)
    how = (query, key, value, attn_mask, out, lse, is_causal, scale, kernel)
    if learns_mask:
        return result, [*attention_backward_of_mask(g, *how)]
    return result, [*attention_backward(g, *how), None]


def _has_gradient(attn_mask: Any) -> bool:
    return isinstance(attn_mask, TensorProxy) and dtypes.is_float_dtype(attn_mask.dtype) and needs_grad(attn_mask)


@scaled_dot_product_attention.batch
def _(
    b: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    **how: Any,
) -> Any:  # fmt: skip
    if dropout_p > 0:
        return NotImplemented
    ndim, rows = b.ndim(query), b.shape(query)[0]
    masked = attn_mask is not None
    simple = attn_mask not in b and not (masked and attn_mask.ndim == 4)
    if simple and ndim == 4 and b.ndim(key) == 4 and b.shape(key)[0] == rows:
        # torch's kernels have a single batch dimension.
        tensors = [b.merge(x) for x in (query, key, value)]
        return b.split(scaled_dot_product_attention(*tensors, attn_mask, dropout_p, is_causal, **how), rows)
    tensors = [b.line_up(b.expand(x), ndim) for x in (query, key, value)]
    attn_mask = b.line_up(attn_mask, ndim) if masked else None
    return scaled_dot_product_attention(*tensors, attn_mask, dropout_p, is_causal, **how)


@scaled_dot_product_attention.grad
def _(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    given = query, key, value, attn_mask
    lacks_batch = _lacks_batch(query, key, value)

    def flow(out: Any) -> tuple[Any, Any]:
        result = ltorch.squeeze(out, 0) if lacks_batch else out
        g = get_grad(result)
        return result, ltorch.reshape(g, out.shape) if lacks_batch else g

    tensors = _with_batch(*given) if lacks_batch else given
    if not lacks_batch and not dropout_p and attn_mask is not None and attn_mask.ndim == 3 and query.ndim == 4:
        # E.g. the biases of ALiBi. For such a mask torch materializes the scores; with a batch, its kernels accept it.
        tensors = (query, key, value, ltorch.unsqueeze(attn_mask, 0))
    number = _chosen_kernel(*tensors, dropout_p, is_causal, {"scale": scale, "enable_gqa": enable_gqa})
    factor = _scale(query, scale)
    learns_mask = _has_gradient(attn_mask)  # the mask in `tensors` may be a view, of which this is not known
    if number not in _NAMES or (dropout_p and learns_mask):
        result, grads = _stepwise_rule(flow, *tensors, dropout_p, is_causal, factor, learns_mask)
    elif dropout_p:
        result, grads = _dropout_rule(flow, *tensors, dropout_p, is_causal, factor, _NAMES[number])
    else:
        result, grads = _fused_rule(flow, *tensors, is_causal, factor, _NAMES[number], learns_mask)
    if tensors is not given:
        grads = [g if g is None else ltorch.reshape(g, x.shape) for x, g in zip(given, grads)]
    put_grads(given, grads)
    return result


# -- samples -----------------------------------------------------------------------------------------------------------
def _qkv(make: MakeTensor, *lead: int, length: int = 5, source: int = 7, size: int = 8) -> list[Any]:
    small = {"low": -2, "high": 2}
    return [
        make((*lead, length, size), **small),
        make((*lead, source, size), **small),
        make((*lead, source, size), **small),
    ]


def _mask(make: MakeTensor, *shape: int) -> Any:
    """Return a mask with at least one unmasked element in each row."""
    out = make(shape, dtype=torch.float32, requires_grad=False) > -3
    out[..., 0] = True
    return out


@scaled_dot_product_attention.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(*_qkv(make, 2, 3))
    yield SampleInput(*_qkv(make, 2, 3, source=5), is_causal=True)
    yield SampleInput(*_qkv(make, 2, 3), is_causal=True, scale=0.3)
    yield SampleInput(*_qkv(make, 2, 3), _mask(make, 5, 7))
    yield SampleInput(*_qkv(make, 2, 3), _mask(make, 2, 1, 5, 7))
    yield SampleInput(*_qkv(make, 2, 3), make((5, 7), low=-2, high=2))
    yield SampleInput(*_qkv(make, 2, 3), make((2, 3, 5, 7), low=-2, high=2, requires_grad=False))
    blocked = _mask(make, 5, 7)
    blocked[2] = False
    yield SampleInput(*_qkv(make, 2, 3), blocked)
    yield SampleInput(*_qkv(make, 3), _mask(make, 5, 7))
    yield SampleInput(*_qkv(make))
    query, key, value = _qkv(make, 2, 4)
    yield SampleInput(query, key[:, :2], value[:, :2], enable_gqa=True)
    yield SampleInput(*[x.transpose(1, 2) for x in _qkv(make, 2, 5, length=3, source=3)])
    query, key, _ = _qkv(make, 2, 3)
    yield SampleInput(query, key, make((2, 3, 7, 4), low=-2, high=2))


@scaled_dot_product_attention.errors
def _(make: MakeTensor) -> Any:
    query, key, value = _qkv(make, 2, 4)
    yield SampleInput(make((4,)), make((4,)), make((4,))), RuntimeError, "to all be  at least 2 dimensional"
    other = make(query.shape, dtype=torch.float64)
    yield SampleInput(other, key, value), RuntimeError, "Expected query, key, and value to have the same dtype"
    mask = make((5, 7), dtype=torch.int64)
    yield SampleInput(query, key, value, mask), RuntimeError, "Expected attn_mask dtype to be bool or float"
    yield (
        SampleInput(query, key[:, :3], value[:, :3], enable_gqa=True),
        RuntimeError,
        "Number of heads in key and value",
    )
    yield SampleInput(query, key, value, dropout_p=2.0), RuntimeError, "has to be between 0 and 1"


@attention_forward.samples
def _(make: MakeTensor) -> Any:
    # torch's kernel gives the logsumexp no gradient, but the decomposition does.
    fixed: Any = functools.partial(make, requires_grad=False)
    yield SampleInput(*_qkv(fixed, 2, 3), None, False, 0.3, "flash")
    yield SampleInput(*_qkv(fixed, 2, 3, source=5), None, True, 0.3, "flash")
    yield SampleInput(*_qkv(fixed, 2, 3), _mask(fixed, 5, 7), False, 0.3, "flash")


def _after_forward(make: MakeTensor) -> Any:
    """Yield arguments of operations after a forward pass: grad, query, key, value, mask, out, lse, is_causal, scale."""
    for mask, causal in ((None, False), (None, True), (make((5, 7), low=-2, high=2), False)):
        query, key, value = _qkv(make, 2, 3)
        scores = query.detach().float() @ key.detach().float().mT * 0.3
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
        elif mask is not None:
            scores = scores + mask.detach().float()
        out = (scores.softmax(-1) @ value.detach().float()).to(query.dtype)
        lse = scores.logsumexp(-1).to(torch.float64 if query.dtype == torch.float64 else torch.float32)
        grad = make((2, 3, 5, 8), low=-1, high=1)  # kernels round weights to half precision
        yield grad, query, key, value, mask, out, lse, causal, 0.3


def _kernels(args: Any) -> tuple[str, ...]:
    return ("flash", "efficient") if args[0].device.type == "cuda" else ("flash",)


@attention_backward.samples
def _(make: MakeTensor) -> Any:
    for args in _after_forward(make):
        yield from [SampleInput(*args, kernel) for kernel in _kernels(args)]


@attention_mask_grad.samples
def _(make: MakeTensor) -> Any:
    *_, args = _after_forward(make)
    yield SampleInput(*args)


@attention_backward_of_mask.samples
def _(make: MakeTensor) -> Any:
    *_, args = _after_forward(make)
    yield SampleInput(*args, _kernels(args)[-1])
