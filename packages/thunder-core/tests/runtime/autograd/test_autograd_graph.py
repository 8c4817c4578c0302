# SPDX-License-Identifier: Apache-2.0
"""Jitted functions as nodes of torch's graph: derivatives of every order, hooks, what is freed, what costs nothing."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

import thunder
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor


def close(found: Any, expected: Any) -> None:
    """Equal in float64, but for the order of sums."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Leaves that require grad."""
    generator = torch.Generator().manual_seed(3)
    return [(torch.rand(s, dtype=dtype, generator=generator) + 0.1).requires_grad_() for s in shapes]


def operations(fn: Any) -> list[str]:
    """What the backward program that was compiled last runs."""
    return [op.sym.name for op in thunder.last_backward_traces(fn)[-1].bound_symbols]


# -- any order --------------------------------------------------------------------------------------------------------
FUNCTIONS = {
    "products": (lambda a, b: (a @ b).tanh() * a.sum(), (3, 4), (4, 4)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b).sin(), (3, 4), (4,), (4,)),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w).sin(), (3, 4), (4,)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (2, 3, 4), (2, 3, 4), (2, 3, 4),
    ),
    "batch norm": (lambda x, w: F.batch_norm(x, None, None, w, None, True).sin(), (3, 4), (4,)),
    "softmax": (lambda x: x.softmax(-1) * x.log_softmax(0), (3, 4)),
    "convolution": (lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1), 2), (1, 2, 4, 4), (3, 2, 3, 3)),
    "views and writes": (lambda a, b: (a * 1).add_(b).view(4, 3)[1:].t().mul_(2).sin_() * a.T[0, 0], (3, 4), (4,)),
    "several results": (lambda a, b: (a * b, (a / b).sum(), [b.exp()]), (3,), (3,)),
    "cross-entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1]), label_smoothing=0.1), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck_and_gradgradcheck(name: str) -> None:
    """Torch's own, by differences."""
    fn, *shapes = FUNCTIONS[name]
    inputs = leaves(*shapes)
    jitted = thunder.jit(fn)

    def flat(*args: Any) -> Any:
        out = jitted(*args)
        return tuple(t for x in out for t in (x if isinstance(x, list) else [x])) if isinstance(out, tuple) else out

    assert torch.autograd.gradcheck(flat, inputs)
    assert torch.autograd.gradgradcheck(flat, inputs)
    assert thunder.cache_misses(jitted) == 1


def test_orders_one_to_four() -> None:
    """With a cotangent that is differentiated too, and through eager code in between."""

    def f(x: Any, w: Any) -> Any:
        return (x.exp() * w).sin()

    results = []
    for g in (f, thunder.jit(f)):
        x, w, c = leaves((3,), (3,), (3,))
        found = [g(x * 1, w)]
        for _ in range(3):
            grads = torch.autograd.grad(found[-1], (x, w), c.expand_as(found[-1]), create_graph=True)
            found.append(sum(grads).cos())
        found += torch.autograd.grad(found[-1].sum(), (x, w, c))
        results.append([t.detach() for t in found])
    close(*results)


def test_complex_numbers() -> None:
    """First and second order."""

    def f(z: Any, w: Any) -> Any:
        return (z * w.conj()).exp().abs() + torch.view_as_real(z * z).sum()

    results = []
    for g in (f, thunder.jit(f)):
        leaf = leaves((3,), (3,), dtype=torch.complex128)
        first = torch.autograd.grad(g(*leaf).sum(), leaf, create_graph=True)
        second = torch.autograd.grad(sum(t.abs().sum() for t in first), leaf)
        results.append([t.detach() for t in (*first, *second)])
    close(*results)


