# SPDX-License-Identifier: Apache-2.0
"""Compile a small Llama, show its program, and compare it with eager PyTorch and torch.compile (`nox -s demo`).

All printed numbers are measured or computed in this run. The exit status is 1 if thunder and eager disagree.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

import thunder
from demo_model import Config, Llama

__all__ = ["main"]

# float32 sums in another order differ by a few ulps. This tolerance is far above that, and far below an actual bug.
RELATIVE_TOLERANCE = 1e-4
EXCERPT_WIDTH = 132
# Steady time is the median of at least this many calls. After this many seconds, no further calls are made.
FEWEST_CALLS, PATIENCE = 3, 8.0

CAPTURE = 'torch.compile(backend="eager")'


class Comparison(NamedTuple):
    """The largest difference between thunder's result and eager's, and the largest absolute value in eager's result."""

    what: str
    error: float
    scale: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within rounding error. (A NaN on either side is an error.)"""
        return self.error <= RELATIVE_TOLERANCE * max(self.scale, 1e-3)


class Timing(NamedTuple):
    """The time of the first call in seconds, and the median time of later calls."""

    what: str
    first: float
    steady: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    args = _parser().parse_args(argv)
    torch.manual_seed(0)
    heads = 8 if args.width % 16 == 0 else 1
    config = Config(layers=args.layers, width=args.width, heads=heads, length=args.length)
    model = Llama(config).to(args.device)
    idx = torch.randint(config.vocabulary, (args.batch, args.length), device=args.device)
    targets = torch.randint(config.vocabulary, (args.batch, args.length), device=args.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"thunder {thunder.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {args.device}\n"
        f"A Llama with {config.layers} layers of width {config.width}, {parameters / 1e6:.1f} million parameters, "
        f"on {args.batch} x {args.length} tokens"
    )

    _warm_up(args.device)
    inference, training, compiled = thunder.jit(model), thunder.jit(model), torch.compile(model, backend="eager")
    forward = {
        "eager": lambda: _forward(model, idx),
        "thunder": lambda: _forward(inference, idx),
        CAPTURE: lambda: _forward(compiled, idx),
    }
    step = {
        "eager": lambda: _train(model, idx, targets),
        "thunder": lambda: _train(training, idx, targets),
        CAPTURE: lambda: _train(compiled, idx, targets),
    }
    timings = {"forward": time_calls(forward, args), "forward and backward": time_calls(step, args)}
    comparisons = compare(model, inference, training, idx, targets)

    trace = thunder.last_traces(inference)[-1]
    _heading("The program that runs (forward, an excerpt)")
    print(excerpt(str(trace), args.lines))
    print(f"\n{_who_runs(trace, args.device)}")
    _heading("Compared with eager (largest absolute difference)")
    for each in comparisons:
        print(f"  {each.what:<30} {each.error:9.2e}  of {each.scale:9.2e}   {'agrees' if each.agrees else 'DIFFERS'}")
    _heading("Time in milliseconds (imports are done; steady is the median of later calls)")
    print(f"  {'':<30} {'first call':>10} {'steady':>10}")
    for title, found in timings.items():
        print(f"  {title}")
        for timing in found:
            print(f"    {timing.what:<30} {timing.first * 1e3:>8.0f} {timing.steady * 1e3:>10.1f}")
    _heading("Memory saved for backward, in MiB (parameters and inputs do not count)")
    for what, callable in (("eager", model), ("thunder", training)):
        print(f"  {what:<30} {bytes_saved(callable, model, idx, targets) / 2**20:>10.1f}")
    return 0 if all(each.agrees for each in comparisons) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--layers", type=_positive, default=6, help="transformer blocks (default: 6)")
    parser.add_argument("--width", type=_positive, default=256, help="width of the model, 8 heads (default: 256)")
    parser.add_argument("--batch", type=_positive, default=4, help="sequences in a batch (default: 4)")
    parser.add_argument("--length", type=_positive, default=128, help="tokens in a sequence (default: 128)")
    parser.add_argument("--device", default="cpu", help="the device to run on, e.g. cuda (default: cpu)")
    parser.add_argument("--lines", type=_positive, default=24, help="lines of the trace to show (default: 24)")
    parser.add_argument(
        "--repeat", type=_positive, default=10, help="the maximal number of calls for steady time (default: 10)"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def _warm_up(device: str) -> None:
    """Import the modules that either compiler imports lazily, so that first calls measure only compilation."""
    for compiled in (thunder.jit(torch.sin), torch.compile(torch.sin, backend="eager")):
        compiled(torch.ones(2, device=device, requires_grad=True)).sum().backward()


def _who_runs(trace: Any, device: str) -> str:
    """Describe which executors run the operations of a trace."""
    counted = Counter(op.sym.executor.name for op in trace.bound_symbols if op.sym.executor is not None)
    del counted["python"]  # `del` and `return`
    text = "Run by " + ", ".join(f"{name} ({number} operations)" for name, number in counted.most_common())
    if device == "cpu" and set(counted) == {"torch"}:
        text += ": on a CPU these are PyTorch's own kernels, the ones that eager calls."
    return text


def _forward(model: Callable[..., torch.Tensor], idx: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(idx)


def _train(model: Any, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Run one step without the optimizer. Gradients are cleared first, so that each call does the same work."""
    for parameter in model.parameters():
        parameter.grad = None
    loss: torch.Tensor = model(idx, targets)
    loss.backward()
    return loss.detach()


