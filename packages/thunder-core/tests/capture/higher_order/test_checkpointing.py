# SPDX-License-Identifier: Apache-2.0
"""`torch.utils.checkpoint` in traced programs: eager's numbers, and the region computed again in backward."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import thunder
from thunder.core.transforms import grad

WEIGHT = torch.rand(4, 4, dtype=torch.float64).sub(0.5).requires_grad_()


def block(x: Any, scale: float = 1.0, *, gate: Any = None, by: list[Any] | None = None) -> Any:
    """Something with intermediate results, random numbers and all sorts of arguments."""
    y = F.dropout((x @ WEIGHT).sin(), 0.4).exp() * scale
    if gate is not None:
        y = y * gate.cos()
    if by is not None:
        y = y + by[0].tanh() * len(by)
    return y.sigmoid().cos()


def plain(x: Any) -> Any:
    """The same without chance."""
    return (x @ WEIGHT).sin().exp().cos()


def gradients(f: Callable[[Any], Any], x: torch.Tensor, seed: int) -> list[Any]:
    """The result, the gradients and the next random number; other numbers are drawn between the two passes."""
    x = x.detach().requires_grad_()
    WEIGHT.grad = None
    torch.manual_seed(seed)
    out = f(x)
    torch.manual_seed(99)
    out.sum().backward()
    return [out.detach(), x.grad, WEIGHT.grad, torch.rand(1)]


def value() -> torch.Tensor:
    """An input."""
    return torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)


again = functools.partial(checkpoint, use_reentrant=False)
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "not reentrant": lambda x: checkpoint(block, x * 2, use_reentrant=False) * 3,
    "reentrant": lambda x: checkpoint(block, x * 2, 0.5, use_reentrant=True) * 3,
    "through its module": lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False),
    "a partial": lambda x: again(block, x * 2, 2.0),
    "keywords": lambda x: again(block, x, scale=0.5, gate=x * 3),
    "containers": lambda x: again(block, x, by=[x * 2, None]),
    "nested": lambda x: again(lambda y: again(block, y.sin()) + F.dropout(y), x * 2),
    "one after the other": lambda x: again(block, again(block, x)),
    "without chance": lambda x: again(plain, x * 2),
    "sequence": lambda x: checkpoint_sequential([block, torch.sin, block], 2, x, use_reentrant=False),
    "what a region passes through": lambda x: sum(again(lambda a, b: (a, a * b, b), x, x.sin())),
    "closures": lambda x: (lambda y: again(lambda: block(y) * y))(x.exp()),
    "writes inside": lambda x: again(lambda y: y.sin().mul_(F.dropout(y)).add_(1), x),
    "a part without gradients": lambda x: again(lambda y: block(y) * block(y).detach(), x),
    "numbers from nothing": lambda x: again(lambda y: y.sin() * torch.rand(2, 4, dtype=y.dtype), x),
    "a number of a value": lambda x: again(lambda y: y.sin() * y.sum().item(), x * 2),
    "numbers of a value": lambda x: sum(
        p.exp().sum() * (k + 1)
        for k, p in enumerate(again(lambda y: y.sin().split((y[0, :2] * 0 + 1.5).long().tolist()), x))
    ),
    "a mask": lambda x: again(lambda y: y[y > 0].sin().sum(), x) * again(lambda y: y[y > 0].cos().sum(), x),
    "other numbers": lambda x: checkpoint(plain, x, use_reentrant=False, preserve_rng_state=False),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_as_eager(name: str) -> None:
    """Results and gradients, bit for bit where numbers are drawn, and the generator where eager leaves it."""
    f = PROGRAMS[name]
    jitted = thunder.jit(f)
    for seed in (0, 1):
        found, expected = gradients(jitted, value(), seed), gradients(f, value(), seed)
        torch.testing.assert_close(found, expected)
        assert torch.equal(found[-1], expected[-1])
    assert thunder.cache_hits(jitted) == 1


def test_writes_to_what_is_outside() -> None:
    """Are made once. (Eager makes them again for backward, and takes wrong gradients.)"""

    def f(x: Any, run: Any) -> Any:
        y = x * 1
        return run(lambda: y.mul_(y.detach() + 1).sin()) + y

    found = gradients(thunder.jit(lambda x: f(x, again)), value(), 0)
    torch.testing.assert_close(found, gradients(lambda x: f(x, lambda g: g()), value(), 0))


def saved(f: Any) -> list[tuple[int, ...]]:
    """The shapes of what is kept for backward of the last call."""
    return [tuple(p.shape) for p in thunder.last_backward_traces(f)[-1].args if not p.name.startswith("grad_")]


def test_the_region_is_computed_again() -> None:
    """Backward gets its inputs and no intermediate result, and runs its operations."""

    def f(x: Any, run: Any) -> Any:
        return run(lambda y: (y @ y.mT).exp().sin().softmax(0).cos().sum(), x)

    x = torch.rand(50, 2, requires_grad=True)
    kept = {}
    for name, run in (("whole", lambda g, *args: g(*args)), ("again", again)):
        jitted = thunder.jit(lambda x, run=run: f(x, run))
        jitted(x)
        kept[name] = saved(jitted)
    assert (50, 50) in kept["whole"]
    assert kept["again"] == [(50, 2)]
    assert "barrier" in str(thunder.last_backward_traces(jitted)[0])
    assert "torch.sin" in str(thunder.last_backward_traces(jitted)[-1])
    assert "checkpoint(x)" in str(thunder.last_traces(jitted)[0])


def test_what_is_kept_of_random_numbers() -> None:
    """The state of the generator, not what it gave."""
    jitted = thunder.jit(lambda x: again(lambda y: F.dropout(y.sin(), 0.3).cos(), x))
    jitted(torch.rand(100, 100, requires_grad=True))
    assert sorted(saved(jitted)) == [(100, 100), tuple(torch.get_rng_state().shape)]


def test_other_numbers_the_second_time() -> None:
    """With `preserve_rng_state=False` backward draws numbers of its own, as in eager."""

    def f(x: Any) -> Any:
        return checkpoint(lambda y: F.dropout(y, 0.5).sin() * 2, x, use_reentrant=False, preserve_rng_state=False)

    results = []
    for g in (f, thunder.jit(f)):
        x = torch.ones(1000, dtype=torch.float64).requires_grad_()
        torch.manual_seed(0)
        out = g(x)
        out.sum().backward()
        results.append((out.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])
    assert not torch.equal(results[1][0] != 0, results[1][1] != 0)


def test_generators_of_the_users() -> None:
    """Are put back too."""
    generator = torch.Generator()

    def draw(y: Any) -> Any:
        return y.sin() * torch.rand(4, generator=generator) * torch.rand(4)

    jitted = thunder.jit(lambda x: again(draw, x))
    for _ in range(2):
        x = torch.ones(4, requires_grad=True)
        generator.manual_seed(3)
        torch.manual_seed(3)
        out = jitted(x)
        out.sum().backward()
        generator.manual_seed(3)
        torch.manual_seed(3)
        numbers = torch.rand(4, generator=generator) * torch.rand(4)
        torch.testing.assert_close(out, x.sin() * numbers)
        torch.testing.assert_close(x.grad, x.detach().cos() * numbers)


class Net(nn.Module):
    """A module that checkpoints its blocks, one of which has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)])
        self.calls = 0

    def forward(self, x: Any) -> Any:
        """With an attribute that is counted inside of a region."""

        def run(block: Any, x: Any) -> Any:
            self.calls += 1
            return block(x).tanh()

        for block in self.blocks:
            x = again(run, block, x) if self.training else block(x)
        return x


