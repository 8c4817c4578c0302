# SPDX-License-Identifier: Apache-2.0
"""The source of kernels: templates around the lines that `codegen` generates.

A kernel without reductions iterates over elements. A kernel that reduces rows has one program per row or per few rows,
or loops over the chunks of long rows. A kernel that reduces columns loops over many rows and writes partial sums. A
second kernel then adds the partial sums.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, to_torch_device
from thunder_ex_triton.fusion.codegen import Writer, in_blocks, in_chunks, mentions, pointer
from thunder_ex_triton.fusion.errors import Unfit
from thunder_ex_triton.fusion.functions import (
    float_of_byte,
    logistic,
    rounded_by_bits,
    rounded_to_bfloat16,
    rounded_to_float16,
    row_number,
    tanh,
)
from thunder_ex_triton.fusion.index import Group, Index, flipped
from thunder_ex_triton.fusion.iteration_space import MAX_COLUMNS, Space, after_columns, is_reduction, reduces
from thunder_ex_triton.fusion.lines import CHECK, Line, Loop, lines_in, rendered
from thunder_ex_triton.fusion.long_rows import held, in_whole_vectors
from thunder_ex_triton.fusion.memory_order import in_order_of_memory
from thunder_ex_triton.fusion.op_table import MATVEC, POINTWISE, compute_type
from thunder_ex_triton.fusion.philox import philox_words, uniform
from thunder_ex_triton.fusion.scans import combining, is_scan, scan_index
from thunder_ex_triton.fusion.sizes import Size
from thunder_ex_triton.fusion.tiles import is_chunking_profitable
from thunder_ex_triton.launch import starts_early

__all__ = ["HELPERS", "KernelSource", "kernels_of", "module_text"]

_IMPORTS = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

_IMPORTS_EARLY = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"

_ROUNDING = (rounded_by_bits, rounded_to_bfloat16, rounded_to_float16)
_FUNCTIONS = (philox_words, uniform, float_of_byte, *_ROUNDING, logistic, tanh)
# Functions that kernels call. Each function comes after the functions that it calls.
HELPERS = {
    **{f.fn.__name__: f"\n{inspect.getsource(f.fn)}" for f in _FUNCTIONS},
    "row_number": f"\n{textwrap.dedent(inspect.getsource(getattr(row_number, 'fn', row_number)))}",
    "load_row": """
@triton.jit
def load_row(pointers, whole, rest, policy: tl.constexpr):
    vectors = tl.load(pointers, mask=whole, other=0, eviction_policy=policy)
    return tl.where(rest, tl.load(pointers, mask=rest, other=0, eviction_policy=policy), vectors)
""",
    "store_row": """
@triton.jit
def store_row(pointers, value, whole, rest):
    tl.store(pointers, value, mask=whole)
    tl.store(pointers, value, mask=rest)
""",
    "_larger": """
@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_smaller": """
@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_max": """
@triton.jit
def _max(tile, axis: tl.constexpr):
    return tl.reduce(tile, axis, _larger)
""",
    "_min": """
@triton.jit
def _min(tile, axis: tl.constexpr):
    return tl.reduce(tile, axis, _smaller)
