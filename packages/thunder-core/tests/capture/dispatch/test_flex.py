# SPDX-License-Identifier: Apache-2.0
"""`flex_attention` in programs: one operation, with the functions of scores and masks as programs in its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flex_functions import MASKS, SCORES, Functions, dense
from hypothesis import Phase, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

import thunder

flex = pytest.importorskip("torch.nn.attention.flex_attention")


def qkv(length: int = 8, **options: Any) -> list[torch.Tensor]:
    return [torch.randn(1, 2, length, 16, dtype=torch.float64, **options) for _ in range(3)]


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """Run each function once in eager mode: a program that imports modules for the first time is not cached."""
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
    flex.flex_attention(*qkv(128), score_mod=lambda score, b, h, q, k: score * 2, block_mask=mask)


def test_functions_of_scores() -> None:
    slope = torch.tensor(0.5, dtype=torch.float64)

    def causal(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where(q >= k, score - slope * (q - k), float("-inf"))

    jf = thunder.jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=causal))
    for _ in range(2):
        given = qkv()
        torch.testing.assert_close(jf(*given), flex.flex_attention(*given, score_mod=causal))
        slope += 1.0  # an input
    torch.testing.assert_close(jf(*given), flex.flex_attention(*given, score_mod=causal))
    assert thunder.cache_misses(jf) == 1


@pytest.mark.parametrize("inside", [False, True])
def test_masks(inside: bool) -> None:
    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def mask() -> Any:
        return flex.create_block_mask(causal, 1, 1, 128, 128, device="cpu")

    known = mask()

    def f(q: Any, k: Any, v: Any) -> Any:
        return flex.flex_attention(q, k, v, block_mask=mask() if inside else known)

    jf = thunder.jit(f)
    for _ in range(2):
        given = qkv(128)
        torch.testing.assert_close(jf(*given), f(*given))
    assert thunder.cache_misses(jf) == 1


# -- functions that take elements out of tensors around them -------------------------------------------------------
def materialized(q: Any, k: Any, v: Any, score_mod: Any = None, block_mask: Any = None) -> Any:
    """Flex attention of functions that take whole indices: torch's own has no gradients on the CPU."""
    return dense(q, k, v, score_mod, None if block_mask is None else block_mask.mask_mod)[0]


SLOPES = torch.rand(2, dtype=torch.float64)
DOCUMENTS = torch.tensor([[0] * 50 + [1] * 78])
NEAR = torch.randn(256, 2, dtype=torch.float64)


