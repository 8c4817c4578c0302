# SPDX-License-Identifier: Apache-2.0
"""The text of a definition: a region as a function that describes it to nvFuser.

The text with values named by their place is what definitions are cached by, so that layers that are alike share one;
the text with the trace's names, and its lines as comments, is what people read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder_ex_nvfuser.operations import OPERATIONS, cast, held, stored

__all__ = ["definition", "program"]

Layout = Sequence[int]


def _order(shape: Sequence[int], strides: Layout) -> list[int] | None:
    """The dimensions' rank by stride, the smallest 0, as nvFuser writes it; None for contiguous tensors."""
    by_stride = sorted(range(len(shape)), key=lambda d: (strides[d], shape[d] == 1, -d))
    order = [0] * len(shape)
    for rank, d in enumerate(by_stride):
        order[d] = rank
    return None if order == list(range(len(shape)))[::-1] else order


def definition(
    operations: Sequence[BoundSymbol],
    inputs: Sequence[tuple[TensorProxy, Layout]],
    outputs: Sequence[tuple[TensorProxy, Layout]],
    *,
    named: Callable[[str], str] | None = None,
) -> str:
    """The function `define(fd)`; with `named` values have other names, and there are no comments."""
    name_of = named or (lambda name: name)
    lines = ["def define(fd):"]

    def write(p: Any) -> str:
        return name_of(p.name)

    for p, strides in inputs:
        how = f"sizes={list(map(int, p.shape))}, strides={list(strides)}, dtype=DataType.{stored(p.dtype)}"
        lines.append(f"    {write(p)} = fd.define_tensor({how})")
        if held(p.dtype) != stored(p.dtype):
            lines.append(f"    {write(p)} = {cast(write(p), held(p.dtype))}")
    for op in operations:
        if named is None:
            lines.append(f"    # {str(op).splitlines()[0].strip()}")
        targets = ", ".join(write(p) for p in op.flat_outs)
        lines.append(f"    {targets} = {OPERATIONS[op.sym.id](op, write)}")
    for p, strides in outputs:
        text = write(p) if held(p.dtype) == stored(p.dtype) else cast(write(p), str(stored(p.dtype)))
        order = _order(p.shape, strides)
        if order is not None:
            text = f"fd.ops.stride_order({text}, {order})"
        lines.append(f"    fd.add_output({text})")
    return "\n".join(lines) + "\n"


_PROGRAM = '''\
"""{name}: {count} operations of a thunder trace, as nvFuser is told of them."""

import torch
from nvfuser_direct import DataType, FusionDefinition


{definition}

if __name__ == "__main__":
    with FusionDefinition() as fd:
        define(fd)
    inputs = [
{inputs}
    ]
    for out in fd.execute(inputs):
        print(tuple(out.shape), out.dtype, out.stride())
'''


def program(
    name: str,
    operations: Sequence[BoundSymbol],
    inputs: Sequence[tuple[TensorProxy, Layout]],
    outputs: Sequence[tuple[TensorProxy, Layout]],
) -> str:
    """The definition as a program that can be read and run."""
    tensors = "\n".join(
        f'        torch.ones({tuple(map(int, p.shape))}, dtype=torch.{_torch_name(p)}, device="cuda")'
        f".as_strided({tuple(map(int, p.shape))}, {tuple(strides)}),  # {p.name}"
        for p, strides in inputs
    )
    text = definition(operations, inputs, outputs)
    return _PROGRAM.format(name=name, count=len(operations), definition=text, inputs=tensors)


def _torch_name(p: TensorProxy) -> str:
    from thunder.core.dtypes import to_torch_dtype

    return str(to_torch_dtype(p.dtype)).removeprefix("torch.")