def test_modules() -> None:
    """Under `thunder.jit(module)`: gradients, buffers and attributes. The statistics move once a call."""
    torch.manual_seed(0)
    model = Net()
    jitted = thunder.jit(model)
    x = torch.rand(3, 4)
    for seed in (1, 2):
        torch.manual_seed(seed)
        found = jitted(x)
        grads = torch.autograd.grad(found.sum(), list(model.parameters()))
        before = {k: v.clone() for k, v in model.state_dict().items()}
        assert before["blocks.1.num_batches_tracked"] == seed
        torch.manual_seed(seed)
        expected = model(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(grads, torch.autograd.grad(expected.sum(), list(model.parameters())))
        model.load_state_dict(before)
        assert model.calls == 4 + 8  # eager counts the second time too
        model.calls = 0
    assert thunder.cache_hits(jitted) == 1
    model.eval()
    torch.testing.assert_close(jitted(x), model(x))


def test_without_gradients() -> None:
    """There is nothing to compute again."""
    jitted = thunder.jit(lambda x: again(plain, x))
    with torch.no_grad():
        torch.testing.assert_close(jitted(value()), plain(value()))
    assert "checkpoint" not in str(thunder.last_traces(jitted)[0])


@pytest.mark.filterwarnings("ignore")
def test_the_reentrant_kind_needs_an_input_that_requires_grad() -> None:
    """Otherwise it has no gradients at all, and says so."""
    jitted = thunder.jit(lambda x: checkpoint(plain, x, use_reentrant=True))
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        assert not jitted(value()).requires_grad
    assert thunder.jit(lambda x: again(plain, x))(value()).requires_grad


def test_arguments_that_torch_refuses() -> None:
    """With torch's errors."""
    with pytest.raises(ValueError, match="Unexpected keyword arguments: gate"):
        thunder.jit(lambda x: checkpoint(block, x, use_reentrant=True, gate=x))(value())
    with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
        thunder.jit(lambda x: checkpoint(block, x, use_reentrant=True, context_fn=lambda: (None, None)))(value())


def test_contexts() -> None:
    """What chooses what to keep makes no difference to the numbers; what has another context runs as Python."""

    def selective(x: Any) -> Any:
        contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
        return again(plain, x, context_fn=contexts)

    torch.testing.assert_close(gradients(thunder.jit(selective), value(), 0), gradients(plain, value(), 0))

    def other(x: Any) -> Any:
        return again(plain, x, context_fn=lambda: (contextlib.nullcontext(), contextlib.nullcontext()))

    jitted = thunder.jit(other)
    torch.testing.assert_close(gradients(jitted, value(), 0), gradients(plain, value(), 0))
    assert "enters the context nullcontext around its region" in thunder.explain(jitted)


def test_an_exception_inside() -> None:
    """Leaves what ran before it where it was."""

    def fails(y: Any) -> Any:
        y.mul_(2)
        raise KeyError

    def f(x: Any) -> Any:
        y = x * 1
        try:
            again(fails, y)
        except KeyError:
            y = y + 1
        return y

    torch.testing.assert_close(thunder.jit(f)(value()), value() * 2 + 1)


def test_gradients_by_thunder() -> None:
    """`grad`, once and twice: one program has both passes, which stay apart."""

    def f(x: Any) -> Any:
        return again(lambda y: (y.sin() * y.exp()).cos(), x).sum()

    x = value()
    once = grad(thunder.jit(f))
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(leaf), leaf)
    torch.testing.assert_close(once(x)[0], expected)
    assert str(thunder.last_traces(once)[-1]).count("torch.sin") == 3  # forward, again, and of the cosine's gradient
    (first,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
    torch.testing.assert_close(grad(once)(x)[0], torch.autograd.grad(first.sum(), leaf)[0])


def test_the_trace_is_a_program() -> None:
    """What is printed runs, before and after a region is taken apart."""
    jitted = thunder.jit(lambda x: again(lambda y: y.sin() * 2, x))
    x = torch.rand(3, requires_grad=True)
    jitted(x)
    for trace in (thunder.last_traces(jitted)[0], thunder.last_traces(jitted)[-1]):
        namespace = trace.python_ctx()
        exec(str(trace), namespace)
        found = namespace["computation"](x.detach())
        torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, (x * 1).sin().detach() * 2)


def test_other_threads_have_torchs() -> None:
    """While one traces, a region of another thread's is eager's."""
    inside, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def elsewhere() -> None:
        inside.wait(10)
        x = value().requires_grad_()
        out = checkpoint(torch.sin, x, use_reentrant=False)
        found.append((type(out), torch.autograd.grad(out.sum(), x)[0]))
        done.set()

    def f(x: Any) -> Any:
        inside.set()
        done.wait(10)
        return again(plain, x)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    torch.testing.assert_close(thunder.jit(f)(value().requires_grad_()), plain(value()))
    thread.join()
    assert found[0][0] is torch.Tensor
    torch.testing.assert_close(found[0][1], value().cos())
