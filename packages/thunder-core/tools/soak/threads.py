# SPDX-License-Identifier: Apache-2.0
"""`python -m soak.threads`: serve, retrace, save and fork on many threads at once, and train and serve for many steps.

The first part calls one jitted model on several threads, while one thread makes it compile again and again and others
read it (`model(x)`, `state_dict()`, copies, pickles), assign its attributes, and fork. The second part trains and
serves one model with a mutation between the steps. Both count errors and wrong results. Memory and the number of
programs must not grow.
"""

from __future__ import annotations

import argparse
import collections
import copy
import ctypes
import faulthandler
import gc
import os
import pickle
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import thunder

_PATIENCE = 60  # seconds for a child

WIDTH = 8
MOST_GROWTH = 16  # MiB in the second half of the steps


class Model(nn.Module):
    """A model that reads and assigns numbers, buffers, and entries of a dict and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: torch.Tensor
        self.calls, self.scale, self.tag = 0, 1.0, "a"
        self.cache: dict[str, Any] = {"last": torch.zeros(WIDTH)}
        self.recent: list[Any] = [torch.zeros(WIDTH), torch.zeros(WIDTH)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the model's result."""
        self.calls += 1
        y = self.norm(self.first(x).relu()) * self.scale
        now = y.mean(0).detach()
        self.mean = 0.9 * self.mean + 0.1 * now
        self.cache["last"] = now
        self.recent[0] = now
        return self.last(y) + (1.0 if self.tag == "a" else 2.0)


class Steps(NamedTuple):
    """What steps showed: differences, seconds and the number of programs for each step, and memory at each quarter."""

    errors: collections.Counter[str]
    latencies: list[float]
    programs: list[int]
    mebibytes: list[float]


class Watch:
    """Counts calls and errors, and collects latencies."""

    def __init__(self) -> None:
        self.errors: collections.Counter[str] = collections.Counter()
        self.calls: collections.Counter[str] = collections.Counter()
        self.latencies: list[float] = []
        self.assigned: dict[str, Any] = {}

    def loop(self, name: str, step: Callable[[], None], stop: threading.Event) -> None:
        """Call `step` until `stop` is set."""
        while not stop.is_set():
            self.calls[name] += 1
            try:
                step()
            except Exception as error:
                self.errors[f"{name}: {type(error).__name__}: {error}".splitlines()[0][:200]] += 1


def is_tensor(x: Any) -> None:
    """Raise an error for a handle of thunder's, and for a tensor without data."""
    if type(x) not in (torch.Tensor, nn.Parameter):
        raise AssertionError(f"{type(x).__name__} instead of a tensor")
    x.detach().sum().item()


def fork(model: Model) -> None:
    """Use the model in a child process, which must find whole objects and no lock that is held."""
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(_PATIENCE - 5)  # where a child hangs
        code = 1
        try:
            for x in model.state_dict().values():
                is_tensor(x)
            jitted: Any = thunder.jit(lambda x: x * 2 + model.scale)
            code = 0 if jitted(torch.ones(2)).tolist() == [2 + model.scale] * 2 else 3
        finally:
            os._exit(code)
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status:
                raise AssertionError(f"the child ended with {os.waitstatus_to_exitcode(status)}")
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


def _jobs(model: Model, jitted: Any, watch: Watch, forks: bool) -> dict[str, Callable[[], None]]:
    shapes = random.Random(0)
    # Only `retrace` records gradients. PyTorch 2.13 deadlocks, also in eager mode, if one thread calls `apply` of a
    # `torch.autograd.Function` on a parameter while another thread's operation makes the node of its gradient.

    def serve() -> None:
        start = time.perf_counter()
        with torch.no_grad():
            is_tensor(jitted(torch.ones(4, WIDTH)))
        watch.latencies.append(time.perf_counter() - start)

    def retrace() -> None:
        if shapes.random() < 0.3:
            thunder.reset(jitted)
        is_tensor(jitted(torch.ones(shapes.randrange(2, 9), WIDTH)))
        time.sleep(0.02)

    def save() -> None:
        for x in model.state_dict().values():
            is_tensor(x)
        time.sleep(0.001)

    def eager() -> None:
        with torch.no_grad():
            is_tensor(model(torch.ones(4, WIDTH)))
        time.sleep(0.001)

    def names() -> None:
        for _, x in (*model.named_parameters(), *model.named_buffers()):
            is_tensor(x)
        time.sleep(0.001)

    def copies() -> None:
        is_tensor(copy.copy(model).mean)
        is_tensor(copy.deepcopy(model.norm).running_mean)
        pickle.loads(pickle.dumps(model.last))
        time.sleep(0.002)

    def assign() -> None:
        model.tag = watch.assigned["tag"] = shapes.choice("ab")
        time.sleep(0.01)
        if model.tag != watch.assigned["tag"]:
            raise AssertionError("an assignment was lost")

    def forking() -> None:
        fork(model)
        time.sleep(0.3)

    found = {"serve": serve, "serve again": serve, "retrace": retrace, "save": save, "eager": eager, "names": names,
             "copies": copies, "assign": assign}  # fmt: skip
    return found | {"fork": forking} if forks and hasattr(os, "fork") else found


