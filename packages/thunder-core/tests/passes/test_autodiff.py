# SPDX-License-Identifier: Apache-2.0
"""Reverse mode: which rule is taken, how gradients add up, what is saved, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thunder
import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.errors import ThunderError
from thunder.core.proxies import TensorProxy
from thunder.core.state import SourceLine, state, tracectx
from thunder.core.symbol import OpTags, Symbol
from thunder.core.trace import Trace
from thunder.core.transforms import get_grad, grad, put_grad, put_grads, register_grad
from thunder.core.verify import verify
from thunder.extend import OperatorExecutor
from thunder.passes import autodiff
from thunder.passes.autodiff import differentiate
from thunder.passes.split import Split


def traced(fn: Any, *kinds: Any) -> Trace:
    """The trace of `fn` on inputs of these dtypes and shape (2, 3), all of which require grad."""
    trace = Trace("f")
    for kind in kinds:
        p = TensorProxy(trace.make_name("x"), shape=(2, 3), device=devices.cpu, dtype=kind, requires_grad=True)
        trace.args.append(p)
    with tracectx(trace):
        trace.output = fn(*trace.args)
        prims.python_return(trace.output)
    return trace


F = dtypes.float64


def gradients(fn: Any, *values: torch.Tensor, executors: Any = ()) -> list[torch.Tensor]:
    """The gradients of `fn` by the transform, run as the program says."""
    trace = traced(fn, *(dtypes.to_dtype(v.dtype) for v in values))
    out = differentiate(verify(trace), executors)
    verify(out)
    return out.python_callable()(*values)


def numbers(n: int = 1) -> tuple[torch.Tensor, ...]:
    """Float64 tensors of shape (2, 3)."""
    generator = torch.Generator().manual_seed(7)
    return tuple(torch.rand(2, 3, dtype=torch.float64, generator=generator) + 0.1 for _ in range(n))


@pytest.fixture
def rules() -> Iterator[dict[Any, Any]]:
    """The rules that are registered, put back afterwards."""
    before = dict(autodiff._registered)
    yield autodiff._registered
    autodiff._registered.clear()
    autodiff._registered.update(before)


def times(factor: float) -> Any:
    """A rule for an operation of one argument that says its derivative is `factor`."""

    def rule(a: Any) -> Any:
        out = prims.sin(a)
        put_grad(a, get_grad(out) * factor)
        return out

    return rule


# -- which rule -------------------------------------------------------------------------------------------------------
def test_the_order_of_rules(rules: Any) -> None:
    """The executor that takes it, then what was registered, then its own, then what it decomposes into."""
    sym = Symbol("op", prims.sin, id="autodiff_test.op")
    (x,) = numbers()
    assert torch.allclose(gradients(sym, x)[0], x.cos())
    sym.vjp(lambda g, out, a: g * 3.0)
    assert torch.equal(gradients(sym, x)[0], torch.full_like(x, 3))
    sym.grad(times(4.0))
    assert torch.equal(gradients(sym, x)[0], torch.full_like(x, 4))
    register_grad(sym, times(5.0))
    assert torch.equal(gradients(sym, x)[0], torch.full_like(x, 5))
    executor = OperatorExecutor("autodiff_test")
    executor.register_implementation(sym, grad_transform=times(6.0))
    assert torch.equal(gradients(sym, x, executors=[executor])[0], torch.full_like(x, 6))
    register_grad("autodiff_test.op", times(7.0))
    assert torch.equal(gradients(sym, x)[0], torch.full_like(x, 7))


def test_an_executors_rule_goes_by_its_checker(rules: Any) -> None:
    """Who refuses the operation brings no rule for it; the next one is asked."""
    sym = Symbol("op", prims.sin, id="autodiff_test.op")
    no, yes = OperatorExecutor("autodiff_no"), OperatorExecutor("autodiff_yes")
    seen = []
    no.register_implementation(sym, checker=lambda a: seen.append(a) or "not today", grad_transform=times(2.0))
    yes.register_implementation(sym, checker=lambda a: a.ndim == 2, grad_transform=times(3.0))
    assert torch.equal(gradients(sym, *numbers(), executors=[no, yes])[0], torch.full((2, 3), 3.0, dtype=torch.float64))
    assert all(isinstance(p, TensorProxy) for p in seen)


def test_who_runs_the_operation_without_a_rule_hides_those_after_it() -> None:
    """A rule of an executor that does not get the operation would compute for nobody."""
    sym = Symbol("op", prims.sin, id="autodiff_test.op")
    first, second = OperatorExecutor("autodiff_first"), OperatorExecutor("autodiff_second")
    op = first.register_operator("first_sin", like=prims.sin, fn=torch.sin)
    first.register_implementation(sym, op)
    second.register_implementation(sym, grad_transform=times(3.0))
    (x,) = numbers()
    assert torch.allclose(gradients(sym, x, executors=[first, second])[0], x.cos())
    assert torch.equal(gradients(sym, x, executors=[second, first])[0], torch.full_like(x, 3))


def test_a_rule_registered_later_is_taken_at_the_next_call(rules: Any) -> None:
    """What was compiled before does not answer for it."""
    f = thunder.jit(torch.special.expit)
    x = numbers()[0].requires_grad_()
    for factor in (None, 2.0, 3.0):
        if factor is not None:

            def rule(input: Any, factor: float = factor) -> Any:
                out = ltorch.sigmoid(input)
                put_grad(input, get_grad(out) * factor)
                return out

            register_grad(ltorch.sigmoid, rule)
        (found,) = torch.autograd.grad(f(x).sum(), x)
        expected = torch.full_like(x, factor) if factor else x.sigmoid() * (1 - x.sigmoid())
        torch.testing.assert_close(found, expected.detach())


def test_no_rule_is_an_error_that_names_the_line() -> None:
    """And says what to do."""
    sym = Symbol("mystery", lambda a: TensorProxy(like=a), is_prim=True)

    def f(a: Any) -> Any:
        state.source = SourceLine("model.py", 3)
        try:
            return sym(a)
        finally:
            state.source = None

    with pytest.raises(ThunderError, match=r"mystery has no gradient rule.*register_grad.*\n.*at model.py:3"):
        differentiate(traced(f, F))
    # Nobody asks for its gradient: no error.
    differentiate(traced(lambda a, b: (f(a), prims.sin(b)), dtypes.int64, F))


def test_a_rule_must_return_what_the_operation_returns() -> None:
    """The error says which and how many."""
    sym = Symbol("pair", lambda a: (prims.sin(a), prims.cos(a)))
    sym.grad(prims.sin)
    with pytest.raises(ThunderError, match="rule of pair returned 1 values instead of 2"):
        differentiate(traced(lambda a: sym(a)[0], F))


# -- how gradients flow -----------------------------------------------------------------------------------------------
def test_gradients_put_several_times_add_up() -> None:
    """By one rule, for one input in several positions, and by several operations."""
    sym = Symbol("op", prims.mul)

    @sym.grad
    def _(a: Any, b: Any) -> Any:
        out = prims.mul(a, b)
        g = get_grad(out)
        put_grads((a, b, a), (g * 1.0, g * 10.0, g * 100.0))
        put_grad(b, g * 1000.0)
        return out

    x, y = numbers(2)
    assert [t.unique().item() for t in gradients(sym, x, y)] == [101, 1010]
    assert gradients(lambda a: sym(a, a), x)[0].unique().item() == 1111
    assert gradients(lambda a, b: prims.add(sym(a, b), sym(b, a)), x, y)[0].unique().item() == 1111


def test_several_outputs() -> None:
    """Used all, in part, or one twice; the gradient of one that nobody uses is zeros."""
    sym = Symbol("pair", lambda a: (prims.sin(a), prims.cos(a)))
    asked = []

    @sym.grad
    def _(a: Any) -> Any:
        s, c = prims.sin(a), prims.cos(a)
        gs, gc = get_grad(s), get_grad(c)
        asked.append((gs, gc))
        put_grad(a, prims.add(prims.mul(gs, 10.0), gc))
        return s, c

    (x,) = numbers()
    for use, expected in (
        (lambda s, c: (s, c), 11),
        (lambda s, c: s, 10),
        (lambda s, c: c, 1),
        (lambda s, c: [c, prims.add(c, c)], 3),
    ):
        assert gradients(lambda a, use=use: use(*sym(a)), x)[0].unique().item() == expected
    with pytest.raises(ThunderError, match="no output depends on"):
        gradients(lambda a: (sym(a), 1)[1:], x)
    assert asked


def test_an_output_that_is_returned_and_used() -> None:
    """Both its uses count."""
    (x,) = numbers()

    def f(a: Any) -> Any:
        b = prims.mul(a, 3.0)
        return b, prims.mul(b, 10.0), b

    # What is returned twice counts twice, as in autograd.grad of [b, b].
    assert gradients(f, x)[0].unique().item() == 36


def test_unused_and_integer_inputs() -> None:
    """The first have a gradient of zeros, the second none at all."""
    x, y = numbers(2)
    i = torch.arange(6).reshape(2, 3)
    found = gradients(lambda a, n, b: prims.sin(b), x, i, y)
    assert len(found) == 2
    assert torch.equal(found[0], torch.zeros_like(x))
    assert torch.allclose(found[1], y.cos())


def test_nothing_flows_through_integers_and_detached_values() -> None:
    """Nor through comparisons."""
    x, y = numbers(2)

    def f(a: Any, b: Any) -> Any:
        whole = prims.convert_element_type(prims.convert_element_type(prims.mul(a, 5.0), dtypes.int64), F)
        return prims.add(prims.mul(whole, b), prims.mul(prims.detach(prims.sin(a)), prims.where(prims.lt(a, b), b, a)))

    def eager(a: Any, b: Any) -> Any:
        return (a * 5).long().double() * b + a.sin().detach() * torch.where(a < b, b, a)

    leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    expected = torch.autograd.grad(eager(*leaves).sum(), leaves)
    torch.testing.assert_close(gradients(f, x, y), list(expected), rtol=1e-12, atol=1e-12)


def test_a_rule_that_hands_on_its_input() -> None:
    """The gradients of the one flow into the other, with those that it gets elsewhere."""
    identity = Symbol("identity", prims.clone)
    identity.grad(lambda a: a)
    (x,) = numbers()
    assert gradients(lambda a: prims.mul(identity(a), 3.0), x)[0].unique().item() == 3
    assert gradients(lambda a: prims.add(prims.mul(identity(a), 3.0), prims.mul(a, 10.0)), x)[0].unique().item() == 13
    assert gradients(lambda a: identity(prims.mul(identity(identity(a)), 2.0)), x)[0].unique().item() == 2
    assert gradients(lambda a: (identity(a), a), x)[0].unique().item() == 2


def test_one_value_for_two_outputs() -> None:
    """A rule may return the same tensor twice."""
    sym = Symbol("twice", lambda a: (prims.sin(a), prims.sin(a)))

    @sym.grad
    def _(a: Any) -> Any:
        out = prims.sin(a)
        put_grad(a, get_grad(out))
        return out, out

    (x,) = numbers()

    def f(a: Any) -> Any:
        s, t = sym(a)
        return prims.add(prims.mul(s, 2.0), prims.mul(t, 5.0))

    assert gradients(f, x)[0].unique().item() == 7


def test_effects_of_a_rule_happen_forward_and_once() -> None:
    """A dropout's draw is not drawn again for its gradient."""
    f = thunder.jit(lambda a: torch.nn.functional.dropout(a, 0.5) * 2)
    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    out = f(x)
    after = torch.rand(1)
    out.sum().backward()
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(x, 0.5) * 2
    assert torch.equal(out, expected)
    assert torch.equal(after, torch.rand(1))
    assert torch.equal(x.grad, expected.detach())
    programs = [str(t) for t in (thunder.last_traces(f)[-1], thunder.last_backward_traces(f)[-1])]
    assert "dropout" not in programs[1]
    assert "uniform" not in programs[1]


