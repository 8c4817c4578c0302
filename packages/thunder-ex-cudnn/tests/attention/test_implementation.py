# SPDX-License-Identifier: Apache-2.0
"""Which attention the executor takes, what it says otherwise, and what programs become."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.extend import TensorProxy, Trace, to_device, to_dtype, tracectx
from thunder.toolkit.testing import deterministic_algorithms
from thunder_ex_cudnn.attention.implementation import takes


def proxy(*shape: int, dtype: Any = torch.bfloat16, device: str = "cuda:0") -> TensorProxy:
    """What a checker sees."""
    return TensorProxy(shape=shape, dtype=to_dtype(dtype), device=to_device(device), requires_grad=False)


def answer(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...] | None = None, **how: Any) -> bool | str:
    """What the checker says to such shapes."""
    with tracectx(Trace("checked")):
        made = {n: how.pop(n) for n in ("dtype", "device") if n in how}
        if isinstance(mask := how.pop("mask", None), tuple):
            how["attn_mask"] = proxy(*mask, dtype=how.pop("mask_dtype", torch.bool))
        return takes(*(proxy(*shape, **made) for shape in (q, k, v or k)), **how)


HEADS = (2, 8, 128, 64)


@pytest.mark.parametrize(
    ("args", "how"),
    [
        ((HEADS, HEADS), {}),
        ((HEADS, HEADS), {"is_causal": True, "scale": 0.5, "dropout_p": 0.1, "dtype": torch.float16}),
        ((HEADS, (2, 2, 40, 64)), {"enable_gqa": True, "is_causal": True}),
        ((HEADS, (2, 8, 7, 64), (2, 8, 7, 128)), {"mask": (128, 7)}),
        ((HEADS, HEADS), {"mask": (2, 1, 1, 128), "mask_dtype": torch.float32}),
        (((1, 1, 1, 8), (1, 1, 5, 8)), {}),
        (((512, 3, 49, 32),) * 2, {"mask": (49, 49)}),
        (((1, 2, 16, 256), (1, 2, 16, 256)), {}),
    ],
)
def test_it_takes(args: Any, how: Any) -> None:
    """What cuDNN has kernels for."""
    assert answer(*args, **how) is True


@pytest.mark.parametrize(
    ("args", "how", "reason"),
    [
        ((HEADS, HEADS), {"device": "cpu"}, "cuDNN runs on NVIDIA GPUs, not on cpu"),
        ((HEADS, HEADS), {"dtype": torch.float32}, "supports float16 and bfloat16, not"),
        (((8, 128, 64),) * 2, {}, "four dimensions"),
        ((HEADS, (1, 8, 128, 64)), {}, "the same batch"),
        ((HEADS, (2, 4, 128, 64), (2, 2, 128, 64)), {"enable_gqa": True}, "the same number of heads"),
        ((HEADS, (2, 3, 128, 64)), {"enable_gqa": True}, "which must divide the query's"),
        ((HEADS, (2, 1, 128, 64)), {}, "enable_gqa=True"),
        (((2, 8, 0, 64), HEADS), {}, "have no elements"),
        (((2, 8, 16, 60),) * 2, {}, "multiples of 8 up to 256, not 60"),
        (((2, 8, 16, 264),) * 2, {}, "multiples of 8 up to 256, not 264"),
        ((HEADS, HEADS), {"mask": (128, 128), "is_causal": True}, "a mask or is_causal, not both"),
        ((HEADS, HEADS), {"mask": (3, 1, 128, 128)}, "expanded to"),
        ((HEADS, HEADS), {"mask": (1, 1, 1, 128, 128)}, "at most four dimensions"),
        ((HEADS, HEADS), {"mask": (128, 128), "mask_dtype": torch.float16}, "supports masks in"),
        (((512, 3, 49, 32),) * 2, {"mask": (3, 49, 49), "mask_dtype": torch.bfloat16}, "many short sequences"),
        ((HEADS, HEADS), {"dropout_p": 1.0}, "dropout probabilities in [0, 1)"),
        ((HEADS, HEADS), {"scale": -0.5}, "positive scales"),
        (((1, 8, 1, 64),) * 2, {}, "a single key"),
        ((HEADS, (2, 8, 1, 64)), {}, "a single key"),
        (
            (HEADS, HEADS, (2, 8, 128, 32)),
            {"mask": (128, 128), "mask_dtype": torch.bfloat16, "dropout_p": 0.1},
            "value and key differ in width",
        ),
    ],
)
def test_it_says_why_not(args: Any, how: Any, reason: str) -> None:
    """A line for whoever asks thunder.examine."""
    assert reason in str(answer(*args, **how))


def test_the_users_choice_of_kernels_counts() -> None:
    """Who forbids cuDNN's attention does not get it."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        assert "cuDNN is disabled by" in str(answer(HEADS, HEADS))
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_deterministic_algorithms(cudnn: Any) -> None:
    """Calls whose gradients cuDNN adds in any order on this GPU, or on some, are torch's."""
    mask = {"mask": (128, 128), "mask_dtype": torch.bfloat16}
    assert answer(HEADS, HEADS, dropout_p=0.1) is True
    with deterministic_algorithms():
        assert answer(HEADS, HEADS, is_causal=True) is True
        assert answer(HEADS, HEADS, **mask) is True  # backward leaves the gradient of a mask to torch
        assert "leaves dropout to torch if deterministic" in str(answer(HEADS, HEADS, dropout_p=0.1))
        cudnn.capability = (8, 0)
        assert "no deterministic gradients of attention on this GPU" in str(answer(HEADS, HEADS))
    assert answer(HEADS, HEADS) is True