""",
}


_EARLY = ("gdc_launch_dependents()", "gdc_wait()")


class KernelSource(NamedTuple):
    """The source of a kernel, with the names of the tensors that it reads and writes, in parameter order."""

    name: str
    text: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    template: str  # "elements", "tiles", "rows", "long", "columns", "finish" or "scan"
    titles: dict[str, str]  # the names of the kernel's values in the trace
    read: int = 0  # the bytes that the kernel reads per element of its space
    loaded: int = 0  # the bytes that the kernel loads per element of a tile of rows and columns
    written: int = 0  # the bytes that a kernel of long rows writes per element of its space
    tensors: int = 0  # the number of tensors that the kernel reads and writes
    operations: int = 0  # the number of lines
    passes: int = 0  # the number of loops over a long row
    products: int = 0  # the number of weights that the kernel multiplies by a single row
    norm: bool = False  # whether a kernel of products also reduces the single row
    early: bool = False  # whether the kernel may start before the kernel before it has ended (`launch.starts_early`)
    checks: bool = False  # whether the kernel asserts that indices are in bounds
    across: bool = False  # whether the elements of a column of a tensor are adjacent in memory
    along: bool = False  # whether the elements of a scanned row are adjacent in memory
    space: Space | None = None  # the space of a kernel of tiles, which depends on strides
    sizes: tuple[int, ...] = ()  # the symbolic sizes that are parameters after the tensors, by index


def module_text(kernels: Sequence[str]) -> str:
    """Return the source of a module of these kernels, with their imports and helper functions."""
    needed: dict[str, str] = {}
    text = "\n".join(kernels)
    for name, helper in reversed(HELPERS.items()):
        if mentions(text, name):
            needed[name] = helper
            text += helper
    imports = _IMPORTS + (_IMPORTS_EARLY if mentions(text, "gdc_wait") else "")
    parts = [imports, *reversed(needed.values()), *(f"\n{kernel}" for kernel in kernels)]
    return "\n".join(parts)


def kernels_of(
    operations: Sequence[BoundSymbol],
    strides: Mapping[str, Sequence[int]],
    outputs: Sequence[TensorProxy],
    space: Space,
    wide: bool,
    long: bool = False,
) -> list[KernelSource]:
    """Return the kernels that compute `outputs`, or raise `Unfit`. `strides` belong to inputs and outputs.

    With `wide`, offsets need 64 bits. With `long`, kernels loop over the chunks of a row.
    """
    integer = ".to(tl.int64)" if wide else ""
    if space.direction:
        return [_scan(operations, strides, outputs, space, integer)]
    if not space.reduces:
        return [_elements(operations, strides, outputs, space, integer)]
    if long:
        return [_long(operations, strides, outputs, space, integer)]
    late = after_columns(operations)
    writer = Writer(operations, strides, space)
    if space.by_ends:
        return _sums_of_tiles(operations, strides, outputs, space, integer)
    if not space.by_column:
        stores = _stores(writer, outputs, space)
        columns = space.columns
        if writer.products:
            chunks = columns * len(writer.tiles) > MAX_COLUMNS
        else:
            chunks = not isinstance(columns, Size) and is_chunking_profitable(columns, len(writer.tiles), writer.lines)
        if chunks:
            return [_long(operations, strides, outputs, space, integer)]
        early = writer.products and starts_early(to_torch_device(outputs[0].device))
        norm = writer.products and any(is_reduction(op) and op.sym.id != MATVEC for op in operations)
        kernel = _rows(writer, [p.name for p in outputs], stores, integer, early)
        return [kernel._replace(norm=norm, early=early)]
    sums = [op for op in operations if is_reduction(op) and _by_column(op, space)]
    partial = [f"{op.output.name}_part" for op in sums]
    accumulate = []
    for op, part in zip(sums, partial):
        tile = writer.value(op.args[0], _of_summed(op, space))
        accumulate.append(Line(f"{part} += tl.where(xm, tl.broadcast_to({tile}, (XB, RB)), 0)"))
    stores = _stores(writer, [p for p in outputs if p.name not in late], space)
    # Sums of a whole tile: a sum over its rows in each iteration would make the warps wait for each other.
    start = [f"{part} = tl.zeros((XB, RB), {compute_type(op.output.dtype)})" for op, part in zip(sums, partial)]
    program = f"tl.program_id(0){integer}"
    head = [f"first = {program}"]
    if space.batch != 1:  # each program is one of those of a batch entry
        head = [f"b = {program} % {space.batch}", f"first = {program} // {space.batch}"]
    row = "first" if space.batch == 1 else program
    total = [f"{part} = tl.sum({part}, 0)[None, :]" for part in partial]
    place, mask = f"{row} * {space.columns} + r", "rm"
    if space.period != 1:  # each program has some of the rows of each period
        inner = f"inner = (tl.program_id(1) * XB + tl.arange(0, XB){integer})[:, None]"
        head += [inner, f"xm = inner < {space.period}"]
        total, place, mask = [], f"first * {space.sums} + inner * {space.columns} + r", "xm & rm"
    body: list[str | Line | Loop] = [
        *head, *_columns(space, integer, whole=space.by_row), *start, *writer.before,
        _in_turn(space, integer, [*writer.lines, *stores, *accumulate]),
        *total, *(f"tl.store({pointer(part)} + {place}, {part}, mask={mask})" for part in partial),
    ]  # fmt: skip
    writes = [p.name for p in outputs if p.name not in late] + partial
    parameters = "XB: tl.constexpr, RB: tl.constexpr, stages: tl.constexpr"
    main = _kernel("columns", writer, writer.reads, writes, parameters, body)
    return [main, _finish(operations, strides, [p for p in outputs if p.name in late], space, sums, integer)]


def _rows(writer: Writer, writes: Sequence[str], stores: Sequence[Line], integer: str, early: bool) -> KernelSource:
    """Return a kernel with one program per row, or per few rows."""
    space = writer.space
    head = [f"x = (tl.program_id(0){integer} * XB + tl.arange(0, XB))[:, None]", f"xm = x < {space.rows}"]
    lines = [*writer.before, *writer.lines]
    if writer.products:
        lines.sort(key=lambda line: not _is_load_of_weight(line))
    head += _columns(space, integer, whole=True)
    body: list[str | Line | Loop] = [*(_EARLY if early else ()), *head, *lines, *stores]
    return _kernel("rows", writer, writer.reads, writes, "XB: tl.constexpr, RB: tl.constexpr", body)


def _is_load_of_weight(line: Line) -> bool:
    """Check whether a line loads a tile of a weight, which a kernel does before it computes the norm of the single row.

    Bytes are loaded where they are converted, because the layout of their tile in registers is another one.
    """
    access = line.access
    if access is None or access.value is not None or re.search(r"\b[vc]\d+\b", f"{access.offset} {access.mask}"):
        return False
    return mentions(access.offset, "x") and mentions(access.offset, "r") and access.itemsize > 1


def _in_turn(space: Space, integer: str, lines: Sequence[Line]) -> Loop:
    """Return a software-pipelined loop over the rows of a program.

    While a row is computed, the next rows are loaded.
    """
    if space.period != 1:
        count = space.rows // space.period
        first = f"for entry in tl.range(first, {count}, tl.num_programs(0), num_stages=stages):"
        return Loop((first, f"x = entry * {space.period} + inner"), tuple(lines))
    programs = "tl.num_programs(0)" if space.batch == 1 else f"(tl.num_programs(0) // {space.batch})"
    head = (
        f"for row in tl.range(first * XB, {space.rows}, {programs} * XB, num_stages=stages):",
        f"x = (row + tl.arange(0, XB){integer})[:, None]",
        f"xm = x < {space.rows}",
    )
    return Loop(head, tuple(lines))


def _elements(
    operations: Sequence[BoundSymbol], strides: Mapping[str, Sequence[int]],
    outputs: Sequence[TensorProxy], space: Space, integer: str,
) -> KernelSource:  # fmt: skip
    whole, own = in_order_of_memory(operations, strides, outputs[-1])
    writer = Writer(operations, strides, own._replace(rounded=space.rounded) if own.tiled else space)
    stores = []
    for p in reversed(outputs):
        if math.prod(p.shape) != space.rows:
            raise Unfit("makes tensors of several sizes")
        index = writer.places.get(p.name)
        if index is None:
            index = whole if p.shape == outputs[-1].shape else whole.reshaped(p.shape)
        stores.append(writer.stored(p, index, writer.value(p, index)))
    lines = [*writer.before, *writer.lines, *stores]
    writes = [p.name for p in outputs]
    if own.tiled:
        return _tiles(writer, writes, lines, integer)
    head = [
        f"x = tl.program_id(0){integer} * XB + tl.arange(0, XB)",
        f"xm = x < {space.rows}",
        "zero = tl.arange(0, 1)",
    ]
    return _kernel("elements", writer, writer.reads, writes, "XB: tl.constexpr", [*head, *lines])


def _tiles(writer: Writer, writes: Sequence[str], lines: Sequence[Line], integer: str) -> KernelSource:
    """Return a kernel with one program per tile of rows and columns."""
    space = writer.space
    head = [
        f"across = ({space.columns} + RB - 1) // RB",
        f"down = ({space.rows} + XB - 1) // XB",
        f"tile = tl.program_id(0){integer}",
        "b = tile // (across * down)",
        "x = (tile // across % down * XB + tl.arange(0, XB))[:, None]",
        f"xm = x < {space.rows}",
        "r = (tile % across * RB + tl.arange(0, RB))[None, :]",
        f"rm = r < {space.columns}",
        "zero = tl.arange(0, 1)[:, None]",
    ]
    kernel = _kernel("tiles", writer, writer.reads, writes, "XB: tl.constexpr, RB: tl.constexpr", [*head, *lines])
    return kernel._replace(space=space)


def _sums_of_tiles(
    operations: Sequence[BoundSymbol], strides: Mapping[str, Sequence[int]],
    outputs: Sequence[TensorProxy], space: Space, integer: str,
) -> list[KernelSource]:  # fmt: skip
    """Return a kernel that writes the sums of each tile's rows, and the kernel that adds these partial sums."""
    writer = Writer(operations, strides, space)
    late = after_columns(operations)
    sums = [op for op in operations if is_reduction(op)]
    accumulate = []
    for op in sums:
        tile = writer.value(op.args[0], _of_summed(op, space))
        row = f"tl.sum(tl.where(xm & rm, tl.broadcast_to({tile}, (XB, RB)), 0), 1)[:, None]"
        place = f"{pointer(f'{op.output.name}_part')} + (b * across + tile % across) * {space.rows} + x"
        accumulate.append(Line(f"tl.store({place}, {row}, mask=xm)"))
    stores = _stores(writer, [p for p in outputs if p.name not in late], space)
    writes = [*(p.name for p in outputs if p.name not in late), *(f"{op.output.name}_part" for op in sums)]
    main = _tiles(writer, writes, [*writer.before, *writer.lines, *stores, *accumulate], integer)
    return [main, _finish(operations, strides, [p for p in outputs if p.name in late], space, sums, integer)]


