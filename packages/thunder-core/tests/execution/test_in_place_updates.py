# SPDX-License-Identifier: Apache-2.0
"""Inputs are updated in place where nothing can see it, and programs compute what they compute in eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import thunder
from thunder.core.symbol import OpTags
from thunder.core.trace import Trace
from thunder.execution import in_place_updates as tested
from thunder.executors.torchex.fused_updates import is_fused_update
from thunder.executors.torchex.in_place import TorchMemory
from thunder.extend import NewResults, OperatorExecutor
from thunder.tests.running import share_memory, tensors_in


def lines(trace: Trace) -> list[str]:
    """Return the operations that write to memory that exists, as `name`, or as `name > target` if with `out=`."""
    found = []
    for op in trace.bound_symbols:
        if OpTags.IN_PLACE_OP in op.sym.tags:
            out = op.kwargs.get("out")
            found.append(op.sym.name if out is None else f"{op.sym.name} > {out.name}")
    return found


def copied(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors so that copies share memory like the tensors."""
    storages: dict[int, torch.Tensor] = {}
    found = []
    for x in inputs:
        whole = x.untyped_storage()
        if whole._cdata not in storages:
            storages[whole._cdata] = torch.empty(0, dtype=x.dtype).set_(whole).clone()
        memory = storages[whole._cdata].untyped_storage()
        found.append(torch.empty(0, dtype=x.dtype).set_(memory, x.storage_offset(), x.shape, x.stride()))
    return found


