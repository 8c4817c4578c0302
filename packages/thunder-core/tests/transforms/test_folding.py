# SPDX-License-Identifier: Apache-2.0
"""Constants are computed when a program is compiled, where nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.transforms import ConstantFoldingTransform
from thunder.transforms.folding import is_literal


def jit(fn: Callable[..., Any], **options: Any) -> Any:
    """With constants folded."""
    return thunder.jit(fn, transforms=[ConstantFoldingTransform(**options)])


def operations(jitted: Any) -> list[str]:
    """The names of what runs."""
    skipped = ("unpack_trivial", "python_del", "python_return")
    return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name not in skipped]


def positions(x: torch.Tensor) -> torch.Tensor:
    """Rotary frequencies and a causal mask, from constants alone."""
    n = x.shape[-1]
    angles = torch.outer(torch.arange(n).float(), 1.0 / 10000 ** (torch.arange(0, n, 2).float() / n))
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return (x * angles.cos().sum(-1)).masked_fill(~mask, -1.0)


def test_numbers() -> None:
    """What is left is what depends on the input."""
    f, x = jit(positions), torch.randn(6, 6)
    for _ in range(2):
        torch.testing.assert_close(f(x), positions(x))
    names = operations(f)
    assert [n.rpartition("_")[0] for n in names[:1]] == ["constant"]
    assert "arange" not in names and "tril" not in names and "cos" not in names
    assert len(names) == 4
    assert "Constant Folding" in [t.provenance.name for t in thunder.last_traces(f) if t.provenance]


def test_gradients() -> None:
    """The same as without."""
    x = torch.randn(4, 4, requires_grad=True)
    jit(positions)(x).sum().backward()
    found, x.grad = x.grad, None
    positions(x).sum().backward()
    torch.testing.assert_close(found, x.grad)


def test_text_runs() -> None:
    """The constants are among the names that the text needs."""
    f, x = jit(positions), torch.randn(4, 4)
    expected, trace = f(x), thunder.last_traces(f)[-1]
    namespace = trace.python_ctx()
    exec(str(trace), namespace)
    assert torch.equal(namespace["computation"](x), expected)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.zeros(3),  # the caller may write to it
        lambda x: (torch.ones(3, 3).t()[0], x),  # or to what it is a view of
        lambda x: x + torch.rand(3),  # drawn at each call
        lambda x: x.sin(),  # nothing to fold
    ],
)
def test_what_stays(fn: Callable[..., Any]) -> None:
    """Whatever another call could see."""
    f = jit(fn)
    f(torch.ones(3))
    assert not any(name.startswith("constant") for name in operations(f))


def test_what_is_returned_is_new() -> None:
    """Writing to a result changes no other."""
    f = jit(lambda x: (torch.arange(3) + 1, x))
    f(torch.ones(1))[0].zero_()
    assert f(torch.ones(1))[0].tolist() == [1, 2, 3]


def test_large_results_stay() -> None:
    """Memory is kept for them only where it is little; what they are made of is then not kept either."""
    f, x = jit(lambda x: x + torch.arange(300).float().expand(300, 300).contiguous(), max_bytes=2000), torch.ones(300)
    torch.testing.assert_close(f(x), x + torch.arange(300).float().expand(300, 300))
    assert not any(name.startswith("constant") for name in operations(f))


def test_literals() -> None:
    """Numbers, dtypes, containers of them; not objects of which nothing is known."""
    assert is_literal((1, 2.0, None, [torch.float32, {"a": slice(1, None)}], ..., "mean", float))
    assert not is_literal((1, object()))
