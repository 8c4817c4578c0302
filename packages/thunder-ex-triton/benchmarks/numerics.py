# SPDX-License-Identifier: Apache-2.0
"""Sixteen models on a GPU: errors of losses and gradients against float64, of eager mode, torch.compile and thunder.

    python packages/thunder-ex-triton/benchmarks/numerics.py [--models GPT-2,ViT] [--candidates eager,compile,thunder]
    python packages/thunder-ex-triton/benchmarks/numerics.py --device cpu --tiny      # to try it

The models and batches are those of `suite.py`, without dropout. The reference is the same model in eager mode with the
same weights and batches, all converted to float64; where a model's code converts to float32, the reference does not.

An error is the norm of the difference divided by the norm of the reference. Errors of several batches are averaged as
root mean squares, because the error of one loss is the chance of one rounding. The columns:

- loss, gradients: the errors of the loss, and of all gradients of parameters as one vector.
- worst parameter: the largest error of the gradient of a single parameter, and its name. Parameters whose gradient is
  zero but for rounding (the bias of keys in attention) are left out.
- loss, gradients, of eager: the ratio of thunder's error to eager mode's; parameter: the largest ratio of one.

Models run in parallel processes, the references one at a time. `--json` writes the errors of all parameters.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch
from suite import MODELS, MODES, TITLES, batch_of, for_eager, loss_of, machine, model_of
from torch.overrides import TorchFunctionMode

Errors = dict[str, float]  # by the name of the parameter; "" is all of them, and "loss" the loss
_VANISHED = 1e-9  # of the norm of all gradients: what is below is zero in exact arithmetic
_one_reference: Any = None  # the lock of the process that computes in float64


class InFloat64(TorchFunctionMode):
    """Replaces the dtype float32 by float64 in what a model's code asks for.

    Grouped products, which torch does not have in float64, are single ones.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        func = torch.Tensor.double if func is torch.Tensor.float else func
        if func is torch._grouped_mm:
            return by_expert(args[0], args[1], kwargs["offs"])
        args = [torch.float64 if x is torch.float32 else x for x in args]
        kwargs = {k: torch.float64 if x is torch.float32 else x for k, x in kwargs.items()}
        return func(*args, **kwargs)


