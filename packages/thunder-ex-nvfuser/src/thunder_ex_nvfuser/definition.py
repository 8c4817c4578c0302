# SPDX-License-Identifier: Apache-2.0
"""Generate the source of a fusion definition: a function that describes a region to nvFuser.

There are two forms of the source. The first has positional names: compiled definitions are cached by this form, so that
equal layers share one definition. The second is for readers. It has the trace's names, and the operations as comments.
The inputs are the tensors, then the symbolic numbers, then the seeds of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from thunder.extend import BoundSymbol, NumberProxy, SymbolicNumber, TensorProxy, to_torch_dtype
from thunder_ex_nvfuser.op_table import OPERATIONS, UNIFORM, as_half, cast, held, stored

__all__ = ["TOLD_SEED", "Definition", "Tensor", "by_place", "definition", "order_of", "program", "seeds_of"]

# A seed and an offset, which are numeric inputs of a call.
TOLD_SEED = "fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Int)"


class Tensor(NamedTuple):
    """An input or output, with its sizes and strides in a call."""

    proxy: TensorProxy
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Definition(NamedTuple):
    """The source of `define(fd)`, and the numbers that are its inputs between the tensors and the seeds."""

    text: str
    numbers: tuple[Any, ...]


def order_of(strides: Sequence[int]) -> tuple[int, ...]:
    """Return nvFuser's stride order: the rank of each dimension's stride, 0 for the smallest stride."""
    by_stride = sorted(range(len(strides)), key=lambda d: (strides[d], -d))
    order = [0] * len(strides)
    for rank, d in enumerate(by_stride):
        order[d] = rank
    return tuple(order)


def by_place() -> Callable[[str], str]:
    """Return a function that renames values by the order in which they first occur."""
    names: dict[str, str] = {}
    return lambda name: names.setdefault(name, f"v{len(names)}")


class _Numbers:
    """The symbolic numbers of a definition, without duplicates."""

    def __init__(self, name_of: Callable[[str], str]):
        self.name_of = name_of
        self.known: dict[str, Any] = {}

    def write(self, x: Any) -> str:
        """Return the name of a tensor, or the name of the input that holds a number."""
        if isinstance(x, TensorProxy):
            return self.name_of(x.name)
        text = x.name if isinstance(x, NumberProxy) else str(x)
        self.known.setdefault(text, x)
        return self.name_of(f"number_{list(self.known).index(text)}")

    def lines(self) -> list[str]:
        """Return the definitions of these numbers."""
        return [
            f"    {self.write(x)} = fd.define_scalar(DataType.{'Double' if _is_float(x) else 'Int'})  # {text}"
            for text, x in self.known.items()
        ]


def _is_float(x: Any) -> bool:
    return type(x.symbol.hint if isinstance(x, NumberProxy) else x.hint) is float


def seeds_of(operations: Sequence[BoundSymbol]) -> list[TensorProxy]:
    """Return the seeds of random numbers. They are tensors of two numbers on the CPU, which calls pass as numbers."""
    return list({op.args[0].name: op.args[0] for op in operations if op.sym.id == UNIFORM}.values())


def definition(
    operations: Sequence[BoundSymbol],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    rounded: Container[str],
    named: Callable[[str], str] | None = None,
    fixed: bool = False,
) -> Definition:
    """Return the function that describes a region. With `named`, values are renamed and comments are omitted.

    The values of `rounded` are rounded to half precision. If sizes are `fixed`, they are declared static.
    """
    numbers = _Numbers(named or (lambda name: name))
    write = numbers.write
    head = []
    for p, shape, strides in inputs:
        how = f"sizes={list(shape)}, strides={list(strides)}, dtype=DataType.{stored(p.dtype)}"
        if fixed:
            how += ", static_sizes=True"
        head.append(f"    {write(p)} = fd.define_tensor({how})")
    lines = [
        f"    {write(p)} = {cast(write(p), held(p.dtype))}" for p, _, _ in inputs if held(p.dtype) != stored(p.dtype)
    ]
    for op in operations:
        if named is None:
            lines.append(f"    # {str(op).splitlines()[0].strip()}")
        targets = ", ".join(write(p) for p in op.flat_outs)
        lines.append(f"    {targets} = {OPERATIONS[op.sym.id](op, write)}")
        results = [p for p in op.flat_outs if isinstance(p, TensorProxy) and p.name in rounded]
        lines += [f"    {write(p)} = {as_half(write(p), p.dtype)}" for p in results]
    for p, _, strides in outputs:
        text = write(p) if held(p.dtype) == stored(p.dtype) else cast(write(p), str(stored(p.dtype)))
        order = order_of(strides)
        if order != tuple(range(len(order)))[::-1]:
            text = f"fd.ops.stride_order({text}, {list(order)})"
        lines.append(f"    fd.add_output({text})")
    seeds = [f"    {write(p)} = {TOLD_SEED}" for p in seeds_of(operations)]
    scalars = numbers.lines()
    if named is not None:
        scalars = [line.partition("  #")[0] for line in scalars]
    return Definition(
        "\n".join(["def define(fd):", *head, *scalars, *seeds, *lines]) + "\n", tuple(numbers.known.values())
    )


_PROGRAM = '''\
"""{name}: {count} operations of a thunder trace, as a fusion definition."""

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
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    rounded: Container[str],
    fixed: bool,
) -> str:
    """Return the definition as a readable, runnable program."""
    text, numbers = definition(operations, inputs, outputs, rounded=rounded, fixed=fixed)
    given = [
        f"torch.empty_strided({shape}, {strides}, dtype={to_torch_dtype(p.dtype)}, device='cuda').fill_(1),  # {p.name}"
        for p, shape, strides in inputs
    ]
    given += [f"{x.hint if isinstance(x, SymbolicNumber) else x.symbol.hint},  # {x}" for x in numbers]
    given += [f"0, 0,  # {p.name}" for p in seeds_of(operations)]
    lines = "\n".join(f"        {line}" for line in given)
    return _PROGRAM.format(name=name, count=len(operations), definition=text, inputs=lines)
