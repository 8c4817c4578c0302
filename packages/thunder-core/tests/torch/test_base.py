# SPDX-License-Identifier: Apache-2.0
"""Declarations of the torch language."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import thunder.torch as ltorch
from thunder.torch.base import for_dims, named
from thunder.torch.conv import _conv


def test_named() -> None:
    """Names lead to torch's functions; one that torch does not have is an error."""
    assert named("torch.special.erf") is torch.special.erf
    assert named("torch.nn.functional.conv2d") is torch.nn.functional.conv2d
    with pytest.raises(AttributeError, match="nonesuch"):
        named("torch.nonesuch")


def test_one_body_for_three() -> None:
    """Each is an operation of its own, with the signature and the documentation of its number of dimensions."""
    assert (ltorch.conv1d, ltorch.conv2d, ltorch.conv3d) == _conv
    for n, sym in enumerate(_conv, start=1):
        assert (sym.name, sym.id, sym.module) == (f"conv{n}d", f"torch.conv{n}d", "thunder.torch")
        assert next(iter(inspect.signature(sym).parameters)) == "input"
        assert sym.reference is named(f"torch.conv{n}d")
    assert (
        ltorch.conv2d.__doc__
        == "Compute the convolution of a tensor with dimensions `(batch, channels, height, width)`."
    )
    assert ltorch.max_pool3d_with_indices.__doc__ == "Return the result of max_pool3d, and the positions of the maxima."


def test_functions_that_torch_has_for_some_dimensions() -> None:
    """The first name must exist for each; others where they do."""
    functions = ltorch.torch_function_map()
    assert functions[torch.max_pool1d_with_indices] is ltorch.max_pool1d_with_indices
    assert functions[torch._C._nn.max_pool2d_with_indices] is ltorch.max_pool2d_with_indices
    with pytest.raises(AttributeError, match="conv4d"):

        @for_dims(4, name="conv{}d", torch="torch.conv{}d")
        def _(spatial: int, input: Any) -> Any: ...