def test_the_choice_is_asked_again(executor: Any, cudnn: Any) -> None:
    """A jitted function follows the setting, forth and back."""
    q = torch.randn(2, 4, 8, 16, dtype=torch.bfloat16)
    cudnn.capability, cudnn.refuses = (8, 0), True
    jitted = thunder.jit(lambda q: F.scaled_dot_product_attention(q, q, q), executors=[executor])

    def claimed() -> bool:
        jitted(q)
        return "cudnn_" in str(thunder.last_traces(jitted)[-1])

    assert claimed()
    with deterministic_algorithms():
        assert not claimed()
    assert claimed()


def test_examine_shows_it(executor: Any, cudnn: Any) -> None:
    """Why cuDNN does not run an operation of a program."""
    q = torch.randn(2, 4, 8, 16)
    report = thunder.examine(lambda q: F.scaled_dot_product_attention(q, q, q), q, executors=[executor])
    assert "not cudnn: supports float16 and bfloat16, not float32" in str(report)


# -- programs, with torch in the place of kernels ----------------------------------------------------------------------
def _qkv(*, shared: int = 1, length: int = 8, source: int = 8, width: int = 16) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 4, length, width), (2, 4 // shared, source, width), (2, 4 // shared, source, width))
    return [torch.randn(s, dtype=torch.bfloat16, requires_grad=True) for s in shapes]


def _lines(trace: Any) -> list[str]:
    return [line.strip() for line in str(trace).splitlines() if "cudnn_attention" in line and "#" not in line[:6]]


def _blocked(rows: int, columns: int) -> torch.Tensor:
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[:, 0] = True
    mask[2] = False  # a row that sees nothing gives zeros
    return mask


@pytest.mark.parametrize(
    ("how", "shape"),
    [
        ({}, {}),
        ({"is_causal": True, "scale": 0.3}, {"source": 5}),
        ({"is_causal": True, "enable_gqa": True}, {"shared": 2}),
        ({"attn_mask": _blocked(8, 6)}, {"source": 6}),
        ({"attn_mask": torch.linspace(-1, 1, 48).view(8, 6)}, {"source": 6}),
        ({"attn_mask": torch.linspace(-1, 1, 12).view(2, 1, 1, 6), "enable_gqa": True}, {"source": 6, "shared": 4}),
    ],
)
def test_results_and_gradients(how: dict[str, Any], shape: dict[str, int], executor: Any, cudnn: Any) -> None:
    """What stands in traces gives what torch gives, forward and backward, for the mask as well."""
    cudnn.refuses = True
    tensors = _qkv(**shape)
    mask = how.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        how = {**how, "attn_mask": mask.detach().requires_grad_()}
        tensors.append(how["attn_mask"])

    def f(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, **{**how, **({"attn_mask": rest[0]} if rest else {})})

    jitted = thunder.jit(f, executors=[executor])
    out = jitted(*tensors)
    g = torch.randn(out.shape, dtype=out.dtype)
    found = torch.autograd.grad(out, tensors, g)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    expected = F.scaled_dot_product_attention(*wide[:3], **{**how, **({"attn_mask": wide[3]} if len(wide) > 3 else {})})
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    for a, b in zip(found, torch.autograd.grad(expected, wide, g.double())):
        torch.testing.assert_close(a.double(), b, atol=4e-2, rtol=4e-2)
    assert "cudnn_attention_forward(" in str(thunder.last_traces(jitted)[-1])
    assert "cudnn_attention_backward(" in str(thunder.last_backward_traces(jitted)[-1])
    with torch.no_grad():
        torch.testing.assert_close(jitted(*tensors), out.detach())
    assert "cudnn_attention(" in str(thunder.last_traces(jitted)[-1])


def test_the_trace(executor: Any, cudnn: Any) -> None:
    """Causal attention is one line in each direction, and nothing is copied or expanded around it."""
    cudnn.refuses = True
    q, k, v = _qkv(shared=2)
    jitted = thunder.jit(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), executors=[executor]
    )
    jitted(q, k, v).sum().backward()
    forward, backward = str(thunder.last_traces(jitted)[-1]), str(thunder.last_backward_traces(jitted)[-1])
    assert "cudnn_attention_forward(q, k, v, None, 'top-left', 0.25)" in forward
    assert "None, 'top-left', 0.25, False)" in backward
    for text in (forward, backward):
        assert not [line for line in text.splitlines() if line.startswith("  t") and "expand" in line.split("#")[0]]


def test_a_gradient_of_a_gradient(executor: Any, cudnn: Any) -> None:
    """Follows from what the operators mean."""
    cudnn.refuses = True
    q, k, v = _qkv(length=4, source=4, width=8)

    def second(f: Any) -> Any:
        (g,) = torch.autograd.grad(f(q, k, v).float().square().sum(), q, create_graph=True)
        return torch.autograd.grad(g.float().square().sum(), (q, k, v))

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = second(F.scaled_dot_product_attention)
    jitted = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), executors=[executor])
    for a, b in zip(second(jitted), expected):
        torch.testing.assert_close(a, b, atol=0.15, rtol=0.1)


def test_dropout_is_an_operator_of_its_own(executor: Any, cudnn: Any) -> None:
    """Its seed is drawn from torch's generator and saved; without a plan the error says what has none."""
    q, k, v = _qkv()
    jitted = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2), executors=[executor])
    jitted(q, k, v)
    assert "cudnn_attention_dropout_forward(q, k, v, None, None, 0.25, 0.2)" in str(thunder.last_traces(jitted)[-1])
    (graph,) = cudnn.graphs
    drawn = [graph.executions[0][0][i] for i in (3, 4)]
    assert [x.shape for x in drawn] == [(1,), (1,)] and drawn[0].dtype is torch.int64
