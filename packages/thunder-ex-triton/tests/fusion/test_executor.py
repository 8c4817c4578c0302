# SPDX-License-Identifier: Apache-2.0
"""Fusions against eager: what becomes one kernel, forward and backward, and random compositions."""

from __future__ import annotations

import math
import pathlib
import runpy
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder_ex_triton.fusion import executor, region, tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A random tensor that requires grad."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return numbers.to(DEVICE, dtype).requires_grad_()


def fusions(trace: Any) -> int:
    """How many fusions a program runs."""
    return sum(op.sym.is_fusion for op in trace.bound_symbols)


def check(
    f: Callable[..., Any], *args: Any, forward: int | None = 1, backward: int | None = 1, tolerance: float = 1e-5
) -> Any:
    """Results and gradients are eager's, from that many fusions."""
    jitted = thunder.jit(f, executors=["triton"])
    expected, found = f(*args), jitted(*args)
    compare: Any = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    torch.testing.assert_close(found, expected, **compare)
    assert forward is None or fusions(thunder.last_traces(jitted)[-1]) == forward
    leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    if leaves and isinstance(expected, torch.Tensor) and expected.requires_grad:
        g = torch.linspace(-1, 1, expected.numel(), device=DEVICE, dtype=expected.dtype).reshape(expected.shape)
        gradients = torch.autograd.grad(found, leaves, g)
        for mine, right in zip(gradients, torch.autograd.grad(expected, leaves, g)):
            torch.testing.assert_close(mine, right, **compare)
            assert mine.stride() == right.stride() or mine.numel() == 0
        assert backward is None or fusions(thunder.last_backward_traces(jitted)[-1]) == backward
    return jitted


