# SPDX-License-Identifier: Apache-2.0
"""Hooks that autograd runs when it accumulates the gradient of a leaf tensor.

A leaf has hooks of its own, and hooks on its `AccumulateGrad` node. Such a node cannot be asked for its hooks. But
registering a hook returns a handle with the dict of all hooks of the node, so a hook is registered and removed again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

__all__ = ["has_leaf_hooks"]

# The ids of leaves without hooks, and the number of hooks that had been registered in this process by then. As long as
# this number stays, the leaves have no hooks: a leaf with the id of one that has been freed was created later.
_without_hooks: set[int] = set()
_registered = -1


def has_leaf_hooks(leaf: torch.Tensor) -> bool:
    """Check whether a leaf tensor has gradient hooks, of its own or on its node."""
    if RemovableHandle.next_id == _registered and id(leaf) in _without_hooks:
        return False
    return _find_hooks(leaf)


def _find_hooks(leaf: Any) -> bool:
    global _registered
    if leaf._backward_hooks or leaf._post_accumulate_grad_hooks or not leaf.requires_grad:
        return bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)
    before = RemovableHandle.next_id
    with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
        # If nothing else refers to the leaf's node, then this is a new one, without hooks.
        node = leaf.view_as(leaf).grad_fn.next_functions[0][0]
        for register in (node.register_hook, node.register_prehook):
            handle = register(_no_hook)
            hooks = handle.hooks_dict_ref()
            handle.remove()
            if hooks:
                return True
    if before != _registered or RemovableHandle.next_id != before + 2:
        _without_hooks.clear()
    _registered = RemovableHandle.next_id
    _without_hooks.add(id(leaf))
    return False


def _no_hook(*gradients: Any) -> None:
    """Do nothing."""
