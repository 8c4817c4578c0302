# SPDX-License-Identifier: Apache-2.0
"""Code generation: translate operations to the lines of a kernel that compute their values.

Code is generated from the outputs backwards. The value of an operation *at an index* is computed from the values of its
operands at indices derived from that index. Reshapes, broadcasts, slices and concatenations therefore cost index
arithmetic but no memory. Values that no output needs are not computed. A value that is used twice at one index is
computed once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder import prims
from thunder.extend import BoundSymbol, Proxy, TensorProxy, dtypes
from thunder_ex_triton.fusion.errors import Unfit
from thunder_ex_triton.fusion.index import Group, Index, address, flipped
from thunder_ex_triton.fusion.iteration_space import Space, is_reduction, reduces
from thunder_ex_triton.fusion.layout import contiguous
from thunder_ex_triton.fusion.lines import CHECK, DRAW, VALUE, Access, Line, Loop
from thunder_ex_triton.fusion.op_table import (
    MATVEC,
    POINTWISE,
    REDUCTIONS,
    as_half,
    compute_type,
    float_of,
    literal,
    operands_of,
    quotient,
    storage_type,
)
from thunder_ex_triton.fusion.rolls import rolls_of
from thunder_ex_triton.fusion.scans import is_scan, scan_index, scan_of
from thunder_ex_triton.fusion.sizes import Size
from thunder_ex_triton.fusion.tiles import tallest
from thunder_ex_triton.probe import interpreting

__all__ = ["GATHERS", "UNIFORM", "Writer", "in_blocks", "in_chunks", "mentions", "pointer"]

UNIFORM = "triton.triton_uniform"  # the id of the operator that draws random numbers
GATHERS = {prims.embedding, prims.take}  # the rows of tables, by index


class Writer:
    """Generates the lines that compute values at indices."""

    def __init__(
        self,
        operations: Sequence[BoundSymbol],
        strides: Mapping[str, Sequence[int]],
        space: Space,
        axis: str = "x",
        long: bool = False,
        integer: str = "",
    ):
        self.products = any(op.sym.id == MATVEC for op in operations)
        self.long = long  # whether the kernel loops over the chunks of a row
        self.integer = integer  # the conversion of indices to 64 bits, if offsets need them
        self.sums = space.by_column and not space.by_row and axis == "x"  # whether the kernel loops over tiles of rows
        self.axis = axis  # the index variable of a kernel with a single axis
        self.operations = operations
        self.made_by = {p.name: (op, i) for op in operations for i, p in enumerate(op.flat_outs)}
        self.rolls = rolls_of(operations)
        self.strides = strides
        self.space = space
        self.before: list[Line] = []  # the lines that do not depend on the row
        self.rows: list[Line | Loop] = []  # with long rows, all items except the last loop over the chunks of a row
        self.lines: list[Line] = []
        self.reads: list[str] = []
        self.tiles: dict[str, int] = {}  # the itemsize of each tensor that is read once per element
        self.across = False  # whether the elements of a column of a tensor are adjacent in memory
        self.loaded = 0  # the bytes that a tile of rows and columns loads per element
        self.known: dict[Any, str] = {}
        self.depends: dict[str, frozenset[str]] = {}
        self.rounded: dict[str, str] = {}  # the unrounded value of each rounded value
        self.titles: dict[str, str] = {}
        self.places: dict[str, Index] = {}  # where whole values are computed, one element per program and lane
        self.functions: dict[
            tuple[int, tuple[str, ...]], str
        ] = {}  # the names of functions that combine elements of scans
        self.carries: list[Line] = []  # the lines at the end of a block of a scan
        self.count = 0

    # -- values -------------------------------------------------------------------------------------------------------
    def value(self, x: Any, index: Index, guard: str = "") -> str:
        """Return the name or the expression of a value at an index.

        `guard` is the mask of the elements where the value is defined.
        """
        if isinstance(x, Size):
            return str(x)
        if not isinstance(x, TensorProxy):
            if isinstance(x, Proxy):
                raise Unfit("has a data-dependent number")
            return literal(x)
        key = (x.name, index.key, guard)
        if not guard and x.name not in self.places and self._is_whole(x, index):
            self.places[x.name] = index
        if key not in self.known:
            found = self._computed(x, index, guard)
            if key not in self.known:  # an operation with several results adds all of them
                self.known[key] = self.rounded_result(x, found)
            self.titles.setdefault(self.known[key], x.name)
        return self.known[key]

    def rounded_result(self, x: Proxy, value: str) -> str:
        """Return the value of `x`, rounded to half precision if it is the result of one of torch's operations."""
        if not isinstance(x, TensorProxy) or x.name not in self.space.rounded:
            return value
        name = self.named(as_half(value, x.dtype))
        self.rounded[name] = value
        return name

    def _is_whole(self, x: TensorProxy, index: Index) -> bool:
        """Check whether an index visits each element of a value once."""
        size = self.space.size
        if isinstance(size, Size) or math.prod(x.shape) != size:
            return False
        sizes = {"b": self.space.batch, "x": self.space.rows, "r": self.space.columns}
        return index.is_permutation(sizes if self.space.has_columns else {"x": size})

    def _computed(self, x: TensorProxy, index: Index, guard: str) -> str:
        if x.name not in self.made_by:
            return self.load(x, index, guard)
        op, position = self.made_by[x.name]
        sym = op.sym
        if sym.id == UNIFORM:
            return self.drawn(op, index)
        if is_reduction(op):
            return self.reduction(op, position, index, guard)
        if is_scan(op):
            return self.scan(op, position, index, guard)
        write = POINTWISE.get(sym.id)
        if write is not None:
            exponent = self._of_logistic(op)
            if exponent is not None:
                return self.named(f"logistic({self.value(exponent, index, guard)})")
            operands = [self.value(a, index, guard) for a in operands_of(op)]
            text = write(op, *operands)
            if sym is prims.div and self._is_softmax(op):  # divide once per row
                text = f"({operands[0]} * {self.named(quotient(x.dtype, '1.0', operands[1]))})"
            if text is None:
                raise Unfit(f"has no code for {sym.name} of {x.dtype}")
            name = self.named(text)
            if text.startswith(f"rounded_to_{x.dtype}("):
                self.rounded[name] = text[text.index("(") + 1 : -1]
            return name
        return self.shaped(op, x, index, guard)

    def _of_logistic(self, op: BoundSymbol) -> Any:
        """Return `x` if the result of an operation is 1 / (1 + exp(-x)) in single precision; None otherwise."""
        x: Any = op.output
        if interpreting() or op.sym is not prims.div or compute_type(x.dtype) != "tl.float32":
            return None
        for sym, one in ((prims.div, 0), (prims.add, 0), (prims.exp, None), (prims.neg, None)):
            made = self._made(x)
            if made is None or made.sym is not sym:
                return None
            if one is not None and (isinstance(made.args[one], Proxy) or made.args[one] != 1):
                return None
            x = made.args[-1]
        return x

    def _made(self, x: Any) -> BoundSymbol | None:
        """Return the operation of the region that computes a value; None if the value is an input."""
        return self.made_by[x.name][0] if getattr(x, "name", None) in self.made_by else None

    def _is_softmax(self, division: BoundSymbol) -> bool:
        """Check whether a quotient is `e / e.sum()` for `e = exp(x - x.amax())`.

        The kernel can then multiply by the reciprocal of the sum: no product is greater than one, because no
        exponential is, and the sum is not less than one.
        """
        exponentials = self._operand_of(division, 0, prims.exp)
        total = self._operand_of(division, 1, prims.sum)
        shifted = self._operand_of(exponentials, 0, prims.sub)
        largest = self._operand_of(shifted, 1, prims.amax)
        if exponentials is None or total is None or shifted is None or largest is None:
            return False
        return bool(_is_same(exponentials.output, total.args[0]) and _is_same(shifted.args[0], largest.args[0]))

    def _operand_of(self, op: BoundSymbol | None, place: int, sym: Any) -> BoundSymbol | None:
        """Return the operation that computes an operand (which may be a broadcast of its result) if it is a `sym`."""
        made = None if op is None else self._made(op.args[place])
        while made is not None and made.sym is prims.broadcast_in_dim:
            made = self._made(made.args[0])
        return made if made is not None and made.sym is sym else None

    def shaped(self, op: BoundSymbol, x: TensorProxy, index: Index, guard: str) -> str:
        """Return the value of an operation that only moves elements or creates constants."""
        sym, args = op.sym, op.args
        if sym is prims.broadcast_in_dim:
            return self.value(args[0], index.of_broadcast(args[0].shape, args[2]), guard)
        if sym in (prims.reshape, prims.view, prims.squeeze, prims.stride_order):
            return self.value(args[0], index.reshaped(args[0].shape), guard)
        if sym is prims.transpose:
            return self.value(args[0], index.transposed(args[1]), guard)
        if sym is prims.slice:
            steps = args[3] if len(args) > 3 and args[3] is not None else [1] * x.ndim
            moved = index.mapped(lambda i, e: _moved(e, args[1][i], steps[i]), args[0].shape)
            return self.value(args[0], moved, guard)
        if sym is prims.full:
            kind, single = compute_type(x.dtype), "(1, 1)" if self.space.has_columns else "(1,)"
            if isinstance(args[1], Size):
                return self.named(f"tl.full({single}, {args[1]}, {kind})")
            filled = bool(args[1]) if kind == "tl.int1" else args[1] if "float" in kind else int(args[1])
            return self.named(f"tl.full({single}, {literal(filled)}, {kind})")
        if sym is prims.iota:
            place, step, start = index.dims()[0].expression, op.kwargs["step"], op.kwargs["start"]
            return self.named(f"({_block(place)}.to(tl.int64) * {step} + {start}).to({compute_type(x.dtype)})")
        if sym is prims.flip:
            turned = [d % x.ndim for d in args[1]]
            moved = index.mapped(lambda i, e: flipped(e, x.shape[i]) if i in turned else e, args[0].shape)
            return self.value(args[0], moved, guard)
        if x.name in self.rolls:
            a, dim, start = self.rolls[x.name]
            return self.value(a, index.rolled(dim, start), guard)
        if sym is prims.cat:
            return self.cat(args[0], args[1], index, guard)
        if sym is prims.pad:
            return self.pad(args[0], args[1], args[2], index, guard)
        if sym in GATHERS:
            return self.gathered(args, args[1].ndim if sym is prims.embedding else 1, index, guard)
        raise Unfit(f"has no code for {sym.name}")

    def gathered(self, args: Sequence[Any], leading: int, index: Index, guard: str) -> str:
        """Return an element of a table's row, gathered by index. Assert that the index is in bounds."""
        table, numbers = (a for a in args if isinstance(a, TensorProxy))
        first, rest = index.split(leading)
        number = self.value(numbers, first.reshaped(numbers.shape), guard)
        masks = [f"{v}m" for v in ("x", "r") if v in self.depends.get(number, ())]
        exists = " & ".join([*masks, *([guard] if guard else [])]) or f"{number} == {number}"
        row = self.named(f"row_number({number}, {table.shape[0]}, {exists})", kind=CHECK)
        return self.value(table, Index([Group(row, (table.shape[0],)), *rest.groups]), guard)

    def cat(self, parts: Sequence[TensorProxy], dim: int, index: Index, guard: str) -> str:
        """Return an element of a concatenation, selected from the parts by masks."""
        dim %= parts[0].ndim
        where = _block(index.dims()[dim].expression)
        start, text = 0, ""
        for part in parts:
            end = start + part.shape[dim]
            condition = self.named(f"({where} >= {start}) & ({where} < {end})")
            first = start

            def moved(i: int, e: str, first: int = first) -> str:
                return _moved(e, -first, 1) if i == dim else e

            inner = index.mapped(moved, part.shape)
            value = self.value(part, inner, f"{guard} & {condition}" if guard else condition)
            # A line for each part: Python limits how deeply parentheses are nested, and Triton how deep calls are.
            text = self.named(f"tl.where({condition}, {value}, {text})" if text else value)
            start = end
        return text

    def pad(self, a: TensorProxy, value: Any, config: Sequence[Sequence[int]], index: Index, guard: str) -> str:
        """Return an element of the padded tensor. Outside of the original tensor it is the padding value."""
        conditions = []
        for d, (low, high, between), size in zip(index.dims(), config, a.shape):
            if isinstance(between, Size):
                raise Unfit("has interior padding of symbolic sizes")
            where = _block(d.expression)
            if isinstance(low, Size) or low > 0:
                conditions.append(f"({where} >= {low})")
            if isinstance(high, Size) or high > 0:
                conditions.append(f"({where} < {low + size + between * (size - 1)})")
            if between:
                conditions.append(f"(({where} - {low}) % {between + 1} == 0)")
        inner = index.mapped(lambda i, e: _divided(_moved(e, -config[i][0], 1), config[i][2] + 1), a.shape)
        if not conditions:
            return self.value(a, inner, guard)
        condition = self.named(" & ".join(conditions))
        element = self.value(a, inner, f"{guard} & {condition}" if guard else condition)
        return self.named(f"tl.where({condition}, {element}, {literal(value)})")

    def load(self, x: TensorProxy, index: Index, guard: str) -> str:
        """Return an element of an input."""
        if x.name not in self.reads:
            self.reads.append(x.name)
        if math.prod(x.shape) == self.space.size:
            self.tiles[x.name] = x.dtype.bytes
            self._note_order(x, index)
        offset = self._of_tile(address(index, self.strides[x.name]))
        masks = [f"{v}m" for v in ("x", "r") if mentions(offset, v)]
        if len(masks) == 2:
            self.loaded += x.dtype.bytes
        mask = " & ".join([*masks, *([guard] if guard else [])])
        if guard:  # offsets and masks must have one shape
            offset = f"{offset} + tl.where({guard}, 0, 0)"
        else:
            offset = _block(offset)
        text = "@"
        if storage_type(x.dtype) != compute_type(x.dtype):
            text = f"@.to({compute_type(x.dtype)})"
        elif storage_type(x.dtype) == "tl.int1":
            text = "(@ != 0)"
        other = "0.0" if x.dtype is dtypes.float8_e4m3fn else "0"  # no integer can be converted to float8
        return self.named(text, access=Access(pointer(x.name), offset, mask, other=other, itemsize=x.dtype.bytes))

    def _note_order(self, x: TensorProxy, index: Index) -> None:
        """Note which elements of a tensor of the space are adjacent in memory."""
        innermost = [g.expression for g, s in zip(index.dims(), self.strides[x.name]) if s == 1 and g.size != 1]
        self.across |= any(mentions(e, "x") and not mentions(e, "r") for e in innermost)

    def _of_tile(self, offset: str) -> str:
        """Return an offset without the rows of the tile, if all of them have the same one.

        The sums of columns of a batch read numbers of each batch entry, which are those of one row then.
        """
        if not self.sums or isinstance(self.space.columns, Size):
            return offset
        tall = tallest(self.space.columns)
        text = re.sub(r"\(x // (\d+)\)", lambda m: f"(row // {m[1]})" if int(m[1]) % tall == 0 else m[0], offset)
        return offset if mentions(text, "x") else text

    def drawn(self, op: BoundSymbol, index: Index) -> str:
        """Return the random number of an element."""
        seed, shape, _ = op.args
        if seed.name not in self.reads:
            self.reads.append(seed.name)
        place = address(index, contiguous(shape))
        return self.named(f"uniform({pointer(seed.name)}, {_block(place)})", kind=DRAW)

    def reduction(self, op: BoundSymbol, position: int, index: Index, guard: str) -> str:
        """Return the result of a reduction over a row."""
        if op.sym.id == MATVEC:
            return self.product(op, index, guard)
        own = reduces(op)
        if self.axis == "r":
            raise Unfit("uses a row reduction after a column reduction")
        single = self.products and own is not None and (own.rows, own.columns) == (1, self.space.columns)
        rows = 1 if single else self.space.rows
        if own is None or guard or not own.by_row or (own.rows, own.columns) != (rows, self.space.columns):
            raise Unfit("uses a column reduction inside of the rows")
        a, kept = op.args[0], op.args[0].ndim - len(op.args[1])
        if index.key != Index([Group("x", tuple(a.shape[:kept]))]).key:
            raise Unfit("uses the reduction of another row")
        inner = Index([Group("0" if single else "x", tuple(a.shape[:kept])), Group("r", tuple(a.shape[kept:]))])

        def tile() -> str:
            return self.value(a, inner)

        if op.sym in (prims.var_mean, prims.var):
            return self._variance(op, position, index, tile, single)
        return self._reduced(op.sym.id, tile, a.dtype, single)

    def product(self, op: BoundSymbol, index: Index, guard: str) -> str:
        """Return an element of the product of a weight and a single row: the sum over a row of the weight."""
        weight, x, scale = (*op.args, None)[:3]
        rows, columns = weight.shape
        row = Index([Group("x", (rows,))])
        if guard or index.key != row.key:
            raise Unfit("uses the product of another row")

        def tile() -> str:
            element = self.value(weight, Index([Group("x", (rows,)), Group("r", (columns,))]))
            if weight.dtype is dtypes.int8:
                element = self.named(float_of(element, dtypes.int8))
            return f"{element} * {self.value(x, Index([Group('r', (columns,))]).reshaped(x.shape))}"

        total = self._reduced(prims.sum.id, tile, x.dtype)
        return total if scale is None else self.named(f"{total} * {self.value(scale, row.reshaped(scale.shape))}")

    def _reduced(self, kind: Any, tile: Callable[[], str], dtype: Any, single: bool = False) -> str:
        """Return the reduction of the elements of a row; of the single row that all programs read, if `single`."""
        text, combined, neutral = REDUCTIONS[kind]
        if neutral in ("inf", "-inf"):
            if compute_type(dtype) not in ("tl.float32", "tl.float64"):
                raise Unfit("reduces integers by amax or amin")
            neutral = f'float("{neutral}")'
        columns = self.space.columns
        if self.long:
            whole = self._gone_over(tile, combined, neutral, compute_type(dtype))
        else:
            whole = f"tl.broadcast_to({tile()}, ({1 if single else 'XB'}, RB))"
            if isinstance(columns, Size) or columns & (columns - 1):
                whole = f"tl.where(rm, {whole}, {neutral})"
        return self.named(f"{text.format(whole, 1)}[:, None]", row=True, single=single)

    def _gone_over(self, tile: Callable[[], str], combined: str, neutral: str, kind: str) -> str:
        """Return a tile of partial results of a long row, which a loop over its chunks accumulates."""
        before = self.lines, self.known
        self.lines, self.known = [], self._of_rows()
        whole = f"tl.where(rm, tl.broadcast_to({tile()}, (XB, RB)), {neutral})"
        name = f"c{self.count}"
        self.count += 1
        body = [*self.lines, Line(f"{name} = {combined.format(name, whole)}")]
        found = self._of_rows()
        self.lines, self.known = before
        self.known.update(found)
        self.rows += [Line(f"{name} = tl.full((XB, RB), {neutral}, {kind})"), in_chunks(body, self.space, self.integer)]
        return name

    def _of_rows(self) -> dict[Any, str]:
        """Return the known values that are uniform within a row."""
        return {key: value for key, value in self.known.items() if "r" not in self.depends.get(value, ())}

    def _variance(self, op: BoundSymbol, position: int, index: Index, tile: Callable[[], str], single: bool) -> str:
        columns, dtype = self.space.columns, op.args[0].dtype

        def divided(total: str, count: Any) -> str:
            return quotient(dtype, total, f"tl.full((), {count}, {compute_type(dtype)})")

        mean = self.named(divided(self._reduced(prims.sum.id, tile, dtype, single), columns), row=True, single=single)

        def square() -> str:
            element = tile()
            return self.named(f"({element} - {mean}) * ({element} - {mean})")

        total = self._reduced(prims.sum.id, square, dtype, single)
        correction = op.kwargs["correction"]
        if isinstance(columns, Size):
            text = divided(total, f"tl.maximum({columns} - {correction}, 0)" if correction else columns)
        else:
            divisor = max(columns - correction, 0)
            text = divided(total, divisor) if divisor else f'{total} * float("nan")'
        variance = self.named(text, row=True, single=single)
        for p, name in zip(op.flat_outs, (variance, mean)):
            self.known[p.name, index.key, ""] = self.rounded_result(p, name)
        return (variance, mean)[position]

    def scan(self, op: BoundSymbol, position: int, index: Index, guard: str) -> str:
        """Return the result of a scan. The lines scan a block, and combine it with what the blocks before amount to."""
        if guard or index.key != scan_index(op).key:
            raise Unfit("uses the scan of another row")
        scan = scan_of(op)
        kinds = [compute_type(dtypes.int64 if x is None else x.dtype) for x in scan.operands]
        tiles = ["r" if x is None else self.value(x, index) for x in scan.operands]
        tiles = [f"tl.broadcast_to({tile}, (XB, RB)).to({kind})" for tile, kind in zip(tiles, kinds)]
        combine = self.functions.setdefault((len(tiles), scan.lines), f"combine{len(self.functions)}")
        block, before, both, out = (self._new(len(tiles), letter) for letter in "vcvv")
        given = f"({', '.join(tiles)})" if len(tiles) > 1 else tiles[0]
        reverse = ", reverse=True" if self.space.direction < 0 else ""
        left = [c if i in scan.carried else v for i, (c, v) in enumerate(zip(before, block))]
        self.lines += [
            Line(f"{', '.join(block)} = tl.associative_scan({given}, 1, {combine}{reverse})"),
            Line(f"{', '.join(both)} = {combine}({', '.join([*left, *block])})"),
        ]
        for i in scan.carried:  # the first block has nothing before it
            self.rows.append(Line(f"{before[i]} = tl.zeros((XB, 1), {kinds[i]})"))
            self.lines.append(Line(f"{out[i]} = tl.where(start == 0, {block[i]}, {both[i]})"))
            last = f"tl.sum(tl.where(last, {out[i]}, 0), 1)[:, None].to({kinds[i]})"
            self.carries.append(Line(f"{before[i]} = {last}"))
        for p, i in zip(op.flat_outs, scan.results):
            self.known[p.name, index.key, ""] = self.rounded_result(p, out[i])
        return out[scan.results[position]]

    def _new(self, count: int, letter: str) -> list[str]:
        """Return new names of values that differ in each row and column."""
        names = [f"{letter}{self.count + i}" for i in range(count)]
        self.count += count
        self.depends.update((name, frozenset("xr")) for name in names)
        return names

    # -- text ---------------------------------------------------------------------------------------------------------
    def named(
        self, text: str, *, access: Access | None = None, kind: str = VALUE, row: bool = False, single: bool = False
    ) -> str:
        """Add a line that computes `text`, outside of all loops that it does not depend on. Return its name.

        `row` says that the value is uniform within a row, and `single` that it is the same for all rows.
        """
        if text in self.depends:
            return text
        line = Line(text, access, kind)
        text = str(line)
        depends = ({"x"} if self.long or not single else set()) if row else {v for v in ("x", "r") if mentions(text, v)}
        if self.sums and mentions(text, "row"):
            depends.add("x")
        for name in re.findall(r"\b[vc]\d+\b", text):
            depends |= self.depends.get(name, frozenset()) - ({"r"} if row else set())
        name = f"v{self.count}"
        self.count += 1
        self.depends[name] = frozenset(depends)
        if self.long:
            lines: list[Any] = self.lines if "r" in depends else self.rows if "x" in depends else self.before
        else:
            lines = self.lines if "x" in depends else self.before
        lines.append(line._replace(text=f"{name} = {line.text}"))
        return name

    def stored(self, p: TensorProxy, index: Index, value: str) -> Line:
        """Return the line that stores an output."""
        offset = address(index, self.strides[p.name])
        if math.prod(p.shape) == self.space.size:
            self._note_order(p, index)
        if not any(
            mentions(offset, v) for v in ("x", "r")
        ):  # a single element, which the first lane of the block stores
            offset = self.axis if offset == "0" else f"({offset} + {self.axis})"
        names = []
        for v in ("x", "r"):
            if mentions(offset, v):
                names.append(v)
            elif v in self.depends.get(value, ()):  # a single row in a tile of several rows
                offset = f"({offset} + {v} * 0)"
                names.append(v)
        mask = " & ".join(f"{v}m" for v in names)
        shape = {"x": "(XB, 1)", "r": "(1, RB)"}.get("".join(names), "(XB, RB)") if self.space.has_columns else "(XB,)"
        if interpreting() and p.dtype is dtypes.bfloat16:  # the interpreter's store does not round
            value = as_half(value, p.dtype)
        else:
            value = self.rounded.get(value, value)
        full = f"tl.broadcast_to({value}, {shape}).to({_stored_type(p)})"
        return Line("@", Access(pointer(p.name), offset, mask, full))


