# SPDX-License-Identifier: Apache-2.0
"""`squeeze_`, `t_` and the like: the same tensor object looks different from then on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

CALLS: dict[str, tuple[Any, ...]] = {
    "transpose_": (0, 2),
    "squeeze_": (1,),
    "unsqueeze_": (0,),
    "swapaxes_": (0, 1),
    "swapdims_": (0, 2),
    "as_strided_": ((2, 2), (3, 1), 1),
}


def with_call(name: str, program: Any) -> Any:
    return lambda x: program(x, lambda y: getattr(y, name)(*CALLS.get(name, ())))


def compare(f: Any, *shape: int, gradient: bool = True) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    torch.testing.assert_close(thunder.jit(f)(x.clone()), f(x.clone()))
    if not gradient:
        return
    leaf, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    for result, given in ((f(leaf), leaf), (thunder.jit(f)(ours), ours)):
        sum(t.sin().sum() for t in result if t.requires_grad).backward()
        assert given.grad is not None
    torch.testing.assert_close(ours.grad, leaf.grad)


@pytest.mark.parametrize("name", [*CALLS, "t_"])
def test_the_same_tensor(name: str) -> None:
    """The call returns the tensor itself, which has the view's shape, strides and elements."""

    def program(x: Any, change: Any) -> Any:
        y = x * 2
        z = change(y)
        assert z is y
        strides = torch.tensor(y.stride())
        return y, z + 1, strides, torch.tensor(y.shape)

    compare(with_call(name, program), *((2, 3) if name == "t_" else (2, 1, 3)))


@pytest.mark.parametrize("name", [*CALLS, "t_"])
def test_writes_afterwards(name: str) -> None:
    """Reach what shares the memory, from both sides, views from before included."""

    def program(x: Any, change: Any) -> Any:
        y = x * 2
        whole = y.view(-1)
        first = y[0]
        flat = y.reshape(-1)  # a view, found out only when it matters
        change(y)
        y[..., -1] = 7.0
        whole.add_(1)
        flat[0] = 3.0
        return y, whole, first, flat

    # torch itself cannot differentiate a write to what as_strided_ made.
    compare(with_call(name, program), *((2, 3) if name == "t_" else (2, 1, 3)), gradient=name != "as_strided_")


def test_nothing_to_squeeze() -> None:
    """Leaves the tensor alone."""
    compare(lambda x: ((x * 2).squeeze_(), x), 2, 3)


def test_the_callers_tensor() -> None:
    """Is changed by Python."""
    jitted = thunder.jit(lambda x: x.t_() * 2)
    for x in (torch.ones(2, 3), torch.ones(4, 3)):
        shape = tuple(x.shape)
        assert jitted(x).shape == x.shape == shape[::-1]
    assert "t_ changes the shape of a tensor that exists outside" in thunder.explain(jitted)


def test_same_size() -> None:
    """resize_ to the shape that a tensor has does nothing."""
    compare(lambda x: (x.detach().clone().resize_(2, 3), x.detach().clone().resize_as_(x), x + 1), 2, 3)


# -- views that look no different -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.view(y.shape),
        lambda y: y.reshape(y.shape),
        lambda y: y[:],
        lambda y: y[...],
        lambda y: y.squeeze(),
        lambda y: y.transpose(0, 0),
        lambda y: y.expand_as(y),
        lambda y: y.narrow(0, 0, 2),
        lambda y: y.movedim(0, 0),
        lambda y: y.flatten(0, 0),  # in torch the tensor itself
        lambda y: y.real,
    ],
)
def test_a_view_is_a_tensor_of_its_own(view: Any) -> None:
    """What changes how it looks does not change what it is a view of; writes reach both."""

    def f(x: Any) -> Any:
        y = x * 2
        z = view(y)
        z.unsqueeze_(0)
        z.mul_(3)
        return y, z, torch.tensor(z is y)

    compare(f, 2, 3)