def test_put_grad_checks_what_it_is_given() -> None:
    """A gradient has the shape of what it is the gradient of; numbers have none."""
    with tracectx(Trace()) as trace:
        a, b = (TensorProxy(shape=s, device="cpu", dtype=F) for s in ((2,), (3,)))
        with pytest.raises(RuntimeError, match=r"put_grad: the gradient of t0 has the shape \(3,\), but t0 has \(2,\)"):
            put_grad(a, b)
        with pytest.raises(TypeError, match="expects a tensor as the gradient, not int"):
            put_grad(a, 1)
        with pytest.raises(TypeError, match="get_grad expects a tensor"):
            get_grad(1.0)
        with pytest.raises(ValueError, match="2 inputs and 1 gradients"):
            put_grads((a, b), (a,))
        put_grads((a, 2, b), (a, a, None))
    assert [op.args[0] for op in trace.bound_symbols] == [a]


# -- what is saved ----------------------------------------------------------------------------------------------------
def split(fn: Any, *kinds: Any) -> tuple[Trace, Trace, list[str]]:
    """Forward, backward, and the names of what is saved between them."""
    trace = traced(fn, *kinds)
    program = Split(trace, (), trace.args)
    backward = program.backward([True] * program.returned + [False] * (len(program.outputs) - program.returned))
    return verify(program.forward), verify(backward), [p.name for p in program.saved]


