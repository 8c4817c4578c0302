# SPDX-License-Identifier: Apache-2.0
"""Flex attention on a GPU: eager mode, torch.compile and thunder, forward and backward, with errors.

    python packages/thunder-core/benchmarks/flex_attention.py [--markdown FILE] [--length 4096] [--quick]

Batch 4, 16 heads, bfloat16, heads of width 64 and 128. Eager mode materializes the scores, where they fit. Errors are
the largest ones of the result and of the gradients of query, key and value (and of ALiBi's slopes), relative to the
largest element, against float32 with TF32 off. A first call compiles, so its seconds are measured once.
Without a GPU, the script runs small sizes on the CPU, as a check of itself.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import thunder
from thunder.toolkit import benchmarking

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BATCH, HEADS = (4, 16) if GPU else (1, 2)
WINDOW = 1024 if GPU else 16
DOCUMENTS = 8
_MOST_SCORES = 1 << 31  # for eager mode: their float32 takes 8 GiB several times


class Case(NamedTuple):
    """A program: the functions of scores and masks, and the captured tensors that have gradients."""

    score: Callable[..., Any] | None
    mask: Callable[..., Any] | None
    learnt: Sequence[torch.Tensor]


def cases(length: int) -> dict[str, Case]:
    """Return the programs by name."""
    slopes = torch.exp2(-8 * torch.arange(1, HEADS + 1, device=DEVICE) / HEADS).requires_grad_()
    ends = torch.arange(length, device=DEVICE) * DOCUMENTS // length

    def causal(b: Any, h: Any, m: Any, n: Any) -> Any:
        return m >= n

    def window(b: Any, h: Any, m: Any, n: Any) -> Any:
        return (m >= n) & (m - n < WINDOW)

    def document(b: Any, h: Any, m: Any, n: Any) -> Any:
        return (m >= n) & (ends[m] == ends[n])

    def alibi(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return score + slopes[h] * (n - m)

    def fixed_alibi(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return score + torch.exp2(-8 * (h + 1) / HEADS) * (n - m)

    def softcap(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return 20 * torch.tanh(score / 20)

    return {
        "causal": Case(None, causal, ()),
        f"window {WINDOW}": Case(None, window, ()),
        "document": Case(None, document, ()),
        "ALiBi": Case(fixed_alibi, causal, ()),
        "ALiBi, learnt": Case(alibi, causal, (slopes,)),
        "softcap": Case(softcap, causal, ()),
        "none": Case(None, None, ()),
    }


def tensors(length: int, width: int) -> list[torch.Tensor]:
    """Return query, key, value and the cotangent of the result."""
    shape = (BATCH, HEADS, length, width)
    return [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=i < 3) for i in range(4)]


def reference(case: Case, q: Any, k: Any, v: Any, gradient: Any) -> list[torch.Tensor]:
    """Return the result and all gradients in float32, with materialized scores, head by head.

    Gradients of captured tensors are sums over all batches. Without such tensors, the first batch is enough.
    """
    batches = range(BATCH if case.learnt else 1)
    q, k, v = (x[: len(batches)].detach().float().requires_grad_() for x in (q, k, v))
    m, n = torch.arange(q.shape[2], device=DEVICE)[:, None], torch.arange(k.shape[2], device=DEVICE)
    out = torch.empty_like(q)
    for batch in batches:
        for head in range(q.shape[1]):
            b, h = torch.tensor(batch, device=DEVICE), torch.tensor(head, device=DEVICE)
            scores = (q[batch, head] @ k[batch, head].mT) * q.shape[-1] ** -0.5
            scores = scores if case.score is None else case.score(scores, b, h, m, n)
            scores = scores if case.mask is None else torch.where(case.mask(b, h, m, n), scores, float("-inf"))
            one = scores.softmax(-1) @ v[batch, head]
            one.backward(gradient[batch, head].float())
            out.data[batch, head] = one.detach()
    wanted = [out.detach(), *[x.grad for x in (q, k, v, *case.learnt)]]
    for x in case.learnt:
        x.grad = None
    return wanted


def relative_error(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Return the largest difference, relative to the largest element of its tensor."""
    return max(
        float((x[: y.shape[0]].float() - y).abs().max() / y.abs().max().clamp(min=1e-30)) for x, y in zip(got, wanted)
    )


def contenders(case: Case, block_mask: Any, scores: int) -> dict[str, Callable[..., Any]]:
    """Return the functions of query, key and value to compare."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, score_mod=case.score, block_mask=block_mask)

    found: dict[str, Callable[..., Any]] = {}
    if GPU and scores <= _MOST_SCORES and not case.learnt:
        found["eager"] = attend
    if GPU:
        found["torch.compile"] = torch.compile(attend, fullgraph=True)
    found["thunder"] = thunder.jit(attend)
    return found


def run(name: str, case: Case, length: int, width: int, repetitions: int) -> list[list[str]]:
    """Measure one program. Return a row for each contender."""
    torch._dynamo.reset()
    *given, gradient = tensors(length, width)
    block_mask = None if case.mask is None else create_block_mask(case.mask, None, None, length, length, device=DEVICE)
    wanted = reference(case, *given, gradient)
    wrt = [*given, *case.learnt]
    forward: dict[str, Callable[[], Any]] = {}
    both: dict[str, Callable[[], Any]] = {}
    rows: dict[str, list[str]] = {}
    for who, fn in contenders(case, block_mask, BATCH * HEADS * length**2).items():
        begin = time.perf_counter()
        try:
            out = fn(*given)
            grads = torch.autograd.grad(out, wrt, gradient)
            if GPU:
                torch.cuda.synchronize()
        except Exception as error:  # e.g. out of memory
            rows[who] = [f"{name}, D {width}", who, type(error).__name__, "", "", ""]
            continue
        first = time.perf_counter() - begin
        error = relative_error([out.detach(), *grads], wanted)
        rows[who] = [f"{name}, D {width}", who, f"{first:.1f}", f"{error:.1e}"]
        forward[who] = lambda fn=fn: _without_gradients(fn, given)
        both[who] = benchmarking.step(fn, given, wrt, gradient)
    if GPU:
        for measured in (forward, both):
            times = benchmarking.in_turns(measured, repetitions, benchmarking.by_events)
            for who, milliseconds in times.items():
                rows[who].append(f"{milliseconds:.2f}")
    return [*rows.values()]


def _without_gradients(fn: Callable[..., Any], given: Sequence[torch.Tensor]) -> Any:
    with torch.no_grad():
        return fn(*given)


def main() -> None:
    """Measure, and print the table last."""
    options = benchmarking.parser(__doc__)
    options.add_argument("--length", type=int, default=4096 if GPU else 64, help="of the sequences")
    options.add_argument("--quick", action="store_true", help="only causal and learnt ALiBi, width 64")
    chosen = options.parse_args()
    warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    rows: list[list[str]] = []
    for width in (64,) if chosen.quick or not GPU else (64, 128):
        for name, case in cases(chosen.length).items():
            if chosen.quick and name not in ("causal", "ALiBi, learnt"):
                continue
            found = run(name, case, chosen.length, width, chosen.repetitions)
            print(*found, sep="\n", file=sys.stderr, flush=True)
            rows += found
    where = torch.cuda.get_device_name() if GPU else "CPU"
    head = ["program", where, "first call, s", "error", "forward, ms", "forward + backward, ms"]
    benchmarking.report(benchmarking.table(head, rows), chosen)


if __name__ == "__main__":
    main()