def test_results_that_look_no_different() -> None:
    """They are tensors of their own, in the same memory: not the parameter that they are views of, say."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.kept = torch.nn.Parameter(torch.ones(2, 3)), None
            self.register_buffer("count", torch.zeros(2, 3))

        def forward(self, x: Any) -> Any:
            self.kept = self.weight.view(2, 3)
            self.count.add_(1)
            y = x * 2
            return x.reshape(2, 3), self.count[:], y, y.squeeze(), self.weight

    for jit in (lambda module: module, thunder.jit):
        net = Net()
        x = torch.ones(2, 3)
        given, count, y, squeezed, weight = jit(net)(x)
        assert weight is net.weight and list(net._parameters) == ["weight"]
        assert type(net.kept) is torch.Tensor and not net.kept.is_leaf
        for view, of in ((given, x), (count, net.count), (squeezed, y), (net.kept, weight)):
            assert view is not of and view.data_ptr() == of.data_ptr()


def test_attributes_of_views() -> None:
    """Who gets a view of an input gets what the program has given it."""

    def f(x: Any) -> Any:
        first, same = x[:1], x[:]
        first.title, same.number, x.own = "first", 2, 3
        return first, same, x

    for call in (f, thunder.jit(f)):
        assert [vars(t) for t in call(torch.ones(2, 3))] == [{"title": "first"}, {"number": 2}, {"own": 3}]


@pytest.mark.parametrize(
    "views",
    [
        lambda x, y: torch.broadcast_tensors(x, y, torch.ones(3)),
        lambda x, y: torch.atleast_1d(x, y),
        lambda x, y: torch.atleast_2d([x, y]),
        lambda x, y: torch.atleast_3d((x,)),
    ],
)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_views_of_several_tensors(views: Any, cache: str) -> None:
    """Writes reach what they are views of, and what is written to that is seen through them."""

    def f(x: Any, y: Any) -> Any:
        found = views(x, y)
        found[0].add_(1)
        x.mul_(2)
        return found

    results = []
    for call in (f, thunder.jit(f, cache=cache)):
        x, y = torch.arange(3.0), torch.tensor(1.0)
        results.append((call(x, y), x, y))
        assert type(results[-1][0]) is tuple
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_nothing_is_left_on_tensors_that_are_asked_for_their_sizes() -> None:
    """C++ keeps what handles answer in attributes of theirs, which are not the program's."""

    def f(x: Any) -> Any:
        x.copy_(torch.ones(2, 3))
        return x.as_strided((2, 2), (1, 1))

    x = torch.zeros(2, 3)
    assert torch.equal(thunder.jit(f, cache="symbolic values")(x), torch.ones(2, 2)) and not vars(x)


# -- detach_ and .data = ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("detach", [torch.Tensor.detach_, torch.detach_])
def test_detach_in_place(detach: Any) -> None:
    """No gradient flows through the tensor any more; through what was computed of it before it does."""

    def f(x: Any) -> Any:
        y = x * 2
        before = y.sum(0)
        z = detach(y)
        y.mul_(x.detach())
        assert z is y and not y.requires_grad
        return y, y + 1, before + y, x * y

    compare(f, 2, 3)
    x = torch.ones(3, requires_grad=True)
    assert [t.requires_grad for t in thunder.jit(f)(x)] == [False, False, True, True]
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        thunder.jit(lambda x: (x * 2)[0].detach_())(torch.ones(2, 3, requires_grad=True))
    assert thunder.jit(lambda x: x.detach_() * 2)(torch.ones(3)).sum() == 6
    assert thunder.jit(lambda x: x[0].data.detach_() * 2)(torch.ones(2, 3, requires_grad=True)).sum() == 6


def data_of_what_it_made(x: Any, b: Any) -> Any:
    """It has the memory of what it is given, whatever shape that has."""
    y, kept = torch.zeros(4), b[0]
    before = y[:2]
    y.data = b
    y.add_(1)
    before.add_(5)
    return y, before, kept, y.shape


def data_of_an_input(x: Any, b: Any) -> Any:
    """So does a tensor of the caller's."""
    before = x.data
    x.data = b.data
    x.mul_(2)
    return x, before


def its_own_data(x: Any, b: Any) -> Any:
    """Nothing changes."""
    x.data = x
    x.mul_(2)
    return x


@pytest.mark.parametrize("f", [data_of_what_it_made, data_of_an_input, its_own_data])
def test_data_that_is_assigned(f: Any) -> None:
    """Memory is shared from then on."""
    results = []
    for call in (f, thunder.jit(f)):
        x, b = torch.arange(3.0), torch.ones(2, 3)
        out = call(x, b)
        b.add_(10)
        results.append((out, x, b, x.data_ptr() == b.data_ptr()))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


# -- strides of one's own ---------------------------------------------------------------------------------------------
def test_as_strided_of_views_from_outside() -> None:
    """It sees the memory around them, so the program runs eagerly; a compiled one is guarded against them."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (1, 2), 0) * 2

    memory = torch.arange(20.0)
    jitted = thunder.jit(program)
    for x in (memory[:10], memory[10:], memory[::2], memory[10:].reshape(5, 2).mT):
        assert torch.equal(jitted(x), program(x))
    assert torch.equal(thunder.jit(lambda x: x.as_strided((2,), (1,), 12))(memory[:10]), memory[12:14])


def test_the_gradient_of_as_strided_scatter_is_torchs() -> None:
    """Whatever it is."""
    x, y = torch.randn(6, requires_grad=True), torch.randn(2, requires_grad=True)

    def program(x: Any, y: Any) -> Any:
        return torch.as_strided_scatter(x, y, (2,), (2,), 1)

    weights = torch.arange(1.0, 7)
    ours, theirs = (torch.autograd.grad(f(x, y), (x, y), weights) for f in (thunder.jit(program), program))
    torch.testing.assert_close(ours, theirs)
