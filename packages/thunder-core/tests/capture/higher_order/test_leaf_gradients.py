# SPDX-License-Identifier: Apache-2.0
"""`backward()` and `.grad` in jitted programs: one program, with eager mode's values, objects and errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import thunder
import thunder.torch as ltorch
from thunder.capture.higher_order import inner_gradients
from thunder.extend import rewrite


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batch(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(k)
    return torch.randn(6, 4, generator=g), torch.randn(6, 1, generator=g)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected) and found.stride() == expected.stride()
    if isinstance(expected, (tuple, list)):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def gradients(net: nn.Module) -> list[Any]:
    return [p.grad if p.grad is None else p.grad.clone() for p in net.parameters()]


def check(make: Callable[[nn.Module], Callable[..., Any]], *, calls: int = 4, programs: int = 1) -> Any:
    """Compare a training step with eager mode to the bit, call by call; `make` returns the step of a network."""
    eager, net = network(), network()
    expected, jitted = make(eager), thunder.jit(make(net), fullgraph=True)
    for k in range(calls):
        before = [[p.grad for p in m.parameters()] for m in (eager, net)]
        one, other = jitted(*batch(k)), expected(*batch(k))
        assert same(one, other) and same(gradients(net), gradients(eager))
        assert same([*net.parameters()], [*eager.parameters()])
        kept = [[p.grad is g for p, g in zip(m.parameters(), b)] for m, b in zip((eager, net), before)]
        assert kept[0] == kept[1]
    assert thunder.cache_misses(jitted) == programs and thunder.cache_hits(jitted) == calls - programs
    return jitted


def update(net: nn.Module) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad


def test_a_step_that_frees_its_gradients() -> None:
    """Gradients that neither outlive the call nor exist before it."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(net(x), y)
            loss.backward()
            update(net)
            for p in net.parameters():
                p.grad = None
            return loss.detach()

        return step

    check(make)


def test_gradients_outlive_the_call() -> None:
    """The second program finds gradients of the call before, and sets new ones."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            for p in net.parameters():
                if p.grad is not None:
                    p.grad = None
            F.mse_loss(net(x), y).backward()
            update(net)

        return step

    check(make, programs=2)


def test_gradients_accumulate_in_place() -> None:
    """The first call creates the gradients, and later calls add to the same tensors."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            for i in range(2):
                F.mse_loss(net(x[i::2]), y[i::2]).backward()

        return step

    check(make, programs=2)


def test_gradients_set_to_zero_and_scaled() -> None:
    def make(net: Any) -> Any:
        for p in net.parameters():
            p.grad = torch.ones_like(p)

        def step(x: Any, y: Any) -> Any:
            F.mse_loss(net(x), y).backward()
            for p in net.parameters():
                p.grad.mul_(0.5).clamp_(-0.1, 0.1)
            update(net)
            norm = torch.stack([p.grad.norm() for p in net.parameters()])
            for p in net.parameters():
                p.grad.zero_()
            return norm

        return step

    check(make)


def test_several_steps_in_a_call() -> None:
    """The second loss uses the updated parameters."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            losses = []
            for i in range(3):
                loss = F.mse_loss(net(x[i::3]), y[i::3])
                loss.backward()
                update(net)
                for p in net.parameters():
                    p.grad = None
                losses.append(loss.detach())
            return losses

        return step

    check(make)


def test_retain_graph_inputs_and_cotangents() -> None:
    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            hidden = net[0](x)
            out = net[2](net[1](hidden))
            out.backward(y, retain_graph=True, inputs=[net[0].weight, net[2].bias])
            torch.autograd.backward([out, hidden.sum()], [y, None])
            update(net)
            for p in net.parameters():
                p.grad = None

        return step

    check(make)


def test_several_losses() -> None:
    """Graphs that share only leaves: the second `backward()` does not need `retain_graph`."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            one, two = F.mse_loss(net(x), y), net(x + 1).abs().mean()
            one.backward()
            (two + one.detach()).backward()
            for p in net.parameters():
                p.data.add_(p.grad, alpha=-0.1)
                p.grad = None
            return one.detach(), two.detach()

        return step

    check(make)