def bytes_saved(callable: Any, model: torch.nn.Module, *inputs: torch.Tensor) -> int:
    """Return the bytes that a call saves for its backward pass, without parameters, buffers and inputs."""
    saved: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return x

    owned = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers(), *inputs)}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = callable(*inputs)
    found = sum(size for storage, size in saved.items() if storage not in owned)
    del loss  # stays alive until here, so that addresses are unique
    return found


def compare(model: Any, inference: Any, training: Any, idx: torch.Tensor, targets: torch.Tensor) -> list[Comparison]:
    """Compare logits, loss and every gradient with the results of eager mode on the same parameters."""
    logits = _forward(model, idx)
    loss = _train(model, idx, targets)
    gradients = [parameter.grad for parameter in model.parameters()]
    jitted_logits = _forward(inference, idx)
    jitted_loss = _train(training, idx, targets)
    jitted_gradients = [parameter.grad for parameter in model.parameters()]
    return [
        _comparison("logits", [logits], [jitted_logits]),
        _comparison("loss", [loss], [jitted_loss]),
        _comparison(f"gradients of {len(gradients)} parameters", gradients, jitted_gradients),
    ]


def _comparison(what: str, eager: Iterable[Any], jitted: Iterable[Any]) -> Comparison:
    """Compare pairs of tensors and return the worst result. A missing gradient or a NaN counts as an infinite error."""
    errors, scales = [], []
    for expected, got in zip(eager, jitted, strict=True):
        if expected is None or got is None or expected.shape != got.shape:
            errors.append(float("inf"))
            continue
        difference = (expected.double() - got.double()).abs().max().item()
        errors.append(difference if difference == difference else float("inf"))
        scales.append(expected.double().abs().max().item())
    return Comparison(what, max(errors), max(scales, default=0.0))


def time_calls(calls: dict[str, Callable[[], Any]], args: argparse.Namespace) -> list[Timing]:
    """Time the first call and later calls of each function.

    Later calls are interleaved, so that noise affects all equally.
    """

    def timed(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        if args.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = [timed(call) for call in calls.values()]
    for call in calls.values():
        timed(call)
    rounds: list[list[float]] = []
    started = time.perf_counter()
    while len(rounds) < args.repeat and (len(rounds) < FEWEST_CALLS or time.perf_counter() - started < PATIENCE):
        rounds.append([timed(call) for call in calls.values()])
    steady = map(statistics.median, zip(*rounds, strict=True))
    return [Timing(*each) for each in zip(calls, first, steady, strict=True)]


def excerpt(program: str, lines: int) -> str:
    """Shorten a printed trace to its header, its first operations without their decompositions, and its end."""
    everything = program.splitlines()
    opening = next((number for number, line in enumerate(everything) if line.startswith("def ")), 0)
    body = [line for line in everything[opening + 1 :] if line.strip() and not line.lstrip().startswith("#")]
    shown = [*everything[: opening + 1], *body[:lines]]
    if len(body) > lines + 1:
        shown += [f"  ... {len(body) - lines - 1} more lines ...", body[-1]]
    return "\n".join(_shorten(line) for line in shown)


def _shorten(line: str) -> str:
    """Shorten the middle of a line that is too wide, e.g. a line that lists every parameter of a model."""
    if len(line) <= EXCERPT_WIDTH:
        return line
    half = (EXCERPT_WIDTH - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


if __name__ == "__main__":
    sys.exit(main())
