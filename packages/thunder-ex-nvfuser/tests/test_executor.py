# SPDX-License-Identifier: Apache-2.0
"""Programs through the executor, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder import plugins
from thunder.toolkit.testing import repeats

# What nvFuser does not run after all torch runs, with a warning: here that is a failure.
pytestmark = pytest.mark.filterwarnings("error:nvfuser")
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def check(f: Callable[..., Any], *inputs: torch.Tensor, fusions: int | None = 1, grad: bool = False) -> Any:
    """Results, layouts and gradients are eager's; returns the jitted function."""
    jitted = thunder.jit(f, executors=["nvfuser"])
    mine = [x.detach().requires_grad_(grad and x.is_floating_point()) for x in inputs]
    eager = [x.detach().requires_grad_(grad and x.is_floating_point()) for x in inputs]
    found, expected = jitted(*mine), f(*eager)
    made = [fusion for fusion in thunder.examine.fusions(jitted) if fusion.program == "forward"]
    assert fusions is None or len(made) == fusions, thunder.last_traces(jitted)[-1]
    several = isinstance(expected, (tuple, list))
    for a, b in zip(found if several else [found], expected if several else [expected]):
        tolerance = TOLERANCES.get(b.dtype, 0)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert lies_as(a, b)
    if grad:
        g = torch.linspace(-1, 1, expected.numel(), device=expected.device).reshape(expected.shape).to(expected.dtype)
        leaves = [(a, b) for a, b in zip(mine, eager) if a.requires_grad]
        ours = torch.autograd.grad(found, [a for a, _ in leaves], g)
        assert any(fusion.program == "backward" for fusion in thunder.examine.fusions(jitted))
        for a, b in zip(ours, torch.autograd.grad(expected, [b for _, b in leaves], g)):
            torch.testing.assert_close(a, b, rtol=TOLERANCES[b.dtype], atol=TOLERANCES[b.dtype])
    return jitted


