# SPDX-License-Identifier: Apache-2.0
"""Multi-tensor kernels: one launch runs a group of equal updates (`updates`) of tensors of different shapes.

The kernel reads the addresses and the lengths of an update's tensors from a table on the device. A program computes
some thousand elements of one update. The table is written only when an address has changed. Numbers that change, e.g.
bias corrections, are copied to the device at each launch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thunder import prims
from thunder.extend import BoundSymbol, Strides, TensorProxy, to_torch_dtype
from thunder_ex_triton.fusion.codegen import Writer, pointer
from thunder_ex_triton.fusion.index import Group, Index
from thunder_ex_triton.fusion.iteration_space import Space
from thunder_ex_triton.fusion.lines import rendered
from thunder_ex_triton.fusion.op_table import storage_type
from thunder_ex_triton.fusion.region import load
from thunder_ex_triton.fusion.templates import module_text
from thunder_ex_triton.fusion.updates import Update
from thunder_ex_triton.launch import Kernel

__all__ = ["MultiTensorUpdate"]

_BLOCK, _TURNS, _WARPS = 1024, 8, 4  # the elements that a program computes at once, how often, and on how many warps
_VECTOR = 16  # lengths that are multiples of it, and addresses, let the kernel load and store whole vectors


class MultiTensorUpdate:
    """A group of updates. Its arguments are each update's tensors and numbers, and its results each update's results.

    `into` maps the places of results to the place of the argument whose memory the result is written to.
    """

    def __init__(self, name: str, updates: Sequence[Update], into: Mapping[int, int] | None = None):
        self.name = self.__name__ = name
        self.updates = list(updates)
        self.into = dict(into or {})
        one = updates[0]
        self.sizes = len(one.inputs), len(one.numbers), len(one.outputs)
        self.dtypes = [to_torch_dtype(p.dtype) for p in one.outputs]
        self.whole = [i for i, p in enumerate(one.inputs) if p.ndim]  # the inputs that are no single numbers
        self.kernel, self.source = _kernel_of(one)
        self._plan: _Plan | None = None

    def writing(self, targets: Mapping[str, TensorProxy], first: int) -> MultiTensorUpdate:
        """Return the operation that writes these results to further arguments, from the place `first` on."""
        names = [p.name for update in self.updates for p in update.outputs]
        into = {names.index(name): first + i for i, name in enumerate(targets)}
        return MultiTensorUpdate(self.name, self.updates, into)

    def result_strides(self, known: Mapping[str, Strides]) -> dict[str, Strides]:
        """Return the strides of the results of updates whose inputs have the same strides."""
        found: dict[str, Strides] = {}
        for update in self.updates:
            layouts = {known.get(update.inputs[i].name) for i in self.whole}
            if len(layouts) == 1 and None not in layouts:
                found.update(dict.fromkeys([p.name for p in update.outputs], *layouts))
        return found

    def may_write(self, targets: Mapping[str, frozenset[str]]) -> bool:
        """Check whether results may be in the memory of arguments (by name): those that only their own update reads."""
        readers = Counter(p.name for update in self.updates for p in update.inputs)
        for update in self.updates:
            shared = frozenset().union(*[targets.get(p.name, frozenset()) for p in update.outputs])
            own = {update.inputs[i].name for i in self.whole}
            if not shared <= own or any(readers[name] > 1 for name in shared):
                return False
        return True

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        count, numbers, _ = self.sizes
        rows: list[Sequence[torch.Tensor]] = []
        values: list[Any] = []
        made: list[torch.Tensor] = []
        late: list[tuple[torch.Tensor, torch.Tensor]] = []  # results that are copied to their memory afterwards
        at = 0
        for update in self.updates:
            given = args[at : at + count]
            values += args[at + count : at + count + numbers]
            at += count + numbers
            out = [args[self.into[place]] if place in self.into else None for place in self._places(len(made))]
            if _are_alike(self.whole, given, out):
                like = given[self.whole[0]]
                out = [torch.empty_like(like, dtype=d) if x is None else x for x, d in zip(out, self.dtypes)]
                rows.append((*given, *out))
            else:
                out = [
                    torch.empty_strided(given[self.whole[0]].shape, s, dtype=d, device=given[self.whole[0]].device)
                    if x is None else x
                    for x, s, d in zip(out, update.strides_of_results(given), self.dtypes)
                ]  # fmt: skip
                there = [_contiguous(x) for x in out]
                rows.append((*[x.contiguous() for x in given], *there))
                late += [(x, y) for x, y in zip(out, there) if x is not y]
            made += out
        self._launch(rows, values)
        for x, y in late:
            x.copy_(y)
        return tuple(made)

    def _places(self, first: int) -> range:
        return range(first, first + self.sizes[2])

    def _launch(self, rows: Sequence[Sequence[torch.Tensor]], values: Sequence[Any]) -> None:
        device = rows[0][0].device
        addresses = [x.data_ptr() for row in rows for x in row]
        plan = self._plan
        if plan is None or plan.addresses != addresses or plan.device != device:
            plan = self._plan = _Plan(addresses, [row[self.whole[0]].numel() for row in rows], device)
        numbers = torch.tensor(values, dtype=torch.float32, pin_memory=device.type == "cuda")
        numbers = numbers.to(device, non_blocking=True)
        for pieces, whole, wide in plan.launches:
            given = (whole, wide, _BLOCK, _TURNS)
            self.kernel(len(pieces), (plan.table, pieces, numbers), given, _WARPS)


class _Plan:
    """The table of addresses and lengths for one set of addresses, and the pieces of work of each launch."""

    def __init__(self, addresses: list[int], lengths: list[int], device: torch.device):
        self.addresses, self.device = addresses, device
        width = len(addresses) // len(lengths)
        rows = [[*addresses[i * width : (i + 1) * width], n] for i, n in enumerate(lengths)]
        self.table = _on(device, rows)
        self.launches = [
            (_on(device, pieces), whole, wide)
            for whole in (True, False)
            for wide in (False, True)
            if (pieces := _pieces(rows, whole, wide))
        ]


def _pieces(rows: Sequence[Sequence[int]], whole: bool, wide: bool) -> list[tuple[int, int]]:
    """Return the row and the first element of each program, for the rows that a launch computes."""
    return [
        (i, first)
        for i, (*addresses, n) in enumerate(rows)
        if whole == (n % _VECTOR == 0 and all(a % _VECTOR == 0 for a in addresses)) and wide == (n >= 1 << 31)
        for first in range(0, n, _BLOCK * _TURNS)
    ]


def _on(device: torch.device, rows: Any) -> torch.Tensor:
    found = torch.tensor(rows, dtype=torch.int64, pin_memory=device.type == "cuda")
    return found.to(device, non_blocking=True)


def _are_alike(whole: Sequence[int], given: Sequence[torch.Tensor], out: Sequence[torch.Tensor | None]) -> bool:
    """Check whether elements at one place in memory belong together in all tensors, except single numbers."""
    tensors = [*[given[i] for i in whole], *[x for x in out if x is not None]]
    if all(x.is_contiguous() for x in tensors):
        return True
    strides = tensors[0].stride()
    return torch.ops.aten.is_non_overlapping_and_dense(tensors[0]) and all(x.stride() == strides for x in tensors)


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor itself if it is contiguous, else contiguous memory for it."""
    return x if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)


