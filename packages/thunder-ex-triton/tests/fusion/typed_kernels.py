# SPDX-License-Identifier: Apache-2.0
"""A script that compiles kernels to Triton's IR for a GPU, on any machine.

After each value it asserts that the value has the dtype of the trace. Triton's own rules for the dtype of an expression
differ between its versions. The script has to run without TRITON_INTERPRET. It prints how many kernels and values it
has checked.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
import triton  # noqa: F401  (makes `triton.backends` complete)
from torch.nn import functional as F
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

import thunder
from thunder.extend import to_torch_dtype
from thunder.toolkit.fusion import rounded_results
from thunder_ex_triton.fusion import executor
from thunder_ex_triton.fusion.kernel_modules import load
from thunder_ex_triton.fusion.op_table import compute_type
from thunder_ex_triton.fusion.region import FusedRegion, Launch, launches_of
from thunder_ex_triton.fusion.templates import module_text
from thunder_ex_triton.fusion.tiles import Gpu

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
POINTERS = {
    torch.bool: "*i1", torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32",
    torch.int64: "*i64", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32",
    torch.float64: "*fp64",
}  # fmt: skip
TARGET = GPUTarget("cuda", 90, 32)
# Triton 3.6 to 3.8 choose a number's dtype by the number alone in `maximum`, `minimum` and comparisons. In comparisons
# this matters only next to float64.
_UNTYPED = r"tl\.(max|min)imum\((-?[\d.]|[^()]*, -?[\d.])"
_UNTYPED_DOUBLE = rf"{_UNTYPED}|([<>]=?|[=!]=) -?\d+\.\d|\.\d+ ([<>]|[=!]=)"


def of_any(x: Any, y: Any, number: Any) -> list[Any]:
    """Compute what all dtypes except bool have, with numbers on both sides."""
    arithmetic = [f(*pair) for f in (operator.add, operator.sub, operator.mul) for pair in ((x, number), (number, x))]
    names = ("eq", "ne", "lt", "le", "gt", "ge")
    compared = [getattr(operator, n)(*pair) for n in names for pair in ((x * 2, number), (number, x))]
    chosen = [torch.where(x > y, x, number), torch.where(x > y, number, x), torch.where(x > y, number, number + 1) * x]
    limited = [x.clamp(0, number) * 2, x.clamp(min=number), torch.maximum(x, y), torch.minimum(x, y), F.relu(x)]
    signs = [-x, x.abs(), x.sign() * number, x.sign() * x]
    dtypes = [torch.bool, *FLOATS, torch.int32, torch.int64, *([] if x.is_floating_point() else INTEGERS)]
    converted = [(x * y).to(dtype) for dtype in dtypes]
    return [*arithmetic, *compared, *chosen, *limited, *signs, *converted, torch.full_like(x, number) * y, x / number]


def of_integers(x: Any, y: Any) -> list[Any]:
    """Compute what integers have."""
    return [x & 3, x | y, 3 ^ x, ~x, x.clamp(0, 100).float(), *of_any(x, y, 3)]


def of_bools(x: Any, y: Any) -> list[Any]:
    """Compute what bools have."""
    return [x & y, x | y, x ^ y, ~x, x * 2, x + 0.5, torch.where(x, y, True), x == y, x.to(torch.int8), x.float()]


def of_floats(x: Any, y: Any) -> list[Any]:
    """Compute what floats have."""
    names = "exp exp2 log log2 log10 log1p expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
    more = "erf erfc reciprocal floor ceil trunc sigmoid isnan isinf square nan_to_num"
    alone = [getattr(torch, name)(x) for name in f"{names} {more}".split()]
    powers = [x**2, x**0.5, x**-0.5, x**1.7, 0.3**x, x**y, torch.atan2(x, y), x / y, 1 / x]
    return [*alone, *powers, F.gelu(x), F.silu(x), F.elu(x), F.leaky_relu(x), *of_any(x, y, 0.3)]


def of_rows(x: Any, y: Any) -> list[Any]:
    """Compute reductions of rows, and values of their results."""
    return [F.softmax(x, -1), F.layer_norm(x, x.shape[-1:]), x.amax(-1) * 0.3, (x * y).sum(-1), x.mean(-1), x.var(-1)]


def of_channels(x: Any, y: Any) -> list[Any]:
    """Compute reductions whose rows are a channel of all samples."""
    by_channel = (x * y).permute(1, 0, 2)
    total = by_channel.sum((1, 2), keepdim=True)
    return [torch.sigmoid((by_channel - total).permute(1, 0, 2)) + x, total * 0.3]


def of_columns(x: Any, y: Any) -> list[Any]:
    """Compute sums of columns."""
    return [(x * y).sum(0) * 0.3]


def scans(x: Any, y: Any) -> list[Any]:
    """Compute scans."""
    return [(x * y).cumsum(-1) * 0.3, *(x * 0.3).cummax(-1)]


def launches(f: Callable[..., list[Any]], *inputs: torch.Tensor) -> tuple[FusedRegion, list[Launch]]:
    """Return the function as one region, and its kernels for contiguous inputs."""
    trace = thunder.trace()(f, *inputs)
    operations = [op for whole in trace.bound_symbols for op in executor._primitives(whole) if op.flat_outs]
    made = {p.name for op in operations for p in op.flat_outs}
    results = list({p.name: p for p in trace.output if p.name in made}.values())
    rounded = rounded_results(trace.bound_symbols, operations)
    region = FusedRegion("kernels", operations, trace.args, results, rounded=rounded)
    module = load(module_text([source.text for source in region._written]))
    return region, launches_of(module, region._written, region.space, {p.name for p in results}, Gpu())[0]


def checked(text: str, titles: dict[str, str], kinds: dict[str, str]) -> tuple[str, int]:
    """Return a kernel with assertions, and their number."""
    lines, count = [], 0
    for line in text.split("\n"):
        lines.append(line)
        found = re.match(r"( +)((?:v\d+, )*v\d+) = ", line)
        for name in found[2].split(", ") if found else ():
            if name in titles:
                assert found is not None
                kind = kinds[titles[name]]
                message = f"{line.strip()} is not {kind}"
                lines.append(f"{found[1]}tl.static_assert({name}.dtype == {kind}, {message!r})")
                count += 1
    return "\n".join(lines), count


def compile_checked(f: Callable[..., list[Any]], *inputs: torch.Tensor) -> tuple[int, int]:
    """Compile the kernels of a function, and return how many kernels and values were checked."""
    region, kernels = launches(f, *inputs)
    every: list[Any] = [*region.inputs, *(p for op in region.operations for p in op.flat_outs)]
    proxies = {p.name: p for p in every}
    kinds = {name: compute_type(p.dtype) for name, p in proxies.items()}
    count = 0
    for launch in kernels:
        source = launch.source
        untyped = _UNTYPED_DOUBLE if inputs[0].dtype is torch.float64 else _UNTYPED
        assert not re.search(untyped, source.text), source.text
        text, values = checked(source.text, source.titles, kinds)
        kernel = getattr(load(module_text([text])), source.name)
        tensors = [proxies[name.removesuffix("_part")].dtype for name in (*source.reads, *source.writes)]
        signature = dict(zip(kernel.arg_names, [POINTERS[to_torch_dtype(dtype)] for dtype in tensors]))
        rest = kernel.arg_names[len(tensors) :]
        signature.update(dict.fromkeys(rest, "constexpr"))
        numbers = {(i,): n for i, n in enumerate(launch.numbers, len(tensors))}
        lower(ASTSource(kernel, signature, numbers), launch.warps)
        count += values
    return len(kernels), count


def lower(source: ASTSource, warps: int) -> None:
    """Translate a kernel to Triton's IR."""
    backend = make_backend(TARGET)
    options = backend.parse_options({"num_warps": warps})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(TARGET, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


def main() -> None:
    """Compile the functions for all dtypes."""
    executor.unusable_device = lambda device: None  # tensors are on the CPU here; nothing runs
    cases: list[tuple[Callable[..., list[Any]], torch.dtype, tuple[int, ...]]] = [
        (of_bools, torch.bool, (6, 8)), *((of_integers, dtype, (6, 8)) for dtype in INTEGERS),
        *((of_floats, dtype, (6, 8)) for dtype in FLOATS),
    ]  # fmt: skip
    for dtype in (torch.bfloat16, torch.float64):
        cases += [(of_rows, dtype, (6, 24)), (of_rows, dtype, (2, 40000))]
        cases += [(of_channels, dtype, (5, 3, 24)), (of_columns, dtype, (512, 24)), (scans, dtype, (2048, 24))]
    found = []
    for f, dtype, shape in cases:
        try:
            found.append(compile_checked(f, *[torch.ones(shape, dtype=dtype)] * 2))
        except Exception as error:
            raise AssertionError(f"{f.__name__} of {dtype} {shape}: {error.__cause__ or error}") from error
    print(*map(sum, zip(*found)))


if __name__ == "__main__":
    main()
