# SPDX-License-Identifier: Apache-2.0
"""Compares results of programs: tensors in containers and objects, with types and names of attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["RTOL", "Difference", "compare", "flatten", "tensors_of"]

# A value may differ from eager's by this, relative to the largest value of this dtype in the result, the gradients or
# the state: executors may sum in another order.
RTOL = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2, torch.complex64: 1e-4}
_DEPTH = 6


class Difference(Exception):
    """The result differs from eager's."""


def flatten(x: Any, path: str = "", depth: int = 0, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a result with their paths: tensors, numbers, strings, and the classes of other objects."""
    seen = set() if seen is None else seen
    if isinstance(x, torch.Tensor) or x is None or isinstance(x, (bool, int, float, complex, str, bytes, torch.dtype)):
        yield path, x
        return
    yield f"{path}:class", type(x).__qualname__
    if depth > _DEPTH or id(x) in seen:
        return
    seen.add(id(x))
    if isinstance(x, Mapping):
        items = [(f"{path}[{key!r}]", value) for key, value in x.items()]
    elif isinstance(x, (list, tuple)):
        items = [(f"{path}[{i}]", value) for i, value in enumerate(x)]
    elif isinstance(x, torch.nn.Module):
        items = [(f"{path}.{key}", value) for key, value in x.state_dict().items()]
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        items = [(f"{path}.{each.name}", getattr(x, each.name, None)) for each in dataclasses.fields(x)]
    elif hasattr(x, "to_dict") and callable(x.to_dict) and not isinstance(x, type):
        items = [(f"{path}.{key}", value) for key, value in x.to_dict().items()]
    else:
        values = getattr(x, "__dict__", {}) if not isinstance(x, type) and not callable(x) else {}
        items = [(f"{path}.{key}", value) for key, value in values.items()]
    for name, value in items:
        yield from flatten(value, name, depth + 1, seen)


def tensors_of(x: Any) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    return [leaf for _, leaf in flatten(x) if isinstance(leaf, torch.Tensor)]


def compare(ours: Any, theirs: Any, what: str) -> None:
    """Raise Difference if a result is not eager's."""
    left, right = list(flatten(ours)), list(flatten(theirs))
    if [name for name, _ in left] != [name for name, _ in right]:
        names = {name for name, _ in left} ^ {name for name, _ in right}
        raise Difference(f"{what}: the structures differ ({', '.join(sorted(names)[:4])})")
    scales: dict[torch.dtype, float] = {}
    for _, b in right:
        if isinstance(b, torch.Tensor) and (b.is_floating_point() or b.is_complex()):
            scales[b.dtype] = max(scales.get(b.dtype, 0.0), _largest(b))
    for (name, a), (_, b) in zip(left, right):
        _compare_leaf(a, b, f"{what}{name}", scales)


def _largest(x: torch.Tensor) -> float:
    """Return the largest finite magnitude in a tensor."""
    values = (x.to_dense() if x.layout != torch.strided else x).detach()
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _compare_leaf(a: Any, b: Any, what: str, scales: dict[torch.dtype, float]) -> None:
    if not isinstance(b, torch.Tensor) or not isinstance(a, torch.Tensor):
        close = isinstance(b, float) and isinstance(a, float) and (a == b or abs(a - b) <= 1e-4 * abs(b) or a != a)
        if type(a) is not type(b) or not (close or a == b):
            raise Difference(f"{what} is {a!r}, and is {b!r} in eager mode")
        return
    facts = [(type(t).__name__, t.dtype, tuple(t.shape), t.requires_grad) for t in (a, b)]
    if facts[0] != facts[1]:
        raise Difference(f"{what} is {facts[0]}, and is {facts[1]} in eager mode")
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    a, b = a.detach(), b.detach()
    if not (a.is_floating_point() or a.is_complex()):
        if not torch.equal(a, b):
            raise Difference(f"{what} differs from eager")
        return
    rtol = RTOL.get(a.dtype, 1e-4)
    scale = scales[b.dtype]
    if not torch.allclose(a, b, rtol=rtol, atol=rtol * scale + 1e-8, equal_nan=True):
        worst = float((a - b).abs().nan_to_num().max())
        raise Difference(f"{what} differs from eager by {worst:.2e}; the largest value is {scale:.2e}")
