# SPDX-License-Identifier: Apache-2.0
"""Masks that are said and not there: `torch.nn.attention.bias`."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias, CausalVariant, causal_lower_right, causal_upper_left

import thunder


def _qk(rows, columns, **how):
    return torch.randn(2, 3, rows, 8, **how), torch.randn(2, 3, columns, 8, **how)


def passed(q, k, mask):
    return F.scaled_dot_product_attention(q, k, k * 2, mask)


def made(q, k, kind):
    return F.scaled_dot_product_attention(q, k, k * 2, attn_mask=kind(q.shape[-2], k.shape[-2]), scale=0.3)


@pytest.mark.parametrize("kind", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("lengths", [(5, 5), (3, 7), (7, 3)])
def test_result_and_gradients_are_those_of_torch(kind, lengths):
    q, k = _qk(*lengths, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that see nothing
        for fn, last in ((passed, kind(*lengths)), (made, kind)):
            jf = thunder.jit(fn)
            for _ in range(2):
                out, wanted = jf(q, k, last), fn(q, k, last)
                torch.testing.assert_close(out, wanted)
                grads = [torch.autograd.grad(x.sum(), (q, k)) for x in (out, wanted)]
                torch.testing.assert_close(*grads)
            assert thunder.cache_misses(jf) == 1


@pytest.mark.parametrize("fn", [passed, made])
def test_executors_see_a_causal_attention_or_a_triangle(fn):
    """What they recognise: `is_causal`, or `tril` of ones with the diagonal that ends in the corner."""
    jf = thunder.jit(fn)
    for kind, lengths in ((causal_upper_left, (3, 7)), (causal_lower_right, (5, 5)), (causal_lower_right, (3, 7))):
        jf(*_qk(*lengths), kind(*lengths) if fn is passed else kind)
        ops = [op for op in thunder.last_traces(jf)[0].bound_symbols if op.sym.module is not None or op.out_names]
        attention = next(op for op in ops if op.sym.id == "torch.scaled_dot_product_attention")
        triangles = [op for op in ops if op.sym.id == "torch.tril"]
        causal = attention.args[5] if len(attention.args) > 5 else attention.kwargs.get("is_causal", False)
        if (kind, lengths) == (causal_lower_right, (3, 7)):
            assert not causal and len(triangles) == 1
            assert triangles[0].kwargs.get("diagonal", (*triangles[0].args, None)[1]) == 4
        else:
            assert causal and not triangles


def test_what_it_says_is_guarded():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = causal_lower_right(3, 7)

        def forward(self, q, k):
            return passed(q, k, self.mask)

    net = Net()
    jnet = thunder.jit(net)
    q, k = _qk(3, 7)
    results = []
    for change in (None, "variant", "whole"):
        if change == "variant":
            net.mask.variant = CausalVariant.UPPER_LEFT
        elif change == "whole":
            net.mask = causal_lower_right(3, 7)
        for _ in range(2):
            results.append(jnet(q, k))
            torch.testing.assert_close(results[-1], net(q, k))
    assert not torch.equal(results[0], results[2])
    assert thunder.cache_misses(jnet) == 2


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("fn", [passed, made])
def test_lengths_that_grow_do_not_retrace_for_ever(fn, cache):
    jf = thunder.jit(fn, cache=cache)
    for step in range(8):
        lengths = 3, 7 + step
        q, k = _qk(*lengths)
        last = causal_lower_right(*lengths) if fn is passed else causal_lower_right
        torch.testing.assert_close(jf(q, k, last), fn(q, k, last))
    assert thunder.cache_misses(jf) <= (1 if cache == "symbolic values" else 3)


def test_one_that_is_kept_is_made_again_at_each_call():
    class Net(torch.nn.Module):
        kept = None

        def forward(self, q, k):
            self.kept = causal_lower_right(q.shape[-2], k.shape[-2])
            return passed(q, k, self.kept), self.kept

    net = Net()
    jnet = thunder.jit(net)
    q, k = _qk(3, 7)
    seen = []
    for _ in range(2):
        out, mask = jnet(q, k)
        assert type(net.kept) is CausalBias and mask is net.kept
        assert (mask.variant, mask.seq_len_q, mask.seq_len_kv) == (CausalVariant.LOWER_RIGHT, 3, 7)
        assert mask.shape == causal_lower_right(3, 7).shape
        torch.testing.assert_close(out, passed(q, k, mask))
        seen.append(mask)
    assert seen[0] is not seen[1]


def test_one_that_is_given_is_what_is_returned():
    q, k = _qk(3, 7)
    mask = causal_lower_right(3, 7)
    out, same = thunder.jit(lambda q, k, mask: (passed(q, k, mask), mask))(q, k, mask)
    assert same is mask
    torch.testing.assert_close(out, passed(q, k, mask))


def test_its_shape_and_its_tensor_are_those_of_torch():
    def f(q, k, kind):
        mask = kind(q.shape[-2], k.shape[-2])
        return q.sum() * mask.shape[-1] + mask.size(1) + mask.dim(), mask._materialize()

    for cache in ("constant values", "symbolic values"):
        jf = thunder.jit(f, cache=cache)
        for columns in (7, 9):
            q, k = _qk(3, columns)
            torch.testing.assert_close(jf(q, k, causal_lower_right), f(q, k, causal_lower_right))


def test_with_kernels_that_the_program_chooses_and_under_vmap():
    q, k = _qk(3, 7)
    mask = causal_lower_right(3, 7)

    def chosen(q, k):
        with sdpa_kernel(SDPBackend.MATH):
            return passed(q, k, mask)

    torch.testing.assert_close(thunder.jit(chosen)(q, k), passed(q, k, mask))
    batched = thunder.jit(lambda q, k: torch.vmap(lambda q, k: passed(q, k, mask))(q, k))
    torch.testing.assert_close(batched(q, k), passed(q, k, mask))


def test_wrong_calls_are_refused_as_torch_refuses_them():
    q, k = _qk(3, 7)
    jf = thunder.jit(lambda q, k, mask: F.scaled_dot_product_attention(q, k, k, mask, is_causal=True))
    with pytest.raises(ValueError, match="should not be used with causal=True"):
        jf(q, k, causal_lower_right(3, 7))


def test_packed_sequences_are_one_operation_of_torch() -> None:
    """Without a plugin, `varlen_attn` runs torch's kernel. On the CPU torch has none, and raises its own error."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    x, ends = torch.randn(10, 2, 16, requires_grad=True), torch.tensor([0, 4, 10], dtype=torch.int32)
    jf = thunder.jit(lambda x: varlen.varlen_attn(x, x, x, ends, ends, 6, 6))
    with pytest.raises(NotImplementedError, match="_flash_attention_forward"):
        jf(x)
    operations = [op.sym.name for op in thunder.last_traces(jf)[0].bound_symbols]
    assert "_varlen_attn" in operations
