# SPDX-License-Identifier: Apache-2.0
"""What cuDNN computes, on a GPU: against attention in double precision, forward and backward."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.extend import get_default_executors
from thunder.toolkit.testing import repeats
from thunder_ex_cudnn.attention import fallback, run
from thunder_ex_cudnn.plans import packed_strides

pytestmark = pytest.mark.skipif(
    "cudnn" not in [ex.name for ex in get_default_executors()], reason="the executor cannot run on this machine"
)

# How far from the truth results and gradients may be, of their largest element.
NEAR = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


def heads(*shape: int, dtype: torch.dtype = torch.bfloat16, beside: bool = True) -> torch.Tensor:
    """(batch, heads, length, width); `beside`: as a projection makes it, heads beside their widths."""
    b, h, s, d = shape
    if not beside:
        return torch.randn(shape, dtype=dtype, device="cuda").requires_grad_()
    return torch.randn(b, s, h, d, dtype=dtype, device="cuda").transpose(1, 2).requires_grad_()


def near(found: torch.Tensor, truth: torch.Tensor, limit: float) -> None:
    """`found` is finite and as close to the truth as short numbers are."""
    assert torch.isfinite(found).all()
    worst, largest = (found.double() - truth).abs().max().item(), truth.abs().max().item()
    assert worst <= limit * max(largest, 0.5), f"off by {worst:.3g}, where the largest is {largest:.3g}"


def check(
    found: Any, tensors: list[torch.Tensor], how: dict[str, Any], caplog: Any, mask: Any = None, *, laid: bool = True
) -> None:
    """Result and gradients of `found` are those of attention in double precision, and cuDNN computed them.

    `laid`: gradients lie in memory as what they are of.
    """
    out = found(*tensors)
    g = torch.randn_like(out)
    grads = torch.autograd.grad(out, tensors, g)
    q, k, v, *added = wide = [x.detach().double().requires_grad_() for x in tensors]
    times = q.shape[-3] // k.shape[-3]
    how = {n: x for n, x in how.items() if n != "enable_gqa"}
    mask = added[0] if added else mask
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        truth = F.scaled_dot_product_attention(
            q, k.repeat_interleave(times, -3), v.repeat_interleave(times, -3), mask, **how
        )
    limit = NEAR[out.dtype]
    near(out, truth, limit)
    for a, x, b in zip(grads, tensors, torch.autograd.grad(truth, wide, g.double())):
        is_bias = any(x is y for y in tensors[3:])
        near(a, b, 10 * limit if is_bias else limit)  # sums of many that cancel each other
        assert is_bias or not laid or a.stride() == packed_strides(tuple(x.shape), x.stride())
    assert not caplog.records, caplog.text


def jitted(**how: Any) -> Any:
    """Attention by the executor."""
    return thunder.jit(lambda q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m, **how), executors=["cudnn"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((2, 4, 4, 128, 128, 64, 64), {}),
        ((2, 4, 4, 128, 128, 128, 128), {"is_causal": True}),
        ((1, 8, 2, 200, 200, 128, 128), {"is_causal": True, "enable_gqa": True}),
        ((2, 6, 1, 65, 33, 72, 72), {"enable_gqa": True, "scale": 0.4}),
        ((3, 2, 2, 5, 7, 8, 8), {"is_causal": True}),
        ((1, 2, 2, 100, 300, 64, 128), {"is_causal": True}),
        ((1, 2, 2, 300, 100, 192, 128), {}),
        ((2, 3, 3, 1, 77, 256, 256), {}),
        ((2, 3, 3, 77, 2, 40, 40), {}),
    ],
)
def test_shapes(shape: Any, how: Any, dtype: torch.dtype, beside: bool, caplog: Any) -> None:
    """Lengths, widths, shared heads, both ways in which heads lie in memory."""
    b, h, hk, s, t, d, dv = shape
    tensors = [heads(b, n, m, w, dtype=dtype, beside=beside) for n, m, w in ((h, s, d), (hk, t, d), (hk, t, dv))]
    f = jitted(**how)
    check(f, tensors, how, caplog)
    assert "cudnn_attention_forward(" in str(thunder.last_traces(f)[-1])
    assert "cudnn_attention_backward(" in str(thunder.last_backward_traces(f)[-1])


@pytest.mark.parametrize("shape", [(64, 128), (1, 1, 64, 128), (2, 1, 1, 128), (1, 4, 64, 1), (2, 4, 64, 128), (64, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_biases(shape: Any, dtype: torch.dtype, caplog: Any) -> None:
    """Masks that are added, and their gradients, in every shape that can be expanded."""
    tensors = [heads(2, 4, 64, 64), heads(2, 4, 128, 64), heads(2, 4, 128, 64)]
    bias = torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()
    check(jitted(), [*tensors, bias], {}, caplog)


@pytest.mark.parametrize("lengths", [(100, 100), (200, 2)])
@pytest.mark.parametrize("widths", [(160, 128), (72, 128), (64, 128), (128, 32)])
def test_biases_of_other_widths(lengths: tuple[int, int], widths: tuple[int, int], caplog: Any) -> None:
    """Their gradient is right where values are of another width than keys."""
    (s, t), (d, dv) = lengths, widths
    tensors = [heads(2, 4, s, d), heads(2, 2, t, d), heads(2, 2, t, dv)]
    bias = torch.randn(s, t, device="cuda", dtype=torch.bfloat16).requires_grad_()
    check(jitted(enable_gqa=True), [*tensors, bias], {}, caplog, laid=False)


def test_one_key(caplog: Any) -> None:
    """Rows that may not see it give zeros, and send no gradient."""
    tensors = [heads(1, 4, 65, 72), heads(1, 4, 1, 72), heads(1, 4, 1, 128)]
    mask = torch.arange(65, device="cuda")[:, None] < 17
    out = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), executors=["cudnn"])(*tensors)
    near(out, torch.where(mask, tensors[2].double(), 0.0), NEAR[out.dtype])
    for gradient in torch.autograd.grad(out.sum(), tensors[:2]):
        assert not gradient.any()


@pytest.mark.parametrize("lengths", [(64, 128), (5, 7), (33, 65)])
def test_masks(lengths: tuple[int, int], caplog: Any) -> None:
    """What is seen, with rows that see nothing: these give zeros, and send no gradient."""
    s, t = lengths
    tensors = [heads(2, 4, s, 64), heads(2, 4, t, 64), heads(2, 4, t, 64)]
    mask = torch.rand(2, 1, s, t, device="cuda") > 0.4
    mask[..., 0] = True
    mask[:, :, 2] = False
    f = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), executors=["cudnn"])
    out = f(*tensors)
    assert not out[:, :, 2].any()
    g = torch.randn_like(out)
    sums = fallback.forward(*[x.detach().double() for x in tensors], _added(mask), None, 0.125)[1]
    wide = [x.detach().double() for x in tensors]
    truth, _ = fallback.forward(*wide, _added(mask), None, 0.125)
    near(out, truth, NEAR[out.dtype])
    expected = fallback.backward(g.double(), *wide, truth, sums, _added(mask), None, 0.125, False)
    for a, b in zip(torch.autograd.grad(out, tensors, g), expected):
        near(a, b, NEAR[out.dtype])
    assert not caplog.records


@pytest.mark.parametrize("masked", [True, False])
def test_without_batch(masked: bool, caplog: Any) -> None:
    """Three dimensions: heads, lengths and widths, as they lie in memory."""
    tensors = [heads(1, 4, 40, 64)[0], heads(1, 4, 72, 64)[0], heads(1, 4, 72, 64)[0]]
    tensors = [x.detach().requires_grad_() for x in tensors]
    bias = [torch.randn(4, 1, 72, device="cuda", dtype=torch.bfloat16).requires_grad_()] if masked else []
    f = jitted() if masked else jitted(is_causal=True)
    check(f, [*tensors, *bias], {} if masked else {"is_causal": True}, caplog)
    assert "cudnn_attention_forward(" in str(thunder.last_traces(f)[-1])


@pytest.mark.parametrize("shape", [(2, 4, 16, 64), (4, 16, 64)])
def test_dropout_of_everything(shape: tuple[int, ...]) -> None:
    """Gives zeros, and zeros for gradients, as eager does."""
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    out = jitted(dropout_p=1.0)(*tensors)
    assert not out.any()
    for a, x in zip(torch.autograd.grad(out, tensors, torch.ones_like(out)), tensors):
        assert a.shape == x.shape and not a.any()


def _added(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device).masked_fill(~mask, -math.inf)


@pytest.mark.parametrize("lengths", [(64, 64), (5, 7), (1, 40), (100, 300)])
def test_a_triangle_in_the_other_corner(lengths: tuple[int, int], caplog: Any) -> None:
    """The last query sees the last key."""
    s, t = lengths

    def f(q: Any, k: Any, v: Any) -> Any:
        mask = torch.ones(s, t, dtype=torch.bool, device=q.device).tril(t - s)
        return F.scaled_dot_product_attention(q, k, v, mask)

    mask = torch.ones(s, t, dtype=torch.bool, device="cuda").tril(t - s)
    found = thunder.jit(f, executors=["cudnn"])
    check(found, [heads(2, 3, s, 64), heads(2, 3, t, 64), heads(2, 3, t, 64)], {}, caplog, mask)
    side = "'top-left'" if s == t else "'bottom-right'"
    assert s == 1 or side in str(thunder.last_traces(found)[-1])


@pytest.mark.parametrize("lengths", [(64, 64), (5, 7), (100, 300), (1, 40)])
@pytest.mark.parametrize("window", [1, 8, 50])
@pytest.mark.parametrize("side", ["top-left", "bottom-right"])
def test_bands(lengths: tuple[int, int], window: int, side: str, caplog: Any) -> None:
    """Masks of which queries see the last few keys before them, at either side."""
    s, t = lengths
    shift = 0 if side == "top-left" else t - s

    def mask() -> torch.Tensor:
        i, j = torch.arange(s, device="cuda")[:, None] + shift, torch.arange(t, device="cuda")[None]
        return (j <= i) & (j > i - window)

    found = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask()), executors=["cudnn"])
    check(found, [heads(2, 3, s, 64), heads(2, 3, t, 64), heads(2, 3, t, 64)], {}, caplog, mask())
    assert s == 1 or "None, (" in str(thunder.last_traces(found)[-1]) or window > s + shift


def test_layouts(caplog: Any) -> None:
    """Slices, expanded tensors, rows that are not dense, a gradient that lies as it likes: all give the same."""
    base = torch.randn(2, 64, 3, 4, 64, dtype=torch.bfloat16, device="cuda")
    packed = [base[:, :, i].transpose(1, 2) for i in range(3)]
    alike = {
        "packed": packed,
        "dense": [x.contiguous() for x in packed],
        "transposed": [x.mT.contiguous().mT for x in packed],
        "gaps": [F.pad(x, (0, 4))[..., :64] for x in packed],
        "unaligned": [_unaligned(x) for x in packed],
        "sequence first": [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in packed],
    }
    g = torch.randn(2, 4, 64, 64, dtype=torch.bfloat16, device="cuda")
    gradients = (g, g.transpose(1, 2).contiguous().transpose(1, 2), g.mT.contiguous().mT, _unaligned(g))
    expected: Any = None
    for tensors in alike.values():
        for grad in gradients:
            out, sums = run.attention_forward(*tensors, None, "top-left", 0.125)
            found = (out, *run.attention_backward(grad, *tensors, out, sums, None, "top-left", 0.125, False))
            expected = expected or found
            for a, b in zip(found, expected):
                torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)
    expanded = torch.randn(1, 4, 64, 64, dtype=torch.bfloat16, device="cuda").expand(2, 4, 64, 64)
    out = run.attention(expanded, expanded, expanded, None, None, 0.125)
    torch.testing.assert_close(out[0], out[1])
    assert not caplog.records


def _unaligned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)


def test_dropout() -> None:
    """Repeats with torch's seed, keeps what it should, and backward leaves out what forward did."""
    q, k, v = (heads(2, 3, 64, 64, dtype=torch.float16) for _ in range(3))
    f = jitted(dropout_p=0.3)
    eye = torch.eye(64, dtype=q.dtype, device="cuda").expand(2, 3, 64, 64).contiguous().requires_grad_()
    torch.manual_seed(5)
    kept = f(q, k, eye) != 0  # attention of the unit matrix is the weights
    assert abs(kept.float().mean().item() - 0.7) < 0.02
    torch.manual_seed(5)
    out = f(q, k, v)
    g = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), g)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth = torch.softmax(wide[0] @ wide[1].mT / 8, -1) * (kept.double() / 0.7) @ wide[2]
    near(out, truth, 5e-3)
    for a, b in zip(found, torch.autograd.grad(truth, wide, g.double())):
        near(a, b, 5e-3)
    torch.manual_seed(5)
    assert torch.equal(f(q, k, v), out)
    assert not torch.equal(f(q, k, v), out)