def test_a_gradient_penalty() -> None:
    """The gradient of the norm of a gradient, with respect to parameters and data, over steps of an optimizer."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1)).double()
    (x,) = leaves((6, 4))
    results = []
    for wrap in (lambda m: m, thunder.jit):
        model = wrap(copy.deepcopy(start))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            out = model(x)
            (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (((g.norm(dim=1) - 1) ** 2).mean() + out.mean()).backward(inputs=list(model.parameters()))
            optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    close(*results)


def test_create_graph_of_random_operations() -> None:
    """What was drawn stays drawn."""
    f = thunder.jit(lambda a: F.dropout(a.exp(), 0.5) * a)
    results = []
    for g in (f, lambda a: F.dropout(a.exp(), 0.5) * a):
        (a,) = leaves((50,))
        torch.manual_seed(1)
        (first,) = torch.autograd.grad(g(a).sum(), a, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), a)
        results.append([first.detach(), second])
    close(*results)


def test_what_has_no_second_derivative_says_so() -> None:
    """When it is asked for, not before: the first one is there."""
    executor = OperatorExecutor("once")
    backward = executor.register_operator("cube_backward", meta=lambda g, a: TensorProxy(like=a), fn=lambda g, a: g * 3)
    cube = executor.register_operator("cube", like=lambda a: a * a * a, fn=lambda a: a**3)

    def rule(a: Any) -> Any:
        out = cube(a)
        thunder.core.transforms.put_grad(a, backward(thunder.core.transforms.get_grad(out), a))
        return out

    executor.register_implementation(cube, grad_transform=rule)
    assert isinstance(cube, Symbol)
    f = thunder.jit(lambda a: cube(a).sum(), executors=[executor])
    (a,) = leaves((3,))
    (g,) = torch.autograd.grad(f(a), a, create_graph=True)
    assert g.tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="cube_backward has no gradient rule"):
        g.sum().backward()
    (g,) = torch.autograd.grad(f(a), a, create_graph=True)
    with pytest.raises(RuntimeError, match="cube_backward has no gradient rule"):
        torch.autograd.grad(g.sum(), a, allow_unused=True)


def test_results_are_written_to() -> None:
    """As in eager, views of what is inside too; where that is saved or shared it is torch's error."""

    def written(f: Any) -> Any:
        (x,) = leaves((2, 3))
        y = f(x)
        y.add_(1).mul_(x.flatten()[0])
        y[0] = 0
        (y * y).sum().backward()
        return x.grad

    fine = [lambda x: (x * 2).view(-1), lambda x: (x.sin() * 2).t(), lambda x: (x + 1)[None], lambda x: x * 3]
    for f in fine:
        close(written(thunder.jit(f)), written(f))
    for f in (lambda x: x.exp(), lambda x: x.exp().view(-1)):
        for g in (f, thunder.jit(f)):
            with pytest.raises(RuntimeError, match="inplace"):
                written(g)


# -- what costs nothing -----------------------------------------------------------------------------------------------
def test_results_without_a_gradient_cost_nothing() -> None:
    """Logits beside a loss: no zeros are made for them, whichever of the two is differentiated."""

    def f(x: Any, w: Any, labels: Any) -> Any:
        logits = x @ w
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    x, w = leaves((6, 4), (4, 50))
    labels = torch.arange(6)
    jitted = thunder.jit(f)
    jitted(x, w, labels)["loss"].backward()
    assert not {"full", "zeros", "zeros_like", "add"} & set(operations(jitted))
    close(x.grad, torch.autograd.grad(f(x, w, labels)["loss"], x)[0])
    x.grad = None
    jitted(x, w, labels)["logits"].sum().backward()
    assert "log_softmax_backward" not in operations(jitted)
    close(x.grad, torch.autograd.grad(f(x, w, labels)["logits"].sum(), x)[0])
    both = jitted(x, w, labels)
    found = torch.autograd.grad(both["loss"] + both["logits"].sum(), (x, w))
    theirs = f(x, w, labels)
    close(found, torch.autograd.grad(theirs["loss"] + theirs["logits"].sum(), (x, w)))
    assert thunder.cache_misses(jitted) == 1


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    """`torch.autograd.grad` for one of several inputs; `backward` for all leaves, or some."""
    x, w = leaves((100, 100), (100, 100))
    f = thunder.jit(lambda x, w: (x @ w).sin())
    for wanted, products in ((x, 1), (w, 1), ((x, w), 2)):
        found = torch.autograd.grad(f(x, w).sum(), wanted)
        assert operations(f).count("matmul") == products
        close(found, torch.autograd.grad((x @ w).sin().sum(), wanted))
    f(x, w).sum().backward(inputs=[w])
    assert x.grad is None
    f(x * 1, w).sum().backward()
    expected = torch.autograd.grad((x @ w).sin().sum(), (x, w))
    close([x.grad, w.grad], [expected[0], 2 * expected[1]])


