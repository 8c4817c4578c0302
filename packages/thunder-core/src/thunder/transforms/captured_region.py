# SPDX-License-Identifier: Apache-2.0
"""`CapturedRegion`: a stretch of a program that is launched as one CUDA graph where possible.

Each call decides between the graph and the operations themselves, which are always right: the graph must have been
captured for inputs of these sizes at these addresses, and nobody may read the results of its last launch any more.

With `auto`, the first warm calls are measured. The stretch is captured if the GPU may wait for the host: the launches
take at least half as long as the kernels, or the GPU has finished all earlier work when the stretch begins. The graph
is kept if it is not slower. A decision against it is made again a few times, because first calls are not typical:
other programs compile, and data loaders start.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from thunder.core.events import current_log
from thunder.runtime.autocast import no_autocast
from thunder.runtime.torch_private import function_transform_active, increment_versions
from thunder.transforms.graph_capture import Memory, Stopwatch, capture, capture_lock, is_capturing
from thunder.transforms.graph_launch import Launch, by_kind

__all__ = ["GRAPHS", "CapturedRegion", "loaded_region"]

#: The maximal number of graphs of a stretch: one for each combination of input sizes. Other sizes run uncaptured.
GRAPHS = 16
# The maximal number of recaptures because a constant address changed.
_MOVES = 8
# The maximal number of recaptures because graphs that were captured later lend memory that is temporary in this one.
_CONFLICTS = 4
# The number of failed captures after which a stretch is not captured again. A thread's first use of a library may fail.
_FAILURES = 2

# After how many calls that found returned gradients in use the graph is captured again, to copy them.
_IN_USE = 2

# With `auto`: the number of calls to measure, the host's least share of the time of a stretch that is worth a try (the
# GPU's time includes the gaps between kernels), and the maximal number of bytes of inputs that each launch copies, or
# their share of the graph's memory.
_MEASURED = 2
_LEAST_SHARE = 0.5
# The graph of a stretch that begins when the GPU is idle may be slower than the stretch by this factor: the host has
# time for what follows.
_SLOWER = 1.1
_MOST_COPIED = 1 << 24
_COPIED_SHARE = 1.0
# The share of a GPU's memory that may stay allocated for results and inputs of graphs of forward and backward programs:
# each size of inputs has graphs of its own, and values that they save for backward share no memory.
_KEPT_SHARE = 0.25
# The number of calls in which inputs may still come to constant addresses, e.g. when other stretches are captured.
_PATIENCE = 32
# After how many calls to decide again whether to capture a stretch, after each decision against it.
_AGAIN = (50, 500, 5000)
# The bytes of a graph's memory from which on torch's cached memory is released before the capture.
_RELEASED = 1 << 26

# The attributes of a stretch that are indices of its inputs or results, or sizes; and those that are numbers of bytes.
_INDICES = ("sizes", "strides", "written", "lent", "returned", "moving", "tables")
_BYTES = ("needs", "keeps", "reads")


class _Sized:
    """The state of a stretch for one combination of input sizes."""

    __slots__ = ("alternating", "conflicts", "failures", "fixed", "idle", "in_use", "launch", "left", "missing",
                 "moves", "moving", "once", "refusals", "refused", "scale", "seen", "uncaptured", "waited",
                 "watches")  # fmt: skip

    def __init__(self, moving: Sequence[int], scale: float = 1.0, refusals: int = 0) -> None:
        self.launch: Launch | None = None
        self.seen: list[Any] | None = None  # the addresses of the inputs at the capture, or before it in the last call
        self.moving = set(moving)  # indices of inputs whose addresses change
        self.fixed: set[int] = set()  # indices of inputs that other graphs lend
        self.moves = 0
        self.missing = 0  # the number of calls in sequence whose inputs other graphs should have lent, and did not
        self.scale = scale  # the bytes of these sizes, of those for which `needs` and `keeps` were estimated
        self.alternating = 0  # the number of calls whose inputs several graphs have lent in turns
        self.failures = 0  # the number of failed captures
        self.once: set[int] = set()  # indices of inputs that have moved once since the first capture
        self.in_use = 0  # the number of calls that found results of the last launch still in use
        self.conflicts = 0  # the number of calls in which the graph would have overwritten results of later graphs
        self.refused: str | None = None  # the reason not to capture
        self.refusals = refusals  # the number of decisions not to capture before
        self.left = _AGAIN[refusals] if refusals < len(_AGAIN) else -1  # refused calls until the next decision
        self.watches: list[Stopwatch] = []
        self.uncaptured: tuple[float, float] | None = None  # milliseconds of the host and the GPU
        self.waited = 0  # the number of calls that were not captured because inputs move
        self.idle = False  # whether the GPU had nothing else to do when uncaptured calls began


class CapturedRegion:
    """A stretch of a program. From the second call with the same sizes on, it is launched as one graph."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        memory: Memory | None = None,
        *,
        sizes: Sequence[int] = (),
        strides: Sequence[int] = (),
        written: Sequence[int] = (),
        lent: Sequence[int] = (),
        returned: Sequence[int] = (),
        moving: Sequence[int] = (),
        tables: Sequence[int] = (),
        backward: bool = False,
        auto: bool = False,
        needs: int = 0,
        keeps: int = 0,
        reads: int = 0,
    ):
        self.name = self.__name__ = name
        self.fn = fn
        self.trace: Any = None  # its program, if it was compiled in this process
        self.memory = memory or Memory()
        self.sizes = sizes  # indices of inputs that are sizes or have symbolic sizes
        self.strides = strides  # indices of inputs whose strides may differ between calls
        self.written = frozenset(written)  # indices of inputs that the stretch writes to
        self.lent = lent  # indices of results that are read where the graph wrote them
        self.returned = returned  # indices of lent results that the caller receives
        self.moving = moving  # indices of inputs that are new in each call
        self.tables = tables  # the sizes of the tables that its operations make
        self.backward = backward  # whether it is a part of a backward program
        self.auto = auto
        self.needs = needs  # the estimated bytes of the graph's memory
        self.keeps = keeps  # those of its results, which stay allocated, in programs with a separate backward program
        self.reads = reads  # the bytes of its inputs with symbolic sizes, in the call for which these were estimated
        self.captures = 0
        self.held = 0  # the number of calls that found results of the last launch still in use
        self.missing = 0  # the number of calls whose inputs other graphs should have lent, and did not
        self._log = current_log()  # of the program that contains the stretch
        self.failed: str | None = None  # the reason if capturing failed
        self._sizes: dict[Hashable, _Sized] = {}
        self._full = False

    @property
    def settings(self) -> dict[str, Any]:
        """What the stretch does with its inputs and results, as data of JSON's types. `loaded_region` reads it."""
        found = {name: [int(i) for i in sorted(getattr(self, name))] for name in _INDICES}
        numbers = {name: int(getattr(self, name)) for name in _BYTES}
        return {**found, **numbers, "backward": self.backward, "auto": self.auto}

    @property
    def report(self) -> str:
        """A line about the state of the stretch, for `thunder.explain`."""
        if self.failed is not None:
            return f"{self.name} runs uncaptured: {self.failed}"
        states = [*self._sizes.values()]
        graphs = sum(found.launch is not None for found in states)
        refused = [found.refused for found in states if found.refused]
        if not graphs:
            if refused:
                return f"{self.name} runs uncaptured: {refused[-1]}"
            if self._full:
                return f"{self.name} runs uncaptured: its first {GRAPHS} sizes did not come again"
            when = "if the GPU waits for the host" if self.auto else "at the second call"
            return f"{self.name} is captured {when}"
        more = f", and calls of other sizes than its first {GRAPHS} run uncaptured" if self._full else ""
        if refused:
            more += f"; calls of other sizes run uncaptured: {refused[-1]}"
        if self.held:
            more += f"; {self.held} calls ran uncaptured because results of an earlier call were still in use"
        if self.missing:
            more += f"; {self.missing} calls ran uncaptured because a graph that computes their inputs was not launched"
        return f"{self.name} is captured, {graphs} time{'s' if graphs > 1 else ''}{more}"

    def __call__(self, *inputs: Any) -> Any:
        if self.failed is not None or is_capturing():  # user code is capturing a graph
            return self.fn(*inputs)
        if function_transform_active():  # a launch computes no tangents
            return self.fn(*inputs)
        found = self._of(inputs)
        if found is None or found.refused is not None:
            return self.fn(*inputs)
        try:
            places: list[Any] = [x if type(x) is int else x.data_ptr() for x in inputs]
        except RuntimeError:  # e.g. batched or sparse gradients, which have no address
            return self.fn(*inputs)
        for i in self.strides:  # such a change counts as a changed address
            x = inputs[i]
            places[i] = places[i], x.stride(), x.is_conj(), x.is_neg()
        with self.memory.locked() as owned:
            if not owned:  # another thread is capturing
                return self.fn(*inputs)
            launch = self._launch(found, inputs, places)
            if launch is not None:
                self.memory.follow(launch.device)
                watch = Stopwatch(launch.device) if found.uncaptured is not None else None
                results = launch(inputs)
                if watch is not None:
                    watch.stop()
                    self._compare(found, watch)
                if self.written:
                    increment_versions([inputs[i] for i in self.written])
                return results
        return self._uncaptured(found, inputs)

    def _of(self, inputs: Sequence[Any]) -> _Sized | None:
        """Return the state for calls with the sizes of `inputs`, or None if there are too many combinations."""
        key = tuple([x if type(x := inputs[i]) is int else x.shape for i in self.sizes])
        found = self._sizes.get(key)
        if found is None:
            self._full = len(self._sizes) >= GRAPHS
            if not self._full:
                scale = self._bytes_of_sized(inputs) / self.reads if self.reads else 1.0
                found = self._sizes[key] = _Sized(self.moving, scale)
        elif self.auto and found.refused is not None and found.left > 0:
            found.left -= 1
            if found.left <= 0:
                found = self._sizes[key] = _Sized(self.moving, found.scale, found.refusals + 1)
        return found

    def _bytes_of_sized(self, inputs: Sequence[Any]) -> int:
        return sum(x.nbytes for i in self.sizes if isinstance(x := inputs[i], torch.Tensor))

    def _launch(self, found: _Sized, inputs: Sequence[Any], places: list[Any]) -> Launch | None:
        """Return the launch for a call, captured if necessary, or None if the call runs uncaptured."""
        seen = found.seen
        if seen is None:
            found.seen = places
            return None
        moved = set() if seen == places else {i for i, (old, new) in enumerate(zip(seen, places)) if old != new}
        moved -= found.moving
        if found.launch is not None:
            if not all(self.memory.lends(_address(places[i])) for i in moved & found.fixed):
                found.missing += 1  # e.g. saved values of a forward program that ran uncaptured
                self.missing += 1
                if found.missing < _PATIENCE:
                    return None
                self._drop(found)
                found.fixed = set()
            found.missing = 0
            if found.launch is not None and not found.launch.is_free():
                self.held += 1
                found.in_use += 1
                if self.returned and found.in_use == _IN_USE:
                    self._drop(found)
                return None
            if found.launch is not None and not moved:
                if not self.memory.is_overwritten_by(found.launch):
                    return found.launch
                found.conflicts += 1
                if found.conflicts > _CONFLICTS:
                    self.held += 1
                    return None
        found.seen = places
        lent = {i for i in moved | found.moving if self.memory.lends(_address(places[i]))}
        if found.launch is None and lent & moved:
            found.alternating += 1
            if found.alternating <= _MOVES:
                found.moving -= lent
                return None  # from now on they have constant addresses
            lent = set()  # several graphs lend them in turns: copy them
        found.moving -= lent
        moved -= lent
        if found.launch is not None:
            moved, found.once = moved & found.once, found.once | moved  # e.g. weights that were replaced once
            refused = self._limit(found, inputs, moved) if self.auto and moved else None
            if refused is not None:
                self._drop(found)
                self._refuse(found, refused)
                return None
        elif self.auto and not self._is_worth_it(found, inputs, moved):
            found.moving |= moved - self.written
            return None
        return found.launch if self._capture(found, inputs, places, moved) else None

    def _capture(self, found: _Sized, inputs: Sequence[Any], places: list[Any], moved: set[int]) -> bool:
        """Capture a graph, unless another thread is capturing. `moved` are inputs to copy from now on."""
        self._drop(found)
        if not capture_lock.acquire(blocking=False):
            return False
        try:
            found.moving |= moved - self.written
            found.moves += 1
            if found.moves > _MOVES:  # inputs change in each call: treat all as moving
                if self.written:
                    self._refuse(found, "the memory that it writes to moves")
                    return False
                found.moving = {i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
            self.memory.is_capturing = True
            try:
                if self.needs * found.scale >= _RELEASED:  # the memory of earlier calls, which the graph does not use
                    torch.cuda.empty_cache()
                static = {i: inputs[i].detach().clone() for i in found.moving}
                given = [static.get(i, x) for i, x in enumerate(inputs)]
                pools = self.memory.backward if self.backward else self.memory.forward
                lent = [k for k in self.lent if found.in_use < _IN_USE or k not in self.returned]
                graph = capture(self.fn, given, pools, self.tables)
                found.launch = Launch(graph, given, lent, [*static], self.returned, pools)
            except Exception as error:
                self._fail(found, error)
                return False
            finally:
                self.memory.is_capturing = False
            found.fixed = {i for i, x in enumerate(places) if i not in static and self.memory.lends(_address(x))}
            self.memory.add(found.launch)
            found.launch.static = by_kind(static, dict(enumerate(inputs)))
        finally:
            capture_lock.release()
        self.captures += 1
        self._log.add("graph", f"{self.name} was captured", details={"captures": self.captures})
        return True

    def _drop(self, found: _Sized) -> None:
        """Drop a graph, whose last launch may not have ended."""
        if found.launch is not None:
            self.memory.wait_for_streams(found.launch.device)
            found.launch = None

    def _fail(self, found: _Sized, error: Exception) -> None:
        """Count a failed capture, which has run and changed nothing."""
        found.failures += 1
        if found.failures < _FAILURES:
            return
        if self.captures or isinstance(error, torch.OutOfMemoryError):
            self._refuse(found, _summary(error))
        else:
            self.failed = _summary(error)
            self._sizes.clear()
            self._log.add("graph", f"{self.name} runs uncaptured: {self.failed}")
        if not self.auto:
            warnings.warn(f"CUDA graphs: {self.name} is not captured ({_summary(error)})", stacklevel=5)

    def _refuse(self, found: _Sized, why: str) -> None:
        found.refused = why
        self._log.add("graph", f"{self.name} runs uncaptured: {why}")

    # -- the choice of `auto` -----------------------------------------------------------------------------------------
    def _uncaptured(self, found: _Sized, inputs: Sequence[Any]) -> Any:
        """Run the stretch without a graph, and measure it if a choice depends on it."""
        device = _device_of(inputs) if self.auto and found.launch is None and found.uncaptured is None else None
        if device is None or len(found.watches) > _MEASURED:
            return self.fn(*inputs)
        watch = Stopwatch(device)
        results = self.fn(*inputs)
        watch.stop()
        found.watches.append(watch)
        return results

    def _is_worth_it(self, found: _Sized, inputs: Sequence[Any], moved: set[int]) -> bool:
        """Check whether to capture a stretch. If the answer is final, `found.refused` has the reason."""
        if found.uncaptured is None:
            warm = found.watches[1:]  # the first call also loads libraries and allocates
            if len(warm) < _MEASURED:
                return False
            times = [watch.read() for watch in warm]
            if None in times:
                return False
            host, gpu = (min(t[i] for t in times if t is not None) for i in range(2))
            found.uncaptured, found.watches = (host, gpu), []
            found.idle = all(watch.idle for watch in warm)
        host, gpu = found.uncaptured
        refused: str | None = None
        if host < _LEAST_SHARE * gpu and not found.idle:
            refused = f"the host needs {host:.2f} ms to launch what takes the GPU {gpu:.2f} ms"
        elif self._copies_too_much(found, inputs, moved) and found.waited + 1 < _PATIENCE:
            found.waited += 1
            return False
        else:
            refused = self._limit(found, inputs, moved)
        if refused is not None:
            self._refuse(found, refused)
        return refused is None

    def _limit(self, found: _Sized, inputs: Sequence[Any], moved: set[int]) -> str | None:
        """Return the limit that a graph would exceed, or None."""
        copied = self._copied(found, inputs, moved)
        if self._copies_too_much(found, inputs, moved):
            return f"{copied / 2**20:.0f} MiB of inputs at changing addresses would be copied"
        device = _device_of(inputs)
        kept = self.memory.kept(device) + self.keeps * found.scale + copied
        if self.keeps and kept > (most := _KEPT_SHARE * _whole_memory(device)):
            return f"{kept / 2**20:.0f} MiB would stay allocated for results of graphs, and {most / 2**20:.0f} MiB may"
        if (needed := self.needs * found.scale + copied) > (free := _free_memory(device)):
            return f"it needs about {needed / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are free"
        return None

    def _copied(self, found: _Sized, inputs: Sequence[Any], moved: set[int]) -> int:
        return sum(inputs[i].nbytes for i in found.moving | moved if isinstance(inputs[i], torch.Tensor))

    def _copies_too_much(self, found: _Sized, inputs: Sequence[Any], moved: set[int]) -> bool:
        most = max(_MOST_COPIED, _COPIED_SHARE * self.needs * found.scale)
        return self._copied(found, inputs, moved) > most

    def _compare(self, found: _Sized, watch: Stopwatch) -> None:
        """Keep the graph if it is faster than its operations were."""
        found.watches.append(watch)
        times = [t[1] for w in found.watches if (t := w.read()) is not None]
        if len(times) < _MEASURED:
            return
        assert found.uncaptured is not None
        before, now = found.uncaptured[1], min(times)
        found.watches, found.uncaptured = [], None
        if now > before * (_SLOWER if found.idle else 1):
            self._drop(found)
            self._refuse(found, f"the graph takes {now:.2f} ms, and its operations take {before:.2f} ms")


def _address(place: Any) -> int:
    """Return the address of an input without its strides."""
    return place[0] if isinstance(place, tuple) else place  # type: ignore[no-any-return]


def _device_of(inputs: Sequence[Any]) -> torch.device | None:
    return next((x.device for x in inputs if isinstance(x, torch.Tensor)), None)


def _free_memory(device: torch.device | None) -> int:
    """Return the bytes that a graph can allocate: what is free, and what torch's allocator can give back."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _whole_memory(device: torch.device | None) -> int:
    """Return the bytes of a GPU's memory."""
    return torch.cuda.mem_get_info(device)[1]


def _summary(error: BaseException) -> str:
    """Return the first error of a chain in one line. A failed capture raises further errors after it."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def loaded_region(program: Callable[..., Any], settings: Mapping[str, Any], memory: Memory) -> CapturedRegion:
    """Return the stretch of a saved program. It is captured anew."""
    indices: dict[str, Any] = {name: tuple([int(i) for i in settings[name]]) for name in _INDICES}
    numbers: dict[str, Any] = {name: int(settings[name]) for name in _BYTES}
    run = torch.no_grad()(no_autocast(program))
    return CapturedRegion(
        program.__name__,
        run,
        memory,
        **indices,
        **numbers,
        backward=settings["backward"] is True,
        auto=settings["auto"] is True,
    )
