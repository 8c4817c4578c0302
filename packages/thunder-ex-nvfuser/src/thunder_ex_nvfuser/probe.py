# SPDX-License-Identifier: Apache-2.0
"""Check which wheel of nvFuser is installed and whether it is compatible with this torch, and load it.

A wheel is built for one version of CUDA and torch, which are part of its name. If it was tested, a wheel is also loaded
with a neighbouring version of torch. It is then loaded with lazy binding, because one symbol is undefined. Only a log
line of multi-GPU runs uses this symbol. Importing this module imports neither torch nor nvFuser, so that probing stays
cheap.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from thunder.plugins import describe_error, major_and_minor, reject_device, reject_version

if TYPE_CHECKING:
    from thunder.plugins import Env

__all__ = ["library", "neighbour", "unusable_device", "why_not"]

MODULE = "nvfuser_direct"
OLDEST_GPU = (7, 0)
OLDEST = (0, 2, 36)  # the oldest nvFuser that the executor is tested with
# (torch of the wheel, installed torch): all symbols except the log line's are defined, and no class layout differs.
SAFE_NEIGHBOURS = {((2, 10), (2, 11))}


_NAME = re.compile(r"nvfuser_cu(\d+)\d_torch(\d)(\d+)")


class Wheel(NamedTuple):
    """The name of a wheel, the versions that it was built for, and its version."""

    name: str
    cuda: int
    torch: tuple[int, int]
    version: tuple[int, ...] = OLDEST


def _installed() -> tuple[importlib.metadata.Distribution, Wheel] | None:
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").replace("-", "_").lower()
        found = _NAME.fullmatch(name)
        if found:
            version = tuple(map(int, re.findall(r"\d+", distribution.version)[:3]))
            return distribution, Wheel(name, int(found[1]), (int(found[2]), int(found[3])), version)
    return None


def installed_wheel() -> Wheel | None:
    """Return the installed wheel of nvFuser; None if it was not installed from a wheel."""
    found = _installed()
    return None if found is None else found[1]


def why_not(env: Env) -> str | None:
    """Return why nvFuser cannot run on this machine; None if it can."""
    if not env.has_module(MODULE):
        old = " (the installed module nvfuser is from an older release)" if env.has_module("nvfuser") else ""
        return f"needs nvFuser's module {MODULE}, which is not installed{old}: pip install {_fitting(env)}"
    reason = env.lacks_gpu(OLDEST_GPU)
    wheel = installed_wheel()
    return reason if reason is not None or wheel is None else _misfit(wheel, env) or damage()


def _misfit(wheel: Wheel, env: Env) -> str | None:
    if str(env.cuda or "").partition(".")[0] != str(wheel.cuda):
        return f"{wheel.name} was built for CUDA {wheel.cuda}, torch for {env.cuda}: pip install {_fitting(env)}"
    here = major_and_minor(env.torch)
    if here != wheel.torch and (wheel.torch, here) not in SAFE_NEIGHBOURS:
        built = ".".join(map(str, wheel.torch))
        return f"{wheel.name} was built for torch {built}, but {env.torch} is installed: pip install {_fitting(env)}"
    version = ".".join(map(str, wheel.version))
    return reject_version("nvFuser", version, OLDEST, install=f"pip install -U {wheel.name}")


def damage() -> str | None:
    """Return an error if the size of a library differs from the size that the wheel records.

    Loading a truncated library would crash.
    """
    installed = _installed()
    for file in (installed[0].files or ()) if installed else ():
        if file.suffix == ".so" and file.parts[0] in (MODULE, "nvfuser_common") and file.size is not None:
            path = Path(str(file.locate()))
            if path.is_file() and (found := path.stat().st_size) != file.size:
                return f"{path} has {found} bytes, but its wheel records {file.size}: reinstall it"
    return None


def neighbour(env: Env) -> str | None:
    """Return a note if the wheel is used although it was built for another torch."""
    wheel = installed_wheel()
    if wheel is None or wheel.torch == major_and_minor(env.torch):
        return None
    return f"{wheel.name} was built for torch {'.'.join(map(str, wheel.torch))}; its symbols are bound lazily"


def _fitting(env: Env) -> str:
    """Return the name of the wheel for this machine."""
    cuda, (major, minor) = str(env.cuda or "13.0").replace(".", ""), major_and_minor(env.torch)
    return f"nvfuser-cu{cuda}-torch{major}{minor}" if major else "nvfuser-cu130-torch211"


@functools.cache
def library() -> Any:
    """Import and return `nvfuser_direct`. The import takes seconds, so it waits for the first fusion."""
    importlib.import_module("torch")
    os.environ.setdefault("NVFUSER_MASTER_PORT", "29555")  # otherwise its server searches for a port and logs it
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        return importlib.import_module(MODULE)
    finally:
        sys.setdlopenflags(flags)


@functools.cache
def load_error() -> str | None:
    """Return why the library does not load; None if it does."""
    try:
        library()
    except Exception as error:  # an incompatible library may raise any exception
        return f"{MODULE} does not load ({describe_error(error)})"
    return None


def unusable_device(device: Any) -> str | None:
    """Return why kernels cannot run on a device of this type; None if they can."""
    return reject_device(device, "nvFuser") or load_error()