def _of_summed(op: BoundSymbol, space: Space) -> Index:
    """Return the index at which a sum reads its operand."""
    if op.sym is not prims.sum or compute_type(op.args[0].dtype) not in ("tl.float32", "tl.float64"):
        raise Unfit("reduces columns by an operation other than a sum of floats")
    return _whole(space).reshaped(op.args[0].shape)


def _whole(space: Space) -> Index:
    """Return the index of each element of a space."""
    return Index([Group("b", (space.batch,)), Group("x", (space.rows,)), Group("r", (space.columns,))])


def _long(
    operations: Sequence[BoundSymbol], strides: Mapping[str, Sequence[int]],
    outputs: Sequence[TensorProxy], space: Space, integer: str,
) -> KernelSource:  # fmt: skip
    """Return a kernel that loops over the chunks of a row: once per reduction, and once more for the outputs."""
    if space.by_column:
        raise Unfit("reduces both long rows and columns")
    writer = Writer(operations, strides, space, long=True, integer=integer)
    single = _stores(writer, [p for p in outputs if math.prod(p.shape) != space.size], space)
    whole = _stores(writer, [p for p in outputs if math.prod(p.shape) == space.size], space)
    head = [f"x = (tl.program_id(0){integer} * XB + tl.arange(0, XB))[:, None]", f"xm = x < {space.rows}"]
    head.append("zero = tl.arange(0, 1)[:, None]")
    last = [in_chunks([*writer.lines, *whole], space, integer)] if whole else []
    body = held([*writer.before, *writer.rows, *single, *last])
    passes = sum(isinstance(item, Loop) for item in body)
    written = [p.dtype.bytes for p in outputs if math.prod(p.shape) == space.size]
    if not isinstance(space.columns, Size):
        size = 16 // min([*writer.tiles.values(), *written], default=16)
        body = in_whole_vectors(body, space.columns, size, integer)
    parameters = "XB: tl.constexpr, RB: tl.constexpr"
    kernel = _kernel("long", writer, writer.reads, [p.name for p in outputs], parameters, [*head, *body])
    return kernel._replace(written=sum(written), passes=passes)