def rotated(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding."""
    half = q.shape[-1] // 2
    return q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pointwise": (lambda a, b: (a * b + a).tanh() * b, ((5, 7), (5, 7))),
    "broadcast, gradient summed over rows": (lambda a, b: a * b + a, ((5, 7), (7,))),
    "softmax": (lambda a: F.softmax(a * 2, -1), ((5, 33),)),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, w.shape, w, b), ((3, 5, 33), (33,), (33,))),
    "layer_norm over two dimensions": (lambda a, w, b: F.layer_norm(a, w.shape, w, b), ((3, 5, 4), (5, 4), (5, 4))),
    "rms_norm": (lambda a, w: F.rms_norm(a, w.shape, w), ((3, 5, 32), (32,))),
    "gelu with a bias": (lambda a, b: F.gelu(a + b, approximate="tanh"), ((4, 5, 33), (33,))),
    "swiglu": (lambda a, b: F.silu(a) * b, ((4, 33), (4, 33))),
    "rotary": (rotated, ((2, 4, 6, 32), (6, 32), (6, 32))),
    "transposed": (lambda a, b: (a.transpose(0, 1) * 2 + b).sum(-1), ((7, 5), (5, 7))),
    "reshaped": (lambda a, b: (a.view(4, 3, 10) * b).exp().reshape(12, 10) + 1, ((12, 10), (4, 1, 10))),
    "largest of rows": (lambda a: (a - a.amax(-1, keepdim=True)).exp(), ((5, 19),)),
    "cut and padded": (lambda a: F.pad(a[:, 1:-2] * 2, (1, 2), value=3.0).sigmoid(), ((4, 9),)),
    "one number": (lambda a, b: a * b + 1, ((), ())),
    "one row": (lambda a: F.softmax(a, -1), ((17,),)),
    "one column": (lambda a, b: (a * b).exp(), ((6, 1), (1,))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_kernel(name: str) -> None:
    """Each is a single fusion, and so is its gradient."""
    f, shapes = CASES[name]
    check(f, *(make(*shape, seed=i) for i, shape in enumerate(shapes)), forward=1, backward=None)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "rotary", "gelu with a bias", "swiglu", "softmax"])
def test_gradients_are_one_kernel_too(name: str) -> None:
    """What is summed over rows goes along with the pass that reads the same data."""
    f, shapes = CASES[name]
    check(f, *(make(*shape, seed=i) for i, shape in enumerate(shapes)))


@pytest.mark.parametrize("rows", [3, 300])
def test_rows_in_turn(rows: int) -> None:
    """Rows that are summed are taken in turn by few programs, with those that come next on their way."""
    f, shapes = CASES["gelu with a bias"]
    check(f, *(make(*(rows, 64)[2 - len(s[-2:]) :], seed=i) for i, s in enumerate(shapes)), tolerance=1e-4)


@pytest.mark.parametrize("name", ["layer_norm", "rotary", "reshaped", "softmax"])
def test_half_precision(name: str) -> None:
    """Is computed in single precision and rounded where values leave the kernel."""
    f, shapes = CASES[name]
    args = [make(*shape, dtype=torch.bfloat16, seed=i) for i, shape in enumerate(shapes)]
    check(f, *args, tolerance=6e-2, backward=None)


def looked_up(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of places and a table."""
    return lambda t, w: f(F.embedding(t, w), t)


TABLES: dict[str, Callable[[Any, Any], Any]] = {
    "a norm": looked_up(lambda x, t: F.layer_norm(x, x.shape[-1:])),
    "a sum of rows": looked_up(lambda x, t: (x * 2).sum((0, 1))),
    "two": lambda t, w: (F.embedding(t, w) + F.embedding(torch.arange(t.shape[1], device=DEVICE), w)).tanh(),
    "in parts": looked_up(lambda x, t: torch.cat((x * 2, F.pad(x, (0, 0, 1, 0))[:, 1:], x), 1)),
    "numbers that are computed": lambda t, w: F.embedding((t + 1) % 3 - 1 + t * 0 + 1, w) * 2,
    "short numbers, transposed": lambda t, w: F.embedding(t.int().T, w).transpose(0, 1) * t[..., None],
    "a table that is computed": lambda t, w: F.embedding(t, w * 2) + 1,
    "by index_select": lambda t, w: w.index_select(0, t.flatten()) * 2,
    "a single one": lambda t, w: w.index_select(0, t[0, 0]).exp(),
}  # fmt: skip


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", TABLES)
def test_rows_of_tables(name: str, cache: str) -> None:
    """Are read by the kernel that needs them, by their numbers."""
    f = TABLES[name]
    jitted = thunder.jit(f, executors=["triton"], cache=cache)
    w = make(11, 12)
    for length in (7, 5):
        t = torch.randint(0, 11, (3, length), generator=torch.Generator().manual_seed(length)).to(DEVICE)
        found, expected = jitted(t, w), f(t, w)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        g = torch.randn_like(expected)
        torch.testing.assert_close(torch.autograd.grad(found, w, g), torch.autograd.grad(expected, w, g))
    names = {op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols}
    assert not names & {"embedding", "index_select"}, names


@pytest.mark.skipif(DEVICE == "cuda", reason="what stops a GPU's program stops all that come after it")
@pytest.mark.parametrize("number", [11, -1])
def test_numbers_that_no_row_has(number: int) -> None:
    """Are an error, and nothing is read; a table's rows that are copied and nothing else are left to torch."""
    t, w = torch.tensor([3, number, 0]), make(11, 12)
    with pytest.raises(Exception, match="index out of range"):
        thunder.jit(lambda t, w: F.embedding(t, w) * 2, executors=["triton"])(t, w)
    jitted = thunder.jit(F.embedding, executors=["triton"])
    jitted(t.clamp(0, 10), w)
    assert not thunder.examine.fusions(jitted)


def test_whole_numbers_of_half_precision() -> None:
    """Are those of what the program has, which is rounded, and not of what the kernel computes with."""

    def f(x: Any) -> Any:
        y = x + 33
        return y, y.int(), (x * x).bool()

    x = torch.tensor([-1e-3, 0.9999, -0.25, 1e-5], dtype=torch.float16, device=DEVICE)
    check(f, x)
    assert f(x)[1].tolist() == [33, 34, 32, 33]


LONG: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w: F.softmax(x * w, -1), "log_softmax": lambda x, w: F.log_softmax(x + w, -1),
    "layer_norm": lambda x, w: F.layer_norm(x, w.shape, None, w), "sum": lambda x, w: (x * w).sum(-1) * 2,
    "largest": lambda x, w: (x - x.amax(-1, keepdim=True)).exp() * w,
}  # fmt: skip


