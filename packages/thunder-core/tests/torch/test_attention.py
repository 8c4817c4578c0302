# SPDX-License-Identifier: Apache-2.0
"""Attention: the kernels that torch takes, masks of all kinds, rows that see nothing, dropout, and what is saved."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
import thunder.torch.attention as attention_module
from thunder.tests.running import to_primitives
from thunder.torch.private import ATTENTION_ADDS_A_BATCH

attention = F.scaled_dot_product_attention


def qkv(randn: Any, *lead: int, dtype: torch.dtype = torch.float64, length: int = 5, source: int = 7) -> list[Any]:
    """Query, key and value with heads of 8."""
    return [randn(*lead, n, 8, dtype=dtype) for n in (length, source, source)]


def operations(trace: Any) -> list[str]:
    """The names of what a trace runs."""
    return [bsym.sym.name for bsym in trace.bound_symbols]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", [{}, {"is_causal": True}, {"scale": 0.2}], ids=["plain", "causal", "scaled"])
def test_torchs_kernel_forward_and_backward(as_eager: Any, randn: Any, dtype: torch.dtype, how: dict[str, Any]) -> None:
    """Where torch fuses, so does the differentiated program: its numbers are eager's, bit for bit."""
    jitted = as_eager(lambda q, k, v: attention(q, k, v, **how), *qkv(randn, 2, 3, dtype=dtype), exactly=True)
    assert "attention_forward" in operations(thunder.last_traces(jitted)[-1])
    assert "attention_backward" in operations(thunder.last_backward_traces(jitted)[-1])


def test_little_is_saved(randn: Any) -> None:
    """The inputs, the result and one number a row; no attention weights."""
    jitted = thunder.jit(lambda q, k, v: attention(q, k, v, is_causal=True))
    jitted(*qkv(randn, 2, 3))
    *saved, grad = thunder.last_backward_traces(jitted)[-1].args
    assert sorted(p.ndim for p in saved) == [3, 4, 4, 4, 4]
    assert grad.shape == (2, 3, 5, 8)


def test_masks(as_eager: Any, randn: Any) -> None:
    """Truth values and additive numbers, for all or for each head, with a gradient or without."""
    allowed = torch.rand(5, 7) > 0.3
    allowed[:, 0] = True
    inputs = qkv(randn, 2, 3)
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *inputs, allowed)
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *inputs, allowed.expand(2, 1, 5, 7))
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *inputs, randn(5, 7).detach())
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *inputs, randn(5, 7))
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *inputs, randn(2, 1, 1, 7))
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *[x[0] for x in inputs], randn(3, 5, 7))


@pytest.mark.parametrize(
    "shape", [(7,), (5, 7), (1, 5, 7), (3, 5, 7), *[(1, 1, 5, 7)] * ATTENTION_ADDS_A_BATCH], ids=str
)
def test_masks_of_any_dimensions_without_a_batch(as_eager: Any, randn: Any, shape: tuple[int, ...]) -> None:
    """With one of four the result has three dimensions where torch adds one for the batch, and takes that one off."""
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *qkv(randn, 3), randn(*shape).detach())
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *qkv(randn, 3), randn(*shape).detach() > 0)


@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=["plain", "causal"])
def test_torchs_kernel_without_a_batch(as_eager: Any, randn: Any, how: dict[str, Any]) -> None:
    """It is taken where torch takes it: since 2.14."""
    fused = ATTENTION_ADDS_A_BATCH
    jitted = as_eager(lambda q, k, v: attention(q, k, v, **how), *qkv(randn, 3, dtype=torch.bfloat16), exactly=fused)
    assert ("attention_forward" in operations(thunder.last_traces(jitted)[-1])) is fused
    query, key, value = qkv(randn, 4)
    as_eager(lambda *args: attention(*args, enable_gqa=True, **how), query, key[:2], value[:2])


