# SPDX-License-Identifier: Apache-2.0
"""`thunder.vmap` gives what torch.func.vmap gives: dimensions, dtypes, layouts, random numbers, refusals."""

from __future__ import annotations

import pytest
import torch
import torch.func
from outcomes import message_and_notes, rand, same
from torch.func import functional_call

import thunder


@pytest.mark.parametrize(
    ("in_dims", "out_dims"),
    [(0, 0), ((0, None), 0), ((1, None), 1), ((-1, None), -1), ((None, 1), (0, {"y": None})), ((0, 0), (1, {"y": 2}))],
)
def test_vmap_dims(in_dims, out_dims):
    def fn(x, w):
        return x @ w[:3].expand(3, 3) if w.dim() == 1 else x @ w, {"y": w * 2}

    batched = in_dims if isinstance(in_dims, tuple) else (in_dims, in_dims)
    x, w = rand(3, 3), rand(3, 3)
    args = []
    for a, d in zip((x, w), batched):
        args.append(a if d is None else torch.stack([a, a + 1, a * 2, a - 1], d))
    if out_dims == (0, {"y": None}):
        fn = lambda x, w: (x @ w, {"y": x + 1})  # noqa: E731
    elif batched[1] is None and not isinstance(out_dims, tuple):
        fn = lambda x, w: (x @ w, {"y": x * 2})  # noqa: E731
    same(thunder.vmap(fn, in_dims, out_dims)(*args), torch.func.vmap(fn, in_dims, out_dims)(*args))


def test_vmap_containers_and_chunks():
    def fn(d, n):
        return d["a"] * d["b"][0] + n, (d["a"].sum(),)

    d, dims = {"a": rand(5, 2), "b": [rand(2, 5)]}, ({"a": 0, "b": [1]}, None)
    expected = torch.func.vmap(fn, dims)(d, 3)
    same(thunder.vmap(fn, dims)(d, 3), expected)
    for size in (1, 2, 5, 9):
        same(thunder.vmap(fn, dims, chunk_size=size)(d, 3), expected)
    x = rand(4)
    same(thunder.vmap(lambda a, b=None: a * b)(x, b=x), torch.func.vmap(lambda a, b=None: a * b)(x, b=x))
    same(thunder.vmap(lambda a: x)(rand(3)), torch.func.vmap(lambda a: x)(rand(3)))
    assert thunder.vmap(lambda a: a.sum())(rand(0, 3)).shape == (0,)


def test_type_promotion_is_that_of_one_example():
    x, half, whole = rand(3), torch.ones(3, 2), torch.arange(3)
    for args in ((x, half), (whole, half), (whole, x), (half, whole), (x.float(), half.bfloat16())):
        fn = lambda a, b: (a * b, torch.where(a > 0, a, b), a.add(b))  # noqa: E731
        expected = [torch.stack(parts) for parts in zip(*[fn(*example) for example in zip(*args)])]
        ours = thunder.vmap(fn)(*args)
        assert [t.dtype for t in ours] == [t.dtype for t in expected]
        same(ours, tuple(expected))


def test_layouts_are_those_of_examples():
    def fn(x):
        y = x.reshape(-1)
        y[0] = 7
        return x, x.is_contiguous(), x.stride()

    for x, dim in ((rand(3, 4, 5), 0), (rand(3, 4, 5).mT, 0), (rand(3, 4, 5), 2), (rand(3, 4, 5), 1)):
        ours = thunder.vmap(fn, dim, (0, None, None))(x.clone())
        example = x.clone().select(dim, 0)
        expected = fn(example)
        same(ours[0][0], expected[0])
        assert ours[1:] == expected[1:]


def test_ensembles():
    models = [torch.nn.Linear(3, 2).double() for _ in range(4)]
    params, buffers = torch.func.stack_module_state(models)
    base = torch.nn.Linear(3, 2, device="meta")

    def call(params, buffers, x):
        return functional_call(base, (params, buffers), (x,))

    x = rand(5, 3)
    same(thunder.vmap(call, (0, 0, None))(params, buffers, x), torch.func.vmap(call, (0, 0, None))(params, buffers, x))


def test_randomness():
    x = torch.zeros(50, 8)
    drop = lambda x: torch.nn.functional.dropout(x + 1, 0.5)  # noqa: E731
    draw = lambda x: x + torch.rand(8)  # noqa: E731
    for fn in (drop, draw):
        with pytest.raises(RuntimeError, match="randomness error mode"):
            thunder.vmap(fn)(x)
        for mode in ("different", "same"):
            torch.manual_seed(3)
            theirs = torch.func.vmap(fn, randomness=mode)(x)
            torch.manual_seed(3)
            ours = thunder.vmap(fn, randomness=mode)(x)
            same(ours, theirs)
            assert (ours == ours[0]).all() == (mode == "same")


def test_an_error_names_a_line_once():
    """Where the function is written where it is called."""
    with pytest.raises(RuntimeError, match="randomness error mode") as caught:
        thunder.vmap(lambda a: a + torch.rand(3))(torch.ones(2, 3))
    assert message_and_notes(caught.value).count("test_vmap.py") == 1


def test_what_depends_on_values_is_refused_in_vmap():
    for fn in (lambda a: a.item() * a, lambda a: a if a > 0 else -a, lambda a: a.nonzero()):
        with pytest.raises(RuntimeError):
            thunder.vmap(fn)(torch.ones(2, 2) if fn.__code__.co_names == ("nonzero",) else torch.ones(2))


def test_tensors_do_not_escape_from_vmap():
    kept = []

    def fn(x):
        kept.append(x * 2)
        return x

    with pytest.raises(thunder.core.errors.TracingError, match="vmap"):
        thunder.jit(lambda x: thunder.vmap(fn)(x) + kept.pop())(torch.ones(3))