@pytest.mark.parametrize("width", [5000, 33_001])
@pytest.mark.parametrize("name", LONG)
def test_long_rows(name: str, width: int) -> None:
    """Check that kernels loop over the chunks of long rows."""
    x, w = make(2, width).detach(), make(width).detach()
    jitted = check(LONG[name], x, w, tolerance=1e-4)
    (fusion,) = thunder.examine.fusions(jitted)
    assert fusion.template == "long"
    assert ("evict_last" in fusion.source) == (fusion.source.count("for start in range(") > 1)


ANYWHERE: dict[str, Callable[..., Any]] = {
    "one type": lambda x, y: F.softmax(x, -1),
    "a wider result": lambda x, y: F.log_softmax(x.float(), -1),
    "a narrower result": lambda x, y: ((x - x.amax(-1, keepdim=True)) * 2 > -1, x.sum(-1)),
    "two rows": lambda x, y: F.softmax(x + y, -1) * y,
    "a part of another": lambda x, y: F.softmax(x[:, 1:] * y[:, :-1], -1),
    "their places": lambda x, y: F.softmax(x.float(), -1) * torch.arange(x.shape[-1], device=x.device),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ANYWHERE)
def test_rows_that_begin_anywhere(name: str, dtype: torch.dtype) -> None:
    """Are read in whole vectors, and nothing of the rows beside them is."""
    x, y = (make(5, 33_001, seed=n).detach().to(dtype) for n in range(2))
    x[::2] = float("nan")
    jitted = check(ANYWHERE[name], x, y, tolerance=2e-3)
    (fusion,) = thunder.examine.fusions(jitted)
    assert fusion.template == "long"
    assert ("load_row(" in fusion.source) == (name != "a part of another")


