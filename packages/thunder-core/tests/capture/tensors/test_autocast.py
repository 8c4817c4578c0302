# SPDX-License-Identifier: Apache-2.0
"""Autocast: the policies of operations, and casts inside of composed and of opaque operations."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.capture.tensors.autocast import is_composite
from thunder.core.symbol import Symbol
from thunder.torch.base import all_torchsymbols

A, B, C = (torch.randn(3, 3, generator=torch.Generator().manual_seed(i)) for i in range(3))
torch.manual_seed(0)
CELLS = [cell(3, 3) for cell in (nn.GRUCell, nn.LSTMCell, nn.RNNCell)]
NETWORKS = [network(3, 3) for network in (nn.GRU, nn.LSTM, nn.RNN)]

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cov": torch.cov,
    "corrcoef": torch.corrcoef,
    "prelu": lambda x: nn.functional.prelu(x, A[0, :1]),
    "inner": lambda x: torch.inner(x, A),
    "inner product": lambda x: torch.inner(x[0], A[0]),
    "tensordot": lambda x: torch.tensordot(x, A, 1),
    "tensordot to one element": lambda x: torch.tensordot(x, A, 2),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, A),
    "einsum of products": lambda x: torch.einsum("ij,ij->ij", x, A),
    "matrix_power": lambda x: torch.linalg.matrix_power(x, 3),
    "bilinear": lambda x: nn.functional.bilinear(x, A, torch.stack([A, B]), None),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, A, B]),
    "chain_matmul": lambda x: torch.chain_matmul(x, A, B),
    "svd_lowrank": lambda x: torch.svd_lowrank(x @ A, q=2)[1],
    "local_response_norm": lambda x: nn.functional.local_response_norm((x @ A)[None, :, None], 2),
    **{f"{type(m).__name__}": lambda x, m=m: m(x) for m in (*CELLS, *NETWORKS)},
}

# Functions that autocast computes in float32 on the CPU.
IN_FLOAT32: dict[str, Callable[[torch.Tensor], Any]] = {
    "reflect": lambda x: nn.functional.pad(x, (1, 1), "reflect"),
    "replicate": lambda x: nn.functional.pad(x, (1, 1), "replicate"),
    "max_pool3d": lambda x: nn.functional.max_pool3d(x.expand(1, 2, 3, 3), 2),
    "adaptive_avg_pool3d": lambda x: nn.functional.adaptive_avg_pool3d(x.expand(1, 2, 3, 3), 2),
    "adaptive_max_pool3d": lambda x: nn.functional.adaptive_max_pool3d(x.expand(1, 2, 3, 3), 2, True),
    "area": lambda x: nn.functional.interpolate(x.expand(1, 1, 2, 3, 3), 2, mode="area"),
    "fractional_max_pool2d": lambda x: nn.functional.fractional_max_pool2d(
        x[None], 2, 2, _random_samples=torch.zeros(1, 1, 2)
    ),
    "max_unpool1d": lambda x: nn.functional.max_unpool1d(x, torch.tensor([[0, 2, 4]] * 3), 2),
    "grid_sampler": lambda x: torch.grid_sampler_2d(x[None, None], x[None, :, :2, None].expand(1, 3, 2, 2), 0, 0, True),
    "qr": lambda x: torch.linalg.qr(x)[1],
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(x @ x.mT + 4 * torch.eye(3))[0],
    "ctc_loss": lambda x: nn.functional.ctc_loss(
        x[:, None].log_softmax(-1), torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1])
    ),
    "view_as_complex": lambda x: torch.view_as_complex(x[:, :2].contiguous()).abs(),
}
OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "circular": lambda x: nn.functional.pad(x, (1, 1), "circular"),
    "constant": lambda x: nn.functional.pad(x, (1, 1)),
    "reflect in 3d": lambda x: nn.functional.pad(x.expand(1, 2, 3, 3), (1,) * 4 + (0, 1), "reflect"),
    "istft": lambda x: torch.istft(torch.complex(x.float(), x.float()), 4, window=torch.ones(4)),
    "pdist": lambda x: nn.functional.pdist(x.float()),
}


def _names_in_aten(sym: Symbol) -> list[str]:
    path = str(sym.id).split(".")
    return [getattr(sym.reference, "__name__", ""), "_".join(path[1:]), path[-1]]


@pytest.mark.parametrize(("device", "key"), [("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")])
def test_torch_casts_for_the_operations_that_have_a_policy(device: str, key: str) -> None:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    casting = {name.removeprefix("aten::").partition(".")[0] for name in registered}
    wrong = []
    for sym in all_torchsymbols().values():
        operator = next((name for name in _names_in_aten(sym) if hasattr(torch.ops.aten, name)), None)
        if operator is None or sym.id is None or not str(sym.id).startswith("torch."):
            continue
        declared = device in sym.facts.autocast
        # The policy of an operation that torch composes of others may be that of its parts.
        if declared != (operator in casting) and not (declared and is_composite(str(sym.id))):
            wrong.append(operator)
    # On GPUs, torch refuses to run this function under autocast.
    assert set(wrong) <= ({"binary_cross_entropy"} if device == "cuda" else set())


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def _error_of_torch(f: Callable[..., Any], inside: bool) -> str | None:
    """Return the message of the error that eager mode raises, or None."""
    try:
        with torch.autocast("cpu", enabled=not inside):
            f(C.clone().requires_grad_())
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("name", CALLS)
def test_parts_are_cast_as_torch_casts_them(name: str, inside: bool) -> None:
    fn = CALLS[name]

    def under(x: torch.Tensor) -> Any:
        with torch.autocast("cpu") if inside else contextlib.nullcontext():
            return fn(x)

    jitted = thunder.jit(under, sharp_edges="error")
    if (unsupported := _error_of_torch(under, inside)) is not None:  # some processors have no LSTM in bfloat16
        with pytest.raises(RuntimeError, match=re.escape(unsupported)), torch.autocast("cpu", enabled=not inside):
            jitted(C.clone().requires_grad_())
        return
    for _ in range(2):
        results = []
        for run in (jitted, under):
            torch.manual_seed(0)  # `svd_lowrank` draws numbers
            x = C.clone().requires_grad_()
            with torch.autocast("cpu", enabled=not inside):
                out = _tensors(run(x))
            (gradient,) = torch.autograd.grad([y.float().sum() for y in out], x)
            results.append(([y.detach() for y in out], gradient))
        (found, gradient), (wanted, expected) = results
        assert [y.dtype for y in found] == [y.dtype for y in wanted]
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(gradient, expected, rtol=2e-2, atol=2e-2)


def test_an_operation_without_casts_stays_whole() -> None:
    with torch.autocast("cpu"):
        jitted = thunder.jit(lambda x: torch.cosine_similarity(x, A))
        jitted(C)
    assert "ltorch.cosine_similarity(" in str(thunder.last_traces(jitted)[0])


def test_a_disabled_region_inside() -> None:
    def f(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            return torch.linalg.matrix_power(x, 2) @ A

    x = C.clone().requires_grad_()
    with torch.autocast("cpu"):
        out, expected = thunder.jit(f, sharp_edges="error")(x), f(x)
    assert out.dtype is expected.dtype is torch.float32
    torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (out, expected)])


@pytest.mark.parametrize("name", [*IN_FLOAT32, *OTHERS])
def test_inputs_in_low_precision(name: str) -> None:
    def under(x: torch.Tensor) -> Any:
        with torch.autocast("cpu"):
            return {**IN_FLOAT32, **OTHERS}[name](x)

    results = []
    for run in (thunder.jit(under, sharp_edges="error"), under):
        x = C.bfloat16().requires_grad_()
        out = [y for y in _tensors(run(x)) if y.is_floating_point()]
        results.append((out, torch.autograd.grad([y.float().sum() for y in out], x)))
    (found, gradients), (wanted, expected) = results
    assert [y.dtype for y in found] == [y.dtype for y in wanted]
    assert name in OTHERS or wanted[0].dtype is torch.float32
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "intermediate"])
@pytest.mark.parametrize("name", ["matrix_power", "bilinear"])
def test_gradients_are_cast_back_where_torch_does(name: str, leaf: bool) -> None:
    """A leaf is cast once, an intermediate for each use; the backward of `bilinear` is not cast at all."""

    def f(x: torch.Tensor) -> Any:
        with torch.autocast("cpu"):
            return CALLS[name](x if leaf else x * 1)

    results = []
    for run in (thunder.jit(f, sharp_edges="error"), f):
        x = (C * 3).requires_grad_()
        results.append(torch.autograd.grad(run(x).float().sum(), x)[0])
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_casts_of_a_program_are_not_kept_for_the_caller() -> None:
    """A cast without gradients in torch's cache would hide the gradient of a later operation of the caller."""
    x = C.clone().requires_grad_()
    with torch.autocast("cpu"):
        out = thunder.jit(lambda x: torch.linalg.matrix_power(x, 3), sharp_edges="error")(x)
        out.float().sum().backward()
        assert (x @ A).requires_grad


