# SPDX-License-Identifier: Apache-2.0
"""The target of a test run: an executor, with the devices, dtypes, tolerances and known failures of its profile."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

import thunder
from thunder.core.dtypes import all_dtypes, to_torch_dtype
from thunder.executors import PYTHON, TORCH, TORCH_COMPILE
from thunder.extend import Executor, get_executor
from thunder.plugins import ConformanceProfile, conformance_profile, load_named, manager
from thunder.plugins.sources import hash_of_sources, package_of
from thunder.tests.comparison import Tolerance, default_tolerance
from thunder.tests.known_failures import KnownFailure, known_failures_of
from thunder.tests.opinfo import OpInfo
from thunder.tests.opinfos import all_opinfos

__all__ = [
    "FULL_DTYPES",
    "QUICK_DTYPES",
    "WHOLE",
    "BadTarget",
    "Target",
    "device_is_there",
    "operators_without_samples",
    "place_of",
    "sources_of",
    "targets_of",
]

# Not a family of operators, but the tests of the executor as a whole.
WHOLE = "the executor"

# The dtypes of the quick tier: one dtype of each kind, and one with coarse rounding.
QUICK_DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
# Packed formats have several numbers per element and no arithmetic. Complex bfloat16 has no arithmetic either.
FULL_DTYPES = tuple(
    getattr(torch, d.name)
    for d in all_dtypes
    if hasattr(torch, d.name) and not d.name.startswith(("float4", "bcomplex"))
)


class BadTarget(ValueError):
    """A target that cannot be tested. The message contains the reason."""


@dataclass(frozen=True, eq=False)
class Target:
    """An executor under test.

    `devices` and `dtypes` are those of this run. `every_dtype` are all dtypes of the profile, which known failures may
    name. `opinfos` are the operators of thunder, followed by the operators of the plugin. `sources` names the
    distribution that the executor belongs to and the hash of its sources; None for an executor of no distribution.
    `not_tested` says what this run leaves out.
    """

    executor: Executor
    profile: ConformanceProfile
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    every_dtype: tuple[torch.dtype, ...]
    full: bool
    opinfos: tuple[OpInfo, ...]
    own_operators: frozenset[str]
    known_failures: tuple[KnownFailure, ...]
    sources: str | None = None
    not_tested: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The executor's name."""
        return self.executor.name

    @property
    def executors(self) -> tuple[Executor, ...]:
        """The list of executors to compile with."""
        return (self.executor,)

    @property
    def takes_everything(self) -> bool:
        """Whether it is torch's executor, which can run every operation."""
        return self.name == "torch"

    def tolerance(self, info: OpInfo, dtype: torch.dtype) -> Tolerance:
        """Return the tolerance for results of a dtype."""
        name = str(dtype).removeprefix("torch.")
        return self.profile.tolerance(info.name, name) or default_tolerance(dtype)


def executors_named(name: str) -> list[Executor]:
    """Return the executor of a name, or the executors of the plugin of that name. Import no other plugin."""
    try:
        return [get_executor(name)]
    except ValueError:
        brought = [get_executor(info.name) for info in load_named(name).executors]
        if not brought:
            raise
        return brought


def targets_of(
    names: Iterable[str], *, devices: Sequence[str] = (), dtypes: Sequence[str] = (), full: bool = False,
    families: Sequence[str] = (),
) -> list[Target]:  # fmt: skip
    """Return the targets for the options of a run."""
    return [
        target_of(executor, devices=devices, dtypes=dtypes, full=full, families=families)
        for name in names
        for executor in executors_named(name)
    ]


def target_of(
    executor: Executor, *, devices: Sequence[str] = (), dtypes: Sequence[str] = (), full: bool = False,
    families: Sequence[str] = (),
) -> Target:  # fmt: skip
    """Return an executor as a target, from its plugin's profile and the options of a run.

    `families` selects operators.
    """
    profile = conformance_profile(executor.name) or ConformanceProfile()
    own = tuple(profile.opinfos()) if profile.opinfos is not None else ()
    every = _dtypes_named(profile.dtypes) if profile.dtypes is not None else FULL_DTYPES
    chosen = _dtypes_named(dtypes) if dtypes else FULL_DTYPES if full else QUICK_DTYPES
    there = _devices(executor, profile, devices)
    infos = (*(info for info in all_opinfos() if info not in own), *own)
    return Target(
        executor=executor,
        profile=profile,
        devices=there,
        dtypes=tuple(d for d in chosen if d in every),
        every_dtype=every,
        full=full,
        opinfos=tuple(info for info in infos if not families or info.family in families),
        own_operators=frozenset(info.name for info in own),
        known_failures=known_failures_of(profile.known_failures, there),
        sources=sources_of(executor),
        not_tested=tuple(_left_out(profile, there, chosen, every, full=full, families=families)),
    )