@pytest.mark.parametrize("piece", [8192, 16384, 65536])
@pytest.mark.parametrize("width", [32_769, 33_001, 49_151])
def test_pieces_of_any_size(width: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element of a row is in one of them: one piece, a few, many; a last one that holds next to nothing."""
    monkeypatch.setattr(tiles, "_chunk", lambda columns, passes, moved: (piece, 4))
    x = torch.arange(3, device=DEVICE)[:, None].expand(3, width).half().contiguous()
    f = thunder.jit(lambda x: (x.float().sum(-1), x * 2 + x.float().sum(-1, keepdim=True)), executors=["triton"])
    total, more = f(x)
    assert torch.equal(total, x[:, 0].float() * width) and torch.equal(more, x * 2 + total[:, None])
    (fusion,) = thunder.examine.fusions(f)
    assert "load_row(" in fusion.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_zeros_keep_their_sign(dtype: torch.dtype) -> None:
    """Also where a function is made of others."""
    zeros = torch.tensor([0.0, -0.0], device=DEVICE, dtype=dtype)
    for f in (torch.tanh, torch.floor, torch.trunc, lambda x: -x, lambda x: x * 2):
        found = thunder.jit(lambda x, f=f: f(x) * 1, executors=["triton"])(zeros)
        assert torch.equal(found.signbit(), f(zeros).signbit())


def _scaled_by_the_largest(x: torch.Tensor) -> torch.Tensor:
    x = (x * 0.37).sin()
    return x * x.amax(-1, keepdim=True) + torch.maximum(x, x * 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_stored_is_equal_to_what_is_computed_anew(dtype: torch.dtype) -> None:
    """A gradient compares the largest element, which forward kept, with elements that it computes again.

    In half precision several elements may be the largest, which then share the gradient as in eager mode.
    """
    x = make(40, 33, dtype=dtype)
    jitted = thunder.jit(_scaled_by_the_largest, executors=["triton"])
    found, eager = (torch.autograd.grad(f(x).float().sum(), x)[0] for f in (jitted, _scaled_by_the_largest))
    torch.testing.assert_close(found, eager)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32])
def test_equality_with_numbers(dtype: torch.dtype) -> None:
    """A number is what it is in the tensor's type."""
    x = torch.tensor([0.1, 0.3, 1.0, 0.0], device=DEVICE).to(dtype)
    for f in (lambda x: (x == 0.1) | (x == 1), lambda x: (x * 1 != 0.1) & (x != 0.3)):
        assert torch.equal(thunder.jit(f, executors=["triton"])(x), f(x))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.mT.contiguous().mT, "expanded": lambda x: x[:1].expand(6, -1),
    "every second": lambda x: x.repeat_interleave(2, 1)[:, ::2], "a part": lambda x: F.pad(x, (3, 2))[:, 3:-2],
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    """Inputs may lie anywhere; a call with other strides is another kernel; results lie as eager's."""
    jitted = thunder.jit(lambda a, b: a * 2 + b, executors=["triton"])
    b = make(6, 8).detach()
    for x in (b, LAYOUTS[name](b + 1), b):
        found, expected = jitted(x, b), x * 2 + b
        torch.testing.assert_close(found, expected)
        if name == "transposed":
            assert jitted(x, x).stride() == (x * 2 + x).stride()


def _rotated_heads(x: Any, cos: Any, sin: Any) -> Any:
    q, k = (t.view(2, 5, -1, 16).transpose(1, 2) for t in x.split([64, 32], -1))
    return rotated(q, cos, sin), rotated(k, cos, sin)


def _overwritten(x: Any) -> Any:
    y = (x * 2).mT
    y[0] = 0.5
    return y.relu(), y + x.mT


def images(*channels: int) -> tuple[torch.Tensor, ...]:
    """Channels-last images with 4 x 6 places, or volumes if there are three numbers."""
    places, kind = ((4, 6), torch.channels_last) if len(channels) == 2 else ((2, 4, 6), torch.channels_last_3d)
    return tuple([make(2, c, *places, seed=c).detach().to(memory_format=kind) for c in channels[:2]])


PLACED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "heads for attention": (_rotated_heads, (make(2, 5, 96), make(5, 16), make(5, 16, seed=1))),
    "the first operand decides": (lambda a, b: (a.mT * 2 + b, b + a.mT * 2), (make(4, 5), make(5, 4))),
    "permuted": (lambda a: (a.permute(2, 0, 1) * 2, (a.permute(2, 0, 1).reshape(3, 20) * 2).tanh()), (make(4, 5, 3),)),
    "spread": (lambda a: ((a[:, None].expand(4, 6, 5) * 2).tanh(),), (make(4, 5),)),
    "seen otherwise": (lambda a: ((a.view(2, 2, 5).transpose(0, 1) * 2).exp(),), (make(4, 5),)),
    "joined": (lambda a: (torch.cat((a.mT * 2, a.mT), 1) * 2,), (make(4, 5),)),
    "joined images": (lambda a, b: (torch.cat((a * 2, b, a), 1), torch.cat((a, b.contiguous()), 0) + 1), images(3, 3)),
    "joined channels": (lambda a, b: (torch.cat((a * 2, b), 1), torch.cat((b, b[..., :1]), -1) * 2), images(3, 5)),
    "joined images of one channel": (lambda a, b: (torch.cat((a * 2, b), 1) * 2,), images(1, 1)),
    "joined volumes": (lambda a, b: (torch.cat((a * 2, b), 1) * 2,), images(3, 2, 2)),
    "stacked images": (lambda a, b: [torch.stack((a * 2, b), dim) * 2 for dim in range(5)], images(3, 3)),
    "stacked with another image": (lambda a, b: [torch.stack((a * 2, b.contiguous()), 1).exp()], images(3, 3)),
    "a part that is all": (_overwritten, (make(1, 3, 4).detach(),)),
    "padded image": (lambda a, b: (F.pad(a * 2, (1, 0, 2, 1)), F.pad(b, (1, 1)) * 2), images(3, 2)),
    "packed by kernels": (lambda a: (F.softmax(a.mT, -1), F.layer_norm(a.mT * 2, (4,)), F.gelu(a.mT)), (make(4, 5),)),
    "filled like an image": (lambda a, b: (torch.zeros_like(a) + a, torch.ones_like(a).mul_(b)), images(3, 3)),
    "masked image": (
        lambda a, b: ((a * 2).masked_fill(b > 0, 0), a.mul(b).tril(), (a * b).masked_fill_(b > 0, 0)),
        images(3, 3),
    ),
    "a part": (lambda a: (a[::2, 1:] * 2,), (make(4, 5).detach().mT,)),
    "broadcast": (lambda a, b: (a * b,), (make(4, 1, 5), make(7, 5).detach().mT.contiguous().mT[None])),
}


