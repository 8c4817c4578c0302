# SPDX-License-Identifier: Apache-2.0
"""Random programs that write to tensors in all layouts: values and strides of what they compute are eager's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.capture.dispatch import foreach
from thunder.capture.tensors import layout

SHAPE = (2, 3, 4, 4)


def _permuted(x: torch.Tensor, *order: int) -> torch.Tensor:
    """Return a tensor with the values of `x` whose dimensions are in the given order in memory."""
    return x.permute(order).contiguous().permute([order.index(i) for i in range(4)])


def _with_gaps(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x], -1)[..., : x.shape[-1]]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: _permuted(x, 0, 1, 3, 2),
    "permuted": lambda x: _permuted(x, 3, 1, 0, 2),
    "with gaps": lambda x: _with_gaps(x),
    "permuted, with gaps": lambda x: _with_gaps(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "permuted, with gaps inside": lambda x: torch.cat([x.permute(0, 2, 3, 1)] * 2, 2)[:, :, : x.shape[3]].permute(
        0, 3, 1, 2
    ),
    "a part": lambda x: torch.stack([x, x])[1],
}
SOURCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **LAYOUTS,
    "expanded": lambda x: x[:, :1].expand(SHAPE),
    "smaller": lambda x: x[0, :, :1],
}

_INDEX = torch.tensor([1, 0])

# What is written to: the tensor itself, or a view.
TARGETS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda t: t,
    "mT": lambda t: t.mT,
    "permute": lambda t: t.permute(1, 3, 2, 0),
    "item": lambda t: t[1],
    "slice": lambda t: t[:, 1:],
    "steps": lambda t: t[..., ::2],
    "unsqueeze": lambda t: t.unsqueeze(1),
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
    "detach": lambda t: t.detach(),
    "diagonal": lambda t: t.diagonal(0, 2, 3),
    "reshape": lambda t: t.reshape(2, 12, 4),
}


def _matching(t: Any, y: Any) -> Any:
    """Return a part of `y`, or `y` expanded, in the shape of `t`."""
    if tuple(t.shape) == tuple(y.shape):
        return y
    return y.sum().expand(t.shape) if y.dim() < 4 else y.flatten()[: t.numel()].view(t.shape).mT.clone().mT


def _set(t: Any, key: Any, value: Any) -> None:
    t[key] = value


def _rows(t: Any, y: Any) -> Any:
    return _matching(t, y)[:2] if t.shape[0] > 1 else _matching(t, y)[:1]


def _index(t: Any) -> Any:
    return _INDEX[: min(2, t.shape[0])] if t.shape[0] > 1 else _INDEX[1:]


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda t, y: t.add_(_matching(t, y)),
    "add_ a number": lambda t, y: t.add_(1),
    "mul_": lambda t, y: t.mul_(2),
    "+=": lambda t, y: t.__iadd__(_matching(t, y)),
    "div_": lambda t, y: t.div_(_matching(t, y).abs() + 1),
    "sub_ broadcast": lambda t, y: t.sub_(_matching(t, y).mean(0, keepdim=True)),
    "cumsum_": lambda t, y: t.cumsum_(0),
    "cumsum_ last": lambda t, y: t.cumsum_(-1),
    "cumprod_": lambda t, y: t.cumprod_(1),
    "copy_": lambda t, y: t.copy_(_matching(t, y)),
    "copy_ transposed": lambda t, y: t.copy_(_matching(t, y).clone().transpose(-1, -2).contiguous().transpose(-1, -2)),
    "copy_ broadcast": lambda t, y: t.copy_(y.mean()),
    "copy_ double": lambda t, y: t.copy_(_matching(t, y).double()),
    "copy_ computed": lambda t, y: t.copy_(_matching(t, y).sin() + 1),
    "copy_ of itself": lambda t, y: t.copy_(t.flip(0)),
    "index_copy_": lambda t, y: t.index_copy_(0, _index(t), _rows(t, y)),
    "index_add_": lambda t, y: t.index_add_(0, _index(t), _rows(t, y)),
    "index_fill_": lambda t, y: t.index_fill_(0, _index(t), 2.0),
    "index_put_": lambda t, y: t.index_put_((_index(t),), _rows(t, y)),
    "scatter_": lambda t, y: t.scatter_(0, torch.zeros(t.shape, dtype=torch.int64), _matching(t, y)),
    "masked_fill_": lambda t, y: t.masked_fill_(_matching(t, y) > 0, 0.5),
    "masked_fill_ broadcast": lambda t, y: t.masked_fill_((_matching(t, y) > 0)[:1], 0.5),
    "masked_scatter_": lambda t, y: t.masked_scatter_(t > 0, _matching(t, y)),
    "fill_": lambda t, y: t.fill_(3),
    "fill_ a tensor": lambda t, y: t.fill_(y.sum()),
    "zero_": lambda t, y: t.zero_(),
    "addcmul_": lambda t, y: t.addcmul_(_matching(t, y), _matching(t, y), value=0.5),
    "addcdiv_": lambda t, y: t.addcdiv_(_matching(t, y), _matching(t, y).abs() + 1),
    "lerp_": lambda t, y: t.lerp_(_matching(t, y), 0.3),
    "lerp_ by a tensor": lambda t, y: t.lerp_(_matching(t, y), _matching(t, y).sigmoid()),
    "tril_": lambda t, y: t.tril_(),
    "triu_": lambda t, y: t.triu_(1),
    "clamp_": lambda t, y: t.clamp_(-0.5, 0.5),
    "relu_": lambda t, y: torch.relu_(t),
    "relu inplace": lambda t, y: torch.nn.functional.relu(t, inplace=True),
    "where": lambda t, y: t.copy_(torch.where(_matching(t, y) > 0, _matching(t, y), t)),
    "foreach": lambda t, y: torch._foreach_mul_([t], 2.0),
    "foreach with tensors": lambda t, y: torch._foreach_add_([t], [_matching(t, y)], alpha=0.5),
    "[...] =": lambda t, y: _set(t, ..., _matching(t, y)),
    "[0] =": lambda t, y: _set(t, 0, _matching(t, y)[0]),
    "[:, 1:] =": lambda t, y: _set(t, (slice(None), slice(1, None)), _matching(t, y)[:, 1:]),
    "[index] =": lambda t, y: _set(t, _index(t), _rows(t, y)),
    "[mask] =": lambda t, y: _set(t, _matching(t, y) > 0, 0.0),
    "add(out=)": lambda t, y: torch.add(_matching(t, y), 1, out=t),
    "sin(out=)": lambda t, y: torch.sin(_matching(t, y), out=t),
    "cumsum(out=)": lambda t, y: torch.cumsum(_matching(t, y), 0, out=t),
    "sort(out=)": lambda t, y: torch.sort(_matching(t, y), 0, out=(t, torch.empty(t.shape, dtype=torch.int64))),
    "cat(out=)": lambda t, y: torch.cat([_matching(t, y)[:1], _matching(t, y)[1:]], out=t),
    "data": lambda t, y: t.data.mul_(3),
    "under no_grad": lambda t, y: torch.no_grad()(lambda: t.copy_(_matching(t, y)))(),
    "squares": lambda t, y: t.pow_(2),
    "eq_": lambda t, y: t.gt_(_matching(t, y)),
    "nan_to_num_": lambda t, y: t.nan_to_num_(),
    "renorm_": lambda t, y: t.renorm_(2, 0, 1.0),
    "put_": lambda t, y: t.put_(_INDEX, _matching(t, y).flatten()[:2]),
    "fill_diagonal_": lambda t, y: t.select(0, 0).zero_(),
}  # fmt: skip

# What is computed from the tensor afterwards.
USES: dict[str, Callable[[Any, Any], Any]] = {
    "itself": lambda t, y: t,
    "sin": lambda t, y: t.sin(),
    "+ 1": lambda t, y: t + 1,
    "+ y": lambda t, y: t + _matching(t, y),
    "y +": lambda t, y: _matching(t, y) + t,
    "where": lambda t, y: torch.where(t > 0, t, 0.0),
    "clone": lambda t, y: t.clone(),
    "empty_like": lambda t, y: torch.empty_like(t).fill_(1),
    "zeros_like": lambda t, y: torch.zeros_like(t),
    "contiguous": lambda t, y: t.contiguous() * 2,
    "reshape": lambda t, y: t.reshape(-1) * 2,
    "merge": lambda t, y: t.reshape(*t.shape[:-2], -1) + 1,
    "merge in the middle": lambda t, y: t.reshape(t.shape[0], -1, t.shape[-1]) + 1,
    "flatten": lambda t, y: t.flatten(0, 1).sin(),
    "written copies": lambda t, y: (t.reshape(-1).add_(1), t),
    "written contiguous": lambda t, y: (t.contiguous().add_(1), t),
    "mT": lambda t, y: t.mT.exp(),
    "item": lambda t, y: t[0] * 2,
    "view": lambda t, y: t.unsqueeze(0),
    "sum": lambda t, y: t.sum(0),
    "softmax": lambda t, y: t.softmax(-1),
    "cumsum": lambda t, y: t.cumsum(0),
    "double": lambda t, y: t.double(),
    "compare": lambda t, y: t > 0,
    "cat": lambda t, y: torch.cat([t, t]),
    "expand": lambda t, y: t.expand(3, *t.shape) * 2,
    "strides": lambda t, y: (t.stride(), t.is_contiguous(), t.sin().stride(), torch.empty_like(t).stride()),
    "strides of a copy": lambda t, y: (t.clone().stride(), t.reshape(-1).stride(), t.mT.reshape(-1).is_contiguous()),
    "channels last": lambda t, y: t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last),
    "as_strided": lambda t, y: torch.as_strided(t, (2, 2), (2, 1)) * 1,
    "as_strided of a copy": lambda t, y: t.sin().as_strided((3, 2), (1, 3)) * 1,
    "view of a result": lambda t, y: t.cos().mT.contiguous().view(-1),
    "of a write": lambda t, y: (t.mul_(2), t + 1)[1],
}  # fmt: skip


class Program:
    """A program of some writes, each followed by some uses, and its inputs."""

    def __init__(self, seed: int):
        choose = random.Random(seed)
        self.layout, self.source = choose.choice([*LAYOUTS]), choose.choice([*SOURCES])
        self.of_input = choose.random() < 0.5
        targets = ["whole", "whole", *choose.choices([*TARGETS], k=2)]
        self.steps = [
            (choose.choice(targets), choose.choice([*WRITES]), choose.sample([*USES], k=choose.choice((0, 1, 2))))
            for _ in range(choose.choice((1, 1, 2, 3)))
        ]
        self.after = choose.choices([*USES], k=2)
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(2, *SHAPE, generator=generator)
        self.x, self.y = x, y

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        return LAYOUTS[self.layout](self.x), SOURCES[self.source](self.y)

    def __call__(self, x: Any, y: Any) -> Any:
        t = x if self.of_input else x.clone()
        results: list[Any] = []
        for target, write, uses in self.steps:
            part = TARGETS[target](t)
            WRITES[write](part, y)
            for use in uses:
                results.append(USES[use](part if len(results) % 2 else t, y))
        results += [USES[use](t, y) for use in self.after]
        return results

    def __repr__(self) -> str:
        where = "an input" if self.of_input else "a copy"
        return f"{where}, {self.layout}, from {self.source}: {self.steps}, then {self.after}"


def strides(x: Any) -> Any:
    """Return results with the strides of tensors in place of tensors, without those of dimensions of one element.

    Of a tensor with gaps, which can only be a view, the order of its strides is returned.
    """
    if isinstance(x, torch.Tensor):
        return [s for n, s in zip(x.shape, torch.empty_like(x).stride()) if n > 1]
    return [strides(i) for i in x] if isinstance(x, (tuple, list)) else x


def check(found: Any, expected: Any, message: str = "") -> None:
    """Check values and strides. Values may round otherwise: reductions depend on gaps in memory."""
    assert strides(found) == strides(expected), message
    torch.testing.assert_close(found, expected, msg=lambda text: f"{message}: {text}")


@pytest.mark.parametrize("seed", range(120))
def test_random_programs(seed: int) -> None:
    """Values, strides, and what a program reads of strides."""
    program = Program(seed)
    ours, eager = program.inputs(), program.inputs()
    found, expected = thunder.jit(lambda x, y: program(x, y))(*ours), program(*eager)
    check((found, *ours), (expected, *eager), repr(program))


def gradients(f: Callable[..., Any], inputs: Any) -> list[torch.Tensor]:
    """Return the gradients of all results."""
    inputs = [x.requires_grad_() for x in inputs]
    results = [r for x in f(*inputs) for r in (x if isinstance(x, tuple) else (x,))]
    losses = [r.sin().sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    return torch.autograd.grad(sum(losses), inputs, materialize_grads=True, allow_unused=True) if losses else []


def test_gradients_of_random_programs() -> None:
    """A copy to another order hands the gradient on."""
    compared = 0
    for seed in range(1000, 1040):
        program = Program(seed)
        program.of_input = False  # a leaf cannot be written
        try:
            expected = gradients(program, program.inputs())
        except RuntimeError:  # e.g. out=, or a saved value that was written
            continue
        found = gradients(thunder.jit(lambda x, y, program=program: program(x, y)), program.inputs())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=lambda text, p=program: f"{p}: {text}")
        compared += 1
    assert compared > 15


# -- copies -----------------------------------------------------------------------------------------------------------
def copies(f: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """Return the number of operations in the final trace that copy a tensor; check the results."""
    ours, eager = ([x.clone() for x in inputs] for _ in range(2))
    jitted = thunder.jit(f)
    check((jitted(*ours), *ours), (f(*eager), *eager))
    operations = thunder.last_traces(jitted)[-1].bound_symbols
    return sum(op.sym.name in ("clone", "copy_", "clone_in_order") for op in operations)


def _written(write: Callable[[Any, Any], Any], *, read: bool) -> Callable[[Any, Any], Any]:
    def f(x: Any, y: Any) -> Any:
        write(x, y)
        return x.sin() if read else y.sin()

    return f


@pytest.mark.parametrize(
    ("write", "unread", "read"),
    [
        (lambda x, y: x.mul_(2).add_(y), 0, 0),
        (lambda x, y: x.add_(y.mT), 1, 1),
        (lambda x, y: x.copy_(y), 1, 1),
        (lambda x, y: x.copy_(y.mT), 2, 1),
        (lambda x, y: x.copy_(y.mT.sin()), 2, 1),
        (lambda x, y: x.cumsum_(0), 1, 1),
        (lambda x, y: x[:1].copy_(y[:, :1].mT), 1, 1),
    ],
)
def test_copies(write: Any, unread: int, read: int) -> None:
    """A value in another order than its memory is copied once: to the memory itself."""
    x, y = torch.randn(4, 4).mT, torch.randn(4, 4).mT
    assert copies(_written(write, read=False), x, y) == unread
    assert copies(_written(write, read=True), x, y) == read


def test_no_copies_where_orders_agree() -> None:
    def f(x: Any, y: Any) -> Any:
        x.copy_(y)
        x[0] = 1
        x.index_copy_(0, torch.tensor([1]), y[:1])
        x.masked_fill_(y > 0, 0.0)
        x.relu_()
        x.zero_()
        x.cumsum_(0)
        return x.sin()

    jitted = thunder.jit(f)
    jitted(torch.randn(4, 4), torch.randn(4, 4))
    assert "clone_in_order" not in str(thunder.last_traces(jitted)[0])


@pytest.mark.parametrize("lists", [False, True])
def test_updates_need_no_strides(lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the memory nor of operands: torch would compute all operations before them on the meta device."""
    if lists:
        monkeypatch.setattr(foreach, "_MULTI_TENSOR", {"cpu"})

    def f(x: Any, y: Any) -> Any:
        t, grad = (x @ y).mT.sin(), (y @ x).mT.clone()
        torch._foreach_mul_([t], 0.9)
        torch._foreach_lerp_([t], [grad], 0.1)
        torch._foreach_addcmul_([t], [grad], [grad], 0.5)
        t.mul_(2).add_(grad, alpha=0.5).addcdiv_(grad, grad.abs() + 1).relu_()
        t[0] = grad[1]
        torch.nn.functional.relu(t, inplace=True)
        t.zero_()
        return t + grad

    x, y = torch.randn(4, 4).mT, torch.randn(4, 4)
    expected = f(x, y)
    monkeypatch.setattr(layout, "meta_tensor", None)
    check(thunder.jit(f)(x, y), expected)