def _left_out(
    profile: ConformanceProfile, devices: Sequence[str], chosen: Sequence[torch.dtype], every: Sequence[torch.dtype], *,
    full: bool, families: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield what the options of a run, or this machine, leave out of an executor's profile."""
    kinds = {device.partition(":")[0] for device in devices}
    for device in profile.devices:
        if device.partition(":")[0] not in kinds:
            yield f"{device} ({'not selected' if device_is_there(device) else 'this machine has none'})"
    dtypes = [str(d).removeprefix("torch.") for d in every if d not in chosen]
    if dtypes:
        yield f"{', '.join(dtypes)} (--thunder-full tests every dtype)"
    if not full:
        yield "second-order gradients and finite differences (--thunder-full)"
    if families:
        yield f"other families than {', '.join(families)}"


def place_of(target: Target, info: OpInfo) -> str | None:
    """Return the file and line of the function with which the executor runs an operator.

    None if the executor registered nothing for the operator itself, e.g. if it runs only a part of its decomposition.
    """
    found = target.executor.implmap.get(info.symbol.id)
    operator = info.symbol if info.symbol.executor is target.executor else found.op if found is not None else None
    ways = [] if found is None else [found.execution_transform, found.grad_transform, found.checker]
    for function in (getattr(operator, "fn", None), *ways):
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    return None


def sources_of(executor: Executor) -> str | None:
    """Return the distribution that an executor belongs to, with the hash of its sources."""
    owner = manager().owner_of(executor.name)
    if owner is not None:
        distribution, module = owner.source, owner.entry_point.module
    elif executor in (TORCH, PYTHON, TORCH_COMPILE):
        distribution, module = f"thunder-core {thunder.__version__}", "thunder"
    else:
        return None
    package = package_of(module)
    return None if package is None else f"{distribution}, {hash_of_sources(package)}"


def operators_without_samples(target: Target) -> list[str]:
    """Return the operators of the executor that no OpInfo tests.

    If an operator implements one of thunder's operations with the same arguments, the samples of that operation test
    it.
    """
    if target.name in ("torch", "python"):
        return []
    tested = {id(info.symbol) for info in target.opinfos}
    tested |= {id(found.op) for found in target.executor.implmap.values() if found.op is not None}
    return [name for name, sym in target.executor.opmap.items() if id(sym) not in tested]


def _dtypes_named(names: Iterable[str]) -> tuple[torch.dtype, ...]:
    known = {str(d).removeprefix("torch."): d for d in FULL_DTYPES}
    out = []
    for name in names:
        found = known.get(name.strip().removeprefix("torch.")) if isinstance(name, str) else to_torch_dtype(name)
        if found is None:
            raise BadTarget(f"there is no dtype {name!r} to test; the known dtypes are {', '.join(known)}")
        out.append(found)
    return tuple(out)


@functools.cache
def device_is_there(device: str) -> bool:
    """Check whether this machine has a device."""
    kind = device.partition(":")[0]
    if kind in ("cpu", "meta"):
        return True
    module = getattr(torch, kind, None)
    return module is not None and bool(module.is_available())


def _devices(executor: Executor, profile: ConformanceProfile, wanted: Sequence[str]) -> tuple[str, ...]:
    if wanted:
        missing = [d for d in wanted if not device_is_there(d)]
        if missing:
            raise BadTarget(f"this machine has no device {', '.join(missing)}")
        return tuple(wanted)
    there = tuple(d for d in profile.devices if device_is_there(d))
    if not there:
        raise BadTarget(
            f"the executor {executor.name!r} is tested on {', '.join(profile.devices)}, but this machine has none: "
            "use --thunder-device to select another device"
        )
    return there