def test_equal_sizes_do_not_hide_the_order_of_memory() -> None:
    """An image with as many channels as rows and columns: its shape is the same in any order of its dimensions."""

    def f(x: Any, y: Any) -> Any:
        z = x * 2 + y
        return z, z.permute(0, 3, 1, 2).tanh()

    args = make(2, 4, 4, 4).detach(), make(2, 4, 4, 4, seed=1).detach()
    jitted = thunder.jit(f, executors=["triton"])
    for mine, right in zip(jitted(*args), f(*args)):
        torch.testing.assert_close(mine, right)
        assert mine.stride() == right.stride()
    found = [op.sym.fn for op in thunder.last_traces(jitted)[-1].bound_symbols]
    [fn] = [fn for fn in found if isinstance(fn, region.FusedRegion)]
    assert "//" not in fn.source and "%" not in fn.source


@pytest.mark.parametrize("name", PLACED)
def test_results_lie_as_eagers(name: str) -> None:
    """So that what comes next needs no copy that eager does not make."""
    f, args = PLACED[name]
    jitted = thunder.jit(f, executors=["triton"])
    for mine, right in zip(jitted(*args), f(*args)):
        torch.testing.assert_close(mine, right)
        assert mine.stride() == right.stride()
    assert thunder.examine.fusions(jitted)


def test_what_is_not_fused_stays() -> None:
    """Matrix products, writes and views at the border of regions are left to others."""

    def f(x: Any, w: Any) -> Any:
        h = F.gelu(F.linear(x, w) * 2)
        return (h + 1).t(), h

    args = make(5, 8).detach(), make(8, 8).detach()
    jitted = thunder.jit(f, executors=["triton"])
    found, expected = jitted(*args), f(*args)
    torch.testing.assert_close(found, expected)
    assert found[0].stride() == expected[0].stride()
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert "linear" in names and any(name.startswith("Triton") for name in names)


EXTREMES = [
    float("nan"),
    float("inf"),
    -float("inf"),
    0.0,
    -0.0,
    1e-40,
    -1e-8,
    0.3999,
    -0.4001,
    9.0,
    88.0,
    -88.0,
    -200.0,
    3e38,
]
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": lambda x: torch.sigmoid(x) * 2, "tanh": lambda x: torch.tanh(x) + 1, "silu": lambda x: F.silu(x) + 1,
    "gelu": lambda x: F.gelu(x, approximate="tanh") + 1,
}  # fmt: skip
if DEVICE == "cuda":  # the interpreter cuts off where hardware rounds
    FUNCTIONS["rounded"] = lambda x: (x * 3).bfloat16().float() * 2
    FUNCTIONS["rounded, of a row"] = lambda x: (x.abs().sum() * 3).bfloat16().float() + x


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("count", [1, 2, 14, 4096])
def test_functions_with_forms_of_their_own(name: str, count: int) -> None:
    """At what is no number, infinite, zero, subnormal or large, and near where forms change."""
    numbers = torch.linspace(-9, 9, 4096) if count == 4096 else torch.tensor(EXTREMES[-count:])
    check(FUNCTIONS[name], numbers.to(DEVICE), tolerance=2e-6)