def alibi(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score + SLOPES[h] * (n - m)


def near(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score + NEAR[m - n + 128, h]


def causal(b: Any, h: Any, m: Any, n: Any) -> Any:
    return m >= n


def document(b: Any, h: Any, m: Any, n: Any) -> Any:
    return DOCUMENTS[b, m] == DOCUMENTS[b, n]


def nothing_first(b: Any, h: Any, m: Any, n: Any) -> Any:
    return (m > 3) & (DOCUMENTS[b, m] >= 0) & causal(b, h, m, n)


def block(mask: Any) -> Any:
    return flex.create_block_mask(mask, 1, None, 128, 128, device="cpu")


KNOWN = block(flex.and_masks(causal, document))

CALLS: dict[str, Any] = {
    "slopes": lambda attend, q, k, v: attend(q, k, v, score_mod=alibi),
    "a table": lambda attend, q, k, v: attend(q, k, v, score_mod=near),
    "documents": lambda attend, q, k, v: attend(q, k, v, block_mask=KNOWN),
    "both": lambda attend, q, k, v: attend(q, k, v, score_mod=alibi, block_mask=KNOWN),
    "a mask that is made inside": lambda attend, q, k, v: attend(q, k, v, block_mask=block(document)),
    "rows that see nothing": lambda attend, q, k, v: attend(q, k, v, block_mask=block(nothing_first)),
    "one after the other": lambda attend, q, k, v: attend(
        attend(q, k, v, score_mod=near), k, v, score_mod=alibi, block_mask=KNOWN
    ),
    "of what is computed": lambda attend, q, k, v: attend(
        q, k, v, score_mod=lambda s, b, h, m, n: s * torch.where(v[b, h, m, 0] > v[b, h, n, 0], 1.0, 0.5)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_index_tensors(name: str) -> None:
    """What they take out are inputs of the program, which gives the mathematics' gradients."""
    jf = thunder.jit(lambda q, k, v: CALLS[name](flex.flex_attention, q, k, v))
    for _ in range(3):
        given = qkv(128, requires_grad=True)
        out, wanted = jf(*given), CALLS[name](materialized, *given)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(*[torch.autograd.grad(x.sin().sum(), given) for x in (out, wanted)])
        SLOPES.mul_(1.5)
        NEAR.add_(0.1)
        DOCUMENTS.copy_(torch.randint(3, (1, 128)).sort(-1).values)
    assert thunder.cache_misses(jf) == 1


def test_a_table_that_is_learnt() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(2, 16, dtype=torch.float64))

        def score(self, score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
            return score + self.table[h, (m - n).abs().clamp(max=15)]

        def forward(self, q: Any, k: Any, v: Any, attend: Any) -> Any:
            return attend(q, k, v, score_mod=self.score)

    net = Attention()
    jnet = thunder.jit(net)
    for _ in range(2):
        given = qkv(requires_grad=True)
        out, wanted = jnet(*given, flex.flex_attention), net(*given, materialized)
        torch.testing.assert_close(out, wanted)
        wrt = [net.table, *given]
        torch.testing.assert_close(*[torch.autograd.grad(x.sin().sum(), wrt) for x in (out, wanted)])
        with torch.no_grad():
            net.table.mul_(2)
    assert thunder.cache_misses(jnet) == 1


# -- the operation ----------------------------------------------------------------------------------------------------
def operations(trace: Any) -> list[str]:
    return [op.sym.name for op in trace.bound_symbols]


@settings(max_examples=12, phases=[Phase.generate])  # shrinking would take minutes
@drawn(
    score=st.sampled_from(SCORES), mask=st.sampled_from(MASKS), heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    lengths=st.sampled_from([(8, 8), (5, 12), (1, 9)]), lse=st.booleans(),
)  # fmt: skip
def test_results_and_gradients(
    score: str, mask: str, heads: tuple[int, int], lengths: tuple[int, int], lse: bool
) -> None:
    """In float64, of everything that requires grad, also of captured tensors and of the logsumexp."""
    functions = Functions(heads[0])
    learnt = [functions.learnt[score].requires_grad_()] if score in functions.learnt else []
    score_mod, mask_mod = getattr(functions, score)(), getattr(functions, mask)()
    mask_of = None if mask_mod is None else flex.create_block_mask(mask_mod, None, heads[0], *lengths, device="cpu")

    def f(q: Any, k: Any, v: Any) -> Any:
        aux = flex.AuxRequest(lse=True) if lse else None
        return flex.flex_attention(
            q, k, v, score_mod, mask_of, enable_gqa=heads[0] != heads[1], scale=0.4, return_aux=aux
        )

    tensors = [
        torch.randn(2, n, length, 6, dtype=torch.float64, requires_grad=True)
        for n, length in zip((*heads, heads[1]), (*lengths, lengths[1]))
    ]
    jf = thunder.jit(f)
    out, rows = (jf(*tensors), None) if not lse else (lambda out, aux: (out, aux.lse))(*jf(*tensors))
    wanted = dense(*tensors, score_mod, mask_mod, 0.4)
    torch.testing.assert_close(out, wanted[0])
    loss, expected = out.sin().sum(), wanted[0].sin().sum()
    if rows is not None:
        torch.testing.assert_close(rows, wanted[1])
        loss, expected = (
            x + torch.where(y == float("-inf"), 0.0, y).cos().sum() for x, y in ((loss, rows), (expected, wanted[1]))
        )
    wrt = [*tensors, *learnt]
    grads = [torch.autograd.grad(x, wrt, allow_unused=True) for x in (loss, expected)]
    for x, got, want in zip(wrt, *grads):
        torch.testing.assert_close(*[torch.zeros_like(x) if g is None else g for g in (got, want)])
    assert "flex_attention" in operations(thunder.last_traces(jf)[0])
    assert "flex_attention_backward" in operations(thunder.last_backward_traces(jf)[0])


def test_the_functions_are_in_the_trace() -> None:
    """For one element, below the operation; captured tensors are operands."""
    jf = thunder.jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=alibi, block_mask=KNOWN))
    jf(*qkv(128))
    text = str(thunder.last_traces(jf)[0])
    assert "ltorch.flex_attention(q, k, v, _score_mod_0, _mask_mod_0, (SLOPES,), (DOCUMENTS,)," in text
    assert "# score_mod(score, b, h, q_idx, kv_idx, captured0):" in text
    assert "# t0 = ltorch.getitem(captured0, h)" in text


def test_scores_are_not_saved() -> None:
    """Backward computes them again."""
    jf = thunder.jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=alibi))
    jf(*qkv(64, requires_grad=True)).sum().backward()
    (saved,) = [op for op in thunder.last_traces(jf)[-1].bound_symbols if op.sym.is_return]
    assert all(p.shape[-2:] != (64, 64) for p in saved.flat_args if hasattr(p, "shape"))


