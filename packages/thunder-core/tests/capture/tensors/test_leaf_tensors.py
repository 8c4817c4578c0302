# SPDX-License-Identifier: Apache-2.0
"""Tensors that a program makes to require grad: results, their gradients and what else is seen, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import message_and_notes
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.errors import TracingError

FLOAT64: Any = {"dtype": torch.float64}


class Keeper:
    """Keeps what it is given."""

    leaf: Any = None


keeper = Keeper()


def leaf_of(x: Any) -> Any:
    """As gradient penalties and attacks make it."""
    return x.detach().requires_grad_()


def with_property(x: Any) -> Any:
    """By assignment."""
    y = x.detach()
    y.requires_grad = True
    return y, (y**3).sum()


def written_to(x: Any) -> Any:
    """In place, unseen by autograd."""
    y = leaf_of(x)
    with torch.no_grad():
        y.add_(1)
    return y, (y * y).sum()


def memory_written_to(x: Any) -> Any:
    """The leaf shares memory with what is written to."""
    z = x.detach() * 1
    y = leaf_of(z)
    z.add_(1)
    return y, (y * y).sum()


def second_derivative(x: Any) -> Any:
    """Inside, by a leaf that the caller gets."""
    y = leaf_of(x)
    (g,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    return y, (g**2 * y).sum()


def with_hook(x: Any) -> Any:
    """Doubles the leaf's gradient."""
    y = leaf_of(x)
    y.register_hook(lambda g: g * 2)
    return y, (y * 3).sum()


def under_no_grad(x: Any) -> Any:
    """A leaf may be made there, too."""
    with torch.no_grad():
        y = (x * 2).requires_grad_()
    return y, (y * 3).sum()


def checkpointed(x: Any) -> Any:
    """The leaf is what a checkpointed region is given."""
    y = leaf_of(x)
    return y, checkpoint(torch.sin, y, use_reentrant=False).sum()


def kept(x: Any) -> Any:
    """In an object."""
    keeper.leaf = leaf_of(x)
    return (keeper.leaf * 2).sum()


def module_inside(x: Any) -> Any:
    """Its parameters are leaves."""
    layer = nn.Linear(3, 3, **FLOAT64)
    return layer.weight, layer(x).sum()


def backward_inside(x: Any) -> Any:
    """Fills in the leaf's gradient."""
    y = leaf_of(x)
    z = (y**3).sum()
    z.backward()
    return y.grad, z.detach()


def asked_about(x: Any) -> Any:
    """What a leaf says of itself."""
    y = leaf_of(x)
    z = y * 2
    return y.is_leaf, y.requires_grad, y.grad is None, y.grad_fn is None, z.is_leaf, z.requires_grad


def given(x: Any) -> Any:
    """The caller's own tensor requires grad from then on."""
    x.requires_grad_()
    return (x * 2).sum()


def of_an_attribute(x: Any) -> Any:
    """With another that needs no gradient."""
    y, z = torch.zeros_like(x, requires_grad=True), torch.randn(3, requires_grad=True)
    return y, (y * 2).sum() + z.sum().detach()


def retained(x: Any) -> Any:
    """Of a leaf that is nothing, of another it is filled in by backward."""
    y = leaf_of(x)
    y.retain_grad()
    z = y * x.detach()
    z.retain_grad()
    return y, z, z.sum()


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "returned": lambda x: [y := leaf_of(x), (y * 2).sum()],
    "not returned": lambda x: (leaf_of(x) * 2).sum(),
    "zeros": lambda x: [y := torch.zeros(3, **FLOAT64).requires_grad_(), (y * x).sum()],
    "zeros with the option": lambda x: [y := torch.zeros(3, requires_grad=True, **FLOAT64), (y * x).sum()],
    "torch.tensor": lambda x: [y := torch.tensor([1.0, 2, 3], requires_grad=True, **FLOAT64), (y * x).sum()],
    "torch.asarray": lambda x: [y := torch.asarray([1.0, 2, 3], requires_grad=True, **FLOAT64), (y * x).sum()],
    "Parameter": lambda x: [p := nn.Parameter(x.detach() * 2), (p**2).sum()],
    "Parameter of a new tensor": lambda x: [p := nn.Parameter(torch.ones(3, **FLOAT64)), (p * x).sum()],
    "computed": lambda x: [y := (x * 2).requires_grad_(), y.sum()],
    "a view of it": lambda x: [y := x.detach().view(-1).requires_grad_(), y[1:].exp().sum()],
    "only a view of it": lambda x: leaf_of(x)[1:],
    "by a property": with_property, "written to": written_to, "memory written to": memory_written_to,
    "second derivative": second_derivative, "hook": with_hook, "no_grad": under_no_grad, "checkpoint": checkpointed,
    "kept": kept, "module": module_inside, "backward": backward_inside, "asked about": asked_about, "given": given,
    "of an attribute": of_an_attribute, "retain_grad": retained,
    "retain_grad of an input's": lambda x: [z := (x * x.clone().requires_grad_()), z.retain_grad(), z.sum()],
}  # fmt: skip


