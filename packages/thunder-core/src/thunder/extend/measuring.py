# SPDX-License-Identifier: Apache-2.0
"""Choices by measurement: where several candidates compute the same, time them once on the machine.

A choice has a name, a *shape class* (calls for which the same candidate is the fastest), a device, and candidates of
which the first is the default. `measured_choice` returns the name of the candidate to use. Without the option
`measured` it is always the default.

**The rule of a process.** The first time that a process asks, the answer is final for this process: the stored choice,
or the default if nothing is stored. Candidates may differ in the last bits of results. With this rule the forward
program, its backward programs, a recomputation and all later compilations of a process use the same candidate.

**When candidates are timed.** With `measured=True`, what is not stored is timed before the third call of the program,
and used by the next processes. With `measured="first call"`, it is timed when it is first asked for, and used at once.
Nothing is timed while a CUDA graph is captured. With `torch.use_deterministic_algorithms` the default is used.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from thunder.core import dtypes
from thunder.core.devices import to_torch_device
from thunder.core.events import EventLog, current_log
from thunder.core.proxies import TensorProxy
from thunder.extend.choice_store import Stored, cache_folder, canonical, digest, read_choice, write_choice
from thunder.extend.compile_state import compilation
from thunder.runtime.device_tables import is_capturing_graph

if TYPE_CHECKING:
    import torch

__all__ = [
    "Candidate", "MeasuredChoice", "Measurements", "When", "example_tensor", "measured_choice", "shape_class_of",
    "size_class",
]  # fmt: skip

When = Literal["later", "first call"]

_GAIN = 0.97  # another candidate must take less than this fraction of the default's time
_TURNS, _CALLS, _WARM = 5, 4, 3
_CLOCKS = ("cpu", "cuda")  # the types of devices on which candidates can be timed


class Candidate(NamedTuple):
    """One way to compute a result.

    `prepare` creates inputs and returns a function without arguments that computes the result once. The function writes
    only to memory that it allocates. `version` is everything that its speed depends on: the version of its library, its
    source, its parameters.
    """

    name: str
    prepare: Callable[[], Callable[[], Any]]
    version: str = ""


@dataclass(frozen=True)
class MeasuredChoice:
    """A choice, for reports. `times` are milliseconds, and empty if the candidates were not timed.

    `failures` are the candidates that raised an error while they were timed, e.g. because they ran out of memory.
    """

    operation: str
    shape_class: Any
    device: str
    default: str
    chosen: str
    reason: str
    times: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        times = ", ".join(f"{name} {ms:.3g} ms" for name, ms in sorted(self.times.items(), key=lambda item: item[1]))
        failed = "; ".join(f"{name} failed ({why})" for name, why in self.failures.items())
        text = "; ".join(part for part in (times, failed) if part)
        default = " (the default)" if self.chosen == self.default else f" (the default is {self.default})"
        return f"{self.operation}: {self.chosen}{default}, {self.reason}{f': {text}' if text else ''}"

    def to_details(self) -> dict[str, Any]:
        """Return the choice as JSON types."""
        return {
            "operation": self.operation, "shape_class": canonical(self.shape_class), "device": self.device,
            "default": self.default, "chosen": self.chosen, "times": dict(self.times), "failures": dict(self.failures),
            "state": self.reason,
        }  # fmt: skip

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> MeasuredChoice:
        """Return the choice that an event is about."""
        return cls(**{("reason" if name == "state" else name): value for name, value in details.items()})


def measured_choice(
    operation: str, shape_class: Any, candidates: Sequence[Candidate], device: Any, *,
    measurements: Measurements | None = None,
) -> str:  # fmt: skip
    """Return the name of the candidate to use. The first candidate is the default.

    Call this while a program is compiled. `measurements` are those of the compilation; a kernel that chooses when it is
    first called keeps them from then (`compilation().measurements`). `device` is thunder's or torch's.
    """
    found: Measurements | None = compilation().measurements if measurements is None else measurements
    return candidates[0].name if found is None else found.choose(operation, shape_class, candidates, device)


class Measurements:
    """The choices of one jitted function, and the candidates that are still to be timed."""

    def __init__(self, when: When = "later", log: EventLog | None = None):
        self.when = when
        self.log = current_log() if log is None else log  # of the program that is compiled
        self.pending: dict[Path, _Question] = {}
        self._reported: set[Path] = set()

    def choose(self, operation: str, shape_class: Any, candidates: Sequence[Candidate], device: Any) -> str:
        """Return the name of the candidate that this process uses."""
        question = _question(operation, shape_class, candidates, device)
        if question is None:
            return candidates[0].name
        decided = _decided.get(question.path)
        if decided is None:
            decided = _decided.setdefault(question.path, self._found(question))
        if not decided.times and self.when == "later" and question.device.type in _CLOCKS:
            self.pending.setdefault(question.path, question)
        if question.path not in self._reported:
            self._reported.add(question.path)
            self._report(decided)
        return decided.chosen

    def expect(self, operation: str, shape_class: Any, candidates: Sequence[Candidate], device: Any) -> str:
        """Return the name of the candidate that `choose` will return unless it measures, e.g. to compile it ahead."""
        question = _question(operation, shape_class, candidates, device)
        if question is None:
            return candidates[0].name
        decided = _decided.get(question.path) or read_choice(question.path, question.names)
        return candidates[0].name if decided is None else decided.chosen

    def _found(self, question: _Question) -> MeasuredChoice:
        stored = read_choice(question.path, question.names)
        if stored is not None:
            return question.choice("measured earlier", stored)
        if self.when == "first call" and can_measure(question.device):
            return question.measure()
        return question.choice("not measured yet")

    def measure_pending(self) -> None:
        """Time what is pending, unless another thread is timing. What cannot be timed now stays pending."""
        if not self.pending or not _timing.acquire(blocking=False):
            return
        try:
            for path, question in list(self.pending.items()):
                if can_measure(question.device):
                    del self.pending[path]
                    self._report(question.measure("; later processes use it"))
        finally:
            _timing.release()

    def _report(self, choice: MeasuredChoice) -> None:
        self.log.add("choice", str(choice), details=choice.to_details())


# The choices that this process uses, by the file that stores them.
_decided: dict[Path, MeasuredChoice] = {}
_timing = threading.Lock()


def forget_decisions() -> None:
    """Forget what this process has decided. Only tests do this: programs may then use several candidates."""
    _decided.clear()


def _question(operation: str, shape_class: Any, candidates: Sequence[Candidate], device: Any) -> _Question | None:
    """Return the choice, or None if the default is used in any case."""
    import torch

    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        raise ValueError(f"the candidates of {operation!r} need different names, but they are {names}")
    if len(candidates) < 2 or torch.are_deterministic_algorithms_enabled():
        return None
    return _Question(operation, shape_class, tuple(candidates), to_torch_device(device))


class _Question(NamedTuple):
    """A choice that may have to be measured."""

    operation: str
    shape_class: Any
    candidates: tuple[Candidate, ...]
    device: torch.device

    @property
    def names(self) -> list[str]:
        return [candidate.name for candidate in self.candidates]

    @property
    def path(self) -> Path:
        """The file of the choice. Its name is a hash of everything that the choice depends on."""
        versions = [(candidate.name, candidate.version) for candidate in self.candidates]
        return cache_folder() / "choices" / f"{digest(_machine(self.device), *self[:2], versions)}.json"

    def choice(
        self, reason: str, stored: Stored | None = None, failures: Mapping[str, str] | None = None
    ) -> MeasuredChoice:
        default = self.names[0]
        chosen, times = (default, {}) if stored is None else stored
        about = self.operation, self.shape_class, str(self.device)
        return MeasuredChoice(*about, default, chosen, reason, times, failures or {})

    def measure(self, then: str = "") -> MeasuredChoice:
        """Time the candidates and store the fastest."""
        times, failures = times_of(self.candidates, self.device)
        if self.names[0] not in times:
            return self.choice("could not be measured", failures=failures)
        best = min(times, key=lambda name: times[name])
        fastest = best if times[best] < _GAIN * times[self.names[0]] else self.names[0]
        about = {
            "operation": self.operation, "shape_class": self.shape_class, "machine": _machine(self.device),
            "candidates": [(candidate.name, candidate.version) for candidate in self.candidates],
        }  # fmt: skip
        stored = write_choice(self.path, self.names, Stored(fastest, times), about)
        if stored is None:  # all processes have to choose the same
            return self.choice(f"measured, but it cannot be stored in {self.path.parent}", failures=failures)
        return self.choice(f"measured{then}", stored, failures)


def _machine(device: torch.device) -> list[Any]:
    """Return the versions and properties of the machine that every choice depends on."""
    import torch

    found = [sys.modules["thunder"].__version__, torch.__version__, str(torch.version.cuda), device.type]
    if device.type == "cuda":
        found += [torch.cuda.get_device_name(device), *torch.cuda.get_device_capability(device)]
        found.append(torch.backends.cudnn.version())
    else:
        found += [torch.get_num_threads()]
    return found


# -- timing -----------------------------------------------------------------------------------------------------------
def can_measure(device: torch.device) -> bool:
    """Check whether candidates can be timed now: on a CPU or GPU, outside of the capture of a CUDA graph."""
    import torch

    if device.type == "cuda":
        return not (torch.cuda.is_current_stream_capturing() or is_capturing_graph())
    return device.type in _CLOCKS


def times_of(candidates: Sequence[Candidate], device: torch.device) -> tuple[dict[str, float], dict[str, str]]:
    """Return the milliseconds of each candidate, and the errors of those that cannot run.

    Candidates take turns, and the shortest time counts. If the default cannot run, nothing is timed.
    """
    runs: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    with _apart_from_the_program(device):
        for candidate in candidates:
            try:
                run = candidate.prepare()
                for _ in range(_WARM):
                    run()
                _synchronize(device)
                runs[candidate.name] = run
            except Exception as error:  # out of memory or shared memory, a library that refuses: not a candidate
                failures[candidate.name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                if candidate is candidates[0]:
                    return {}, failures
        if len(runs) < 2:
            return dict.fromkeys(runs, 0.0), failures
        turns = [{name: clock(name, run, device) for name, run in runs.items()} for _ in range(_TURNS)]
    return {name: min(turn[name] for turn in turns) for name in runs}, failures


def time_run(name: str, run: Callable[[], Any], device: torch.device) -> float:
    """Return the milliseconds of one call. On a GPU, a sleep kernel delays the calls until all are in the queue."""
    import torch

    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(_CALLS):
            run()
        return (time.perf_counter() - start) * 1e3 / _CALLS
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    begin.record()
    for _ in range(_CALLS):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / _CALLS


#: The clock. `thunder.toolkit.testing.measured_times` replaces it.
clock: Callable[[str, Callable[[], Any], Any], float] = time_run


@contextlib.contextmanager
def _apart_from_the_program(device: torch.device) -> Iterator[None]:
    """Keep the program's random numbers, and run neither in its autograd mode nor in its autocast."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if devices:
            stack.enter_context(torch.cuda.device(device))  # events record on the current device
        yield


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