def test_gradients_have_the_layout_of_the_leaf() -> None:
    """And memory of their own, even if the gradient is expanded, a cotangent, or the same for two leaves."""
    expected, found = [], []
    for out, jit in ((expected, lambda f: f), (found, thunder.jit)):
        a, b = (torch.arange(12.0).view(3, 4).t().requires_grad_() for _ in range(2))
        c, d = torch.ones(3, requires_grad=True), torch.ones(6)[::2].requires_grad_()
        given = torch.arange(3.0)

        def f(a: Any, b: Any, c: Any, d: Any, given: Any) -> None:
            (a + b).sum().backward()
            (c * 1).backward(given)
            (d * 2).sum().backward()

        jf = jit(f)
        jf(a, b, c, d, given)
        for x in (a, b, c, d):
            out += [x.grad.clone(), x.grad.stride(), x.grad.is_contiguous()]
        c.grad.add_(1)
        a.grad.add_(1)
        out += [given, b.grad, c.grad]
    assert same(found, expected)
    assert thunder.cache_misses(jf) == 1 and "eager" not in thunder.explain(jf)


def test_leaves_of_the_program() -> None:
    """A leaf that the program creates has a `.grad`, too."""

    def attack(x: Any, w: Any) -> Any:
        x = x.detach().requires_grad_()
        assert x.grad is None
        (x * w).square().sum().backward(inputs=[x])
        assert x.grad is x.grad
        step = x.grad.sign()
        x.grad.zero_()
        (x * w).sum().backward(inputs=x)
        return step + x.grad, w.grad

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    jf = thunder.jit(attack, fullgraph=True)
    for _ in range(2):
        assert same(jf(x, w)[0], attack(x, w)[0]) and w.grad is None
    assert thunder.cache_hits(jf) == 1


def test_leaf_without_use() -> None:
    """Its `.grad` stays None. A leaf behind an operation with a gradient of zeros gets zeros."""

    def f(x: Any, y: Any) -> None:
        (x.floor() * 2).sum().backward()

    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    jf = thunder.jit(f, fullgraph=True)
    jf(x, y)
    assert same(x.grad, torch.zeros(3)) and y.grad is None


def test_the_loss_requires_grad() -> None:
    """Its graph is freed, as in eager mode."""
    net = network()

    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss, {"loss": loss}

    jf = thunder.jit(step, fullgraph=True)
    loss, more = jf(*batch(0))
    assert more["loss"] is loss and loss.requires_grad and not loss.is_leaf and loss.grad_fn is not None
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()
    loss.add_(1)
    assert not loss.detach().requires_grad


def test_retained_graph_of_a_result() -> None:
    """A result whose graph was retained can be differentiated after the call."""
    found, expected = [], []
    for out, jit in ((expected, lambda f: f), (found, thunder.jit)):
        net = network()

        def step(x: Any, y: Any, net: Any = net) -> Any:
            loss = F.mse_loss(net(x), y)
            loss.backward(retain_graph=True)
            return loss

        loss = jit(step)(*batch(0))
        loss.backward()
        out += [loss.detach(), *gradients(net)]
    assert same(found, expected)


def test_a_gradient_changes_outside() -> None:
    """Programs for gradients that are None and gradients that exist; set and removed by the caller."""
    net = network()

    def step(x: Any, y: Any) -> Any:
        F.mse_loss(net(x), y).backward()

    jf = thunder.jit(step, fullgraph=True)
    for k in range(6):
        if k % 3 == 2:
            net.zero_grad(set_to_none=True)
        expected = [0 if g is None else g for g in gradients(net)]
        jf(*batch(k))
        loss = F.mse_loss(net(batch(k)[0]), batch(k)[1])
        expected = [a + b for a, b in zip(expected, torch.autograd.grad(loss, [*net.parameters()]))]
        assert same(gradients(net), expected)
    assert thunder.cache_misses(jf) == 2


def test_parameters_become_the_same_tensor() -> None:
    """Weights are tied between calls."""

    def step(x: Any, one: Any, two: Any) -> None:
        (one(x) + 2 * two(x)).sum().backward()

    jf = thunder.jit(step)
    results = []
    for run in (step, jf):
        torch.manual_seed(0)
        one, two = nn.Linear(3, 3), nn.Linear(3, 3)
        run(torch.ones(2, 3), one, two)
        two.weight = one.weight
        one.zero_grad()
        run(torch.ones(2, 3), one, two)
        results.append([*gradients(one), *gradients(two)])
    assert same(*results)


