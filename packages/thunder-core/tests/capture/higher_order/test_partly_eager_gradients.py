# SPDX-License-Identifier: Apache-2.0
"""`backward()` and `.grad` in programs that are partly eager: hooks of gradients, and graphs that no trace has."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backward_steps import gradients
from training import batch, network

import thunder


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
