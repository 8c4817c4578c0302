# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products: eager's results and gradients to the bit, in eager's layout, and no opaque operation."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from outcomes import result_or_error

import thunder
from thunder.core.errors import FallbackWarning
from thunder.core.symbol import OpTags

ENDS = (8, 8, 19, 32)
FORMS = {
    "rows": ((32, 16), (4, 16, 24), ENDS),
    "columns": ((4, 16, 24), (24, 32), ENDS),
    "inner": ((16, 32), (32, 24), ENDS),
    "batches": ((4, 16, 24), (4, 24, 32), None),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _factor(shape: tuple[int, ...], dtype: torch.dtype, column_major: bool = False, gap: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if column_major:
        return _factor((*shape[:-2], shape[-1], shape[-2]), dtype, gap=gap).mT.detach().requires_grad_()
    whole = torch.randn(*shape[:-1], shape[-1] + gap, generator=generator).to(dtype)
    return whole[..., : shape[-1]].requires_grad_()


def _ends(ends: tuple[int, ...] | None) -> torch.Tensor | None:
    return None if ends is None else torch.tensor(ends, dtype=torch.int32)


def _product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    return F.grouped_mm(a, b, offs=offs)


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 2, x.numel()).to(x.dtype).reshape(x.shape)


def _derivatives(fn: Any, a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> list[torch.Tensor]:
    """The result, its gradients, and theirs."""
    out = fn(a, b, offs)
    first = torch.autograd.grad(out, [a, b], _like(out), create_graph=True)
    return [out, *first, *torch.autograd.grad(first, [a, b], [_like(x) for x in first])]


def _opaque(fn: Any) -> list[str]:
    traces = [thunder.last_traces(fn)[-1], *(thunder.last_backward_traces(fn) or [])[-1:]]
    return [op.sym.name for trace in traces for op in trace.bound_symbols if OpTags.OPAQUE_OP in op.sym.tags]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_derivatives(form: str, dtype: torch.dtype) -> None:
    """Of first and second order: eager's bits and strides, for factors in any layout that torch accepts."""
    left, right, ends = FORMS[form]
    for *columns, gap in itertools.product((False, True), (False, True), (0, 8)):
        a, b = (_factor(shape, dtype, column, gap) for shape, column in zip((left, right), columns))
        fast = thunder.jit(_product)
        for ours, theirs in zip(_derivatives(fast, a, b, _ends(ends)), _derivatives(_product, a, b, _ends(ends))):
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()
        assert not _opaque(fast)


def test_frozen_factors() -> None:
    """One gradient only; a first factor that is read by nothing else is not saved for its strides."""
    a, b, ends = _factor((32, 16), torch.float32), _factor((4, 24, 16), torch.float32), _ends(ENDS)

    def layer(a: Any, b: Any, ends: Any) -> Any:
        return F.grouped_mm(a.cos(), b.mT, offs=ends)

    for frozen in (a, b):
        fast = thunder.jit(layer)
        found = []
        with torch.no_grad():
            given = [x.detach().requires_grad_(x is not frozen) for x in (a, b)]
        for run in (fast, layer):
            out = run(*given, ends)
            found.append(torch.autograd.grad(out, [x for x in given if x.requires_grad], _like(out)))
        for ours, theirs in zip(*found):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
        if frozen is b:
            trace = thunder.last_traces(fast)[-1]
            saved = trace.output[1]
            assert not {p.name for p in saved} & {op.out_names[0] for op in trace.bound_symbols if op.sym.name == "cos"}


def test_rows_in_no_group() -> None:
    """They are undefined, also in the gradient of the first factor. What is in a group does not depend on them."""
    a, b, ends = _factor((32, 16), torch.float32), _factor((4, 16, 24), torch.float32), _ends((8, 8, 16, 24))
    found = []
    for run in (thunder.jit(_product), _product):
        out = run(a, b, ends)
        of_a, of_b = torch.autograd.grad(out, [a, b], _like(out))
        found.append([out[:24], of_a[:24], of_b])
    for ours, theirs in zip(*found):
        assert torch.equal(ours, theirs)


def test_training_of_experts() -> None:
    """Steps of an optimizer are eager's to the bit; a jitted step contains no opaque operation."""

    def train(jitted: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        up, down = (torch.nn.Parameter(torch.randn(shape) / 4) for shape in ((4, 24, 16), (4, 16, 24)))
        optimizer = torch.optim.SGD([up, down], lr=0.1, momentum=0.9)

        def step(x: Any, ends: Any) -> Any:
            optimizer.zero_grad()
            hidden = F.silu(F.grouped_mm(x, up.mT, offs=ends))
            loss = (F.grouped_mm(hidden, down.mT, offs=ends) - x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = thunder.jit(step) if jitted else step
        losses = [
            run(torch.randn(32, 16), torch.tensor(ends, dtype=torch.int32)) for ends in (ENDS, ENDS, (0, 4, 5, 32))
        ]
        if jitted:
            assert not _opaque(run)
            assert thunder.cache_hits(run) == 1
        return [*losses, up.detach(), down.detach()]

    for ours, theirs in zip(train(True), train(False)):
        assert torch.equal(ours, theirs)


def test_the_gradient_of_a_mean() -> None:
    """A gradient whose elements share memory is copied, because torch's kernels reject it."""
    a, b, ends = _factor((32, 16), torch.float32), _factor((4, 16, 24), torch.float32), _ends(ENDS)
    fast = thunder.jit(lambda a, b, ends: F.grouped_mm(a, b, offs=ends).sum())
    fast(a, b, ends).backward()
    of_a, of_b = torch.autograd.grad(_product(a, b, ends), [a, b], torch.ones(32, 24))
    assert torch.equal(a.grad, of_a) and torch.equal(b.grad, of_b)


def test_symbolic_sizes() -> None:
    """One program for any number of rows and any groups."""
    fast = thunder.jit(_product, cache="symbolic values")
    for ends in ((8, 8, 16, 32), (0, 3, 40, 48), (1, 2, 3, 4)):
        a, b = _factor((ends[-1], 16), torch.float32), _factor((4, 16, 24), torch.float32)
        for ours, theirs in zip(_derivatives(fast, a, b, _ends(ends)), _derivatives(_product, a, b, _ends(ends))):
            assert torch.equal(ours, theirs)
    assert thunder.cache_misses(fast) <= 2


def test_autocast() -> None:
    """As in eager mode, it casts nothing."""
    a, b, ends = _factor((32, 16), torch.float32), _factor((4, 16, 24), torch.float32), _ends(ENDS)
    fast = thunder.jit(_product)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = fast(a, b, ends), _product(a, b, ends)
    assert ours.dtype == theirs.dtype == torch.float32
    assert torch.equal(ours, theirs)


def test_arguments() -> None:
    """Every spelling, and what torch rejects."""
    a, b, ends = _factor((32, 16), torch.float32), _factor((4, 16, 24), torch.float32), _ends(ENDS)
    for call in (
        lambda a, b, ends: torch._grouped_mm(a, b, ends),
        lambda a, b, ends: torch._grouped_mm(input=a, mat2=b, offs=ends),
        lambda a, b, ends: F.grouped_mm(mat_a=a, mat_b=b, offs=ends, out_dtype=torch.float32, bias=None),
    ):
        fast = thunder.jit(call)
        assert torch.equal(fast(a, b, ends), call(a, b, ends))
        assert not _opaque(fast)
    for args, more in (
        ((a, b, ends), {"bias": b[:, 0]}),
        ((a, b, ends), {"out_dtype": torch.bfloat16}),
        ((a, b, ends.long()), {}),
        ((a, b.bfloat16(), ends), {}),
        ((a, b, None), {}),
        ((a[:, ::2], b[:, :8], ends), {}),
    ):
        call = functools.partial(torch._grouped_mm, **more)
        expected, actual = result_or_error(call, *args), result_or_error(thunder.jit(call), *args)
        assert not isinstance(expected, torch.Tensor)
        assert actual is expected


def test_groups_within_both_matrices() -> None:
    """torch multiplies matrices of different inner sizes if their groups are within both; then it runs eagerly."""
    a, b, ends = torch.randn(16, 40), torch.randn(32, 24), _ends(ENDS)
    with pytest.warns(FallbackWarning, match="contraction dimension"):
        assert torch.equal(thunder.jit(_product)(a, b, ends), _product(a, b, ends))
