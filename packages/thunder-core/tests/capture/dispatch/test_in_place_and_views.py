# SPDX-License-Identifier: Apache-2.0
"""From torch's functions to operations: every way to write in place or to take a view."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from dispatched_calls import left_to_python, value
from torch.nn import functional as F

import thunder

# What the arguments of a call stand for.
SQUARE, ROW, MASK, COLUMNS, ORDER, BATCH = (object() for _ in range(6))
CALLS: list[tuple[Any, ...]] = [
    (),
    (2,),
    (SQUARE,),
    (0, 1),
    (SQUARE, SQUARE),
    (0, COLUMNS, SQUARE),
    (COLUMNS, SQUARE),
    (MASK, 2.0),
    (MASK, SQUARE),
    (0.2, 0.7),
    (0, COLUMNS, SQUARE, "sum"),
    (SQUARE, SQUARE, SQUARE),
    (0, ORDER, SQUARE),
    (0, ORDER, 1.5),
    ((ORDER, ORDER), ROW),
    (ROW, ROW),
    (ROW, SQUARE),
    (0,),
    (0.5,),
    (2, 0, 1.0),
    (BATCH, BATCH),
    (0, ORDER, SQUARE, "prod"),
]


def arguments(call: tuple[Any, ...], kind: torch.dtype) -> list[Any]:
    """Real arguments for a call."""
    x = value(kind)
    real = {
        SQUARE: x + (0 if kind.is_floating_point else 1),
        ROW: x[0],
        MASK: torch.eye(3, dtype=torch.bool),
        COLUMNS: torch.tensor([[0, 1, 2]] * 3),
        ORDER: torch.tensor([0, 2, 1]),
        BATCH: x[None].repeat(2, 1, 1),
    }
    return [
        tuple(real.get(i, i) for i in a) if isinstance(a, tuple) else real.get(a, a) if type(a) is object else a
        for a in call
    ]


SHAPES_ITSELF = {
    "resize_",
    "resize_as_",
    "set_",
    "share_memory_",
    "squeeze_",
    "swapaxes_",
    "swapdims_",
    "t_",
    "transpose_",
    "unsqueeze_",
    "as_strided_",
    "rename_",
    "requires_grad_",
    "detach_",
    "apply_",
    "map_",
    "map2_",
}
IN_PLACE = sorted(
    n
    for n in dir(torch.Tensor)
    if n.endswith("_") and not n.startswith("_") and callable(getattr(torch.Tensor, n)) and n not in SHAPES_ITSELF
)


def eager_call(name: str) -> tuple[torch.dtype, tuple[Any, ...], Any] | None:
    """A call of an in-place method that eager takes, as a function of one tensor."""
    for kind in (torch.float64, torch.int64, torch.bool):
        for call in CALLS:

            def f(x: Any, *rest: Any) -> Any:
                y = x.clone()
                flat = y.view(-1)
                return getattr(y, name)(*rest), y, flat

            try:
                torch.manual_seed(0)
                if all(isinstance(t, torch.Tensor) for t in f(value(kind), *arguments(call, kind))):
                    return kind, call, f
            except Exception:
                continue
    return None


@pytest.mark.parametrize("name", IN_PLACE)
def test_every_in_place_method(name: str) -> None:
    """It writes to its tensor and to what shares its memory, and draws what eager draws."""
    found = eager_call(name)
    if found is None:  # its arguments are of no kind that is tried here
        assert name in {"addmv_", "baddbmm_", "resize_as_sparse_", "sparse_resize_", "sparse_resize_and_clear_"}
        return
    kind, call, f = found
    torch.manual_seed(0)
    expected = f(value(kind), *arguments(call, kind))
    torch.manual_seed(0)
    got = thunder.jit(f)(value(kind), *arguments(call, kind))
    for g, e in zip(got, expected):
        torch.testing.assert_close(g, e, equal_nan=True)
    assert got[0] is got[1]


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("resize_", (8,)),
        ("resize_as_", (torch.ones(2, 4),)),
        ("set_", (torch.eye(3).double(),)),
        ("share_memory_", ()),
    ],
)
def test_methods_that_change_a_tensors_memory(name: str, rest: Any) -> None:
    """Run as Python."""
    why = r"the memory of a tensor|no trace can record"
    left_to_python(lambda x: getattr(x * 1, name)(*rest), value(torch.float64), why=why)


ACTIVATIONS = [
    F.relu,
    F.relu6,
    F.elu,
    F.selu,
    F.celu,
    F.leaky_relu,
    F.silu,
    F.mish,
    F.hardswish,
    F.hardsigmoid,
    F.hardtanh,
    F.dropout,
    F.threshold,
    F.alpha_dropout,
    F.rrelu,
]


@pytest.mark.parametrize("fn", ACTIVATIONS, ids=lambda f: f.__name__)
def test_activations_in_place(fn: Any) -> None:
    """`inplace=True` by name and by position, through views too."""
    position = list(inspect.signature(fn).parameters).index("inplace")
    names = list(inspect.signature(fn).parameters.values())[1:position]
    middle = [0.3 if p.default is p.empty else p.default for p in names]

    def f(x: Any) -> Any:
        y, z = x * 1, x * 2
        return fn(y[1:], *middle, inplace=True), fn(z, *middle, True), y, z

    x = value(torch.float64) - 0.5
    results = []
    for g in (f, thunder.jit(f)):
        torch.manual_seed(0)
        results.append(g(x))
    torch.testing.assert_close(*reversed(results))
    assert torch.equal(x, value(torch.float64) - 0.5)


VIEWS = {
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "H": lambda x: x.H,
    "t": torch.t,
    "adjoint": torch.adjoint,
    "swapaxes": lambda x: torch.swapaxes(x, 0, 1),
    "moveaxis": lambda x: torch.moveaxis(x, 0, 1),
    "ravel": torch.ravel,
    "diagonal": torch.diagonal,
    "select": lambda x: torch.select(x, 0, 1),
    "narrow": lambda x: torch.narrow(x, 1, 0, 2),
    "split": lambda x: torch.split(x, 2)[0],
    "chunk": lambda x: torch.chunk(x, 2, 1)[1],
    "unbind": lambda x: torch.unbind(x)[2],
    "tensor_split": lambda x: torch.tensor_split(x, 2)[1],
    "hsplit": lambda x: torch.hsplit(x, 3)[1],
    "vsplit": lambda x: torch.vsplit(x, (1,))[0],
    "flatten": torch.flatten,
    "view": lambda x: x.view(9),
    "bits": lambda x: x.view(torch.int64),
    "view_as": lambda x: x.view_as(x),
    "reshape_as": lambda x: x.reshape_as(x.T),
    "expand_as": lambda x: x.expand_as(x),
    "squeeze": lambda x: x[None].squeeze(0),
    "unflatten": lambda x: x.unflatten(0, (1, 3)),
    "iteration": lambda x: next(row for row in x),
    "unpacking": lambda x: (lambda a, *rest: a)(*x),
    "index": lambda x: x[torch.tensor(1)],
    "ellipsis": lambda x: x[..., None, 0],
    "steps": lambda x: x[::2, 1:],
    "detach": torch.detach,
    "data": lambda x: x.data,
    "movedim": lambda x: x.movedim(-1, 0),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1)),
    "permute": lambda x: x.permute(1, 0),
    "real": lambda x: x.real,
    "atleast_3d": torch.atleast_3d,
    "unfold": lambda x: x.unfold(0, 2, 2),
    "contiguous": lambda x: x.contiguous(),
    "broadcast_to": lambda x: x.broadcast_to(3, 3),
    "to": lambda x: x.to(torch.float64),
    "type_as": lambda x: x.type_as(x),
    "double": lambda x: x.double(),
    "cpu": lambda x: x.cpu(),
    "real of complex": lambda x: torch.complex(x, x).real,
    "view_as_real": lambda x: torch.view_as_real(torch.complex(x, x)),
    "imag": lambda x: torch.complex(x, x).imag,
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view(name: str) -> None:
    """A write through it reaches its base, a write to the base reaches it."""

    def f(x: Any) -> Any:
        base = x * 1
        view = VIEWS[name](base)
        if view.is_floating_point():
            view.mul_(3)
        else:
            view.bitwise_xor_(4)
        between = view.clone(), base.clone()
        base.add_(1)
        return view, base, *between

    x = value(torch.float64)
    for found, expected in zip(thunder.jit(f)(x), f(x)):
        assert torch.equal(found, expected)


def test_out_arguments() -> None:
    """One or several, the same as an input, a part of a tensor."""

    def f(x: Any) -> Any:
        a, b, i = (
            torch.empty(3, 3, dtype=x.dtype),
            torch.zeros(2, 3, 3, dtype=x.dtype),
            torch.empty(3, dtype=torch.int64),
        )
        m = torch.empty(3, dtype=x.dtype)
        first = torch.add(x, 1, out=a)
        torch.mul(a, a, out=a)
        torch.exp(x, out=b[1])
        torch.max(x, 1, out=(m, i))
        torch.matmul(x, x, out=b[0])
        return first, a, b, m, i

    x = value(torch.float64)
    found, expected = thunder.jit(f)(x), f(x)
    torch.testing.assert_close(found, expected)
    assert found[0] is found[1]


def test_augmented_assignments() -> None:
    """Of Python, to tensors, to parts of them, to attributes."""

    def f(x: Any) -> Any:
        y = x.clone()
        z = y
        y += 1
        y *= x
        y -= 2
        y /= 3
        y **= 2
        y[0] += 5
        y[:, 1] *= y[:, 0]
        y %= 2
        y //= 0.5
        i = (x * 10).long()
        i |= 1
        i &= 7
        i ^= 2
        i <<= 1
        i >>= 2
        y @= x
        return y, z, i

    x = value(torch.float64)
    torch.testing.assert_close(thunder.jit(f)(x), f(x))
