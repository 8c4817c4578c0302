# SPDX-License-Identifier: Apache-2.0
"""Jitted functions among torch's autograd: `backward()`, accumulation, graphs around them, modes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.transforms import grad


def close(found: Any, expected: Any) -> None:
    """Equal in float64, but for the order of sums."""
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Float64 leaves that require grad."""
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]


def compare(fn: Any, *shapes: tuple[int, ...]) -> Any:
    """Calls and differentiates `fn` in eager and jitted."""
    grads = []
    jitted = thunder.jit(fn)
    for f in (fn, jitted):
        inputs = leaves(*shapes)
        out = f(*inputs)
        out.sum().backward()
        grads.append([out.detach(), *[p.grad for p in inputs]])
    close(grads[1], grads[0])
    return jitted


FUNCTIONS = {
    "arithmetic": (lambda a, b: (a * b - a / (b + 1)) ** 2, (3, 4), (4,)),
    "matmul": (lambda a, b: a @ b + (a @ b).mean(), (3, 4), (4, 5)),
    "softmax": (lambda a: (F.softmax(a, -1) * F.log_softmax(a, 0)).sum(0), (3, 4)),
    "norms": (lambda a, w: F.layer_norm(a, (4,), w) + F.rms_norm(a, (4,), w), (3, 4), (4,)),
    "indexing": (lambda a: a[1:, ::2] * a[[0, 1]][:, :2] + a[:2, -1:], (3, 4)),
    "concatenation": (lambda a, b: torch.cat([a, b.T, torch.stack([a[0], b[:, 0]])]), (3, 4), (4, 2)),
    "activations": (lambda a: F.gelu(a) + F.silu(a) * F.softplus(a) + a.relu() + F.elu(-a), (3, 4)),
    "reductions": (lambda a: a.var() + a.std(0).sum() + a.logsumexp(1).sum() + a.amax() + a.norm(), (3, 4)),
    "loss": (lambda a: F.cross_entropy(a, torch.tensor([0, 3, 1])) + F.mse_loss(a, a.detach() * 2), (3, 4)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (2, 3, 4), (2, 3, 4), (2, 3, 4),
    ),
    "convolution": (lambda x, w, b: F.max_pool2d(F.conv2d(x, w, b, padding=1), 2), (1, 2, 4, 4), (3, 2, 3, 3), (3,)),
    "embedding": (lambda w: F.embedding(torch.tensor([[0, 2], [2, 1]]), w).cumsum(1), (3, 4)),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ki", a, b).triu(), (3, 4), (4, 5)),
    "where": (lambda a, b: torch.where(a > b, a, b * 2).clamp(0.2, 0.9) + torch.minimum(a, b), (3, 4), (3, 4)),
    "sorting": (lambda a: a.sort(1).values * a.topk(2, 1).values.sum() + a.cummax(0).values, (3, 4)),
    "gather": (lambda a: a.gather(1, torch.tensor([[0, 0], [1, 3], [2, 2]]))[torch.tensor([0, 0])], (3, 4)),
    "views": (lambda a: a.view(4, 3).t().unfold(0, 2, 1).flatten(1).chunk(2, 1)[1] * a.diagonal()[0], (3, 4)),
    "in place": (lambda a, b: (a * 1).add_(b).mul_(a)[0].sin_(), (3, 4), (4,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_torchs(name: str) -> None:
    """In float64."""
    fn, *shapes = FUNCTIONS[name]
    compare(fn, *shapes)


def test_where_gradients_do_not_flow() -> None:
    """Detached values, integers and results that nobody differentiates require no grad."""

    def f(a: Any, b: Any) -> Any:
        return a * 2, a.detach() * 2, a.argmax(), a > 0, b * 2, (a * b).long()

    a, b = leaves((3,), (3,))
    b.requires_grad_(False)
    found, expected = thunder.jit(f)(a, b), f(a, b)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
    assert [t.is_leaf for t in found] == [t.is_leaf for t in expected]


def test_accumulation() -> None:
    """Gradients of several calls add up in `.grad`, with those of eager code."""
    f = thunder.jit(lambda a, b: (a * b).sum())
    a, b = leaves((3,), (3,))
    for k in range(3):
        f(a, b * k).backward()
    (a * 10).sum().backward()
    close(a.grad, b.detach() * 3 + 10)
    close(b.grad, a.detach() * 3)
    assert (thunder.cache_misses(f), thunder.cache_hits(f)) == (1, 2) or thunder.cache_misses(f) == 1


def test_in_the_middle_of_a_graph() -> None:
    """What comes before and after it is differentiated by torch."""
    f = thunder.jit(lambda x, w: (x * w).tanh())
    results = []
    for fn in (f, lambda x, w: (x * w).tanh()):
        a, w = leaves((3,), (3,))
        y = fn(fn(a.exp(), w).cos(), w * 2)
        (y * y).sum().backward()
        results.append([a.grad, w.grad])
    close(*results)


def test_several_results_and_backward_of_some() -> None:
    """Each by itself, all at once, and twice with `retain_graph`."""

    def f(a: Any, b: Any) -> Any:
        return (a * b).sum(), (a + b).prod(), {"c": a.sin()}

    jitted = thunder.jit(f)
    for pick in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        results = []
        for fn in (f, jitted):
            a, b = leaves((3,), (3,))
            outs = fn(a, b)
            flat = [outs[0], outs[1], outs[2]["c"].sum()]
            total = sum(flat[i] * (i + 1) for i in pick)
            total.backward(retain_graph=True)
            total.backward()
            zeros = torch.zeros(3, dtype=torch.float64)
            results.append([zeros if t.grad is None else t.grad for t in (a, b)])
        close(*results)


def test_autograd_grad() -> None:
    """With cotangents, for intermediates, for inputs that are not used."""
    f = thunder.jit(lambda a, b: a * a)
    a, b = leaves((3,), (3,))
    h = a * 1
    g = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    found = torch.autograd.grad(f(h, b), [h, a, b], g, allow_unused=True)
    close(found[:2], (2 * a.detach() * g,) * 2)
    assert found[2] is None
    with pytest.raises(RuntimeError, match=r"appears to not have been used|unused"):
        torch.autograd.grad(f(a, b).sum(), b)


def test_the_same_tensor_twice() -> None:
    """As two arguments, or in two places of one: its gradient is the sum."""
    f = thunder.jit(lambda a, b, c: (a * b + c[0]).sum())
    results = []
    for fn in (f, lambda a, b, c: (a * b + c[0]).sum()):
        (a,) = leaves((3,))
        fn(a, a, [a]).backward()
        results.append(a.grad)
    close(*results)


def test_results_that_are_inputs_or_views_of_them() -> None:
    """Gradients flow through as in eager."""

    def f(a: Any, b: Any) -> Any:
        return a, b[0], b.t(), a + 0

    results = []
    for fn in (f, thunder.jit(f)):
        a, b = leaves((3,), (2, 3))
        outs = fn(a, b)
        sum((t * (i + 1)).sum() for i, t in enumerate(outs)).backward()
        results.append([a.grad, b.grad])
    close(*results)


def test_modes() -> None:
    """Outside and inside, each with a program of its own; what runs under no_grad requires none."""

    def f(a: Any, inside: Any) -> Any:
        b = a * 2
        if inside == "no_grad":
            with torch.no_grad():
                c = b * a
        elif inside == "enable_grad":
            with torch.enable_grad():
                c = b * a
        else:
            c = b * a
        return b, c, torch.is_grad_enabled()

    jitted = thunder.jit(f)
    for outside in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        for inside in ("", "no_grad", "enable_grad"):
            for _ in range(2):
                (a,) = leaves((3,))
                with outside():
                    found, expected = jitted(a, inside), f(a, inside)
                assert [t.requires_grad for t in found[:2]] == [t.requires_grad for t in expected[:2]], (
                    outside,
                    inside,
                )
                assert found[2] is expected[2]
                assert found[0].is_inference() is expected[0].is_inference()
                if expected[1].requires_grad:
                    g, e = (torch.autograd.grad(t.sum(), a)[0] for t in (found[1], expected[1]))
                    close(g, e)
    assert torch.is_grad_enabled()
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (9, 9)


def test_a_step_with_an_optimizer() -> None:
    """Several steps of several optimizers leave the same weights."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4)
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW(p, lr=0.05),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ):
        eager, ours = copy.deepcopy(start), copy.deepcopy(start)
        jitted = thunder.jit(ours)
        for m in (eager, jitted):
            optimizer = make(m.parameters())
            for _ in range(4):
                optimizer.zero_grad()
                F.mse_loss(m(x), x[:, :1] ** 2).backward()
                optimizer.step()
        close(list(ours.parameters()), list(eager.parameters()))


def test_hooks_on_parameters_and_results() -> None:
    """Torch's own, outside the program, run in its backward."""
    f = thunder.jit(lambda a: a * 3)
    (a,) = leaves((3,))
    seen = []
    a.register_hook(lambda g: seen.append(g.clone()) or g * 2)
    y = f(a)
    y.register_hook(lambda g: g * 10)
    y.retain_grad()
    y.sum().backward()
    assert seen[0].tolist() == [30, 30, 30]
    assert a.grad.tolist() == [60, 60, 60]
    assert y.grad.tolist() == [10, 10, 10]


def test_hooks_on_what_no_gradient_flows_to() -> None:
    """Are not called, as in eager: such an input has no edge in torch's graph."""
    functions = (
        lambda a, b, c: a * b, lambda a, b, c: (a.sin() + c.detach(), b.exp() * (c > 0)),
        lambda a, b, c: c @ c.sum() if c.ndim > 1 else (b.detach() * c).cos(),
    )  # fmt: skip
    for fn in functions:
        seen: list[Any] = []
        for run in (fn, thunder.jit(fn)):
            inputs = [torch.arange(1.0, 4, requires_grad=True) for _ in range(3)]
            calls: list[Any] = []
            for i, x in enumerate(inputs):
                x.register_hook(lambda g, i=i, calls=calls: calls.append((i, g.clone())))
            out = run(*inputs)
            total = sum(x.square().sum() for x in (out if isinstance(out, tuple) else (out,)))
            again = torch.autograd.grad(total, inputs, create_graph=True, allow_unused=True)
            total.backward()
            calls.sort(key=lambda call: call[0])
            seen.append(([i for i, _ in calls], [g for _, g in calls], [x.grad for x in inputs], again))
        assert seen[0][0] == seen[1][0]
        torch.testing.assert_close(seen[1][1], seen[0][1])
        for found, expected in zip((*seen[1][2], *seen[1][3]), (*seen[0][2], *seen[0][3])):
            assert (found is None) == (expected is None)
            assert found is None or torch.equal(found, expected)


def test_nothing_is_detached_where_no_gradients_flow() -> None:
    """Parameters require grad, and the program runs without: it is the same as of constants."""
    w = torch.randn(3, 3, requires_grad=True)
    f = thunder.jit(lambda x: ((x @ w).tanh() @ w, w.detach(), (w * 2).detach()))
    x = torch.randn(2, 3)
    with torch.no_grad():
        out, same, twice = f(x)
    torch.testing.assert_close((out, same, twice), ((x @ w).tanh() @ w, w, w * 2))
    assert same is not w and same.data_ptr() == w.data_ptr()
    assert not any(t.requires_grad for t in (out, same, twice))
    assert str(thunder.last_traces(f)[-1].python(depth=0)).count("detach(") == 1
    f(x)[0].sum().backward()
    torch.testing.assert_close(w.grad, torch.autograd.grad(((x @ w).tanh() @ w).sum(), w)[0])


def test_derivatives_of_any_order() -> None:
    """By `create_graph`, each of which is differentiated in its turn."""
    f = thunder.jit(lambda a: (a**4).sum())
    (a,) = leaves((3,))
    (first,) = torch.autograd.grad(f(a), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a, create_graph=True)
    (third,) = torch.autograd.grad((second * a).sum(), a)
    x = a.detach()
    close([first.detach(), second.detach(), third], [4 * x**3, 12 * x**2, 24 * x * x + 12 * x**2])


def test_backward_frees_what_was_saved() -> None:
    """A second backward without retain_graph is torch's error."""
    f = thunder.jit(lambda a: (a * a).sum())
    (a,) = leaves((3,))
    y = f(a)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_saved_tensor_that_the_caller_writes_to() -> None:
    """Is torch's error too, as in eager."""
    f = thunder.jit(lambda a, b: (a * b).sum())
    (a,) = leaves((3,))
    b = torch.ones(3, dtype=torch.float64)
    y = f(a, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_custom_functions() -> None:
    """A `torch.autograd.Function` keeps its own backward."""

    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, limit: float) -> Any:
            ctx.limit = limit
            ctx.save_for_backward(x)
            return x.clamp(-limit, limit)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 7 * x.sign() * ctx.limit, None

    compare(lambda a: Clip.apply(a - 0.5, 0.3) * a, (3, 4))


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_detached_in_place(needed: tuple[bool, bool]) -> None:
    """No gradient flows through it, and it does not require one."""

    def f(x: Any, y: Any) -> Any:
        z = x * y
        z.detach_()
        return z * x

    found = []
    for g in (thunder.jit(f), f):
        x, y = (p.detach().requires_grad_(need) for p, need in zip(leaves((3,), (3,)), needed))
        out = g(x, y)
        if out.requires_grad:
            out.sum().backward()
        found.append([out.detach(), out.requires_grad, x.grad, y.grad])
    assert found[0][1] == found[1][1]
    close(found[0][0::2], found[1][0::2])
    assert found[0][3] is None and found[1][3] is None


class NotItsDerivative(torch.autograd.Function):
    """Whose backward is not what its operations' own rules would give."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        """What backward reads: inputs and the output."""
        out = (x * 3).round() * y
        ctx.save_for_backward(x, y, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        """Straight through."""
        x, y, out = ctx.saved_tensors
        return g * y * 2, g * x + g * out


class KeepsWhatItMade(torch.autograd.Function):
    """Whose backward reads a value that is neither input nor output: a constant, where it is differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        """A product, of which some is passed on."""
        mask = (x < y).double() * x
        ctx.save_for_backward(y, mask)
        return (x * y).sign() * mask

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        """Not the derivative either."""
        y, mask = ctx.saved_tensors
        return g * mask * y, g * mask


@pytest.mark.parametrize("remat", ["auto", "none", "all"])
@pytest.mark.parametrize("function", [NotItsDerivative, KeepsWhatItMade])
def test_custom_functions_are_differentiated_twice(function: Any, remat: str) -> None:
    """By their own backward, also where their forward is computed again or more is differentiated than they gave."""

    def again(x: Any, y: Any) -> Any:
        return checkpoint(lambda a, b: function.apply(a, b).square() * a, x, y, use_reentrant=False)

    programs = [
        lambda x, y: function.apply(x, y) ** 3 * x,
        lambda x, y: function.apply(F.softmax(x, 0), x).logsumexp(0) * y,
        lambda x, y: F.cross_entropy(function.apply(x, y).expand(2, 4), torch.tensor([1, 3])) * x,
        lambda x, y: F.group_norm(function.apply(x, y).view(1, 4) + x, 2).square(),
        again,
    ]
    for f in programs:
        found = []
        for g in (thunder.jit(f, remat=remat), f):
            inputs = leaves((4,), (4,))
            once = torch.autograd.grad(g(*inputs).sum(), inputs, create_graph=True)
            twice = torch.autograd.grad(sum(d.square().sum() for d in once), inputs)
            found.append([*once, *twice])
        close(found[0], found[1])


def test_programs_that_are_transformed_have_gradients() -> None:
    """A pass of the user's runs before the program is differentiated."""
    seen = []
    (a,) = leaves((3,))
    f = thunder.jit(lambda a: (a * a).sum(), transforms=[lambda trace, executors: seen.append(trace.name) or trace])
    f(a).backward()
    close(a.grad, 2 * a.detach())
    assert seen == ["computation"]


# -- grad -------------------------------------------------------------------------------------------------------------
def test_grad() -> None:
    """A list with a gradient for each floating point tensor, requires grad or not, however deep."""

    def f(a: Any, rest: Any, *, k: Any) -> Any:
        return (a * rest["w"] * k).sum(), rest["i"] + 1

    a, w = (t.detach() for t in leaves((3,), (3,)))
    g = grad(f)
    for scale in (1.0, 2.0):
        found = g(a * scale, {"w": w, "i": torch.arange(3)}, k=torch.tensor(2.0, dtype=torch.float64))
        close(found, [2 * w, 2 * a * scale, (a * scale * w).sum()])
    assert (thunder.cache_misses(g), thunder.cache_hits(g)) == (1, 1)
    assert "get_grad" not in str(thunder.last_traces(g)[-1])


def test_grad_of_what_is_jitted_and_of_modules() -> None:
    """With the executors that it was jitted with."""
    f = thunder.jit(lambda a: a.sin())
    (a,) = (t.detach() for t in leaves((3,)))
    close(grad(f)(a), [a.cos()])
    assert (thunder.cache_misses(f), thunder.cache_hits(f)) == (0, 0)
    linear = thunder.jit(nn.Linear(3, 2).double())
    x = torch.ones(1, 3, dtype=torch.float64)
    found = grad(linear)(x)
    close(found[0], linear.weight.detach().sum(0, keepdim=True))


def test_grad_of_one_tensor_given_twice() -> None:
    """Each argument is a variable of its own."""
    (a,) = (t.detach() for t in leaves((3,)))
    close(grad(lambda x, y: x * x * y)(a, a), [2 * a * a, a * a])


# -- random networks --------------------------------------------------------------------------------------------------
LAYERS = st.sampled_from(
    ["linear", "norm", "gelu", "tanh", "residual", "dropout", "batch_norm", "softmax", "gate", "conv", "detached"]
)


class Network(nn.Module):
    """Layers of some kinds, one after the other."""

    def __init__(self, kinds: list[str]):
        super().__init__()
        self.kinds = kinds
        self.layers = nn.ModuleList()
        for kind in kinds:
            self.layers.append(
                {
                    "linear": lambda: nn.Linear(6, 6), "norm": lambda: nn.LayerNorm(6), "gelu": nn.GELU,
                    "tanh": nn.Tanh, "dropout": lambda: nn.Dropout(0.3), "batch_norm": lambda: nn.BatchNorm1d(6),
                    "softmax": lambda: nn.Softmax(-1), "gate": lambda: nn.Linear(6, 6),
                    "residual": lambda: nn.Linear(6, 6), "conv": lambda: nn.Conv1d(1, 1, 3, padding=1),
                    "detached": nn.Identity,
                }[kind]()
            )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Through all of them."""
        for kind, layer in zip(self.kinds, self.layers):
            if kind == "residual":
                x = x + layer(x).relu()
            elif kind == "gate":
                x = x * torch.sigmoid(layer(x))
            elif kind == "conv":
                x = layer(x[:, None])[:, 0]
            elif kind == "detached":
                x = x + x.detach()
            else:
                x = layer(x)
        return x


@settings(max_examples=25)
@given(st.lists(LAYERS, min_size=1, max_size=6), st.booleans())
def test_random_networks_train_as_in_eager(kinds: list[str], training: bool) -> None:
    """Losses and gradients of two steps, with dropout's draws."""
    torch.manual_seed(0)
    eager = Network(kinds).double().train(training)
    ours = copy.deepcopy(eager)
    jitted = thunder.jit(ours)
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(4, 6)
    for step in range(2):
        losses = []
        for m in (eager, jitted):
            torch.manual_seed(step)
            inputs = x.clone().requires_grad_()
            loss = (m(inputs) ** 2).mean()
            loss.backward()
            losses.append([loss.detach(), inputs.grad, *[p.grad for p in m.parameters()]])
        for found, expected in zip(losses[1], losses[0]):
            assert (found is None) == (expected is None)
            if expected is not None:
                close(found, expected)
    close(list(ours.buffers()), list(eager.buffers()))
