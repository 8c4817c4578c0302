# SPDX-License-Identifier: Apache-2.0
"""torch's fused attention kernels, forward and backward, under one interface.

The kernels differ in the masks they accept, the layout of the log-sum-exp and the head sizes they support. These
functions hide the differences. `kernel` is the kernel that torch chose when the program was traced.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from thunder.runtime.kernels.table import kernel

__all__ = ["is_supported"]

aten = torch.ops.aten


def _binding(name: str) -> Callable[..., Any]:
    """Return a function of ATen by torch's Python binding, which has less overhead than `torch.ops`."""
    found: Callable[..., Any] = getattr(torch, name, None) or getattr(aten, name).default
    return found


_flash = _binding("_scaled_dot_product_flash_attention")
_efficient = _binding("_scaled_dot_product_efficient_attention")
_cudnn = _binding("_scaled_dot_product_cudnn_attention")
_flash_backward = aten._scaled_dot_product_flash_attention_backward.default
_efficient_backward = aten._scaled_dot_product_efficient_attention_backward.default
_cudnn_backward = aten._scaled_dot_product_cudnn_attention_backward.default
Optional = torch.Tensor | None
# The alignment, in elements, of the efficient kernel's masks and log-sum-exp.
_MASK_STEP, _SUM_STEP = 16, 32


def _additive(mask: Optional, query: torch.Tensor) -> Optional:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros((), dtype=query.dtype, device=query.device).masked_fill(~mask, float("-inf"))


def _aligned(mask: Optional, query: torch.Tensor, key: torch.Tensor) -> Optional:
    """Expand the mask to every head, in memory whose rows have the alignment that the efficient kernel requires."""
    if mask is None:
        return None
    mask = mask.to(query.dtype)
    if not _has_aligned_rows(mask, key.shape[-2]):
        mask = mask[tuple([slice(1) if step == 0 else slice(None) for step in mask.stride()])]  # no copies of copies
        length = key.shape[-2]
        memory = mask.new_zeros(*mask.shape[:-1], length + -length % _MASK_STEP)
        mask = memory[..., :length].copy_(mask)
    return mask.expand(*query.shape[:-1], key.shape[-2])


def _has_aligned_rows(mask: torch.Tensor, length: int) -> bool:
    """Check for dense rows of a length, each of which begins at a multiple of the alignment. Rows may be shared."""
    steps = [step for size, step in zip(mask.shape[:-1], mask.stride()) if size != 1]
    dense = mask.shape[-1] == length and (length == 1 or mask.stride(-1) == 1)
    begin = _address(mask) // mask.element_size()
    return dense and not any(n % _MASK_STEP for n in (length, begin, *steps))


