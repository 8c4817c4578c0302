# SPDX-License-Identifier: Apache-2.0
"""Normalization by batches: the running statistics, which torch writes in place, end up as eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import thunder
import thunder.torch as ltorch


@pytest.mark.parametrize(
    "module", [nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, momentum=0.4)]
)
def test_running_statistics(module: nn.Module, randn: Any) -> None:
    """Three steps of training, then evaluation: results, statistics and the count of batches, bit for bit."""
    eager, jitted = copy.deepcopy(module), thunder.jit(copy.deepcopy(module))
    for _ in range(3):
        x = randn(6, 3, 4, dtype=torch.float32).detach() * 2 + 1
        assert torch.equal(jitted(x), eager(x))
    state, expected = jitted.state_dict(), eager.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name
    assert torch.equal(jitted.eval()(x), eager.eval()(x))


def test_the_functions_write_what_torchs_write(randn: Any) -> None:
    """torch.batch_norm and the functional form, with statistics given as tensors."""
    x, weight, bias = (randn(*s, dtype=torch.float32).detach() for s in ((4, 3, 5), (3,), (3,)))
    for fn in (
        lambda x, m, v: F.batch_norm(x, m, v, weight, bias, True, 0.3),
        lambda x, m, v: torch.batch_norm(x, weight, bias, m, v, True, 0.3, 1e-5, True),
    ):
        ours, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
        assert torch.equal(thunder.jit(fn)(x, *ours), fn(x, *theirs))
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_the_operation_itself_writes_nothing(randn: Any) -> None:
    """It gives the new statistics as results; without old ones there are no new ones."""
    x = randn(4, 3, 5).detach()
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    out, new_mean, new_var = ltorch.batch_norm_train(x, None, None, mean, var, 0.5, 1e-5)
    assert torch.equal(mean, torch.zeros_like(mean))
    torch.testing.assert_close(new_mean, 0.5 * x.mean((0, 2)))
    torch.testing.assert_close(new_var, 0.5 + 0.5 * x.var((0, 2)))
    torch.testing.assert_close(out, F.batch_norm(x, None, None, training=True))
    assert ltorch.batch_norm_train(x, None, None, None, None, 0.5, 1e-5)[1:] == (None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """In training and in evaluation, with weights and without, of images too."""
    for shape in ((6, 3), (4, 3, 5), (2, 3, 4, 5)):
        mean, var = torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)
        weights = randn(3, dtype=dtype), randn(3, dtype=dtype)
        loose = {"rtol": 0.02, "atol": 0.02} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
        for training in (True, False):
            as_eager(
                lambda x, w, b: F.batch_norm(x, mean.clone(), var.clone(), w, b, training),
                randn(*shape, dtype=dtype), *weights, **loose,
            )  # fmt: skip
            as_eager(lambda x: F.batch_norm(x, mean.clone(), var.clone(), None, None, training),
                     randn(*shape, dtype=dtype), **loose)  # fmt: skip


def test_instances(as_eager: Any, randn: Any) -> None:
    """Instance normalization: each sample's own statistics, the running ones averaged over the batch."""
    as_eager(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), randn(2, 3, 4, 5), randn(3), randn(3))
    x = randn(2, 3, 4).detach()
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    out, new_mean, new_var = ltorch.instance_norm_train(x, None, None, mean, var, 0.1, 1e-5)
    theirs = [mean.clone(), var.clone()]
    torch.testing.assert_close(out, F.instance_norm(x, *theirs))
    torch.testing.assert_close([new_mean, new_var], theirs)


def test_a_batch_of_one() -> None:
    """There is no variance in one number."""
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        thunder.jit(lambda x: F.batch_norm(x, None, None, training=True))(torch.ones(1, 3))
    with pytest.raises(ValueError, match="Expected more than 1 spatial element when training"):
        thunder.jit(lambda x: F.instance_norm(x))(torch.ones(2, 3, 1))
