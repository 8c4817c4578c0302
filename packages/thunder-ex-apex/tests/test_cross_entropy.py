# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy against torch in double precision: what is taken, and what is made of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder.core.transforms import grad
from thunder.toolkit.testing import repeats
from thunder_ex_apex import cross_entropy

TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3}


def jitted(**how: Any) -> Any:
    """The loss, by apex."""
    return thunder.jit(lambda x, t: F.cross_entropy(x, t, **how), executors=["apex"])


def check(x: torch.Tensor, t: torch.Tensor, **how: Any) -> str:
    """Loss and gradient are torch's in double precision; returns the program."""
    f = jitted(**how)
    x = x.detach().requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, expected = f(x, t), F.cross_entropy(wide, t, **how)
    tolerance: Any = {"rtol": TOLERANCES[x.dtype], "atol": TOLERANCES[x.dtype], "equal_nan": True}
    assert found.dtype is x.dtype and found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, **tolerance)
    g = torch.linspace(-1, 2, max(expected.numel(), 1), device=x.device).reshape(expected.shape)
    (mine,) = torch.autograd.grad(found, x, g.to(x.dtype))
    (right,) = torch.autograd.grad(expected, wide, g.double())
    torch.testing.assert_close(mine.double(), right, **tolerance)
    assert "apex_cross_entropy_backward(" in str(thunder.last_backward_traces(f)[-1])
    return str(thunder.last_traces(f)[-1])


@settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # every example needs the same executors
)  # fmt: skip
@given(st.data())
def test_arguments(device: str, data: st.DataObject) -> None:
    """Every reduction, smoothing, dtype, layout and ignored class."""
    rows, classes = data.draw(st.integers(1, 9)), data.draw(st.integers(32, 150))
    dtype = data.draw(st.sampled_from(list(TOLERANCES)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    shape = (classes, rows) if (turned := data.draw(st.booleans())) else (rows, classes)
    x = torch.randn(shape, generator=generator).mul(3).to(dtype).to(device)
    t = torch.randint(0, classes, (rows,), generator=generator)
    ignored = data.draw(st.sampled_from((-100, -1, int(t[0]))))
    t[torch.rand(rows, generator=generator) < data.draw(st.sampled_from((0.0, 0.4, 1.1)))] = ignored
    printed = check(
        x.mT if turned else x, t.to(device), ignore_index=ignored,
        reduction=data.draw(st.sampled_from(("mean", "sum", "none"))),
        label_smoothing=data.draw(st.sampled_from((0.0, 0.1))),
    )  # fmt: skip
    assert "apex_cross_entropy(" in printed


def test_infinities(device: str) -> None:
    """A class that is impossible, as masks make it, has no part in the loss: apex alone gives NaN."""
    x = torch.randn(3, 40, device=device)
    x[0, 3:9] = float("-inf")
    x[1, 5] = float("inf")
    x[2] = float("-inf")
    t = torch.tensor([1, 1, 1], device=device)
    torch.testing.assert_close(jitted(reduction="none")(x, t), F.cross_entropy(x, t, reduction="none"), equal_nan=True)
    check(x[:1], t[:1])


def test_a_number_that_is_no_class(device: str) -> None:
    """It is never read: the program stops, as torch does. On a GPU that ends the process: it is another one here."""
    if device == "cpu":
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            jitted()(torch.randn(2, 40), torch.tensor([3, 40]))
        return
    code = """
import torch, thunder
f = thunder.jit(lambda x, t: torch.nn.functional.cross_entropy(x, t), executors=["apex"])
x = torch.randn(2, 40, device="cuda")
f(x, torch.tensor([3, 4], device="cuda")).item()
print("ran")
f(x, torch.tensor([3, 40], device="cuda")).item()
"""
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert found.returncode != 0 and found.stdout.strip() == "ran" and "device-side assert" in found.stderr


def test_the_seeds_form(device: str) -> None:
    """The line of the trace, and the gradient's, as the documents show them."""

    def foo(logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="mean", ignore_index=-1)

    from thunder.executors.apex_entropyex import apex_ex

    logits, labels = torch.randn(8, 50, device=device), torch.randint(0, 50, (8,), device=device)
    cfoo = thunder.jit(foo, executors=[apex_ex])
    torch.testing.assert_close(cfoo(logits, labels), foo(logits, labels))
    assert ", _) = apex_cross_entropy(logits, labels, 'mean', 0.0)\n" in str(thunder.last_traces(cfoo)[-1])
    differentiated = grad(cfoo)
    (found,) = differentiated(logits, labels)
    (right,) = torch.autograd.grad(foo(wanted := logits.clone().requires_grad_(), labels), wanted)
    torch.testing.assert_close(found, right)
    printed = str(thunder.last_traces(differentiated)[-1])
    assert "(_, " in printed and "= apex_cross_entropy(logits, labels, 'mean', 0.0)" in printed
    assert "target=labels, max_log_sum_exp=" in printed and "label_smoothing=0.0)" in printed


@pytest.mark.parametrize(
    ("x", "t", "how", "reason"),
    [
        (torch.zeros(3, 40, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int64), {}, "is correct only for"),
        (torch.zeros(3, 40, dtype=torch.float64), torch.zeros(3, dtype=torch.int64), {}, "is correct only for"),
        (torch.zeros(3, 31), torch.zeros(3, dtype=torch.int64), {}, "fewer than 32 classes"),
        (torch.zeros(3, 40, 2), torch.zeros(3, 2, dtype=torch.int64), {}, "a matrix of logits"),
        (torch.zeros(40), torch.zeros((), dtype=torch.int64), {}, "a matrix of logits"),
        (torch.zeros(3, 40), torch.zeros(3, 40), {}, "a matrix of logits"),
        (torch.zeros(3, 40), torch.zeros(3, dtype=torch.uint8), {}, "class indices in int64"),
        (torch.zeros(3, 40), torch.zeros(3, dtype=torch.int64), {"weight": torch.ones(40)}, "support class weights"),
        (torch.zeros(0, 40), torch.zeros(0, dtype=torch.int64), {"reduction": "sum"}, "have no rows"),
    ],
)  # fmt: skip
def test_what_it_leaves_to_others(device: str, x: Any, t: Any, how: Any, reason: str) -> None:
    """It says why, and the program gives torch's result."""
    x, t = x.to(device), t.to(device)
    how = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in how.items()}
    f = jitted(**how)
    torch.testing.assert_close(f(x, t), F.cross_entropy(x, t, **how))
    assert "apex" not in str(thunder.last_traces(f)[-1])
    assert reason in str(thunder.examine(lambda x, t: F.cross_entropy(x, t, **how), x, t, executors=["apex"]))


def test_sizes() -> None:
    """2**32 logits are too many; without being named it takes what is large."""
    from types import SimpleNamespace as Of

    from thunder.extend import dtypes

    def proxies(rows: int, classes: int, dtype: Any = dtypes.float32) -> tuple[Any, Any]:
        gpu = Of(type="cpu")
        return Of(ndim=2, shape=(rows, classes), dtype=dtype, device=gpu), Of(ndim=1, dtype=dtypes.int64, device=gpu)

    assert "2**32 or more logits" in str(cross_entropy.takes(*proxies(1 << 16, 1 << 16)))
    assert "runs on NVIDIA GPUs" in str(cross_entropy.takes(*proxies(1 << 16, (1 << 16) - 1)))
    assert cross_entropy.profitable(*proxies(2048, 50257)) is True
    assert "fewer than 1000 classes" in str(cross_entropy.profitable(*proxies(1 << 22, 64)))
    assert "less than 300 MB" in str(cross_entropy.profitable(*proxies(2048, 50257, dtypes.float16)))


def test_small_losses_are_torchs_unless_it_is_named(device: str) -> None:
    """Where nobody asked for apex, it takes what it was measured to be faster in."""
    x, t = torch.randn(4, 40, device=device), torch.tensor([1, 2, 3, 4], device=device)
    f = thunder.jit(lambda x, t: F.cross_entropy(x, t))
    torch.testing.assert_close(f(x, t), F.cross_entropy(x, t))
    assert "apex" not in str(thunder.last_traces(f)[-1])


def test_deterministic_algorithms(device: str) -> None:
    """Losses and gradients repeat bit by bit."""
    x = torch.randn(512, 1000, device=device, requires_grad=True)
    t = torch.arange(512, device=device)
    f = thunder.jit(lambda x: torch.nn.functional.cross_entropy(x, t), executors=["apex"])
    assert repeats(f, x)
