# SPDX-License-Identifier: Apache-2.0
"""Updates of many tensors are one kernel, which computes eager mode's values in the tensors' own memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder.extend import OpTags, TensorProxy, device_table
from thunder_ex_triton.fusion.multi_tensor import MultiTensorUpdate, _Table
from thunder_ex_triton.probe import interpreting

DEVICE = "cpu" if interpreting() else "cuda"
Tensors = list[torch.Tensor]


def tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    return [(torch.rand(s, generator=draw) + 0.5).to(DEVICE, dtype) for s in shapes]


def updates(jitted: Any) -> list[MultiTensorUpdate]:
    found = [op.sym.fn for op in thunder.last_traces(jitted)[-1].bound_symbols]
    return [fn for fn in found if isinstance(fn, MultiTensorUpdate)]


def check(
    fn: Callable[..., Any], *lists: Tensors, calls: int = 3, groups: int = 1, rtol: float = 1e-5, atol: float = 1e-6
) -> Any:
    """Compare calls with eager mode's: results, and the values and strides of all arguments."""
    mine, eagers = ([[x.clone() for x in xs] for xs in lists] for _ in range(2))
    jitted = thunder.jit(fn, cuda_graphs="never")
    for _ in range(3):
        found, expected = jitted(*mine), fn(*eagers)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
        for x, y in zip(chain(*mine), chain(*eagers)):
            torch.testing.assert_close(x, y, rtol=rtol, atol=atol)
            assert x.stride() == y.stride()
    assert thunder.cache_misses(jitted) == 1
    assert len(updates(jitted)) == groups
    return jitted


def momentum(ps: Tensors, ms: Tensors, gs: Tensors) -> None:
    for p, m, g in zip(ps, ms, gs):
        m.mul_(0.9).add_(g)
        p.add_(m, alpha=-0.1)


SHAPES = [(5,), (3, 4), (2, 3, 1), (33, 32), (16,), (2, 4100)]


def test_one_kernel_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[int] = []
    original = MultiTensorUpdate.writing
    monkeypatch.setattr(
        MultiTensorUpdate, "writing", lambda self, *args: changed.append(len(args[0])) or original(self, *args)
    )
    jitted = check(momentum, tensors(SHAPES), tensors(SHAPES, seed=1), tensors(SHAPES, seed=2))
    (update,) = updates(jitted)
    assert len(update.updates) == len(SHAPES)
    assert len(update.into) == 2 * len(SHAPES)  # nothing is copied
    assert changed == [2 * len(SHAPES)]  # the operation is not made again for each tensor
    assert all(op.sym.name != "copy_" for op in thunder.last_traces(jitted)[-1].bound_symbols)
    assert repr(update) == f"<{update.name}>"


def test_gradients_that_are_set_to_zero() -> None:
    """`zero_grad(set_to_none=False)`: no primitive reads the old gradient, whose strides are those of the new one."""

    def step(gs: Tensors, ps: Tensors) -> None:
        for g, p in zip(gs, ps):
            g.zero_().add_(p.square())
            p.sub_(g, alpha=0.1)

    images = [[x.to(memory_format=torch.channels_last) for x in tensors([(2, 3, 4, 5)] * 2, seed=i)] for i in range(2)]
    check(step, *[[*tensors(SHAPES, seed=i), *images[i]] for i in range(2)])


def test_declared_sizes_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def table(device: torch.device, values: Iterable[int]) -> torch.Tensor:
        found = device_table(device, values)
        made.append(len(found))
        return found

    monkeypatch.setattr("thunder_ex_triton.fusion.multi_tensor.device_table", table)
    (update,) = updates(check(momentum, tensors(SHAPES), tensors(SHAPES, seed=1), tensors(SHAPES, seed=2)))
    lengths, *pieces, addresses = made
    assert update.table_sizes[:2] == [addresses, lengths]
    assert len(pieces) <= len(update.table_sizes[2:])
    assert max(pieces) <= update.table_sizes[2]


