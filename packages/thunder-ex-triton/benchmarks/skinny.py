# SPDX-License-Identifier: Apache-2.0
"""Benchmark of products of few rows on a GPU: the weights of a Llama with a billion parameters.

    python benchmarks/skinny.py [--markdown FILE] [--repetitions 5] [--dtype bfloat16] [--quick]

For each weight and number of rows: torch (cuBLAS), each tiling of Triton's kernels, the fastest tiling relative to
torch, and its share of the memory's bandwidth. The second table has weights in int8, which torch dequantizes into
memory. Times are microseconds on the GPU, by events around the launch of a CUDA graph: the minimum of repetitions in
turns. A graph has a product for each copy of the weight, so that no weight is in the cache. The last lines are a
summary: the geometric mean of the ratios for each number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from thunder.toolkit.benchmarking import by_events, copy_bandwidth, parser, report, table
from thunder.transforms.quantization import quantize_int8
from thunder_ex_triton.matmul.skinny import run
from thunder_ex_triton.matmul.skinny_kernels import TILES

SHAPES = ((2048, 2048), (512, 2048), (8192, 2048), (2048, 8192), (128256, 2048))  # of the weights: columns, inner
ROWS = (1, 2, 4, 8, 16)
COLD = 1 << 28  # the bytes of all copies of a weight

Product = Callable[[Any], Any]


def times(contenders: dict[str, Product], weights: list[Any], repetitions: int) -> dict[str, float]:
    """Return the microseconds of a product by each contender."""
    graphs = {name: _graph(product, weights) for name, product in contenders.items()}
    turns = [{name: by_events(graph.replay, 3) for name, graph in graphs.items()} for _ in range(repetitions)]
    return {name: min(turn[name] for turn in turns) * 1e3 / len(weights) for name in graphs}


def _graph(product: Product, weights: list[Any]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            product(weights[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            product(weight)
    graph.replay()
    return graph


def _triton(x: torch.Tensor, name: str) -> Product:
    def product(weight: Any) -> torch.Tensor:
        numbers, scale = weight if isinstance(weight, tuple) else (weight, None)
        return run(x, numbers, scale, None, None, name)

    return product


def _torch(x: torch.Tensor) -> Product:
    def product(weight: Any) -> torch.Tensor:
        if isinstance(weight, tuple):
            numbers, scale = weight
            weight = numbers.to(scale.dtype) * scale
        return F.linear(x, weight)

    return product


def rows_of(quantized: bool, dtype: torch.dtype, options: Any, bandwidth: float, ratios: dict[int, list[float]]) -> Any:
    """Yield the rows of a table."""
    for columns, inner in SHAPES[:2] if options.quick else SHAPES:
        weight = torch.randn(columns, inner, device="cuda", dtype=dtype) / inner**0.5
        bytes_read = weight.numel() * (1 if quantized else weight.element_size())
        copies = max(1, min(64, COLD // bytes_read))
        weights: list[Any] = [weight + 0 for _ in range(copies)]
        if quantized:
            weights = [quantize_int8(w) for w in weights]
        for rows in ROWS:
            x = torch.randn(rows, inner, device="cuda", dtype=dtype)
            contenders = {"torch": _torch(x), **{name: _triton(x, name) for name in TILES}}
            expected = contenders["torch"](weights[0])
            for name, product in contenders.items():
                torch.testing.assert_close(product(weights[0]), expected, rtol=4e-2, atol=4e-2, msg=name)
            found = times(contenders, weights, options.repetitions)
            best = min(TILES, key=lambda name: found[name])
            ratios.setdefault(rows, []).append(found[best] / found["torch"])
            share = bytes_read / (found[best] * 1e-6) / bandwidth
            yield [
                f"{columns} x {inner}", str(rows), *[f"{found[name]:.1f}" for name in contenders], best,
                f"{found[best] / found['torch']:.2f}", f"{share:.0%}",
            ]  # fmt: skip
        del weights


def main() -> None:
    """Print the tables."""
    arguments = parser(__doc__)
    arguments.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    arguments.add_argument("--quick", action="store_true", help="only the two smallest weights")
    options = arguments.parse_args()
    dtype = getattr(torch, options.dtype)
    bandwidth = copy_bandwidth()
    head = ["weight", "rows", "torch", *TILES, "fastest", "of torch", "of bandwidth"]
    text = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {bandwidth / 1e12:.2f} TB/s"]
    summary = []
    with torch.no_grad():
        for quantized in (False, True):
            ratios: dict[int, list[float]] = {}
            what = "int8" if quantized else options.dtype
            found = list(rows_of(quantized, dtype, options, bandwidth, ratios))
            text.append(f"{what}\n\n{table(head, found)}")
            means = [f"{math.exp(sum(map(math.log, ratios[n])) / len(ratios[n])):.2f}" for n in ROWS]
            summary.append([what, *means])
    text.append(table(["fastest tiling / torch", *[f"{n} rows" for n in ROWS]], summary))
    report("\n\n".join(text), options)


if __name__ == "__main__":
    main()