# -- the kernel --------------------------------------------------------------------------------------------------------
_HEAD = """\
@triton.jit
def multi_tensor(
    table, pieces, numbers, whole: tl.constexpr, wide: tl.constexpr, XB: tl.constexpr, turns: tl.constexpr
):
    piece = pieces + tl.program_id(0) * 2
    update = tl.load(piece)
    first = tl.multiple_of(tl.load(piece + 1), {block})
    row = table + update * {width}
    length = tl.load(row + {last})
    if not wide:
        first = first.to(tl.int32)
        length = length.to(tl.int32)
    if whole:
        length = tl.multiple_of(length, {vector})
    zero = tl.arange(0, 1)
"""


def _kernel_of(update: Update) -> tuple[Kernel, str]:
    """Return the kernel for updates like this one, and its source."""
    flat = _flattened(update)
    tensors = (*update.inputs, *update.outputs)
    one = [p.name for p in tensors if not p.ndim]
    strides = {p.name: () if p.name in one else (1,) for p in tensors}
    writer = Writer(flat, strides, Space(_LENGTH, 1))
    index = Index([Group("x", (_LENGTH,))])
    stores = []
    for p in update.outputs:
        p = _flat(p)
        stores.append(writer.stored(p, index, writer.value(p, index)))
    lines = [_HEAD.format(block=_BLOCK, width=len(tensors) + 1, last=len(tensors), vector=_VECTOR)]
    for i, p in enumerate(tensors):
        kind = "tl.int8" if storage_type(p.dtype) == "tl.int1" else storage_type(p.dtype)
        lines.append(f"    p{i} = tl.load(row + {i}).to(tl.pointer_type({kind}))")
        lines += ["    if whole:", f"        p{i} = tl.multiple_of(p{i}, {_VECTOR})"]
    count = len(update.numbers)
    lines += [f"    n{i} = tl.load(numbers + update * {count} + {i})" for i in range(count)]
    lines += [f"    {line}" for line in rendered(writer.before)]
    loop = ["x = first + turn * XB + tl.arange(0, XB)", "xm = x < length", *rendered([*writer.lines, *stores])]
    lines += ["    for turn in range(turns):", *(f"        {line}" for line in loop)]
    text = "\n".join(lines)
    for i, p in enumerate(tensors):
        text = re.sub(rf"\b{pointer(p.name)}\b", f"p{i}", text)
    text = re.sub(r"\bsize_(\d+)\b", r"n\1", text)
    module = load(module_text([text + "\n"]))
    return Kernel(module.multi_tensor), text


_LENGTH = 1 << 20  # stands for the length of any update in generated code


def _flat(p: Any) -> Any:
    return TensorProxy(p.name, like=p, shape=(_LENGTH,)) if isinstance(p, TensorProxy) and p.ndim else p


def _flattened(update: Update) -> list[BoundSymbol]:
    """Return the operations of an update on tensors of one dimension."""
    found = []
    for op in update.primitives:
        args = tuple(map(_flat, op.args))
        if op.sym is prims.full:
            args = ((_LENGTH,), *args[1:])
        elif op.sym is prims.broadcast_in_dim:
            args = (args[0], (_LENGTH,), ())
        found.append(op.replace(args=args, output=_flat(op.output)))
    return found