def outcome(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    """Return results or the error, the inputs afterwards, and which of all tensors share memory."""
    try:
        result: Any = tensors_in(fn(*inputs))
        error = ""
    except Exception as found:
        result, error = [], type(found).__name__
    tensors = [*result, *inputs]
    shared = [share_memory(x, y) for i, x in enumerate(tensors) for y in tensors[:i]]
    return error, [(x.shape, x.stride(), x.tolist()) for x in tensors], shared


def check(fn: Callable[..., Any], *inputs: torch.Tensor, calls: int = 3) -> Any:
    """Compare a jitted function with eager mode in several calls on the same tensors."""
    ours, theirs = copied([*inputs]), copied([*inputs])
    jitted = thunder.jit(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(calls):
            assert outcome(jitted, ours) == outcome(fn, theirs)
    return jitted


def matrix(seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 3, generator=torch.Generator().manual_seed(seed)) + 0.1


# -- what is written where --------------------------------------------------------------------------------------------
def update(a: Any, g: Any) -> None:
    a.mul_(0.9).add_(g, alpha=-0.1)


def adam(p: Any, m: Any, v: Any, g: Any) -> None:
    p.mul_(0.9)
    m.lerp_(g, 0.1)
    v.mul_(0.9).addcmul_(g, g, value=0.1)
    p.addcdiv_(m, v.sqrt().div_(0.5).add_(1e-8), value=-0.01)


def old_value_is_read_later(a: Any, g: Any) -> Any:
    old = a * 1
    a.add_(g)
    return old * g + a


def old_value_is_read_through_a_view(a: Any, g: Any) -> Any:
    view = a.t()
    product = view @ g
    a.mul_(2)
    return product


def value_is_returned(a: Any, g: Any) -> Any:
    new = a + g
    a.copy_(new)
    return new


def another_layout(a: Any, g: Any) -> None:
    a.copy_((a.t() * g.t()).t())


def another_dtype(a: Any, g: Any) -> None:
    a.copy_(a.double() + 1e-9)


def expands(a: Any, g: Any) -> None:
    a.copy_(a.sum(0) + g)


def shifted(a: Any, g: Any) -> None:
    a.copy_(a.flip(0) + g)


def swapped(a: Any, g: Any) -> None:
    old = a.clone()
    a.copy_(g)
    g.copy_(old * 2)


def chain(a: Any, g: Any) -> Any:
    x = ((a + g) * 2 - g).exp()
    a.mul_(x)
    return x.sum()


def parts(a: Any, g: Any) -> Any:
    a[0, 1:] = g[1, 1:]
    a[:, 0] = 2
    return a.sum()


def part_of_itself(a: Any, g: Any) -> None:
    a[0] = a[1] + g[0]
    g[0] = g[1]


def old_part_is_read_later(a: Any, g: Any) -> Any:
    old = a * 1
    a[0] = g[0]
    return old + a


def rows_of_a_new_tensor(a: Any) -> Any:
    out = torch.zeros(4, 3)
    for i in range(4):
        out[i] = a[i % 2] * i
    return out


def rows_at_positions_in_a_tensor(a: Any) -> Any:
    at = (a[:, 0] > 100).long()
    out = torch.zeros(4, 3)
    out[at] = a
    return out.index_add(0, at, a)


def loop_with_a_kept_state(a: Any) -> Any:
    out = torch.zeros_like(a)
    out[0] = a[1]
    kept = out
    out = out.clone()
    out[1] = a[0]
    return kept + out, out


CASES: list[tuple[Callable[..., Any], list[str]]] = [
    (parts, ["setitem_", "setitem_"]),
    (part_of_itself, ["setitem_", "copy_"]),
    (old_part_is_read_later, ["setitem_", "add > t"]),
    (rows_of_a_new_tensor, ["setitem_"] * 4),
    (rows_at_positions_in_a_tensor, ["setitem_", "index_add_"]),
    (loop_with_a_kept_state, ["setitem_", "setitem_"]),
    (update, ["mul > a", "add > a"]),
    (
        adam,
        ["mul > p", "lerp > m", "mul > v", "addcmul > v", "div > t", "add > t", "addcdiv > p"],
    ),
    (old_value_is_read_later, ["add > a", "mul > t", "add > t"]),
    (old_value_is_read_through_a_view, ["mul > a"]),
    (value_is_returned, ["copy_"]),
    (another_layout, ["copy_"]),
    (another_dtype, ["add > t", "copy_"]),
    (expands, ["copy_"]),
    (shifted, ["copy_"]),
    (swapped, ["copy_", "mul > g", "copy_"]),
    (chain, ["mul > t", "sub > t", "exp > t", "mul > a"]),
]


@pytest.mark.parametrize(("fn", "expected"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_written_where(fn: Callable[..., Any], expected: list[str]) -> None:
    count = fn.__code__.co_argcount
    jitted = check(fn, *[matrix(i) for i in range(count)])
    found = lines(thunder.last_traces(jitted)[-1])
    assert [line.rstrip("0123456789") for line in found] == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["index_copy_", "index_add_", "index_fill_", "scatter_", "setitem_"])
def test_positions_in_a_tensor(name: str) -> None:
    """On a GPU, wrong positions raise no error at the operation."""

    def write(a: Any, g: Any, at: Any) -> Any:
        if name == "setitem_":
            a[at] = g
        elif name == "index_fill_":
            a.index_fill_(0, at, 2.0)
        elif name == "scatter_":
            a.scatter_(0, at[:, None].expand(2, 3), g)
        else:
            getattr(a, name)(0, at, g)
        return a.sum()

    given = torch.rand(5, 3).cuda(), torch.rand(2, 3).cuda(), torch.tensor([4, 1]).cuda()
    expected = [x.clone() for x in given]
    jitted = thunder.jit(write, cuda_graphs="never", executors=["torch"])
    for _ in range(3):
        assert torch.equal(jitted(*given), write(*expected))
    assert torch.equal(given[0], expected[0])
    assert lines(thunder.last_traces(jitted)[-1]) == [name]


# -- operations that may end the run ----------------------------------------------------------------------------------
def decides(a: Any, b: Any, g: Any) -> None:
    a.mul_(0.5)
    if (b * g).sum() > 0:
        b.add_(a)
    else:
        b.sub_(a)


def decides_on_the_new_value(a: Any, b: Any, g: Any) -> None:
    a.mul_(g)
    if a.sum() > 0:
        b.add_(a)


@pytest.mark.parametrize("fn", [decides, decides_on_the_new_value])
def test_nothing_is_written_before_a_decision(fn: Callable[..., Any]) -> None:
    jitted = thunder.jit(fn, executors=["torch"])  # fusions postpone what a decision does not need
    ours = [matrix(1), matrix(2), matrix(3)]
    theirs = copied(ours)
    for sign in (1, -1, 1, 1, -1, -1):
        for inputs in (ours, theirs):
            inputs[2].abs_().mul_(sign)
        assert outcome(jitted, ours) == outcome(fn, theirs)
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    tags = [OpTags.IN_PLACE_OP in op.sym.tags for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert True in tags and tags.index(True) > names.index("decide")
    assert thunder.cache_misses(jitted) == 2


def test_an_error_because_of_values_leaves_inputs_as_in_eager_mode() -> None:
    """The index is out of range in one call. The program has written nothing by then, and eager mode raises."""

    def fn(a: Any, b: Any, i: Any, g: Any) -> None:
        a.mul_(0.5)
        b.add_(a)
        b[:1] += g[i]

    jitted = check(fn, matrix(1), matrix(2), torch.tensor([1]), matrix(3))
    for index in (1, 7, 0):
        ours = [matrix(1), matrix(2), torch.tensor([index]), matrix(3)]
        theirs = copied(ours)
        assert outcome(jitted, ours) == outcome(fn, theirs)


def test_arithmetic_on_numbers_comes_before_the_first_write() -> None:
    """A division by zero leaves inputs as in eager mode."""

    def fn(a: Any, step: Any, g: Any) -> None:
        step += 1
        a.mul_(0.5)
        a.add_(g, alpha=1 / (1 - 0.5 ** step.item()))

    jitted = check(fn, matrix(1), torch.tensor(0.0), matrix(2))
    text = thunder.last_traces(jitted)[-1].python(depth=0)
    assert text.index("1 / (1 -") < text.index("mul")
    assert lines(thunder.last_traces(jitted)[-1])[-2:] == ["mul > a", "add > a"]
    ours = [matrix(1), torch.tensor(-1.0), matrix(2)]
    theirs = copied(ours)
    found = outcome(jitted, ours)
    assert found == outcome(fn, theirs) and found[0] == "ZeroDivisionError"


def test_numbers_of_large_tensors_stay_where_they_are() -> None:
    def fn(a: Any, g: Any) -> None:
        a.mul_(0.5)
        g.mul_(1 / (1 + (a + g).norm().item()))

    jitted = check(fn, matrix(1), matrix(2))
    text = thunder.last_traces(jitted)[-1].python(depth=0)
    assert text.index(".item()") < text.index("copy_(") and lines(thunder.last_traces(jitted)[-1])[0] == "copy_"


def test_draws_and_opaque_operations_end_before_the_first_write() -> None:
    def fn(a: Any, g: Any) -> Any:
        a.mul_(0.5)
        return torch.rand(2, 3) + a, torch.linalg.lu_factor(g[:, :2])[0]

    jitted = thunder.jit(fn)
    ours = [matrix(1), matrix(2)]
    theirs = copied(ours)
    for _ in range(2):
        torch.manual_seed(0)
        found = outcome(jitted, ours)
        torch.manual_seed(0)
        assert found == outcome(fn, theirs)
    found = lines(thunder.last_traces(jitted)[-1])
    assert found == ["copy_"]


# -- memory -----------------------------------------------------------------------------------------------------------
def test_inputs_that_share_memory_are_not_updated_in_place() -> None:
    base = torch.rand(4, 3)

    def fn(a: Any, b: Any) -> Any:
        a.mul_(2).add_(b)
        return b * 1

    check(fn, base[:2], base[2:])
    check(fn, base[:2], base[1:3])
    check(fn, base[:2], base[:2])


def test_layouts_of_inputs() -> None:
    def fn(a: Any, g: Any) -> None:
        a.mul_(2).add_(g).exp_()

    weights = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert lines(thunder.last_traces(check(fn, weights, weights + 1))[-1]) == ["mul > a", "add > a", "exp > a"]
    assert lines(thunder.last_traces(check(fn, matrix().t(), matrix(1).t()))[-1])[-1] == "exp > a"
    every_other = torch.rand(2, 6)[:, ::2]
    assert lines(thunder.last_traces(check(fn, every_other, matrix()))[-1])[-1] == "copy_"
    assert lines(thunder.last_traces(check(fn, torch.rand(3).expand(3).clone()[:0], torch.rand(0)))[-1])


def test_saved_values_are_not_overwritten() -> None:
    """Values that backward needs are results of the forward program."""

    def fn(x: Any, state: Any) -> Any:
        y = x.exp()
        state.mul_(0.5).add_(y.detach())
        return (y * state).sum()

    for run in (fn, thunder.jit(fn)):
        x, state = matrix(1).requires_grad_(), matrix(2)
        run(x, state).backward()
        found = (x.grad, state)
        if run is fn:
            expected = found
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD", "RMSprop", "NAdam", "Adagrad"])
def test_optimizers_make_no_copy_of_parameters_and_state(kind: str) -> None:
    results = []
    for jit in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
        options = {"lr": 0.1, **({"momentum": 0.9} if kind == "SGD" else {})}
        optimizer = getattr(torch.optim, kind)(net.parameters(), **options)

        def step(x: Any, net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = thunder.jit(step) if jit else step
        x = torch.rand(16, 16, generator=torch.Generator().manual_seed(1))
        results.append([run(x).item() for _ in range(5)])
        tensors = [*net.parameters(), *(p.grad for p in net.parameters())]
        tensors += [x for s in optimizer.state.values() for x in s.values() if isinstance(x, torch.Tensor)]
        results[-1] += [x.tolist() for x in tensors]
    assert results[0] == results[1]
    trace = thunder.last_traces(run)[-1]
    assert not [op for op in trace.bound_symbols if op.sym.name == "copy_" and op.args[0].ndim]
    assert any(line.endswith("_params_0") for line in lines(trace))


def test_an_update_of_many_tensors_is_changed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that is repeated for each result makes compile time grow with the square of the number of parameters."""
    changed: list[int] = []
    original = TorchMemory.written_to

    def written_to(self: TorchMemory, op: Any, targets: Any) -> Any:
        if is_fused_update(op):
            changed.append(len(targets))
        return original(self, op, targets)

    monkeypatch.setattr(TorchMemory, "written_to", written_to)
    ps = [torch.nn.Parameter(torch.full((4,), i / 8)) for i in range(20)]
    optimizer = torch.optim.AdamW(ps, fused=True)

    def step() -> None:
        sum(p.square().sum() for p in ps).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()

    jitted = thunder.jit(step)
    for _ in range(3):
        jitted()
    assert changed == [20, 60]  # before the state exists, and afterwards


# -- random programs --------------------------------------------------------------------------------------------------
UNARY = ["sin", "exp", "relu", "neg", "clone", "t", "t_clone", "view", "detach", "flip", "zeros"]
BINARY = ["add", "mul", "sub", "maximum", "mm"]
WRITES = ["add_", "mul_", "copy_", "lerp_", "sin_", "row_", "zero_", "window_", "mask_", "rows_", "column_"]

statements = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 20), st.just(0)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.sampled_from(WRITES), st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.sampled_from(WRITES), st.integers(0, 2), st.integers(0, 20)),
    st.tuples(st.just("if"), st.integers(0, 20), st.integers(0, 2)),
    st.tuples(st.sampled_from(["item", "index"]), st.integers(0, 20), st.integers(0, 20)),
)


def interpreted(program: list[tuple[str, int, int]], returned: list[int]) -> Callable[..., Any]:
    """Return the function of three square matrices that a program describes: its values are numbered."""

    def fn(a: Any, b: Any, c: Any) -> Any:
        values = [a, b, c]
        for name, i, j in program:
            x, y = values[i % len(values)], values[j % len(values)]
            if name == "if":
                if x.sum() > 2:
                    values[j].mul_(0.5)
                continue
            if name == "item":
                new = y * (1 / (2 + x[0, 0].item()))
            elif name == "index":
                new = x[(y[:, 0] > 0.5).long()]
            elif name == "lerp_":
                new = x.lerp_(y, 0.25)
            elif name == "row_":
                new = x[0].copy_(y[1])
                continue
            elif name == "window_":
                x[1:, 1:] = y[:2, :2] * 1
                continue
            elif name == "mask_":
                x[y * 1 > 0.5] = 0.25
                continue
            elif name == "column_":
                x[:, 2] += y[1] * 1
                continue
            elif name == "rows_":
                new = x.index_copy_(0, torch.tensor([2, 0]), y[1:] * 1).contiguous()
            elif name == "zeros":
                new = torch.zeros_like(x)
            elif name == "t_clone":
                new = x.t().clone()
            elif name == "view":
                new = x.reshape(9)[:9].view(3, 3)
            elif name == "flip":
                new = x.flip(0)
            elif name in ("sin_", "zero_") or name in UNARY:
                new = getattr(x, name)()
            else:
                new = getattr(x, name)(y)
            values.append(new)
        return [values[k % len(values)] for k in returned]

    return fn


layouts = st.sampled_from(["own", "transposed", "one base", "strided"])


def inputs_of(layout: str, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if layout == "one base":
        base = torch.rand(9, 3, generator=generator)
        return [base[:3], base[3:6], base[6:]]
    if layout == "strided":
        return [torch.rand(3, 6, generator=generator)[:, ::2] for _ in range(3)]
    found = [torch.rand(3, 3, generator=generator) for _ in range(3)]
    return [found[0].t(), *found[1:]] if layout == "transposed" else found


@settings(max_examples=200)
@given(st.lists(statements, min_size=1, max_size=12), st.lists(st.integers(0, 20), max_size=3), layouts)
def test_random_programs(program: list[tuple[str, int, int]], returned: list[int], layout: str) -> None:
    fn = interpreted(program, returned)
    ours = inputs_of(layout, 0)
    theirs = copied(ours)
    jitted = thunder.jit(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            found, expected = outcome(jitted, ours), outcome(fn, theirs)
            if expected[0] == "RuntimeError":  # eager mode rejects operands that overlap what is written
                return
            assert found == expected


# -- the checks -------------------------------------------------------------------------------------------------------
def reads_old(a: Any, g: Any) -> Any:
    new = a * g
    old = a + g
    a.copy_(new * 2)
    return old


def reads_twice(a: Any, g: Any) -> Any:
    x = a * g
    y = x + 1
    a.add_(y)
    return x * 2 + a


def reads_view(a: Any, g: Any) -> Any:
    x = a * g
    view = x.t()
    y = x + 1
    a.add_(y)
    return view @ a


WITHOUT: dict[str, tuple[Any, str, Any, Callable[..., Any]]] = {
    "whether operands are read afterwards": (tested._Updates, "_dies_at", lambda *args: True, reads_twice),
    "views": (TorchMemory, "may_share", lambda *args: (), reads_view),
    "when the old value is read": (tested._Updates, "_may_move", lambda *args: True, reads_old),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_that_a_check_is_needed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check, the program computes something else: tests of this file can fail."""
    owner, name, replacement, fn = WITHOUT[what]
    check(fn, matrix(1), matrix(2))
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError):
        check(fn, matrix(1), matrix(2))


def test_that_decisions_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "may_fail", lambda op: False)
    with pytest.raises(AssertionError):
        test_nothing_is_written_before_a_decision(decides)


# -- operators with `out=` --------------------------------------------------------------------------------------------
def scaled(a: torch.Tensor, n: float) -> torch.Tensor:
    return (a * n).contiguous()


def scaled_into(a: torch.Tensor, n: float, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mul(a, n, out=out)


def rows_into(a: torch.Tensor, n: float, *, out: torch.Tensor) -> torch.Tensor:
    return out.zero_().add_(a.sum() * n)  # wrong if `out` is an argument


def rows(a: torch.Tensor, n: float) -> torch.Tensor:
    return torch.zeros(a.shape).add_(a.sum() * n)


@pytest.fixture
def acme() -> Any:
    """An executor with operators that were registered with `out=`; the second reads each element for all results."""
    executor = OperatorExecutor("acme", memory=NewResults())
    executor.register_operator(
        "scale", like=lambda a, n: a * n, fn=scaled, out=scaled_into, tags=(OpTags.ELEMENTWISE_OP,)
    )
    executor.register_operator("rows", like=lambda a, n: (a * 0) + a.sum() * n, fn=rows, out=rows_into)
    return executor.opmap


@pytest.mark.parametrize("level", ["0", "1"])
def test_operators_with_out(acme: Any, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their results are written where an input is updated, also over an argument if they are elementwise."""
    monkeypatch.setenv("THUNDER_VERIFY", level)
    monkeypatch.setenv("THUNDER_CACHE", "0")

    def update(name: str, of: str) -> Callable[..., Any]:
        def program(x: torch.Tensor, y: torch.Tensor) -> None:
            (x if of == "other" else y).copy_(acme[name](y, 0.5))

        return program

    expected = {
        ("scale", "other"): "scale_out > x", ("scale", "itself"): "scale_out > y",
        ("rows", "other"): "rows_out > x", ("rows", "itself"): "copy_",
    }  # fmt: skip
    for (name, of), wanted in expected.items():
        jitted = thunder.jit(update(name, of), executors=[acme["scale"].executor])
        x, y = matrix(), matrix(1)
        result = (scaled if name == "scale" else rows)(y, 0.5)
        address = x.data_ptr(), y.data_ptr()
        jitted(x, y)
        assert torch.equal(x if of == "other" else y, result)
        assert (x.data_ptr(), y.data_ptr()) == address
        assert lines(thunder.last_traces(jitted)[-1])[0] == wanted, (name, of)


def test_out_needs_new_results() -> None:
    """Otherwise nobody knows what a result shares memory with."""
    with pytest.raises(ValueError, match=r"pass memory=NewResults\(\) to OperatorExecutor"):
        OperatorExecutor("acme").register_operator("scale", like=lambda a, n: a * n, fn=scaled, out=scaled_into)