def test_a_fusion_can_be_read_and_run() -> None:
    """Its text is a program of its own, with the trace's names and what it stands for."""
    jitted = check(lambda a, w: F.softmax(a * w, -1) * w, make(5, 33), make(33))
    forward, backward = thunder.examine.fusions(jitted)
    assert (forward.template, backward.template) == ("rows", "columns, finish")
    assert forward.bytes == 4 * sum(math.prod(p.shape) for p in (*forward.inputs, *forward.outputs))
    for word in ("5 x 33", "prims.exp", "w = tl.load(w_ptr"):
        assert word in forward.source
    for found in (forward, backward):
        path = pathlib.Path(tempfile.mkdtemp(), "fusion.py")
        path.write_text(found.source)
        program = runpy.run_path(str(path))
        inputs = [make(*p.shape).detach() for p in found.inputs]
        for mine, right in zip(program[found.name](*inputs), found.fn(*inputs)):
            torch.testing.assert_close(mine, right, equal_nan=True)


def test_a_fusions_names_are_its_own() -> None:
    """What the program calls like a function that kernels call is called otherwise."""

    def f(_max: Any, row_number: Any) -> Any:
        return F.softmax(_max, -1) * row_number

    jitted = thunder.jit(f, executors=["triton"])
    x, y = make(3, 6).detach(), make(3, 6, seed=1).detach()
    expected = jitted(x, y)
    (fusion,) = thunder.examine.fusions(jitted)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "fusion.py"
        path.write_text(fusion.source)
        (found,) = runpy.run_path(str(path))[fusion.name](_max=x, row_number=y)
    torch.testing.assert_close(found, expected)


def test_layers_expand_what_they_share_for_themselves() -> None:
    """Angles that two layers read do not tie the layers' regions together, nor keep one from being a single kernel."""

    def f(q: Any, k: Any, cos: Any, sin: Any, w: Any) -> Any:
        for _ in range(2):
            x = torch.cat((rotated(q, cos, sin), rotated(k, cos, sin)), 1) @ w
            q, k = x[:, :4], x[:, 4:]
        return x

    args = make(2, 4, 6, 8), make(2, 2, 6, 8), make(6, 8, seed=1), make(6, 8, seed=2), make(8, 8)
    check(f, *(a.detach() for a in args), forward=2, tolerance=1e-4)


def test_long_chains_are_several_kernels() -> None:
    """The code of a kernel is generated recursively."""

    def chain(x: Any, y: Any) -> Any:
        for i in range(400):
            x = x * y if i % 2 else x + y
        return x

    check(chain, make(5), torch.linspace(-0.9, 0.9, 5, device=DEVICE), forward=None, backward=None)


def test_concatenations_of_many_tensors() -> None:
    """Python accepts 200 nested parentheses, and a clipped gradient may have more norms."""

    def many(x: Any) -> Any:
        return torch.cat([x * i for i in range(210)])

    check(many, make(3), forward=None, backward=None)


def test_derivatives_in_the_program() -> None:
    """The derivative computes values again, so that nothing reads the values of the function."""

    def derivative(x: Any) -> Any:
        y = torch.sin(torch.sin(x))
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    check(derivative, make(5))


def test_unused_operations_are_not_fused() -> None:
    """Transforms may leave them."""
    from thunder.extend import get_executor

    def f(x: Any) -> Any:
        torch.sin(torch.sin(x))
        return x.sum()

    jitted = thunder.jit(f, executors=["triton"])
    jitted(make(5))
    fused: Any = get_executor("triton")
    assert fusions(fused.fusion_pass(thunder.last_traces(jitted)[0])) < 2


def test_kernels_have_few_parameters() -> None:
    """Drivers limit their size."""

    def products(*xs: Any) -> Any:
        return [x * xs[0] for x in xs[1:]]

    xs = [make(3, seed=i).detach() for i in range(301)]
    jitted = check(products, *xs, forward=None)
    found = [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.is_fusion]
    assert len(found) > 1 and all(len(op.flat_args) + len(op.flat_outs) <= 256 for op in found)


