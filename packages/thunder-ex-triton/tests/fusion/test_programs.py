# SPDX-License-Identifier: Apache-2.0
"""Random programs against eager: dtypes, strides, broadcasts, empty and single elements, NaN and infinities."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Step = Callable[[Any], Any]


def floats(f: Step) -> Step:
    """A step of floating point numbers that have a last dimension."""
    return lambda x: f(x) if x.ndim and x.is_floating_point() and x.shape[-1] else x


def last(f: Step) -> Step:
    """A step along the last dimension."""
    return lambda x: f(x) if x.ndim and x.shape[-1] > 1 else x


ONE: dict[str, Step] = {
    "neg": lambda x: -x, "abs": torch.abs, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "square": lambda x: x * x,
    "half": lambda x: x / 2, "relu": F.relu, "floor": torch.floor, "sign": torch.sign,
    "clamp": lambda x: x.clamp(-1, 1), "flat": lambda x: (x.reshape(-1) + 1).reshape(x.shape),
    "turned": last(lambda x: torch.cat((x[..., 1:], x[..., :1]), -1)),
    "transposed": lambda x: x.transpose(0, -1) if x.ndim else x, "padded": last(lambda x: F.pad(x[..., 1:], (1, 0))),
    "no nan": lambda x: torch.where(torch.isnan(x), torch.zeros_like(x), x), "float": lambda x: x.float(),
    "positive": lambda x: x > 0, "not": torch.logical_not, "half precision": lambda x: x.half(),
    "whole": lambda x: torch.nan_to_num(x.float().clamp(-50, 50)).long(), "every second": last(lambda x: x[..., ::2]),
    "softmax": floats(lambda x: F.softmax(x, -1)), "sum": lambda x: x.sum(-1, keepdim=True) + x if x.ndim else x,
    "columns": floats(lambda x: x + x.sum(0, keepdim=True)), "mean": floats(lambda x: x.mean(-1)),
    "largest": floats(lambda x: x.amax(-1, keepdim=True)), "norm": floats(lambda x: F.layer_norm(x, x.shape[-1:])),
    "variance": floats(lambda x: x.var(-1, correction=0)), "one more": lambda x: x.unsqueeze(0),
    "spread": lambda x: x.unsqueeze(0).expand(2, *x.shape) * 1 if x.numel() < 200 else x,
}  # fmt: skip
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "max": torch.maximum, "lt": lambda x, y: x < y,
    "where": lambda x, y: torch.where(x > y, x, y), "div": lambda x, y: x / (y.abs() + 1),
}  # fmt: skip
DTYPES = [torch.float32] * 4 + [torch.float64, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8]


def tensor(chance: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of some type, somehow in memory, with special values in it now and then."""
    dtype = chance.choice(DTYPES)
    x = torch.randn(shape) if dtype.is_floating_point else torch.randint(0, 9, shape)
    if dtype.is_floating_point and x.numel() and chance.random() < 0.25:
        x.view(-1)[chance.randrange(x.numel())] = chance.choice([float("nan"), float("inf"), -float("inf"), -0.0])
    x = (x > 4 if dtype is torch.bool else x.to(dtype)).to(DEVICE)
    layout = chance.random()
    if x.ndim > 1 and layout < 0.15:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if x.ndim and layout < 0.3:
        return x.repeat_interleave(2, -1)[..., ::2]
    return x[:1].expand(shape) if x.ndim and layout < 0.4 else x


def shapes(chance: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape, seldom an empty one, and one that broadcasts with it."""
    ndim = chance.choice([0, 1, 1, 2, 2, 2, 3, 3])
    sizes = [chance.choice([1, 1, 2, 3, 4, 5, 8, 17, 33]) for _ in range(ndim)]
    if ndim and chance.random() < 0.1:
        sizes[chance.randrange(ndim)] = 0
    other = [1 if chance.random() < 0.3 else d for d in sizes]
    return tuple(sizes), tuple(other[chance.randrange(ndim + 1) if chance.random() < 0.3 else 0 :])


@settings(max_examples=80)
@given(seed=st.integers(0, 1 << 30))
def test_random_programs(seed: int) -> None:
    """Give what eager gives, also where sizes are symbolic."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    first, second = shapes(chance)
    x, y = tensor(chance, first), tensor(chance, second)
    steps = [chance.choice([*ONE, *TWO, *TWO, *TWO]) for _ in range(chance.randrange(2, 8))]
    keeps = chance.random() < 0.4

    def f(x: Any, y: Any) -> Any:
        kept = []
        for i, step in enumerate(steps):
            x = ONE[step](x) if step in ONE else TWO[step](x, y)
            if keeps and i % 2:
                kept.append(x)
        return x, *kept

    try:
        expected = f(x, y)
    except (RuntimeError, IndexError, TypeError, NotImplementedError):
        return  # it is no program
    cache = chance.choice(["constant values", "symbolic values"])
    found = thunder.jit(f, executors=["triton"], cache=cache)(x, y)
    rough = torch.float16 in (x.dtype, y.dtype) or "half precision" in steps
    tolerance = 4e-2 if rough else 2e-4
    for mine, right in zip(found, expected):
        kind = f"{steps} of {x.dtype} {tuple(x.shape)} {x.stride()} and {y.dtype} {tuple(y.shape)}, {cache}"
        torch.testing.assert_close(
            mine, right, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text, kind=kind: f"{text}\n{kind}"
        )
