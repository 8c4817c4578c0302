# SPDX-License-Identifier: Apache-2.0
"""Multi-tensor kernels: one launch runs a group of equal updates (`updates`) of tensors of different shapes.

The kernel reads the addresses and the lengths of an update's tensors from a table on the device. A program computes
some thousand elements of one update. The table is written when an address has changed. Numbers of the program, e.g.
bias corrections, are copied to the device by an operation of their own (`numbers_on`), so that a CUDA graph can contain
the update.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder import prims
from thunder.extend import BoundSymbol, Strides, TensorProxy, device_table, is_capturing_graph, to_torch_dtype
from thunder_ex_triton.fusion.codegen import Writer, pointer
from thunder_ex_triton.fusion.index import Group, Index
from thunder_ex_triton.fusion.iteration_space import Space
from thunder_ex_triton.fusion.lines import rendered
from thunder_ex_triton.fusion.op_table import storage_type
from thunder_ex_triton.fusion.region import load
from thunder_ex_triton.fusion.templates import module_text
from thunder_ex_triton.fusion.updates import Update
from thunder_ex_triton.launch import Kernel, current_stream, increment_versions

__all__ = ["MultiTensorUpdate", "numbers_on"]

_BLOCK, _TURNS, _WARPS = 1024, 8, 4  # the elements that a program computes at once, how often, and on how many warps
_VECTOR = 16  # lengths that are multiples of it, and addresses, let the kernel load and store whole vectors


_Pieces = tuple[torch.Tensor, bool, bool]  # each program's work, and how the kernel is compiled
_KINDS = 4


class MultiTensorUpdate:
    """A group of updates. Its arguments are each update's tensors, and then all their numbers in one tensor, if any.

    Its results are each update's results. `into` maps the places of results to the place of the argument whose memory
    the result is written to.
    """

    def __init__(self, name: str, updates: Sequence[Update]):
        self.name = self.__name__ = name
        self.updates = list(updates)
        self.into: dict[int, int] = {}
        self._in_place: list[int] | None = None  # if nothing is allocated: the arguments in the order of the table
        one = updates[0]
        self.sizes = len(one.inputs), len(one.numbers), len(one.outputs)
        self.dtypes = [to_torch_dtype(p.dtype) for p in one.outputs]
        self.whole = [i for i, p in enumerate(one.inputs) if one.is_whole(p)]
        self.kernel, self.source = _kernel_of(one)
        self._places = {p.name: i for i, p in enumerate(p for update in updates for p in update.outputs)}
        self._readers = Counter(p.name for update in updates for p in update.inputs)
        self._tables: dict[Any, _Table] = {}
        lengths = [math.prod(update.outputs[0].shape) for update in self.updates]
        pieces = sum(-(-n // (_BLOCK * _TURNS)) for n in lengths)
        # The most numbers of the tables of a launch: addresses, lengths, and the work of each kind of `_Pieces`.
        width = self.sizes[0] + self.sizes[2]
        self.table_sizes = [width * len(lengths), len(lengths), *[2 * pieces] * min(len(lengths), _KINDS)]

    def writing(self, targets: Mapping[str, TensorProxy], first: int) -> MultiTensorUpdate:
        """Return the operation that writes these results to further arguments, from the place `first` on."""
        new = copy.copy(self)
        new.into = {self._places[name]: first + i for i, name in enumerate(targets)}
        new._tables = {}
        if len(new.into) == len(new._places):
            count, _, results = new.sizes
            new._in_place = []
            for i in range(len(new.updates)):
                new._in_place += range(i * count, (i + 1) * count)
                new._in_place += [new.into[place] for place in range(i * results, (i + 1) * results)]
        return new

    def result_strides(self, known: Mapping[str, Strides]) -> dict[str, Strides]:
        """Return the strides of the results of updates whose inputs have the same strides."""
        found: dict[str, Strides] = {}
        for update in self.updates:
            first, *rest = [known.get(update.inputs[i].name) for i in self.whole]
            if first is not None and all(strides == first for strides in rest):
                for p in update.outputs:
                    found[p.name] = first
        return found

    def may_write(self, result: str, shared: frozenset[str]) -> bool:
        """Check whether a result may be in the memory of arguments (by name): those that only its own update reads."""
        update = self.updates[self._places[result] // self.sizes[2]]
        own = {update.inputs[i].name for i in self.whole}
        return shared <= own and all(self._readers[name] == 1 for name in shared)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        count, _, results = self.sizes
        numbers = args[len(self.updates) * count] if self.sizes[1] else None
        alike = all(map(_is_contiguous, args))
        if alike and self._in_place is not None:
            self._launch([args[i] for i in self._in_place], numbers)
            increment_versions([args[i] for i in self.into.values()])
            return tuple([args[self.into[place]] for place in range(len(self.into))])
        tensors: list[torch.Tensor] = []  # each update's inputs and results
        made: list[torch.Tensor] = []
        late: list[tuple[torch.Tensor, torch.Tensor]] = []  # results that are copied to their memory afterwards
        for i, update in enumerate(self.updates):
            given: Any = args[i * count : (i + 1) * count]
            places = range(i * results, (i + 1) * results)
            out: Any = [args[self.into[place]] if place in self.into else None for place in places]
            if not alike and not _are_alike([*[given[j] for j in self.whole], *[x for x in out if x is not None]]):
                there = self._results(out, given, update.strides_of_results(given))
                out = [x if x.is_contiguous() else torch.empty_like(x, memory_format=_CONTIGUOUS) for x in there]
                late += [(x, y) for x, y in zip(there, out) if x is not y]
                made += there
                given = [x.contiguous() for x in given]
            else:
                out = self._results(out, given, None)
                made += out
            tensors += given
            tensors += out
        self._launch(tensors, numbers)
        for x, y in late:
            x.copy_(y)
        increment_versions([args[i] for i in self.into.values()])
        return tuple(made)

    def _results(self, out: Sequence[Any], given: Sequence[torch.Tensor], strides: Any) -> list[torch.Tensor]:
        """Return the memory of an update's results: `out`, or new memory where that is None."""
        like = given[self.whole[0]]
        if strides is None:
            return [torch.empty_like(like, dtype=d) if x is None else x for x, d in zip(out, self.dtypes)]
        new = [torch.empty_strided(like.shape, s, dtype=d, device=like.device) for s, d in zip(strides, self.dtypes)]
        return [y if x is None else x for x, y in zip(out, new)]

    def _launch(self, tensors: Sequence[torch.Tensor], numbers: torch.Tensor | None) -> None:
        table = self._table(tensors)
        addresses, launches = table.of([x.data_ptr() for x in tensors])
        given = addresses, table.lengths
        for pieces, whole, wide in launches:
            options = (whole, wide, _BLOCK, _TURNS)
            self.kernel(len(pieces), (*given, pieces, addresses if numbers is None else numbers), options, _WARPS)

    def _table(self, tensors: Sequence[torch.Tensor]) -> _Table:
        device = tensors[0].device
        # Another stream could read a table before it is written, or after its memory has been used again.
        key = device, current_stream(device.index) if device.type == "cuda" else None
        belongs_to_graph = is_capturing_graph()
        table = None if belongs_to_graph else self._tables.get(key)
        if table is None:
            lengths = [x.numel() for x in tensors[self.whole[0] :: self.sizes[0] + self.sizes[2]]]
            table = _Table(device, lengths)
            if not belongs_to_graph:
                self._tables[key] = table
        return table


