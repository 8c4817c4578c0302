# SPDX-License-Identifier: Apache-2.0
"""Benchmark of convolutions with groups or few channels on a GPU: each tile of Triton's kernels, and cuDNN.

    python benchmarks/convolutions.py [--markdown FILE] [--only TEXT] [--repetitions 5] [--compile]

For each convolution of a model, and for its gradients: torch's time for contiguous and for channels-last images (of
sequences: transposed ones), and the fastest tile of the kernels (`depthwise/rule.py` and `grouped/rule.py`) for both
layouts, with the times of the other tiles relative to it. The last column is the choice of the default rule. With
`--compile`, the table has forward and backward of a layer through autograd instead: eager, torch.compile, and thunder,
channels-last. Times are microseconds by events, of CUDA graphs that contain the calls: the median of repetitions in
turns, in bfloat16. Results are compared with float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton

import thunder
from thunder.extend import TensorProxy, dtypes
from thunder.toolkit.benchmarking import in_turns, parser, replayed, report, step, table
from thunder_ex_triton.convolutions.family import TORCH, Convolution, Family
from thunder_ex_triton.convolutions.operators import FAMILIES


class Layer(NamedTuple):
    """A convolution of a model. `width` is the number of channels in a group; filters are by default as many."""

    model: str
    shape: tuple[int, ...]
    size: tuple[int, ...]
    stride: int
    padding: int
    width: int = 1
    filters: int = 0

    @property
    def how(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The stride and the padding of each dimension."""
        return (self.stride,) * len(self.size), (self.padding,) * len(self.size)

    @property
    def number(self) -> int:
        """The number of filters."""
        return self.filters or self.shape[1]

    @property
    def end(self) -> tuple[int, ...]:
        """The shape of the result."""
        sizes = zip(self.shape[2:], self.size)
        return (self.shape[0], self.number, *[(n + 2 * self.padding - k) // self.stride + 1 for n, k in sizes])


LAYERS = (
    Layer("ConvNeXt", (64, 96, 56, 56), (7, 7), 1, 3), Layer("ConvNeXt", (64, 192, 28, 28), (7, 7), 1, 3),
    Layer("ConvNeXt", (64, 384, 14, 14), (7, 7), 1, 3), Layer("ConvNeXt", (64, 768, 7, 7), (7, 7), 1, 3),
    Layer("SegFormer", (4, 256, 128, 128), (3, 3), 1, 1), Layer("SegFormer", (4, 512, 64, 64), (3, 3), 1, 1),
    Layer("SegFormer", (4, 1280, 32, 32), (3, 3), 1, 1), Layer("SegFormer", (4, 2048, 16, 16), (3, 3), 1, 1),
    Layer("MobileNet", (64, 96, 112, 112), (3, 3), 2, 1), Layer("MobileNet", (64, 144, 56, 56), (3, 3), 1, 1),
    Layer("MobileNet", (64, 384, 14, 14), (3, 3), 1, 1), Layer("EfficientNet", (64, 240, 28, 28), (5, 5), 1, 2),
    Layer("EfficientNet", (64, 240, 28, 28), (5, 5), 2, 2), Layer("EfficientNet", (64, 1152, 7, 7), (5, 5), 1, 2),
    Layer("Mamba", (4, 1536, 2048), (4,), 1, 3),
    Layer("Wav2Vec2", (8, 768, 249), (128,), 1, 64, 48), Layer("Wav2Vec2", (1, 768, 499), (128,), 1, 64, 48),
    Layer("ResNeXt", (64, 128, 56, 56), (3, 3), 1, 1, 4), Layer("ResNeXt", (64, 256, 56, 56), (3, 3), 2, 1, 8),
    Layer("ResNeXt", (64, 256, 28, 28), (3, 3), 1, 1, 8), Layer("ResNeXt", (64, 512, 28, 28), (3, 3), 2, 1, 16),
    Layer("ResNeXt", (64, 512, 14, 14), (3, 3), 1, 1, 16), Layer("ResNeXt", (64, 1024, 14, 14), (3, 3), 2, 1, 32),
    Layer("ResNeXt", (64, 1024, 7, 7), (3, 3), 1, 1, 32), Layer("RegNet", (64, 896, 14, 14), (3, 3), 1, 1, 56),
    Layer("Whisper, first", (8, 80, 3000), (3,), 1, 1, 80, 512),
    Layer("Wav2Vec2, first", (8, 1, 80000), (10,), 5, 0, 1, 512),
    Layer("ResNet, first", (64, 3, 224, 224), (7, 7), 2, 3, 3, 64),
    Layer("SegFormer, first", (4, 3, 512, 512), (7, 7), 4, 3, 3, 32),
    Layer("SegFormer, second", (4, 32, 128, 128), (3, 3), 2, 1, 32, 64),
    Layer("SegFormer, third", (4, 64, 64, 64), (3, 3), 2, 1, 64, 160),
    Layer("U-Net, first", (8, 3, 128, 128), (3, 3), 1, 1, 3, 64),
    Layer("U-Net, second", (8, 64, 128, 128), (3, 3), 1, 1, 64, 64),
    Layer("U-Net, third", (8, 128, 64, 64), (3, 3), 1, 1, 128, 128),
    Layer("ResNet, second", (64, 64, 56, 56), (3, 3), 1, 1, 64, 64),
    Layer("ResNet, third", (64, 128, 28, 28), (3, 3), 1, 1, 128, 128),
)  # fmt: skip
CALLS = 10  # in a CUDA graph
_WORST = 2.0  # of torch's distance to float64


def made(shape: tuple[int, ...], channels_last: bool) -> torch.Tensor:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else x


def result(family: Family, operation: str, args: tuple[Any, ...], name: str) -> Any:
    """Return the tensor that an operation computes."""
    found = family.compute(operation, *args, name)
    return found if isinstance(found, torch.Tensor) else next(x for x in found if x is not None)


def proxy(x: torch.Tensor) -> TensorProxy:
    return TensorProxy("x", shape=tuple(x.shape), device="cuda", dtype=dtypes.to_dtype(x.dtype))


def rows_of(layer: Layer, repetitions: int) -> Iterator[list[str]]:
    """Yield a row for each operation."""
    weight = made((layer.number, layer.width, *layer.size), False)
    for operation in ("forward", "input", "weight"):
        cells, chosen = [], []
        for channels_last in (False, True):
            torch.manual_seed(0)
            a, g = made(layer.shape, channels_last), made(layer.end, channels_last)
            ordered = channels_last and len(layer.size) == 2
            call = Convolution(operation, proxy(a), None, proxy(weight), None, *layer.how, ordered)
            (family,) = [family for family in FAMILIES.values() if family.supports(call)]
            args = a, g, weight, None, *layer.how
            contenders: dict[str, Callable[[], Any]] = {
                name: lambda name=name, args=args: result(family, operation, args, name)  # type: ignore[misc]
                for name in (TORCH, *family.tiles(operation, ordered))
            }
            check(family, operation, args, contenders)
            graphs = {name: replayed(f, CALLS) for name, f in contenders.items()}
            times = {name: t * 1e3 / CALLS for name, t in in_turns(graphs, repetitions).items()}
            own = times.pop(TORCH)
            best = min(times, key=lambda name: times[name])
            others = ", ".join(f"{name} {t / times[best]:.2f}" for name, t in times.items() if name != best)
            cells += [f"{own:.0f}", f"{times[best]:.0f} ({best}; {others})"]
            chosen.append(family.default_of(call))
        yield [title(layer), operation, *cells, ", ".join(chosen)]
        torch.cuda.empty_cache()


def title(layer: Layer) -> str:
    kernel = "x".join(map(str, layer.size)) + (f", stride {layer.stride}" if layer.stride > 1 else "")
    filters = f" to {layer.number}" if layer.filters else ""
    groups = f", groups of {layer.width}" if 1 < layer.width < layer.shape[1] else ""
    return f"{layer.model}, {'x'.join(map(str, layer.shape))}{filters}, {kernel}{groups}"


def check(family: Family, operation: str, args: tuple[Any, ...], contenders: dict[str, Callable[[], Any]]) -> None:
    """Check that no tile is less precise than torch."""
    a, g, weight, *how = args
    wide = a.contiguous().double(), g.contiguous().double(), weight.double()
    expected = result(family, operation, (*wide, *how), TORCH)
    errors = {name: ((f().double() - expected).norm() / expected.norm()).item() for name, f in contenders.items()}
    for name, error in errors.items():
        assert error <= _WORST * errors[TORCH] + 1e-3, (operation, tuple(a.shape), name, errors)


def times_of(layer: Layer, repetitions: int) -> list[str]:
    """Return a row: forward and backward of a layer."""
    channels = layer.shape[1]
    how: dict[str, Any] = {
        "stride": layer.stride, "padding": layer.padding, "groups": channels // layer.width, "bias": False
    }  # fmt: skip
    kind = torch.nn.Conv2d if len(layer.size) == 2 else torch.nn.Conv1d
    module = kind(channels, layer.number, layer.size, **how).to("cuda", torch.bfloat16)  # type: ignore[arg-type]
    last = len(layer.size) == 2
    x = made(layer.shape, last or layer.width > 1).requires_grad_()
    g = torch.randn_like(module(x))
    torch._dynamo.reset()  # it counts the modules that share the code of a forward
    fns: dict[str, Any] = {
        "eager": module, "torch.compile": torch.compile(module, dynamic=False),
        "thunder": thunder.jit(module, triton_channels_last=last, cuda_graphs="never"),
    }  # fmt: skip
    contenders = {name: step(fn, (x,), (x, *module.parameters()), g) for name, fn in fns.items()}
    for run in contenders.values():
        run()
    graphs = {name: replayed(run, CALLS) for name, run in contenders.items()}
    times = {name: t * 1e3 / CALLS for name, t in in_turns(graphs, repetitions).items()}
    return [title(layer), *[f"{t:.0f}" for t in times.values()], f"{times['thunder'] / times['torch.compile']:.2f}"]


def main() -> None:
    """Print the tables."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="measure only the models whose name contains this")
    arguments.add_argument("--compile", action="store_true", help="measure layers with torch.compile instead")
    options = arguments.parse_args()
    layers = [layer for layer in LAYERS if options.only in layer.model]
    rows = []
    if options.compile:
        head = ["forward and backward, µs", "eager", "torch.compile", "thunder", "of torch.compile"]
        found = (times_of(layer, options.repetitions) for layer in layers)
    else:
        head = [
            "µs", "operation", "torch, contiguous", "kernels, contiguous", "torch, channels-last",
            "kernels, channels-last", "default",
        ]  # fmt: skip
        found = (row for layer in layers for row in rows_of(layer, options.repetitions))
    for row in found:
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, Triton {triton.__version__}"
    report(f"{table(head, rows)}\n\n{torch.cuda.get_device_name()}, {versions}", options)


if __name__ == "__main__":
    main()
