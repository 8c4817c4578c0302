# SPDX-License-Identifier: Apache-2.0
"""Dropout draws the numbers that eager draws, in every type and layout, with gradients and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder

FUNCTIONS = {
    "dropout": (lambda x: F.dropout(x, 0.3), (6, 8)),
    "dropout1d": (lambda x: F.dropout1d(x, 0.3), (3, 4, 5)),
    "dropout1d_alone": (lambda x: F.dropout1d(x, 0.3), (4, 5)),
    "dropout2d": (lambda x: F.dropout2d(x, 0.3), (3, 4, 5, 2)),
    "dropout3d": (lambda x: F.dropout3d(x, 0.3), (3, 4, 2, 2, 2)),
    "dropout3d_alone": (lambda x: F.dropout3d(x, 0.3), (3, 4, 2, 2)),
    "alpha_dropout": (lambda x: F.alpha_dropout(x, 0.3, True), (6, 8)),
    "feature_alpha_dropout": (lambda x: F.feature_alpha_dropout(x, 0.3, True), (3, 4, 5)),
    "torch.dropout": (lambda x: torch.dropout(x, 0.3, True), (6, 8)),
    "torch.feature_dropout": (lambda x: torch.feature_dropout(x, 0.3, True), (3, 4, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("requires_grad", [True, False], ids=["training", "forward"])
def test_same_masks_as_eager(as_eager: Any, randn: Any, name: str, dtype: torch.dtype, requires_grad: bool) -> None:
    """Bit for bit, results and gradients, and the generator is left where eager leaves it."""
    fn, shape = FUNCTIONS[name]
    as_eager(lambda x: fn(x) * 2, randn(*shape, dtype=dtype).requires_grad_(requires_grad), exactly=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_layouts(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """Which number an element gets depends on how its tensor lies in memory: the noise is drawn in that order."""
    as_eager(lambda x: F.dropout(x.t(), 0.3), randn(6, 8, dtype=dtype), exactly=True)
    as_eager(lambda x: F.dropout(x[:, ::2], 0.3), randn(6, 8, dtype=dtype), exactly=True)
    as_eager(lambda x: F.dropout(x.expand(4, 8), 0.3), randn(1, 8, dtype=dtype), exactly=True)
    image = randn(2, 8, 3, 3, dtype=dtype).detach().to(memory_format=torch.channels_last).requires_grad_()
    as_eager(lambda x: F.dropout(x, 0.3), image, exactly=True)


def test_several_draws_in_order(as_eager: Any, randn: Any) -> None:
    """Each draw takes the next numbers, those of an unused result too."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        a = F.dropout(x, 0.5)
        torch.rand(3)
        return a + F.dropout(F.relu(x), 0.2)

    as_eager(fn, randn(5, 7), exactly=True)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certain_outcomes_draw_nothing(as_eager: Any, randn: Any, p: float) -> None:
    """Nothing or everything is dropped without a random number."""
    as_eager(
        lambda x: F.dropout(x, p) + F.alpha_dropout(x, p, True) + F.dropout(x, 0.5, False), randn(3, 4), exactly=True
    )
    nan = torch.tensor([float("nan"), 1.0])
    torch.testing.assert_close(thunder.jit(lambda x: F.dropout(x, 1.0))(nan), F.dropout(nan, 1.0), equal_nan=True)


def test_in_place(as_eager: Any, randn: Any) -> None:
    """`inplace=True` writes to what it is given."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        z = F.dropout(y, 0.4, inplace=True)
        return y + 1, z

    as_eager(fn, randn(3, 4), exactly=True)


def test_backward_saves_the_noise_alone(randn: Any) -> None:
    """The input is not kept: the gradient needs what it was multiplied with."""
    jitted = thunder.jit(lambda x: F.dropout(x * 2, 0.5))
    jitted(randn(4, 4))
    saved = thunder.last_backward_traces(jitted)[-1].args
    assert len(saved) == 2  # the noise and the gradient of the result


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_probabilities(p: float) -> None:
    """torch's exceptions: a ValueError of the functional form, a RuntimeError of torch's own."""
    x = torch.ones(3)
    with pytest.raises(ValueError, match=f"has to be between 0 and 1, but got {p}"):
        thunder.jit(lambda x: F.dropout(x, p))(x)
    with pytest.raises(RuntimeError, match=f"has to be between 0 and 1, but got {p}"):
        thunder.jit(lambda x: torch.dropout(x, p, True))(x)


def test_shapes_that_are_refused() -> None:
    """What torch says of too few dimensions, and the warning for doubtful ones."""
    with pytest.raises(RuntimeError, match="Expected 2D or 3D input, but received a 1D input"):
        thunder.jit(lambda x: F.dropout1d(x))(torch.ones(3))
    with pytest.raises(RuntimeError, match="at least 2 dimensions"), pytest.warns(UserWarning, match="1-D input"):
        thunder.jit(lambda x: F.dropout2d(x))(torch.ones(3))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        thunder.jit(lambda x: F.dropout(x))(torch.ones(3, dtype=torch.int64))