def numbers_on(device: torch.device) -> Callable[..., torch.Tensor]:
    """Return the function that copies numbers to a device, without waiting for it."""

    def numbers(*values: float) -> torch.Tensor:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("numbers are copied from the host, which a CUDA graph would not repeat")
        pinned = device.type == "cuda"
        found = torch.tensor(values, dtype=torch.float32, device="cpu", pin_memory=pinned)
        return found.to(device, non_blocking=True)

    return numbers


class _Table:
    """The addresses and lengths of a group's tensors on a device, and the pieces of work of each launch."""

    def __init__(self, device: torch.device, lengths: list[int]):
        self.device = device
        self._lengths = lengths
        self.lengths = device_table(device, lengths)
        self._last: tuple[list[int], torch.Tensor, list[_Pieces]] | None = None  # replaced as a whole, for threads
        self._launches: dict[tuple[bool, ...], list[_Pieces]] = {}

    def of(self, addresses: list[int]) -> tuple[torch.Tensor, list[_Pieces]]:
        """Return the addresses on the device, and the launches. The same addresses are not copied again."""
        last = self._last
        if last is None or last[0] != addresses:
            rows = len(self._lengths)
            width = len(addresses) // rows
            aligned = (True,) * rows
            if functools.reduce(operator.or_, addresses) % _VECTOR:
                starts = range(0, rows * width, width)
                aligned = tuple([all(a % _VECTOR == 0 for a in addresses[i : i + width]) for i in starts])
            if aligned not in self._launches:
                self._launches[aligned] = self._launches_for(aligned)
            last = self._last = addresses, device_table(self.device, addresses), self._launches[aligned]
        return last[1:]

    def _launches_for(self, aligned: Sequence[bool]) -> list[_Pieces]:
        """Return, for each launch, the update and the first element of each program, and how the kernel is compiled."""
        found: dict[tuple[bool, bool], list[tuple[int, int]]] = {}
        for i, n in enumerate(self._lengths):
            kind = aligned[i] and n % _VECTOR == 0, n >= 1 << 31
            found.setdefault(kind, []).extend([(i, first) for first in range(0, n, _BLOCK * _TURNS)])
        return [
            (device_table(self.device, itertools.chain.from_iterable(pieces)).view(-1, 2), *kind)
            for kind, pieces in found.items()
        ]


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Check whether elements at one place in memory belong together."""
    strides = tensors[0].stride()
    return _is_dense(tensors[0]) and all(x.stride() == strides for x in tensors)


_is_contiguous = torch.Tensor.is_contiguous
_is_dense = torch.ops.aten.is_non_overlapping_and_dense.default
_CONTIGUOUS = torch.contiguous_format


# -- the kernel --------------------------------------------------------------------------------------------------------
_HEAD = """\
@triton.jit
def multi_tensor(
    table, lengths, pieces, numbers, whole: tl.constexpr, wide: tl.constexpr, XB: tl.constexpr, turns: tl.constexpr
):
    piece = pieces + tl.program_id(0) * 2
    update = tl.load(piece)
    first = tl.multiple_of(tl.load(piece + 1), {block})
    row = table + update * {width}
    length = tl.load(lengths + update)
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
    strides = {p.name: (1,) if update.is_whole(p) else () for p in tensors}
    writer = Writer(flat, strides, Space(_LENGTH, 1, rounded=update.rounded))
    index = Index([Group("x", (_LENGTH,))])
    stores = []
    for p in update.outputs:
        p = _flat(p, update)
        stores.append(writer.stored(p, index, writer.value(p, index)))
    lines = [_HEAD.format(block=_BLOCK, width=len(tensors), vector=_VECTOR)]
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


def _flat(p: Any, update: Update) -> Any:
    is_it = isinstance(p, TensorProxy) and update.is_whole(p)
    return TensorProxy(p.name, like=p, shape=(_LENGTH,)) if is_it else p


def _flattened(update: Update) -> list[BoundSymbol]:
    """Return the operations of an update on tensors of one dimension."""
    found = []
    for op in update.primitives:
        args = tuple([_flat(a, update) for a in op.args])
        if op.sym is prims.full:
            args = ((_LENGTH,), *args[1:])
        elif op.sym is prims.broadcast_in_dim:
            args = (args[0], (_LENGTH,), ())
        found.append(op.replace(args=args, output=_flat(op.output, update)))
    return found