def test_only_what_backward_reads_is_saved() -> None:
    """A sum needs nothing, a product its factors, a sine its argument."""
    assert split(prims.add, F, F)[2] == []
    assert sorted(split(prims.mul, F, F)[2]) == ["x0", "x1"]
    assert split(lambda a: prims.sin(prims.add(a, a)), F)[2] == ["t0"]
    assert split(prims.exp, F)[2] == ["t0"]  # its result, not its argument


def test_a_composite_stays_whole_where_backward_is_cheap() -> None:
    """It recomputes what is elementwise from what is there; else the parts take its place."""
    cheap = Symbol("cheap", lambda a: prims.mul(prims.sin(a), prims.cos(a)))
    forward, backward, saved = split(cheap, F)
    assert [op.sym.name for op in forward.bound_symbols] == ["cheap", "python_return"]
    assert saved == ["x0"]
    assert {"sin", "cos"} <= {op.sym.name for op in backward.bound_symbols}

    dear = Symbol("dear", lambda a: prims.sin(ltorch.matmul(a, ltorch.transpose(a, 0, 1))))
    forward, _, _ = split(lambda a: dear(prims.mul(a, 1.5)), F)
    assert "dear" not in [op.sym.name for op in forward.bound_symbols]
    assert "sin" in [op.sym.name for op in forward.bound_symbols]