def shared(net: Any) -> None:
    """Let two parameters have the same `.grad`."""
    net[2].weight.data = net[2].weight.data.view(8)
    net[2].weight.grad = net[0].bias.grad = torch.zeros(8)


def in_one_buffer(net: Any) -> None:
    """Let all gradients be views of a buffer."""
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    for p, part in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
        p.grad = part.view_as(p)


def overlapping(net: Any) -> None:
    """Let gradients overlap."""
    flat = torch.zeros(64)
    for p in net.parameters():
        p.grad = flat[: p.numel()].view_as(p)


@pytest.mark.parametrize("prepare", [shared, in_one_buffer, overlapping], ids=lambda f: f.__name__)
def test_gradients_share_memory(prepare: Callable[[Any], None]) -> None:
    found: list[Any] = []
    for jit in (lambda f: f, lambda f: thunder.jit(f, sharp_edges="allow")):
        net = network()
        prepare(net)

        def step(x: Any, y: Any, net: Any = net) -> Any:
            F.linear(net[1](net[0](x)), net[2].weight.view(1, 8), net[2].bias).mean().backward()
            update(net)

        jitted = jit(step)
        for k in range(3):
            jitted(*batch(k))
        found.append([*gradients(net), *net.parameters()])
    assert same(found[1], found[0])
    assert thunder.cache_hits(jitted) == {shared: 1, in_one_buffer: 2, overlapping: 0}[prepare]


# -- optimizers -------------------------------------------------------------------------------------------------------
def states(optimizer: Any) -> list[Any]:
    """Return the tensors of an optimizer's state, and the numbers."""
    found = optimizer.state_dict()
    return [found["param_groups"], *[list(x.items()) for x in found["state"].values()]]


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, maximize=True),
    "AdamW, lr in a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True, amsgrad=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True, momentum=0.9),
    "RMSprop, foreach": lambda p: torch.optim.RMSprop(p, foreach=True, momentum=0.1),
    "two groups": lambda p: torch.optim.AdamW([{"params": [*p][:2], "lr": 0.2}, {"params": [*p][2:]}], lr=0.1),
    "NAdam": torch.optim.NAdam,
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": torch.optim.Rprop,
}  # fmt: skip


def train(make: Callable[..., Any], jit: Callable[..., Any], *, calls: int = 5, set_to_none: bool = True) -> Any:
    """Return the jitted step, and what all calls leave: results, gradients, parameters and states."""
    net = network()
    optimizer = make([*net.parameters()])
    found: list[Any] = []

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jit(step)
    objects: list[Any] = []
    for k in range(calls):
        found.append([run(*batch(k)), gradients(net), [p.detach().clone() for p in net.parameters()]])
        now = [x for s in optimizer.state.values() for x in s.values()]
        assert not objects or all(a is b for a, b in zip(objects, now) if isinstance(a, torch.Tensor))
        objects = now
    found.append(states(optimizer))
    return run, found


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers(make: Callable[..., Any]) -> None:
    """The first call creates the state, the second finds gradients and state, and later calls are cache hits.

    Parameters, gradients and the state are eager mode's to the bit, and state tensors stay the same objects.
    """
    _, expected = train(make, lambda f: f)
    step, found = train(make, lambda f: thunder.jit(f, fullgraph=True))
    assert same(found, expected)
    assert thunder.cache_misses(step) == 2 and thunder.cache_hits(step) == 3


def test_optimizer_with_gradients_that_stay() -> None:
    _, expected = train(OPTIMIZERS["AdamW"], lambda f: f, set_to_none=False)
    step, found = train(OPTIMIZERS["AdamW"], lambda f: thunder.jit(f, fullgraph=True), set_to_none=False)
    assert same(found, expected) and thunder.cache_misses(step) == 2


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("clip", ["norm", "largest", "value"])
def test_gradients_are_clipped(clip: str, foreach: Any) -> None:
    def make(net: Any) -> Any:
        params = [*net.parameters()]

        def step(x: Any, y: Any) -> Any:
            net.zero_grad(set_to_none=True)
            F.mse_loss(net(x), y).backward()
            if clip == "value":
                torch.nn.utils.clip_grad_value_(params, 0.05, foreach=foreach)
                norm = None
            else:
                kind = 2.0 if clip == "norm" else float("inf")
                norm = torch.nn.utils.clip_grad_norm_(params, 0.1, norm_type=kind, foreach=foreach)
            update(net)
            return norm

        return step

    check(make, programs=2)