def test_second_derivatives() -> None:
    """Through the decomposition of the gradient."""
    jf = thunder.jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=alibi))
    tensors = qkv(6, requires_grad=True)
    found = []
    for out in (jf(*tensors), materialized(*tensors, score_mod=alibi)):
        grads = torch.autograd.grad(out.sin().sum(), tensors, create_graph=True)
        found.append(torch.autograd.grad(sum(g.cos().sum() for g in grads), tensors))
    torch.testing.assert_close(*found)


def test_transforms() -> None:
    """Of the operation: forward mode and batching."""

    def f(q: Any, k: Any, v: Any) -> Any:
        return flex.flex_attention(q, k, v, score_mod=alibi)

    tensors, tangents = qkv(6), qkv(6)
    got = thunder.jit(lambda *args: torch.func.jvp(f, args, tuple(tangents)))(*tensors)
    wanted = torch.func.jvp(lambda *args: materialized(*args, score_mod=alibi), tuple(tensors), tuple(tangents))
    torch.testing.assert_close(got, wanted)
    batch = [torch.stack([x, 2 * x, -x]) for x in tensors]
    many = thunder.jit(lambda *args: torch.func.vmap(f)(*args))(*batch)
    torch.testing.assert_close(many, torch.stack([f(*example) for example in zip(*batch)]))


def test_functions_that_cannot_be_batched() -> None:
    """They raise what eager mode raises: a branch on an index, and a result that is not a tensor."""

    def branches(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return score if m > n else -score

    for function in (branches, lambda score, b, h, m, n: 1.0):
        errors = []
        for f in (flex.flex_attention, thunder.jit(flex.flex_attention)):
            with pytest.raises(Exception) as error:
                f(*qkv(), score_mod=function)
            errors.append(type(error.value))
        assert errors[0] is errors[1]


def test_lengths_that_change() -> None:
    """Become symbolic."""
    jf = thunder.jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=alibi), cache="symbolic values")
    for length in (6, 9, 12, 7):
        tensors = qkv(length)
        torch.testing.assert_close(jf(*tensors), materialized(*tensors, score_mod=alibi))
    assert thunder.cache_misses(jf) == 1


def test_autocast() -> None:
    """Casts query, key and value where torch's version does."""
    tensors = [x.float() for x in qkv()]

    def f(q: Any, k: Any, v: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return flex.flex_attention(q, k, v, score_mod=lambda score, b, h, m, n: score * 2)

    out, wanted = thunder.jit(f)(*tensors), f(*tensors)
    torch.testing.assert_close(out, wanted, atol=0.02, rtol=0.02)
