# SPDX-License-Identifier: Apache-2.0
"""`THUNDER_VERIFY`: results of faulty executors are errors, and results of correct ones are unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core.errors import ResultVerificationError
from thunder.core.proxies import TensorProxy
from thunder.extend import FusionExecutor, OperatorExecutor


def acme(fn: Callable[..., Any]) -> OperatorExecutor:
    """Return an executor of a plugin, whose kernel for products is `fn`."""
    executor = OperatorExecutor("acme")
    executor.plugin = "acme-kernels"
    op = executor.register_operator("acme_mul", meta=lambda a, b: TensorProxy(like=a), fn=fn)
    executor.register_implementation(ltorch.mul, op)
    return executor


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x * y) + 1  # the user's line


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "dtype": (
        lambda a, b: (a * b).double(),
        "t0 is a cpu float64 tensor of shape (2, 3), but the meta function returns",
    ),
    "shape": (lambda a, b: (a * b)[0], "t0 is a cpu float32 tensor of shape (3,), but the meta function returns"),
    "device": (lambda a, b: (a * b).to("meta"), "t0 is a meta float32 tensor"),
    "type": (lambda a, b: 3.0, "t0 is a float, but the meta function returns a cpu f32[2, 3]"),
}


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_result_that_differs_from_its_meta(
    monkeypatch: pytest.MonkeyPatch, wrong: str, gradients: bool, level: str
) -> None:
    monkeypatch.setenv("THUNDER_VERIFY", level)
    fn, words = WRONG[wrong]
    jf = thunder.jit(product, executors=[acme(fn)])
    with pytest.raises(ResultVerificationError) as raised:
        jf(torch.ones(2, 3, requires_grad=gradients), torch.ones(2, 3))
    message = str(raised.value)
    assert "wrong result of acme_mul, which runs mul, of the executor 'acme'" in message
    assert words in message
    assert "the user's line" in message
    assert message.count("THUNDER_DISABLE_PLUGINS=acme-kernels runs without it") == 1


@pytest.mark.parametrize(
    "fn", [lambda a, b: a * b + 1, lambda a, b: a * b * float("nan"), lambda a, b: a * b * float("inf")]
)
def test_a_value_that_differs_from_torchs(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any]) -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    monkeypatch.setenv("THUNDER_VERIFY", "1")
    thunder.jit(product, executors=[acme(fn)])(x, y)  # only level 2 compares values
    monkeypatch.setenv("THUNDER_VERIFY", "2")
    with pytest.raises(ResultVerificationError, match="t0 differs from torch's result") as raised:
        thunder.jit(product, executors=[acme(fn)])(x, y)
    assert "the user's line" in str(raised.value)


def test_a_kernel_that_writes_to_its_input_is_compared_with_the_input_from_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THUNDER_VERIFY", "2")
    jf = thunder.jit(product, executors=[acme(lambda a, b: a.add_(1) * b)])
    with pytest.raises(ResultVerificationError, match="differs from torch's result"):
        jf(torch.randn(2, 3), torch.randn(2, 3))


def test_promised_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = OperatorExecutor("acme")
    op = executor.register_operator("acme_mm", meta=ltorch.mm, fn=lambda a, b: (b.mT @ a.mT).contiguous().mT)
    executor.register_implementation(ltorch.mm, op)
    monkeypatch.setenv("THUNDER_VERIFY", "1")
    jf = thunder.jit(lambda a, b: torch.mm(a, b) + 1, executors=[executor])
    with pytest.raises(ResultVerificationError, match=r"strides .* promises contiguous results"):
        jf(torch.ones(2, 3), torch.ones(3, 4))


def test_strides_that_a_program_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = OperatorExecutor("acme")
    op = executor.register_operator("acme_order", meta=ltorch.contiguous, fn=torch.Tensor.contiguous)
    executor.register_implementation(ltorch.contiguous, op)
    monkeypatch.setenv("THUNDER_VERIFY", "1")
    jf = thunder.jit(lambda a: a.contiguous(memory_format=torch.channels_last) + 1, executors=[executor])
    assert jf(torch.ones(2, 3, 4, 5)).stride() == (60, 1, 15, 3)


@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_correct_results_are_unchanged(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("THUNDER_VERIFY", level)
    jf = thunder.jit(product, executors=[acme(lambda a, b: a * b)])
    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    for _ in range(2):
        found, expected = jf(x, y), product(x, y)
        torch.testing.assert_close(found, expected)
        (g,), (h,) = torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x)
        torch.testing.assert_close(g, h)
    assert thunder.cache_hits(jf) == 1


def test_traces_show_no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for level in ("0", "2"):
        monkeypatch.setenv("THUNDER_VERIFY", level)
        jf = thunder.jit(product, executors=[acme(lambda a, b: a * b)])
        jf(torch.ones(2, 3), torch.ones(2, 3))
        texts.append(thunder.last_traces(jf)[-1].python().partition("\n")[2])
    assert texts[0] == texts[1]


def test_random_draws_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would draw again, and the numbers that follow would be others."""
    executor = OperatorExecutor("acme")
    op = executor.register_operator("acme_rand_like", meta=lambda a: TensorProxy(like=a), fn=torch.rand_like)
    executor.register_implementation(ltorch.rand_like, op)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x), torch.rand_like(x)

    monkeypatch.setenv("THUNDER_VERIFY", "2")
    jf = thunder.jit(f, executors=[executor])
    x = torch.ones(3)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    assert all(map(torch.equal, jf(x), expected))


class Fuser(FusionExecutor):
    """Runs each program as one fusion, whose kernel is given."""

    kernel: Callable[..., Any]

    def fusion_pass(self, trace: Any) -> Any:
        from thunder.core import prims

        out = trace.derive("Fusion")
        ops = [op for op in trace.bound_symbols if not op.sym.is_structural]
        ends = [op for op in trace.bound_symbols if op.sym.is_return]
        begins = [op for op in trace.bound_symbols if op.sym is prims.unpack_trivial]
        fused = self.register_temporary_operation(
            "acme_fusion", self.kernel, inputs=trace.args, outputs=ops[-1].output, bsyms=ops
        )
        out.bound_symbols[:] = [*begins, fused, *ends]
        return out


def test_a_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_VERIFY", "2")
    fuser = Fuser("acme")
    for id in (ltorch.mul, ltorch.sin, ltorch.add):
        fuser.register_supported(id)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    fuser.kernel = product
    torch.testing.assert_close(thunder.jit(product, executors=[fuser])(x, y), product(x, y))
    fuser.kernel = lambda a, b: torch.sin(a * b) + 2
    with pytest.raises(ResultVerificationError, match="acme_fusion, which runs mul, sin, add, of the executor 'acme'"):
        thunder.jit(product, executors=[fuser])(x, y)