def _padded(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pad the last dimension to a multiple of 8, as the flash kernel requires."""
    return tuple([F.pad(x, (0, -x.shape[-1] % 8)) if x.shape[-1] % 8 else x for x in tensors])


def _readable(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Copy tensors that kernels would silently read wrongly.

    The CPU's kernel assumes dense rows, and cuDNN assumes 16-byte alignment.
    """
    return [x if _is_readable(x) else x.clone(memory_format=torch.contiguous_format) for x in tensors]


def _is_readable(x: torch.Tensor) -> bool:
    return x.stride(-1) == 1 and (x.is_cpu or not _address(x) & 15)


def _address(x: torch.Tensor) -> int:
    """Return the address of a tensor, or its place in memory that begins at a multiple of the alignments.

    The memory of another library, e.g. of a part of an array by DLPack, may begin anywhere.
    """
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        with contextlib.suppress(RuntimeError):  # a batch of vmap has no address
            return x.data_ptr()
    return x.storage_offset() * x.element_size()


def _readable_mask(mask: Optional) -> Optional:
    """Copy a mask whose rows cuDNN's kernel cannot read as vectors, e.g. a permuted bias: it would raise or crash."""
    if mask is None or mask.shape[-1] == 1 or _is_readable(mask):
        return mask
    return mask.clone(memory_format=torch.contiguous_format)


def _with_adjacent_heads(out: torch.Tensor) -> torch.Tensor:
    """Copy a result of another layout than the efficient kernel's: its backward assumes this layout in half precision.

    Such results come from saved-tensor hooks, and from traces written by hand.
    """
    tokens = out.transpose(1, 2)
    return out if tokens.is_contiguous() else tokens.contiguous().transpose(1, 2)


def _cut(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Remove the padding."""
    size = like.shape[-1]
    return x if x.shape[-1] == size else x[..., :size]


def _zero_drawn(query: torch.Tensor, kernel: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the seed and offset of an operation that draws no random numbers."""
    shape, kind = ((2,), torch.uint64) if kernel == "flash" else ((), torch.int64)
    return torch.zeros(shape, dtype=kind, device=query.device), torch.zeros((), dtype=kind, device=query.device)


def _nothing_drawn(query: torch.Tensor, kernel: str) -> tuple[Any, Any]:
    """Return placeholders for seed and offset. No kernel reads them, and the CPU's kernel does not accept any."""
    if query.device.type == "cpu":
        return None, None
    make = _unread if type(query) is torch.Tensor else _unread.__wrapped__  # fake tensors are not cached
    return make(query.device, kernel)


@functools.cache
def _unread(device: torch.device, kernel: str) -> tuple[torch.Tensor, torch.Tensor]:
    shape, kind = ((2,), torch.uint64) if kernel == "flash" else ((), torch.int64)
    return torch.empty(shape, dtype=kind, device=device), torch.empty((), dtype=kind, device=device)


def is_supported(query: Any, key: Any, attn_mask: Any, is_causal: bool, kernel: str) -> bool | str:
    """Check whether a kernel supports this call. torch has checked traced calls, but not traces written by hand."""
    if query.device.type == "cpu" or kernel != "flash":
        return True
    if attn_mask is not None:
        return "the flash kernel does not support a mask"
    aligned = not is_causal or query.shape[-2] == key.shape[-2]
    return aligned or "the flash kernel aligns causal masks with the last query"


def _require(query: Any, key: Any, attn_mask: Any, is_causal: bool, kernel: str) -> None:
    reason = is_supported(query, key, attn_mask, is_causal, kernel)
    if reason is not True:
        raise NotImplementedError(reason)


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional, p: float, causal: bool, scale: float,
    kernel: str,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Run the forward kernel. Return the result, the log-sum-exp, the seed and the offset."""
    _require(query, key, mask, causal, kernel)
    query, key, value = _readable(query, key, value)
    mask = _additive(mask, query)
    if query.device.type == "cpu":
        how = {"attn_mask": mask, "scale": scale}
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, p, causal, **how)
        return out, lse, None, None
    if kernel == "flash":
        got = _flash(*_padded(query, key, value), p, causal, False, scale=scale)
        return _cut(got[0], value), got[1], got[6], got[7]
    if kernel == "efficient":
        bias = _aligned(mask, query, key)
        out, lse, seed, offset = _efficient(query, key, value, bias, True, p, causal, scale=scale)
        return out, lse[..., : query.shape[-2]], seed, offset
    got = _cudnn(query, key, value, _readable_mask(mask), True, p, causal, False, scale=scale)
    return got[0], got[1].reshape(query.shape[:-1]), got[6], got[7]


def _backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional, out: torch.Tensor,
    lse: torch.Tensor, seed: Any, offset: Any, p: float, causal: bool, scale: float, kernel: str,
) -> tuple[Any, Any, Any]:  # fmt: skip
    _require(query, key, mask, causal, kernel)
    grad, query, key, value, out = _readable(grad, query, key, value, out)
    mask = _additive(mask, query)
    if query.device.type == "cpu":
        how = {"attn_mask": mask, "scale": scale}
        run = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return run(grad, query, key, value, out, lse, p, causal, **how)
    lengths = (query.shape[-2], key.shape[-2])
    if kernel == "flash":
        padded = _padded(grad, query, key, value, out)
        q, k, v = _flash_backward(*padded, lse, None, None, *lengths, p, causal, seed, offset, scale=scale)
        return _cut(q, query), _cut(k, key), _cut(v, value)
    if kernel == "efficient":
        return _efficient_gradients(
            grad, query, key, value, mask, out, lse, seed, offset, p, causal, scale, of_mask=False
        )[:3]
    return _cudnn_gradients(grad, query, key, value, mask, out, lse, seed, offset, p, causal, scale)


def _cudnn_gradients(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional, out: torch.Tensor,
    lse: torch.Tensor, seed: Any, offset: Any, p: float, causal: bool, scale: float,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Run cuDNN's backward on a graph that only thunder uses.

    torch caches these graphs by the dropout probability and by the strides of query, key, value and mask, but not by
    those of `out` and `grad`. If a graph was built for other strides, its gradients are wrong, or it reads beyond the
    end of memory. Here these strides follow from query's, except for dimensions of one element. The keys differ from
    eager mode's, whose gradients may have any strides: torch compares the bits of the probability, and -0.0 is no
    dropout. With dropout, query is copied to rows with a gap, because only its strides can make a difference then.
    """
    order = sorted(range(query.ndim - 1), key=query.stride, reverse=True)
    grad, out = _laid_out(grad, order), _laid_out(out, order)
    query = _laid_out(query, order, gap=8) if p else query
    sums = lse.contiguous().unsqueeze(-1)
    rest = (sums, seed, offset, _readable_mask(mask), None, None, query.shape[-2], key.shape[-2], p or -0.0, causal)
    return _cudnn_backward(grad, query, key, value, out, *rest, scale=scale)  # type: ignore[no-any-return]


def _laid_out(x: torch.Tensor, order: list[int], gap: int = 0) -> torch.Tensor:
    """Lay out the dimensions before the last in an order, with a gap after each row, unless they are like this."""
    rows = x.permute(*order, -1)
    if gap:
        rows = F.pad(rows, (0, gap))[..., :-gap]
    elif rows.is_contiguous():
        return x
    else:
        rows = rows.contiguous()
    return rows.permute(*[order.index(d) for d in range(len(order))], -1)


def _efficient_gradients(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional, out: torch.Tensor,
    lse: torch.Tensor, seed: Any, offset: Any, p: float, causal: bool, scale: float, *, of_mask: bool,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Run the efficient kernel's backward. The gradient of the mask has the shape of the scores."""
    bias, out = _aligned(mask, query, key), _with_adjacent_heads(out)
    sums = F.pad(lse, (0, -lse.shape[-1] % _SUM_STEP), value=float("inf"))
    drawn = (seed, offset, p, [True, True, True, of_mask])
    return _efficient_backward(grad, query, key, value, bias, out, sums, *drawn, causal, scale=scale)  # type: ignore[no-any-return]


@kernel
def attention_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional, is_causal: bool, scale: float,
    kernel: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the result and the log-sum-exp of each row."""
    return _forward(query, key, value, attn_mask, 0.0, is_causal, scale, kernel)[:2]


@kernel
def attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional,
    out: torch.Tensor, lse: torch.Tensor, is_causal: bool, scale: float, kernel: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradients of query, key and value."""
    drawn = _nothing_drawn(query, kernel)
    return _backward(grad, query, key, value, attn_mask, out, lse, *drawn, 0.0, is_causal, scale, kernel)


@kernel
def attention_backward_of_mask(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor, is_causal: bool, scale: float, kernel: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradients of query, key, value and mask."""
    grad, query, key, value, out = _readable(grad, query, key, value, out)
    drawn = _nothing_drawn(query, kernel)
    if kernel == "efficient" and query.device.type == "cuda":
        *grads, of_mask = _efficient_gradients(
            grad, query, key, value, attn_mask, out, lse, *drawn, 0.0, is_causal, scale, of_mask=True
        )
    else:
        grads = [*_backward(grad, query, key, value, attn_mask, out, lse, *drawn, 0.0, is_causal, scale, kernel)]
        of_mask = _gradient_of_scores(grad, query, key, value, attn_mask, out, lse, scale)
    return *grads, of_mask.sum_to_size(attn_mask.shape).to(attn_mask.dtype)  # type: ignore[return-value]


def _gradient_of_scores(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor, scale: float,
) -> torch.Tensor:  # fmt: skip
    wide = lse.dtype
    query, key, value, grad, out = (x.to(wide) for x in (query, key, value, grad, out))
    weights = (query @ key.mT * scale + mask - lse.masked_fill(lse.isinf(), 0.0).unsqueeze(-1)).exp()
    return weights * (grad @ value.mT - (grad * out).sum(-1, keepdim=True))


@kernel
def attention_dropout(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional, dropout_p: float, *how: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the results of attention with dropout: the output, the log-sum-exp, the seed and the offset."""
    out, lse, seed, offset = _forward(query, key, value, attn_mask, dropout_p, *how)
    # The CPU's kernel returns no seed and offset. Without dropout, the values of the other kernels are meaningless.
    drawn = (seed, offset) if dropout_p and seed is not None else _zero_drawn(query, how[-1])
    return out, lse, *drawn


@kernel
def attention_dropout_backward(*args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value of attention with dropout."""
    return _backward(*args)
