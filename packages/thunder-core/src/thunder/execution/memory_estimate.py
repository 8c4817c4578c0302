# SPDX-License-Identifier: Apache-2.0
"""Estimate the memory that a program uses at each of its lines, without running it.

The lines are run on fake tensors, which have sizes, strides and a device but no data. Views therefore share the memory
of their base, in-place writes allocate nothing, and temporary allocations inside torch's functions are counted. Some
operations cannot run on fake tensors, e.g. a kernel of another executor or a hook in user code. Such an operation is
assumed to allocate its results and the workspace that its executor declares (`register_operator(…, workspace=)`).
Internal allocations of libraries (workspaces of cuBLAS and cuDNN) are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.nbytes import in_bytes, known_shape
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies, proxies_in
from thunder.core.trace import Trace
from thunder.execution.claim import is_structural
from thunder.execution.memory_picture import write_memory
from thunder.passes.deletion import delete_last_used
from thunder.torch.private import FakeTensorMode, TorchDispatchMode

__all__ = ["MemoryLine", "MemoryReport", "MemoryTracker", "estimate_memory", "predicted_peaks"]


class MemoryLine(NamedTuple):
    """A line of a program: its text, the live bytes after the line, and the peak of live bytes while the line ran."""

    text: str
    live: int
    peak: int


class MemoryReport:
    """The memory of one or several consecutive programs: `lines`, `inputs` (bytes), `live` (bytes at the end)."""

    def __init__(
        self,
        inputs: int,
        sections: Sequence[tuple[str, Sequence[MemoryLine]]],
        at_peak: Sequence[tuple[str, int]] = (),
    ):
        self.inputs = inputs
        #: The values that are alive at the peak, with their bytes, largest first. Views have no bytes of their own.
        self.at_peak = list(at_peak)
        self.sections = {name: list(lines) for name, lines in sections}

    @property
    def lines(self) -> list[MemoryLine]:
        """All lines in execution order."""
        return [line for lines in self.sections.values() for line in lines]

    @property
    def peak(self) -> int:
        """The maximum of live bytes at any time, including inputs."""
        return max([self.inputs, *[line.peak for line in self.lines]])

    @property
    def live(self) -> int:
        """The live bytes at the end, including inputs."""
        return self.lines[-1].live if self.lines else self.inputs

    def __str__(self) -> str:
        out = [f"peak {in_bytes(self.peak)}, of which inputs {in_bytes(self.inputs)}; {in_bytes(self.live)} at the end"]
        for name, lines in self.sections.items():
            out.append(f"{name}: peak {in_bytes(max([line.peak for line in lines], default=0))}")
            out.append(f"  {'live':>10}  {'peak':>10}  line")
            for line in lines:
                mark = "  <- peak" if line.peak == self.peak else ""
                out.append(f"  {in_bytes(line.live):>10}  {in_bytes(line.peak):>10}  {line.text}{mark}")
        return "\n".join(out)

    __repr__ = __str__

    def picture(self, path: str | Path) -> None:
        """Draw the memory of each line, and what is alive at the peak, to a file that ends in `.png`, `.svg` or `.pdf`.

        It needs matplotlib: `pip install 'thunder-core[pictures]'`.
        """
        write_memory(self, path)


class MemoryTracker(TorchDispatchMode):  # type: ignore[misc]
    """Counts the storages of tensors that operations in its context create, for real and for fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(out)
        self.peak = max(self.peak, self.live())
        return out

    def add(self, x: Any) -> None:
        """Count the storages of the tensors in `x`."""
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()
            key = storage._cdata
            known = self._known.get(key)
            if known is None or known[0].expired():
                self._known[key] = StorageWeakRef(storage), _allocated(x, storage.nbytes())
        elif isinstance(x, (tuple, list)):
            for item in x:
                self.add(item)

    def live(self) -> int:
        """Return the bytes that are live now."""
        for key in [key for key, (ref, _) in self._known.items() if ref.expired()]:
            del self._known[key]
        return sum(size for _, size in self._known.values())