def said(x: Any) -> Any:
    """All that can be seen of a result."""
    if isinstance(x, torch.Tensor):
        return type(x), x.requires_grad, x.is_leaf, x.tolist()
    return [said(i) for i in x] if isinstance(x, (tuple, list)) else x


def observed(run: Callable[[Any], Any], requires_grad: bool) -> list[Any]:
    """Results and gradients of three calls."""
    out = []
    for k in range(3):
        torch.manual_seed(k)
        keeper.leaf = None
        x = (torch.arange(1.0, 4.0, **FLOAT64) + k).requires_grad_(requires_grad)
        found = run(x)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        seen = [said(found), x.requires_grad, said(keeper.leaf)]
        losses = [t for t in results if isinstance(t, torch.Tensor) and t.dim() == 0 and t.requires_grad]
        if losses:
            sum(losses).backward()
        held = [t for t in [*results, x, keeper.leaf] if isinstance(t, torch.Tensor)]
        out.append([seen, [said(t.grad) for t in held if t.is_leaf or t.retains_grad]])
    return out


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_leaves_are_as_in_eager(name: str, requires_grad: bool) -> None:
    """What is returned and kept is a leaf where eager's is, and backward reaches it."""
    if name == "retain_grad of an input's" and not requires_grad:
        name = "asked about"
    f = PROGRAMS[name]
    assert observed(thunder.jit(f), requires_grad) == observed(f, requires_grad)