def test_numbers_are_copied_outside_the_update() -> None:
    """So that a CUDA graph can contain the update."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    jitted = thunder.jit(step, cuda_graphs="never")
    for _ in range(2):
        jitted(torch.randn(3, 4, device=DEVICE))
    (update,) = [op for op in thunder.last_traces(jitted)[-1].bound_symbols if isinstance(op.sym.fn, MultiTensorUpdate)]
    assert all(isinstance(a, TensorProxy) for a in update.args)
    assert OpTags.DEVICE_SYNC_OP not in update.sym.tags


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD])
def test_operations_on_lists(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of torch's kernels for lists become the same updates as operations on each tensor."""

    def trained(types: set[str]) -> tuple[Any, Tensors]:
        monkeypatch.setattr("thunder.capture.dispatch.foreach._MULTI_TENSOR", types)
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)).to(DEVICE)
        steps = optimizer(net.parameters(), lr=0.01, foreach=True)

        def step(x: torch.Tensor) -> None:
            steps.zero_grad()
            net(x).square().mean().backward()
            steps.step()

        jitted = thunder.jit(step, cuda_graphs="never")
        for k in range(3):
            jitted(torch.full((3, 4), k + 1.0, device=DEVICE))
        names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
        assert not any("foreach" in name for name in names)
        return [(len(update.updates), len(update.into)) for update in updates(jitted)], [*net.parameters()]

    (found, ours), (expected, theirs) = trained({DEVICE}), trained(set())
    assert found == expected != []
    # On a GPU, torch's kernels for lists run what the first step's program does not group. They round differently.
    close = {"rtol": 0, "atol": 0} if interpreting() else {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(ours, theirs, **close)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.SGD])
