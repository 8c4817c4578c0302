# SPDX-License-Identifier: Apache-2.0
"""The options of `thunder.jit` and their validation."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from thunder.core.environment import asks_for

if TYPE_CHECKING:
    from thunder.core.events import EventLog
    from thunder.extend import Executor
    from thunder.extend.measuring import Measurements

__all__ = [
    "BUCKET_BYTES", "CACHE_OPTIONS", "CUDA_GRAPHS", "MAX_SPECIALIZATIONS", "SHARP_EDGES", "Bucketing", "CUDAGraphs",
    "CacheOption", "KeptParameters", "Measured", "Options", "Remat", "SharpEdges",
]  # fmt: skip

CacheOption = Literal["constant values", "same input", "symbolic values", "no caching"]
SharpEdges = Literal["allow", "warn", "error"]
CUDAGraphs = Literal["auto", "always", "never"]
Remat = Literal["auto", "none", "all"]
Bucketing = Literal["never", "exact", "any"]
KeptParameters = int | Literal["auto"]
Measured = bool | Literal["first call"]

# With this many specializations, a call that no specialization accepts runs eagerly.
MAX_SPECIALIZATIONS = 16

# The bytes of merged collectives, as in DistributedDataParallel.
BUCKET_BYTES = 25 << 20

CACHE_OPTIONS: tuple[CacheOption, ...] = get_args(CacheOption)
SHARP_EDGES: tuple[SharpEdges, ...] = get_args(SharpEdges)
CUDA_GRAPHS: tuple[CUDAGraphs, ...] = get_args(CUDAGraphs)
REMAT: tuple[Remat, ...] = get_args(Remat)
BUCKETING: tuple[Bucketing, ...] = get_args(Bucketing)


class Options:
    """The options of one jitted callable."""

    def __init__(
        self,
        *,
        executors: Sequence[Executor | str] | None = None,
        cache: str = "constant values",
        sharp_edges: str = "warn",
        remat: str = "auto",
        cuda_graphs: str = "auto",
        max_programs: int = MAX_SPECIALIZATIONS,
        max_compile_time: float | None = None,
        save: bool | str | os.PathLike[str] | None = None,
        measured: Any = False,
        check_ranks: bool | None = None,
        bucketing: str = "never",
        bucket_bytes: int = BUCKET_BYTES,
        kept_parameters: KeptParameters = 0,
        overlap_memory: int | None = None,
        exact: bool = False,
        own_name: bool = False,
        extra: dict[str, Any] | None = None,
    ):
        self.cache = _one_of("cache", cache, CACHE_OPTIONS)
        self.sharp_edges = _one_of("sharp_edges", sharp_edges, SHARP_EDGES)
        self.remat = _one_of("remat", remat, REMAT)
        self.cuda_graphs = _one_of("cuda_graphs", cuda_graphs, CUDA_GRAPHS)
        self.max_programs = _limit("max_programs", max_programs, type(max_programs) is int and max_programs >= 1)
        if not isinstance(measured, bool) and measured != "first call":
            raise ValueError(
                f"thunder.jit(…, measured={measured!r}): measured is False, True (use what was measured earlier, and "
                'measure the rest for later processes) or "first call" (measure before the first use)'
            )
        self.measured: Measured = measured
        is_time = max_compile_time is None or (isinstance(max_compile_time, (int, float)) and max_compile_time > 0)
        self.max_compile_time = _limit("max_compile_time", max_compile_time, is_time)
        if check_ranks not in (None, True, False):
            raise ValueError(f"thunder.jit(…, check_ranks={check_ranks!r}): check_ranks is True, False or None")
        self.check_ranks = asks_for("THUNDER_CHECK_RANKS") if check_ranks is None else check_ranks
        self.bucketing = _one_of("bucketing", bucketing, BUCKETING)
        self.bucket_bytes = _limit("bucket_bytes", bucket_bytes, type(bucket_bytes) is int and bucket_bytes >= 1)
        good = kept_parameters == "auto" or (type(kept_parameters) is int and kept_parameters >= 0)
        self.kept_parameters: KeptParameters = _limit("kept_parameters", kept_parameters, good)
        is_size = overlap_memory is None or (type(overlap_memory) is int and overlap_memory >= 0)
        self.overlap_memory = _limit("overlap_memory", overlap_memory, is_size)
        if save is not None and type(save) is not bool and not isinstance(save, (str, os.PathLike)):
            raise TypeError(f"thunder.jit(…, save={save!r}): save is True, False, None or the path of a directory")
        self.save = save if save is None or type(save) is bool else os.fspath(save)
        self.executors = None if executors is None else _named_executors(executors)
        self.exact = exact
        self.own_name = own_name
        self.extra = dict(extra or {})

    def resolved_executors(self) -> Sequence[Executor]:
        """Return the executors, in the order in which they claim operations."""
        if self.exact:
            return self.executors or ()  # type: ignore[return-value]
        # Imported by name at run time: calls of cached programs do not load executors.
        return importlib.import_module("thunder.extend").resolve_executors(self.executors)  # type: ignore[no-any-return]

    def measurements(self, log: EventLog) -> Measurements | None:
        """Return the choices that measurements decide; None if rules decide them."""
        if self.measured is False:
            return None
        # Imported by name at run time, for the same reason.
        measuring = importlib.import_module("thunder.extend.measuring")
        return measuring.Measurements("later" if self.measured is True else "first call", log)  # type: ignore[no-any-return]


def _named_executors(executors: Any) -> tuple[Executor | str, ...]:
    """Return the executors that a user named. They are validated, but not looked up."""
    if isinstance(executors, (list, tuple)) and all(isinstance(x, str) for x in executors):
        return tuple(executors)
    # Imported by name at run time, for the same reason. There is an executor object, so the module is loaded.
    return importlib.import_module("thunder.extend").named_executors(executors)  # type: ignore[no-any-return]


def _limit(option: str, value: Any, good: bool) -> Any:
    if not good:
        wanted = {
            "max_programs": "an int of at least 1",
            "max_compile_time": "None or a positive number of seconds",
            "bucket_bytes": "an int of at least 1",
            "kept_parameters": 'a number of bytes or "auto"',
            "overlap_memory": "None or a number of bytes",
        }
        raise ValueError(f"thunder.jit(…, {option}={value!r}): {option} is {wanted[option]}")
    return value


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    found = str(value).lower()
    if found not in known:
        raise ValueError(f"thunder.jit(…, {option}={value!r}): {option} is one of {', '.join(map(repr, known))}")
    return found


# -- options of torch.compile -----------------------------------------------------------------------------------------
_MODES = {
    "reduce-overhead": 'cuda_graphs="always" launches programs as CUDA graphs',
    "max-autotune": 'measured="first call" lets measurements choose between kernels',
    "max-autotune-no-cudagraphs": 'measured="first call" lets measurements choose between kernels',
}
_BACKENDS = {
    "inductor": 'executors=["torch_compile"] compiles regions with Inductor',
    "eager": 'executors=["torch"] runs PyTorch\'s own kernels',
    "aot_eager": 'executors=["torch"] runs PyTorch\'s own kernels',
    "cudagraphs": 'cuda_graphs="always" launches programs as CUDA graphs',
}


def translate_torch_compile(options: dict[str, Any], cache: str, sharp_edges: str) -> tuple[str, str]:
    """Remove options of `torch.compile` from `options`, and return the `cache` and `sharp_edges` that they stand for.

    Raise a TypeError for an option without a counterpart that names the option of thunder.
    """
    fullgraph, dynamic = options.pop("fullgraph", None), options.pop("dynamic", None)
    for name, value in (("fullgraph", fullgraph), ("dynamic", dynamic)):
        if value not in (None, True, False):
            raise TypeError(f"thunder.jit(…, {name}={value!r}): {name} is True, False or None")
    mode, backend = options.pop("mode", None), options.pop("backend", None)
    for name, nothing, way in (
        ("options", (None, {}), "they are options of Inductor; see executors= and transforms="),
        ("disable", (None, False), "THUNDER_DISABLE=1 runs everything in eager mode"),
    ):
        if (value := options.pop(name, None)) not in nothing:
            raise TypeError(f"thunder.jit(…, {name}={value!r}) is not supported: {way}")
    if mode not in (None, "default"):
        raise TypeError(f"thunder.jit has no mode {mode!r}: {_MODES.get(mode, 'see executors= and transforms=')}")
    if backend not in (None, "thunder"):
        way = _BACKENDS.get(backend, "executors=[…] selects executors") if isinstance(backend, str) else (
            "thunder.jit is a compiler itself; executors=[…] selects what runs the operations"
        )  # fmt: skip
        raise TypeError(f"thunder.jit has no backend {backend!r}: {way}")
    if dynamic is True:
        cache = _agreed("dynamic=True", "cache", cache, "constant values", "symbolic values")
    if dynamic is False and cache == "symbolic values":
        raise TypeError('thunder.jit(…, dynamic=False, cache="symbolic values"): the two options contradict each other')
    if fullgraph is True:
        sharp_edges = _agreed("fullgraph=True", "sharp_edges", sharp_edges, "warn", "error")
    return cache, sharp_edges


def _agreed(given: str, option: str, value: str, default: str, wanted: str) -> str:
    """Return `wanted`, unless the user has set the option to a third value."""
    if value not in (default, wanted):
        raise TypeError(f"thunder.jit(…, {given}, {option}={value!r}): {given} stands for {option}={wanted!r}")
    return wanted