def network(requires_grad: bool = True) -> nn.Module:
    """Four numbers to one, with a buffer that changes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).double()
    return net.requires_grad_(requires_grad)


def batch(k: int) -> tuple[Any, Any]:
    """Five points and what they lead to."""
    generator = torch.Generator().manual_seed(k)
    made = [torch.randn(5, n, generator=generator, **FLOAT64) for n in (4, 1)]
    return made[0], made[1]


def test_a_leaf_that_stays_inside_is_compiled() -> None:
    """An attack by signs of gradients; an input found by descent; embeddings of a frozen model made to require grad."""
    net = network().eval()

    def attack(x: Any, y: Any) -> Any:
        found = x.clone().detach()
        for _ in range(2):
            found.requires_grad_(True)
            (g,) = torch.autograd.grad(F.mse_loss(net(found), y), found)
            found = (found.detach() + 0.02 * g.sign()).clamp(x - 0.1, x + 0.1)
        return found

    def descent(x: Any, y: Any) -> Any:
        z = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            (g,) = torch.autograd.grad(((z - x) ** 2).sum(), z)
            with torch.no_grad():
                z -= 0.3 * g
        return z.detach()

    for f in (attack, descent):
        jitted = thunder.jit(f)
        for k in range(3):
            torch.testing.assert_close(jitted(*batch(k)), f(*batch(k)))
        assert thunder.cache_misses(jitted) == 1 and thunder.cache_hits(jitted) == 2

    frozen, adapter = nn.Embedding(10, 4).double().requires_grad_(False), nn.Linear(4, 2).double()
    frozen.register_forward_hook(lambda module, args, out: out.requires_grad_(True))
    expected = torch.autograd.grad(adapter(frozen(torch.tensor([1, 2]))).sum(), [*adapter.parameters()])
    jitted = thunder.jit(lambda i: adapter(frozen(i)).sum())
    for _ in range(2):
        found = torch.autograd.grad(jitted(torch.tensor([1, 2])), [*adapter.parameters()])
        torch.testing.assert_close(found, expected)
    assert thunder.cache_hits(jitted) == 1 and "Python" not in thunder.explain(jitted)


def test_backward_in_a_module() -> None:
    """And gradients of parameters that it reads."""

    class Trainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Any) -> Any:
            self.net(x).sum().backward()
            return self.net[0].weight.grad.clone()

    found, expected = [], []
    for out, jit in ((found, thunder.jit), (expected, lambda m: m)):
        trainer = Trainer()
        run = jit(trainer)
        out += [run(batch(k)[0]) for k in range(3)] + [p.grad for p in trainer.parameters()]
    torch.testing.assert_close(found, expected)


def test_requires_grad_of_parameters_is_switched() -> None:
    """Off and on again around the one use of a model."""
    net, front = network(), nn.Linear(4, 4).double()

    def loss(x: Any) -> Any:
        for p in net.parameters():
            p.requires_grad_(False)
        out = net(front(x)).sum()
        for p in net.parameters():
            p.requires_grad_(True)
        return out

    every = [*net.parameters(), *front.parameters()]
    found = []
    for run in (loss, thunder.jit(loss)):
        front.zero_grad()
        run(batch(0)[0]).backward()
        found.append([p.grad for p in every])
    torch.testing.assert_close(found[1], found[0])
    assert found[0][0] is None and all(p.requires_grad for p in every)
    jitted = thunder.jit(loss)
    jitted(batch(0)[0]), jitted(batch(1)[0])
    assert thunder.cache_hits(jitted) == 1


def forces(x: Any) -> Any:
    """The input requires grad from then on, and so does what is computed from it."""
    x.requires_grad_()
    energy = (x**3).sum()
    (g,) = torch.autograd.grad(energy, x, create_graph=True)
    return g.detach(), energy


def saliency(x: Any) -> Any:
    """Only for a while."""
    before = x.requires_grad
    x.requires_grad_()
    (g,) = torch.autograd.grad((x**3).sum(), x)
    x.requires_grad_(before)
    return g, x * 2


def input_times_gradient(x: Any) -> Any:
    """The result requires grad, although its leaf no longer does."""
    before = x.requires_grad
    x.requires_grad_()
    (g,) = torch.autograd.grad((x**3).sum(), x)
    result = (g * x).sum()
    x.requires_grad_(before)
    return result, x + 1


def frozen_from_now_on(x: Any) -> Any:
    """The first term has a gradient, but torch does not add it to a leaf that requires none."""
    loss = (x**2).sum()
    x.requires_grad_(False)
    return loss + (x * 3).sum(), x, (x * 3).requires_grad


def after_a_branch(x: Any) -> Any:
    """A decision between."""
    x.requires_grad = True
    return (x * 2).sum() if x.sum() > 7 else (x * 5).sum()


SWITCHES: dict[str, tuple[Callable[[Any], Any], tuple[bool, ...]]] = {
    "given": (given, (False, True)), "forces": (forces, (False, True)), "saliency": (saliency, (False, True)),
    "input times gradient": (input_times_gradient, (False, True)),
    "frozen": (frozen_from_now_on, (False, True)), "after a branch": (after_a_branch, (False, True)),
    "returned": (lambda x: x.requires_grad_(), (False, True)),
    "under no_grad": (torch.no_grad()(lambda x: [x.requires_grad_(), x * 2]), (False, True)),
    "written to": (lambda x: [x.requires_grad_(), torch.no_grad()(x.mul_)(2), (x**2).sum()][2], (False, True)),
    "on and off and on": (
        lambda x: [x.requires_grad_().detach(), x.requires_grad_(False) * 2, (x.requires_grad_() * 3).sum()], (False,),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "requires_grad"), [(name, flag) for name, (_, flags) in SWITCHES.items() for flag in flags]
)
def test_requires_grad_of_an_argument_is_switched(name: str, requires_grad: bool) -> None:
    """Compiled: each call switches its own argument."""
    f = SWITCHES[name][0]
    jitted = thunder.jit(f)
    assert observed(jitted, requires_grad) == observed(f, requires_grad)
    assert thunder.compile_stats(jitted).per_module is None
    assert thunder.cache_misses(jitted) == (2 if name == "after a branch" else 1)


def test_switched_arguments_that_are_one_tensor() -> None:
    """Switching one of them switches the other."""

    def f(x: Any, y: Any) -> Any:
        x.requires_grad_()
        return (y * 3).sum()

    jitted = thunder.jit(f)
    x = torch.ones(3)
    jitted(x, x).backward()
    assert x.grad.tolist() == [3, 3, 3]
    y = torch.ones(3)
    assert not jitted(torch.ones(3), y).requires_grad and not y.requires_grad


def test_switched_after_its_use() -> None:
    """What was computed before has no gradient."""

    def f(x: Any) -> Any:
        y = x * 2
        return (x.requires_grad_() * y).sum()

    assert observed(thunder.jit(f), False) == observed(f, False)


def test_integers_cannot_require_grad() -> None:
    """With torch's error."""
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        thunder.jit(given)(torch.ones(3, dtype=torch.int64))