def test_a_mask_with_a_gradient(as_eager: Any, randn: Any) -> None:
    """torch chooses a kernel that computes the mask's gradient, if the mask requires one."""
    for requires_grad in (True, False):
        inputs = *qkv(randn, 2, 3), randn(5, 7).detach().requires_grad_(requires_grad)
        jitted = as_eager(lambda q, k, v, m: attention(q, k, v, m), *inputs)
        assert ("attention_forward" in operations(thunder.last_traces(jitted)[-1])) is not requires_grad


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 5, 7), (3, 1, 7)])
def test_a_mask_without_a_batch_reaches_the_kernel(as_eager: Any, randn: Any, shape: tuple[int, ...]) -> None:
    """E.g. the biases of ALiBi, for which torch materializes the scores."""
    mask = randn(*shape).detach()
    jitted = as_eager(lambda q, k, v: attention(q, k, v, mask), *qkv(randn, 2, 3))
    assert "attention_forward" in operations(thunder.last_traces(jitted)[-1])


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 5, 7), (3, 1, 7)])
def test_a_mask_without_a_batch_has_a_gradient(as_eager: Any, randn: Any, shape: tuple[int, ...]) -> None:
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *qkv(randn, 2, 3), randn(*shape))
    as_eager(lambda q, m: attention(q, q, q, m), randn(3, 7, 8), randn(*shape[:1], 7, 7))


def test_a_mask_with_a_gradient_and_dropout(randn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' backward with dropout has no gradient of a mask, so attention is computed step by step."""
    monkeypatch.setattr(attention_module, "_chosen_kernel", lambda *args: attention_module._EFFICIENT)
    query, key, value, mask = *qkv(randn, 2, 3), randn(5, 7)
    jitted = thunder.jit(lambda q, k, v, m: attention(q, k, v, m, dropout_p=0.5))
    jitted(query, key, value, mask).sum().backward()
    assert mask.grad is not None and mask.grad.abs().sum() > 0


@pytest.mark.parametrize("fused", [True, False], ids=["kernel", "steps"])
def test_a_row_that_may_see_nothing_is_zero(as_eager: Any, randn: Any, fused: bool) -> None:
    """And so are the gradients through it; at the level of primitives too."""
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    inputs = qkv(randn, 2, 3)
    inputs = inputs if fused else [x[0, 0].detach().requires_grad_() for x in inputs]
    for m in (mask, torch.zeros(5, 7, dtype=torch.float64).masked_fill(~mask, -math.inf)):
        jitted = as_eager(lambda q, k, v, m: attention(q, k, v, m), *inputs, m)
        assert jitted(*inputs, m)[..., 2, :].eq(0).all()
        assert jitted(*[x.detach() for x in inputs], m)[..., 2, :].eq(0).all()
    trace = to_primitives(thunder.trace()(lambda q, k, v, m: attention(q, k, v, m), *inputs, mask))
    assert {b.sym.module for b in trace.bound_symbols} == {"thunder.core.prims"}


def test_shared_keys_and_values(as_eager: Any, randn: Any) -> None:
    """With `enable_gqa` several query heads share a head of keys and values."""
    q, k, v = qkv(randn, 2, 6)
    for heads in (2, 3, 6):
        shared = (q, k[:, :heads].detach().requires_grad_(), v[:, :heads].detach().requires_grad_())
        as_eager(lambda q, k, v: attention(q, k, v, enable_gqa=True), *shared)
        as_eager(lambda q, k, v: attention(q[0], k[0], v[0], enable_gqa=True), *shared)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dropout_drops_what_eager_drops(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """The weights are dropped by the same numbers, with gradients and without."""
    for requires_grad in (True, False):
        inputs = [x.detach().requires_grad_(requires_grad) for x in qkv(randn, 2, 3, dtype=dtype)]
        as_eager(lambda q, k, v: attention(q, k, v, dropout_p=0.4, is_causal=True), *inputs)
    as_eager(lambda q, k, v: attention(q, k, v, dropout_p=1.0), *qkv(randn, 2, 3, dtype=dtype))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)], ids=str)