def _stored_type(p: TensorProxy) -> str:
    return "tl.int8" if storage_type(p.dtype) == "tl.int1" else str(storage_type(p.dtype))


def _block(expression: str) -> str:
    """Return an expression as a block, which may have one element. Scalars do not support some operations of blocks."""
    if re.search(r"\b(?:x|r|zero|[vc]\d+)\b", expression):
        return expression
    return "zero" if expression == "0" else f"(zero + {expression})"


def pointer(name: str) -> str:
    return f"{name}_ptr"


def mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _is_same(a: Any, b: Any) -> bool:
    return isinstance(a, Proxy) and isinstance(b, Proxy) and a.name == b.name


def _moved(expression: str, start: int, step: int) -> str:
    text = expression if step == 1 else f"{expression} * {step}"
    return text if start == 0 else f"({text} + {start})"


def _divided(expression: str, step: int) -> str:
    return expression if step == 1 else f"({expression} // {step})"


def in_blocks(body: Sequence[Line], space: Space, integer: str) -> Loop:
    """Return a loop over the blocks of a scanned row. Elements outside of the row are the last ones of its last block.

    `last` is the element of a block behind which the next block follows.
    """
    lanes = "tl.arange(0, RB)[None, :]"
    wide = f"{lanes}{integer}"
    forward = f"r = start + {wide}", f"rm = r < {space.columns}", f"last = {lanes} == RB - 1"
    backward = f"r = {space.columns} - RB - start + {wide}", "rm = r >= 0", f"last = {lanes} == 0"
    head = f"for start in range(0, {space.columns}, RB):", *(forward if space.direction > 0 else backward)
    return Loop(head, tuple(body))


def in_chunks(body: Sequence[Line], space: Space, integer: str) -> Loop:
    """Return a loop over the chunks of a row."""
    head = (
        f"for start in range(0, {space.columns}, RB):",
        f"r = (start + tl.arange(0, RB){integer})[None, :]",
        f"rm = r < {space.columns}",
    )
    return Loop(head, tuple(body))
