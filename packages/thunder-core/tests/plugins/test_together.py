# SPDX-License-Identifier: Apache-2.0
"""All plugins of an environment at once, in one training step: who runs what, and what it is when one is left out.

Whatever is installed takes part, on a GPU if there is one; without plugins everything is torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.extend import get_default_executors, remove_default_executor, set_default_executors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
WIDTH, HEADS, CLASSES, LENGTH = (512, 8, 4096, 256) if DEVICE == "cuda" else (32, 2, 64, 16)

# Executors by how fast they were measured to run an operation (docs/performance.md), the fastest first; then torch.
FUSERS = ("triton", "nvfuser")
FASTEST = {
    "rms_norm_forward": (*FUSERS, "cudnn"),
    "rms_norm_backward": (*FUSERS, "cudnn"),
    "layer_norm_forward": (*FUSERS, "cudnn"),
    "layer_norm_backward": (*FUSERS, "cudnn"),
    "attention_forward": ("cudnn",),
    "attention_backward": ("cudnn",),
    "cross_entropy_forward": ("triton_crossentropy",),
    "cross_entropy_backward": ("triton_crossentropy",),
}
ON_THE_CPU = {name for name in FASTEST if not name.startswith("attention")}


def step(x: Any, labels: Any, *weights: Any) -> Any:
    """A transformer's layer and a loss."""
    first, into, out, second, bias, up, down, head = weights
    h = F.rms_norm(x, first.shape, first)
    q, k, v = (y.view(2, LENGTH, HEADS, -1).transpose(1, 2) for y in F.linear(h, into).chunk(3, -1))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + F.linear(y.transpose(1, 2).flatten(2), out)
    h = F.layer_norm(x, second.shape, second, bias)
    x = x + F.linear(F.gelu(F.linear(h, up)), down)
    return F.cross_entropy(F.linear(x, head).flatten(0, 1), labels)


def inputs() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Labels, and what is differentiated by."""
    torch.manual_seed(0)
    labels = torch.randint(0, CLASSES, (2 * LENGTH,), device=DEVICE)
    shapes = [(WIDTH,), (3 * WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH,), (WIDTH,), (2 * WIDTH, WIDTH)]
    shapes += [(WIDTH, 2 * WIDTH), (CLASSES, WIDTH)]
    made = [torch.randn((2, LENGTH, WIDTH), device=DEVICE, dtype=DTYPE)]
    made += [torch.randn(shape, device=DEVICE, dtype=DTYPE) / (WIDTH**0.5 if len(shape) > 1 else 1) for shape in shapes]
    return labels, [t.requires_grad_() for t in made]


def results(f: Any, labels: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The loss and all gradients."""
    loss = f(tensors[0], labels, *tensors[1:])
    return [loss, *torch.autograd.grad(loss, tensors)]


def off(found: list[torch.Tensor], truth: list[torch.Tensor]) -> list[float]:
    """How far results are from the truth, by their norms."""
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, truth)]


@pytest.fixture(scope="module")
def truth() -> Any:
    """What comes out in double precision, and how far eager is from it."""
    labels, tensors = inputs()
    expected = results(step, labels, [t.detach().double().requires_grad_() for t in tensors])
    return expected, off(results(step, labels, tensors), expected)


def check(jitted: Any, truth: Any) -> None:
    """It is as near to the truth as eager is."""
    expected, eager = truth
    for found, usual in zip(off(results(jitted, *inputs()), expected), eager):
        assert found <= 2 * usual + 1e-4


def runs(trace: Any) -> dict[str, str]:
    """By which executor each of the operations in question runs."""

    def names(op: Any) -> Iterator[str]:
        yield op.sym.name
        for part in op.subsymbols:
            yield from names(part)

    found: dict[str, str] = {}
    for op in trace.bound_symbols:
        for name in names(op):
            for known in FASTEST:
                if name.endswith((known, known.replace("cross_entropy", "crossentropy"))):
                    found.setdefault(known, op.sym.executor.name)
    return found


def test_each_operation_goes_to_the_fastest(truth: Any) -> None:
    """With all that are installed; the torch executor has the rest."""
    jitted = thunder.jit(step)
    check(jitted, truth)
    found = {**runs(thunder.last_traces(jitted)[-1]), **runs(thunder.last_backward_traces(jitted)[-1])}
    there = {ex.name for ex in get_default_executors()}
    for name, order in FASTEST.items():
        if DEVICE == "cpu" and name not in ON_THE_CPU:
            continue
        assert found.get(name, "torch") == next((ex for ex in order if ex in there), "torch"), name


def test_without_one_the_results_are_the_same(truth: Any) -> None:
    """Others, torch at last, run what it ran."""
    before = get_default_executors()
    everyone = [ex.name for ex in before]
    for left_out in (*([name] for name in everyone), everyone):
        try:
            for name in left_out:
                remove_default_executor(name)
            jitted = thunder.jit(step)
            check(jitted, truth)
        finally:
            set_default_executors(before)
        forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
        assert not {*runs(forward).values(), *runs(backward).values()} & {*left_out}


@pytest.mark.parametrize("options", [{}, {"te_fuse_norms": True}], ids=["norms of others", "norms in fp8"])
def test_layers_in_fp8(truth: Any, options: dict[str, Any]) -> None:
    """Where a recipe is given, layers are in fp8, and the rest runs where it ran."""
    if all(ex.name != "te" for ex in get_default_executors()):
        pytest.skip("needs thunder-ex-te and its library")
    from transformer_engine.common.recipe import Float8CurrentScaling

    jitted = thunder.jit(step, te_recipe=Float8CurrentScaling(), **options)
    assert max(off(results(jitted, *inputs()), truth[0])) < 0.15
    forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    assert str(forward).count("te_matmul(") >= 4 and str(backward).count("te_matmul(") >= 8
    assert str(forward).count("te_quantize_norm(") == (2 if options else 0)
    there = {ex.name for ex in get_default_executors()}
    found = {**runs(forward), **runs(backward)}
    for name, order in FASTEST.items():
        if not (options and name.endswith("norm_forward")):
            assert found.get(name, "torch") == next((ex for ex in order if ex in there), "torch"), name