def test_an_operation_that_makes_the_result_and_what_backward_needs() -> None:
    """Runs once: an executor's, and one of the language whose parts are cheap."""
    executor = OperatorExecutor("autodiff_pair")
    run = executor.register_operator(
        "sincos", like=lambda a: (prims.sin(a), prims.cos(a)), fn=lambda a: (a.sin(), a.cos())
    )
    cheap = Symbol("cheap_pair", lambda a: (prims.sin(a), prims.cos(a)), tags=(OpTags.ELEMENTWISE_OP,))
    for pair in (run, cheap):

        def rule(a: Any, pair: Any = pair) -> Any:
            sine, cosine = pair(a)
            put_grad(a, prims.mul(get_grad(sine), cosine))
            return sine

        executor.register_implementation(
            prims.sin, execution_transform=lambda a, pair=pair: pair(a)[0], grad_transform=rule
        )
        f = thunder.jit(torch.sin, executors=[executor])
        x = numbers()[0].requires_grad_()
        (found,) = torch.autograd.grad(f(x).sum(), x)
        torch.testing.assert_close(found, x.cos().detach())
        torch.testing.assert_close(grad(f)(x.detach()), [x.cos().detach()])


def test_whole_or_in_parts_the_gradient_is_the_same() -> None:
    """Composites of composites, one of which draws."""

    def noise(a: Any) -> Any:
        return prims.mul(a, prims.uniform(a.shape, 0.0, 1.0, device=a.device, dtype=a.dtype))

    inner = Symbol("inner", lambda a: prims.exp(prims.mul(a, 0.5)))
    drawing = Symbol("drawing", lambda a: noise(prims.sin(inner(a))))
    outer = Symbol("outer", lambda a: prims.add(drawing(inner(a)), inner(a)))
    (x,) = numbers()

    def eager(a: Any) -> Any:
        i = (a * 0.5).exp()
        return (i * 0.5).exp().sin() * torch.rand(2, 3, dtype=torch.float64) + i

    torch.manual_seed(5)
    found = gradients(outer, x)
    leaf = x.clone().requires_grad_()
    torch.manual_seed(5)
    torch.testing.assert_close(found, list(torch.autograd.grad(eager(leaf).sum(), leaf)), rtol=1e-12, atol=1e-12)


