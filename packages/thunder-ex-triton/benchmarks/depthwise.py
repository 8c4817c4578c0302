# SPDX-License-Identifier: Apache-2.0
"""Benchmark of depthwise convolutions on a GPU: each tile of Triton's kernels, and cuDNN in both layouts.

    python benchmarks/depthwise.py [--markdown FILE] [--only TEXT] [--repetitions 5] [--compile]

For each convolution of a model, and for its gradients: torch's time for contiguous and for channels-last images, and
the fastest tile of the kernels (`depthwise/rule.py`) for both layouts, with the times of the other tiles relative to
it. The last column is the choice of the default rule. With `--compile`, a second table has forward and backward of a
layer through autograd: eager, torch.compile, and thunder, channels-last. Times are microseconds by events, of CUDA
graphs that contain the calls: the median of repetitions in turns, in bfloat16. Results are compared with float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

import thunder
from thunder.extend import TensorProxy, dtypes
from thunder.toolkit.benchmarking import in_turns, parser, replayed, report, step, table
from thunder_ex_triton.depthwise import rule

# model, (batch, channels, sizes), size of the kernel, stride, padding
IMAGES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], int, int], ...] = (
    ("ConvNeXt", (64, 96, 56, 56), (7, 7), 1, 3), ("ConvNeXt", (64, 192, 28, 28), (7, 7), 1, 3),
    ("ConvNeXt", (64, 384, 14, 14), (7, 7), 1, 3), ("ConvNeXt", (64, 768, 7, 7), (7, 7), 1, 3),
    ("SegFormer", (4, 256, 128, 128), (3, 3), 1, 1), ("SegFormer", (4, 512, 64, 64), (3, 3), 1, 1),
    ("SegFormer", (4, 1280, 32, 32), (3, 3), 1, 1), ("SegFormer", (4, 2048, 16, 16), (3, 3), 1, 1),
    ("MobileNet", (64, 96, 112, 112), (3, 3), 2, 1), ("MobileNet", (64, 144, 56, 56), (3, 3), 1, 1),
    ("MobileNet", (64, 384, 14, 14), (3, 3), 1, 1), ("EfficientNet", (64, 240, 28, 28), (5, 5), 1, 2),
    ("EfficientNet", (64, 240, 28, 28), (5, 5), 2, 2), ("EfficientNet", (64, 1152, 7, 7), (5, 5), 1, 2),
    ("Mamba", (4, 1536, 2048), (4,), 1, 3),
)  # fmt: skip
CALLS = 10  # in a CUDA graph
_WORST = 2.0  # of torch's distance to float64


def made(shape: tuple[int, ...], channels_last: bool) -> torch.Tensor:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def result(operation: str, args: tuple[Any, ...], name: str) -> Any:
    """Return the tensor that an operation computes."""
    found = rule.compute(operation, *args, name)
    return found if isinstance(found, torch.Tensor) else next(x for x in found if x is not None)


def proxy(x: torch.Tensor) -> TensorProxy:
    return TensorProxy("x", shape=tuple(x.shape), device="cuda", dtype=dtypes.to_dtype(x.dtype))


def rows_of(image: Any, repetitions: int) -> Iterator[list[str]]:
    """Yield a row for each operation."""
    model, shape, size, s, p = image
    stride, padding = (s,) * len(size), (p,) * len(size)
    weight = made((shape[1], 1, *size), False)
    end = tuple((n + 2 * p - k) // s + 1 for n, k in zip(shape[2:], size))
    for operation in ("forward", "input", "weight"):
        cells, chosen = [], []
        for channels_last in (False, True) if len(size) == 2 else (False,):
            torch.manual_seed(0)
            a, g = made(shape, channels_last), made((*shape[:2], *end), channels_last)
            call = rule.Depthwise(
                operation, proxy(a), None, proxy(weight), None, stride, padding, channels_last
            )  # fmt: skip
            args = a, g, weight, None, stride, padding
            contenders: dict[str, Callable[[], Any]] = {
                name: lambda name=name, args=args: result(operation, args, name)  # type: ignore[misc]
                for name in (rule.TORCH, *rule.tiles_of(call))
            }
            check(operation, args, contenders)
            graphs = {name: replayed(f, CALLS) for name, f in contenders.items()}
            times = {name: t * 1e3 / CALLS for name, t in in_turns(graphs, repetitions).items()}
            own = times.pop(rule.TORCH)
            best = min(times, key=lambda name: times[name])
            others = ", ".join(f"{name} {t / times[best]:.2f}" for name, t in times.items() if name != best)
            cells += [f"{own:.0f}", f"{times[best]:.0f} ({best}; {others})"]
            chosen.append(rule.default_of(call))
        cells += ["-"] * (4 - len(cells))
        kernel = "x".join(map(str, size)) + (f", stride {s}" if s > 1 else "")
        yield [f"{model}, {'x'.join(map(str, shape))}, {kernel}", operation, *cells, ", ".join(chosen)]
        torch.cuda.empty_cache()


def check(operation: str, args: tuple[Any, ...], contenders: dict[str, Callable[[], Any]]) -> None:
    """Check that no tile is less precise than torch."""
    a, g, weight, *how = args
    wide = a.contiguous().double(), g.contiguous().double(), weight.double()
    expected = result(operation, (*wide, *how), rule.TORCH)
    errors = {name: ((f().double() - expected).norm() / expected.norm()).item() for name, f in contenders.items()}
    for name, error in errors.items():
        assert error <= _WORST * errors[rule.TORCH] + 1e-3, (operation, tuple(a.shape), name, errors)


def layer(image: Any, repetitions: int) -> list[str]:
    """Return a row: forward and backward of a layer."""
    model, shape, size, s, p = image
    how: dict[str, Any] = {"stride": s, "padding": p, "groups": shape[1], "bias": False}
    kind = torch.nn.Conv2d if len(size) == 2 else torch.nn.Conv1d
    module = kind(shape[1], shape[1], size, **how).to("cuda", torch.bfloat16)  # type: ignore[arg-type]
    last = len(size) == 2
    x = made(shape, last).requires_grad_()
    g = torch.randn_like(module(x))
    fns: dict[str, Any] = {
        "eager": module, "torch.compile": torch.compile(module),
        "thunder": thunder.jit(module, triton_channels_last=last),
    }  # fmt: skip
    contenders = {name: step(fn, (x,), (x, *module.parameters()), g) for name, fn in fns.items()}
    for run in contenders.values():
        run()
    graphs = {name: replayed(run, CALLS) for name, run in contenders.items()}
    times = {name: t * 1e3 / CALLS for name, t in in_turns(graphs, repetitions).items()}
    name = f"{model}, {'x'.join(map(str, shape))}, {'x'.join(map(str, size))}"
    return [name, *[f"{t:.0f}" for t in times.values()], f"{times['thunder'] / times['torch.compile']:.2f}"]


def main() -> None:
    """Print the tables."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="measure only the models whose name contains this")
    arguments.add_argument("--compile", action="store_true", help="also measure layers, with torch.compile")
    options = arguments.parse_args()
    images = [image for image in IMAGES if options.only in image[0]]
    rows = [row for image in images for row in rows_of(image, options.repetitions)]
    head = [
        "µs", "operation", "torch, contiguous", "kernels, contiguous", "torch, channels-last",
        "kernels, channels-last", "default",
    ]  # fmt: skip
    text = [table(head, rows)]
    if options.compile:
        layers = [layer(image, options.repetitions) for image in images]
        text.append(
            table(["forward and backward, µs", "eager", "torch.compile", "thunder", "of torch.compile"], layers)
        )
    versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, Triton {triton.__version__}"
    report("\n\n".join([*text, f"{torch.cuda.get_device_name()}, {versions}"]), options)


if __name__ == "__main__":
    main()