def test_torch_is_not_asked_about_every_leaf_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch says by raising that it was asked for a leaf's gradient: in the next pass it does so for one."""
    from thunder.runtime.autograd import node

    raised: list[None] = []
    executes = node.executes

    def counted(node: Any) -> bool:
        try:
            return executes(node)
        except RuntimeError:
            raised.append(None)
            raise

    monkeypatch.setattr(node, "executes", counted)
    x, w, v = leaves((100, 100), (100, 100), (100, 100))

    def f(x: Any, w: Any, v: Any) -> Any:
        return ((x @ w) * v).sin()

    jitted = thunder.jit(f)

    def check(*wanted: torch.Tensor) -> tuple[int, int]:
        """How many matrix products backward had, and how often torch raised."""
        raised.clear()
        found = torch.autograd.grad(jitted(x, w, v).sum(), wanted)
        close(found, torch.autograd.grad(f(x, w, v).sum(), wanted))
        return operations(jitted).count("matmul"), len(raised)

    assert check(x, w, v) == (2, 3)
    assert [check(x, w, v) for _ in range(3)] == [(2, 1)] * 3
    products = [check(w)[0] for _ in range(3)]
    assert products[-1] == 1
    assert check(x, v)[0] == 1
    assert check(x, v) == (1, 1)
    assert check(x, w)[0] == 2
    assert check(x, w)[0] == 2
    jitted(x, w, v).sum().backward()
    expected = torch.autograd.grad(f(x, w, v).sum(), (x, w, v))
    close([x.grad, w.grad, v.grad], list(expected))
    jitted(x, w, v).sum().backward(inputs=[v])
    close(v.grad, 2 * expected[2])


def test_gradients_that_come_together_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one operation gives them all, nothing is gained by leaving one out."""
    from thunder.runtime.autograd import node

    def refused(node: Any) -> bool:
        raise AssertionError("asked")

    monkeypatch.setattr(node, "executes", refused)
    inputs = leaves(*[(1, 2, 64, 64)] * 3)
    jitted = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    found = torch.autograd.grad(jitted(*inputs).sum(), inputs[0])
    close(found, torch.autograd.grad(F.scaled_dot_product_attention(*inputs, is_causal=True).sum(), inputs[0]))


def test_gradients_asked_for_one_by_one() -> None:
    """Of many inputs: there is not a program for each."""
    inputs = leaves(*[(40, 60)] * 20)
    f = thunder.jit(lambda *tensors: sum(t.sin().sum() for t in tensors))
    differentiable = None
    for x in inputs:
        out = f(*inputs)
        (found,) = torch.autograd.grad(out, x)
        close(found, x.detach().cos())
        differentiable = thunder.compile_stats(f).last.differentiable
    assert differentiable is not None
    assert len(differentiable._backward) <= 17


# -- what is freed ----------------------------------------------------------------------------------------------------
def test_saved_tensors_go_as_backward_goes() -> None:
    """Each after its last use, not when all is done; with `retain_graph` none does."""
    alive: list[int] = []
    refs: list[StorageWeakRef] = []
    executor = OperatorExecutor("backward_watcher")

    def forward(a: torch.Tensor) -> torch.Tensor:
        out = a.exp()
        refs.append(StorageWeakRef(out.untyped_storage()))
        return out

    def backward(g: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        alive.append(sum(not r.expired() for r in refs))
        return g * out

    op = executor.register_operator("watch_exp", like=lambda a: a.exp(), fn=forward)
    back = executor.register_operator("watch_exp_backward", like=lambda g, out: g * out, fn=backward)

    def rule(a: Any) -> Any:
        out = op(a)
        thunder.core.transforms.put_grad(a, back(thunder.core.transforms.get_grad(out), out))
        return out

    executor.register_implementation(op, grad_transform=rule)
    f = thunder.jit(lambda a: op(op(op(op(a * 0.1) * 0.1) * 0.1) * 0.1), executors=[executor])
    (a,) = leaves((3,))
    for retain, expected in ((True, [4, 4, 4, 4]), (False, [4, 3, 2, 1])):
        refs.clear()
        alive.clear()
        loss = f(a).sum()
        gc.collect()
        loss.backward(retain_graph=retain)
        assert alive == expected
        if not retain:
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
    assert all(r.expired() for r in refs)


def test_nothing_is_held_after_backward() -> None:
    """Neither by the compiled program nor by the graph, with and without gradients of gradients."""
    f = thunder.jit(lambda a, b: (a.exp() * b).tanh())
    for create_graph in (False, True):
        a, b = leaves((3,), (3,))
        g = torch.autograd.grad(f(a, b).sum(), a, create_graph=create_graph)[0]
        held = [weakref.ref(t) for t in (a, b, g)]
        del a, b, g
        gc.collect()
        assert [r() for r in held] == [None, None, None]


def test_saved_tensor_hooks() -> None:
    """What is saved goes through them."""
    packed = []
    f = thunder.jit(lambda a: (a.exp() * a).sin().sum())
    (a,) = leaves((3,))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.numpy(), torch.from_numpy):
        out = f(a.detach().requires_grad_())
    assert len(packed) >= 2
    del out


# -- around it --------------------------------------------------------------------------------------------------------
def model() -> nn.Module:
    """A small one, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4)


