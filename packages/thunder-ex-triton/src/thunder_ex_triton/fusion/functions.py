# SPDX-License-Identifier: Apache-2.0
"""Single-precision functions for kernels, used where Triton's functions are too slow.

A GPU computes exponentials, reciprocals and conversions of single numbers to bfloat16 in one unit. This unit has an
eighth of the throughput of the other units, so it limits kernels with many pointwise operations. These functions use
the unit as little as possible. Kernels contain the source of these functions (`templates.module_text`). The interpreter
cannot run inline assembly, so plain expressions are generated for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thunder_ex_triton.environment import interpreting

__all__ = [
    "float_of_byte", "logistic", "rounded_by_bits", "rounded_to_bfloat16", "rounded_to_float16", "row_number", "tanh",
]  # fmt: skip


@triton.jit
def rounded_to_bfloat16(x):
    """Round float32 to the values of bfloat16, in pairs. Conversions of pairs do not use the slow unit."""
    if x.numel > 1:
        rounded = tl.inline_asm_elementwise(
            "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000; }",
            "=r,=r,r,r", [x], dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        rounded = tl.inline_asm_elementwise(
            "{ .reg .b16 t, zero; mov.b16 zero, 0; cvt.rn.bf16.f32 t, $1; mov.b32 $0, {zero, t}; }",
            "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return rounded


@triton.jit
def rounded_to_float16(x):
    """Round float32 to the values of float16.

    The compiler turns conversions to float16 and back into arithmetic in float16, of which it joins products and sums
    to operations that round once.
    """
    if x.numel > 1:
        rounded = tl.inline_asm_elementwise(
            "{ .reg .b32 t; .reg .b16 first, second; cvt.rn.f16x2.f32 t, $3, $2; mov.b32 {first, second}, t;"
            " cvt.f32.f16 $0, first; cvt.f32.f16 $1, second; }",
            "=r,=r,r,r", [x], dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        rounded = tl.inline_asm_elementwise(
            "{ .reg .b16 t; cvt.rn.f16.f32 t, $1; cvt.f32.f16 $0, t; }",
            "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return rounded


@triton.jit
def rounded_by_bits(x):
    """Round float32 to the values of bfloat16 in the interpreter, whose conversion cuts off the last bits."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)


@triton.jit
def float_of_byte(x, offset: tl.constexpr):
    """Convert int8 (with an offset of 128) or uint8 (0) to float32, without the slow unit.

    Add the number to the last bits of 2 ** 23, whose unit in the last place is 1, and subtract what is too much. Four
    numbers of one register take nine instructions.
    """
    if x.numel >= 4 and offset == 128:
        found = tl.inline_asm_elementwise(
            "{ .reg .b32 t; xor.b32 t, $4, 0x80808080;"
            " prmt.b32 $0, t, 0x4b000000, 0x7440; prmt.b32 $1, t, 0x4b000000, 0x7441;"
            " prmt.b32 $2, t, 0x4b000000, 0x7442; prmt.b32 $3, t, 0x4b000000, 0x7443;"
            " sub.rn.f32 $0, $0, 0f4b000080; sub.rn.f32 $1, $1, 0f4b000080;"
            " sub.rn.f32 $2, $2, 0f4b000080; sub.rn.f32 $3, $3, 0f4b000080; }",
            "=r,=r,=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        bits = (x.to(tl.uint8, bitcast=True) ^ offset).to(tl.int32) | 0x4B000000
        found = bits.to(tl.float32, bitcast=True) - (8388608.0 + offset)
    return found


@triton.jit
def logistic(x):
    """Compute 1 / (1 + exp(-x)). Subnormals are flushed to zero, both in exp(-x) and in the result."""
    return tl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.f32 t, $1, 0fbfb8aa3b; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3f800000;"
        " rcp.approx.ftz.f32 $0, t; }",
        "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def tanh(x):
    """Compute 1 - 2 / (1 + exp(2x)), or a polynomial near zero, without branches. The error is at most 3 ulp."""
    far = tl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.f32 t, $1, 0f4038aa3b; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3f800000;"
        " rcp.approx.ftz.f32 t, t; fma.rn.f32 $0, t, 0fc0000000, 0f3f800000; }",
        "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip
    s = x * x
    near = ((0.019272814 * s - 0.053716268) * s + 0.13332538) * s - 0.33333328
    return tl.where(tl.abs(x) < 0.4, x * (near * s + 1.0), far)  # -0 stays -0


if interpreting():

    def row_number(number, rows, exists):
        """Return a row's index where the mask is set.

        Raise if the index is out of bounds (here `device_assert` does nothing).
        """
        if (exists & ((number < 0) | (number >= rows))).handle.data.any():
            raise IndexError("index out of range in self")
        return tl.where(exists, number, 0).to(tl.int64)

else:

    @triton.jit
    def row_number(number, rows, exists):
        """Return a row's index where the mask is set. Assert that the index is in bounds."""
        tl.device_assert((exists == 0) | ((number >= 0) & (number < rows)), "index out of range")
        return tl.where(exists, number, 0).to(tl.int64)
