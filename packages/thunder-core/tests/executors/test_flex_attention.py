# SPDX-License-Identifier: Apache-2.0
"""Flex attention by Inductor's kernels: which calls are claimed, what Inductor gets, and that results are torch's.

Most tests run the graphs that Inductor would get as they are, after torch has traced them as Inductor does. Inductor
has no gradients on the CPU, so the tests let the executor claim them there.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from flex_functions import MASKS, SCORES, Functions, dense
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import thunder
from thunder.executors import FLEX_ATTENTION
from thunder.executors import flex_attention as executor
from thunder.extend import get_default_executors

flex = pytest.importorskip("torch.nn.attention.flex_attention")


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """Run the function once in eager mode: a program that imports modules for the first time is not cached."""
    flex.flex_attention(*[torch.randn(1, 1, 128, 16) for _ in range(3)])


class Graphs(list[torch.fx.GraphModule]):
    """The graphs that Inductor would have compiled."""

    def compile(self, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Trace the graph as Inductor does, and refuse to compile it, so that torch runs it."""
        from torch._functorch.aot_autograd import aot_module_simplified

        self.append(graph)
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        assert len(names) == len(inputs)
        with torch.no_grad():
            aot_module_simplified(graph, [x.detach() for x in inputs], fw_compiler=lambda traced, _: traced)
        raise NotImplementedError("is not compiled here")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """The graphs; the executor claims everything on the CPU."""
    return claimed_on_the_cpu(monkeypatch)


def claimed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """Let the executor claim everything on the CPU, and return the graphs."""
    found = Graphs()
    monkeypatch.setattr(executor, "_TRAINING", ("cpu",))
    monkeypatch.setattr(executor, "_kernels", {})
    monkeypatch.setattr(executor, "compiled_by_inductor", found.compile)
    monkeypatch.setattr(executor, "warn_not_compiled", lambda name, error: _reraise(error))
    return found


def _reraise(error: Exception) -> None:
    if not isinstance(error, NotImplementedError):
        raise error


def qkv(heads: int = 2, kv_heads: int = 2, length: int = 32, **options: Any) -> list[torch.Tensor]:
    options = {"dtype": torch.float32, **options}
    return [torch.randn(2, n, length, 16, **options) for n in (heads, kv_heads, kv_heads)]


def jit(fn: Any) -> Any:
    return thunder.jit(fn, executors=["flex_attention"])


def ran(jitted: Any, *, backward: bool = False) -> list[str]:
    """The names of the executor's operations in the program that ran."""
    traces = thunder.last_backward_traces(jitted) if backward else thunder.last_traces(jitted)
    return [op.sym.name for op in traces[-1].bound_symbols if op.sym.executor is FLEX_ATTENTION]


def block(mask_mod: Any, heads: int | None = None, length: int = 32) -> Any:
    return flex.create_block_mask(mask_mod, None, heads, length, length, device="cpu")


# -- claiming ---------------------------------------------------------------------------------------------------------
def test_it_is_a_default_that_claims_nothing_on_the_cpu() -> None:
    """There, a kernel takes a minute to compile and has no gradient; `explain` says why it is not used."""
    assert FLEX_ATTENTION in get_default_executors()
    jf = thunder.jit(lambda q, k, v: flex.flex_attention(q, k, v))
    jf(*qkv())
    assert not ran(jf)
    assert "without a kernel: flex_attention (flex_attention: on the CPU" in thunder.explain(jf)


def test_few_scores_are_materialized() -> None:
    query = thunder.extend.TensorProxy("q", shape=(1, 2, 128, 64), device="cuda", dtype=torch.bfloat16)
    reason = executor._many_scores(query, query)
    assert reason == "there are only 32768 scores, which torch materializes"
    large = thunder.extend.TensorProxy("q", shape=(4, 16, 4096, 64), device="cuda", dtype=torch.bfloat16)
    assert executor._many_scores(large, large) is True


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "float16, bfloat16 or float32"),
        ({"width": 8}, "fixed width of 16 or more"),
        ({"options": {"BACKEND": "FLASH"}}, "does not call the FLASH backend"),
        ({"lse": True}, "no logsumexp"),
    ],
)
def test_what_it_does_not_claim(change: dict[str, Any], reason: str) -> None:
    """The decomposition computes it."""

    def f(q: Any, k: Any, v: Any) -> Any:
        aux = flex.AuxRequest(lse=True) if change.get("lse") else None
        return flex.flex_attention(q, k, v, kernel_options=change.get("options"), return_aux=aux)

    jf = jit(f)
    jf(*[torch.randn(1, 2, 8, change.get("width", 16), dtype=change.get("dtype", torch.float32)) for _ in range(3)])
    assert not ran(jf)
    assert reason in thunder.explain(jf)


def test_deterministic_gradients_of_captured_tensors(graphs: Graphs) -> None:
    """Their kernel adds in any order, so the decomposition computes them."""
    functions = Functions(2, torch.float32)
    functions.slopes.requires_grad_()
    score = functions.alibi()
    jf = jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score))
    with thunder.toolkit.testing.deterministic_algorithms():
        jf(*qkv(requires_grad=True)).sum().backward()
        assert ran(jf) == ["flex_attention"]
        assert ran(jf, backward=True) == []


