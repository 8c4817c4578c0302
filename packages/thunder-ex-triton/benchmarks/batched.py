# SPDX-License-Identifier: Apache-2.0
"""Benchmark of batched products of small matrices on a GPU: attention of small models, decoding, adapters, odd sizes.

    python benchmarks/batched.py [--markdown FILE] [--repetitions 5] [--dtype bfloat16] [--compile] [--quick]

For each product: cuBLAS (`torch.bmm`), what thunder runs without measurements, each tiling of Triton's kernel, and the
fastest tiling relative to cuBLAS; with `--compile` also torch.compile. Times are microseconds on the GPU: CUDA graphs
of 20 calls, by events, the median of repetitions in turns. All errors against float64 are checked to be at most those
of cuBLAS and a unit in the last place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import thunder
from thunder.toolkit.benchmarking import in_turns, parser, replayed, report, table
from thunder_ex_triton.matmul.batched import run
from thunder_ex_triton.matmul.batched_kernels import TILES

CALLS = 20  # in a graph

# The number of matrices, rows, inner size, columns, and the layout: `t` is a transposed view, `x` is broadcast.
SHAPES = (
    ("Swin, scores", 6144, 49, 32, 49, "nt"), ("Swin, values", 6144, 49, 49, 32, "nn"),
    ("Swin, gradient of keys", 6144, 49, 49, 32, "tn"), ("T5, scores", 96, 512, 64, 512, "nt"),
    ("T5, values", 96, 512, 512, 64, "nn"), ("T5, gradient of keys", 96, 512, 512, 64, "tn"),
    ("128 tokens, scores", 192, 128, 64, 128, "nt"), ("128 tokens, values", 192, 128, 128, 64, "nn"),
    ("ViT, scores", 384, 197, 64, 197, "nt"), ("ViT, values", 384, 197, 197, 64, "nn"),
    ("ViT, gradient of keys", 384, 197, 197, 64, "tn"), ("decoding, scores", 64, 1, 128, 1024, "nt"),
    ("decoding, values", 64, 1, 1024, 128, "nn"), ("adapters, down", 32, 128, 1024, 16, "nn"),
    ("adapters, up", 32, 128, 16, 1024, "nn"), ("16", 4096, 16, 16, 16, "nn"), ("32", 4096, 32, 32, 32, "nn"),
    ("64", 1024, 64, 64, 64, "nn"), ("64, both transposed", 1024, 64, 64, 64, "tt"), ("128", 512, 128, 128, 128, "nn"),
    ("256", 256, 256, 256, 256, "nn"), ("odd", 512, 63, 65, 67, "nn"), ("odd", 128, 255, 255, 255, "nn"),
    ("broadcast", 1024, 64, 64, 49, "xn"),
)  # fmt: skip
QUICK = ("Swin, scores", "T5, values", "decoding, scores", "64", "odd")


def operand(count: int, rows: int, columns: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices in a layout."""
    if layout == "t":
        return torch.randn(count, columns, rows, device="cuda", dtype=dtype).mT
    matrices = torch.randn(1 if layout == "x" else count, rows, columns, device="cuda", dtype=dtype)
    return matrices.expand(count, rows, columns)


def check(name: str, found: torch.Tensor, like: torch.Tensor, exact: torch.Tensor) -> None:
    """Compare errors against float64 with those of cuBLAS."""
    unit = torch.finfo(like.dtype).eps * float(exact.abs().max())
    errors = [float((x.double() - exact).abs().max()) for x in (found, like)]
    assert errors[0] <= errors[1] + unit, f"{name}: the error is {errors[0]:.2e}, and cuBLAS' is {errors[1]:.2e}"


def row(shape: tuple[Any, ...], options: Any) -> list[str]:
    """Measure one product."""
    what, count, m, k, n, layout = shape
    dtype = getattr(torch, options.dtype)
    a, b = operand(count, m, k, layout[0], dtype), operand(count, k, n, layout[1], dtype)
    jitted = thunder.jit(torch.bmm, cuda_graphs="never")
    contenders: dict[str, Callable[[], Any]] = {"cuBLAS": lambda: torch.bmm(a, b), "thunder": lambda: jitted(a, b)}
    if options.compile:
        torch._dynamo.reset()
        compiled = torch.compile(torch.bmm, dynamic=False)
        contenders["torch.compile"] = lambda: compiled(a, b)
    contenders |= {name: (lambda name=name: run(a, b, name)) for name in TILES}
    like, exact = torch.bmm(a, b), a.double() @ b.double()
    for name, f in contenders.items():
        check(f"{what}, {name}", f(), like, exact)
    del like, exact
    found = in_turns({name: replayed(f, CALLS) for name, f in contenders.items()}, options.repetitions)
    times = {name: 1e3 * ms / CALLS for name, ms in found.items()}
    best = min(TILES, key=lambda name: times[name])
    of_cublas = f"{times[best] / times['cuBLAS']:.2f}"
    return [what, f"{count} x {m}x{k}x{n}", layout, *[f"{times[name]:.1f}" for name in contenders], best, of_cublas]


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    arguments.add_argument("--compile", action="store_true", help="measure torch.compile too")
    arguments.add_argument("--quick", action="store_true", help="only a few products")
    options = arguments.parse_args()
    torch.manual_seed(0)
    names = ["cuBLAS", "thunder", *["torch.compile"] * options.compile, *TILES]
    with torch.no_grad():
        rows = [row(shape, options) for shape in SHAPES if not options.quick or shape[0] in QUICK]
    head = ["product", "sizes", "layout", *names, "fastest", "of cuBLAS"]
    about = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}, microseconds"
    report(f"{about}\n\n{table(head, rows)}", options)


if __name__ == "__main__":
    main()