def test_a_buffer_that_the_first_call_switches() -> None:
    """As a loss that starts from a buffer: the second call is traced again, and the third is a hit."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("zero", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            loss = self.zero
            loss.requires_grad_()
            assert self.zero.requires_grad and self.zero.is_leaf
            return loss + x.sum()

    found = []
    for jit in (thunder.jit, lambda m: m):
        module = Loss()
        run = jit(module)
        for _ in range(3):
            run(torch.ones(3)).backward()
        found.append((module.zero.requires_grad, module.zero.grad))
        if jit is thunder.jit:
            assert thunder.cache_misses(run) == 2 and thunder.cache_hits(run) == 1
    assert found[0] == found[1] == (True, torch.tensor(3.0))


def test_an_error_switches_nothing() -> None:
    """A trace that ends puts the flag back, and the eager run sets it once."""

    def f(x: Any) -> Any:
        assert not x.requires_grad
        x.requires_grad_()
        raise ValueError(x.requires_grad)

    x = torch.ones(3)
    with pytest.raises(ValueError, match="True"):
        thunder.jit(f)(x)
    assert x.requires_grad


def test_parameters_made_once_and_at_every_call() -> None:
    """Made by the first call, the next is compiled; made by every call, the program runs as Python."""

    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight: Any = None

        def forward(self, x: Any) -> Any:
            if self.weight is None:
                self.weight = nn.Parameter(torch.ones(x.shape[-1]))
            return (x * self.weight).sum()

    module = Lazy()
    jitted = thunder.jit(module)
    for _ in range(4):
        jitted(torch.arange(3.0)).backward()
    assert module.weight.grad.tolist() == [0, 4, 8]
    assert thunder.cache_misses(jitted) == 2 and thunder.cache_hits(jitted) == 2

    every = thunder.jit(PROGRAMS["Parameter"])
    for _ in range(4):
        assert isinstance(every(torch.ones(3))[0], nn.Parameter)
    assert thunder.cache_misses(every) == 2 and "at every call" in thunder.explain(every)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "written to": (lambda x: leaf_of(x).add_(1), "^a leaf Variable that requires grad is being used in an in-place"),
    "a view written to": (lambda x: [y := leaf_of(x), y[1:].mul_(2)], "^a view of a leaf Variable that requires grad"),
    "integers": (lambda x: leaf_of(x.long()), "only Tensors of floating point dtype can require gradients"),
    "no leaf": (lambda x: (x.clone().requires_grad_() * 2).requires_grad_(False), "flags of leaf variables"),
    "retained": (lambda x: x.detach().retain_grad(), "can't retain_grad on Tensor that has requires_grad=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """In torch's words, with the user's line."""
    f, message = REFUSED[name]
    with pytest.raises(RuntimeError, match=message):
        f(torch.ones(3))
    with pytest.raises(RuntimeError, match=message) as caught:
        thunder.jit(f)(torch.ones(3))
    assert "test_leaf_tensors.py:" in message_and_notes(caught.value)


def test_programs_that_are_transformed_as_a_whole() -> None:
    """Leaves are constants to the gradient of a function; a part that needs Python says so."""
    x = torch.ones(3, **FLOAT64)
    penalty = thunder.grad(lambda x: (x * torch.autograd.grad((y := leaf_of(x)).pow(3).sum(), y)[0]).sum())
    assert torch.equal(penalty(x * 2), 3 * (x * 2) ** 2)
    with pytest.raises(TracingError, match=r"cannot be compiled: the program calls backward\(\)"):
        thunder.grad(lambda x: backward_inside(x)[1])(x)


def test_symbolic_values() -> None:
    """The same with sizes that stay symbolic."""
    for name in ("returned", "Parameter", "backward"):
        jitted = thunder.jit(PROGRAMS[name], cache="symbolic values")
        for n in (3, 5, 7):
            x = torch.arange(float(n))
            assert said(jitted(x)) == said(PROGRAMS[name](x))