def _scan(
    operations: Sequence[BoundSymbol], strides: Mapping[str, Sequence[int]],
    outputs: Sequence[TensorProxy], space: Space, integer: str,
) -> KernelSource:  # fmt: skip
    """Return a kernel that goes along rows in blocks, and carries what the blocks before amount to."""
    writer = Writer(operations, strides, space, long=True, integer=integer)
    places = _places_of_scans(operations)
    whole = next(scan_index(op) for op in operations if is_scan(op))
    stores = []
    for p in sorted(outputs, key=lambda p: p.name not in places):
        if math.prod(p.shape) != space.size:
            raise Unfit("makes tensors of several sizes")
        index = places.get(p.name) or writer.places.get(p.name) or whole
        if index.shape != tuple(p.shape):
            raise Unfit("makes tensors of several shapes")
        stores.append(writer.stored(p, index, writer.value(p, index)))
    head = [f"x = (tl.program_id(0){integer} * XB + tl.arange(0, XB))[:, None]", f"xm = x < {space.rows}"]
    head.append("zero = tl.arange(0, 1)[:, None]")
    loop = in_blocks([*writer.lines, *stores, *writer.carries], space, integer)
    body: list[str | Line | Loop] = [*head, *writer.before, *writer.rows, loop]
    kernel = _kernel(
        "scan", writer, writer.reads, [p.name for p in outputs], "XB: tl.constexpr, RB: tl.constexpr", body
    )
    functions = [line for given, name in writer.functions.items() for line in combining(name, *given)]
    named = places.get(outputs[0].name, whole)
    steps = [s for g, s in zip(named.dims(), strides[outputs[0].name]) if mentions(g.expression, "r")]
    return kernel._replace(text="\n".join([*functions, kernel.text]), along=steps == [1])