@pytest.mark.parametrize("compute", [torch.sin, lambda x, out: torch.cumsum(x, 0, out=out)])
def test_a_resized_result_has_the_strides_of_its_operation(compute: Any) -> None:
    def f(x: Any) -> Any:
        out = torch.empty(0)
        compute(x, out=out)
        return out, out.stride(), out + 1

    x = torch.randn(3, 4).mT
    check(thunder.jit(f)(x), f(x))


@pytest.mark.parametrize("order", ["vmap", "grad", "cond"])
def test_writes_in_and_before_transforms(order: str) -> None:
    def f(x: Any, p: Any) -> Any:
        t = x.clone()
        t.cumsum_(0)

        def inner(a: Any) -> Any:
            b = a.clone()
            b.cumsum_(0)
            return (b.sin() * t.cos()[: b.shape[0]]).sum(0)

        if order == "vmap":
            out = torch.vmap(inner, in_dims=2)(x)
        elif order == "grad":
            out = torch.func.grad(lambda a: inner(a).sum())(x)
        else:
            out = torch.cond(p, lambda a: inner(a), lambda a: (a * t).sum(0), (x,))
        return out, t.exp(), t.exp().stride()

    x = torch.randn(3, 3, 3).permute(2, 0, 1)
    for p in (torch.tensor(True), torch.tensor(False)):
        found, expected = thunder.jit(f)(x, p), f(x, p)
        torch.testing.assert_close(found[:2], expected[:2])
        assert found[1].stride() == expected[1].stride()
        assert found[2] == expected[2]


def test_symbolic_numbers_stay_symbolic() -> None:
    """Strides are not computed where this would make sizes and numbers constants."""

    def f(x: Any, y: Any, n: int) -> Any:
        t = torch.zeros(4, 4)
        t.copy_((y.mT * n).relu())
        x.copy_(x.flip(0) * n)
        x[1:].cumsum_(1)
        return t + 1, x * 2

    jitted = thunder.jit(f, cache="symbolic values")
    for rows, n in ((5, 3), (6, 4), (7, 5)):
        inputs = torch.randn(rows, 3), torch.randn(4, 4)
        ours = jitted(*[x.clone() for x in inputs], n)
        torch.testing.assert_close(ours, f(*[x.clone() for x in inputs], n))
    assert thunder.cache_misses(jitted) == 1
