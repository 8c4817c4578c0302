# SPDX-License-Identifier: Apache-2.0
"""Random programs against eager: graphs of operations on tensors of all types, shapes and layouts.

With small whole numbers every type computes exactly, so that results have to be equal; with others they have to be
close. Sizes are constants or symbolic.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder_ex_triton.fusion import iteration_space

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

FLOATS = [torch.float32, torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]

Shape = tuple[int, ...]
Values = list[Any]
Step = tuple[str, Callable[[Values], Any]]


def small(x: Any) -> Any:
    """Numbers that every type has."""
    return x if x.dtype is torch.bool else x.clamp(0 if x.dtype is torch.uint8 else -100, 100)


def unless(dtype: torch.dtype, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that is left out for a type that has none."""
    return lambda x: x if x.dtype is dtype else f(x)


def written(x: Any) -> Any:
    """A copy that is written to, in part."""
    y = x.clone()
    y[..., :1] = 1
    return y.masked_fill_(y > 3, 0)


def rows(x: Any, y: Any) -> Any:
    """Rows of a table. Without rows, a GPU stops at an assertion, and no error says so."""
    if not y.shape[0]:
        raise IndexError
    return F.embedding(torch.nan_to_num(x).clamp(0, y.shape[0] - 1).long(), y)


def taken(x: Any, y: Any) -> Any:
    """Some rows, or an error as for `rows`."""
    if not x.shape[0]:
        raise IndexError
    return x.index_select(0, y.flatten()[:9].long().clamp(0, x.shape[0] - 1))


WHOLE: dict[str, Callable[[Any], Any]] = {
    "neg": unless(torch.bool, lambda x: -x), "abs": unless(torch.bool, torch.abs), "square": lambda x: small(x * x),
    "not": torch.logical_not, "sign": torch.sign, "relu": unless(torch.bool, F.relu), "less": lambda x: small(x - 2),
    "triple": lambda x: small(x * 3), "rest": unless(torch.bool, lambda x: small(7 - x)), "bits": torch.bitwise_not,
    "half": lambda x: (x / 2).floor(), "positive": lambda x: torch.where(x > 0, x, 2), "no nan": torch.nan_to_num,
    "clamped": unless(torch.bool, lambda x: x.clamp(0, 3)), "triangle": lambda x: x.tril() if x.ndim > 1 else x,
    "sum": lambda x: small(x.sum()), "copy": lambda x: x.clone(), "filled": lambda x: torch.full_like(x, 1),
    "counted": lambda x: small(x + torch.arange(x.shape[-1], device=x.device)), "written": written,
    "steps": lambda x: small(x * torch.arange(2, 2 + 3 * x.shape[-1], 3, dtype=torch.int32, device=x.device)),
}  # fmt: skip
REAL: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: x.clamp(-5, 3).exp(), "tanh": torch.tanh, "sigmoid": torch.sigmoid, "sin": torch.sin,
    "silu": F.silu, "gelu": lambda x: F.gelu(x, approximate="tanh"), "root": lambda x: (x.abs() + 1).sqrt(),
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-3), "mean": lambda x: x.mean(-1, keepdim=True),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-3), "variance": lambda x: x.var(0, correction=0),
    "norm": lambda x: (x * x).sum(-1, keepdim=True).add(1).sqrt(),
}  # fmt: skip
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: small(x + y), "sub": lambda x, y: small(x.float() - y), "mul": lambda x, y: small(x * y),
    "max": torch.maximum, "min": torch.minimum, "lt": torch.lt, "ge": torch.ge, "eq": torch.eq, "or": torch.logical_or,
    "greater": lambda x, y: torch.where(x > y, x, y), "chosen": lambda x, y: torch.where(x != 0, y, x),
    "rows": rows, "taken": taken,
}  # fmt: skip


def reshaped(chance: random.Random, x: Any) -> Step:
    """In another shape: a divisor, and what is left."""
    n = x.numel()
    first = chance.choice([d for d in range(1, n + 1) if n % d == 0]) if n else 0
    shape = chance.choice([(first, -1), (n,), (first, 1, -1)]) if n else x.shape
    return f"reshape {shape}", lambda v: v[0].reshape(shape)


