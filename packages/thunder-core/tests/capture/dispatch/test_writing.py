# SPDX-License-Identifier: Apache-2.0
"""Writes: to `out=` of another shape, to what requires grad, and by custom operations of the user's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from outcomes import message_and_notes

import thunder


def value() -> torch.Tensor:
    """An input that requires grad."""
    return torch.linspace(0.5, 2, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()


# -- out= -------------------------------------------------------------------------------------------------------------
def resized(x: Any, *shape: int, dtype: Any = torch.float64) -> Any:
    """A result in a tensor that was made with that shape."""
    out = torch.empty(shape, dtype=dtype)
    got = torch.mul(x, 2, out=out)
    return got, out, out.shape, out + 1, got is out


@pytest.mark.parametrize("shape", [(0,), (2,), (2, 3), (7, 1), ()])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_out_is_resized(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """As by torch, with torch's warning where it had elements."""
    x = value().detach()
    results = []
    for f in (resized, thunder.jit(resized)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch._C._set_warnAlways(True)
            results.append((f(x, *shape, dtype=dtype), any("resized" in str(w.message) for w in caught)))
            torch._C._set_warnAlways(False)
    assert results[1][1] == results[0][1] == (shape not in ((0,), (2, 3)))
    torch.testing.assert_close(results[1][0], results[0][0])


def test_out_with_several_results() -> None:
    """Each is resized by itself."""

    def f(x: Any) -> Any:
        m, i = torch.empty(0, dtype=x.dtype), torch.empty(0, dtype=torch.int64)
        torch.max(x, 1, out=(m, i))
        return m, i, m.shape

    x = value().detach()
    torch.testing.assert_close(thunder.jit(f)(x), f(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, o: torch.exp(x, out=o),
        lambda x, o: torch.exp(x, out=torch.empty(4, dtype=x.dtype)[1:]),
    ],
)
def test_out_that_is_not_resized(f: Callable[..., Any]) -> None:
    """By a program, as others see the tensor: Python does it."""
    x, jitted = value().detach(), thunder.jit(f)
    for _ in range(2):
        expected, found = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        torch.testing.assert_close(jitted(x, found), f(x, expected))
        torch.testing.assert_close(found, expected)
    assert "resizes an input or a tensor that shares its memory" in thunder.explain(jitted)


def test_in_place_forms_that_resize_their_target() -> None:
    """torch's `addbmm_` gives its target the shape of the result, also if it must not: eager does it."""

    def f(x: Any, a: Any, b: Any) -> Any:
        return x.addbmm_(a, b)

    jitted = thunder.jit(f)
    for shape in ((1,), (), (2, 5)):
        for _ in range(2):
            expected, found = torch.ones(shape), torch.ones(shape)
            given = torch.ones(3, 2, 4), torch.ones(3, 4, 5)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = jitted(found, *given)
            torch.testing.assert_close(result, f(expected, *given))
            assert result is found
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("write", [lambda x: x.add_(torch.ones(3, 2, 3)), lambda x: x.add_(1.5), lambda x: x.mul_(1j)])
def test_results_that_do_not_fit_their_target(write: Callable[[Any], Any]) -> None:
    """They are torch's errors."""
    with pytest.raises(RuntimeError) as expected:
        write(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(RuntimeError) as found:
        thunder.jit(lambda x: write(x * 2))(torch.ones(2, 3, dtype=torch.int64))
    assert type(found.value) is type(expected.value)
    assert f"at {__file__}" in message_and_notes(found.value)


# -- what requires grad -----------------------------------------------------------------------------------------------
def with_(write: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A program that writes to a tensor with a history."""

    def f(x: Any) -> Any:
        y = x * 2
        before = y.exp()
        write(y, x)
        return y.requires_grad, y * 3, before

    return f


def under_no_grad(y: Any, x: Any) -> None:
    """A write that autograd does not see."""
    with torch.no_grad():
        y.zero_()


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "zero_": lambda y, x: y.zero_(),
    "fill_": lambda y, x: y.fill_(2.5),
    "fill_ by a tensor": lambda y, x: y.fill_(x.sum()),
    "copy_": lambda y, x: y.copy_(torch.ones(2, 3)),
    "copy_ of what requires grad": lambda y, x: y.copy_(x),
    "uniform_": lambda y, x: y.uniform_(),
    "bernoulli_": lambda y, x: y.bernoulli_(),
    "a part": lambda y, x: y[0].zero_(),
    "an item": lambda y, x: y.__setitem__((0, 1), 5.0),
    "all items": lambda y, x: y.__setitem__(slice(None), 1.0),
    "all items by a slice of them": lambda y, x: y.__setitem__((..., slice(-3, None)), 1.0),
    "all items by a tensor": lambda y, x: y.__setitem__(..., torch.ones(3)),
    "all items by what requires grad": lambda y, x: y.__setitem__(..., x[0]),
    "masked_fill_": lambda y, x: y.masked_fill_(x > 1, 0.0),
    "under no_grad": under_no_grad,
    "of something detached": lambda y, x: y.copy_(x.detach()),
    "its bits": lambda y, x: y.view(torch.int64).bitwise_and_(-2),
    "its bits as half of the size": lambda y, x: y.view(dtype=torch.int32)[0].clamp_(0),
    "its bits as other floats": lambda y, x: y.view(torch.float32).mul_(0),
    "its bits, and back": lambda y, x: y.view(torch.int64).view(torch.float64).mul_(2),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_requires_grad_goes_on_requiring_it(name: str) -> None:
    """And the gradient is eager's: none through what was overwritten."""
    f = with_(WRITES[name])
    results = []
    for g in (f, thunder.jit(f)):
        torch.manual_seed(0)
        x = value()
        required, out, before = g(x)
        (out.sum() + before.sum()).backward()
        results.append((required, out.requires_grad, out.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(
    "write",
    [
        lambda y, z: y.copy_(z),
        lambda y, z: y.fill_(z[0, 0]),
        lambda y, z: y[:1].copy_(z[0]),
        lambda y, z: y.__setitem__(..., z),
        lambda y, z: y.__setitem__(slice(0, 2), z[1]),
    ],
)
def test_what_is_overwritten_has_a_gradient_of_zeros(write: Any) -> None:
    """As in eager mode, where it is not None."""

    def f(x: Any, z: Any) -> Any:
        y = x * 2
        write(y, z)
        return y * z

    gradients = []
    for g in (f, thunder.jit(f)):
        x, z = value(), value()
        g(x, z).sum().backward()
        gradients.append((x.grad, z.grad))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_what_does_not_require_grad() -> None:
    """Stays so, unless what is written requires it."""

    def f(x: Any, y: Any) -> Any:
        z = torch.ones(2, 3, dtype=x.dtype)
        y.zero_().add_(1)
        z.fill_(x.sum())
        return y.requires_grad, z.requires_grad, torch.ones(2).copy_(x[0, :2]).requires_grad, y

    y = torch.ones(3)
    found = thunder.jit(f)(value(), y)
    assert found[:3] == f(value(), torch.ones(3))[:3] == (False, True, True)
    assert found[3] is y
    assert not y.requires_grad


# -- custom operations ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def custom() -> Iterator[Any]:
    """Operations of the user's."""
    with torch.library._scoped_library("thunder_test_writing", "DEF") as library:
        library.define("bump(Tensor(a!) x, *, float by=1.0) -> ()")
        library.define("swap(Tensor(a!) x, Tensor(b!) y) -> Tensor(a!)")
        library.define("all_of(Tensor(a!)[] xs, Tensor? w=None) -> Tensor")
        library.define("both(Tensor x) -> (Tensor, Tensor)")

        def swap(x: Any, y: Any) -> Any:
            kept = x.clone()
            x.copy_(y)
            y.copy_(kept)
            return x

        def all_of(xs: Any, w: Any = None) -> Any:
            for x in xs:
                x.mul_(2 if w is None else w)
            return xs[0] + 1

        for keys in ("CPU", "Meta"):
            library.impl("bump", lambda x, by=1.0: (x.add_(by), None)[1], keys)
            library.impl("swap", swap, keys)
            library.impl("all_of", all_of, keys)
        library.impl("both", lambda x: (x.sin(), x * 2), "CompositeImplicitAutograd")
        yield torch.ops.thunder_test_writing


PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "keyword": lambda ops, x, y: (ops.bump(x, by=2.0), x + 1),
    "of its own": lambda ops, x, y: (lambda z: (ops.bump(z), z, z is x))(x * 1),
    "through a view": lambda ops, x, y: (ops.bump.default(x[1]), x * 2),
    "two": lambda ops, x, y: (lambda r: (r + 1, r is x, x * y))(ops.swap(x, y)),
    "a list": lambda ops, x, y: (ops.all_of([x, y[0]]), ops.all_of([y], w=x), x, y),
    "no writes": lambda ops, x, y: ops.both(x)[0] * ops.both.default(y)[1],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_custom_operations(custom: Any, name: str) -> None:
    """Those that write to their arguments do so in traced programs too, at each call."""

    def f(x: Any, y: Any) -> Any:
        return PROGRAMS[name](custom, x, y)

    jitted = thunder.jit(f)
    for k in range(3):
        found, expected = [[torch.arange(6.0).reshape(2, 3) + k, torch.ones(2, 3) * k] for _ in range(2)]
        torch.testing.assert_close(jitted(*found), f(*expected))
        torch.testing.assert_close(found, expected)
    assert thunder.cache_hits(jitted) == 2


def test_custom_operations_by_decorator() -> None:
    """`torch.library.custom_op`, with a gradient, and with arguments that it changes."""
    sine = torch.library.custom_op("thunder_test_writing_op::sine", mutates_args=())(sine_of)
    sine.register_fake(lambda x, k: torch.empty_like(x))

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    sine.register_autograd(lambda ctx, g: (g * ctx.saved_tensors[0].cos() * ctx.k, None), setup_context=setup)
    into = torch.library.custom_op("thunder_test_writing_op::into", mutates_args=("out",))(into_out)

    def f(x: Any) -> Any:
        out = torch.zeros_like(x)
        into(x.detach(), out=out)
        return sine(x, 2.0) * out

    x = value()
    jitted = thunder.jit(f)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), f(x))
        torch.testing.assert_close(torch.autograd.grad(jitted(x).sum(), x), torch.autograd.grad(f(x).sum(), x))
    assert thunder.cache_misses(jitted) == 1, thunder.explain(jitted)


def sine_of(x: torch.Tensor, k: float) -> torch.Tensor:
    """A custom operation."""
    return x.sin() * k


def into_out(x: torch.Tensor, out: torch.Tensor) -> None:
    """A custom operation that writes."""
    out.add_(x * 2)


sine_of.__annotations__ = {"x": torch.Tensor, "k": float, "return": torch.Tensor}
into_out.__annotations__ = {"x": torch.Tensor, "out": torch.Tensor, "return": None}


# -- objects of the user's that say themselves what torch functions do with them --------------------------------------
class Scaled:
    """A number of times a tensor; no tensor itself."""

    def __init__(self, tensor: Any, factor: float):
        self.tensor = tensor
        self.factor = factor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes with the tensor that it stands for."""

        def plain(x: Any) -> Any:
            return x.tensor * x.factor if isinstance(x, Scaled) else x

        return func(*map(plain, args), **{k: plain(v) for k, v in (kwargs or {}).items()})


def test_objects_with_torch_functions_of_their_own() -> None:
    """Are asked, made inside or given as arguments."""

    def f(x: Any, s: Any) -> Any:
        return torch.add(Scaled(x, 2.0), 1) + torch.mul(x, other=Scaled(x, 3.0)) + torch.sin(s)

    x, s = value(), Scaled(torch.ones(3), 2.0)
    jitted = thunder.jit(f)
    for _ in range(2):
        torch.testing.assert_close(jitted(x, s), f(x, s))
    assert thunder.cache_hits(jitted) == 1


# -- torch's own functions that write to arguments --------------------------------------------------------------------
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_running_statistics(name: str, training: bool) -> None:
    """They are written once, also where the backward computes the function again; statistics have no gradient."""
    fn = getattr(torch, name)

    def run(program: Any) -> Any:
        torch.manual_seed(0)
        x, w, b = torch.randn(4, 2, 3, requires_grad=True), torch.ones(2, requires_grad=True), torch.zeros(2)
        mean, var = torch.zeros(2), torch.ones(2)
        results = program(x, w, b, mean, var)
        grads = torch.autograd.grad(results[0].sin().sum(), (x, w))
        return [results, grads, mean, var], [r.requires_grad for r in results]

    def program(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        return fn(x, w, b, mean, var, training, 0.1, 1e-5)

    (ours, our_flags), (theirs, their_flags) = run(thunder.jit(program)), run(program)
    torch.testing.assert_close(ours, theirs)
    assert our_flags == their_flags


def test_dtypes_that_torch_does_not_write() -> None:
    """An `out=` or a target that the result cannot be converted for is torch's error; others are converted."""
    x = torch.rand(2, 3)
    for program in (
        lambda x: torch.complex(x, x, out=torch.empty(2, 3, dtype=torch.complex128)),
        lambda x: torch.aminmax(x, dim=0, out=(torch.empty(3), torch.empty(3, dtype=torch.float64))),
        lambda x: torch.multinomial(x, 2, out=torch.empty(2, 2)),
        lambda x: x.clone().float_power_(2),
        lambda x: torch.cat([x[:0], x], out=x),
    ):
        with pytest.raises(RuntimeError) as theirs:
            program(x)
        with pytest.raises(RuntimeError, match=re.escape(str(theirs.value).splitlines()[0])):
            thunder.jit(program)(x)
    out = torch.empty(2, 3, dtype=torch.float64)
    thunder.jit(torch.add)(x, x, out=out)
    assert torch.equal(out, (x + x).double())


def draws_points(x: torch.Tensor) -> torch.Tensor:
    engine = torch.quasirandom.SobolEngine(3)
    first = engine.draw(2)
    engine.fast_forward(3)
    return torch.cat((first, engine.draw(2))) * x


def updates(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    state = [torch.zeros(3), torch.zeros(3), torch.ones(3)]
    torch._foreach_copy_([state[0]], [x])
    torch._foreach_zero_([state[1]])
    p, step = x.clone(), torch.tensor(1.0)
    torch._fused_adam_(
        [p], [x.cos()], state[:1], state[1:2], [], [step], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    return (p, *state)


@pytest.mark.parametrize("fn", [draws_points, updates])
def test_in_place_functions_without_a_functional_form(fn: Any) -> None:
    """What they write to is known from their schemas."""
    jfn = thunder.jit(fn, sharp_edges="error")
    for x in (torch.ones(3), torch.arange(3.0)):
        torch.testing.assert_close(jfn(x), fn(x), rtol=0, atol=0)
    assert thunder.cache_hits(jfn) == 1


@torch.library.custom_op("thunder_test_writing_op::step", mutates_args=("p", "state"))
def written_by_step(p: torch.Tensor, state: list[torch.Tensor], rate: float, step: int) -> None:
    state[0].add_(1)
    p.sub_(rate * state[0] / step)


def test_numbers_of_custom_operations() -> None:
    """They become inputs like other numbers, because the metadata of what is written does not depend on them."""
    found = []
    for jit in (lambda f: f, lambda f: thunder.jit(f, fullgraph=True)):
        p, state, count = torch.ones(3), [torch.zeros(3)], [0]

        def update(p: Any = p, state: Any = state, count: Any = count) -> None:
            count[0] += 1
            written_by_step(p, state, 0.1, count[0])

        run = jit(update)
        for _ in range(8):
            run()
        found.append([p, *state, count[0]])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert thunder.cache_misses(run) == 3
