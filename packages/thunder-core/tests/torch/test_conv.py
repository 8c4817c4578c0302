# SPDX-License-Identifier: Apache-2.0
"""Convolutions: random arguments against torch, padding by name, complex numbers, and what the gradient runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import thunder

CONVS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@st.composite
def calls(draw: Any) -> tuple[Any, list[tuple[int, ...]], dict[str, Any]]:
    """A convolution with shapes that fit and all its options."""
    n = draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    groups = draw(st.integers(1, 2))
    ins, outs = (groups * draw(st.integers(1, 2)) for _ in range(2))
    numbers = st.tuples(*[st.integers(1, 2)] * n)
    options: dict[str, Any] = {"stride": draw(numbers), "dilation": draw(numbers), "groups": groups}
    options["padding"] = draw(st.tuples(*[st.integers(0, 2)] * n))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * n))
    size = draw(st.tuples(*[st.integers(5, 6)] * n))
    weight = (outs, ins // groups, *kernel)
    if transposed:
        weight = (ins, outs // groups, *kernel)
        options["output_padding"] = tuple(min(s, d) - 1 for s, d in zip(options["stride"], options["dilation"]))
    elif draw(st.booleans()):
        options["stride"], options["padding"] = 1, draw(st.sampled_from(["same", "valid"]))
    lead = (2,) if draw(st.booleans()) else ()
    fn = (TRANSPOSED if transposed else CONVS)[n - 1]
    return fn, [(*lead, ins, *size), weight, (outs,)], options


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
def test_random_arguments(as_eager: Any, call: tuple[Any, list[tuple[int, ...]], dict[str, Any]]) -> None:
    """Results and all three gradients."""
    fn, shapes, options = call
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    as_eager(lambda x, w, b: fn(x, w, b, **options), *tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """Channels last stay last, forward and backward."""
    image, weight = (randn(2, 4, 6, 6, dtype=dtype).detach(), randn(8, 4, 3, 3, dtype=dtype).detach())
    last = {"memory_format": torch.channels_last}
    for x, w in ((image, weight), (image.to(**last), weight.to(**last))):
        as_eager(
            lambda x, w: F.conv2d(x, w, padding=1), x.clone().requires_grad_(), w.clone().requires_grad_(), exactly=True
        )
    assert thunder.jit(lambda x, w: F.conv2d(x, w))(image.to(**last), weight.to(**last)).is_contiguous(**last)


def test_complex_numbers(as_eager: Any, by_primitives: Any, randn: Any) -> None:
    """Which come down to real convolutions."""
    import thunder.torch as ltorch

    x, w, b = (torch.complex(randn(*s).detach(), randn(*s).detach()) for s in ((2, 4, 6), (6, 4, 3), (6,)))
    torch.testing.assert_close(by_primitives(ltorch.conv1d, x, w, b), F.conv1d(x, w, b))
    as_eager(lambda x, w, b: F.conv1d(x, w, b, padding=1), *[t.requires_grad_() for t in (x, w, b)])


def test_a_gradient_that_nobody_needs_is_not_computed(randn: Any) -> None:
    """The first layer's image needs none, a frozen weight needs none."""
    for frozen, kept in ((0, "convolution_weight_grad"), (1, "convolution_input_grad")):
        inputs = [randn(2, 3, 5, 5), randn(4, 3, 3, 3)]
        inputs[frozen].requires_grad_(False)
        jitted = thunder.jit(lambda x, w: F.conv2d(x, w))
        jitted(*inputs)
        names = [b.sym.name for b in thunder.last_backward_traces(jitted)[-1].bound_symbols]
        assert [n for n in names if n.startswith("convolution")] == [kept]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: F.conv2d(x[0, 0], x), r"Expected 3D \(unbatched\) or 4D \(batched\) input to conv2d"),
        (lambda x: F.conv2d(x, x[:, :2]), "to have 2 channels, but got 3 channels instead"),
        (lambda x: F.conv2d(x, x, padding="same", stride=2), "padding='same' is not supported for strided"),
        (lambda x: F.conv2d(x[..., :2], x), r"padded input size per channel: \(5 x 2\). Kernel size: \(5 x 5\)"),
        (lambda x: F.conv2d(x, x, padding=-1), "negative padding is not supported"),
        (lambda x: F.conv2d(x, x, stride=(1, 1, 1)), r"expected stride to be a single integer value or a list of 2"),
        (lambda x: F.conv2d(x, x, x[0, 0, 0]), "expected bias to be 1-dimensional with 2 elements"),
        (lambda x: F.conv_transpose2d(x, x[:1].expand(3, 3, 5, 5), output_padding=1), "output padding must be smaller"),
    ],
)
def test_errors(fn: Any, message: str) -> None:
    """torch's words."""
    for call in (fn, thunder.jit(fn)):
        with pytest.raises(RuntimeError, match=message):
            call(torch.ones(2, 3, 5, 5))
