# SPDX-License-Identifier: Apache-2.0
"""Errors of thunder's own that the program catches: eager has no such error, so what comes after it is no program."""

from __future__ import annotations

import contextlib

import pytest
import torch

import thunder


def _branch(x):
    try:
        return x * 2 if x.sum() > 0 else x
    except Exception:
        return x * 3


def _loop(x):
    try:
        for _ in range(int(x.sum())):
            x = x + 1
    except RuntimeError:
        return x * 3
    return x


def _key(x):
    try:
        return x * {3.0: 2}.get(x.sum().item(), 5)
    except Exception as error:
        raise ValueError("made something else of") from error


def _array(x):
    try:
        return torch.ones(3) if x.numpy().sum() > 0 else x
    except Exception:
        return x * 3


def _suppressed(x):
    with contextlib.suppress(Exception):
        if x.sum().item() > 0:
            return x * 2
    return x * 3


def _compared(x):
    try:
        same = torch.equal(x, x)
    except Exception:
        same = False
    return x * 2 if same else x


@pytest.mark.parametrize("fn", [_branch, _loop, _key, _array, _suppressed, _compared])
def test_what_the_program_catches_ends_the_trace_all_the_same(fn):
    x = torch.ones(3)
    with pytest.raises(thunder.core.errors.TracingError, match=r"(?s)not known while tracing.*test_caught\.py"):
        thunder.trace()(fn, x)


@pytest.mark.parametrize("fn", [_branch, _loop, _suppressed, _compared])
def test_what_is_decided_raises_nothing(fn):
    jitted = thunder.jit(fn)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        torch.testing.assert_close(jitted(x), fn(x))


def test_an_error_that_the_program_raises_itself_is_eagers():
    with pytest.raises(AttributeError):
        thunder.jit(lambda x: x.no_such_attribute if x.sum() > 0 else x)(torch.ones(3))


def test_what_eager_raises_too_may_be_caught():
    def f(x):
        try:
            return x + torch.ones(2)
        except RuntimeError:
            return x * 3

    torch.testing.assert_close(thunder.jit(f)(torch.ones(3)), f(torch.ones(3)))


def test_a_comparison_that_nobody_branches_on_is_no_error():
    def f(x):
        n = x.sum().item()
        torch._check(n < 100)
        return x * n

    torch.testing.assert_close(thunder.jit(f)(torch.ones(3)), torch.full((3,), 3.0))