def lies_as(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether their elements lie alike: the strides of dimensions of one element say nothing."""
    return a.numel() == 0 or all(x == y for x, y, n in zip(a.stride(), b.stride(), b.shape) if n != 1)


def made(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """Numbers that are the same every time."""
    generator = torch.Generator().manual_seed(seed + len(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_norms_and_activations(device: str, dtype: torch.dtype) -> None:
    """What a transformer has between its matrix products, forward and backward."""
    x, w, b = (made(*s, dtype=dtype, device=device) for s in ((6, 40), (40,), (40,)))
    check(lambda x, w: F.rms_norm(x, (40,), w), x, w, grad=True)
    check(lambda x, w, b: F.layer_norm(x, (40,), w, b), x, w, b, grad=True)
    check(lambda x, b: F.gelu(x + b, approximate="tanh"), x, b, grad=True)
    check(lambda x, y: F.silu(x) * y, x, made(6, 40, dtype=dtype, device=device, seed=1), grad=True)
    check(lambda x: torch.softmax(x, -1), x, grad=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_largest_in_half_precision(device: str, dtype: torch.dtype) -> None:
    """What is compared is rounded first; where the largest is looked for again, torch runs both programs."""
    x = made(40, 33, dtype=dtype, device=device)
    wanted = x.clone().requires_grad_()
    for f in (lambda x: torch.sin(x).amax(0) * 2, lambda x: (x * 0.37 + x[0]).amin() + x.exp()):
        jitted = thunder.jit(f, executors=["nvfuser"], cuda_graphs="never")
        ours, eagers = (torch.autograd.grad(g(wanted).sum(), wanted)[0] for g in (jitted, f))
        torch.testing.assert_close(ours, eagers)
        assert not thunder.examine.fusions(jitted)
        assert "torch runs the program" in str(thunder.examine(f, x, executors=["nvfuser"]))
    check(lambda x: torch.softmax(x * 2, 0), x, grad=True)
    check(lambda x: ((x * 1.7).long() + 1, x * x > 0.5, torch.where(x * 3 >= 1, x, 0.0) + 1), x.detach())


COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "converted": lambda x: (x * 2).float().amax(0),
    "computed from": lambda x: (x.sin().float() * 1.7 + 0.3).amin(0),
    "a sum": lambda x: torch.atan2(x.sum(0), x.abs() + 1).float().amin(0),
    "to half precision and back": lambda x: x.float().sin().to(x.dtype).float().amax(0),
    "through views": lambda x: (x * 2).mT.reshape(-1, 3).float().amax((0, 1)),
    "through a product": lambda x: ((x * 2).exp() @ x.mT).float().amax(0),
    "the greatest of all": lambda x: (x * 2).double().max(),
    "a norm": lambda x: torch.linalg.vector_norm(x * 3, math.inf, dtype=torch.float32),
    "of softmax": lambda x: x.float().softmax(0).amax(0),
    "twice": lambda x: (x * 2).float().softmax(0).amax(0),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", COMPUTED)
def test_the_largest_of_computed_values_is_torchs(device: str, name: str, dtype: torch.dtype) -> None:
    """Two kernels may round differently, and the gradient finds no element again: torch runs forward and backward."""
    f, x = COMPUTED[name], made(33, 33, dtype=dtype, device=device).requires_grad_()
    jitted = thunder.jit(f, executors=["nvfuser"])
    ours, eagers = (torch.autograd.grad(g(x).sum(), x)[0] for g in (jitted, f))
    torch.testing.assert_close(ours, eagers, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert ours.isfinite().all()
    assert not any(fusion.program == "forward" for fusion in thunder.examine.fusions(jitted))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_largest_of_given_values(device: str, dtype: torch.dtype) -> None:
    """An input that is converted first has its elements everywhere, and softmax does not look for the largest again."""
    x = made(40, 33, dtype=dtype, device=device)
    check(lambda x: x.float().amax(0) * 2, x, grad=True)
    check(lambda x: (x.float() * 2 + 1).amax(0), x)  # no gradient looks for it
    check(lambda x: torch.softmax((x * 2).float(), 0), x, grad=True)
    check(lambda x: torch.logsumexp((x * 2).float(), 0), x, grad=True)


def test_shapes(device: str) -> None:
    """Rotary embeddings, whose halves torch joins, and transposed results."""
    x, cos = made(2, 3, 5, 8, device=device), made(5, 8, device=device, seed=1)

    def rotary(x: Any, cos: Any) -> Any:
        turned = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * cos + turned * cos.sin()

    check(rotary, x, cos, fusions=2, grad=True)
    check(lambda x: x.transpose(1, 2).exp() + 1, x)
    check(lambda x: (x.sin().reshape(6, 40) * 2, x.cos()), x)
    check(lambda x: x.mT.cos(), x)


def test_types(device: str) -> None:
    """Integers, truth values, conversions, comparisons."""
    x = made(4, 6, device=device)
    i = torch.arange(-12, 12, device=device).reshape(4, 6)
    check(lambda x, i: torch.where((x > 0) & (i != 3), i, -i).sum(1), x, i)
    check(lambda x: (x * 5).long() % 3 + (x > 0), x)
    check(lambda x: torch.where(x > 0, 1.0, float("inf")), x)
    check(lambda i: (i.int() * 2).sum(0, dtype=torch.int32), i)
    check(lambda x: x.half().float() + x.bfloat16(), x)
    check(lambda x: (x.bfloat16().half().int() * 2, (x * 9).half().bfloat16().long()), x * 9)
    for reduce in (torch.amax, torch.amin, torch.prod, torch.var):
        check(lambda x, reduce=reduce: reduce(x.exp(), 1, keepdim=True) + 1, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", [0.1, -0.3, 1e-12, 2049.0, 7, True])
def test_comparisons_with_numbers(device: str, dtype: torch.dtype, number: float) -> None:
    """A number is rounded to half precision before it is compared, as in torch."""
    n = torch.tensor(number, dtype=dtype).item()
    x = torch.tensor([n, 0.0, -n, 2 * n], dtype=dtype, device=device)
    for compare in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge):
        check(lambda x, compare=compare: torch.where(compare(x, number), x + 1, -x), x)


def test_comparisons_with_numbers_of_a_call(device: str) -> None:
    """nvFuser cannot round such a number to half precision: torch compares."""
    f = thunder.jit(lambda x, n: (x > n).float() * 2, executors=["nvfuser"], cache="symbolic values")
    for number in (0.1, 0.3):
        x = torch.tensor([number, 0.0, 1.0], device=device)
        for values in (x, x.half(), x.bfloat16()):
            assert f(values, number).equal((values > number).float() * 2)


def test_expanded_dimensions(device: str) -> None:
    """Reductions over what is expanded, by an operation or by a stride of 0, count every element."""
    x, b = made(4, 1, device=device), made(3, 1, 5, device=device)

    def f(x: Any, b: Any) -> Any:
        wide = b.exp().expand(3, 4, 5)
        reduced = [torch.var_mean(x, 1), torch.var_mean(wide, 1), torch.var_mean(wide * 2, (0, 1), correction=0)]
        sums = [wide.sum(1), wide.prod(1), wide.amax((1, 2)), x.sum(1), x.mean((0, 1))]
        return [t for pair in reduced for t in pair] + sums

    check(f, x.expand(4, 3), b, fusions=2)
    check(lambda x: F.layer_norm(x, (3,)) + 1, x.double().expand(4, 3), grad=True)


def test_signs_of_zeros(device: str) -> None:
    """Are eager's."""
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan")], device=device)

    def f(x: Any) -> Any:
        return 1 / x.abs(), 1 / x**0.5, 1 / x**-0.5, x**-1, 1 / x**2, 1 / x**3

    check(f, x)


def test_a_result_has_memory_of_its_own(device: str) -> None:
    """What nvFuser would give as a view of an input, or with strides of 0, lies as eager's does and can be written."""
    b = made(6, device=device)
    f = check(lambda b: (b.expand(4, 6) + 1, b * 1), b)
    rows, same = f(b)
    rows[0] = 7
    same.zero_()
    assert rows[1].ne(7).all() and b.ne(0).any()


def test_layouts(device: str) -> None:
    """A new layout of an input compiles anew, and results lie as eager's do."""
    f = thunder.jit(lambda x: x.exp() * 2, executors=["nvfuser"])
    base = made(8, 12, device=device)
    for x in (
        base,
        base.t(),
        base[:, ::2],
        base[:1].expand(8, 12),
        base[:, 0],
        base[:, 3:9].t(),
        base[:, :1].expand(8, 12),
    ):
        for _ in range(2):
            found, expected = f(x), x.exp() * 2
            torch.testing.assert_close(found, expected)
            assert lies_as(found, expected)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_nvfuser_gets_tensors_without_gaps(stand_in: Any, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """Of others, and of expanded ones, it gives wrong results: they are copied."""
    seen: list[torch.Tensor] = []
    make = stand_in.FusionExecutorCache

    def watched(definition: Any) -> Any:
        execute = make(definition).execute
        return SimpleNamespace(execute=lambda inputs: (seen.extend(inputs), execute(inputs))[1])

    monkeypatch.setattr(stand_in, "FusionExecutorCache", watched)
    f = thunder.jit(lambda x, y: (x * y).sum(1) + x[0, 0], executors=["nvfuser"], cache=cache)
    base, y = made(8, 12), made(8, 6)
    for x in (base[:, ::2], base[:, :6], base[:, :1].expand(8, 6), base[:1, :6].expand(8, 6), base[:6].t()[:8]):
        for _ in range(2):
            torch.testing.assert_close(f(x, y), (x * y).sum(1) + x[0, 0])
    tensors = [x for x in seen if isinstance(x, torch.Tensor)]
    assert len(tensors) >= 20 and all(x.untyped_storage().nbytes() == x.nbytes for x in tensors if x.ndim)


def test_alike_layers_share_a_definition(stand_in: Any) -> None:
    """Definitions are cached by their text, in which values have no names."""
    x, w = made(4, 8), made(8, 8, seed=1)

    def f(x: Any, w: Any) -> Any:
        for _ in range(5):
            x = torch.tanh(x @ w) * 2 + 1
        return x

    jitted = check(f, x, w, fusions=5)
    assert len(stand_in.definitions) == 1 and stand_in.runs == 5
    assert "tanh" in thunder.examine.fusions(jitted)[0].source


def test_what_nvfuser_refuses_torch_runs(stand_in: Any) -> None:
    """A region that does not compile is run by torch, with a warning that says why, and later calls as well."""
    stand_in.refuses = "no scheduler takes this"
    f = thunder.jit(lambda x: x.exp() + 1, executors=["nvfuser"])
    x = made(3, 4)
    with pytest.warns(UserWarning, match=r"nvFusion0 falls back to torch \(RuntimeError: no scheduler takes this\)"):
        torch.testing.assert_close(f(x), x.exp() + 1)
    torch.testing.assert_close(f(x), x.exp() + 1)


def test_what_it_leaves_to_others(device: str) -> None:
    """Reasons are shown; matrix products, gathers and empty tensors are torch's."""
    x, i = made(4, 4, device=device), torch.tensor([0, 2], device=device)
    for f, args, reason in (
        (lambda x: x @ x, (x,), "nvFuser has no such function"),
        (lambda x: x[:0].exp(), (x,), "has no elements"),
        (lambda x: x.to(torch.int8) + 1, (x,), "nvFuser has no type"),
        (lambda x, i: x[i].exp(), (x, i), "nvFuser has no such function"),
        (lambda x: x[1:3] * 2, (x,), "nvFuser has no such function"),
        (lambda x: F.pad(x, (1, 2)) * 2, (x,), "nvFuser has no such function"),
        (lambda x: torch.cat((x, x * 2)), (x,), "nvFuser has no such function"),
    ):
        assert reason in str(thunder.examine(f, *args, executors=["nvfuser"]))
        check(f, *args, fusions=None)


@pytest.mark.parametrize("order", [("nvfuser", "triton"), ("triton", "nvfuser")])
def test_beside_another_fuser(device: str, order: tuple[str, str]) -> None:
    """Who is asked first fuses as it does alone: the other one gets what it leaves, and divides nothing."""
    probe = pytest.importorskip("thunder_ex_triton.probe")
    ready = any(record.name == "triton" and record.ready for record in plugins.records())
    if not ready or probe.unusable_device(torch.device(device)):
        pytest.skip("thunder-ex-triton cannot run here")

    def f(x: Any, w: Any, b: Any) -> Any:
        x = F.layer_norm(x, (16,), b) @ w
        x = F.gelu(x + b) @ w
        return torch.softmax(F.dropout(x, 0.1) * 2, -1)

    def made_by(executors: tuple[str, ...]) -> list[Any]:
        inputs = [made(*shape, device=device).requires_grad_() for shape in ((16, 16), (16, 16), (16,))]
        jitted = thunder.jit(f, executors=list(executors))
        jitted(*inputs).sum().backward()
        return [
            (fusion.program, [op.sym.name for op in fusion.operations])
            for fusion in thunder.examine.fusions(jitted)
            if fusion.executor == executors[0]
        ]

    alone = made_by(order[:1])
    assert len(alone) >= 6
    assert made_by(order) == alone


def test_views_alone_are_no_fusion(device: str) -> None:
    """A program that only looks at its input otherwise stays as it is, and shares memory with it."""
    x = made(4, 6, device=device)
    f = thunder.jit(lambda x: x.t().reshape(6, 2, 2), executors=["nvfuser"])
    torch.testing.assert_close(f(x), x.t().reshape(6, 2, 2))
    assert not thunder.examine.fusions(f)


def test_views_at_the_border_stay_outside(device: str) -> None:
    """They share memory with what they are views of, as in eager; a fusion has none of them at its ends."""

    def f(x: Any, y: Any) -> Any:
        out = (x.t().exp() + y).sin()
        return out, out.t(), out[1:3], y.view(-1)

    x, y = made(4, 6, device=device), made(6, 4, device=device, seed=1)
    jitted = check(f, x, y)
    out, turned, part, flat = jitted(x, y)
    assert out.data_ptr() == turned.data_ptr() and part.data_ptr() == out[1:3].data_ptr()
    assert flat.data_ptr() == y.data_ptr()
    (fusion,) = thunder.examine.fusions(jitted)
    assert not {"t", "getitem", "view"} & {op.sym.name for op in fusion.operations[-1:]}
    assert len(fusion.outputs) == 1


def test_backward_computes_again(device: str) -> None:
    """A cheap value is not kept for backward, whose fusions make it again: only what goes in is saved."""

    def f(x: Any, b: Any) -> Any:
        return torch.sigmoid(torch.tanh(x + b) * 2).cos()

    x, b = made(6, 8, device=device).requires_grad_(), made(8, device=device, seed=1).requires_grad_()
    kept = {}
    for remat in ("auto", "none"):
        jitted = thunder.jit(f, executors=["nvfuser"], remat=remat)
        found = torch.autograd.grad(jitted(x, b).sum(), (x, b))
        for a, c in zip(found, torch.autograd.grad(f(x, b).sum(), (x, b))):
            torch.testing.assert_close(a, c)
        forward = thunder.last_traces(jitted)[-1]
        kept[remat] = {p.name for p in forward.output[1]} - {p.name for p in forward.args}
        assert [fusion.program for fusion in thunder.examine.fusions(jitted)] == ["forward", "backward"]
    assert not kept["auto"] and len(kept["none"]) == 2


def test_slices_joins_and_padding_are_torchs(device: str) -> None:
    """Fused, nvFuser gives wrong results of some; what is done before and after them is fused."""
    x, y = made(17, 5, 40, device=device), made(3, 5, 66, device=device, seed=1)

    def halves(y: Any) -> Any:
        a, b = y.chunk(2, -1)
        return F.pad(F.silu(a) * b, (1, 0), value=-2.0).sum(1)

    def names(f: Any, *inputs: Any, fusions: int = 1) -> list[str]:
        jitted = check(f, *inputs, fusions=fusions)
        return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]

    check(lambda x: x.narrow(0, 15, 1) == -1, x)
    check(lambda x: x.narrow(1, 2, 1).half(), x)
    assert "pad" in names(halves, y, fusions=2)
    assert "cat" in names(lambda x: torch.cat((x.exp(), x), 1) * 2, x, fusions=2)
    assert "pad" in names(lambda x: (wide := F.pad(x, (1, 1)), wide * 2), x)


def test_symbolic_sizes(device: str) -> None:
    """One trace, and one definition for each kind of layout, serve every length."""

    def f(x: Any, w: Any) -> Any:
        b, t, c = x.shape
        y = F.rms_norm(x, (c,), w).reshape(b * t, c) * 2 + t
        y = y.view(b, t, 2, c // 2).transpose(1, 2)
        return (y + 1).sum(-1), torch.cat((y, -y), 1)[:, :, 1:] * (1.0 / t), torch.where(y > 0, y, t)

    jitted = thunder.jit(f, executors=["nvfuser"], cache="symbolic values")
    w = made(8, device=device)
    defined = set()
    for t in (3, 5, 7, 4, 9, 1, 2):
        x = made(2, t, 8, device=device, seed=t)
        for a, b in zip(jitted(x, w), f(x, w)):
            torch.testing.assert_close(a, b)
            assert lies_as(a, b)
        (fusion,) = [found for found in thunder.examine.fusions(jitted) if "where" in str(found.operations)]
        defined.add(len(fusion.fn._programs))
    assert max(defined) <= 2  # a length of 1 is a broadcast, another kind
    assert thunder.cache_misses(jitted) <= 2
    compile(fusion.source, "<source>", "exec")


def test_sizes_that_a_call_gives(device: str) -> None:
    """Programs that differ only in these are laid out each by its own."""

    def turned(x: Any, n: int, m: int) -> Any:
        return torch.full((n, m), 2.0, device=x.device).mT * x

    x = made(1, device=device)
    for n, m in ((2, 7), (3, 5), (4, 9)):
        f = thunder.jit(turned, executors=["nvfuser"], cache="symbolic values")
        for sizes in ((n, m), (n + 1, m + 2)):
            found = f(x, *sizes)
            assert found.shape == sizes[::-1] and found.stride() == (1, sizes[1]) and found.eq(2 * x).all()
        assert thunder.cache_misses(f) == 1


UNARY = ("exp", "sin", "tanh", "abs", "neg", "sqrt", "sigmoid", "erf", "floor", "relu", "log1p", "expm1", "sign")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "atan2")


@settings(
    max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # every example needs the same executor
)  # fmt: skip
@given(st.data())
def test_compositions(device: str, data: st.DataObject) -> None:
    """Random programs of pointwise operations, broadcasts, reductions and shapes."""
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from((torch.float32, torch.float64)))
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from((*UNARY, *BINARY, "sum", "amax", "t", "cat")), st.integers(0, 3)),
            min_size=1,
            max_size=8,
        )
    )

    def f(x: Any, y: Any) -> Any:
        values = [x, y, x * 0.5]
        for name, other in steps:
            a, b = values[-1], values[other % len(values)]
            if name in UNARY:
                values.append(getattr(torch, name)(a))
            elif name in BINARY:
                values.append(getattr(torch, name)(a, b))
            elif name in ("sum", "amax"):
                values.append(getattr(torch, name)(a, 1, keepdim=True) + b)
            elif name == "t":
                values.append(a.t().contiguous().t() + 1)
            else:
                values.append(torch.cat((a, b), 0)[: a.shape[0]] * 2)
        return values[-1], values[len(values) // 2]

    x, y = made(rows, columns, dtype=dtype, device=device), made(rows, columns, dtype=dtype, device=device, seed=5)
    jitted = thunder.jit(f, executors=["nvfuser"])
    for a, b in zip(jitted(x, y), f(x, y)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_deterministic_algorithms(device: str) -> None:
    """Sums over rows and columns, which nvFuser splits over many blocks, repeat bit by bit."""
    rows = 16384 if device == "cuda" else 40
    x, w = made(rows, 64, device=device).requires_grad_(), made(64, device=device, seed=1).requires_grad_()
    norm = thunder.jit(lambda x, w: F.layer_norm(torch.sigmoid(x), w.shape, w, w), executors=["nvfuser"])
    assert repeats(norm, x, w)
    total = thunder.jit(lambda x, w: (torch.sigmoid(x) * w).sum(), executors=["nvfuser"])
    assert repeats(total, x, w)
    assert thunder.examine.fusions(total)