def test_cuda_graphs() -> None:
    """A replay draws the next random numbers; under the same seed the same ones."""
    q, k, v = (heads(2, 3, 64, 64).detach() for _ in range(3))
    f = jitted(dropout_p=0.3)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            f(q, k, v)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = f(q, k, v)

    def replayed(seed: int | None) -> torch.Tensor:
        if seed is not None:
            torch.manual_seed(seed)
        graph.replay()
        return out.clone()

    first, second, again = replayed(3), replayed(None), replayed(3)
    assert torch.equal(first, again) and not torch.equal(first, second)


@pytest.mark.parametrize("how", [{"is_causal": True}, {"attn_mask": True}, {"dropout_p": 0.1}], ids=str)
def test_deterministic_algorithms(how: dict[str, Any]) -> None:
    """Gradients repeat bit by bit under deterministic algorithms, also that of a mask that heads share."""
    q, k, v = (heads(2, 8, 1024, 128) for _ in range(3))
    inputs = [q, k, v]
    if "attn_mask" in how:
        inputs.append(torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True))
    how = {name: value for name, value in how.items() if name != "attn_mask"}
    jitted = thunder.jit(lambda *x: F.scaled_dot_product_attention(*x, **how), executors=["cudnn"])

    def seeded(*x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        out: torch.Tensor = jitted(*x)
        return out

    assert repeats(seeded, *inputs)


def test_threads_and_streams() -> None:
    """Each thread, in a stream of its own, gets the same."""
    q = heads(2, 3, 64, 64).detach()
    expected = run.attention(q, q, q, None, "top-left", 0.125)
    found: list[Any] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(run.attention(q, q, q, None, "top-left", 0.125))
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(x, expected) for x in found)


def test_attention_that_is_spelt_out(caplog: Any) -> None:
    """With a mask that transformers adds, and repeated heads."""

    def f(q: Any, k: Any, v: Any) -> Any:
        k, v = (x[:, :, None].expand(2, 2, 4, 100, 64).reshape(2, 8, 100, 64) for x in (k, v))
        w = torch.matmul(q, k.transpose(2, 3)) * 0.125
        w = w + torch.triu(torch.full((100, 100), -math.inf, device=q.device, dtype=q.dtype), 1)[None, None]
        return torch.matmul(F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype), v)

    tensors = [heads(2, 8, 100, 64), heads(2, 2, 100, 64), heads(2, 2, 100, 64)]
    found = thunder.jit(f, executors=["cudnn"])
    check(found, tensors, {"is_causal": True}, caplog)
    assert "'top-left', 0.125)" in str(thunder.last_traces(found)[-1])