def moved(chance: random.Random, x: Any) -> Step:
    """Elements in other places, or some of them."""
    d, e = chance.randrange(x.ndim), chance.randrange(x.ndim)
    n = x.shape[d]
    first = chance.randrange(n + 1)
    last, step = chance.randrange(first, n + 1), chance.choice([1, 1, 2, 3])
    part = (slice(None),) * d + (slice(first, last, step),)
    order = chance.sample(range(x.ndim), x.ndim)
    low, high, value = chance.choice([-1, 0, 1, 2]), chance.choice([-1, 0, 2]), chance.choice([0, 1])
    larger = tuple(3 if size == 1 and chance.random() < 0.7 else size for size in x.shape)
    return chance.choice([
        reshaped(chance, x), (f"transpose {d} {e}", lambda v: v[0].transpose(d, e)),
        (f"permute {order}", lambda v: v[0].permute(order)), (f"part {part}", lambda v: v[0][part]),
        (f"flip {d}", lambda v: v[0].flip(d)), (f"roll {d}", lambda v: v[0].roll(2, d)),
        ("squeeze", lambda v: v[0].squeeze()), (f"unsqueeze {d}", lambda v: v[0].unsqueeze(d)),
        (f"pad {low} {high} {value}", lambda v: F.pad(v[0], (low, high), value=value)),
        (f"expand {larger}", lambda v: v[0].expand(larger)), (f"select {d}", lambda v: v[0].select(d, first)),
        (f"split {d} {first}", lambda v: v[0].split([first, n - first], d)[1]),
        (f"half {d}", lambda v: v[0].chunk(2, d)[-1]), ("contiguous", lambda v: v[0].contiguous()),
        (f"repeat {d}", lambda v: v[0].repeat([2 if i == d else 1 for i in range(v[0].ndim)])),
        (f"cat {d}", lambda v: torch.cat((v[0], v[1], v[0]), d)),
        (f"stack {d}", lambda v: torch.stack((v[0], v[1]), d)),
    ])  # fmt: skip