def _places_of_scans(operations: Sequence[BoundSymbol]) -> dict[str, Index]:
    """Return the indices at which a kernel computes the results of scans, and the values that depend on them."""
    found: dict[str, Index] = {}
    for op in operations:
        late = next((found[name] for name in op.arg_names if name in found), None)
        if is_scan(op):
            index = scan_index(op)
        elif late is None:
            continue
        elif op.sym is prims.transpose:
            index = Index([late.dims()[i] for i in op.args[1]])
        elif op.sym is prims.flip:
            index = _turned(late, op.output.shape, op.args[1])
        else:
            index = late.reshaped(op.output.shape)
        found.update(dict.fromkeys(op.out_names, index))
    return found


def _turned(index: Index, shape: Sequence[int], dims: Sequence[int]) -> Index:
    turned = [d % len(shape) for d in dims]
    return index.mapped(lambda i, e: flipped(e, shape[i]) if i in turned else e, shape)


def _columns(space: Space, integer: str, *, whole: bool) -> list[str]:
    lanes = f"tl.arange(0, RB){integer}"
    first = "" if whole else "tl.program_id(1) * RB + "
    return [f"r = ({first}{lanes})[None, :]", f"rm = r < {space.columns}", "zero = tl.arange(0, 1)[:, None]"]


def _stores(writer: Writer, outputs: Sequence[TensorProxy], space: Space) -> list[Line]:
    """Return the lines that store outputs of a kernel with reductions.

    Sums come first, and then whole values from the last to the first: a value that they are computed from is stored
    where it was computed.
    """
    single = [p for p in outputs if math.prod(p.shape) != space.size]
    whole = [p for p in outputs if math.prod(p.shape) == space.size]
    places = _places_of_rows(writer, space)
    return [_store(writer, p, space, places) for p in (*single, *reversed(whole))]


def _places_of_rows(writer: Writer, space: Space) -> dict[str, Index]:
    """Return the indices at which a kernel of rows computes whole values: those that its reductions have operands at.

    Other dimensions may lie between those of a row, e.g. if a row is a channel of all samples.
    """
    operations, found = writer.operations, dict[str, Index]()
    moves = writer.rolls or any(op.sym is prims.transpose for op in operations)
    if isinstance(space.size, Size) or not moves:
        return found
    for op in operations:
        own = reduces(op) if is_reduction(op) and op.sym.id != MATVEC else None
        if own is not None and own.by_row and own.size == space.size:
            shape, kept = op.args[0].shape, op.args[0].ndim - len(op.args[1])
            found.setdefault(op.args[0].name, Index([Group("x", shape[:kept]), Group("r", shape[kept:])]))
    for op in (*reversed(operations), *operations):  # to what the operands are computed from, and then onwards
        outs = [p for p in op.flat_outs if isinstance(p, TensorProxy)]
        roll = writer.rolls.get(op.out_names[0]) if op.sym is prims.cat else None
        for p, a in itertools.product(outs, op.tensors() if roll is None else (roll.a,)):
            if math.prod(p.shape) != space.size or math.prod(a.shape) != space.size:
                continue
            if roll is not None:
                if p.name in found:
                    found.setdefault(a.name, found[p.name].rolled(roll.dim, roll.start))
                elif a.name in found:
                    found[p.name] = found[a.name].rolled(roll.dim, -roll.start)
            elif op.sym is prims.transpose:
                if p.name in found:
                    found.setdefault(a.name, found[p.name].transposed(op.args[1]))
                elif a.name in found:
                    found[p.name] = Index([found[a.name].dims()[i] for i in op.args[1]])
            elif op.sym.id in POINTWISE or op.sym.facts.keeps_order or op.sym is prims.broadcast_in_dim:
                if p.name in found:
                    found.setdefault(a.name, found[p.name].reshaped(a.shape))
                elif a.name in found:
                    found[p.name] = found[a.name].reshaped(p.shape)
    return found


