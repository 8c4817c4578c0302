# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder demo`: jit a small GPT, show the program that runs, compare it with eager, and time both.

Everything it prints was measured or computed in this run. The exit status is 1 when thunder and eager disagree.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

# float32 sums in another order differ by a few units in the last place; this is far above that and far below a mistake.
RELATIVE_TOLERANCE = 1e-4
EXCERPT_WIDTH = 132
# Steady time is taken from at least this many calls, and from no more once this many seconds have gone by.
LEAST_CALLS, PATIENCE = 3, 10.0


class Comparison(NamedTuple):
    """How far thunder's answer is from eager's, and how large eager's is."""

    what: str
    error: float
    scale: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is rounding. (A NaN on either side is not.)"""
        return self.error <= RELATIVE_TOLERANCE * max(self.scale, 1e-3)


class Timing(NamedTuple):
    """Seconds of a first call, and of the calls after it (their median)."""

    what: str
    first: float
    steady: float


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo", help="jit a small GPT, show its trace, compare it with eager and time both", description=__doc__
    )
    parser.add_argument("--layers", type=_positive, default=6, help="transformer blocks (default: 6)")
    parser.add_argument("--width", type=_positive, default=256, help="width of the model, 8 heads (default: 256)")
    parser.add_argument("--batch", type=_positive, default=4, help="sequences in a batch (default: 4)")
    parser.add_argument("--length", type=_positive, default=128, help="tokens in a sequence (default: 128)")
    parser.add_argument("--device", default="cpu", help="where to run, for example cuda (default: cpu)")
    parser.add_argument("--lines", type=_positive, default=40, help="lines of the trace to show (default: 40)")
    parser.add_argument(
        "--repeat", type=_positive, default=10, help="most calls to take steady time from (default: 10)"
    )
    parser.set_defaults(run=run)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns the exit status."""
    import torch

    import thunder
    from thunder.cli.demo_model import GPT, GPTConfig

    torch.manual_seed(0)
    heads = 8 if args.width % 8 == 0 else 1
    config = GPTConfig(layers=args.layers, width=args.width, heads=heads, length=args.length)
    model = GPT(config).to(args.device)
    idx = torch.randint(config.vocabulary, (args.batch, args.length), device=args.device)
    targets = torch.randint(config.vocabulary, (args.batch, args.length), device=args.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())

    print(
        f"thunder {thunder.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {args.device}"
    )
    print(
        f"A GPT with {config.layers} layers of width {config.width}, {parameters / 1e6:.1f} million parameters, "
        f"on {args.batch} x {args.length} tokens"
    )

    inference, training = thunder.jit(model), thunder.jit(model)
    timings = [
        *time_pair("forward", lambda: _forward(model, idx), lambda: _forward(inference, idx), args),
        *time_pair("training", lambda: _train(model, idx, targets), lambda: _train(training, idx, targets), args),
    ]
    comparisons = compare(model, inference, training, idx, targets)

    _heading("The program that runs (forward, an excerpt)")
    print(excerpt(str(thunder.last_traces(inference)[-1]), args.lines))
    _heading("Compared with eager (largest absolute difference)")
    for each in comparisons:
        print(f"  {each.what:<30} {each.error:9.2e}  of {each.scale:9.2e}   {'agrees' if each.agrees else 'DIFFERS'}")
    _heading("Time in milliseconds (steady: the median of later calls)")
    print(f"  {'':<30} {'first call':>10} {'steady':>10}")
    for timing in timings:
        print(f"  {timing.what:<30} {timing.first * 1e3:>10.1f} {timing.steady * 1e3:>10.2f}")
    return 0 if all(each.agrees for each in comparisons) else 1


def _heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def _forward(model: Callable[..., torch.Tensor], idx: torch.Tensor) -> torch.Tensor:
    import torch

    with torch.no_grad():
        return model(idx)


def _train(model: Any, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One step without the optimiser. Gradients are dropped first, so that each call does the same work."""
    for parameter in model.parameters():
        parameter.grad = None
    loss: torch.Tensor = model(idx, targets)
    loss.backward()
    return loss.detach()


def compare(model: Any, inference: Any, training: Any, idx: torch.Tensor, targets: torch.Tensor) -> list[Comparison]:
    """Logits, loss and every gradient, thunder against eager on the same parameters."""
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
    """The worst of several pairs of tensors; a gradient that is missing, or a NaN, counts as infinitely wrong."""
    errors, scales = [], []
    for expected, got in zip(eager, jitted, strict=True):
        if expected is None or got is None or expected.shape != got.shape:
            errors.append(float("inf"))
            continue
        difference = (expected.double() - got.double()).abs().max().item()
        errors.append(difference if difference == difference else float("inf"))
        scales.append(expected.double().abs().max().item())
    return Comparison(what, max(errors), max(scales, default=0.0))


def time_pair(
    what: str, eager: Callable[[], Any], jitted: Callable[[], Any], args: argparse.Namespace
) -> tuple[Timing, Timing]:
    """First and steady time of both. Steady calls alternate, so that what else the machine does meets both alike."""
    import torch

    def timed(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        if args.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - start

    eager_first, jitted_first = timed(eager), timed(jitted)
    timed(eager), timed(jitted)
    pairs: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(pairs) < args.repeat and (len(pairs) < LEAST_CALLS or time.perf_counter() - started < PATIENCE):
        pairs.append((timed(eager), timed(jitted)))
    eager_steady, jitted_steady = (statistics.median(times) for times in zip(*pairs, strict=True))
    return (
        Timing(f"{what}, eager", eager_first, eager_steady),
        Timing(f"{what}, thunder", jitted_first, jitted_steady),
    )


def excerpt(program: str, lines: int) -> str:
    """A printed trace cut down to a screen: its header, its first operations without their decompositions, its end."""
    everything = program.splitlines()
    opening = next((number for number, line in enumerate(everything) if line.startswith("def ")), 0)
    body = [line for line in everything[opening + 1 :] if line.strip() and not line.lstrip().startswith("#")]
    shown = [*everything[: opening + 1], *body[:lines]]
    if len(body) > lines + 1:
        shown += [f"  ... {len(body) - lines - 1} more lines ...", body[-1]]
    return "\n".join(_shorten(line) for line in shown)


def _shorten(line: str) -> str:
    """A line no wider than the excerpt; the middle of one that lists every parameter of a model says little."""
    if len(line) <= EXCERPT_WIDTH:
        return line
    half = (EXCERPT_WIDTH - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"