def both(run: Any) -> None:
    """Runs the same with the model and the jitted model: the same results."""
    close(*[run(wrap(model())) for wrap in (lambda m: m, thunder.jit)])


def test_parameter_hooks() -> None:
    """On gradients, and after they were accumulated, as distributed training's do."""

    def run(m: Any) -> Any:
        seen = []
        for name, p in m.named_parameters():
            p.register_hook(lambda g, name=name: seen.append(g.norm()) or g * 2)
            p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm()))
        for _ in range(2):
            (m(X) ** 2).mean().backward()
        return [torch.stack(seen).sort().values, *[p.grad for p in m.parameters()]]

    both(run)


def test_hooks_on_the_node() -> None:
    """Of the result's `grad_fn`, before and after it runs."""

    def run(f: Any) -> Any:
        (a,) = leaves((3,))
        seen = []
        y = f(a)
        y.grad_fn.register_prehook(lambda grads: tuple(g * 2 for g in grads))
        y.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs[0].clone()))
        y.sum().backward()
        return [a.grad, *seen]

    close(run(thunder.jit(torch.exp)), run(torch.exp))


@pytest.mark.parametrize("fn", [torch.frac, torch.ceil, torch.sign])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_gradients_that_are_constant_or_only_handed_on(fn: Any, shape: tuple[int, ...]) -> None:
    """A backward program that has no result of its own, or only one that carries no gradient."""
    found, expected = [], []
    for f, results in ((fn, expected), (thunder.jit(fn), found)):
        (x,) = leaves(shape)
        (first,) = torch.autograd.grad((f(x) * x).sum(), x, create_graph=True)
        results += [first, *torch.autograd.grad((first * x).sum(), x)]
    close(found, expected)


def test_clipping_and_accumulation() -> None:
    """Over several batches, then a step."""

    def run(m: Any) -> Any:
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            for part in X.chunk(3):
                (m(part) ** 2).sum().backward()
            norm = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            nn.utils.clip_grad_value_(m.parameters(), 0.2)
            optimizer.step()
        return [norm, *[p.detach() for p in m.parameters()]]

    both(run)