def test_a_step_is_one_graph(optimizer: Any) -> None:
    """The graph contains the update, and takes the numbers of each call."""

    def trained(graphs: Any) -> tuple[Any, Tensors]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(4)]).cuda()
        updates = optimizer(net.parameters(), lr=0.01, foreach=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(updates, 0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            updates.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            updates.step()
            schedule.step()
            return loss.detach()

        jitted = thunder.jit(step, cuda_graphs=graphs)
        kept = [jitted(torch.randn(8, 40, generator=torch.Generator().manual_seed(k)).cuda()) for k in range(12)]
        return jitted, [*kept, *net.parameters(), *[p.grad for p in net.parameters()]]

    jitted, found = trained("always")
    _, expected = trained("never")
    assert all(map(torch.equal, found, expected))
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert sum(name.startswith("CUDAGraph") for name in names) == 1
    assert not any(name.startswith("TritonUpdate") and "numbers" not in name for name in names)
    assert "is captured, 1 time" in thunder.explain(jitted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    lists = [tensors(SHAPES, dtype, seed) for seed in range(3)]
    rtol, atol = (3e-2, 1e-2) if dtype.itemsize == 2 else (1e-12, 1e-12)
    check(momentum, *lists, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_that_are_read_again(dtype: torch.dtype) -> None:
    """In half precision, other operations read a state as it is kept."""

    def track(ms: Tensors, gs: Tensors, ps: Tensors) -> None:
        for m, g, p in zip(ms, gs, ps):
            m.add_(g)
            p.copy_(m.float() - g.float())

    lists = [*(tensors(SHAPES, dtype, seed) for seed in range(2)), tensors(SHAPES, seed=2)]
    check(track, *lists, rtol=0, atol=0)


def test_operations_with_the_same_primitives_are_not_one_kernel() -> None:
    """Of two operations of torch, the first one's result is rounded, too."""

    def step(ps: Tensors, gs: Tensors) -> None:
        for i, (p, g) in enumerate(zip(ps, gs)):
            p.copy_(p.add(g, alpha=0.75) if i % 2 else p + g * 0.75)

    ps, gs = (tensors([(400,)] * 4, torch.float16, seed) for seed in range(2))
    twice = [p + g * 0.75 for p, g in zip(ps, gs)]
    once = [(p.double() + g.double() * 0.75).half() for p, g in zip(ps, gs)]
    assert not torch.equal(twice[1], once[1])
    jitted = thunder.jit(step, cuda_graphs="never")
    jitted(ps, gs)
    assert all(torch.equal(p, (once if i % 2 else twice)[i]) for i, p in enumerate(ps))
    assert len(updates(jitted)) == 2


def test_integers_and_booleans() -> None:
    def count(ns: Tensors, seen: Tensors, gs: Tensors) -> None:
        for n, s, g in zip(ns, seen, gs):
            s.copy_(s | (g > 1))
            n.add_(1)

    shapes = [(4,), (2, 3)]
    ns = [torch.arange(x.numel(), device=DEVICE).reshape(x.shape) for x in tensors(shapes)]
    check(count, ns, [n > 2 for n in ns], tensors(shapes), groups=2)


def test_numbers_of_the_program() -> None:
    """Numbers that tensors on the CPU contain change from call to call."""

    def decayed(ps: Tensors, gs: Tensors, steps: Tensors) -> None:
        for p, g, step in zip(ps, gs, steps):
            step.add_(1)
            p.addcdiv_(g, g + 1, value=-0.1 / (1 - 0.9 ** step.item()))

    shapes = [(3,), (2, 2)]
    check(decayed, tensors(shapes), tensors(shapes, seed=1), [torch.tensor(0.0) for _ in shapes])


def test_single_numbers_on_the_device() -> None:
    """A factor for all tensors, e.g. of clipped gradients."""

    def scaled(ps: Tensors, gs: Tensors, factor: Tensors) -> None:
        for p, g in zip(ps, gs):
            p.sub_(g * factor[0])

    shapes = [(3,), (2, 2)]
    check(scaled, tensors(shapes), tensors(shapes, seed=1), tensors([()]))


def test_tensors_of_one_element() -> None:
    """Tensors without dimensions, e.g. a model's temperature, are updated with the others."""
    shapes = [(), (3,), (), (2, 2)]
    (update,) = updates(check(momentum, *[tensors(shapes, seed=seed) for seed in range(3)]))
    assert len(update.updates) == len(shapes)
    check(momentum, *[tensors([(), ()], seed=seed) for seed in range(3)])


def test_tensors_of_one_element_beside_a_factor() -> None:
    def clipped(ps: Tensors, gs: Tensors, norm: Tensors) -> None:
        factor = (1 / norm[0]).clamp(max=1)
        for p, g in zip(ps, gs):
            p.sub_(g * factor)

    shapes = [(3,), (), (2, 2)]
    (update,) = updates(check(clipped, tensors(shapes), tensors(shapes, seed=1), tensors([()])))
    assert len(update.updates) == 2


def test_counters() -> None:
    """Counters of normalizations, which are whole numbers."""

    def count(ns: Tensors, xs: Tensors) -> torch.Tensor:
        for n in ns:
            n.add_(1)
        return xs[0] * 2

    ns = [torch.tensor(3, device=DEVICE), torch.tensor(7, device=DEVICE)]
    check(count, ns, tensors([(2,)]))


def test_updates_behind_what_may_fail() -> None:
    """The statistics of norms are written in place, although the loss behind them may refuse a label."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.Sequential(*[torch.nn.BatchNorm1d(8) for _ in range(3)])

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.norms(x), labels)

    ours, theirs = Net().to(DEVICE, torch.float16), Net().to(DEVICE, torch.float16)
    jitted = thunder.jit(ours, cuda_graphs="never")
    x = torch.rand(6, 8, device=DEVICE, dtype=torch.float16)
    for _ in range(3):
        jitted(x, torch.arange(6, device=DEVICE))
        theirs(x, torch.arange(6, device=DEVICE))
    for found, expected in zip(ours.buffers(), theirs.buffers()):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert any(name.startswith("TritonUpdate") for name in names) and "copy_" not in names


def test_updates_that_keep_large_values_stay() -> None:
    """A group does not wait for the copies if that would keep values allocated."""

    def step(ps: Tensors, xs: Tensors) -> torch.Tensor:
        gs = [x.exp().flip(0) for x in xs]
        for p, g in zip(ps, gs):
            p.sub_(g)
        return xs[0].sort(0)[0]

    def place(size: int) -> int:
        lists = [tensors([(size, 2), (size, 3)], seed=seed) for seed in range(2)]
        names = [op.sym.name for op in thunder.last_traces(check(step, *lists))[-1].bound_symbols]
        (update,) = [i for i, name in enumerate(names) if name.startswith("TritonUpdate")]
        return names[update:].count("sort")

    assert (place(4), place(1 << 17)) == (0, 1)


def test_layouts() -> None:
    """Tensors with equal dense strides are computed in place; others give eager mode's strides."""
    shapes = [(4, 3), (4, 3), (4, 3)]
    lists = [tensors(shapes, seed=seed) for seed in range(3)]
    for xs in lists:
        xs[1] = xs[1].t().contiguous().t()
    lists[2][2] = lists[2][2].t().contiguous().t()
    check(momentum, *lists)


def test_addresses_that_are_no_multiples_of_16() -> None:
    shapes = [(16,), (32,)]
    lists = [tensors(shapes, seed=seed) for seed in range(3)]
    odd = [[torch.cat([x, x])[1 : 1 + x.numel()] for x in xs] for xs in lists]
    moved, expected = thunder.jit(momentum), [[x.clone() for x in xs] for xs in odd]
    moved(*odd)
    momentum(*expected)
    for x, y in zip(chain(*odd), chain(*expected)):
        torch.testing.assert_close(x, y)


def test_new_addresses() -> None:
    """Each call may get other tensors."""
    jitted = thunder.jit(momentum)
    for seed in range(4):
        lists = [tensors(SHAPES, seed=3 * seed + i) for i in range(3)]
        expected = [[x.clone() for x in xs] for xs in lists]
        jitted(*lists)
        momentum(*expected)
        for x, y in zip(chain(*lists), chain(*expected)):
            torch.testing.assert_close(x, y)
    assert thunder.cache_misses(jitted) == 1


def test_updates_that_read_each_other() -> None:
    """A value is not written while another update reads the old one."""

    def exchanged(ps: Tensors, qs: Tensors) -> None:
        new = [(p + q.roll(1), q * 2 + p) for p, q in zip(ps, qs)]
        for p, q, (x, y) in zip(ps, qs, new):
            p.copy_(x)
            q.copy_(y)

    def around(ps: Tensors) -> None:
        new = [p * 2 + q for p, q in zip(ps, [*ps[1:], ps[0]])]
        for p, x in zip(ps, new):
            p.copy_(x)

    check(exchanged, tensors([(3,)] * 3), tensors([(3,)] * 3, seed=1), groups=2)
    check(around, tensors([(3,)] * 3))


def test_values_that_are_read_again() -> None:
    def reads(ps: Tensors, gs: Tensors) -> torch.Tensor:
        for p, g in zip(ps, gs):
            p.add_(g)
        return torch.stack([p.sum() for p in ps])

    check(reads, tensors([(3,), (2, 2)]), tensors([(3,), (2, 2)], seed=1), groups=0)


OPERATIONS: list[Callable[..., Any]] = [
    lambda p, g: p.add_(g),
    lambda p, g: p.mul_(0.5).sub_(g),
    lambda p, g: p.lerp_(g, 0.25),
    lambda p, g: g.copy_(p.sqrt()),
    lambda p, g: p.copy_(p.flip(0)),
    lambda p, g: p.div_(g.abs().sum() + 1),
    lambda p, g: g.add_(p.mean()),
]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=7))
def test_random_updates(program: list[tuple[int, int, int]]) -> None:
    def run(ps: Tensors, gs: Tensors) -> Tensors:
        for which, i, j in program:
            OPERATIONS[which](ps[i], gs[j])
        return [p * 2 for p in ps]

    lists = [tensors([(4,)] * 3, seed=seed) for seed in range(2)]
    expected = [[x.clone() for x in xs] for xs in lists]
    jitted = thunder.jit(run)
    for _ in range(2):
        found, eager = jitted(*lists), run(*expected)
        for x, y in zip([*found, *lists[0], *lists[1]], [*eager, *expected[0], *expected[1]]):
            torch.testing.assert_close(x, y)


def test_whole_numbers_of_the_program() -> None:
    def counted(ps: Tensors, gs: Tensors, n: int) -> None:
        for p, g in zip(ps, gs):
            p.add_(g * n).div_(n)

    jitted = thunder.jit(counted, cache="symbolic values")
    shapes = [(3,), (2, 2)]
    ps, gs = tensors(shapes), tensors(shapes, seed=1)
    expected = [p.clone() for p in ps]
    for n in (3, 4, 5, 1 << 25):
        jitted(ps, gs, n)
        counted(expected, gs, n)
        for x, y in zip(ps, expected):
            torch.testing.assert_close(x, y)


def test_a_table_of_addresses_is_not_changed_by_another_thread() -> None:
    table = _Table(torch.device(DEVICE), [16, 5])
    first, launches = table.of([16, 32])
    second, others = table.of([48, 65])
    assert first.tolist() == [16, 32]
    assert second.tolist() == [48, 65]
    assert table.of([48, 65])[0] is second
    assert len(launches) == 2  # a length that is no multiple of 16 is computed by itself
    assert len(others) == 2