def memory() -> float:
    """Return the resident memory of the process in MiB, 0 where it is not known."""
    try:
        with open("/proc/self/statm") as found:
            return int(found.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def serve_beside(seconds: float, *, forks: bool = True) -> Watch:
    """Run all jobs on threads for so long."""
    model, watch, stop = Model(), Watch(), threading.Event()
    jobs = _jobs(model, thunder.jit(model), watch, forks)
    threads = [threading.Thread(target=watch.loop, args=(name, job, stop)) for name, job in jobs.items()]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(120)
        if thread.is_alive():
            watch.errors["a thread hangs"] += 1
    return watch


def _mutations(model: Model, chance: random.Random) -> None:
    """Change what the model's programs read, now and then."""
    if chance.random() < 0.05:
        model.tag = chance.choice("ab")
    if chance.random() < 0.05:
        model.scale = chance.choice([0.5, 1.0, 2.0])
    if chance.random() < 0.01:
        model.train(not model.training)


def steps(count: int, *, training: bool) -> Steps:
    """Take steps with a jitted and an eager model, and compare their results and their state."""
    torch.manual_seed(0)
    model = Model()
    twin = copy.deepcopy(model)
    jitted = thunder.jit(model)
    chances, errors = (random.Random(1), random.Random(1)), collections.Counter[str]()
    latencies, programs, mebibytes = [], [], []
    for i in range(count):
        if i % (count // 4) == 0:
            mebibytes.append(collected())
        results = []
        x = torch.randn(4 + i % 3, WIDTH)
        for net, run, chance in ((model, jitted, chances[0]), (twin, twin, chances[1])):
            _mutations(net, chance)
            start = time.perf_counter()
            with torch.set_grad_enabled(training):
                y = run(x)
            if training:
                y.square().mean().backward()
                with torch.no_grad():
                    for p in net.parameters():
                        p -= 0.001 * p.grad
                        p.grad = None
            if net is model:
                latencies.append(time.perf_counter() - start)
            results.append((y.detach(), net.mean, net.calls, net.cache["last"]))
        if not all(torch.allclose(torch.as_tensor(a), torch.as_tensor(b), atol=1e-3) for a, b in zip(*results)):
            errors[f"step {i} differs"] += 1
        programs.append(len(jitted._jitted._cache))
    return Steps(errors, latencies, programs, [*mebibytes, collected()])


def collected() -> float:
    """Return the resident memory after a garbage collection, without what `malloc` keeps for later.

    Each thread allocates from one of several arenas of `malloc`. Programs that are compiled on several threads leave
    free memory in all of them, so that the resident memory grows although nothing is retained.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # only glibc has it
    if trim is not None:
        trim(0)
    return memory()


def percentiles(latencies: list[float]) -> str:
    """Describe latencies in milliseconds."""
    cuts = statistics.quantiles(latencies, n=1000) if len(latencies) > 1 else [0.0] * 999
    return ", ".join(f"p{q / 10:g} {cuts[q - 1] * 1e3:.2f} ms" for q in (500, 900, 990, 999))


def main(argv: list[str] | None = None) -> int:
    """Run both parts and print what was found; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="soak.threads", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the threads run")
    parser.add_argument("--steps", type=int, default=10_000, help="how many training and serving steps are taken")
    options = parser.parse_args(argv)
    wrong, grown, end, watch = 0, [], time.monotonic() + options.minutes * 60, Watch()
    while time.monotonic() < end:
        part = serve_beside(min(60.0, max(1.0, end - time.monotonic())))
        watch.errors += part.errors
        watch.calls += part.calls
        watch.latencies += part.latencies
        grown.append(collected())
    print(f"threads: {dict(watch.calls)}; {percentiles(watch.latencies)}; MiB {[round(m) for m in grown]}")
    for error, count in watch.errors.most_common(20):
        print(f"  {count} x {error}")
    wrong += sum(watch.errors.values())
    for training in (True, False) if options.steps else ():
        taken = steps(options.steps, training=training)
        half = len(taken.programs) // 2
        print(
            f"{options.steps} {'training' if training else 'serving'} steps: {len(taken.errors)} wrong; "
            f"{percentiles(taken.latencies)}; programs {taken.programs[half]}, {taken.programs[-1]}; "
            f"MiB {[round(m) for m in taken.mebibytes]}"
        )
        for error in list(taken.errors)[:5]:
            print(f"  {error}")
        wrong += len(taken.errors) + (taken.programs[-1] > taken.programs[half] + 2)
        wrong += taken.mebibytes[-1] > taken.mebibytes[2] + MOST_GROWTH
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