def test_numbers_of_dimensions(as_eager: Any, randn: Any, lead: tuple[int, ...]) -> None:
    """From one sequence to batches of batches."""
    as_eager(lambda q, k, v: attention(q, k, v, is_causal=True), *qkv(randn, *lead))


def test_broadcasting_and_empty(as_eager: Any, randn: Any) -> None:
    """Batches of one go along; no queries and no keys give no rows and zeros."""
    as_eager(lambda q, k, v: attention(q, k, v), randn(2, 3, 5, 8), randn(1, 3, 7, 8), randn(2, 1, 7, 8))
    as_eager(lambda q, k, v: attention(q, k, v), randn(2, 3, 0, 8), randn(2, 3, 7, 8), randn(2, 3, 7, 8))
    as_eager(lambda q, k, v: attention(q, k, v), randn(2, 3, 5, 8), randn(2, 3, 0, 8), randn(2, 3, 0, 8))
    as_eager(lambda q, k, v: attention(q, k, v), randn(2, 1, 5, 8), randn(2, 3, 7, 8), randn(2, 3, 7, 8))
    as_eager(lambda q, k, v: attention(q, k, v), randn(1, 5, 8), randn(3, 7, 8), randn(3, 7, 8))
    as_eager(lambda q, k, v: attention(q, k, v), randn(0, 5, 8), randn(0, 7, 8), randn(0, 7, 8))


def test_heads_of_the_query_go_along_too(as_eager: Any, randn: Any) -> None:
    """One head of queries for several of keys and values."""
    as_eager(lambda q, k, v: attention(q, k, v), randn(2, 1, 5, 8), randn(2, 3, 7, 8), randn(2, 3, 7, 8))


@pytest.mark.parametrize("shape", [(), (7,)], ids=str)
def test_masks_of_less_than_two_dimensions(as_eager: Any, randn: Any, shape: tuple[int, ...]) -> None:
    """torch takes no kernel of its own for them."""
    as_eager(lambda q, k, v, m: attention(q, k, v, m), *qkv(randn, 2, 3), randn(1, *shape)[0].detach().requires_grad_())


@pytest.mark.parametrize("which", range(4), ids=["query", "key", "value", "gradient"])
def test_rows_that_are_not_dense(as_eager: Any, randn: Any, which: int) -> None:
    """torch's kernel for the CPU would read what lies between their elements."""
    wide = [randn(*x.shape[:-1], 16) if i == which else x for i, x in enumerate(qkv(randn, 2, 3))]
    as_eager(
        lambda *xs: attention(*(x[..., ::2] if x.shape[-1] == 16 else x for x in xs)).mul(
            1 if which < 3 else torch.ones(8, 5, dtype=torch.float64).mT
        ),
        *wide,
    )


def test_errors_name_what_is_wrong(randn: Any) -> None:
    """torch's texts where it has one, plainer words where it computes nonsense."""
    q, k, v = (x.detach() for x in qkv(randn, 2, 3))
    jitted = thunder.jit(lambda q, k, v: attention(q, k, v), sharp_edges="error")
    with pytest.raises(RuntimeError, match="to have the same dtype, but got"):
        jitted(q.float(), k, v)
    with pytest.raises(RuntimeError, match="key and value must have the same length, but have 6 and 7"):
        jitted(q, k[..., :6, :], v)
    with pytest.raises(RuntimeError, match="Expected size for first two dimensions of batch2 tensor"):
        jitted(q[..., :7], k, v)
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match the size of tensor b \(2\)"):
        jitted(q, k[:, :2], v[:, :2])
    masked = thunder.jit(lambda q, k, v, m: attention(q, k, v, m))
    with pytest.raises(RuntimeError, match=r"output with shape \[1, 3, 5, 7\] doesn't match the broadcast shape"):
        masked(q[:1], k[:1], v[:1], randn(2, 3, 5, 7).detach())
