# SPDX-License-Identifier: Apache-2.0
"""Hooks on leaves and on their `AccumulateGrad` nodes are found, and looking for them leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder.runtime.autograd.leaf_hooks import has_leaf_hooks


def node_of(leaf: torch.Tensor) -> Any:
    return leaf.view_as(leaf).grad_fn.next_functions[0][0]


WAYS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "tensor": lambda leaf, node: leaf.register_hook(lambda g: g),
    "accumulated": lambda leaf, node: leaf.register_post_accumulate_grad_hook(lambda p: None),
    "node": lambda leaf, node: node.register_hook(lambda *gradients: None),
    "before the node": lambda leaf, node: node.register_prehook(lambda gradients: None),
    "several tensors": lambda leaf, node: torch.autograd.graph.register_multi_grad_hook([leaf], lambda gs: None),
}


@pytest.mark.parametrize("register", WAYS.values(), ids=WAYS)
def test_hooks_are_found(register: Callable[[torch.Tensor, Any], Any]) -> None:
    leaf, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    node = node_of(leaf)
    assert not has_leaf_hooks(leaf) and not has_leaf_hooks(other)
    handle = register(leaf, node)
    for _ in range(2):
        assert has_leaf_hooks(leaf) and not has_leaf_hooks(other)
    handle.remove()
    assert not has_leaf_hooks(leaf)


def test_a_node_that_nothing_holds_has_no_hooks() -> None:
    """torch makes a new node at the next use of the leaf."""
    leaf = torch.ones(2, requires_grad=True)
    node_of(leaf).register_hook(lambda *gradients: None)
    assert not has_leaf_hooks(leaf)


def test_nothing_is_registered_if_nothing_was() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert not has_leaf_hooks(leaf)
    before = torch.utils.hooks.RemovableHandle.next_id
    assert not has_leaf_hooks(leaf) and torch.utils.hooks.RemovableHandle.next_id == before


def test_hooks_that_are_there_run_as_before() -> None:
    leaf, seen = torch.ones(2, requires_grad=True), []
    node = node_of(leaf)
    handle = node.register_hook(lambda *gradients: seen.append(1))
    assert has_leaf_hooks(leaf)
    (leaf * 2).sum().backward()
    assert seen == [1] and torch.equal(leaf.grad, torch.full((2,), 2.0))
    handle.remove()


def test_a_tensor_that_requires_no_gradient_has_none() -> None:
    assert not has_leaf_hooks(torch.ones(2))