def _allocated(x: torch.Tensor, n: int) -> int:
    """Return the size of an allocation for `n` bytes: CUDA's allocator rounds up to 512."""
    return -(-n // 512) * 512 if x.device.type == "cuda" else n


class Run:
    """Runs consecutive programs on fake tensors. Later programs read inputs from earlier programs.

    Inputs stay live, because the caller holds them.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.tracker = MemoryTracker()
        self.values: dict[str, Any] = {}
        self._held: list[Any] = []
        self._held_names: list[str] = []  # of values that stay alive after their `del`
        self._highest = -1
        self._names_at_peak: list[str] = []
        self._storages: dict[str, tuple[int, int]] = {}  # of each tensor: the storage and its bytes

    def take(self, inputs: Iterable[Proxy]) -> int:
        """Create the missing inputs and return the live bytes."""
        with self.mode, self.tracker:
            for p in inputs:
                if p.name not in self.values:
                    self._store(p.name, _made(p))
                    self._held.append(self.values[p.name])
                    self._held_names.append(p.name)
        return self.tracker.live()

    def run(self, trace: Trace) -> list[MemoryLine]:
        """Run the lines of a program whose inputs exist. Store its results and drop all other values."""
        lines: list[MemoryLine] = []
        pending: tuple[str, int] | None = None
        for bsym in trace.bound_symbols:
            if bsym.sym is prims.python_del:
                for name in bsym.arg_names:
                    self.values.pop(name, None)
                continue
            if pending is not None:
                lines.append(MemoryLine(pending[0], self.tracker.live(), pending[1]))
                pending = None
            if bsym.sym is prims.hand_over:
                self._hold(bsym.arg_names)
            if not is_structural(bsym):
                self.tracker.peak = self.tracker.live()
                self._step(bsym)
                pending = str(bsym).splitlines()[0], max(self.tracker.peak, self.tracker.live())
                if pending[1] > self._highest:
                    self._highest, self._names_at_peak = pending[1], [*self._held_names, *self.values]
        if pending is not None:
            lines.append(MemoryLine(pending[0], self.tracker.live(), pending[1]))
        return lines

    @property
    def at_peak(self) -> list[tuple[str, int]]:
        """The values that are alive at the peak, with the bytes that they allocate. Each storage counts once."""
        known = {name: self._storages[name] for name in self._names_at_peak if name in self._storages}
        found = {storage: (name, size) for name, (storage, size) in reversed(known.items())}
        return sorted(found.values(), key=lambda item: -item[1])

    def _hold(self, names: Iterable[str]) -> None:
        """Keep values alive, as a caller does."""
        for name in names:
            self._held.append(self.values[name])
            self._held_names.append(name)

    def _store(self, name: str, x: Any) -> None:
        self.values[name] = x
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()
            self._storages[name] = storage._cdata, _allocated(x, storage.nbytes())

    def keep(self, names: Iterable[str], held: Iterable[str] = ()) -> None:
        """Drop all values except these. Values in `held` stay live like inputs."""
        self._hold(held)
        wanted = set(names)
        self.values = {name: value for name, value in self.values.items() if name in wanted}

    def _step(self, bsym: BoundSymbol) -> None:
        def value(p: Proxy) -> Any:
            return self.values.get(p.name, p)

        args, kwargs = map_proxies(bsym.args, value), map_proxies(bsym.kwargs, value)
        with self.mode, self.tracker, torch.no_grad():
            try:
                if not _runs_on_fakes(bsym):
                    raise NotImplementedError
                assert bsym.sym.fn is not None
                result = bsym.sym.fn(*args, **kwargs)
                self._bind(bsym.output, result)
            except Exception:  # the operation has no fake kernel, so allocate its results
                for p in proxies_in(bsym.output):
                    if p.name not in self.values:
                        self._store(p.name, _made(p))
                if bsym.sym.workspace is not None:
                    needed = bsym.sym.workspace(*bsym.args, **bsym.kwargs)
                    self.tracker.peak = max(self.tracker.peak, self.tracker.live() + needed)

    def _bind(self, output: Any, result: Any) -> None:
        if isinstance(output, Proxy):
            self._store(output.name, result)
        elif isinstance(output, dict):
            for p, x in zip(output.values(), result.values()):
                self._bind(p, x)
        elif isinstance(output, (tuple, list)):
            for p, x in zip(output, result, strict=True):
                self._bind(p, x)


_EFFECTS = frozenset({OpTags.SIDE_EFFECT, OpTags.COLLECTIVE})


def _runs_on_fakes(bsym: BoundSymbol) -> bool:
    """Check whether an operation belongs to torch.

    Other kernels would read data pointers, which fake tensors do not have.
    """
    sym = bsym.sym
    if sym.is_fusion or sym.fn is None or (sym.executor is not None and not sym.executor.is_fallback):
        return False
    if sym.name == "wait" and OpTags.COLLECTIVE in sym.tags:
        return True  # it returns its argument
    whole = (bsym, *bsym.subsymbols)
    return not any(not _EFFECTS.isdisjoint(op.sym.tags) or op.sym is prims.exchange_rng_state for op in whole)


def _made(p: Proxy) -> Any:
    if isinstance(p, TensorProxy):
        return torch.empty(known_shape(p), dtype=to_torch_dtype(p.dtype), device=to_torch_device(p.device))
    return p.value if isinstance(p, NumberProxy) else p


def estimate_memory(trace: Trace) -> MemoryReport:
    """Estimate the memory of a claimed program that contains `del`s."""
    run = Run()
    inputs = run.take(trace.args)
    lines = run.run(trace)
    return MemoryReport(inputs, [(trace.name, lines)], run.at_peak)


def predicted_peaks(trace: Trace) -> list[int]:
    """Return the peak of live bytes at each operation of a claimed program without `del`s, 0 for its structure."""
    run, ended = Run(), delete_last_used(trace)
    run.take(ended.args)
    lines = [*zip([op for op in ended.bound_symbols if not is_structural(op)], run.run(ended))][::-1]
    found = []
    for op in trace.bound_symbols:
        # Numbers that nothing reads have no line.
        is_next = bool(lines) and lines[-1][0].sym is op.sym and lines[-1][0].arg_names == op.arg_names
        found.append(lines.pop()[1].peak if is_next else 0)
    return found
