# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder bench FILE.py:NAME`: time a program in eager mode, with torch.compile and with thunder.

The contenders run in turns, so that load of the machine slows down all of them. The table shows the duration of the
first call (with compilation), the median of warm calls, the speed relative to eager mode, the peak of allocated memory
on a GPU, and whether results equal those of eager mode. `--backward` also computes gradients.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from thunder.cli.target import BadTarget, Target, add_target_parser, load_target
from thunder.cli.terminal import painted
from thunder.core.tables import format_table, in_time

__all__ = ["add_parser", "measure", "run"]

CONTENDERS = ("eager", "torch.compile", "thunder")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = add_target_parser(
        subparsers, "bench", __doc__, run, help="time a program in eager mode, with torch.compile and with thunder"
    )
    parser.add_argument("--backward", action="store_true", help="measure forward and backward together")
    parser.add_argument(
        "--rounds", type=_positive(int), default=5, help="how often each contender is measured (default: 5)"
    )
    parser.add_argument(
        "--seconds", type=_positive(float), default=0.2, help="the duration of a measurement (default: 0.2)"
    )
    parser.add_argument("--only", metavar="NAMES", default=",".join(CONTENDERS), help="contenders, separated by commas")
    return parser


def _positive(number: Callable[[str], float]) -> Callable[[str], float]:
    """Return the `type` of an argument that is a number above zero."""

    def parse(text: str) -> float:
        value = number(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above zero")
        return value

    parse.__name__ = number.__name__  # argparse names it in its message about what is no number
    return parse


def run(args: argparse.Namespace) -> int:
    """Measure the contenders, and print a table. Return 1 if thunder fails or its results differ."""
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.frontend.progress import progress

    chosen = args.only.split(",")
    unknown = [name for name in chosen if name not in CONTENDERS]
    if unknown:
        raise BadTarget(f"--only {args.only}: {unknown[0]!r} is none of {', '.join(CONTENDERS)}")
    target = load_target(args.target, args.input, args.seed)
    with progress("thunder bench", "measuring", "measured"):
        found = measure(target, chosen, backward=args.backward, rounds=args.rounds, seconds=args.seconds)
    if args.json:
        print(json.dumps({"target": args.target, "backward": args.backward, "contenders": found}, indent=2))
    else:
        print(_table(found))
    ours = found.get("thunder", {})
    return int("error" in ours or ours.get("difference") is not None)


def measure(
    target: Target, chosen: list[str], *, backward: bool = False, rounds: int = 5, seconds: float = 0.2
) -> dict[str, dict[str, Any]]:
    """Return what was measured, in seconds and bytes, by contender. A contender that fails has only an `error`."""
    # The imports are local because they import torch, and other commands work without torch.
    from thunder.reproduce.outcome import call_outcome, difference
    from thunder.reproduce.variants import jit_function

    plain = jit_function(target.fn)._fn
    expected = call_outcome(plain, lambda f: f, target.args, target.kwargs)
    if expected.error is not None:
        raise expected.error
    found: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    calls: dict[str, Callable[[], Any]] = {}
    for name in chosen:
        try:
            call = _step(_prepared(name, target, plain), target, backward)
            found[name]["first"] = _seconds(call)
            for _ in range(3):
                call()
            calls[name] = call
            found[name]["difference"] = difference(
                call_outcome(plain, functools.partial(_prepared, name, target), target.args, target.kwargs),
                expected,
                None,
            )
        except BadTarget:
            raise
        except Exception as error:  # e.g. torch.compile without a C++ compiler
            found[name] = {
                "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(_warm(call, seconds))
    for name, call in calls.items():
        found[name] |= {"median": statistics.median(samples[name]), "best": min(samples[name]), "memory": _memory(call)}
    return found


def _prepared(name: str, target: Target, fn: Any) -> Any:
    """Return the callable of a contender. thunder keeps the options of a target that is jitted."""
    # The imports are local because they import torch, and other commands work without torch.
    import torch

    # For the same reason.
    from thunder.reproduce.variants import jit_function, variant

    if name == "eager":
        return fn
    return torch.compile(fn) if name == "torch.compile" else variant(jit_function(target.fn), fn)


def _step(fn: Any, target: Target, backward: bool) -> Callable[[], Any]:
    # The imports are local because they import torch, and other commands work without torch.
    import torch

    # For the same reason.
    from thunder.core.pytree import tree_leaves

    if not backward:
        return lambda: fn(*target.args, **target.kwargs)

    def step() -> None:
        ends = [x for x in tree_leaves(fn(*target.args, **target.kwargs)) if isinstance(x, torch.Tensor)]
        ends = [x for x in ends if x.requires_grad]
        if not ends:
            raise BadTarget("--backward: no result requires grad. Describe an input with `grad`, or use parameters")
        torch.autograd.backward(ends, [torch.ones_like(x) for x in ends])

    return step


def _synchronize() -> None:
    # The import is local because it imports torch, and other commands work without torch.
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _seconds(call: Callable[[], Any], number: int = 1) -> float:
    _synchronize()
    start = time.perf_counter()
    for _ in range(number):
        call()
    _synchronize()
    return (time.perf_counter() - start) / number


def _warm(call: Callable[[], Any], seconds: float) -> float:
    """Return the duration of a warm call, measured for about `seconds`."""
    once = _seconds(call)
    return _seconds(call, max(1, min(10_000, int(seconds / max(once, 1e-7)))))


def _memory(call: Callable[[], Any]) -> int | None:
    """Return the peak of memory that a call allocates on the GPU, in addition to what is allocated already."""
    # The import is local because it imports torch, and other commands work without torch.
    import torch

    if not torch.cuda.is_available():
        return None
    _synchronize()
    torch.cuda.reset_peak_memory_stats()
    before: int = torch.cuda.memory_allocated()
    call()
    _synchronize()
    peak: int = torch.cuda.max_memory_allocated()
    return peak - before


# -- text -------------------------------------------------------------------------------------------------------------
def _table(found: dict[str, dict[str, Any]]) -> str:
    # The import is local because it imports torch, and other commands work without torch.
    from thunder.core.nbytes import in_bytes

    eager = found.get("eager", {}).get("median")
    rows = []
    for name, numbers in found.items():
        if "error" in numbers:
            rows.append((name, "", "", "", "", f"fails: {numbers['error']}"))
            continue
        speed = f"{eager / numbers['median']:.2f}x" if eager else ""
        memory = "" if numbers["memory"] is None else in_bytes(numbers["memory"])
        result = numbers["difference"] or "as in eager mode"
        rows.append((name, in_time(numbers["first"]), in_time(numbers["median"]), speed, memory, result))
    head, *lines = format_table(("", "first call", "warm call", "speed", "memory", "results"), rows).splitlines()
    return "\n".join([painted(head, "bold"), *lines])