def by_expert(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Multiply groups of rows by a weight each, as `grouped_mm` does."""
    ends = offs.tolist()
    return torch.cat([x[start:end] @ weight for start, end, weight in zip([0, *ends], ends, weights)])


def gradients(model: torch.nn.Module, run: Callable[..., Any], batch: Any) -> dict[str, torch.Tensor]:
    """Return the loss and the gradients of the parameters by name."""
    model.zero_grad()
    loss = loss_of(run(**batch))
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


def candidate(name: str, model: torch.nn.Module) -> Callable[..., Any]:
    """Return the model as a candidate runs it."""
    if name == "thunder":
        import thunder

        return thunder.jit(model)
    return torch.compile(model, mode=MODES[name]) if name in MODES else for_eager(model)


def squares(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
    """Return the squared norms of the errors and of the reference, by name."""
    if found.keys() != exact.keys():
        raise ValueError(f"parameters with and without gradients differ: {sorted(found.keys() ^ exact.keys())}")
    result = {
        name: (float((found[name].double() - x).square().sum()), float(x.square().sum())) for name, x in exact.items()
    }
    parameters = [pair for name, pair in result.items() if name != "loss"]
    return {**result, "": (sum(a for a, _ in parameters), sum(b for _, b in parameters))}


def errors_of(draws: list[dict[str, tuple[float, float]]]) -> Errors:
    """Return the root mean squares of relative errors of several batches, without gradients that vanish."""
    found = {}
    for name in draws[0]:
        pairs = [(draw[name], draw[""][1] * _VANISHED**2) for draw in draws]
        if name == "loss" or all(square > least for (_, square), least in pairs):
            found[name] = math.sqrt(sum(error / square for (error, square), _ in pairs) / len(pairs))
    return found


def free(given: argparse.Namespace) -> None:
    """Give the memory back, because other processes need it."""
    gc.collect()
    if given.device == "cuda":
        torch.cuda.empty_cache()


def measure(name: str, given: argparse.Namespace) -> dict[str, Errors]:
    """Return the errors of each candidate for a model."""
    begin = time.perf_counter()
    batches = []
    for seed in range(given.draws):
        torch.manual_seed(1 + seed)
        batches.append(batch_of(name, given))
    found: dict[str, list[dict[str, torch.Tensor]]] = {}
    for which in given.candidates.split(","):
        model = model_of(name, given, training=True)
        run = candidate(which, model)
        found[which] = [gradients(model, run, batch) for batch in batches]
        print(f"{name}, {which}: {time.perf_counter() - begin:.0f} s", flush=True)
        del model, run
        free(given)
    with _one_reference:
        model = for_eager(model_of(name, given, training=True)).double()
        draws: dict[str, list[Any]] = {which: [] for which in found}
        for i, batch in enumerate(batches):
            exactly = {key: x.double() if x.is_floating_point() else x for key, x in batch.items()}
            with InFloat64():
                exact = gradients(model, model, exactly)
            assert all(x.dtype is torch.float64 for x in exact.values())
            for which, each in found.items():
                draws[which].append(squares(each[i], exact))
        del model, exact
        free(given)
    print(f"{name}, reference: {time.perf_counter() - begin:.0f} s", flush=True)
    return {which: errors_of(each) for which, each in draws.items()}


def safely(name: str, given: argparse.Namespace) -> dict[str, Errors] | str:
    """Return the errors, or why there are none."""
    try:
        return measure(name, given)
    except Exception:
        return traceback.format_exc()


def start(lock: Any, threads: int) -> None:
    """Prepare a process."""
    global _one_reference
    _one_reference = lock
    torch.set_num_threads(threads)


def worst(errors: Errors) -> tuple[str, float]:
    """Return the parameter with the largest value."""
    return max(((k, v) for k, v in errors.items() if k not in ("", "loss")), key=lambda item: item[1])


def ratios(found: dict[str, Errors]) -> Errors:
    """Return thunder's errors divided by those of eager mode, where both have errors."""
    return {k: v / found["eager"][k] for k, v in found["thunder"].items() if v and found["eager"].get(k)}


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def table(results: dict[str, dict[str, Errors]]) -> str:
    """Return a table with a row for each model."""
    candidates = [c for c in TITLES if any(c in found for found in results.values())]
    compared = {"eager", "thunder"} <= {*candidates}
    head = ["model", *[f"{TITLES[c]}: {what}" for c in candidates for what in ("loss", "gradients", "worst parameter")]]
    head += ["loss, of eager", "gradients, of eager", "parameter, of eager"] if compared else []
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in (name for name in MODELS if name in results):
        cells = [name]
        for errors in (results[name][c] for c in candidates):
            cells += [f"{errors['loss']:.1e}", f"{errors['']:.1e}", "{1:.1e} `{0}`".format(*worst(errors))]
        if compared:
            ratio = ratios(results[name])
            cells += [f"{ratio.get('loss', 1):.2f}", f"{ratio.get('', 1):.2f}", "{1:.2f} `{0}`".format(*worst(ratio))]
        lines.append(f"| {' | '.join(cells)} |")
    if compared and results:
        means = [mean(ratios(found).get(key, 1) for found in results.values()) for key in ("loss", "")]
        lines += ["", "thunder's errors / eager mode's, geometric means: loss {:.2f}, gradients {:.2f}.".format(*means)]
    return "\n".join(lines)


def main() -> None:
    """Measure the requested models, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--candidates", default="eager,thunder", help="some of eager, thunder, " + ", ".join(MODES))
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="models of tiny sizes")
    parser.add_argument("--draws", type=int, default=3, help="batches")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="torch's threads in each process")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    results: dict[str, dict[str, Errors]] = {}
    prepare = partial(start, spawn.Lock(), given.threads)
    with ProcessPoolExecutor(given.processes, mp_context=spawn, initializer=prepare) as pool:
        tasks = {pool.submit(safely, name, given): name for name in given.models.split(",")}
        for task in as_completed(tasks):
            found = task.result()
            if isinstance(found, str):
                print(f"{tasks[task]} failed:\n{found}", flush=True)
                continue
            results[tasks[task]] = found
            print(tasks[task], {c: {k: e[k] for k in ("loss", "")} for c, e in found.items()}, flush=True)
            if given.json:
                given.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    text = f"On a {machine()}, {given.dtype}, {given.draws} batches.\n\n{table(results)}"
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