def test_fuel() -> None:
    """Fusions can be counted down, to find a wrong one."""
    from thunder.extend import get_executor

    executor: Any = get_executor("triton")
    executor.set_fuel(0)
    try:
        jitted = thunder.jit(lambda a: (a * 2).exp(), executors=["triton"])
        jitted(make(3).detach())
        assert fusions(thunder.last_traces(jitted)[-1]) == 0
    finally:
        executor.set_fuel(None)


STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "sigmoid": lambda x, y: torch.sigmoid(x),
    "norm": lambda x, y: F.layer_norm(x, x.shape[-1:]), "softmax": lambda x, y: F.softmax(x, -1),
    "center": lambda x, y: x - x.mean(-1, keepdim=True), "columns": lambda x, y: x - x.sum(0, keepdim=True) / 8,
    "turn": lambda x, y: torch.cat((x[..., 1:], x[..., :1]), -1), "where": lambda x, y: torch.where(x > y, x, -y),
    "transpose": lambda x, y: x.mT.contiguous().mT, "flat": lambda x, y: x.reshape(-1).tanh().reshape(x.shape),
    "scale": lambda x, y: x * y.amax(-1, keepdim=True),
}  # fmt: skip


@settings(max_examples=20)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6), rows=st.integers(1, 5),
    columns=st.integers(1, 9),
)  # fmt: skip
def test_compositions(steps: list[str], rows: int, columns: int) -> None:
    """Whatever follows whatever."""

    def f(x: Any, y: Any) -> Any:
        for step in steps:
            x = STEPS[step](x, y)
        return x

    check(f, make(rows, columns), make(rows, columns, seed=3).detach(), forward=None, backward=None, tolerance=2e-4)


def test_kernels_are_compiled_ahead_for_the_strides_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of inputs that operations of torch, views and other kernels lay out; a call then waits for no compiler."""
    expected: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    prepare, compile_ = region.FusedRegion.prepare, region.FusedRegion._compile

    def record(self: Any, strides: Any) -> None:
        monkeypatch.setattr(self, "_begin", lambda key, write: expected.__setitem__(self.name, key))
        with monkeypatch.context() as context:
            context.setattr(region, "interpreting", lambda: False)
            prepare(self, strides)

    def called(self: Any, key: Any) -> Any:
        seen[self.name] = key
        return compile_(self, key)

    monkeypatch.setattr(executor, "interpreting", lambda: False)
    monkeypatch.setattr(region.FusedRegion, "prepare", record)
    monkeypatch.setattr(region.FusedRegion, "_compile", called)

    def f(x: Any, w: Any, y: Any) -> Any:
        h = F.conv2d(x * 2, w, padding=1).tanh()
        h = F.max_pool2d(h, 2) + 1
        heads = F.scaled_dot_product_attention(*[y.view(2, 5, 3, 2, 8).transpose(1, 3)[:, :, i] for i in range(3)])
        return h.exp(), heads.transpose(1, 2) * 2, (y @ y.mT).sin()

    x = make(2, 3, 8, 8).detach().to(memory_format=torch.channels_last)
    thunder.jit(f, executors=["triton"])(x, make(4, 3, 3, 3).detach(), make(2, 5, 48).detach())
    assert len(seen) >= 4 and seen == expected
    assert any(strides[1] == 1 for strides in (key[0] for key in seen.values()) if len(strides) == 4)


@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda a, b: torch.cat([a.view(-1), b.view(-1)]), 0),
        (lambda a, b: torch.cat([a.view(2, -1), b.view(2, -1)], 1).view(-1), 0),
        (lambda a, b: torch.cat([a.view(-1).half(), b.view(-1).half()]), 1),
        (lambda a, b: torch.cat([a.mT.reshape(-1), b.mT.reshape(-1)]), 1),
    ],
)
def test_torch_concatenates_tensors_as_they_are(f: Callable[..., Any], count: int) -> None:
    a, b = make(4, 6).detach(), make(4, 8).detach()
    jitted = thunder.jit(f, executors=["triton"])
    assert torch.equal(jitted(a, b), f(a, b))
    assert fusions(thunder.last_traces(jitted)[-1]) == count