def test_a_saved_input_that_is_written_later() -> None:
    """Backward sees it as it was when it was used (eager refuses), and what shares its memory too."""

    def f(x: Any, w: Any) -> Any:
        y = (x * w).sum() + (x[0] * w[0]).sin().sum() + (x.view(-1) * w.view(-1)).sum()
        x.mul_(100)
        return y

    def pure(x: Any, w: Any) -> Any:
        return (x * w).sum() + (x[0] * w[0]).sin().sum() + (x.view(-1) * w.view(-1)).sum()

    (v, w) = (t.requires_grad_(i == 1) for i, t in enumerate(numbers(2)))
    (expected,) = torch.autograd.grad(pure(v, w), w)
    for _ in range(2):
        x = v.clone()
        jf = thunder.jit(f)
        (found,) = torch.autograd.grad(jf(x, w), w)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x, v * 100)


def test_grad_of_a_function_that_writes_to_an_input_that_it_read() -> None:
    """The write comes after the gradients."""

    def f(x: Any, w: Any) -> Any:
        y = (x * w).sum()
        x.zero_()
        return y

    v, w = numbers(2)
    x = v.clone()
    torch.testing.assert_close(grad(f)(x, w), [w, v])
    assert torch.equal(x, torch.zeros_like(v))


# -- what is refused --------------------------------------------------------------------------------------------------
def test_writing_a_differentiated_value_into_an_input() -> None:
    """No gradient could flow back through it in a trace, so the call runs eagerly."""

    def f(buffer: Any, w: Any) -> Any:
        buffer.copy_(w * 2)
        return buffer.sum()

    w = numbers()[0].requires_grad_()
    buffer = torch.zeros_like(w).detach()
    for write in (f, lambda b, w: b.add_(w), lambda b, w: b[0].mul_(w[0]).sum() * w.sum()):
        found = [buffer.clone() for _ in range(2)]
        with pytest.warns(thunder.FallbackWarning, match="writes a value that requires grad into its input"):
            for g, b in zip((write, thunder.jit(write)), found):
                (g(b, w).sum() + b.sum()).backward()
                b.gradient, w.grad = w.grad, None
        torch.testing.assert_close(found[0].gradient, found[1].gradient)
        assert torch.equal(*found)
    with torch.no_grad():
        assert torch.equal(thunder.jit(f)(buffer, w), 2 * w.sum())


def test_nothing_to_differentiate() -> None:
    """The error says so."""
    with pytest.raises(ThunderError, match="no output depends on a floating point input"):
        gradients(lambda a: prims.lt(a, a), numbers()[0])
    with pytest.raises(ThunderError, match="no output depends on a floating point input"):
        grad(lambda i: i + 1)(torch.arange(3))