def half(x: torch.Tensor) -> torch.Tensor:
    """Cast as users do; the reference stays in float64."""
    return x if x.dtype is torch.float64 or not torch.is_autocast_enabled("cpu") else x.to(torch.bfloat16)


READERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "linear": nn.functional.linear,
    "matmul": lambda x, w: x @ w,
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "addmm": lambda x, w: torch.addmm(w[0], x, w),
    "a transposed view": lambda x, w: w @ half(x).mT,
    "views": lambda x, w: torch.bmm(half(x).view(2, 4, 24).transpose(0, 1), w.expand(4, 24, 24)),
    "a product": lambda x, w: (half(x) * 1.25) @ w,
    "an activation": lambda x, w: nn.functional.gelu(half(x)) @ w,
}


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", READERS)
def test_gradients_of_one_tensor_are_as_precise_as_eagers(name: str, leaf: bool) -> None:
    """Casts of one tensor are merged, but the gradients of all of them are summed in float32, as in eager."""
    read = READERS[name]
    errors = {"eager": 0.0, "thunder": 0.0}
    for seed in range(3):
        torch.manual_seed(seed)
        weights = [torch.randn(24, 24) for _ in range(16)]
        start = torch.randn(8, 24)
        factors = [torch.randn_like(read(start, w)) for w in weights]

        def loss(x: torch.Tensor, weights: list[torch.Tensor] = weights, factors: Any = factors) -> torch.Tensor:
            y = x if leaf else x * 1.5
            return torch.stack([(read(y, w).to(x.dtype) * c).sum() for w, c in zip(weights, factors)]).sum()

        def gradient(fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            x = start.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                out = fn(x)
            (found,) = torch.autograd.grad(out, x)
            assert found.dtype is torch.float32
            return found

        x = start.double().requires_grad_()
        wide = loss(x, [w.double() for w in weights], [c.double() for c in factors])
        (right,) = torch.autograd.grad(wide, x)
        for who, fn in (("eager", loss), ("thunder", thunder.jit(loss))):
            errors[who] += ((gradient(fn).double() - right).norm() / right.norm()).item()
    # A sum that is read by a rule that computes is rounded once more.
    assert errors["thunder"] <= 1.2 * errors["eager"]


def test_real_parts_of_merged_casts() -> None:
    """The gradient of a real part stays real when the casts before it are merged."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return sum((x.to(torch.complex64).real * k).sin().sum() for k in range(1, 4))

    x, y = (torch.linspace(0, 1, 6).to(torch.complex128).requires_grad_() for _ in range(2))
    thunder.jit(f, sharp_edges="error")(x).backward()
    f(y).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fn", [lambda x: nn.functional.affine_grid(x[None, :2], [1, 1, 2, 2]), torch.linalg.pinv])
def test_products_inside_of_operations(fn: Any) -> None:
    """torch casts them, but fake tensors do not show it: the call runs eagerly."""

    def f(x: torch.Tensor) -> Any:
        with torch.autocast("cpu"):
            return fn(x) * 2

    with pytest.warns(thunder.FallbackWarning, match="under autocast"):
        found = thunder.jit(f)(A)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, f(A))
    torch.testing.assert_close(thunder.jit(fn)(A), fn(A))


def _same_batched(f: Callable[..., Any], *inputs: torch.Tensor, dims: tuple[int | None, ...]) -> None:
    """Check a function of one example under vmap and autocast against torch."""

    def g(*batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.vmap(f, dims)(*batch)

    torch.testing.assert_close(thunder.jit(g)(*inputs), g(*inputs))


@pytest.mark.parametrize("dims", [(0, None, None), (0, 0, 0)])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, w, b: torch.softmax(nn.functional.linear(x, w), -1) * x.sum(),
        lambda x, w, b: torch.stack([torch.einsum("i,ij->j", x, w), x]).relu(),
        lambda x, w, b: torch.func.grad(lambda v: nn.functional.linear(x, v).square().mean())(w),
    ],
)
@pytest.mark.filterwarnings("error:.*runs eagerly")
def test_products_under_vmap(f: Any, dims: Any) -> None:
    torch.manual_seed(0)
    sizes = [(8, 8), (8,)] if None in dims else [(4, 8, 8), (4, 8)]
    _same_batched(f, torch.randn(4, 8), *map(torch.randn, sizes), dims=dims)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w, b: torch.softmax(nn.functional.linear(x, w, b), -1),  # autocast does not see the bias
        lambda x, w, b: torch.dot(x, b),  # it sees a product of matrices
        lambda x, w, b: torch.mv(w, x),
        lambda x, w, b: torch.inner(x, b),
        lambda x, w, b: nn.functional.conv1d(x[None], w[:, None, :3]),
        lambda x, w, b: nn.functional.scaled_dot_product_attention(*3 * [x.view(1, 2, 4)]),
        lambda x, w, b: nn.functional.cross_entropy(nn.functional.linear(x, w), torch.tensor(1)),
        lambda x, w, b: nn.functional.layer_norm(nn.functional.linear(x, w), (8,), b, b),
    ],
)
def test_what_autocast_sees_otherwise_under_vmap_runs_eagerly(f: Any) -> None:
    torch.manual_seed(0)
    with pytest.warns(thunder.FallbackWarning, match="under vmap and autocast"):
        _same_batched(f, torch.randn(4, 8), torch.randn(4, 8, 8), torch.randn(4, 8), dims=(0, 0, 0))