# -- results ----------------------------------------------------------------------------------------------------------
@settings(max_examples=8, phases=[Phase.generate])  # shrinking would take minutes
@given(
    score=st.sampled_from(SCORES), mask=st.sampled_from(MASKS), heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    lse=st.booleans(), scale=st.sampled_from([None, 0.3]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_results_and_gradients(
    score: str, mask: str, heads: tuple[int, int], lse: bool, scale: float | None, dtype: torch.dtype
) -> None:
    """Of everything, also of the tensors that the functions capture, against float64."""
    functions = Functions(heads[0], torch.float32)
    score_mod, mask_mod = getattr(functions, score)(), getattr(functions, mask)()
    if score in functions.learnt:
        functions.learnt[score].requires_grad_()
    block_mask = None if mask_mod is None else block(mask_mod, heads[0])
    how = {"scale": scale, "enable_gqa": heads[0] != heads[1], "score_mod": score_mod, "block_mask": block_mask}

    def f(q: Any, k: Any, v: Any) -> Any:
        if not lse:
            return flex.flex_attention(q, k, v, **how), None
        out, aux = flex.flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True), **how)
        return out, aux.lse

    tensors = qkv(*heads, dtype=dtype, requires_grad=True)
    jf = jit(f)
    with pytest.MonkeyPatch.context() as patch:
        found = claimed_on_the_cpu(patch)
        out, rows = jf(*tensors)
        wrt = [*tensors, *[x for x in functions.learnt.values() if x.requires_grad]]
        grads = torch.autograd.grad(_loss(out, rows), wrt)
    assert ran(jf) == ["flex_attention"]
    differentiable = score != "of_positions"
    assert ran(jf, backward=True) == ["flex_attention_backward"] * differentiable
    assert len(found) == 1 + differentiable

    wide = [x.detach().double().requires_grad_() for x in tensors]
    expected, expected_rows = dense(*wide, score_mod, mask_mod, scale)
    wanted = torch.autograd.grad(_loss(expected, expected_rows if lse else None), [*wide, *wrt[3:]], allow_unused=True)
    near = {"atol": 1e-4, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 0.1, "rtol": 0.05}
    torch.testing.assert_close(out.double(), expected, **near)
    if lse:
        torch.testing.assert_close(rows.double(), expected_rows, **near)
    for got, want in zip(grads, wanted):
        torch.testing.assert_close(
            got.double(), torch.zeros_like(got).double() if want is None else want.double(), **near
        )


def _loss(out: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    loss = out.double().sin().sum()
    return loss if rows is None else loss + torch.where(rows == float("-inf"), 0.0, rows.double()).cos().sum()


def test_equal_functions_share_a_kernel(graphs: Graphs) -> None:
    """All layers of a model have one kernel, although each has functions of its own."""
    slopes = [torch.rand(2) for _ in range(3)]

    def layer(x: Any, slope: Any) -> Any:
        return flex.flex_attention(x, x, x, score_mod=lambda score, b, h, m, n: score + slope[h] * (n - m))

    def f(x: Any) -> Any:
        for slope in slopes:
            x = layer(x, slope)
        return x

    jf, x = jit(f), qkv()[0]
    out = jf(x)
    assert ran(jf) == ["flex_attention"] * 3
    assert len(graphs) == 1
    expected = x
    for slope in slopes:
        expected, _ = dense(expected, expected, expected, lambda s, b, h, m, n, w=slope: s + w[h] * (n - m))
    torch.testing.assert_close(out, expected)


def test_one_kernel_for_each_layout(graphs: Graphs) -> None:
    jf = jit(lambda q, k, v: flex.flex_attention(q, k, v))
    for length, transposed in ((32, False), (32, True), (48, False), (32, True), (48, False)):
        tensors = qkv(length=length)
        if transposed:
            tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
        torch.testing.assert_close(jf(*tensors), dense(*tensors)[0])
    assert len(graphs) == 3


def test_threads_compile_once(graphs: Graphs) -> None:
    jf, tensors = jit(lambda q, k, v: flex.flex_attention(q, k, v)), qkv()
    jf(*tensors)
    executor._kernels.clear()
    graphs.clear()
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(jf(*tensors))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(graphs) == 1
    for out in found:
        torch.testing.assert_close(out, dense(*tensors)[0])


def test_the_trace_shows_the_functions(graphs: Graphs) -> None:
    """As comments below the line that calls the kernel."""
    score = Functions(2).softcap()
    jf = jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score))
    jf(*qkv())
    text = str(thunder.last_traces(jf)[-1])
    assert "# score_mod(score, b, h, q_idx, kv_idx):" in text
    assert "ltorch.tanh" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its template for the CPU: the slow test of this file."""
    monkeypatch.setattr(executor, "_kernels", {})
    monkeypatch.setattr(executor, "warn_not_compiled", lambda name, error: pytest.fail(f"{error}"))
    functions = Functions(2, torch.float32)
    score, mask = functions.alibi(), block(functions.causal(), length=128)
    jf, tensors = jit(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score, block_mask=mask)), qkv(length=128)
    torch.testing.assert_close(jf(*tensors), dense(*tensors, score, functions.causal())[0])
    assert ran(jf) == ["flex_attention"]