# -- against torch ----------------------------------------------------------------------------------------------------
UNARY = ["sin", "tanh", "exp", "neg", "sigmoid", "abs", "square"]
BINARY = ["add", "sub", "mul", "div", "maximum", "atan2"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(UNARY), st.integers(0, 99), st.just(0)),
        st.tuples(st.sampled_from(BINARY), st.integers(0, 99), st.integers(0, 99)),
        st.tuples(st.sampled_from(["sum", "row", "detach", "where", "matmul"]), st.integers(0, 99), st.integers(0, 99)),
    ),
    min_size=1,
    max_size=8,
)


def run(steps: Any, outputs: Any, a: Any, b: Any) -> list[Any]:
    """A program of these steps."""
    values = [a, b]
    for name, i, j in steps:
        x, y = values[i % len(values)], values[j % len(values)]
        if name in UNARY:
            out = getattr(torch, name)(x * 0.3)
        elif name == "div":
            out = x / (y.abs() + 1)
        elif name in BINARY:
            out = getattr(torch, name)(x, y)
        elif name == "sum":
            out = x.sum(0, keepdim=True).expand(2, 3) * 0.2
        elif name == "row":
            out = torch.cat([x[1:], y[:1]])
        elif name == "where":
            out = torch.where(x > y, x, y * 2)
        elif name == "matmul":
            out = x @ y.mT @ x * 0.1
        else:
            out = x.detach() + y
        values.append(out)
    return [values[i % len(values)] * 1.0 for i in outputs]


@given(STEPS, st.lists(st.integers(0, 99), min_size=1, max_size=3))
def test_random_programs_have_torchs_gradients(steps: Any, outputs: Any) -> None:
    """By `backward` of a jitted function with random cotangents, and by `grad` with ones."""
    leaves = [t.requires_grad_() for t in numbers(2)]
    eager = run(steps, outputs, *leaves)
    jitted = thunder.jit(lambda a, b: run(steps, outputs, a, b))
    found = jitted(*leaves)
    torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-12)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in eager]
    used = [i for i, t in enumerate(eager) if t.requires_grad]
    if not used:
        return
    cotangents = [torch.full_like(eager[i], 0.5 + i) for i in used]
    expected = torch.autograd.grad([eager[i] for i in used], leaves, cotangents, allow_unused=True)
    got = torch.autograd.grad([found[i] for i in used], leaves, cotangents, allow_unused=True)
    for g, e in zip(got, expected):
        assert (g is None) == (e is None)
        if e is not None:
            torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)
    with_ones = torch.autograd.grad(
        sum(t.sum() for t in run(steps, outputs, *leaves) if t.requires_grad), leaves, allow_unused=True
    )
    zeros = [torch.zeros_like(leaves[0]) if g is None else g for g in with_ones]
    detached = [t.detach() for t in leaves]
    torch.testing.assert_close(grad(lambda a, b: run(steps, outputs, a, b))(*detached), zeros, rtol=1e-10, atol=1e-12)


def test_nothing_flows_through_what_is_detached() -> None:
    """Though torch lets no gradient flow where `grad` is applied: what it is applied to requires none."""
    x = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(grad(lambda a: (a.detach() * a).sum())(x)[0], x)
    with torch.no_grad():
        torch.testing.assert_close(grad(lambda a: (a.detach() * a).sum())(x)[0], x)


def test_tags_of_the_gradient_operations() -> None:
    """They never reach an executor."""
    for sym in (prims.get_grad, prims.put_grad):
        assert OpTags.GRAD_OP in sym.tags
    out = differentiate(traced(prims.sin, F))
    assert not [op for op in out.bound_symbols if OpTags.GRAD_OP in op.sym.tags]


# -- twice ------------------------------------------------------------------------------------------------------------
def test_what_is_computed_again_twice() -> None:
    """Backward computes parts of an operation again; differentiated again, it does so under other names."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.true_divide(a, b).sin().sum()

    a, b = torch.ones(4, 1, requires_grad=True), torch.full((4, 3), 2.0, requires_grad=True)
    first = torch.autograd.grad(f(a, b), (a, b), create_graph=True)
    expected = torch.autograd.grad(sum(g.sum() for g in first), (a, b))
    torch.testing.assert_close(tuple(grad(grad(f))(a.detach(), b.detach())), expected)