# -- shapes -----------------------------------------------------------------------------------------------------------
def size_class(size: int) -> tuple[int, int]:
    """Return the class of a size: sizes up to 16 are exact, larger ones are rounded up to two binary digits.

    The second number is the largest power of two, at most 16, that divides the size: kernels for aligned sizes differ.
    """
    aligned = min(size & -size, 16)
    if size <= 16:
        return size, aligned
    unit = 1 << (size.bit_length() - 2)
    return -(-size // unit) * unit, aligned


def shape_class_of(*args: Any, **kwargs: Any) -> Any:
    """Return the shape class of a call: the dtypes and size classes of its tensors, and all other arguments.

    Return None if a size or a number is only known when the program runs: such calls are not measured.
    """
    found = [_class_of(x) for x in (*args, *[item for pair in sorted(kwargs.items()) for item in pair])]
    return None if None in found else tuple(found)


def _class_of(x: Any) -> Any:
    if isinstance(x, TensorProxy):
        known = all(type(n) is int for n in x.shape)
        return (str(x.dtype), *map(size_class, x.shape)) if known else None
    if x is None or isinstance(x, dtypes.dtype):
        return str(x)
    if isinstance(x, (tuple, list)):
        items = [_class_of(item) for item in x]
        return None if None in items else tuple(items)
    return x if type(x) in (bool, int, float, str) else None


def example_tensor(like: Any, *, strides: Sequence[int] | None = None, seed: int = 0) -> torch.Tensor:
    """Return a tensor with the shape, dtype and device of a proxy, for candidates to run on.

    Floating-point numbers are between -1 and 1, booleans are True, and integers are 0. The program's random numbers are
    not used.
    """
    import torch

    dtype, device = dtypes.to_torch_dtype(like.dtype), to_torch_device(like.device)
    shape = tuple(map(int, like.shape))
    if strides is None:
        out = torch.empty(shape, dtype=dtype, device=device)
    else:
        out = torch.empty_strided(shape, tuple(strides), dtype=dtype, device=device)
    if dtype is torch.bool:
        return out.fill_(True)
    if not dtype.is_floating_point and not dtype.is_complex:
        return out.zero_()
    generator = torch.Generator(device).manual_seed(seed)
    wide = torch.float32 if dtype.itemsize == 1 or dtype.is_complex else dtype  # float8 has no random numbers
    return out.copy_(torch.empty(shape, dtype=wide, device=device).uniform_(-1, 1, generator=generator))