def test_a_state_dict_is_loaded() -> None:
    """And parameters are replaced in the groups: the state belongs to other objects, or other tensors."""
    found: list[Any] = []
    for jit in (lambda f: f, thunder.jit):
        net = network()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

        def step(x: Any, y: Any, net: Any = net, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()

        jitted = jit(step)
        for k in range(3):
            jitted(*batch(k))
        saved = torch.utils._pytree.tree_map(
            lambda x: x.clone() if isinstance(x, torch.Tensor) else x, optimizer.state_dict()
        )
        for k in range(2):
            jitted(*batch(k))
        optimizer.load_state_dict(saved)
        for k in range(2):
            jitted(*batch(k))
        net[0].weight.requires_grad_(False)
        jitted(*batch(0))
        found.append([states(optimizer), gradients(net), [p.detach() for p in net.parameters()]])
    assert same(found[1], found[0])
    assert "partly eager" not in thunder.explain(jitted)


# -- programs that are partly eager -----------------------------------------------------------------------------------
def hook_on_a_parameter(net: Any, seen: list[Any]) -> Any:
    net[0].weight.register_hook(lambda g: g * 2)
    return lambda x, y: F.mse_loss(net(x), y).backward()


def hook_after_accumulation(net: Any, seen: list[Any]) -> Any:
    net[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    return lambda x, y: F.mse_loss(net(x), y).backward()


NODES: list[Any] = []  # a node that nothing refers to is gone, with its hooks


def hook_on_a_node(net: Any, seen: list[Any]) -> Any:
    """E.g. of a wrapper that reduces gradients. Only the node knows of it."""
    weight = net[0].weight
    node = weight.view_as(weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *gradients: seen.append(weight.grad.sum().item()))
    NODES.append(node)
    return lambda x, y: F.mse_loss(net(x), y).backward()


def gradients_with_a_graph(net: Any, seen: list[Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        F.mse_loss(net(x), y).backward(create_graph=True)
        seen.append(net[0].weight.grad.requires_grad)
        for p in net.parameters():
            p.grad = p.grad.detach()

    return step


def a_second_backward(net: Any, seen: list[Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        try:
            (loss * 2).backward()
        except RuntimeError as error:
            seen.append(str(error))

    return step


def a_graph_freed_in_part(net: Any, seen: list[Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        hidden = net[0](x)
        hidden.square().sum().backward()
        return net[2](net[1](hidden))

    return step


def an_input_with_a_graph(net: Any, seen: list[Any]) -> Any:
    scale = torch.ones((), requires_grad=True)
    step = lambda x: net(x).sum().backward()  # noqa: E731

    def call(x: Any, y: Any) -> Any:
        call.step(x * scale)
        seen.append(scale.grad.item())

    call.inner = step
    return call


def a_parameter_written_before(net: Any, seen: list[Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(net(x), y)
        with torch.no_grad():
            net[2].weight.mul_(0.5)
        try:
            loss.backward()
        except RuntimeError as error:
            seen.append(str(error)[:60])

    return step


def inputs_that_are_computed(net: Any, seen: list[Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        hidden = net[0](x)
        F.mse_loss(net[2](hidden), y).backward(inputs=[hidden])
        return hidden.grad

    return step


def a_gradient_of_a_computed_tensor(net: Any, seen: list[Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        out = (x * 2).detach()
        out.grad = x
        return out.grad

    return step


def a_gradient_that_requires_grad(net: Any, seen: list[Any]) -> Any:
    net[0].weight.grad = net[0].weight * 2
    return lambda x, y: F.mse_loss(net(x), y).backward(inputs=[net[0].bias]) or net[0].weight.grad.sum().detach()


PARTLY_EAGER = {
    hook_on_a_parameter: "a leaf tensor has gradient hooks",
    hook_after_accumulation: "a leaf tensor has gradient hooks",
    hook_on_a_node: "a leaf tensor has gradient hooks",
    gradients_with_a_graph: "backward(create_graph=True)",
    a_second_backward: "backward() a second time through a part of the graph",
    a_graph_freed_in_part: "a graph that backward() has freed in part",
    an_input_with_a_graph: "depends on tensors computed before the call",
    a_parameter_written_before: "through its old value",
    inputs_that_are_computed: "inputs that are not leaves of the graph",
    a_gradient_of_a_computed_tensor: "sets the .grad of a tensor that it computes",
}


@pytest.mark.parametrize("make", [*PARTLY_EAGER, a_gradient_that_requires_grad], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_partly_eager_programs(make: Callable[..., Any]) -> None:
    """Values, errors and hooks are eager's, and `explain` has the reason."""
    found: list[Any] = []
    for jit in (lambda f: f, lambda f: thunder.jit(f, sharp_edges="allow")):
        net, seen = network(), []
        made = make(net, seen)
        step: Any = jit(getattr(made, "inner", made))
        made.step = step
        run = made if hasattr(made, "inner") else step
        results = [run(*batch(k)) for k in range(3)]
        results = [r.detach() if isinstance(r, torch.Tensor) else r for r in results]
        found.append([results, gradients(net), [p.detach() for p in net.parameters()], seen])
    torch.testing.assert_close(found[1][:3], found[0][:3])
    assert found[1][3] == found[0][3]
    assert PARTLY_EAGER.get(make, "") in thunder.explain(step)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_hook_on_a_node_is_registered_later() -> None:
    """A cached program does not run while there is a hook."""
    net, seen = network(), []
    weight = net[0].weight
    step = thunder.jit(lambda x, y: F.mse_loss(net(x), y).backward())
    for k in range(3):
        step(*batch(k))
    assert thunder.cache_hits(step) == 1
    node = weight.view_as(weight).grad_fn.next_functions[0][0]
    handle = node.register_hook(lambda *gradients: seen.append(1))
    step(*batch(3))
    assert seen == [1] and thunder.cache_hits(step) == 1
    handle.remove()
    step(*batch(4))
    assert seen == [1] and thunder.cache_hits(step) == 2


def test_backward_uses_torchs_kernels() -> None:
    """To the bit: the formula of softplus' gradient rounds otherwise. Also if the graph is kept."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def step(keep: bool) -> Any:
        x.grad = None
        loss = F.softplus(x).square().sum()
        first = torch.autograd.grad(loss, x, retain_graph=True)[0]
        loss.backward(retain_graph=keep)
        if keep:
            loss.backward()
        return first, x.grad

    for keep in (True, False):
        expected = [y.clone() for y in step(keep)]
        assert same([*thunder.jit(step, fullgraph=True)(keep)], expected)


def test_backward_twice() -> None:
    """Raises eager mode's error."""

    def step(x: Any, w: Any) -> None:
        loss = (x * w).square().sum()
        loss.backward()
        loss.backward()

    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        thunder.jit(step, sharp_edges="allow")(torch.ones(3), torch.ones(3, requires_grad=True))


def test_process_groups_are_left_to_eager_mode(tmp_path: Any) -> None:
    """Hooks that Python cannot see are those of DDP, which do nothing unless its forward has run."""
    w = torch.ones(3, requires_grad=True)

    def step(x: Any) -> Any:
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 1

    jitted, x = thunder.jit(step), torch.arange(3.0)
    for _ in range(3):
        assert torch.equal(jitted(x), x)
    hits = thunder.cache_hits(jitted)
    assert hits > 0
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert torch.equal(jitted(x), x)
        assert thunder.cache_hits(jitted) == hits + 1
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("keeps", [True, False])
def test_passes_before_differentiation(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What plugins rewrite is differentiated, unless a value of the program would be gone."""

    def doubled(op: Any) -> Any:
        return ltorch.relu(op.args[0]) * 2 if op.sym.id == "torch.relu" else None

    def passes(trace: Any, *args: Any, **kwargs: Any) -> Any:
        new = rewrite(trace, "twice", doubled)
        if not keeps:
            new.bound_symbols.pop()
        yield new

    monkeypatch.setattr(inner_gradients, "transformed", passes)
    w = torch.tensor([1.0, -1.0], requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(w * x)
        (y * y).sum().backward()
        return y.detach()

    found = thunder.jit(step)(torch.tensor([3.0, 3.0]))
    factor = 2.0 if keeps else 1.0
    assert found.tolist() == [factor * 3.0, 0.0]
    assert w.grad is not None
    assert w.grad.tolist() == [factor**2 * 18.0, 0.0]