def _store(writer: Writer, p: TensorProxy, space: Space, places: Mapping[str, Index]) -> Line:
    size = math.prod(p.shape)
    rows = [Group("b", (space.batch,)), Group("x", (space.rows,))]
    if size == space.size:
        index = writer.places.get(p.name) or places.get(p.name)
        if index is None:
            index = _whole(space).reshaped(p.shape)
        return writer.stored(p, index, writer.value(p, index))
    if size != space.all_rows:
        raise Unfit("makes tensors of several sizes")
    index = Index(rows).reshaped(p.shape)
    value = writer.value(p, index)
    if "r" in writer.depends.get(value, ()):
        raise Unfit("makes tensors of several sizes")
    return writer.stored(p, index, value)


def _by_column(op: BoundSymbol, space: Space) -> bool:
    own = reduces(op)
    return own is not None and own.by_column and not (own.by_row and space.by_row)


def _finish(
    operations: Sequence[BoundSymbol], strides: Mapping[str, Sequence[int]],
    outputs: Sequence[TensorProxy], space: Space, sums: Sequence[BoundSymbol], integer: str,
) -> KernelSource:  # fmt: skip
    """Return the kernel that adds partial sums in a fixed order, and computes values from the sums."""
    writer = Writer(operations, strides, space, axis="r")
    columns = space.sums
    head = [f"r = (tl.program_id(0) * RB + tl.arange(0, RB){integer})[None, :]", f"rm = r < {columns}"]
    head.append("zero = tl.arange(0, 1)[:, None]")
    for op in sums:
        part, kind = f"{op.output.name}_part", compute_type(op.output.dtype)
        head += [
            f"{part} = tl.zeros((XB, RB), {kind})",
            "for first in range(0, programs, XB):",
            f"    p = (first + tl.arange(0, XB){integer})[:, None]",
            f"    {part} += tl.load({pointer(part)} + p * {columns} + r, mask=rm & (p < programs), other=0)",
            f"{part} = tl.sum({part}, 0)[None, :]",
        ]
        writer.depends[part] = frozenset("r")
        key = op.output.name, Index([Group("r", tuple(op.output.shape))]).key, ""
        writer.known[key] = writer.rounded_result(op.output, part)
    stores = []
    for p in outputs:
        if math.prod(p.shape) != columns:
            raise Unfit("makes tensors of several sizes")
        index = Index([Group("r", (columns,))]).reshaped(p.shape)
        stores.append(writer.stored(p, index, writer.value(p, index)))
    reads = [*writer.reads, *(f"{op.output.name}_part" for op in sums)]
    body: list[str | Line | Loop] = [*head, *writer.before, *writer.lines, *stores]
    parameters = "programs, XB: tl.constexpr, RB: tl.constexpr"
    return _kernel("finish", writer, reads, [p.name for p in outputs], parameters, body)


def _kernel(
    template: str,
    writer: Writer,
    reads: Sequence[str],
    writes: Sequence[str],
    parameters: str,
    body: Sequence[str | Line | Loop],
) -> KernelSource:
    """Return a kernel's source. Names are positional, so that equal layers of a model share one compiled kernel."""
    names = {f"{n}_ptr": f"p{i}" for i, n in enumerate((*reads, *writes))}
    parts = [n for n in (*reads, *writes) if n.endswith("_part")]
    names.update({n: f"sum{i}" for i, n in enumerate(parts)})
    lines = [re.sub(r"\b\w+_(?:ptr|part)\b", lambda m: names.get(m[0], m[0]), line) for line in rendered(body)]
    sizes = tuple(dict.fromkeys(int(n) for line in lines for n in re.findall(r"\bsize_(\d+)\b", line)))
    numbers = {str(index): f"n{i}" for i, index in enumerate(sizes)}
    lines = [re.sub(r"\bsize_(\d+)\b", lambda m: numbers[m[1]], line) for line in lines]
    given = ", ".join([*(f"p{i}" for i in range(len(reads) + len(writes))), *numbers.values()])
    name = f"fused_{template}"
    text = "\n".join(["@triton.jit", f"def {name}({given}, {parameters}):", *(f"    {x}" for x in lines), ""])
    return KernelSource(
        name, text, tuple(reads), tuple(writes), template, writer.titles, read=sum(writer.tiles.values()),
        loaded=writer.loaded, across=writer.across, tensors=len(reads) + len(writes), operations=len(lines),
        sizes=sizes,
        products=len(writer.tiles) if writer.products else 0,
        checks=any(line.kind == CHECK for line in lines_in(item for item in body if not isinstance(item, str))),
    )  # fmt: skip