def test_grad_scaler() -> None:
    """Scales the loss, unscales gradients, skips a step that overflowed."""

    def run(m: Any) -> Any:
        m.float()
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1)
        for step in range(3):
            optimizer.zero_grad()
            loss = (m(X.float()) ** 2).mean() * (float("inf") if step == 1 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return [torch.tensor(scaler.get_scale()), *[p.detach() for p in m.parameters()]]

    torch.testing.assert_close(run(thunder.jit(model())), run(model()))  # float32: by its own tolerance


def test_a_returned_view_that_is_saved() -> None:
    """Gradients of gradients flow through it, though to torch it is no view."""

    def f(x: Any, w: Any) -> Any:
        z = x * 1
        z.t()[0].sin_()
        return (z * z * w).sum(), z, (x @ w).mT, (x @ w).mT.exp()

    for i in range(4):
        results = []
        for g in (f, thunder.jit(f)):
            x, w = leaves((3, 3), (3, 3))
            first = torch.autograd.grad(g(x, w)[i].sin().sum(), x, create_graph=True)[0]
            results.append((first, torch.autograd.grad(first.pow(2).sum(), (x, w), materialize_grads=True)))
        close(results[1], results[0])


def test_the_backward_program_that_ran_last() -> None:
    """Its traces are shown, whenever it was compiled; with create_graph, those of the one that is differentiated."""
    f = thunder.jit(lambda x: (x.sin(), x.exp()))
    for i in (0, 1, 0, 1, 1):
        (x,) = leaves((3,))
        f(x)[i].sum().backward()
        assert ("cos" in operations(f), "exp" in operations(f)) == (i == 0, False)
    (x,) = leaves((3,))
    torch.autograd.grad(f(x)[0].sum(), x, create_graph=True)
    assert "cos" in operations(f) and "unpack_saved" not in operations(f)
    assert "backward" in thunder.examine.memory(f).sections


def test_frozen_parameters() -> None:
    """Have no gradient; thawed later they have one."""

    def run(m: Any) -> Any:
        first, *rest = m.parameters()
        first.requires_grad_(False)
        m(X).sum().backward()
        assert first.grad is None
        first.requires_grad_(True)
        m(X).sum().backward()
        return [first.grad, *[p.grad for p in rest]]

    both(run)


def test_anomaly_mode() -> None:
    """Finds the node whose gradient is not a number."""
    f = thunder.jit(lambda a: a.sqrt() * 0)
    a = torch.zeros(3, requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Error detected in Thunder"),
        pytest.raises(RuntimeError, match="returned nan values"),
        torch.autograd.set_detect_anomaly(True),
    ):
        f(a).sum().backward()
    (b,) = leaves((3,))
    with torch.autograd.set_detect_anomaly(True):
        f(b).sum().backward()
    assert b.grad is not None


def test_backward_under_autocast() -> None:
    """Backward programs say every type already."""
    x, w = leaves((4, 4), (4, 4), dtype=torch.float32)
    f = thunder.jit(lambda x, w: (x @ w).sin())
    out = f(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out.sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad((x @ w).sin().sum(), (x, w)))


def test_batched_gradients() -> None:
    """`is_grads_batched`: several cotangents at once."""
    f = thunder.jit(lambda a: (a.exp() * a).cumsum(0))
    (a,) = leaves((3,))
    (rows,) = torch.autograd.grad(f(a), a, torch.eye(3, dtype=torch.float64), is_grads_batched=True)
    close(rows, torch.autograd.functional.jacobian(lambda a: (a.exp() * a).cumsum(0), a.detach()))


def test_functional_derivatives_of_a_jitted_function() -> None:
    """`torch.autograd.functional`: jacobian, hessian, vjp, hvp."""

    def f(a: Any) -> Any:
        return (a.exp() * a.flip(0)).sum()

    (a,) = leaves((3,))
    functional = torch.autograd.functional
    for derive in (
        lambda g: functional.hessian(g, a.detach()),
        lambda g: functional.jacobian(g, a.detach()),
        lambda g: functional.hvp(g, a.detach(), torch.ones(3, dtype=torch.float64)),
    ):
        close(derive(thunder.jit(f)), derive(f))