def reduced(chance: random.Random, x: Any) -> Step:
    """Sums and extremes over some dimensions."""
    some = chance.sample(range(x.ndim), chance.randrange(1, x.ndim + 1))
    dims = chance.choice([some, list(range(x.ndim))[-len(some) :], list(range(len(some)))])
    keep, name = chance.random() < 0.5, chance.choice(["sum", "sum", "amax", "amin", "any", "all"])
    return f"{name} {dims} {keep}", lambda v: small(getattr(v[0], name)(dims, keepdim=keep))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse sums over any adjacent dimensions of small tensors, too."""
    monkeypatch.setattr(iteration_space, "MIN_ENTRY", 0)


class Program:
    """Inputs, and a function of them whose results are values of a graph."""

    def __init__(self, seed: int, *, whole: bool):
        self.chance = random.Random(seed)
        self.whole = whole
        torch.manual_seed(seed)
        shape = self.shape()
        others = [self.chance.choice([shape, self.broadcast(shape), self.shape()]) for _ in range(2)]
        self.inputs = [self.tensor(s) for s in (shape, *others)]
        self.steps: list[tuple[str, list[int], Callable[[Values], Any]]] = []
        values = list(self.inputs)
        wanted = self.chance.randrange(2, 12)
        for _ in range(60):
            if len(self.steps) < wanted:
                self.extend(values)
        count = len(self.inputs)
        kept = [i for i in range(count, len(values) - 1) if self.chance.random() < 0.25]
        self.results = [*kept, len(values) - 1]

    def shape(self) -> Shape:
        """Odd sizes, seldom none at all."""
        while True:
            sizes = [
                self.chance.choice([1, 1, 2, 3, 4, 5, 8, 17, 33]) for _ in range(self.chance.choice([0, 1, 2, 2, 3, 4]))
            ]
            if sizes and self.chance.random() < 0.05:
                sizes[0] = 0
            if torch.Size(sizes).numel() <= 1200:
                return tuple(sizes)

    def broadcast(self, shape: Shape) -> Shape:
        """A shape that broadcasts with it."""
        sizes = tuple(1 if self.chance.random() < 0.4 else d for d in shape)
        return sizes[self.chance.randrange(len(sizes) + 1) if self.chance.random() < 0.4 else 0 :]

    def tensor(self, shape: Shape) -> torch.Tensor:
        """A tensor of some type, somehow in memory."""
        dtype, layout = self.chance.choice(DTYPES), self.chance.random()
        x = torch.randint(0 if dtype is torch.uint8 else -6, 7, shape)
        if dtype.is_floating_point and not self.whole:
            x = torch.randn(shape)
        x = (x > 0 if dtype is torch.bool else x.to(dtype)).to(DEVICE)
        if x.ndim == 4 and layout < 0.3:
            return x.contiguous(memory_format=torch.channels_last)
        if x.ndim > 1 and layout < 0.2:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        if x.ndim and layout < 0.35:
            return x.repeat_interleave(2, -1)[..., ::2]
        if all(shape) and x.ndim and layout < 0.45:
            return x[:1].expand(shape)
        if layout < 0.55:  # at an address that is no multiple of 16
            return x.new_zeros(x.numel() + 1)[1:].view(shape).copy_(x)
        return x

    def extend(self, values: Values) -> None:
        """One more value, if what was chosen can be computed."""
        chance = self.chance
        of = [
            len(values) - 1 if chance.random() < 0.6 else chance.randrange(len(values)),
            chance.randrange(len(values)),
        ]
        x = values[of[0]]
        kind = chance.choice(["one", "one", "two", "two", "two", "moved", "moved", "moved", "reduced", "type"])
        if kind == "one":
            some = WHOLE if self.whole or not x.is_floating_point() else {**WHOLE, **REAL, **REAL}
            name = chance.choice(list(some))
            text, step = name, lambda v: some[name](v[0])
        elif kind == "two":
            name = chance.choice(list(TWO))
            text, step = name, lambda v: TWO[name](v[0], v[1])
        elif kind == "type":
            dtype = chance.choice(DTYPES)
            text, step = str(dtype), lambda v: (v[0].abs() if dtype is torch.uint8 else v[0]).to(dtype)
        elif x.ndim == 0:
            return
        else:
            text, step = (moved if kind == "moved" else reduced)(chance, x)
        try:
            y = step([values[i] for i in of])
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return  # it is no program
        if y.numel() <= 10000:
            self.steps.append((text, of, step))
            values.append(y)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = list(inputs)
        for _, of, step in self.steps:
            values.append(step([values[i] for i in of]))
        return tuple(values[i] for i in self.results)

    def __str__(self) -> str:
        lines = [f"v{i}: {x.dtype} {tuple(x.shape)} {x.stride()}" for i, x in enumerate(self.inputs)]
        lines += [f"v{i}: {text} of v{a}, v{b}" for i, (text, (a, b), _) in enumerate(self.steps, len(self.inputs))]
        return "\n".join([*lines, f"results: {self.results}"])


def check(program: Program, found: Any, expected: Any, tolerance: float) -> None:
    """Results are of the same type and shape, and as close as that."""
    for i, (mine, right) in enumerate(zip(found, expected)):
        torch.testing.assert_close(
            mine, right, rtol=tolerance, atol=tolerance, equal_nan=True,
            msg=lambda text, i=i: f"result {i}: {text}\n{program}",
        )  # fmt: skip


def jitted(program: Program) -> Any:
    """It as fusions, with sizes that are constants or symbolic."""
    cache = program.chance.choice(["constant values", "symbolic values"])
    return thunder.jit(lambda *inputs: program(*inputs), executors=["triton"], cache=cache)


@pytest.mark.parametrize("seed", range(60))
def test_whole_numbers(seed: int) -> None:
    """Are what eager computes, to the bit; inputs are as they were."""
    program = Program(seed, whole=True)
    before = [x.clone() for x in program.inputs]
    check(program, jitted(program)(*program.inputs), program(*program.inputs), 0)
    check(program, program.inputs, before, 0)


@pytest.mark.parametrize("seed", range(30))
def test_real_numbers(seed: int) -> None:
    """Are close to what eager computes."""
    program = Program(1000 + seed, whole=False)
    found, expected = jitted(program)(*program.inputs), program(*program.inputs)
    check(program, found, expected, 6e-2 if "float16" in str(program) else 3e-4)


@pytest.mark.parametrize("seed", range(30))
def test_gradients(seed: int) -> None:
    """Of whole numbers, which are divided where several elements are the largest."""
    program = Program(2000 + seed, whole=True)
    inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in program.inputs]
    found, expected = jitted(program)(*inputs), program(*inputs)
    leaves = [x for x in inputs if x.requires_grad]
    pairs = [(a, b) for a, b in zip(found, expected) if a.requires_grad and b.requires_grad]
    if leaves and pairs:
        factors = [torch.randint(-2, 3, b.shape, device=DEVICE).to(b.dtype) for _, b in pairs]
        mine, right = (
            torch.autograd.grad(list(out), leaves, factors, allow_unused=True, materialize_grads=True)
            for out in zip(*pairs)
        )
        check(program, mine, right, 5e-2 if "float16" in str(program) else 1e-4)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_special_numbers(special: float) -> None:
    """Go through pointwise operations, extremes and sums as in eager."""
    x = torch.randn(5, 9, device=DEVICE)
    x[2, 3] = x[4, 8] = special

    def f(x: Any, y: Any) -> Any:
        z = torch.maximum(x, y) - torch.minimum(y, x * 2)
        extremes = x.amax(-1), x.amin(-1, keepdim=True) * 2, F.relu(x), x.clamp(-1, 1), x.sign(), x > y, x.tanh()
        return z, *extremes, torch.where(x.isnan(), y, x), F.softmax(x, -1), z.sum(-1), z.sum(0), x.abs().sqrt()

    for y in (x.flip(0), x.abs()):
        found = thunder.jit(f, executors=["triton"])(x, y)
        torch.testing.assert_close(found, f(x, y), equal_nan=True)
